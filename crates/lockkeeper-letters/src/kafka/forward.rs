//! Forwards records from the spool to the topic, each once. [`super`] explains how.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::failure::ForwardFailure;
use super::shared::Shared;
use super::topic::{DEADLINE, TopicSender};
use crate::LetterRecord;

/// How many records go in one transaction.
const BATCH: usize = 500;

/// The pause before a retry: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A moment of a pass at which the process may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The intent is on disk.
    Intended,
    /// The transaction is committed.
    Committed,
    /// The records are deleted from the spool.
    TakenOut,
}

/// A waker, which gets the result of the pass that follows.
pub(super) type PassReply = mpsc::Sender<Result<(), String>>;

/// The thread. It ends when the sink is dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub(super) wake: mpsc::Sender<PassReply>,
}

impl Forwarder {
    pub(super) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (wake, woken) = mpsc::channel();
        std::thread::Builder::new().name("lockkeeper-kafka".to_owned()).spawn(move || run(&shared, &woken))?;
        Ok(Forwarder { wake })
    }
}

/// Runs passes: one immediately, one after each wake-up, and retries after a failure.
fn run(shared: &Shared, woken: &mpsc::Receiver<PassReply>) {
    let (first, longest) = PAUSES;
    let (mut sender, mut waiting, mut pause) = (None, Vec::new(), first);
    // The first one immediately, because the spool may have letters of other processes.
    let mut again = Some(Duration::ZERO);
    loop {
        let wake = match again {
            Some(again) => woken.recv_timeout(again),
            None => woken.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match wake {
            Ok(wake) => waiting.push(wake),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // The records of all wakers so far are in the spool already.
        waiting.extend(woken.try_iter());
        let outcome = pass(shared, &mut sender, &mut |_| Ok(())).map_err(|failure| shared.topic.explain(failure));
        let reply = outcome.as_ref().map(|_| ()).map_err(ForwardFailure::to_string);
        for waiter in waiting.drain(..) {
            // The waker may have stopped waiting.
            _ = waiter.send(reply.clone());
        }
        match outcome {
            Ok(_) => (again, pause) = (None, first),
            Err(failure) => {
                let sink = shared.address.to_string();
                tracing::debug!(%sink, %failure, again = ?pause, "dead letters wait in the spool");
                // The next sender resolves whatever this one had under way.
                (again, sender, pause) = (Some(pause), None, (pause * 2).min(longest));
            }
        }
    }
}

/// Forwards everything and returns how many records that were. Tests use `at` to end it at a chosen moment.
pub(super) fn pass(
    shared: &Shared,
    sender: &mut Option<TopicSender>,
    at: &mut dyn FnMut(Moment) -> Result<(), ForwardFailure>,
) -> Result<usize, ForwardFailure> {
    let mut forwarded = 0;
    // Do not wait for the turn if there is nothing to do: another process may have it, with brokers that do not answer.
    while !shared.spool.names()?.is_empty() {
        match batch(shared, sender, at) {
            Ok(0) => break,
            Ok(some) => forwarded += some,
            Err(failure) => {
                // The result is unknown; the next sender resolves it.
                *sender = None;
                return Err(failure);
            }
        }
    }
    Ok(forwarded)
}

fn batch(
    shared: &Shared,
    sender: &mut Option<TopicSender>,
    at: &mut dyn FnMut(Moment) -> Result<(), ForwardFailure>,
) -> Result<usize, ForwardFailure> {
    let (spool, topic) = (&shared.spool, &shared.topic);
    let turn = spool.turn()?;
    let deadline = Instant::now() + DEADLINE;
    let begun = turn.intent()?;
    if begun.is_some() {
        // Another process may have registered in the meantime: this sender must be replaced.
        *sender = None;
    }
    let sender = match sender {
        Some(sender) => sender,
        none => {
            topic.reach(deadline)?;
            none.insert(topic.sender(&turn.identity()?, deadline)?)
        }
    };
    if let Some(begun) = begun {
        let there = topic.read_since(&begun, deadline)?;
        turn.take_out(there.iter().filter_map(|found| found.entry.as_deref()).filter(|name| is_name(name)))?;
        turn.ended()?;
    }
    let mut unreadable = Vec::new();
    let mut entries = spool.read(&mut unreadable)?;
    for entry in unreadable {
        tracing::error!(%entry, "a dead letter in the spool cannot be read, and stays there");
    }
    entries.truncate(BATCH);
    // A letter that was added again, because its writer was not sure, is the same letter.
    let mut letters = HashSet::new();
    let (entries, again): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| match &entry.record {
        LetterRecord::Letter(letter) => letters.insert(letter.id.clone()),
        LetterRecord::Mark(_) => true,
    });
    if entries.is_empty() {
        return Ok(0);
    }
    turn.intend(&topic.ends(deadline)?)?;
    at(Moment::Intended)?;
    sender.send(topic, &entries, deadline)?;
    at(Moment::Committed)?;
    turn.take_out(entries.iter().chain(&again).map(|entry| entry.name.as_str()))?;
    at(Moment::TakenOut)?;
    turn.ended()?;
    Ok(entries.len())
}

/// Whether this can be the name of a record: it becomes a file name, and any client may write to the topic.
fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

//! Tests on a real broker, which is killed: `cargo xtask interop kafka`.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::time::Instant;

use lockkeeper_testkit::kafka::Broker;

use super::failure::ForwardFailure;
use super::forward::{Moment, pass};
use super::*;
use crate::{Letter, LetterEvent, Mark, fold};

/// The time limit for anything that must happen.
const LONG: Duration = Duration::from_secs(120);

fn letter(operation: &str) -> LetterRecord {
    LetterRecord::Letter(Box::new(Letter::new(operation, format!("P{}", operation.len() % 7), "/P")))
}

fn address(broker: &Broker) -> Address {
    format!("kafka:{}", broker.addr()).parse().unwrap()
}

fn sink(broker: &Broker, spool: &Path) -> KafkaSink {
    KafkaSink::open_with(address(broker), spool, KafkaSecurity::plain(), Duration::ZERO).unwrap()
}

fn block<T>(outcome: impl Future<Output = T>) -> T {
    // No reactor and no timer: the sink must work without them.
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(outcome)
}

/// Waits for another thread, whose progress shows only on the disk.
fn until(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How often each operation's letter is in the topic for a reader of committed messages.
fn letters(broker: &Broker) -> HashMap<String, usize> {
    let mut times = HashMap::new();
    for found in Topic::new(&broker.addr().to_string(), TOPIC, KafkaSecurity::plain()).read_all().unwrap() {
        if let LetterRecord::Letter(letter) = serde_json::from_slice(&found.payload).unwrap() {
            *times.entry(letter.operation).or_default() += 1;
        }
    }
    times
}

fn once(operations: impl IntoIterator<Item = String>) -> HashMap<String, usize> {
    operations.into_iter().map(|operation| (operation, 1)).collect()
}

/// C-47: a thousand letters, and the broker is killed and restarted in the middle of them, twice.
#[test]
fn every_letter_is_in_the_topic_once_though_the_broker_is_killed_in_the_middle() {
    const WRITERS: usize = 4;
    const EACH: usize = 250;
    let broker = Broker::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sink = sink(&broker, dir.path());
    let done = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (sink, done) = (&sink, &done);
            scope.spawn(move || {
                for at in 0..EACH {
                    // Kept, with or without a broker.
                    block(sink.append(&letter(&format!("{writer}-{at}")))).unwrap();
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        let written = || done.load(std::sync::atomic::Ordering::Relaxed);
        for part in [1, 2] {
            until("letters written", || written() >= part * WRITERS * EACH / 4);
            // Some are forwarded and some are not.
            until("letters forwarded", || sink.waiting().unwrap() < written());
            broker.kill();
            let at = written();
            until("letters written without a broker", || written() >= (at + 50).min(WRITERS * EACH));
            assert!(sink.waiting().unwrap() > 0, "some wait for the broker");
            broker.restart().unwrap();
        }
    });
    until("an empty spool", || sink.waiting().unwrap() == 0);
    let all = (0..WRITERS).flat_map(|writer| (0..EACH).map(move |at| format!("{writer}-{at}")));
    assert_eq!(letters(&broker), once(all));
    assert_eq!(fold(block(sink.records()).unwrap().records).len(), WRITERS * EACH);
}

/// C-47: wherever the forwarding process dies, the next one delivers each letter once.
#[test]
fn a_forwarder_that_dies_at_any_moment_loses_and_doubles_nothing() {
    let broker = Broker::start().unwrap();
    let mut all = BTreeSet::new();
    for moment in [Moment::Intended, Moment::Committed, Moment::TakenOut] {
        let dir = tempfile::tempdir().unwrap();
        let shared =
            KafkaSink::open_with(address(&broker), dir.path(), KafkaSecurity::plain(), Duration::ZERO).unwrap().shared;
        for at in 0..5 {
            let operation = format!("{moment:?}-{at}");
            shared.spool.add(&letter(&operation)).unwrap();
            all.insert(operation);
        }
        let mut died = None;
        let outcome = pass(&shared, &mut died, &mut |now| match now == moment {
            true => Err(ForwardFailure::Died),
            false => Ok(()),
        });
        assert!(matches!(outcome, Err(ForwardFailure::Died)), "{outcome:?}");
        // It comes again, with more to do.
        let operation = format!("{moment:?}-later");
        shared.spool.add(&letter(&operation)).unwrap();
        all.insert(operation);
        pass(&shared, &mut None, &mut |_| Ok(())).unwrap();
        assert_eq!(shared.spool.names().unwrap().len(), 0);
        assert_eq!(shared.spool.turn().unwrap().intent().unwrap(), None);
    }
    assert_eq!(letters(&broker), once(all));
}

/// What a dead process had sent and not committed does not count; if it still lived, it could no longer commit.
#[test]
fn a_transaction_ends_once_the_next_sender_has_registered() {
    let broker = Broker::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let shared =
        KafkaSink::open_with(address(&broker), dir.path(), KafkaSecurity::plain(), Duration::ZERO).unwrap().shared;
    shared.spool.add(&letter("a")).unwrap();
    let deadline = || Instant::now() + LONG;
    let undead = {
        let turn = shared.spool.turn().unwrap();
        turn.intend(&shared.topic.ends(deadline()).unwrap()).unwrap();
        let sender = shared.topic.sender(&turn.identity().unwrap(), deadline()).unwrap();
        let entries = shared.spool.read(&mut Vec::new()).unwrap();
        sender.begin(&shared.topic, &entries).unwrap();
        sender.flush();
        sender
    };
    // Its message is in the topic, but readers of committed messages do not see it.
    assert!(letters(&broker).is_empty());
    assert_eq!(pass(&shared, &mut None, &mut |_| Ok(())).unwrap(), 1);
    assert!(undead.commit().is_err(), "it was replaced");
    assert_eq!(letters(&broker), once(["a".to_owned()]));
}

#[test]
fn letters_that_came_without_a_broker_are_forwarded_when_it_is_back() {
    let broker = Broker::start().unwrap();
    broker.kill();
    let dir = tempfile::tempdir().unwrap();
    let first =
        KafkaSink::open_with(address(&broker), dir.path(), KafkaSecurity::plain(), Duration::from_millis(100)).unwrap();
    block(first.append(&letter("a"))).unwrap();
    assert_eq!(first.waiting().unwrap(), 1);
    assert!(block(first.records()).is_err(), "the topic cannot be read");
    // Its process ends. Another one finds the letter and forwards it by itself.
    drop(first);
    let second = sink(&broker, dir.path());
    broker.restart().unwrap();
    until("an empty spool", || second.waiting().unwrap() == 0);
    assert_eq!(letters(&broker), once(["a".to_owned()]));
}

#[test]
fn letters_and_marks_are_read_as_they_were_written_and_the_rest_is_named() {
    let broker = Broker::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let sink = KafkaSink::open_with(address(&broker), dir.path(), KafkaSecurity::plain(), LONG).unwrap();
    // Whoever may write to the topic could have written a letter.
    let foreign = vec![format!("kafka:{}/MdmDeadLetterQueue may be written by others", broker.addr())];
    let nothing = Records { foreign, ..Records::default() };
    assert_eq!(block(sink.records()).unwrap(), nothing, "there is no topic yet");
    let (a, b) = (Letter::new("a", "P1", "/P"), letter("b"));
    let replayed = LetterRecord::Mark(Mark::new(&a, LetterEvent::Replayed));
    let records = [LetterRecord::Letter(Box::new(a)), b, replayed];
    for record in &records {
        block(sink.append(record)).unwrap();
    }
    assert_eq!(sink.waiting().unwrap(), 0, "it waited until they were through");
    let filed = fold(block(sink.records()).unwrap().records);
    let fates: HashMap<_, _> = filed.iter().map(|filed| (filed.letter.operation.as_str(), filed.fate.name())).collect();
    assert_eq!(fates, HashMap::from([("a", "replayed"), ("b", "waiting")]));
    // Another program writes to the topic too.
    sink.shared.topic.send_foreign(b"not ours");
    let read = block(sink.records()).unwrap();
    assert_eq!(read.records.len(), 3);
    assert!(matches!(&read.unreadable[..], [problem] if problem.contains("MdmDeadLetterQueue[")), "{read:?}");
}

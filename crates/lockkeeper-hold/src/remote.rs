//! A hold that another process keeps, as a client of its socket sees it.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use lockkeeper::Loss;
use lockkeeper::guard::HoldState;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::clock::now;
use crate::protocol::{Event, HeldLock, Word};

/// What a client knows of a hold.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Seen {
    /// What the hold is bound to, for people.
    pub bond: Option<String>,
    /// Whether the locks are not held yet.
    pub waits: bool,
    /// Whether the hold is to be released: what is done under it must end.
    pub is_ending: bool,
    /// The locks; none before they are held.
    pub locks: Vec<HeldLock>,
    /// The timeout of the session that holds them.
    pub session_timeout: Duration,
    /// Until when the hold may be trusted, by [`now`](crate::now).
    pub valid_until: Duration,
    /// Whether the servers do not answer.
    pub suspected: bool,
    /// The latest request to release a lock: who asks, and why.
    pub asked: Option<(Option<String>, Option<String>)>,
    /// The last event, if there was one.
    pub last: Option<Event>,
}

/// A connection to the process that keeps a hold. The drop ends the connection, and not the hold.
#[derive(Debug)]
pub struct Remote {
    seen: watch::Receiver<Seen>,
    words: mpsc::UnboundedSender<Word>,
    speaker: JoinHandle<()>,
}

impl Remote {
    /// Connects to the socket of a hold, which must be this user's own, and reads what its keeper says first.
    ///
    /// Dropping the future leaves no connection.
    ///
    /// # Errors
    ///
    /// No process serves the socket, or it belongs to another user.
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        let own = rustix::process::geteuid().as_raw();
        if socket.symlink_metadata()?.uid() != own {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "it belongs to another user"));
        }
        let stream = UnixStream::connect(socket).await?;
        if stream.peer_cred()?.uid() != own {
            return Err(io::Error::new(ErrorKind::PermissionDenied, "another user serves it"));
        }
        let (input, output) = stream.into_split();
        let (tell, mut seen) = watch::channel(Seen::default());
        let (words, say) = mpsc::unbounded_channel();
        tokio::spawn(listen(BufReader::new(input).lines(), tell));
        let speaker = tokio::spawn(speak(say, output));
        // The first line is a greeting; the state follows.
        let is_known = |seen: &Seen| seen.waits || seen.is_ending || !seen.locks.is_empty() || seen.last.is_some();
        let first = seen.wait_for(is_known).await;
        drop(first.map_err(|_| io::Error::from(ErrorKind::UnexpectedEof))?);
        Ok(Remote { seen, words, speaker })
    }

    /// Returns what is known now. No round trip.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Says a word to the keeper. It has no effect if the keeper has ended.
    pub fn say(&self, word: Word) {
        _ = self.words.send(word);
    }

    /// Ends the connection when all that was said is written. Dropping the future leaves the last words unsaid, perhaps.
    pub async fn finish(self) {
        drop(self.words);
        // It fails only with a panic.
        _ = self.speaker.await;
    }

    /// Returns for how long the hold can be trusted: zero once it is over. No round trip.
    pub fn valid_for(&self) -> Duration {
        let seen = self.seen.borrow();
        if seen.last.is_some() { Duration::ZERO } else { seen.valid_until.saturating_sub(now()) }
    }

    /// Returns its state. Past the time that the keeper told last, it is lost. No round trip.
    pub fn state(&self) -> HoldState {
        let is_trusted = !self.valid_for().is_zero();
        match &*self.seen.borrow() {
            Seen { last: Some(Event::Lost { why, .. }), .. } => HoldState::Lost(loss(why)),
            Seen { last: Some(_), .. } | Seen { is_ending: true, .. } => HoldState::Lost(Loss::Closed),
            _ if !is_trusted => HoldState::Lost(Loss::Unreachable),
            Seen { suspected: true, .. } => HoldState::Suspected,
            _ => HoldState::Held,
        }
    }

    /// Waits until the state differs from `known`, and returns it. Dropping the future leaves nothing behind.
    pub async fn changed(&self, known: HoldState) -> HoldState {
        let mut seen = self.seen.clone();
        loop {
            seen.mark_unchanged();
            let state = self.state();
            if state != known {
                return state;
            }
            self.next(&mut seen, Duration::ZERO).await;
        }
    }

    /// Waits until the hold is over, and returns why. Dropping the future leaves nothing behind.
    pub async fn lost(&self) -> Loss {
        let mut known = self.state();
        loop {
            if let HoldState::Lost(loss) = known {
                return loss;
            }
            known = self.changed(known).await;
        }
    }

    /// Waits until the hold can be trusted for no longer than `margin`, and returns its state. Dropping the future leaves nothing behind.
    pub async fn nearly_lost(&self, margin: Duration) -> HoldState {
        let mut seen = self.seen.clone();
        while self.valid_for() > margin {
            self.next(&mut seen, margin).await;
        }
        self.state()
    }

    /// Waits until the hold can be trusted for longer than when this was called. Dropping the future leaves nothing behind.
    pub async fn renewed(&self) {
        let mut seen = self.seen.clone();
        let before = seen.borrow().valid_until;
        if seen.wait_for(|seen| seen.valid_until > before).await.is_err() {
            pending::<()>().await;
        }
    }

    /// Waits for the last event. Without one, the keeper has ended, and the hold is lost when its time has passed. Dropping the future
    /// leaves nothing behind.
    pub async fn last(&self) -> Option<Event> {
        let mut seen = self.seen.clone();
        seen.wait_for(|seen| seen.last.is_some()).await.ok().and_then(|seen| seen.last.clone())
    }

    /// Waits for news, or until the hold can be trusted for no longer than `margin`.
    async fn next(&self, seen: &mut watch::Receiver<Seen>, margin: Duration) {
        let left = self.valid_for().saturating_sub(margin);
        let news = async {
            if seen.changed().await.is_err() {
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = news => {}
            () = sleep(left) => {}
        }
    }
}

/// Reads events until there are no more.
async fn listen(mut lines: Lines<BufReader<OwnedReadHalf>>, tell: watch::Sender<Seen>) {
    while let Ok(Some(line)) = lines.next_line().await {
        // A keeper of a later version may have more events.
        let Ok(event) = serde_json::from_str::<Event>(&line) else { continue };
        tell.send_modify(|seen| seen.note(event));
    }
}

async fn speak(mut words: mpsc::UnboundedReceiver<Word>, mut output: OwnedWriteHalf) {
    while let Some(word) = words.recv().await {
        if output.write_all(word.line().as_bytes()).await.is_err() {
            return;
        }
    }
}

impl Seen {
    fn note(&mut self, event: Event) {
        match event {
            Event::Hello { bond, waits, .. } => (self.bond, self.waits) = (bond, waits),
            Event::Ending => self.is_ending = true,
            Event::Acquired { locks, valid_until_ns, session_timeout_ms, .. } => {
                (self.locks, self.suspected, self.waits) = (locks, false, false);
                self.session_timeout = Duration::from_millis(session_timeout_ms);
                self.valid_until = Duration::from_nanos(valid_until_ns);
            }
            Event::Valid { valid_until_ns } | Event::Checked { valid_until_ns } => {
                self.suspected = false;
                self.valid_until = self.valid_until.max(Duration::from_nanos(valid_until_ns));
            }
            Event::Suspected { .. } => self.suspected = true,
            Event::Asked { by, why, .. } => self.asked = Some((by, why)),
            event if event.is_last() => self.last = Some(event),
            _ => {}
        }
    }
}

/// Returns the loss of a word of the protocol.
fn loss(word: &str) -> Loss {
    match word {
        "session_expired" => Loss::SessionExpired,
        "unreachable" => Loss::Unreachable,
        "removed" => Loss::Removed,
        "auth_failed" => Loss::AuthFailed,
        "lease_ended" => Loss::LeaseEnded,
        "preempted" => Loss::Preempted,
        _ => Loss::Closed,
    }
}

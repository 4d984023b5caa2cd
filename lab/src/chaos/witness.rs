//! The witness: the resource that all contenders write to, and the recorder of their history.
//!
//! It listens on a Unix socket, which no network fault reaches. A contender reports each action before the next one, so
//! the history of a killed contender is complete up to its last action.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper::FencingToken;
use lockkeeper_fence::TokenGate;
use serde::{Deserialize, Serialize};

use crate::tools::now;
use lockkeeper_testkit::history::{Event, HoldId, Outcome, What};

/// A report of a contender. [`Line::Asking`] and [`Line::Write`] are answered by a line, `yes` or `no`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line {
    /// It is about to request a lock. Answered with `no` at the end of the run.
    Asking { contender: u32, lock: u32, from: Duration, limit: Option<Duration> },
    /// Something happened; it ends an open request.
    Event(Event),
    /// It wants to write under a hold. The answer says whether the resource accepted the write.
    Write { contender: u32, lock: u32, hold: HoldId, token: FencingToken, from: Duration },
    /// The library gave an unexpected result.
    Unexpected(String),
}

#[derive(Debug, Default)]
struct Book {
    events: Vec<Event>,
    asking: BTreeMap<u32, (u32, Duration, Option<Duration>)>,
    inside: BTreeSet<u32>,
    unexpected: Vec<String>,
    writes: u64,
    accepted: u64,
}

struct Inner {
    book: Mutex<Book>,
    gate: TokenGate,
    enough: AtomicBool,
}

/// The resource and the history.
pub(super) struct Witness {
    inner: Arc<Inner>,
    path: PathBuf,
}

impl Witness {
    pub(super) fn start(path: &Path) -> io::Result<Witness> {
        let listener = UnixListener::bind(path)?;
        let inner = Arc::new(Inner { book: Mutex::default(), gate: TokenGate::new(), enough: AtomicBool::new(false) });
        let serving = inner.clone();
        // The thread ends with the process; each connection ends with its contender.
        std::thread::Builder::new().name("witness".into()).spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let inner = serving.clone();
                std::thread::spawn(move || inner.hear(stream));
            }
        })?;
        Ok(Witness { inner, path: path.to_owned() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&self, contender: u32, lock: u32, from: Duration, what: What) {
        self.inner.book().events.push(Event { contender, lock, from, until: now(), what });
    }

    pub(super) fn unexpected(&self, what: String) {
        self.inner.book().unexpected.push(what);
    }

    /// Returns the number of writes that the resource accepted so far.
    pub(super) fn accepted(&self) -> u64 {
        self.inner.book().accepted
    }

    /// Returns the contenders whose last report says that they hold a lock.
    pub(super) fn inside(&self) -> BTreeSet<u32> {
        self.inner.book().inside.clone()
    }

    /// Answers all further requests with `no`.
    pub(super) fn enough(&self) {
        self.inner.enough.store(true, SeqCst);
    }

    /// Returns the history; calls without an answer are recorded as pending.
    pub(super) fn close(&self) -> (Vec<Event>, Vec<String>) {
        let mut book = self.inner.book();
        let asking = std::mem::take(&mut book.asking);
        for (contender, (lock, from, limit)) in asking {
            let what = What::Asked { limit, outcome: Outcome::Pending };
            book.events.push(Event { contender, lock, from, until: now(), what });
        }
        (std::mem::take(&mut book.events), std::mem::take(&mut book.unexpected))
    }
}

impl Inner {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no thread panics while it holds this")
    }

    fn hear(&self, stream: UnixStream) {
        let Ok(mut answers) = stream.try_clone() else { return };
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let Ok(line) = serde_json::from_str(&line) else { continue };
            let answer = match line {
                Line::Asking { contender, lock, from, limit } => {
                    let goes_on = !self.enough.load(SeqCst);
                    if goes_on {
                        self.book().asking.insert(contender, (lock, from, limit));
                    }
                    goes_on
                }
                Line::Event(event) => {
                    let mut book = self.book();
                    if let What::Asked { .. } = event.what {
                        book.asking.remove(&event.contender);
                    }
                    match event.what {
                        What::Looked { held: true, .. } => _ = book.inside.insert(event.contender),
                        What::Looked { .. } | What::Released { .. } => _ = book.inside.remove(&event.contender),
                        _ => {}
                    }
                    book.events.push(event);
                    continue;
                }
                Line::Write { contender, lock, hold, token, from } => {
                    let pass = self.gate.enter_blocking(&lock.to_string(), token);
                    let accepted = pass.is_ok();
                    let mut book = self.book();
                    // In the record's order, which is the resource's own: a newer token waits at the gate until this
                    // pass is dropped.
                    book.writes += 1;
                    book.accepted += u64::from(accepted);
                    let what = What::Wrote { hold, token: token.get(), order: book.writes, accepted };
                    book.events.push(Event { contender, lock, from, until: now(), what });
                    accepted
                }
                Line::Unexpected(what) => {
                    self.book().unexpected.push(what);
                    continue;
                }
            };
            if answers.write_all(if answer { b"yes\n" } else { b"no\n" }).is_err() {
                return;
            }
        }
    }
}

/// A contender's end of the connection.
pub(super) struct Teller {
    lines: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Teller {
    pub(super) fn connect(path: &Path) -> io::Result<Teller> {
        let lines = UnixStream::connect(path)?;
        Ok(Teller { answers: BufReader::new(lines.try_clone()?), lines })
    }

    pub(super) fn tell(&mut self, line: &Line) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.lines.write_all(&line)
    }

    pub(super) fn ask(&mut self, line: &Line) -> io::Result<bool> {
        self.tell(line)?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer.trim() == "yes")
    }
}

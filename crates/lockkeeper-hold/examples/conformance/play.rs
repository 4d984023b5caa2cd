//! One case: an adapter, the `lockkeeper` that it has started, and what the script does and expects of both.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, test_kill_process, waitid};
use serde_json::{Value, json};

use crate::part::{ERROR, EXIT, OUTPUT, SOCKET};

/// How a case ends: a text says what was expected and what was seen.
pub(crate) type Verdict<T = ()> = Result<T, String>;

/// How many seconds the script waits for what must happen. Only a client that fails reaches it.
pub(crate) static PATIENCE: AtomicU64 = AtomicU64::new(10);

/// How many cases have begun.
static CASES: AtomicU64 = AtomicU64::new(0);

fn patience() -> Duration {
    Duration::from_secs(PATIENCE.load(Ordering::Relaxed))
}

/// The name of the lock.
pub(crate) const LOCK: &str = "conformance/lock";

/// A time that no case reaches, from now, in milliseconds.
pub(crate) const LONG: u64 = 600_000;

/// A time that passes within a case.
pub(crate) const SHORT: u64 = 300;

/// What an adapter may tell at any time, and no case depends on.
const ASIDES: [&str; 3] = ["waiting", "error", "ended"];

pub(crate) struct Play {
    adapter: Child,
    orders: Option<ChildStdin>,
    told: Receiver<String>,
    complaints: thread::JoinHandle<String>,
    lockkeeper: UnixStream,
    pid: Pid,
    /// How the client has started its `lockkeeper`.
    pub(crate) arguments: Value,
    /// The client's words; the end of the channel is that of the input.
    said: Receiver<String>,
    has_exited: bool,
    is_killed: bool,
}

/// Runs a case with an adapter of its own.
pub(crate) fn run(adapter: &[OsString], case: impl Fn(&mut Play) -> Verdict) -> Verdict {
    let mut play = Play::start(adapter)?;
    let verdict = case(&mut play).and_then(|()| play.finish());
    // After a failure they may still run.
    _ = play.adapter.kill();
    _ = play.adapter.wait();
    if verdict.is_err() && !play.has_exited {
        _ = kill_process(play.pid, Signal::KILL);
    }
    verdict.map_err(|why| {
        let complaints = play.complaints.join().unwrap_or_default();
        let complaints = complaints.trim_end().replace('\n', "\n        | ");
        if complaints.is_empty() { why } else { format!("{why}\n        | {complaints}") }
    })
}

impl Play {
    /// Starts the adapter, and waits until it has started `lockkeeper`.
    fn start(adapter: &[OsString]) -> Verdict<Self> {
        let text = |error: io::Error| error.to_string();
        let number = CASES.fetch_add(1, Ordering::Relaxed);
        let socket = std::env::temp_dir().join(format!("lockkeeper-conformance-{}-{number}", std::process::id()));
        _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(text)?;
        listener.set_nonblocking(true).map_err(text)?;
        let mut command = Command::new(&adapter[0]);
        command.args(&adapter[1..]).arg(LOCK).env(SOCKET, &socket);
        command.env("LOCKKEEPER", std::env::current_exe().map_err(text)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("{} cannot be started: {error}", adapter[0].display()))?;
        let (told, complaints) = (lines(child.stdout.take()), text_of(child.stderr.take()));
        let accepted = soon("the adapter starts the program that LOCKKEEPER names", || listener.accept().ok());
        _ = std::fs::remove_file(&socket);
        let accepted = accepted.and_then(|(lockkeeper, _)| {
            lockkeeper.set_nonblocking(false).map_err(text)?;
            let said = lines(lockkeeper.try_clone().ok());
            let head = said.recv_timeout(patience()).map_err(|_| "the program that it started says nothing")?;
            Ok((lockkeeper, said, serde_json::from_str::<Value>(&head).unwrap_or_default()))
        });
        let (lockkeeper, said, head) = match accepted {
            Ok(accepted) => accepted,
            Err(why) => {
                _ = child.kill();
                _ = child.wait();
                return Err(format!("{why}\n        | {}", complaints.join().unwrap_or_default().trim_end()));
            }
        };
        let pid =
            head["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or("it has no pid")?;
        let (orders, arguments) = (child.stdin.take(), head["arguments"].clone());
        Ok(Play {
            adapter: child,
            orders,
            told,
            complaints,
            lockkeeper,
            pid,
            arguments,
            said,
            has_exited: false,
            is_killed: false,
        })
    }

    /// Ends the adapter as its user does, and checks that nothing is left.
    fn finish(&mut self) -> Verdict {
        if self.is_killed {
            self.exit(0);
            return Ok(());
        }
        self.input_is_open()?;
        self.orders = None;
        if !self.has_exited {
            self.input_ends()?;
            if !matches!(self.adapter.try_wait(), Ok(None)) {
                return Err("the adapter has ended before its lockkeeper".to_owned());
            }
            self.say(json!({"event": "released"}));
            self.exit(0);
        }
        self.child_is_reaped()?;
        let ended = soon("the adapter ends after its input", || self.adapter.try_wait().ok().flatten())?;
        if ended.success() { Ok(()) } else { Err(format!("the adapter has ended with {ended}")) }
    }

    // What lockkeeper does.

    fn send(&mut self, what: u8, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("a case sends less than 4 GiB").to_le_bytes();
        // It may have ended with the client.
        _ = self.lockkeeper.write_all(&[&[what][..], &length, bytes].concat());
    }

    pub(crate) fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.send(OUTPUT, bytes.as_ref());
    }

    pub(crate) fn complain(&mut self, text: &str) {
        self.send(ERROR, text.as_bytes());
    }

    pub(crate) fn say(&mut self, event: Value) {
        self.write(event.to_string() + "\n");
    }

    pub(crate) fn hello(&mut self) {
        self.say(json!({"event": "hello", "protocol": 1, "program": "lockkeeper 0.1.0"}));
    }

    /// Grants the lock with token 7, for so many milliseconds. Returns when the client has taken it.
    pub(crate) fn grant(&mut self, ms: u64) -> Verdict<u64> {
        self.hello();
        let until = from_now(ms);
        self.say(acquired("7", until));
        self.expect("acquired", json!(["7"]))?;
        Ok(until)
    }

    /// Grants the lock with this token, for the whole case.
    pub(crate) fn grants(&mut self, token: &str) -> Verdict {
        self.say(acquired(token, from_now(LONG)));
        self.expect("acquired", json!([token]))
    }

    /// Begins with a wait.
    pub(crate) fn waits(&mut self) {
        self.hello();
        self.say(json!({"event": "waiting", "path": "/locks/a", "ahead": 1}));
    }

    /// Says the last line, and ends.
    pub(crate) fn ends(&mut self, event: Value, status: u8) {
        self.say(event);
        self.exit(status);
    }

    pub(crate) fn exit(&mut self, status: u8) {
        self.send(EXIT, &[status]);
        self.has_exited = true;
    }

    pub(crate) fn kill_lockkeeper(&mut self) {
        _ = kill_process(self.pid, Signal::KILL);
        self.has_exited = true;
    }

    // What the client says to lockkeeper.

    /// Expects this word next.
    pub(crate) fn hear(&mut self, word: Value) -> Verdict {
        match self.said.recv_timeout(patience()) {
            Ok(line) if serde_json::from_str(&line).ok().as_ref() == Some(&word) => Ok(()),
            Ok(line) => Err(format!("expected the word {word}, and the client said {line}")),
            Err(_) => Err(format!("expected the word {word}, and the client said nothing")),
        }
    }

    /// Expects that no word was said but those that the case has heard, and that the input is open: its end releases the lock.
    fn input_is_open(&mut self) -> Verdict {
        match self.said.try_recv() {
            _ if self.has_exited => Ok(()),
            Ok(line) => Err(format!("the client said {line}, without an order")),
            Err(TryRecvError::Disconnected) => {
                Err("the client has closed the input, which releases the lock".to_owned())
            }
            Err(TryRecvError::Empty) => Ok(()),
        }
    }

    /// Orders a word without fields, and expects it.
    pub(crate) fn is_told(&mut self, word: &str) -> Verdict {
        self.order(word);
        self.hear(json!({"do": word}))
    }

    /// Waits until the client has closed the input. It may release before.
    pub(crate) fn input_ends(&mut self) -> Verdict {
        loop {
            match self.said.recv_timeout(patience()) {
                Ok(line) if line.contains("release") => {}
                Ok(line) => return Err(format!("expected the end of the input, and the client said {line}")),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => return Err("the client does not close the input".to_owned()),
            }
        }
    }

    /// Waits until the client has taken note of the end of its child.
    pub(crate) fn child_is_reaped(&mut self) -> Verdict {
        let pid = self.pid;
        soon("the client reaps its child", || test_kill_process(pid).is_err().then_some(()))
    }

    // What the adapter is told, and what it prints.

    pub(crate) fn order(&mut self, order: &str) {
        // A case that ends it sees so elsewhere.
        _ = self.orders.as_mut().map(|orders| writeln!(orders, "{order}").and_then(|()| orders.flush()));
    }

    /// Returns the next line of the adapter: a word and a value.
    fn told(&mut self) -> Verdict<(String, Value)> {
        let line = match self.told.recv_timeout(patience()) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return Err("the adapter has ended".to_owned()),
            Err(RecvTimeoutError::Timeout) => return Err("the adapter printed nothing".to_owned()),
        };
        if line == "not held" {
            return Ok((line, Value::Null));
        }
        let (word, value) = line.split_once(' ').unwrap_or((&line, "null"));
        let value = serde_json::from_str(value).map_err(|_| format!("{line:?} is no word with a value in JSON"))?;
        Ok((word.to_owned(), value))
    }

    /// Expects this of the adapter next. Of an object, these fields count.
    pub(crate) fn expect(&mut self, word: &str, value: Value) -> Verdict {
        loop {
            let seen = self.told().map_err(|why| format!("expected {word} {value}, and {why}"))?;
            if seen.0 == word && fits(&value, &seen.1) {
                return Ok(());
            }
            if seen.0 == word || !ASIDES.contains(&seen.0.as_str()) {
                return Err(format!("expected {word} {value}, and the adapter printed {} {}", seen.0, seen.1));
            }
        }
    }

    /// Expects one of these words, with any value, and returns it.
    pub(crate) fn expect_any(&mut self, words: &[&str]) -> Verdict<(String, Value)> {
        loop {
            let seen = self.told().map_err(|why| format!("expected {}, and {why}", words.join(" or ")))?;
            if words.contains(&seen.0.as_str()) {
                return Ok(seen);
            }
            if !ASIDES.contains(&seen.0.as_str()) {
                return Err(format!("expected {}, and the adapter printed {} {}", words.join(" or "), seen.0, seen.1));
            }
        }
    }

    /// Expects that the client holds the lock.
    pub(crate) fn held(&mut self) -> Verdict {
        self.order("held?");
        self.expect("held", Value::Null)?;
        self.input_is_open()
    }

    /// Expects that the client does not hold the lock. Before the answer it may tell that.
    pub(crate) fn not_held(&mut self) -> Verdict {
        self.order("held?");
        while self.expect_any(&["not held", "lost"])?.0 != "not held" {}
        Ok(())
    }

    /// Lets the client read all that was written so far: an event behind it, which it tells.
    pub(crate) fn catch_up(&mut self) -> Verdict {
        self.say(fence());
        self.expect("asked", json!("a fence"))
    }

    /// Kills the adapter. There is nothing to finish after that.
    pub(crate) fn kill(&mut self) {
        _ = self.adapter.kill();
        self.is_killed = true;
    }

    /// Waits until the adapter is stopped.
    pub(crate) fn stop(&mut self) -> Verdict {
        let pid = Pid::from_child(&self.adapter);
        let stopped = kill_process(pid, Signal::STOP)
            .and_then(|()| waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT));
        stopped.map(|_| ()).map_err(|error| format!("stopping the adapter: {error}"))
    }

    pub(crate) fn go_on(&mut self) {
        _ = kill_process(Pid::from_child(&self.adapter), Signal::CONT);
    }
}

fn fits(expected: &Value, seen: &Value) -> bool {
    match expected {
        Value::Object(fields) => fields.iter().all(|(name, value)| seen[name] == *value),
        value => value == seen,
    }
}

pub(crate) fn acquired(token: &str, until: u64) -> Value {
    let (path, node) = ("/locks/a", "/locks/a/n-1");
    json!({
        "event": "acquired", "path": path, "node": node, "token": token, "valid_until_ns": until,
        "locks": [{"path": path, "node": node, "token": token}],
    })
}

/// An event that is told by a client that has read all before it.
pub(crate) fn fence() -> Value {
    json!({"event": "asked", "path": "/locks/a", "why": "a fence"})
}

fn now() -> u64 {
    u64::try_from(lockkeeper_hold::now().as_nanos()).expect("a machine runs for less than 500 years")
}

/// Returns the instant in so many milliseconds, as the protocol writes it.
pub(crate) fn from_now(ms: u64) -> u64 {
    now() + ms * 1_000_000
}

/// Waits until an instant has passed.
pub(crate) fn pass(until: u64) {
    while now() <= until {
        thread::sleep(Duration::from_nanos(until + 1 - now().min(until)));
    }
}

/// Waits until there is something.
fn soon<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> Verdict<T> {
    let deadline = Instant::now() + patience();
    loop {
        if let Some(got) = get() {
            return Ok(got);
        }
        if Instant::now() > deadline {
            return Err(format!("not within {:?}: {what}", patience()));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads lines in a thread.
fn lines(input: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver): (Sender<String>, _) = channel();
    let input = BufReader::new(input.expect("it was piped"));
    thread::spawn(move || {
        input
            .split(b'\n')
            .map_while(Result::ok)
            .all(|line| sender.send(String::from_utf8_lossy(&line).into_owned()).is_ok())
    });
    receiver
}

fn text_of(input: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    let mut input = input.expect("it was piped");
    thread::spawn(move || {
        let mut text = Vec::new();
        _ = input.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

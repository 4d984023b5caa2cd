//! Standard output and standard error, each with a queue, so that a slow reader cannot block this program.
//!
//! A pipe without a reader, a terminal stopped by Ctrl-S and a disk that hangs block the thread that writes to them. A
//! lock, a command or a signal must not depend on such a thread. So other threads only put lines into a bounded queue,
//! and one thread per stream writes them. A full queue drops its oldest lines, and the stream reports how many.
//!
//! Invariant: nothing here waits for a reader, except [`Stream::flush`], which has a limit.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Maximum bytes in a queue.
const LIMIT: usize = 1 << 20;

/// Time limit for a flush that something waits for.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) static STDOUT: Stream = Stream::new(rustix::stdio::stdout);

pub(crate) static STDERR: Stream = Stream::new(rustix::stdio::stderr);

/// One stream, and the lines that it has not taken yet.
pub(crate) struct Stream {
    descriptor: fn() -> BorrowedFd<'static>,
    state: Mutex<State>,
    /// Notified when a line enters the queue, and when one has left it.
    changed: Condvar,
    /// Writes the text about this many lost lines.
    loss_notice: OnceLock<Box<dyn Fn(u64) -> String + Send + Sync>>,
    /// Called before each text is written.
    watcher: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The number of lines that were lost since the last notice.
    lost: u64,
    started: bool,
    /// Whether the thread has taken out a line that it has not written yet.
    writing: bool,
    /// Whether the reader has gone.
    closed: bool,
    /// Whether lines stay in the queue for now.
    held: bool,
}

impl Stream {
    const fn new(descriptor: fn() -> BorrowedFd<'static>) -> Self {
        let lines = VecDeque::new();
        let state = State { lines, bytes: 0, lost: 0, started: false, writing: false, closed: false, held: false };
        Stream {
            descriptor,
            state: Mutex::new(state),
            changed: Condvar::new(),
            loss_notice: OnceLock::new(),
            watcher: OnceLock::new(),
        }
    }

    /// Sets the text about lost lines. Only the first call has an effect.
    pub(crate) fn say_losses_by(&self, notice: impl Fn(u64) -> String + Send + Sync + 'static) {
        _ = self.loss_notice.set(Box::new(notice));
    }

    /// Calls this before each text is written. Only the first call has an effect.
    pub(crate) fn watch_by(&self, watcher: impl Fn() + Send + Sync + 'static) {
        _ = self.watcher.set(Box::new(watcher));
    }

    /// Keeps all lines in the queue until [`Stream::release`]. Called before the first line.
    pub(crate) fn hold(&self) {
        self.state().held = true;
    }

    /// Writes the lines that were held.
    pub(crate) fn release(&'static self) {
        let mut state = self.state();
        state.held = false;
        if !state.lines.is_empty() {
            self.wake(state);
        }
    }

    /// Queues one or more whole lines. Never waits for the reader.
    pub(crate) fn push(&'static self, text: impl Into<Vec<u8>>) {
        let text = text.into();
        let mut state = self.state();
        if state.closed {
            return;
        }
        while state.bytes + text.len() > LIMIT
            && let Some(oldest) = state.lines.pop_front()
        {
            state.bytes -= oldest.len();
            state.lost += 1;
        }
        state.bytes += text.len();
        state.lines.push_back(text);
        if !state.held {
            self.wake(state);
        }
    }

    /// Wakes the thread that writes, or starts it.
    fn wake(&'static self, mut state: MutexGuard<'_, State>) {
        if !state.started {
            let writer = std::thread::Builder::new().name("lockkeeper-write".to_owned()).spawn(|| self.write_all());
            state.started = writer.is_ok();
            if !state.started {
                // The process may have no threads left, and the line may report that. So this thread writes it,
                // although the stream may block.
                drop(state);
                self.write_next();
                return;
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until everything is written, at most for `limit`.
    pub(crate) fn flush(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.state();
        while !state.closed && !state.held && (state.writing || !state.lines.is_empty()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).expect("held for a change only").0;
        }
    }

    fn write_all(&self) {
        let mut stops = SigSet::empty();
        // A terminal may stop background processes that write to it (`stty tostop`). Lockkeeper is in the background
        // while its command runs, and a message must not stop it.
        stops.add(Signal::SIGTTOU);
        _ = stops.thread_block();
        loop {
            let mut state = self.state();
            while state.lines.is_empty() {
                state = self.changed.wait(state).expect("held for a change only");
            }
            drop(state);
            self.write_next();
        }
    }

    /// Writes the first line of the queue, after a notice of the lines that were lost before it.
    fn write_next(&self) {
        let mut state = self.state();
        let Some(line) = state.lines.pop_front() else { return };
        state.bytes -= line.len();
        state.writing = true;
        let lost = std::mem::take(&mut state.lost);
        drop(state);
        let notice = self.loss_notice.get().filter(|_| lost > 0).map(|notice| notice(lost).into_bytes());
        let text = [notice.unwrap_or_default(), line].concat();
        if let Some(watcher) = self.watcher.get() {
            watcher();
        }
        let result = write(self.descriptor, &text);
        let mut state = self.state();
        state.writing = false;
        match result {
            Ok(()) => {}
            // The reader has gone, or the stream was never open.
            Err(Errno::PIPE | Errno::BADF) => {
                state.closed = true;
                state.lines.clear();
            }
            // A full disk may have room again for a later line.
            Err(_) => state.lost += lost + 1,
        }
        drop(state);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("held for a change only")
    }
}

/// Writes all bytes, however long that takes.
fn write(descriptor: fn() -> BorrowedFd<'static>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(descriptor(), bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // Another program has made the stream non-blocking for all processes that share it.
            Err(Errno::AGAIN) => _ = poll(&mut [PollFd::from_borrowed_fd(descriptor(), PollFlags::OUT)], None),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits a moment until the queues are written, before the program ends or another writer uses the same streams.
pub(crate) fn flush() {
    STDOUT.flush(PATIENCE);
    STDERR.flush(PATIENCE);
}

/// Reports panics through the queue of standard error, so that the thread that panics never writes to a stream that may
/// block.
pub(crate) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let mut report = format!("lockkeeper: internal failure: thread {name} {panic}\n");
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            report.push_str(&format!("{trace}\n"));
        }
        STDERR.push(report);
        // The program may end next.
        STDERR.flush(PATIENCE);
    }));
}

/// Writes the log events that `filter` selects to standard error: `LEVEL`, `TARGET` or `TARGET=LEVEL`, separated by commas.
pub(crate) fn log(filter: &str) {
    // Colours are for a terminal, unless the user disabled them (https://no-color.org).
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (targets, mistakes) = targets(filter);
    // Fails only if there is a subscriber already.
    _ = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(colours)
        // The default prints internal errors on standard error, and panics if that is closed.
        .log_internal_errors(false)
        .with_writer(|| LogLine)
        .finish()
        .with(targets)
        .try_init();
    for mistake in mistakes {
        tracing::error!(
            "ignoring {mistake:?} in LOCKKEEPER_LOG: write LEVEL or TARGET=LEVEL; the levels are off, error, warn, info, debug and trace"
        );
    }
}

/// Parses a filter; returns what it selects, and its invalid parts. Without a valid part, it selects errors.
fn targets(filter: &str) -> (Targets, Vec<&str>) {
    let parts = filter.split(',').map(str::trim).filter(|part| !part.is_empty());
    let (mut read, mut mistakes) = (Vec::new(), Vec::new());
    for part in parts {
        match part.parse::<Targets>() {
            // The parser takes a misspelt level for a target. Only ours needs no level.
            Ok(targets)
                if targets.default_level().is_some() || part.contains('=') || part.starts_with("lockkeeper") =>
            {
                read.push(targets);
            }
            _ => mistakes.push(part),
        }
    }
    if read.is_empty() {
        return (Targets::new().with_default(LevelFilter::ERROR), mistakes);
    }
    let mut all = Targets::new();
    for targets in read {
        all = match targets.default_level() {
            Some(level) => all.with_default(level),
            None => all.with_targets(targets),
        };
    }
    (all, mistakes)
}

/// A line of the log, for standard error.
struct LogLine;

impl Write for LogLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        STDERR.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeWriter, Read};
    use std::os::fd::AsFd;

    use super::*;

    /// This test starts itself as the program that panics.
    #[test]
    fn a_panic_does_not_block_on_a_full_standard_error() {
        const ROLE: &str = "LOCKKEEPER_TEST_PANICS";
        if std::env::var_os(ROLE).is_some() {
            report_panics();
            assert!(std::thread::spawn(|| panic!("on purpose")).join().is_err());
            std::process::exit(7);
        }
        let (_reader, mut writer) = std::io::pipe().unwrap();
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        while writer.write(&[b'.'; 4096]).is_ok() || writer.write(b".").is_ok() {}
        rustix::fs::fcntl_setfl(&writer, flags).unwrap();
        let name = "streams::tests::a_panic_does_not_block_on_a_full_standard_error";
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", name, "--nocapture"]).env(ROLE, "1").stderr(writer);
        let mut program = program.stdout(std::process::Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = program.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= deadline {
                program.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(7));
    }

    #[test]
    fn a_log_filter_selects_by_level_and_target() {
        let selects =
            |filter: &str, target: &str, level: tracing::Level| targets(filter).0.would_enable(target, &level);
        for (filter, info, trace_of_ours, warning_of_another) in [
            ("info", true, false, true),
            ("lockkeeper=trace", true, true, false),
            ("lockkeeper", true, true, false),
            ("warn, lockkeeper=info", true, false, true),
            ("trace,lockkeeper=off", false, false, true),
            ("4", true, false, true),
            ("lockkeeper=loud,info", true, false, true),
            ("=", false, false, false),
            ("debgu,info", true, false, true),
        ] {
            assert_eq!(selects(filter, "lockkeeper::session", tracing::Level::INFO), info, "{filter}");
            assert_eq!(selects(filter, "lockkeeper::session", tracing::Level::TRACE), trace_of_ours, "{filter}");
            assert_eq!(selects(filter, "zookeeper_client", tracing::Level::WARN), warning_of_another, "{filter}");
        }
        assert_eq!(targets("lockkeeper=loud,info").1, ["lockkeeper=loud"]);
        assert_eq!(targets("debgu,rustls,rustls=debug,DEBUG,off,5").1, ["debgu", "rustls"]);
        assert!(selects("lockkeeper=loud", "lockkeeper", tracing::Level::ERROR));
    }

    #[test]
    fn a_full_stream_loses_its_oldest_lines_and_says_how_many() {
        static PIPE: OnceLock<PipeWriter> = OnceLock::new();
        static STREAM: Stream = Stream::new(|| PIPE.get().expect("set below").as_fd());
        let (mut reader, writer) = std::io::pipe().unwrap();
        PIPE.set(writer).unwrap();
        STREAM.say_losses_by(|lines| format!("{lines} lost\n"));
        // More than the pipe takes at once: the thread has the line and waits.
        let first = format!("{}\n", "x".repeat(LIMIT));
        STREAM.push(first.clone());
        while !STREAM.state().writing {
            std::thread::yield_now();
        }
        let line = |at: usize| format!("{at:09}\n");
        let (fit, lost) = (LIMIT / 10, 7);
        (0..fit + lost).for_each(|at| STREAM.push(line(at)));
        STREAM.flush(Duration::ZERO);
        let expected: String =
            [first, format!("{lost} lost\n")].into_iter().chain((lost..fit + lost).map(line)).collect();
        let mut received = vec![0; expected.len()];
        reader.read_exact(&mut received).unwrap();
        assert!(received == expected.as_bytes());
        STREAM.flush(Duration::from_secs(60));
        assert!(STREAM.state().lines.is_empty());
        // The reader has gone: no line is kept.
        drop(reader);
        STREAM.push("unread\n");
        STREAM.flush(Duration::from_secs(60));
        STREAM.push("unread\n");
        assert!(STREAM.state().closed && STREAM.state().lines.is_empty());
    }
}

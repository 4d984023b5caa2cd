//! A state directory for one test, the commands that run on it, and waiting for conditions.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use boon::{Compiler, SchemaIndex, Schemas};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, test_kill_process, waitid};
use serde_json::Value;
use tempfile::TempDir;
use tokio::signal::unix::SignalKind;

/// Time limit for conditions that should hold soon. It is far above what they need: only a failing test reaches it.
pub(crate) const SOON: Duration = Duration::from_secs(120);

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A user with a state directory and nothing else. Its server ends with it.
pub(crate) struct Home {
    dir: TempDir,
    /// The name of the state directory.
    state: &'static str,
    servers: Option<String>,
}

/// The file of settings that a test may write into its home.
pub(crate) const SETTINGS: &str = "lockkeeper.toml";

impl Home {
    pub(crate) fn new() -> Self {
        HEED.call_once(heed_signals);
        Home { dir: tempfile::tempdir().unwrap(), state: "state", servers: None }
    }

    /// Returns a home whose state directory has this name.
    pub(crate) fn with_state(name: &'static str) -> Self {
        let mut home = Home::new();
        home.state = name;
        home
    }

    /// Returns a home that uses these servers.
    pub(crate) fn with_servers(servers: &str) -> Self {
        let mut home = Home::new();
        home.servers = Some(servers.to_owned());
        home
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join(self.state)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file that no other user may read.
    pub(crate) fn secret(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.file(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes a program of the shell.
    pub(crate) fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.file(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args);
        self.prepare(&mut command);
        command
    }

    /// Gives a command the environment of this home.
    pub(crate) fn prepare(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCKKEEPER_")) {
            command.env_remove(name);
        }
        // The user who runs the tests may have settings. A test may give its home some.
        let settings = self.file(SETTINGS);
        command.env("LOCKKEEPER_CONFIG", if settings.exists() { settings } else { "/dev/null".into() });
        command.env("LOCKKEEPER_STATE_DIR", self.state()).current_dir(self.dir.path());
        if let Some(servers) = &self.servers {
            command.env("LOCKKEEPER_SERVERS", servers);
        }
    }

    /// Runs a command to its end, without standard input.
    pub(crate) fn output(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts `lockkeeper run NAME ARGS -- sh -c SCRIPT`, with pipes for its streams.
    pub(crate) fn spawn(&self, name: &str, args: &[&str], script: &str) -> Running {
        let command = [&["run", name], args, &["--", "sh", "-c", script]].concat();
        Running::start(&mut self.command(&command))
    }

    /// The same with a script that prints `up` first; returns when it has.
    pub(crate) fn starts(&self, name: &str, args: &[&str], script: &str) -> Running {
        let mut running = self.spawn(name, args, script);
        let line = running.line();
        assert_eq!(line, "up", "{name} {args:?}");
        running
    }

    /// Starts a run that holds its lock until its standard input ends; returns when it holds it.
    pub(crate) fn holds(&self, name: &str, args: &[&str]) -> Running {
        self.starts(name, args, "echo up; cat")
    }

    /// Starts a run behind the only holder of a lock; returns when it is the only one that waits.
    pub(crate) fn waits(&self, name: &str, args: &[&str], script: &str) -> Running {
        let running = self.spawn(name, args, script);
        until("it waits", || self.count(name) == (1, 1));
        running
    }

    /// Runs a command that must end with this status; returns its standard output.
    pub(crate) fn says(&self, args: &[&str], code: i32) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must succeed; returns its standard output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.says(args, 0)
    }

    /// The same of a command that prints JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// Runs a command that must end with this status; returns its standard error.
    pub(crate) fn tells(&self, args: &[&str], code: i32) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// The same, and it must have this text.
    pub(crate) fn tells_of(&self, args: &[&str], code: i32, say: &str) {
        names(&self.tells(args, code), &[say]);
    }

    /// Runs a command that must fail with this status; returns its line of failure.
    pub(crate) fn failure(&self, args: &[&str], code: i32) -> String {
        let (ended, line) = failure(&self.output(args));
        assert_eq!(ended, Some(code), "{args:?}: {line}");
        line
    }

    /// The same, and the line must have this text.
    pub(crate) fn refuses(&self, args: &[&str], code: i32, say: &str) {
        refused(&self.output(args), code, say);
    }

    /// Returns the output of `show --json` for a lock.
    pub(crate) fn show(&self, name: &str) -> Value {
        let lock = self.json(&["show", name, "--json"]);
        check_shape(&lock);
        lock
    }

    /// Returns the numbers of holders and waiters; both are 0 while no server runs.
    pub(crate) fn count(&self, name: &str) -> (usize, usize) {
        let output = self.output(&["show", name, "--json"]);
        let Ok(lock) = serde_json::from_slice::<Value>(&output.stdout) else {
            assert!(matches!(output.status.code(), Some(1 | 69)), "{output:?}");
            return (0, 0);
        };
        check_shape(&lock);
        let count = |kind: &str| lock[kind].as_array().unwrap().len();
        (count("holders"), count("waiters"))
    }

    /// Returns the pid of this user's server, if one runs.
    pub(crate) fn server(&self) -> Option<Pid> {
        let stream = std::os::unix::net::UnixStream::connect(self.state().join("socket")).ok()?;
        let pid = rustix::net::sockopt::socket_peercred(&stream).unwrap().pid;
        // A program of the test may host it.
        let command = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        command.split(|byte| *byte == 0).nth(1).filter(|word| *word == b"__serve").map(|_| pid)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(pid) = self.server() {
            // It is not a child of this process; a signal fails when it has ended.
            _ = kill_process(pid, Signal::KILL);
            _ = kill_process(pid, Signal::CONT);
        }
    }
}

static HEED: Once = Once::new();

/// The test process may ignore signals, because of nohup or as a background job. Its children would inherit that, so
/// commands under test would never get them. A signal with a handler returns to its default in children.
fn heed_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2] {
        if ignored & 1 << (signal.as_raw() - 1) != 0 {
            // The handler stays after the drop.
            drop(tokio::signal::unix::signal(SignalKind::from_raw(signal.as_raw())).unwrap());
        }
    }
}

/// A running command, with pipes for its streams. The drop kills it.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdout: BufReader<ChildStdout>,
    pub(crate) stderr: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Running { child, stdout: BufReader::new(stdout), stderr: BufReader::new(stderr) }
    }

    /// Returns the next line of its standard output, or the rest at its end.
    pub(crate) fn line(&mut self) -> String {
        let (deadline, mut line) = (Instant::now() + SOON, Vec::new());
        while line.last() != Some(&b'\n') {
            if self.stdout.buffer().is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                let mut out = [PollFd::new(self.stdout.get_ref(), PollFlags::IN)];
                let ready = poll(&mut out, Some(&Timespec::try_from(left).unwrap())).unwrap();
                assert!(ready > 0, "no line within {SOON:?}, only {:?}", String::from_utf8_lossy(&line));
            }
            let some = self.stdout.fill_buf().unwrap();
            let taken = some.iter().position(|byte| *byte == b'\n').map_or(some.len(), |at| at + 1);
            line.extend_from_slice(&some[..taken]);
            self.stdout.consume(taken);
            if taken == 0 {
                break;
            }
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    /// Returns the next line of its standard output, as a pid.
    pub(crate) fn pid_line(&mut self) -> Pid {
        let line = self.line();
        Pid::from_raw(line.parse().unwrap_or_else(|_| panic!("{line:?} is no pid"))).unwrap()
    }

    /// Returns the next line of its standard error.
    pub(crate) fn told(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.stderr.read_line(&mut line).unwrap(), 0, "it has ended");
        line
    }

    /// Returns its standard error up to a line with this text.
    pub(crate) fn told_of(&mut self, text: &str) -> String {
        let mut told = String::new();
        while !told.contains(text) {
            assert_ne!(self.stderr.read_line(&mut told).unwrap(), 0, "no {text:?} in {told}");
        }
        told
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal. After SIGSTOP, returns when every thread has stopped: until then one may still answer.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
        if signal == Signal::STOP {
            // NOWAIT: if the command ends instead, `wait` must still see that.
            let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(self.pid()), either).unwrap();
        }
    }

    /// Closes its standard input.
    pub(crate) fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Closes its standard input. It must end with success.
    pub(crate) fn finish(&mut self) {
        self.close_stdin();
        self.ends(0);
    }

    /// Waits for its end, which must be with this status; returns the rest of its standard error.
    pub(crate) fn ends(&mut self, status: i32) -> String {
        let (code, text) = self.end();
        assert_eq!(code, Some(status), "{text}");
        text
    }

    /// Prints this line next, and then ends with success.
    pub(crate) fn ends_after(&mut self, line: &str) {
        assert_eq!(self.line(), line);
        self.ends(0);
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits for its end; returns the exit status and the rest of its output.
    pub(crate) fn output(mut self) -> Output {
        let status = self.wait();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.stdout.read_to_end(&mut stdout).unwrap();
        self.stderr.read_to_end(&mut stderr).unwrap();
        Output { status, stdout, stderr }
    }

    /// Waits for its end; returns the exit code and the rest of its standard error.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let status = self.wait();
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).unwrap();
        (status.code(), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A server on a free port that a test can stop and kill.
pub(crate) struct Served {
    pub(crate) running: Running,
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn start(home: &Home) -> Self {
        Self::start_after(home, 0)
    }

    /// Starts one that ends during the test. Meanwhile no server of another test gets its port.
    pub(crate) fn start_to_end(home: &Home) -> Self {
        let [port] = lockkeeper_testkit::free_ports().unwrap();
        Self::start_at(home, &format!("127.0.0.1:{port}"))
    }

    /// Starts one at an address where an earlier one was.
    pub(crate) fn start_at(home: &Home, address: &str) -> Self {
        Self::start_with(home, address, &[])
    }

    /// Starts one whose tokens are above this number, and above those of its clock.
    pub(crate) fn start_after(home: &Home, zxid: i64) -> Self {
        Self::start_with(home, "127.0.0.1:0", &["--first-zxid", &zxid.to_string()])
    }

    /// Starts one that listens there, with more options.
    pub(crate) fn start_with(home: &Home, listen: &str, more: &[&str]) -> Self {
        let args = [&["serve", "--memory", "--listen", listen], more].concat();
        let mut running = Running::start(&mut home.command(&args));
        let address = running.line();
        Served { running, address }
    }
}

/// Returns a server, and a user of it.
pub(crate) fn served() -> (Served, Home) {
    let served = Served::start(&Home::new());
    let home = Home::with_servers(&served.address);
    (served, home)
}

/// Returns a user, and a run of theirs that holds this lock.
pub(crate) fn held(name: &str, args: &[&str]) -> (Home, Running) {
    let home = Home::new();
    let holder = home.holds(name, args);
    (home, holder)
}

/// Whether a process runs; a zombie does not.
pub(crate) fn is_alive(pid: Pid) -> bool {
    if test_kill_process(pid).is_err() {
        return false;
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The state follows the command in parentheses, which may contain any character.
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// Stops a process that is no child of this one, and returns when every thread has stopped: until then one may still answer.
pub(crate) fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let state = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
    // The state follows the name in parentheses, which may contain any character.
    let runs = |stat: &str| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 'Z']));
    until("every thread has stopped", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap().flatten();
        !tasks.map(state).any(|stat| runs(&stat))
    });
}

/// Returns the child processes of a `run` that are watchdogs.
pub(crate) fn watchdogs(parent: Pid) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let children = processes.filter_map(|entry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // After the command in parentheses: the state, and the parent.
        let above = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)?;
        let words = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        (above == parent && words.ends_with("\0__watch\0")).then_some(pid)
    });
    children.collect()
}

/// Waits until a process has become this program, and no longer is the shell that started it.
pub(crate) fn until_it_is(pid: Pid, program: &str) {
    let name = format!("/proc/{}/comm", pid.as_raw_nonzero());
    until(program, || std::fs::read_to_string(&name).is_ok_and(|name| name.trim_end() == program));
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the exit code and the one line of a failure, after checking its form.
pub(crate) fn failure(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    let mut lines = text.lines();
    let line = lines.next().unwrap_or_default();
    let line = without_time(line)
        .strip_prefix("lockkeeper: ")
        .unwrap_or_else(|| panic!("{text:?} is not a line of lockkeeper"))
        .to_owned();
    for more in lines {
        assert!(more.starts_with("  hint: "), "{text}");
    }
    (output.status.code(), line)
}

/// Checks that a command has failed with this status, and that its line of failure has this text.
pub(crate) fn refused(output: &Output, code: i32, say: &str) {
    let (ended, line) = failure(output);
    assert!(ended == Some(code) && line.contains(say), "{ended:?}: {line}, and not {code} with {say:?}");
}

/// Returns a line of a log without the time at its beginning, if it has one.
pub(crate) fn without_time(line: &str) -> &str {
    match line.split_once(' ') {
        Some((time, rest)) if time.parse::<jiff::Timestamp>().is_ok() => rest,
        _ => line,
    }
}

/// Returns the standard error of a command, without the line that names the server.
pub(crate) fn without_scope(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let others = text.lines().filter(|line| !without_time(line).starts_with("lockkeeper: on "));
    others.map(|line| format!("{line}\n")).collect()
}

/// Checks that a text has all of these.
pub(crate) fn names(text: &str, all: &[&str]) {
    for one in all {
        assert!(text.contains(one), "{one:?} is missing in {text}");
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(crate) fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Checks a lock in JSON against the schema that programs rely on.
pub(crate) fn check_shape(lock: &Value) {
    thread_local! {
        static SCHEMA: Schema = Schema::new(include_str!("../../../../docs/commands/lock.schema.json"));
    }
    SCHEMA.with(|schema| schema.check(lock));
}

/// A schema of the manual.
pub(crate) struct Schema(Schemas, SchemaIndex);

impl Schema {
    pub(crate) fn new(text: &str) -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("it.json", serde_json::from_str(text).unwrap()).unwrap();
        let index = compiler.compile("it.json", &mut schemas).unwrap();
        Schema(schemas, index)
    }

    /// Checks that a value fits it.
    pub(crate) fn check(&self, value: &Value) {
        let checked = self.0.validate(value, self.1);
        assert!(checked.is_ok(), "{:#} of {value:#}", checked.unwrap_err());
    }
}

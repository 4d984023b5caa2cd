//! A real terminal: the live line, the keys, and a shell with job control around it.

use std::io::{Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lockkeeper_testkit::is_deep;
use pty_process::blocking::{Command, Pty};

use crate::harness::{BINARY, Home, held, is_alive, names, served, until};

/// Ctrl-C and Ctrl-Z, as a terminal sends them.
pub(crate) const INTERRUPT: &[u8] = b"\x03";
const SUSPEND: &[u8] = b"\x1a";

/// A program on a terminal of its own, which is its controlling terminal.
pub(crate) struct Screen {
    child: Child,
    keys: Pty,
    shown: Receiver<Vec<u8>>,
    text: String,
}

impl Screen {
    pub(crate) fn start(home: &Home, program: &str, args: &[&str]) -> Self {
        Screen::with_columns(200, home, program, args)
    }

    pub(crate) fn with_columns(columns: u16, home: &Home, program: &str, args: &[&str]) -> Self {
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(pty_process::Size::new(24, columns)).unwrap();
        let mut command = Command::new(program).args(args).current_dir(home.file(""));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCKKEEPER_")) {
            command = command.env_remove(name);
        }
        command = command.env("LOCKKEEPER_STATE_DIR", home.state()).env("TERM", "xterm").env("PS1", "ready> ");
        let child = command.env("lockkeeper", BINARY).spawn(pts).unwrap();
        let (sender, shown) = channel();
        let keys = pty;
        let mut screen = std::fs::File::from(std::os::fd::AsFd::as_fd(&keys).try_clone_to_owned().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // On a terminal, a closed other side is an error.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Screen { child, keys, shown, text: String::new() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// Waits until the screen has shown this since the last call; returns the text up to it.
    pub(crate) fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(at) = self.text.find(text) {
                let rest = self.text.split_off(at + text.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} on the screen, but {:?}", self.text),
            }
        }
    }

    /// Waits until the terminal shows this, whatever parts of it were drawn last; returns all that it shows.
    pub(crate) fn until_shown(&mut self, terminal: &mut vt100::Parser, text: &str) -> String {
        self.until_it_shows(terminal, text, |shown| shown.contains(text))
    }

    /// Waits until the terminal shows what is asked for; returns all that it shows.
    pub(crate) fn until_it_shows(
        &mut self,
        terminal: &mut vt100::Parser,
        what: &str,
        is: impl Fn(&str) -> bool,
    ) -> String {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let shown = terminal.screen().contents();
            if is(&shown) {
                return shown;
            }
            match self.shown.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => terminal.process(&bytes),
                Err(_) => panic!("no {what:?} on the screen:\n{shown}"),
            }
        }
    }

    /// Waits until the terminal shows this. Presses the keys again whenever it has shown nothing new for a while: a program that must not
    /// make a person wait may have given up on a busy machine.
    pub(crate) fn press_until_shown(&mut self, keys: &[u8], terminal: &mut vt100::Parser, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(120);
        self.press(keys);
        loop {
            let shown = terminal.screen().contents();
            if shown.contains(text) {
                return shown;
            }
            assert!(Instant::now() < deadline, "no {text:?} on the screen:\n{shown}");
            match self.shown.recv_timeout(Duration::from_secs(2)) {
                Ok(bytes) => terminal.process(&bytes),
                Err(_) => self.press(keys),
            }
        }
    }

    /// Waits for the end of the program; returns all text that no call has returned.
    pub(crate) fn rest(&mut self) -> String {
        self.end();
        // The other side of the terminal is closed when all text is read.
        while let Ok(bytes) = self.shown.recv_timeout(Duration::from_secs(120)) {
            self.text.push_str(&String::from_utf8_lossy(&bytes));
        }
        std::mem::take(&mut self.text)
    }

    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
fn waiting_on_a_terminal_is_one_live_line_that_is_wiped() {
    let (home, mut holder) = held("nightly", &["-m", "nightly index"]);
    let mut screen = Screen::start(&home, BINARY, &["run", "nightly", "--", "echo", "granted"]);
    screen.expect("waiting for /locks/nightly: held by ");
    // It is live: the seconds pass.
    let seconds = |screen: &mut Screen| {
        screen.expect("(nightly index), on ");
        screen.expect("'s own server; ");
        screen.expect(" s\x1b[K").trim_end_matches(" s\x1b[K").parse::<u32>().unwrap()
    };
    let mut last = seconds(&mut screen);
    for _ in 0..2 {
        let earlier = std::mem::replace(&mut last, 0);
        while last <= earlier {
            last = seconds(&mut screen);
        }
    }
    holder.close_stdin();
    let between = screen.expect("granted");
    assert!(between.ends_with("\r\x1b[Kgranted"), "{between:?}");
    assert_eq!(screen.end().code(), Some(0));
    assert!(holder.wait().success());
}

/// A waiting user mostly wants to know how many contenders are ahead and how much time is left.
#[test]
fn case_46_the_live_line_keeps_its_end_and_its_deadline_at_every_width_and_ctrl_c_leaves_the_queue() {
    let (home, mut holder) = held("nightly", &["-m", "nightly index"]);
    let _next = home.waits("nightly", &[], "cat");
    for columns in [40, 60, 80] {
        let args = ["run", "nightly", "--wait", "8s", "--", "touch", "ran"];
        let mut screen = Screen::with_columns(columns, &home, BINARY, &args);
        screen.expect(", 2 ahead; ");
        assert_eq!(screen.expect("of 8 s\x1b[K").len(), "4 of 8 s\x1b[K".len() + 2);
        screen.press(INTERRUPT);
        assert_eq!(screen.end().code(), Some(128 + 2));
        screen.expect("\r\x1b[K");
        assert_eq!(home.count("nightly"), (1, 1));
    }
    assert!(!home.file("ran").exists());
    holder.finish();
}

#[test]
fn a_waiting_lease_shows_its_holder_and_its_deadline() {
    let home = Home::new();
    let holds = "trap '' TERM; echo up; read line";
    let mut holder = home.starts("a", &["--lease", "10m", "--cleanup", "10m", "--id", "nightly-1"], holds);
    let args = ["run", "a", "--lease", "10m", "--priority", "5", "--waiting", "8s", "--", "true"];
    let mut screen = Screen::start(&home, BINARY, &args);
    screen.expect("waiting for /locks/a: held by nightly-1");
    screen.expect("; 1 s of 8 s\x1b[K");
    screen.expect("; 2 s of 8 s\x1b[K");
    screen.press(INTERRUPT);
    assert_eq!(screen.end().code(), Some(128 + 2));
    screen.expect("\r\x1b[K");
    holder.close_stdin();
    holder.wait();
}

#[test]
fn connecting_shows_a_live_line_after_a_moment() {
    // It accepts connections and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let home = Home::new();
    for args in [&["run", "a", "--wait", "5s"][..], &["list"]] {
        let command: Vec<_> = args.iter().copied().chain(["--servers", &address]).collect();
        let limit = if args[0] == "run" { "5 s" } else { "10 s" };
        let end: &[&str] = if args[0] == "run" { &["--", "true"] } else { &[] };
        let mut screen = Screen::start(&home, BINARY, &[&command, end].concat());
        screen.expect(&format!("connecting to {address}; 0 s of {limit}\x1b[K"));
        screen.expect(&format!("connecting to {address}; 1 s of {limit}\x1b[K"));
        screen.press(INTERRUPT);
        screen.end();
    }
}

/// With several locks the line shows the one that the command waits for, and then the next.
#[test]
fn the_live_line_follows_every_kind_and_each_of_several_locks() {
    let home = Home::new();
    let mut counted = home.spawn("a", &["--permits", "2", "--take", "2"], "echo up; cat");
    let mut other = home.spawn("b", &["--permits", "2"], "echo up; cat");
    assert_eq!((counted.line(), other.line()), ("up".to_owned(), "up".to_owned()));
    let args = ["run", "b", "a", "--permits", "2", "--take", "2", "--", "echo", "granted"];
    let mut screen = Screen::start(&home, BINARY, &args);
    screen.expect("waiting for /locks/a: held by ");
    screen.expect("2 of 2 permits taken");
    counted.close_stdin();
    screen.expect("waiting for /locks/b: held by ");
    screen.expect("1 of 2 permits taken");
    other.close_stdin();
    screen.expect("granted");
    assert_eq!(screen.end().code(), Some(0));

    let mut background = home.holds("c", &["--background"]);
    let mut screen = Screen::start(&home, BINARY, &["run", "c", "--background", "--", "echo", "granted"]);
    screen.expect("waiting for /locks/c: held by ");
    screen.expect(", class B, since ");
    // A later contender gets the position before this one.
    let mut foreground = home.spawn("c", &["--foreground"], "echo up; cat");
    screen.expect(", 2 ahead");
    background.close_stdin();
    assert_eq!(foreground.line(), "up");
    screen.expect(", class A, since ");
    foreground.close_stdin();
    screen.expect("granted");
    assert_eq!(screen.end().code(), Some(0));
}

#[test]
fn case_46_ctrl_c_while_running_reaches_the_command() {
    let home = Home::new();
    let mut screen = Screen::start(&home, BINARY, &["run", "a", "--", "cat"]);
    screen.press(b"typed\n");
    screen.expect("typed\r\n");
    screen.expect("typed\r\n");
    screen.press(INTERRUPT);
    assert_eq!(screen.end().code(), Some(130));
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn an_interactive_command_has_the_terminal() {
    let home = Home::new();
    let script = "read -p 'who? ' name </dev/tty; echo hello $name";
    let mut screen = Screen::start(&home, BINARY, &["run", "a", "--", "bash", "-c", script]);
    screen.expect("who? ");
    screen.press(b"me\n");
    screen.expect("hello me");
    assert_eq!(screen.end().code(), Some(0));
}

#[test]
fn behind_a_pipe_the_command_gets_the_terminal_when_it_asks() {
    let home = Home::new();
    // Standard output is not a terminal, so the terminal is given away only on demand.
    let script = "$lockkeeper run a -- sh -c 'read name </dev/tty; echo hello $name' | cat";
    let mut screen = shell(&home);
    screen.press(format!("{script}\n").as_bytes());
    screen.expect("cat\r\n");
    until("it holds", || home.count("a") == (1, 0));
    screen.press(b"me\n");
    screen.expect("hello me");
    screen.expect("ready> ");
    screen.press(b"exit\n");
    assert!(screen.end().success());
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it_under_the_lock() {
    let home = Home::new();
    let mut screen = shell(&home);
    screen.press(b"$lockkeeper run a -- sh -c 'echo pid=$$; read x; echo got=$x; read y; echo end=$y'\n");
    screen.expect("\rpid=");
    let pid: i32 = screen.expect("\r\n").trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    screen.press(b"one\n");
    screen.expect("got=one");
    screen.press(SUSPEND);
    screen.expect("Stopped");
    screen.expect("ready> ");
    assert!(is_alive(pid));
    screen.press(b"fg\n");
    screen.expect("fg\r\n");
    screen.press(b"two\n");
    screen.expect("end=two");
    screen.expect("ready> ");
    screen.press(b"echo status=$?\n");
    screen.expect("\rstatus=0");
    assert_eq!(home.count("a"), (0, 0));
    screen.press(b"exit\n");
    assert!(screen.end().success());
}

#[test]
fn ctrl_z_stops_a_former_leader_that_stands_by_again() {
    let home = Home::new();
    let mut screen = shell(&home);
    screen.press(b"$lockkeeper lead e -- sh -c 'echo leads $LOCKKEEPER_PATH; exec sleep 1000'\n");
    screen.expect("leads /locks/e");
    let mut next = home.waits("e", &[], "echo in; cat");
    home.ok(&["revoke", "e"]);
    assert_eq!(next.line(), "in");
    until("the former leader stands by", || home.count("e") == (1, 1));
    screen.press(SUSPEND);
    screen.expect("Stopped");
    screen.expect("ready> ");
    screen.press(b"fg\n");
    screen.expect("fg\r\n");
    next.close_stdin();
    screen.expect("leads /locks/e");
    screen.press(INTERRUPT);
    screen.expect("ready> ");
    screen.press(b"exit 0\n");
    assert!(screen.end().success());
}

/// It prints the loss before it ends the command, and the author of a break when the records have been read.
#[test]
fn a_job_stopped_past_its_session_does_not_go_on() {
    let home = Home::new();
    let mut screen = shell(&home);
    screen.press(b"$lockkeeper run a b --session-timeout 6s -- sh -c 'echo up; read x; touch ran'\n");
    screen.expect("up\r\n");
    screen.press(SUSPEND);
    screen.expect("ready> ");
    home.ok(&["break", "a", "--reason", "its host burns", "--yes"]);
    // Its session expires, and another contender gets the lock that was not broken.
    let mut other = home.spawn("b", &[], "echo in; cat");
    assert_eq!(other.line(), "in");
    screen.press(b"fg\n");
    for told in [
        "lock /locks/a is lost",
        "; killing the command, which is stopped",
        "/locks/a was broken by ",
        ": its host burns",
    ] {
        screen.expect(told);
    }
    screen.expect("ready> ");
    screen.press(b"echo status=$?\n");
    screen.expect("\rstatus=76");
    assert!(!home.file("ran").exists());
    assert_eq!(home.count("b"), (1, 0));
    other.finish();
}

/// The group is killed while it is stopped, so that neither a trap nor a step of it runs under the next holder.
#[test]
fn fg_after_the_loss_runs_no_step_and_no_trap_of_the_command() {
    let (rounds, at_once) = if is_deep() { (20, 5) } else { (1, 3) };
    for _ in 0..rounds {
        let home = Home::new();
        let mut jobs: Vec<_> =
            (0..at_once).map(|job| format!("job-{job}")).map(|job| (stopped_job(&home, &job), job)).collect();
        // Their sessions expire, and a second holder gets each lock.
        let mut others: Vec<_> = jobs.iter().map(|(_, job)| home.spawn(job, &[], "echo in; cat")).collect();
        others.iter_mut().for_each(|other| assert_eq!(other.line(), "in"));
        for (screen, job) in &mut jobs {
            let steps = |job: &str| std::fs::read_to_string(home.file(job)).unwrap();
            let before = steps(job);
            screen.press(b"fg\n");
            let told = screen.expect("ready> ");
            let after = steps(job);
            assert_eq!(after.strip_prefix(&before), Some(""), "the command went on; {told}");
            names(&told, &["lockkeeper was paused for too long (", " is lost; killing the command, which is stopped"]);
            screen.press(b"echo status=$?\n");
            screen.expect("\rstatus=76");
            screen.press(b"exit\n");
            screen.end();
        }
        for mut other in others {
            other.finish();
        }
    }
}

/// Returns a shell at its prompt.
fn shell(home: &Home) -> Screen {
    let mut screen = Screen::start(home, "bash", &["--norc", "-i"]);
    screen.expect("ready> ");
    screen
}

/// Returns a shell whose job under the lock of this name is stopped. The job writes each step and each trap to a file of the same name. It
/// starts no process: a shell that is stopped between fork and exec of one does not count as stopped.
fn stopped_job(home: &Home, name: &str) -> Screen {
    let mut screen = shell(home);
    let work = format!("trap \"echo trap >>{name}\" TERM CONT; while :; do echo step >>{name}; done");
    let run = format!("$lockkeeper run {name} --session-timeout 1s -- sh -c '{work}'\n");
    screen.press(run.as_bytes());
    until("it works", || home.file(name).exists());
    screen.press(SUSPEND);
    screen.expect("Stopped");
    screen.expect("ready> ");
    screen
}

#[test]
fn break_shows_whom_and_asks() {
    let home = Home::new();
    let mut holder = home.starts("a", &["-m", "nightly index"], "echo up; exec sleep 1000");
    for no in ["\n", "n\n", "yesterday\n"] {
        let mut screen = Screen::start(&home, BINARY, &["break", "a", "--reason", "it hangs"]);
        screen.expect("/locks/a is held by ");
        screen.expect("(nightly index)");
        let question = screen.expect("Break it? [y/N] ");
        assert!(question.contains("Its client is notified, unless it is stopped, but what it is doing "), "{question}");
        screen.press(no.as_bytes());
        screen.expect("nothing was broken");
        assert_eq!(screen.end().code(), Some(1));
        assert_eq!(home.count("a"), (1, 0));
    }
    let mut screen = Screen::start(&home, BINARY, &["break", "a", "--reason", "it hangs"]);
    screen.expect("Break it? [y/N] ");
    screen.press(b"y\n");
    screen.expect("was taken from");
    assert_eq!(screen.end().code(), Some(0));
    assert_eq!(holder.wait().code(), Some(76));
}

/// The epoch cannot be lowered again: the person at the terminal first sees the new value.
#[test]
fn epoch_asks_before_it_is_raised() {
    let home = Home::new();
    home.ok(&["run", "a", "--", "true"]);
    for (answer, code, epoch) in [(&b"n\n"[..], 1, "token epoch 0"), (b"yes\n", 0, "token epoch 1")] {
        let mut screen = Screen::start(&home, BINARY, &["admin", "epoch", "--above", "7"]);
        screen.expect("the token epoch is 0; after this it is 1");
        screen.expect("Raise it? [y/N] ");
        screen.press(answer);
        assert_eq!(screen.end().code(), Some(code));
        let told = home.ok(&["admin", "epoch"]);
        assert!(told.starts_with(epoch), "{told}");
    }
}

/// A new job, the end of a run, the passing time and the crash of a host: each of them is on the screen without a key.
#[test]
fn the_table_of_jobs_follows_every_change() {
    let (served, home) = served();
    let mut screen = Screen::start(&home, BINARY, &["jobs", "--watch", "--servers", &served.address]);
    screen.expect("no job has run on ");
    let mut first = home.holds("first", &["--slot", "1"]);
    screen.expect("first  running  1 ");
    screen.expect("1 s so far");
    screen.expect("2 s so far");
    first.finish();
    screen.expect("first  ok ");
    let second = home.starts("second", &["--slot", "1", "--session-timeout", "2s"], "echo up; exec sleep 1000");
    screen.expect("second  running");
    second.signal(rustix::process::Signal::KILL);
    screen.expect("second  \x1b[31mcrashed");
    home.ok(&["jobs", "forget", "first"]);
    assert!(!screen.expect("second  \x1b[31mcrashed").contains("first  ok"));
    screen.press(INTERRUPT);
    assert_eq!(screen.end().code(), Some(0));
}

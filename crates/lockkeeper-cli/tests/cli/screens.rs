//! What fits on a terminal of 80 columns and 24 rows: hints, long queues, many jobs, long texts.

use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anstream::adapter::strip_str;
use lockkeeper_client::wire::{Acl, CreateMode};
use lockkeeper_client::{Client, Config};
use unicode_width::UnicodeWidthStr;

use crate::harness::{BINARY, Home, Served, failure, names, served, until};
use crate::terminal::{INTERRUPT, Screen};

/// Contenders of a foreign client with the node format of Curator, all of one session. Dropping them ends the session.
struct Crowd {
    leave: Option<tokio::sync::oneshot::Sender<()>>,
    session: Option<JoinHandle<()>>,
}

impl Crowd {
    /// Adds contenders of this kind (`lock`, `__READ__`) with this data to a lock.
    fn join(servers: &str, lock: &str, kind: &'static str, count: usize, data: &str) -> Self {
        let (servers, lock, data) = (servers.to_owned(), lock.to_owned(), data.to_owned());
        let (there, arrived) = channel();
        let (leave, left) = tokio::sync::oneshot::channel::<()>();
        let session = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, mut states) = Client::open(servers.parse().unwrap(), Config::new(Duration::from_secs(30)));
                for at in 0..count {
                    let node = format!("{lock}/_c_00000000-0000-4000-8000-{at:012}-{kind}-");
                    client
                        .create(&node, data.clone().into_bytes(), &[Acl::OPEN], CreateMode::EphemeralSequential)
                        .await
                        .unwrap();
                }
                there.send(()).unwrap();
                _ = left.await;
                client.close();
                while states.recv().await.is_some() {}
            });
        });
        arrived.recv().unwrap();
        Crowd { leave: Some(leave), session: Some(session) }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.leave.take());
        if let Some(session) = self.session.take() {
            session.join().unwrap();
        }
    }
}

/// Runs a line of a shell on a terminal of 80 columns and 24 rows; returns the lines that it shows. `$lockkeeper` is the command.
fn shown(home: &Home, servers: &str, line: &str) -> Vec<String> {
    let script = format!("LOCKKEEPER_SERVERS='{servers}'; export LOCKKEEPER_SERVERS; {line}");
    let mut screen = Screen::with_columns(80, home, "sh", &["-c", &script]);
    strip_str(&screen.rest()).to_string().lines().map(str::to_owned).collect()
}

fn fits(lines: &[String]) {
    for line in lines {
        assert!(line.width() <= 80, "{} columns: {line}", line.width());
    }
}

/// The next command on this terminal has the same variables. A file or another program may have others.
#[test]
fn printed_commands_leave_out_what_variables_say_only_on_a_terminal() {
    let served = Served::start(&Home::new());
    let (home, place) = (Home::new(), format!("--servers {}", served.address));
    let mut holder = Home::with_servers(&served.address).spawn("a", &[], "echo up; cat");
    assert_eq!(holder.line(), "up");
    let shown = |line: &str| shown(&home, &served.address, line).join("\n");
    let failed = "  hint: see which locks there are: lockkeeper list /locks";
    assert!(shown("$lockkeeper show nowhere").ends_with(failed));
    assert!(shown("$lockkeeper why a").contains("see all contenders           lockkeeper show a --all\n"));
    for (line, whole) in [
        ("$lockkeeper show nowhere 2>&1 | cat", format!("lockkeeper list /locks {place}")),
        ("$lockkeeper why a | cat", format!("lockkeeper show a --all {place}")),
        (&format!("$lockkeeper show nowhere {place}"), format!("lockkeeper list /locks {place}")),
        (&format!("$lockkeeper why a {place}"), format!("lockkeeper show a --all {place}")),
    ] {
        let text = shown(line);
        assert!(text.contains(&whole), "{line}: {text}");
    }
    // A program that reads JSON does not run on the terminal.
    assert!(shown("$lockkeeper show nowhere --json").contains(&place));
    holder.close_stdin();
    holder.wait();
}

#[test]
fn trouble_has_a_colour_on_a_terminal_that_shows_them_and_nowhere_else() {
    let home = Home::new();
    assert_eq!(home.output(&["run", "nightly", "--once-per", "day", "--", "false"]).status.code(), Some(1));
    let red = |text: &str| format!("\x1b[31m{text}\x1b[0m");
    let cases = [("jobs", red("failed")), ("doctor", red("!!")), ("show a//b", "\x1b[31m".to_owned())];
    for (verb, coloured) in cases {
        let shown = |before: &str, after: &str| {
            let line = format!("{before} $lockkeeper {verb} {after}");
            Screen::with_columns(80, &home, "sh", &["-c", &line]).rest()
        };
        assert!(shown("", "").contains(&coloured), "{verb}: {:?}", shown("", ""));
        for plain in [shown("NO_COLOR=1", ""), shown("", "2>&1 | cat")] {
            assert!(!plain.contains('\x1b'), "{verb}: {plain:?}");
        }
    }
}

/// A finding is broken at words. Its command is whole, however long.
#[test]
fn the_screen_of_doctor_and_that_of_gc_fit_into_80_columns_but_for_the_commands() {
    let (served, home) = served();
    let long = "some-team/".repeat(10);
    let run = ["run", &format!("{long}a"), "--once-per", "day", "--", "false"];
    assert_eq!(home.output(&run).status.code(), Some(1));
    let lines = shown(&home, &served.address, "$lockkeeper doctor");
    let (commands, others): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line.contains("           lockkeeper "));
    assert_eq!(commands, [format!("           lockkeeper jobs /locks/{long}a --history")]);
    let others: Vec<_> = others.into_iter().filter(|line| !line.contains(&long)).collect();
    fits(&others);
    assert!(others.iter().any(|line| line.starts_with("servers    ")), "{others:?}");
    let lines = shown(&home, &served.address, "$lockkeeper admin gc");
    fits(&lines);
    assert!(lines.iter().any(|line| line.ends_with('…')), "{lines:?}");
}

#[test]
fn hints_wrap_at_words_on_a_terminal_and_are_one_line_elsewhere() {
    let home = Home::new();
    let hint = "  hint: a lock's name is like nightly or team/nightly, or an absolute path like /locks/nightly";
    let lines = shown(&home, "127.0.0.1:1", "$lockkeeper show a//b");
    let hints = lines.iter().position(|line| line.starts_with("  hint: ")).unwrap();
    fits(&lines[hints..]);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert!(words(&lines.join(" ")).ends_with(&words(hint)), "{lines:?}");
    let output = home.output(&["show", "a//b"]);
    assert!(String::from_utf8(output.stderr).unwrap().lines().any(|line| line == hint));
}

#[test]
fn the_holder_is_on_the_first_screen_with_three_hundred_waiters() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let mut holder = home.holds("a", &["-m", "nightly index"]);
    let pid = format!("(pid {})", holder.pid().as_raw_nonzero());
    let _crowd = Crowd::join(&served.address, "/locks/a", "lock", 300, "10.0.0.7");
    for line in ["$lockkeeper list", "$lockkeeper why a", "$lockkeeper show a"] {
        let lines = shown(&home, &served.address, line);
        // The prompt takes the last row.
        assert!(lines.len() < 24, "{line} has {} lines: {lines:?}", lines.len());
        fits(&lines);
        let text = lines.join("\n");
        assert!(text.contains("nightly index"), "{line}: {text}");
        assert!(text.contains(&pid) || line == "$lockkeeper list", "{line}: {text}");
    }
    let text = shown(&home, &served.address, "$lockkeeper show a").join("\n");
    for say in ["waits 1. ", "waits 2. ", "waits 300. ", " more: --all"] {
        assert!(text.contains(say), "{say:?} is missing in {text}");
    }
    // A tall terminal has more waiters than a pipe.
    for rows in [24, 60] {
        let lines = shown(&home, &served.address, &format!("stty rows {rows}; $lockkeeper why a"));
        // The prompt has a row, and so has the name of a server of this machine.
        assert_eq!(lines.len(), rows - 2, "{lines:?}");
    }
    let all = |line: &str| {
        let text = shown(&home, &served.address, line).join("\n");
        (1..=300).all(|at| text.contains(&format!("waits {at}. "))) && text.matches("    ahead    ").count() == 300
    };
    assert!(all("$lockkeeper show a --all") && all("$lockkeeper show a | cat"));
    let lock = home.show("a");
    assert_eq!(lock["waiters"].as_array().unwrap().len(), 300);
    holder.finish();
}

/// Holders of one lock may be many as well.
#[test]
fn a_hundred_readers_are_a_screen() {
    let (served, home) = served();
    let mut holder = home.holds("a", &["--shared", "-m", "the first"]);
    let _crowd = Crowd::join(&served.address, "/locks/a", "__READ__", 100, "10.0.0.7");
    let lines = shown(&home, &served.address, "$lockkeeper show a");
    assert!(lines.len() < 24, "{lines:?}");
    fits(&lines);
    holder.finish();
}

#[test]
fn a_watched_table_that_is_taller_than_the_screen_stays_on_it_with_failures_first() {
    let (served, home) = served();
    for at in 0..40 {
        home.ok(&["run", &format!("job-{at:02}"), "--slot", "1", "--", "true"]);
    }
    home.says(&["run", "zz-last", "--slot", "1", "--", "false"], 1);
    let mut screen = Screen::with_columns(80, &home, BINARY, &["jobs", "--watch", "--servers", &served.address]);
    let text = screen.expect("more, all in order");
    screen.press(INTERRUPT);
    screen.end();
    let frame = text.rsplit("\x1b[H").next().unwrap();
    // Behind a whole line, the cursor still stands on the last column, so a row is cleared before it is written.
    assert!(frame.lines().all(|line| line.rfind("\x1b[K") == Some(0) || line.contains(" more, ")), "{frame:?}");
    let lines: Vec<_> = frame.lines().map(|line| strip_str(line).to_string()).collect();
    assert!(lines.len() < 24, "{lines:?}");
    fits(&lines);
    assert!(lines[1].starts_with("zz-last  failed"), "{lines:?}");
    let (jobs, last) = (lines.len() - 2, lines.last().unwrap());
    assert_eq!(*last, format!("… {} more, all in order", 41 - jobs), "{lines:?}");
}

/// Returns the length of the longest line of a text.
fn longest(text: &str) -> usize {
    text.lines().map(str::len).max().unwrap_or(0)
}

#[test]
fn a_message_of_100_kb_is_refused_with_its_beginning_and_its_length() {
    let home = Home::with_servers("127.0.0.1:1");
    let long = "nightly ".repeat(12_800);
    let run = |args: &[&str]| {
        let output = home.output(&[&["run", "a", "-m", &long], args, &["--", "true"]].concat());
        assert!(output.stderr.len() < 1000, "{} bytes", output.stderr.len());
        failure(&output)
    };
    for args in [&[][..], &["--lease", "1m"]] {
        let (code, line) = run(args);
        assert_eq!(code, Some(64), "{line}");
        names(&line, &["102400 bytes", "4096", "nightly nightly"]);
    }
    // Nothing that is typed is repeated whole.
    let long = "x".repeat(10_000);
    for args in [
        &["run", "a", "--wait", &long, "--", "true"][..],
        &["run", "a", &format!("--{long}"), "--", "true"],
        &["run", "a", "--slot", &long, "--", "true"],
        &["run", "a", "--tls-ca", &long, "--", "true"],
        &["run", "a", "--dead-letter", &long, "--", "true"],
        &["list", "--servers", &format!("127.0.0.1:{long}")],
        &[&long],
    ] {
        for more in [&[][..], &["--json"]] {
            let output = home.command(&[&args[..1], more, &args[1..]].concat()).stdin(Stdio::null()).output().unwrap();
            assert!(!output.status.success(), "{:?}", &args[..1]);
            assert!(output.stderr.len() < 3000, "{:?}: {} bytes", &args[..1], output.stderr.len());
        }
    }
}

#[test]
fn a_long_text_of_a_foreign_node_is_cut_wherever_it_is_shown() {
    let (served, home) = served();
    home.ok(&["run", "a", "--", "true"]);
    let record = |message: &str| {
        format!(
            r#"{{"lockkeeper":1,"id":"00000000-0000-4000-8000-000000000000","user":"build","host":"ci-7","pid":7,"message":"{message}","since_ms":1}}"#
        )
    };
    let long = "m".repeat(100_000);
    for data in [record(&long), long] {
        let _crowd = Crowd::join(&served.address, "/locks/a", "lock", 2, &data);
        until("they are there", || home.count("a") == (1, 1));
        for args in [&["list"][..], &["why", "a"], &["run", "a", "--try", "--", "true"]] {
            let output = home.output(args);
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(longest(&text) < 400 && text.contains("mmm…"), "{args:?}: {} bytes", longest(&text));
        }
        for args in [["show", "a"].as_slice(), &["show", "a", "--json"]] {
            let text = home.ok(args);
            let longest = text.split(|c| c != 'm').map(str::len).max().unwrap();
            assert_eq!(longest, 4096, "{args:?}");
        }
        let lines = shown(&home, &served.address, "$lockkeeper show a");
        assert!(lines.len() < 24, "{} lines", lines.len());
        fits(&lines);
    }
}

/// The locks are named once, and only in failures about them.
#[test]
fn a_failure_names_its_lock_once() {
    let home = Home::new();
    let run = |args: &[&str]| failure(&home.output(&[&["run", "a", "-m", "why"], args, &["--", "true"]].concat())).1;
    let line = run(&["--servers", "127.0.0.1:1", "--wait", "1s"]);
    assert!(line.starts_with("lock /locks/a (why): no server answered within "), "{line}");
    let line = run(&["--servers", "127.0.0.1:1", "--tls-ca", "nowhere.pem"]);
    assert!(line.starts_with("TLS: nowhere.pem cannot be used") && !line.contains("/locks/a"), "{line}");
    let mut holder = home.holds("a", &[]);
    let line = run(&["--try"]);
    assert_eq!(line.matches("/locks/a").count(), 1, "{line}");
    let line = run(&["--class", "K"]);
    assert_eq!(line.matches("/locks/a").count(), 1, "{line}");
    holder.finish();
}

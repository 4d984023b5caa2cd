//! `run --max-run` and `run --jitter`.

use rustix::process::Signal;

use crate::harness::{Home, is_alive, names, without_time};

#[test]
fn a_command_that_runs_for_too_long_gets_sigterm() {
    let home = Home::new();
    // Its own status does not count: it did not end in its own time.
    let script = "trap 'echo caught; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut running = home.spawn("a", &["--max-run", "300ms"], script);
    assert_eq!((running.line(), running.line()), ("up".to_owned(), "caught".to_owned()));
    let text = running.ends(124);
    let told = "lockkeeper: the command has run for 300 ms, the limit of --max-run; stopping the command\n";
    // The shell may report the end of its sleep.
    assert!(without_time(&text).starts_with(told), "{text}");
    assert_eq!(home.count("a"), (0, 0));
}

/// A program that reads the events need not know the statuses to see that this one is not the command's.
#[test]
fn a_status_of_lockkeepers_own_has_an_event() {
    let home = Home::new();
    let last = |text: &str| serde_json::from_str::<serde_json::Value>(text.lines().last().unwrap_or_default()).unwrap();
    for job in [&[][..], &["--slot", "1"]] {
        let mut long = home.spawn("a", &[&["--json", "--max-run", "300ms"], job].concat(), "exec sleep 1000");
        let (code, text) = long.end();
        let event = last(&text);
        let told = (&event["event"], &event["exit_code"]);
        assert_eq!((code, told), (Some(124), (&"error".into(), &124.into())), "{text}");
        assert!(event["message"].as_str().unwrap().contains("longer than --max-run"), "{text}");
        let mut broken = home.starts("b", &[&["--json"], job].concat(), "echo up; exec sleep 1000");
        home.ok(&["break", "b", "--reason", "x", "--yes"]);
        let (code, text) = broken.end();
        let event = last(&text);
        let told = (&event["event"], &event["exit_code"]);
        assert_eq!((code, told), (Some(76), (&"error".into(), &76.into())), "{text}");
    }
    // The status of the command is its own.
    let (code, text) = home.spawn("c", &["--json"], "exit 76").end();
    assert!(code == Some(76) && !text.contains("\"error\""), "{text}");
}

#[test]
fn a_group_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let home = Home::new();
    let script = "trap '' TERM; echo $$; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done'; true";
    let mut running = home.spawn("a", &["--max-run", "2s", "--grace", "500ms"], script);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    running.ends(124);
    assert!(!is_alive(command) && !is_alive(grandchild));
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn a_command_within_its_limit_keeps_its_status() {
    let home = Home::new();
    for status in [0, 7] {
        let script = format!("exit {status}");
        let output = home.output(&["run", "a", "--max-run", "1h", "--jitter", "1ms", "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    // The longest duration that can be written is no limit.
    home.ok(&["run", "a", "--max-run", "18446744073709551615s", "--", "true"]);
    names(&home.failure(&["run", "a", "--max-run", "0s", "--", "true"], 64), &["'0s'", "longer than 0"]);
}

/// The time is random and may be short, so the limit is long and the test shows only that a signal ends it.
#[test]
fn a_signal_ends_the_jitter_before_anything_is_started() {
    let home = Home::new();
    let mut running = home.spawn("a", &["--jitter", "10000h"], "touch ran");
    // It handles the signal once it sleeps; before that the signal ends it in its default way.
    running.signal(Signal::TERM);
    let status = running.wait();
    let ended_by = std::os::unix::process::ExitStatusExt::signal(&status);
    assert!(status.code() == Some(143) || ended_by == Some(15), "{status:?}");
    assert!(!home.file("ran").exists() && !home.state().exists());
}

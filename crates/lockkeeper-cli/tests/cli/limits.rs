//! `run --max-run` and `run --jitter`.

use rustix::process::Signal;

use crate::harness::{Home, failure, is_alive, without_time};

#[test]
fn a_command_that_runs_for_too_long_gets_sigterm() {
    let home = Home::new();
    // Its own status does not count: it did not end in its own time.
    let script = "trap 'echo caught; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut running = home.spawn("a", &["--max-run", "300ms"], script);
    assert_eq!((running.line(), running.line()), ("up".to_owned(), "caught".to_owned()));
    let (code, text) = running.end();
    assert_eq!(code, Some(124), "{text}");
    let told = "lockkeeper: the command has run for 300 ms, the limit of --max-run; stopping the command\n";
    // The shell may report the end of its sleep.
    assert!(without_time(&text).starts_with(told), "{text}");
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn a_group_that_ignores_sigterm_is_killed_after_the_grace_period() {
    let home = Home::new();
    let script = "trap '' TERM; echo $$; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done'; true";
    let mut running = home.spawn("a", &["--max-run", "2s", "--grace", "500ms"], script);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    let (code, text) = running.end();
    assert_eq!(code, Some(124), "{text}");
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
    let output = home.output(&["run", "a", "--max-run", "18446744073709551615s", "--", "true"]);
    assert!(output.status.success(), "{output:?}");
    let (code, line) = failure(&home.output(&["run", "a", "--max-run", "0s", "--", "true"]));
    assert_eq!(code, Some(64), "{line}");
    assert!(line.contains("'0s'") && line.contains("longer than 0"), "{line}");
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

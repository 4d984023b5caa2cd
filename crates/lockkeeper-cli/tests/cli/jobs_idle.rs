//! `jobs` about jobs that did not run: nobody asked, or those who asked were refused.

use serde_json::Value;

use crate::harness::{BINARY, Home, names, until};
use crate::terminal::{INTERRUPT, Screen};

/// Returns a job as `jobs --json` shows it.
fn job(home: &Home, name: &str) -> Value {
    let document = home.json(&["jobs", name, "--json"]);
    document["jobs"][0].clone()
}

fn table(home: &Home) -> String {
    home.ok(&["jobs"])
}

/// Last night, somebody ran it by hand when it was due.
#[test]
fn a_job_that_was_refused_says_how_often_and_by_whom_until_it_runs() {
    let home = Home::new();
    let mut holder = home.spawn("nightly", &["-m", "manual rerun"], "echo; read line; true");
    holder.line();
    let ask = || home.output(&["run", "nightly", "--once-per", "day", "--try", "--", "true"]).status.code();
    assert_eq!((ask(), ask()), (Some(75), Some(75)));
    let text = table(&home);
    assert!(text.contains("\nnightly  refused  "), "{text}");
    names(&text, &["; refused 2 x on ", ": taken by ", ", manual rerun"]);
    let shown = job(&home, "nightly");
    assert_eq!((&shown["state"], &shown["asked"]), (&"never_ran".into(), &"refused".into()));
    assert_eq!(shown["refused"]["count"], 2);
    // Another machine is refused, too.
    if rustix::process::geteuid().is_root() {
        let script = "hostname elsewhere && exec \"$0\" run nightly --once-per day --try -- true";
        let mut other = std::process::Command::new("unshare");
        other.args(["--uts", "sh", "-c", script, BINARY]);
        home.prepare(&mut other);
        assert_eq!(other.output().unwrap().status.code(), Some(75));
        let text = table(&home);
        assert!(text.contains("; refused 3 x on 2 machines, last on elsewhere at "), "{text}");
    }
    holder.finish();
    assert_eq!(ask(), Some(0));
    let shown = job(&home, "nightly");
    assert_eq!((&shown["state"], &shown["asked"]), (&"ok".into(), &Value::Null));
}

/// A crontab that was never installed.
#[test]
fn a_job_that_is_expected_is_silent_after_a_whole_slot_and_in_order_once_it_runs() {
    let home = Home::new();
    let created = home.json(&["jobs", "expect", "nightly", "--once-per", "day", "--json"]);
    assert_eq!(created["created"], true);
    assert!(table(&home).contains("\nnightly  never ran  "), "it is not late yet");
    home.ok(&["jobs", "expect", "often", "--every", "1s"]);
    let check = || home.output(&["jobs", "--check"]);
    until("it is late", || check().status.code() == Some(1));
    let text = String::from_utf8(check().stdout).unwrap();
    assert!(text.starts_with("often: silent; expected since ") && text.lines().count() == 1, "{text}");
    assert!(text.ends_with("no machine is recorded to have asked\n"), "{text}");
    assert_eq!(job(&home, "often")["asked"], "silent");
    home.ok(&["run", "often", "--every", "1s", "--", "true"]);
    assert_eq!(job(&home, "often")["runs"].as_array().unwrap().len(), 1);
    // What it said before the first run changes nothing.
    home.ok(&["run", "nightly", "--once-per", "day", "--", "true"]);
    assert_eq!(job(&home, "nightly")["state"], "ok");
    let output = home.output(&["jobs", "expect", "nightly", "--every", "1h"]);
    assert!(output.status.success() && String::from_utf8(output.stderr).unwrap().contains("nothing was changed"));
    assert_eq!(job(&home, "nightly")["runs"].as_array().unwrap().len(), 1);
}

/// A person looks at the screen all night.
#[test]
fn a_watched_table_follows_the_requests_for_jobs_that_do_not_run() {
    let home = Home::new();
    home.ok(&["jobs", "expect", "often", "--every", "1s"]);
    let mut holder = home.spawn("nightly", &["-m", "manual rerun"], "echo; read line; true");
    holder.line();
    let mut screen = Screen::start(&home, BINARY, &["jobs", "--watch"]);
    let mut terminal = vt100::Parser::new(24, 200, 0);
    let mut shows = |text: &str| {
        let table = screen.until_shown(&mut terminal, text);
        assert_eq!(table.lines().filter(|line| line.starts_with("often ")).count(), 1, "{table}");
        table
    };
    // Nothing but the time changes.
    let table = shows("\noften  silent");
    assert!(table.contains("; no machine is recorded to have asked"), "{table}");
    let ask = || home.output(&["run", "nightly", "--once-per", "day", "--try", "--", "true"]).status.code();
    assert_eq!(ask(), Some(75));
    let table = shows("\nnightly  refused");
    names(&table, &["; refused on ", ": taken by "]);
    assert_eq!(ask(), Some(75));
    shows("; refused 2 x on ");
    // Whoever holds or waits for its lock may be about to run it.
    let mut other = home.holds("often", &[]);
    shows("\noften    late");
    other.close_stdin();
    shows("\noften    silent");
    holder.close_stdin();
    assert_eq!((holder.wait().code(), ask()), (Some(0), Some(0)));
    shows("\nnightly  ok ");
    screen.press(INTERRUPT);
    assert!(screen.end().success());
}

/// With a limit, a job may be late before it is due. Until then, nobody has to ask.
#[test]
fn a_watched_job_that_was_late_becomes_silent_when_it_is_due() {
    let home = Home::new();
    home.ok(&["jobs", "expect", "often", "--every", "5s"]);
    let mut screen = Screen::start(&home, BINARY, &["jobs", "--watch", "--late", "10ms"]);
    screen.until_shown(&mut vt100::Parser::new(24, 200, 0), "\noften  silent");
    screen.press(INTERRUPT);
    assert!(screen.end().success());
}

#[test]
fn a_job_is_expected_by_a_schedule() {
    let home = Home::new();
    for (args, say) in [
        (&["jobs", "expect", "a"][..], "--once-per"),
        (&["jobs", "expect", "a", "--every", "1h", "--time-zone", "UTC"], "--time-zone"),
        (&["jobs", "expect", "a", "--once-per", "year"], "hour, day, week or month"),
    ] {
        home.refuses(args, 64, say);
    }
    assert!(!home.state().exists(), "no server was started");
}

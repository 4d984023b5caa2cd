//! `lead`: one machine leads, the others stand by; what is run before and after the command, and what the service manager is told.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use rustix::process::Signal;

use crate::harness::{Home, Running, SOON, failure, is_alive, text, until};

/// A candidate with commands that write into the file `log` what runs, with its token.
fn lead(home: &Home, name: &str, options: &[&str], script: &str) -> Running {
    let [promote, demote] =
        ["promote", "demote"].map(|what| format!("echo {name} {what} ${{LOCKKEEPER_TOKEN-none}} >> log"));
    let hooks = ["--on-promote", &promote, "--on-demote", &demote];
    let args = [&["lead", "e", "--message", name], &hooks[..], options, &["--", "sh", "-c", script]].concat();
    Running::start(&mut home.command(&args))
}

/// The command of a leader: prints its token, and ends when it is told to.
const WORK: &str = "trap 'echo '$0' ends >> log; exit 0' TERM; echo $LOCKKEEPER_TOKEN; while :; do sleep 0.01; done";

/// The lines of the log, without tokens.
fn log(home: &Home) -> Vec<String> {
    let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    text(&home.file("log")).lines().map(words).collect()
}

fn revoke(home: &Home) {
    assert!(home.output(&["revoke", "e", "--reason", "update"]).status.success());
}

#[test]
fn the_next_machine_leads_when_the_leader_gets_sigterm() {
    let home = Home::new();
    let mut first = lead(&home, "first", &[], WORK);
    let token: u64 = first.line().parse().unwrap();
    let mut second = lead(&home, "second", &[], WORK);
    until("the second one stands by", || home.count("e") == (1, 1));
    assert_eq!(home.show("e")["holders"][0]["message"], "first");
    first.signal(Signal::TERM);
    let (code, said) = first.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(second.line().parse::<u64>().unwrap() > token);
    assert_eq!(log(&home), ["first promote", "sh ends", "first demote", "second promote"]);
    assert!(text(&home.file("log")).starts_with(&format!("first promote {token}\n")));
    assert!(text(&home.file("log")).contains(&format!("first demote {token}\n")));
    // One that stands by ends too, and runs nothing.
    let third = lead(&home, "third", &[], WORK);
    until("the third one stands by", || home.count("e") == (1, 1));
    // A reload is for the leader's command.
    third.signal(Signal::HUP);
    for mut ended in [third, second] {
        ended.signal(Signal::TERM);
        assert_eq!(ended.end().0, Some(0));
    }
    assert_eq!(log(&home)[4..], ["sh ends", "second demote"]);
    assert_eq!(home.count("e"), (0, 0));
}

#[test]
fn a_leader_that_is_asked_to_step_down_stands_by_again() {
    let home = Home::new();
    let mut first = lead(&home, "first", &[], WORK);
    first.line();
    let mut second = lead(&home, "second", &["--once"], WORK);
    until("the second one stands by", || home.count("e") == (1, 1));
    revoke(&home);
    second.line();
    until("the first one stands by", || home.count("e") == (1, 1));
    // It was told to end after one term.
    revoke(&home);
    assert_eq!(second.end().0, Some(0));
    first.line();
    assert_eq!(home.count("e"), (1, 0));
    let one = |name: &str| [format!("{name} promote"), "sh ends".to_owned(), format!("{name} demote")];
    assert_eq!(log(&home), [&one("first")[..], &one("second"), &["first promote".to_owned()]].concat());
}

/// The command has ended before the demotion, which has no token and is not under the lock.
#[test]
fn a_leadership_that_is_broken_demotes_and_the_machine_leads_again() {
    let home = Home::new();
    let script = "echo $$; exec sleep 1000";
    let mut leader = lead(&home, "first", &[], script);
    let command = leader.pid_line();
    assert!(home.output(&["break", "e", "--reason", "test", "--yes"]).status.success());
    leader.line();
    assert!(!is_alive(command));
    assert_eq!(log(&home), ["first promote", "first demote", "first promote"]);
    assert!(text(&home.file("log")).contains("first demote none\n"));
    leader.signal(Signal::TERM);
    assert_eq!(leader.end().0, Some(0));
}

#[test]
fn the_machine_of_a_killed_leader_runs_nothing_when_the_next_one_leads() {
    let home = Home::new();
    let timeout = ["--session-timeout", "2s"];
    let mut first = lead(&home, "first", &timeout, "echo $$; exec sleep 1000");
    let command = first.pid_line();
    let mut second = lead(&home, "second", &timeout, WORK);
    until("the second one stands by", || home.count("e") == (1, 1));
    first.signal(Signal::KILL);
    first.wait();
    second.line();
    assert!(!is_alive(command));
}

#[test]
fn a_command_that_ends_by_itself_ends_lead_with_its_status() {
    let home = Home::new();
    let mut leader = lead(&home, "first", &[], "exit 7");
    assert_eq!(leader.end().0, Some(7));
    assert_eq!((log(&home), home.count("e")), (vec!["first promote".to_owned(), "first demote".to_owned()], (0, 0)));
    // Also after a signal for the command.
    let args = ["lead", "e", "--", "sh", "-c", "trap 'exit 8' HUP; echo up; while :; do sleep 0.01; done"];
    let mut reloaded = Running::start(&mut home.command(&args));
    assert_eq!(reloaded.line(), "up");
    reloaded.signal(Signal::HUP);
    assert_eq!(reloaded.end().0, Some(8));
    let missing = home.output(&["lead", "e", "--", "/nowhere/command"]);
    assert_eq!(failure(&missing).0, Some(127));
    // The command does not run after a promotion that failed. What the promotion began is undone.
    let args = ["lead", "e", "--on-promote", "exit 9", "--on-demote", "echo undone", "--", "echo", "works"];
    let refused = home.output(&args);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(9) && said.contains("--on-promote has ended with 9"), "{said}");
    assert_eq!(refused.stdout, b"undone\n");
}

/// `READY=1` comes when it stands by.
#[test]
fn the_service_manager_learns_who_leads() {
    let home = Home::new();
    let socket = UnixDatagram::bind(home.file("notify")).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut command: Command = home.command(&["lead", "e", "--", "sh", "-c", "echo up; exec sleep 1000"]);
    let mut leader = Running::start(command.env("NOTIFY_SOCKET", home.file("notify")));
    let message = || {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    };
    assert_eq!([message(), message()], ["READY=1\nSTATUS=standby", "STATUS=leader"]);
    assert_eq!(leader.line(), "up");
    revoke(&home);
    assert_eq!([message(), message()], ["READY=1\nSTATUS=standby", "STATUS=leader"]);
    assert_eq!(leader.line(), "up");
    leader.signal(Signal::TERM);
    assert_eq!(message(), "STOPPING=1");
    assert_eq!(leader.end().0, Some(0));
}

#[test]
fn a_candidate_waits_for_servers_that_do_not_answer() {
    let home = Home::with_servers("127.0.0.1:1");
    let mut candidate = Running::start(&mut home.command(&["lead", "e", "--", "true"]));
    let mut said = String::new();
    until("it tries again", || {
        std::io::BufRead::read_line(&mut candidate.stderr, &mut said).unwrap();
        said.contains("; trying again")
    });
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.end().0, Some(0));
}

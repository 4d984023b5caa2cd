//! `lead`: one machine leads, the others stand by; what is run before and after the command, and what the service manager is told.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;

use rustix::process::Signal;
use serde_json::Value;

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

/// The command of a leader that prints a line and ends by a signal.
const UP: &[&str] = &["--", "sh", "-c", "echo up; exec sleep 1000"];

/// A candidate with these options, whose messages go to this service manager.
fn service(home: &Home, manager: &Manager, options: &[&str]) -> Running {
    let args = [&["lead", "e"], options, UP].concat();
    Running::start(home.command(&args).env("NOTIFY_SOCKET", &manager.address))
}

fn revoke(home: &Home) {
    home.ok(&["revoke", "e", "--reason", "update"]);
}

fn break_lock(home: &Home) {
    home.ok(&["break", "e", "--reason", "test", "--yes"]);
}

/// Gives a hook the line that it reads.
fn go_on(leader: &mut Running) {
    leader.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
}

/// Waits until a process has handled every signal that it was sent: none is pending, and every thread sleeps.
fn until_heard(process: &Running) {
    let dir = std::path::Path::new("/proc").join(process.child.id().to_string());
    let field = |status: &str, name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        value.unwrap_or_default().to_owned()
    };
    until("it has handled its signals", || {
        let tasks = std::fs::read_dir(dir.join("task")).unwrap().flatten();
        let states = || tasks.map(|task| std::fs::read_to_string(task.path().join("status")).unwrap_or_default());
        let sleeps = |status: String| matches!(field(&status, "State:").chars().next(), None | Some('S'));
        field(&text(&dir.join("status")), "ShdPnd:").trim_matches('0').is_empty() && states().all(sleeps)
    });
}

/// A service manager that reads the messages of a service.
struct Manager {
    socket: UnixDatagram,
    address: std::path::PathBuf,
}

impl Manager {
    fn of(home: &Home) -> Self {
        let address = home.file("notify");
        let socket = UnixDatagram::bind(&address).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Manager { socket, address }
    }

    fn message(&self) -> String {
        let mut bytes = [0; 256];
        let length = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    }

    /// Waits for this message.
    fn expect(&self, message: &str) {
        while self.message() != message {}
    }
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
    first.ends(0);
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
        ended.ends(0);
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
    second.ends(0);
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
    break_lock(&home);
    leader.line();
    assert!(!is_alive(command));
    assert_eq!(log(&home), ["first promote", "first demote", "first promote"]);
    assert!(text(&home.file("log")).contains("first demote none\n"));
    leader.signal(Signal::TERM);
    leader.ends(0);
}

#[test]
fn the_machine_of_a_killed_leader_runs_nothing_when_the_next_one_leads() {
    let home = Home::new();
    let timeout = ["--session-timeout", "2s"];
    let mut first = lead(&home, "first", &timeout, "echo $$; exec sleep 1000");
    let command = first.pid_line();
    let mut second = lead(&home, "second", &timeout, WORK);
    until("the second one stands by", || home.count("e") == (1, 1));
    first.kill();
    second.line();
    assert!(!is_alive(command));
}

#[test]
fn a_command_that_ends_by_itself_ends_lead_with_its_status() {
    let home = Home::new();
    let mut leader = lead(&home, "first", &[], "exit 7");
    leader.ends(7);
    assert_eq!((log(&home), home.count("e")), (vec!["first promote".to_owned(), "first demote".to_owned()], (0, 0)));
    // Also after a signal for the command.
    let args = ["lead", "e", "--", "sh", "-c", "trap 'exit 8' HUP; echo up; while :; do sleep 0.01; done"];
    let mut reloaded = Running::start(&mut home.command(&args));
    assert_eq!(reloaded.line(), "up");
    reloaded.signal(Signal::HUP);
    reloaded.ends(8);
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
    let manager = Manager::of(&home);
    let mut leader = service(&home, &manager, &[]);
    let message = || manager.message();
    assert_eq!([message(), message()], ["READY=1\nSTATUS=standby", "STATUS=leader"]);
    assert_eq!(leader.line(), "up");
    revoke(&home);
    assert_eq!([message(), message(), message()], ["STATUS=standby", "READY=1\nSTATUS=standby", "STATUS=leader"]);
    assert_eq!(leader.line(), "up");
    leader.signal(Signal::TERM);
    assert_eq!(message(), "STOPPING=1");
    leader.ends(0);
}

#[test]
fn the_service_manager_learns_of_a_loss_before_the_demotion_has_ended() {
    let home = Home::new();
    let manager = Manager::of(&home);
    let mut leader = service(&home, &manager, &["--on-demote", "echo demotes; read go"]);
    assert_eq!(leader.line(), "up");
    manager.expect("STATUS=leader");
    break_lock(&home);
    assert_eq!(manager.message(), "STATUS=standby");
    assert_eq!(leader.line(), "demotes");
    go_on(&mut leader);
    manager.expect("STATUS=leader");
}

/// A reload and the end of the service are for the command.
#[test]
fn a_signal_ends_no_demotion_and_a_reload_no_promotion() {
    let home = Home::new();
    let [promote, demote] = ["promote", "demote"].map(|what| format!("echo {what}s; read go; echo {what}d"));
    let args = [&["lead", "e", "--on-promote", &promote, "--on-demote", &demote], UP].concat();
    let mut leader = Running::start(&mut home.command(&args));
    assert_eq!(leader.line(), "promotes");
    let reloads = [Signal::HUP, Signal::USR1, Signal::USR2];
    reloads.iter().for_each(|signal| leader.signal(*signal));
    until_heard(&leader);
    go_on(&mut leader);
    assert_eq!([leader.line(), leader.line()], ["promoted", "up"]);
    leader.signal(Signal::TERM);
    assert_eq!(leader.line(), "demotes");
    [Signal::TERM, Signal::INT, Signal::QUIT].into_iter().chain(reloads).for_each(|signal| leader.signal(signal));
    until_heard(&leader);
    go_on(&mut leader);
    leader.ends_after("demoted");
}

#[test]
fn a_command_that_is_not_run_has_its_reason() {
    let home = Home::new();
    let args = [&["lead", "e", "--once", "--on-promote", "echo promotes; exec sleep 1000"], UP].concat();
    let not_run = |end: &dyn Fn(&Running)| {
        let mut leader = Running::start(&mut home.command(&args));
        assert_eq!(leader.line(), "promotes");
        end(&leader);
        let (code, said) = leader.end();
        (code, said.split("the command is not run: ").nth(1).unwrap_or(&said).trim_end().to_owned())
    };
    let by_signal = not_run(&|leader| leader.signal(Signal::TERM));
    assert_eq!(by_signal, (Some(0), "a signal ends lockkeeper".to_owned()));
    assert_eq!(not_run(&|_| revoke(&home)), (Some(143), "this machine is asked to step down".to_owned()));
    let lost = not_run(&|_| break_lock(&home));
    assert!(lost.0 == Some(76) && lost.1.starts_with("the leadership is lost"), "{lost:?}");
}

#[test]
fn a_loss_after_the_end_of_the_command_keeps_its_status() {
    let home = Home::new();
    let args = ["lead", "e", "--on-demote", "echo demotes; read go", "--", "sh", "-c", "exit 7"];
    let mut leader = Running::start(&mut home.command(&args));
    assert_eq!(leader.line(), "demotes");
    break_lock(&home);
    go_on(&mut leader);
    let (code, said) = leader.end();
    assert!(code == Some(7) && said.contains("lock /locks/e was lost while --on-demote ran: "), "{code:?}: {said}");
}

#[test]
fn only_the_end_of_lead_is_an_error_in_its_events() {
    let home = Home::new();
    let broken = |options: &[&str]| {
        let mut leader = Running::start(&mut home.command(&[&["lead", "e", "--json"], options, UP].concat()));
        assert_eq!(leader.line(), "up");
        break_lock(&home);
        leader
    };
    let errors = |said: &str| {
        let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["event"] == "error").collect::<Vec<_>>()
    };
    let mut leader = broken(&[]);
    assert_eq!(leader.line(), "up");
    leader.signal(Signal::TERM);
    let (code, said) = leader.end();
    assert!(code == Some(0) && said.contains("is lost") && errors(&said).is_empty(), "{said}");
    let (code, said) = broken(&["--once"]).end();
    let errors = errors(&said);
    assert!(code == Some(76) && errors.len() == 1 && errors[0]["exit_code"] == 76, "{said}");
    assert!(errors[0]["message"].as_str().unwrap().starts_with("the leadership was lost"), "{said}");
}

#[test]
fn a_candidate_waits_for_servers_that_do_not_answer() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    drop(port);
    let (machine, home) = (Home::new(), Home::with_servers(&address));
    let manager = Manager::of(&home);
    let mut candidate = service(&home, &manager, &["--session-timeout", "2s"]);
    let unreachable = "STATUS=no server answers; trying again";
    assert_eq!(manager.message(), unreachable);
    let mut served = Running::start(&mut machine.command(&["serve", "--memory", "--listen", &address]));
    assert_eq!(served.line(), address);
    assert_eq!(candidate.line(), "up");
    manager.expect("STATUS=leader");
    drop(served);
    manager.expect(unreachable);
    candidate.signal(Signal::TERM);
    let (code, said) = candidate.end();
    // Each outage is told once.
    assert!(code == Some(0) && said.matches("; trying again").count() == 2, "{said}");
}

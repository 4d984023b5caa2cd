//! The lock lost under a command that runs.

use std::io::BufRead;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Home, Running, Served, is_alive, until};

#[test]
fn case_45_a_killed_server_stops_the_whole_group_with_exit_76() {
    let machine = Home::new();
    let mut served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let mut running = home.spawn("a", &["--session-timeout", "2s"], "echo $$; sh -c 'echo $$; exec sleep 1000'; true");
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    served.running.signal(Signal::KILL);
    served.running.wait();
    let (code, text) = running.end();
    assert_eq!(code, Some(76), "{text}");
    assert!(text.contains("lockkeeper: lock /locks/a is lost: no server was reached"), "{text}");
    assert!(!is_alive(command) && !is_alive(grandchild));
}

#[test]
fn case_45_a_stopped_server_stops_a_command_that_will_not_listen() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let script = "trap '' TERM; echo $$; sh -c 'echo $$; while :; do sleep 0.05; done'; true";
    let mut running = home.spawn("a", &["--session-timeout", "4s", "--grace", "500ms"], script);
    let (command, grandchild) = (running.pid_line(), running.pid_line());
    // Silent, not closed: the loss is judged by our own clock.
    let stopped = Instant::now();
    served.running.signal(Signal::STOP);
    until("the group is gone", || !is_alive(command) && !is_alive(grandchild));
    let took = stopped.elapsed();
    let (code, text) = running.end();
    assert_eq!(code, Some(76), "{text}");
    // Nobody else can be let in before a whole timeout has passed since the server last heard of us.
    assert!(took < Duration::from_secs(4), "{took:?}");
    served.running.signal(Signal::CONT);
}

#[test]
fn a_command_may_clean_up_within_the_grace_period() {
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let script = "trap 'sleep 0.2; echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.01; done";
    let mut running = home.spawn("a", &["--session-timeout", "10s"], script);
    assert_eq!(running.line(), "up");
    served.running.signal(Signal::KILL);
    assert_eq!(running.line(), "cleaned");
    assert_eq!(running.wait().code(), Some(76));
}

#[test]
fn an_expired_session_is_a_loss_and_the_next_gets_in() {
    // The node goes when somebody else deletes it: here, another client of the same server.
    let machine = Home::new();
    let served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let mut running = home.spawn("a", &[], "echo $LOCKKEEPER_NODE; exec sleep 1000");
    let node = running.line();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = zookeeper_client::Client::connect(&served.address).await.unwrap();
        // The holder watches its own node only after a moment.
        client.delete(&node, None).await.unwrap();
    });
    let (code, text) = running.end();
    assert_eq!(code, Some(76), "{text}");
    assert!(text.contains("was deleted by someone else"), "{text}");
    assert!(home.output(&["run", "a", "--try", "--", "true"]).status.success());
}

#[test]
fn a_lost_place_in_line_is_taken_again() {
    let home = Home::new();
    let mut holder = home.spawn("a", &["--session-timeout", "2s"], "echo up; exec sleep 1000");
    assert_eq!(holder.line(), "up");
    let mut waiter = home.spawn("a", &["--session-timeout", "2s"], "echo in");
    until("it waits", || home.count("a") == (1, 1));
    // Both sessions are lost with it, and the waiter starts it anew.
    rustix::process::kill_process(home.server().unwrap(), Signal::KILL).unwrap();
    assert_eq!(holder.wait().code(), Some(76));
    assert_eq!(waiter.line(), "in");
    let (code, text) = waiter.end();
    assert_eq!(code, Some(0));
    assert!(text.contains("the place in line for /locks/a is lost"), "{text}");
}

#[test]
fn case_15_a_waiter_outlasts_a_server_that_comes_back() {
    let machine = Home::new();
    let mut served = Served::start(&machine);
    let home = Home::with_servers(&served.address);
    let mut holder = home.spawn("a", &["--session-timeout", "1s"], "echo up; exec sleep 1000");
    assert_eq!(holder.line(), "up");
    let mut waiter = home.spawn("a", &["--session-timeout", "1s"], "echo in");
    let mut line = String::new();
    waiter.stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for /locks/a"), "{line}");
    served.running.signal(Signal::KILL);
    served.running.wait();
    assert_eq!(holder.wait().code(), Some(76));
    let again = ["serve", "--memory", "--listen", &served.address];
    let mut served = Running::start(&mut machine.command(&again));
    served.line();
    assert_eq!(waiter.line(), "in");
    assert!(waiter.wait().success());
}

//! Case 46: signals in every phase leave no orphan and no held lock, and the right exit status.

use std::process::Command;

use rustix::process::{Signal, kill_process};

use crate::harness::{Home, Running, Served, held, is_alive, until, until_it_is};

const ALL: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

#[test]
fn case_46_a_signal_while_waiting_leaves_the_queue() {
    let (home, mut holder) = held("a", &[]);
    for signal in ALL {
        let mut waiter = home.waits("a", &[], "touch ran");
        waiter.signal(signal);
        assert_eq!(waiter.wait().code(), Some(128 + signal.as_raw()), "{signal:?}");
        // It ends after the confirmed delete, so no wait is needed.
        assert_eq!(home.count("a"), (1, 0), "{signal:?}");
    }
    assert!(!home.file("ran").exists());
    holder.finish();
}

#[test]
fn case_46_a_signal_while_running_ends_the_whole_group_and_frees_the_lock() {
    let home = Home::new();
    for signal in ALL {
        let mut running = home.spawn("a", &[], "echo $$; sh -c 'echo $$; exec sleep 1000'; true");
        let (command, grandchild) = (running.pid_line(), running.pid_line());
        until_it_is(grandchild, "sleep");
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(128 + signal.as_raw()), "{signal:?}");
        assert!(!is_alive(command), "{signal:?}");
        until("the grandchild has ended", || !is_alive(grandchild));
        assert_eq!(home.count("a"), (0, 0), "{signal:?}");
    }
}

#[test]
fn case_46_a_command_that_handles_a_signal_decides_how_it_ends() {
    let home = Home::new();
    for signal in ALL {
        let number = signal.as_raw();
        let script = format!("trap 'echo caught; exit 7' {number}; echo up; while :; do sleep 0.01; done");
        let mut running = home.starts("a", &[], &script);
        running.signal(signal);
        assert_eq!(running.line(), "caught");
        assert_eq!(running.wait().code(), Some(7), "{signal:?}");
        assert_eq!(home.count("a"), (0, 0));
    }
}

/// A stopped process gets a signal only when it continues.
#[test]
fn case_46_a_signal_ends_a_command_that_is_stopped() {
    let home = Home::new();
    for signal in ALL {
        let mut running = home.spawn("a", &[], "echo $$; exec sleep 1000");
        let command = running.pid_line();
        kill_process(command, Signal::STOP).unwrap();
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(128 + signal.as_raw()), "{signal:?}");
        assert_eq!(home.count("a"), (0, 0));
    }
}

/// Nobody would continue it, and it would keep the lock.
#[test]
fn without_a_terminal_a_request_to_stop_is_not_passed_on() {
    let home = Home::new();
    let run = home.command(&[
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "trap 'echo told; exit 0' USR1; echo up; while :; do sleep 0.01; done",
    ]);
    let mut without = Command::new("setsid");
    without.arg(run.get_program()).args(run.get_args());
    without.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(&mut without);
    assert_eq!(running.line(), "up");
    running.signal(Signal::TSTP);
    running.signal(Signal::USR1);
    assert_eq!(running.line(), "told");
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn case_46_a_second_signal_reaches_the_command_too() {
    let home = Home::new();
    let script = "trap 'echo caught; n=x$n' TERM; echo up; while [ \"$n\" != xx ]; do sleep 0.01; done; exit 5";
    let mut running = home.starts("a", &[], script);
    running.signal(Signal::TERM);
    assert_eq!(running.line(), "caught");
    assert_eq!(home.count("a"), (1, 0), "the command runs on, so the lock is held");
    running.signal(Signal::TERM);
    assert_eq!(running.line(), "caught");
    assert_eq!(running.wait().code(), Some(5));
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn case_46_a_signal_while_releasing_changes_nothing() {
    let machine = Home::new();
    for signal in ALL {
        let served = Served::start(&machine);
        let home = Home::with_servers(&served.address);
        let mut running = home.spawn("a", &["--session-timeout", "30s"], "echo $$; read end; exit 7");
        let command = running.pid_line();
        // The delete is sent, and the server answers only when it continues.
        served.running.signal(Signal::STOP);
        running.close_stdin();
        until("the command has been reaped", || rustix::process::test_kill_process(command).is_err());
        running.signal(signal);
        served.running.signal(Signal::CONT);
        assert_eq!(running.wait().code(), Some(7), "{signal:?}");
        assert_eq!(home.count("a"), (0, 0), "{signal:?}");
    }
}

#[test]
fn case_46_a_signal_while_the_server_is_sought_ends_the_search() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let home = Home::with_servers(&listener.local_addr().unwrap().to_string());
    for signal in ALL {
        let mut running = home.spawn("a", &[], "touch ran");
        // It has connected, so it catches signals already.
        let (_connection, _) = listener.accept().unwrap();
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(128 + signal.as_raw()), "{signal:?}");
    }
    assert!(!home.file("ran").exists());
}

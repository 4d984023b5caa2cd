//! While its server answers, no command is stopped, whatever its position in the queue and its wait.

use std::time::Duration;

use crate::harness::{Home, Running, until};

/// Waits for the ends: every job succeeds, and no message says that a lock cannot be relied on.
fn all_succeed(jobs: Vec<Running>) {
    for (at, mut job) in jobs.into_iter().enumerate() {
        let (code, text) = job.end();
        assert!(code == Some(0) && !text.contains("relied on"), "job {at}: {code:?}, {text}");
    }
}

/// Jobs that are granted long after the last write of their session.
#[test]
fn no_job_of_ten_in_a_queue_is_stopped() {
    let home = Home::new();
    let job = || home.spawn("queue", &["--session-timeout", "5s"], "exec sleep 0.5");
    let mut jobs = vec![job()];
    until("the first holds", || home.count("queue") == (1, 0));
    jobs.extend((1..10).map(|_| job()));
    all_succeed(jobs);
}

/// Readers are granted together, so all but the first move up from the third position or later.
#[test]
fn readers_behind_a_long_writer_are_not_stopped() {
    let home = Home::new();
    let queues = (0..4).map(|queue| format!("queue-{queue}"));
    let mut jobs = Vec::new();
    for queue in queues {
        jobs.push(home.spawn(&queue, &["--session-timeout", "4s"], "exec sleep 2.3"));
        until("it holds", || home.count(&queue) == (1, 0));
        for _ in 0..2 {
            jobs.push(home.spawn(&queue, &["--session-timeout", "4s", "--shared"], "exec sleep 0.3"));
        }
    }
    all_succeed(jobs);
}

/// Checks that a job with the default session timeout runs on while its server restarts.
fn a_job_outlasts(servers: &str, restart: impl FnOnce()) {
    let home = Home::with_servers(servers);
    let mut job = home.starts("a", &[], "echo up; read line; echo done");
    restart();
    until("the lock is held at the server", || home.count("a") == (1, 0));
    job.close_stdin();
    job.ends_after("done");
}

/// How long the server is away, in addition to its start.
const AWAY: Duration = Duration::from_secs(3);

#[test]
fn a_job_outlasts_a_restart_of_3_s() {
    let machine = Home::new();
    let data = machine.file("data");
    let serve = |listen: &str| {
        let mut serve = machine.command(&["serve", "--listen", listen, "--data", data.to_str().unwrap()]);
        Running::start(&mut serve)
    };
    let mut server = serve("127.0.0.1:0");
    let address = server.line();
    let mut again = None;
    a_job_outlasts(&address, || {
        server.signal(rustix::process::Signal::TERM);
        assert!(server.wait().success());
        std::thread::sleep(AWAY);
        again.insert(serve(&address)).line();
    });
}

#[cfg(deep)]
#[test]
fn a_job_outlasts_a_restart_of_a_real_server() {
    use lockkeeper_testkit::apache::{Apache, Options};
    let apache = Apache::single(Options::default().tick(Duration::from_secs(2))).unwrap();
    a_job_outlasts(&apache.connect_string(), || {
        apache.stop(0);
        std::thread::sleep(AWAY);
        apache.launch(0).unwrap();
    });
}

#[cfg(deep)]
#[test]
fn a_job_outlasts_an_election_of_real_servers() {
    use lockkeeper_testkit::apache::{Apache, Options};
    let apache = Apache::ensemble(3, Options::default().tick(Duration::from_secs(2))).unwrap();
    a_job_outlasts(&apache.connect_string(), || apache.stop(apache.leader().unwrap()));
}

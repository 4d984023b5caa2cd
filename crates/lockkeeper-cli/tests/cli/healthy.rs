//! While its server answers, no command is stopped, wherever it stood in the queue and however long it waited.

use crate::harness::{Home, Running, until};

/// Their ends: every one succeeds, and nothing was said of a lock that cannot be relied on.
fn all_succeed(jobs: Vec<Running>) {
    for (at, mut job) in jobs.into_iter().enumerate() {
        let (code, text) = job.end();
        assert!(code == Some(0) && !text.contains("relied on"), "job {at}: {code:?}, {text}");
    }
}

/// Those who are granted when the last write of their session is old.
#[test]
fn no_job_of_ten_in_a_queue_is_stopped() {
    let home = Home::new();
    let job = || home.spawn("queue", &["--session-timeout", "5s"], "exec sleep 0.5");
    let mut jobs = vec![job()];
    until("the first holds", || home.count("queue") == (1, 0));
    jobs.extend((1..10).map(|_| job()));
    all_succeed(jobs);
}

/// Readers are granted together, so all but the first come from the third place or behind.
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

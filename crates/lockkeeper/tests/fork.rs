//! A process that forks while it holds a lock. This is a binary of its own, because a forked child may do little.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid_nohang};
use futures_util::FutureExt;
use lockkeeper::error::{AcquireError, ReleaseError, SessionError};
use lockkeeper::guard::{HoldState, OnLost};
use lockkeeper::{Acquire, Lockkeeper, Loss, Mutex};
use lockkeeper_server::{Config, Server};

/// Checks what the child sees and returns an exit status: 0 if all is right, otherwise the number of the failed check.
fn look(keeper: Lockkeeper, kept: Mutex, guard: lockkeeper::Guard, dropped: lockkeeper::Guard) -> i32 {
    if guard.is_held() || guard.alive() {
        return 1;
    }
    if guard.state() != HoldState::Lost(Loss::Forked) || guard.loss() != Some(Loss::Forked) {
        return 2;
    }
    if guard.valid_for() != Duration::ZERO || !guard.cancelled_when_lost().is_cancelled() {
        return 3;
    }
    drop(dropped);
    if !matches!(keeper.mutex("/locks/other").try_acquire().wait(), Err(AcquireError::Session(SessionError::Forked))) {
        return 4;
    }
    let not_held = Err(ReleaseError::NotHeld { loss: Loss::Forked });
    if guard.release_blocking() != not_held {
        return 5;
    }
    // The parent uses it, and that use never ends here.
    let forked = |request: Acquire| {
        let used = request.into_future().now_or_never();
        matches!(used.map(|used| used.map(drop)), Some(Err(AcquireError::Session(SessionError::Forked))))
    };
    if !forked(kept.acquire()) || !forked(kept.acquire().timeout(Duration::from_secs(60))) {
        return 6;
    }
    if !forked(kept.try_acquire()) || kept.release_kept().now_or_never() != Some(not_held) {
        return 7;
    }
    drop(keeper);
    0
}

/// Waits for the end of a child, whose checks must all have passed.
fn wait_for(child: i32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match waitpid_nohang(child).unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < deadline, "the child hangs"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status, 0, "check {} of the child failed", status >> 8);
}

/// Acquires a lock, ends its hold, and returns whether the callback for the loss runs.
fn is_called(servers: &str, path: &str) -> bool {
    let (report, reports) = mpsc::channel();
    let keeper = Lockkeeper::builder().connect_blocking(servers).unwrap();
    let on_lost = OnLost::call(move |_| _ = report.send(()));
    let _guard = keeper.mutex(path).acquire().on_lost(on_lost).wait().unwrap();
    keeper.close_blocking();
    reports.recv_timeout(Duration::from_secs(30)).is_ok()
}

/// The parent has a thread for callbacks, which the child has not.
#[test]
fn the_callbacks_of_a_forked_child_run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(Config::default())).unwrap();
    assert!(is_called(&server.connect_string(), "/locks/of-the-parent"));
    match fork().unwrap() {
        Fork::Child => std::process::exit(i32::from(!is_called(&server.connect_string(), "/locks/of-the-child"))),
        Fork::Parent(child) => wait_for(child),
    }
    assert!(is_called(&server.connect_string(), "/locks/of-the-parent"));
    runtime.block_on(server.shutdown()).unwrap();
}

/// The child's copy of the guard is refused, and dropping or releasing it does nothing: the parent keeps its hold and its
/// session, which the child did not touch.
#[test]
fn case_58_a_forked_child_cannot_use_or_release_its_parents_hold() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(Config::default())).unwrap();
    let keeper = Lockkeeper::builder().connect_blocking(&server.connect_string()).unwrap();
    let guard = keeper.mutex("/locks/forked").acquire().wait().unwrap();
    let dropped = keeper.mutex("/locks/dropped").acquire().wait().unwrap();
    let kept = keeper.mutex("/locks/kept").keep();
    let used = kept.acquire().wait().unwrap();
    match fork().unwrap() {
        Fork::Child => std::process::exit(look(keeper, kept, guard, dropped)),
        Fork::Parent(child) => wait_for(child),
    }
    for guard in [guard, dropped] {
        assert!(guard.is_held());
        runtime.block_on(guard.verify()).unwrap();
        guard.release_blocking().unwrap();
    }
    used.release_blocking().unwrap();
    assert!(kept.is_kept(), "the child did not end the parent's use");
    keeper.close_blocking();
    runtime.block_on(server.shutdown()).unwrap();
}

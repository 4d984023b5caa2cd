//! A process that forks while it holds a lock. This is a binary of its own, because a forked child may do little.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid_nohang};
use futures_util::FutureExt;
use lockkeeper::error::{AcquireError, ReleaseError, SessionError};
use lockkeeper::guard::HoldState;
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
    if !forked(kept.try_acquire()) || kept.give_up().now_or_never() != Some(not_held) {
        return 7;
    }
    drop(keeper);
    0
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
        Fork::Parent(child) => {
            let deadline = Instant::now() + Duration::from_secs(30);
            let status = loop {
                match waitpid_nohang(child).unwrap() {
                    Some(status) => break status,
                    None => assert!(Instant::now() < deadline, "the child hangs"),
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            assert_eq!(status, 0, "check {} of the child failed", status >> 8);
        }
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

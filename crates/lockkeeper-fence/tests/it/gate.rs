//! The gate under races: no older token passes after a newer one.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use lockkeeper_fence::{FencingToken, Pass, Refused, TokenGate};

fn token(number: i64) -> FencingToken {
    FencingToken::try_from(number).unwrap()
}

fn stale(entered: Result<Pass, Refused>) -> bool {
    matches!(entered, Err(Refused::Stale { offered, highest }) if offered < highest)
}

#[test]
fn an_older_token_is_refused_and_the_error_names_the_newer_one() {
    let gate = TokenGate::new();
    drop(gate.enter_blocking("a", token(5)).unwrap());
    drop(gate.enter_blocking("a", token(5)).unwrap());
    drop(gate.enter_blocking("a", token(7)).unwrap());
    let refused = gate.enter_blocking("a", token(6)).unwrap_err();
    assert_eq!(refused, Refused::Stale { offered: token(6), highest: token(7) });
    assert_eq!(refused.to_string(), "token 6 is stale: 7 has been seen");
    assert_eq!((gate.highest("a"), gate.highest("b")), (Some(token(7)), None));
    drop(gate.enter_blocking("b", token(1)).unwrap());
}

/// The comparison alone is not enough: between it and the change, a newer holder may make its change.
#[test]
fn a_newer_token_waits_until_older_passes_are_dropped() {
    let gate = TokenGate::new();
    let older = gate.enter_blocking("a", token(1)).unwrap();
    let beside = gate.enter_blocking("a", token(1)).unwrap();
    let mut newer = Box::pin(gate.enter("a", token(2)));
    let mut poll = || newer.poll_unpin(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    // From now on the older token is refused, also for new requests.
    assert!(stale(gate.enter_blocking("a", token(1))));
    drop(older);
    assert!(poll().is_pending());
    drop(beside);
    assert!(matches!(poll(), Poll::Ready(Ok(_))));
}

/// A waiting request that is overtaken by a newer one is refused, and the last one passes; for threads and tasks alike.
#[test]
fn a_waiting_request_is_woken_and_checked_again() {
    struct Woken(mpsc::Sender<()>);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }
    let gate = TokenGate::new();
    let seen = |number| {
        while gate.highest("a") != Some(token(number)) {
            std::thread::yield_now();
        }
    };
    let older = gate.enter_blocking("a", token(1)).unwrap();
    let (wake, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Woken(wake)));
    let mut task = Box::pin(gate.enter("a", token(2)));
    assert!(task.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    std::thread::scope(|scope| {
        let overtaken = scope.spawn(|| gate.enter_blocking("a", token(3)));
        seen(3);
        let last = scope.spawn(|| gate.enter_blocking("a", token(4)));
        seen(4);
        drop(older);
        assert!(stale(overtaken.join().unwrap()));
        let pass = last.join().unwrap().unwrap();
        woken.recv().unwrap();
        let Poll::Ready(entered) = task.poll_unpin(&mut Context::from_waker(&waker)) else { panic!("it still waits") };
        assert!(stale(entered) && pass.token() == token(4));
    });
}

/// Each worker takes tokens and makes changes with them, with pauses in which others overtake it.
#[test]
fn racing_workers_never_pass_with_an_older_token_after_a_newer_one() {
    const WORKERS: usize = 8;
    const ROUNDS: usize = 500;
    let (gate, next) = (TokenGate::new(), AtomicI64::new(1));
    let (last, inside, acted, refused) =
        (AtomicI64::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for seed in 0..WORKERS {
            let (gate, next, last, inside, acted, refused) = (&gate, &next, &last, &inside, &acted, &refused);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed as u64);
                for _ in 0..ROUNDS {
                    let own = next.fetch_add(1, Ordering::SeqCst);
                    if random.bool() {
                        std::thread::yield_now();
                    }
                    match gate.enter_blocking("a", token(own)) {
                        Ok(_pass) => {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                            assert!(last.swap(own, Ordering::SeqCst) < own, "passed with an older token");
                            if random.bool() {
                                std::thread::yield_now();
                            }
                            assert_eq!(last.load(Ordering::SeqCst), own);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            acted.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(_) => _ = refused.fetch_add(1, Ordering::SeqCst),
                    }
                }
            });
        }
    });
    let (acted, refused) = (acted.into_inner(), refused.into_inner());
    assert_eq!(acted + refused, WORKERS * ROUNDS);
    assert!(acted > 0 && last.into_inner() <= (WORKERS * ROUNDS) as i64);
}

#[cfg(feature = "persistent")]
mod persistent {
    use super::*;

    #[test]
    fn a_refused_token_stays_refused_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("marks");
        let gate = TokenGate::open(&file).unwrap();
        drop(gate.enter_blocking("a", token(7)).unwrap());
        assert_eq!(TokenGate::open(&file).unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
        drop(gate);
        let gate = TokenGate::open(&file).unwrap();
        assert_eq!(gate.highest("a"), Some(token(7)));
        assert!(stale(gate.enter_blocking("a", token(6))));
        drop(gate.enter_blocking("a", token(7)).unwrap());
        drop(gate.enter_blocking("b", token(1)).unwrap());
    }

    /// Otherwise the marks of resources that are gone could only be removed with all others.
    #[test]
    fn a_mark_is_forgotten_on_request_unless_it_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("marks");
        let gate = TokenGate::open(&file).unwrap();
        let pass = gate.enter_blocking("a", token(7)).unwrap();
        drop(gate.enter_blocking("b", token(7)).unwrap());
        assert!(!gate.forget("a").unwrap());
        drop(pass);
        assert!(gate.forget("a").unwrap() && gate.forget("no such key").unwrap());
        drop(gate);
        let gate = TokenGate::open(&file).unwrap();
        assert_eq!((gate.highest("a"), gate.highest("b")), (None, Some(token(7))));
        drop(gate.enter_blocking("a", token(1)).unwrap());
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes");
        std::fs::write(&file, "milk, eggs").unwrap();
        let error = TokenGate::open(&file).unwrap_err();
        assert!(error.to_string().contains("notes"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "milk, eggs");
    }
}

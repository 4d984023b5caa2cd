//! Whom the error of a timeout names, and what that costs. In simulated time, so that the counts are exact.

use std::time::Duration;

use lockkeeper::admin::ContenderInfo;
use lockkeeper::error::AcquireError;
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::sim::Sim;
use tokio::time::{sleep, sleep_until};

use crate::support::{Kind, simulated, simulated_keeper as keeper};

const LOCK: &str = "/locks/looked-at";

/// How long the waiters wait.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The reads and the lists that the server has answered; several lists of one session may be one read.
fn looks(sim: &Sim) -> [u64; 2] {
    let requests = sim.requests();
    let count = |op| requests.get(op).copied().unwrap_or(0);
    [count("getData"), count("getChildren") + count("multiRead")]
}

fn timed_out<G: std::fmt::Debug>(outcome: Result<G, AcquireError>) -> (Option<Box<ContenderInfo>>, Option<usize>) {
    match outcome {
        Err(AcquireError::Timeout { holder, ahead, .. }) => (holder, ahead),
        other => panic!("{other:?}"),
    }
}

/// The waiter saw the first holder when it came. A waiter right behind the holder looks no more: it would hear of its end.
#[test]
fn a_timeout_names_the_holder_of_its_last_moment_for_a_list_and_two_reads() {
    simulated(async |sim| {
        for (kind, changes, ahead, cost) in
            [(Kind::Native, true, 1, [2, 1]), (Kind::Recipe, true, 1, [2, 1]), (Kind::Native, false, 2, [1, 0])]
        {
            let (one, two, three) = (keeper(&sim), keeper(&sim), keeper(&sim));
            let mutex = |keeper| kind.mutex(keeper, LOCK);
            let first = mutex(&one).acquire().message("the first").await.unwrap();
            let second = crate::support::spawn(mutex(&two).acquire().message("the second").into_future());
            sleep(Duration::from_millis(500)).await;
            let (began, waiter) = (
                tokio::time::Instant::now(),
                crate::support::spawn(mutex(&three).acquire().timeout(TIMEOUT).into_future()),
            );
            sleep(Duration::from_secs(1)).await;
            let first = if changes { first.release().await.map(|()| None).unwrap() } else { Some(first) };
            sleep_until(began + TIMEOUT - Duration::from_millis(300)).await;
            let before = looks(&sim);
            let (holder, seen) = timed_out(waiter.await.unwrap());
            let expected = if changes { "the second" } else { "the first" };
            assert_eq!(holder.unwrap().message.as_deref(), Some(expected), "{kind:?}");
            assert_eq!(seen, Some(ahead), "{kind:?}");
            let after = looks(&sim);
            assert_eq!([after[0] - before[0], after[1] - before[1]], cost, "{kind:?}, the holder changes: {changes}");
            let before = looks(&sim);
            if changes {
                let (holder, seen) = timed_out(mutex(&three).acquire().timeout(TIMEOUT).await);
                assert_eq!((holder.unwrap().message.as_deref(), seen), (Some("the second"), Some(1)));
                let after = looks(&sim);
                // The watches on the holder's node and on its own, and the name of the holder. (A node without an id is read before its
                // delete.)
                let reads = if kind == Kind::Recipe { 4 } else { 3 };
                assert_eq!([after[0] - before[0], after[1] - before[1]], [reads, 1], "{kind:?}");
            }
            drop(first);
            second.await.unwrap().unwrap().release().await.unwrap();
        }
    });
}

/// Of many processes that stop waiting at once, only those near the front list the queue. The others do not name a holder that may
/// have released long ago.
#[test]
fn waiters_far_back_in_a_long_queue_list_nothing_at_their_deadline() {
    const WAITERS: usize = 120;
    simulated(async |sim| {
        let (one, two) = (keeper(&sim), keeper(&sim));
        let mutex = |keeper| Kind::Native.mutex(keeper, LOCK);
        let first = mutex(&one).acquire().await.unwrap();
        let second = crate::support::spawn(mutex(&two).acquire().message("the second").into_future());
        sleep(Duration::from_millis(500)).await;
        let keepers: Vec<_> = (0..WAITERS).map(|_| keeper(&sim)).collect();
        let mut waits = Vec::new();
        for keeper in &keepers {
            waits.push(crate::support::spawn(mutex(keeper).acquire().timeout(TIMEOUT).into_future()));
            sleep(Duration::from_millis(1)).await;
        }
        // All have seen the first.
        sleep(Duration::from_secs(1)).await;
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        sleep(TIMEOUT - Duration::from_millis(1_700)).await;
        let before = looks(&sim);
        let mut named = 0;
        for wait in waits {
            let (holder, ahead) = timed_out(wait.await.unwrap());
            assert!(holder.as_ref().is_none_or(|holder| holder.message.as_deref() == Some("the second")), "{holder:?}");
            assert!(ahead.is_some());
            named += u64::from(holder.is_some());
        }
        // The first of them has one ahead that is not of them, and the 99th has 100 ahead.
        let after = looks(&sim);
        let [reads, lists] = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(named, 99);
        // Those behind a waiter that has left look for what it leaves.
        assert!((99..WAITERS as u64).contains(&lists) && reads < 2 * WAITERS as u64, "{lists} lists and {reads} reads");
        second.release().await.unwrap();
    });
}

/// The thousand of one session look together.
#[test]
fn a_crowd_of_one_process_that_times_out_together_lists_little() {
    let crowd_size = if is_deep() { 1_000 } else { 300 };
    simulated(async |sim| {
        let (one, two, crowd) = (keeper(&sim), keeper(&sim), keeper(&sim));
        let mutex = |keeper| Kind::Native.mutex(keeper, LOCK);
        let first = mutex(&one).acquire().await.unwrap();
        let second = crate::support::spawn(mutex(&two).acquire().message("the second").into_future());
        sleep(Duration::from_millis(500)).await;
        let began = tokio::time::Instant::now();
        let waits: Vec<_> = (0..crowd_size)
            .map(|_| crate::support::spawn(mutex(&crowd).acquire().timeout(TIMEOUT).into_future()))
            .collect();
        sleep(Duration::from_secs(1)).await;
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        sleep_until(began + TIMEOUT - Duration::from_millis(300)).await;
        let before = looks(&sim);
        let mut named = 0;
        for wait in waits {
            let (holder, _) = timed_out(wait.await.unwrap());
            named += usize::from(holder.is_some_and(|holder| holder.message.as_deref() == Some("the second")));
        }
        let after = looks(&sim);
        let [reads, lists] = [after[0] - before[0], after[1] - before[1]];
        assert!(named >= 99 && lists <= 2 && reads <= 2 * crowd_size, "{named} for {reads} reads and {lists} lists");
        second.release().await.unwrap();
    });
}

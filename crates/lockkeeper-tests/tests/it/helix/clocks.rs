//! Apache's servers with clocks that differ from the clients'.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::{Lockkeeper, Loss};
use lockkeeper_helix::HelixLock;
use lockkeeper_testkit::apache::{Apache, Options};

use crate::support::{STEADY, block_on, eventually};

/// H-38, B13: with the server's clock an hour ahead or behind, the lease has its full length, and no client gets the lock
/// earlier or much later.
#[test]
fn case_54_leases_follow_apaches_clock_not_the_clients() {
    const HOUR_MS: i64 = 3_600_000;
    block_on(async {
        for off_ms in [HOUR_MS, -HOUR_MS] {
            let start = move || Apache::single(Options::default().clock_off(off_ms / 1000)).unwrap();
            let apache = tokio::task::spawn_blocking(start).await.unwrap();
            let servers = apache.connect_string();
            let keeper = async || Lockkeeper::builder().session_timeout(STEADY).connect(&servers).await.unwrap();
            let (one, other) = (keeper().await, keeper().await);
            let leased = |keeper: &Lockkeeper, id: &str| {
                let lock = HelixLock::new(keeper, "/locks/leased", Duration::from_secs(4)).user_id(id);
                lock.skew(Duration::ZERO)
            };
            let (a, b) = (leased(&one, "a"), leased(&other, "b"));
            let guard = a.acquire().await.unwrap();
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
            let ahead_ms = a.info().await.unwrap().timeout - now_ms;
            assert!((ahead_ms - off_ms).abs() < 60_000, "the lease is not in the server's time: {ahead_ms} ms ahead");
            let shown = other.admin().show("/locks/leased").await.unwrap().lease.unwrap();
            assert_eq!(shown.owner.as_deref(), Some("a"));
            // By b's own clock, the lease would have ended an hour ago, or would run for another hour.
            let mut refused = 0;
            let mut next = None;
            eventually("b has the lock", async || {
                next = b.acquire().await.ok();
                if next.is_none() {
                    refused += 1;
                }
                next.is_some()
            })
            .await;
            assert!(refused > 0, "b got the lock immediately");
            assert_eq!(guard.loss(), Some(Loss::LeaseEnded), "the owner must lose its guard first");
            next.unwrap().release().await.unwrap();
            drop(guard);
            one.close().await;
            other.close().await;
        }
    });
}

//! When the locks of a command can no longer be relied on.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::select;
use lockkeeper::guard::HoldState;

use crate::held::Held;
use crate::verbs::run::args::OnSuspect;

/// Resolves when the command must be stopped, with the state of the locks at that moment.
///
/// When the timer fires, the trust is read again: a heartbeat may have been confirmed in between, and then the command
/// continues. Dropping the future leaves nothing behind.
pub(super) async fn unreliable(locks: &impl Trusted, grace: Duration, on_suspect: OnSuspect) -> HoldState {
    loop {
        let suspected = async {
            match on_suspect {
                OnSuspect::Wait => std::future::pending().await,
                OnSuspect::Stop => locks.changed(HoldState::Held).await,
            }
        };
        select(pin!(locks.nearly_lost(grace)), pin!(suspected)).await;
        let state = locks.state();
        let suspected = on_suspect == OnSuspect::Stop && state != HoldState::Held;
        if suspected || locks.valid_for() <= grace {
            return state;
        }
    }
}

/// The state of the locks that [`unreliable`] reads.
pub(super) trait Trusted {
    async fn nearly_lost(&self, margin: Duration) -> HoldState;
    async fn changed(&self, seen: HoldState) -> HoldState;
    fn state(&self) -> HoldState;
    fn valid_for(&self) -> Duration;
}

impl Trusted for Held<'_> {
    async fn nearly_lost(&self, margin: Duration) -> HoldState {
        (*self).nearly_lost(margin).await
    }

    async fn changed(&self, seen: HoldState) -> HoldState {
        (*self).changed(seen).await
    }

    fn state(&self) -> HoldState {
        (*self).state()
    }

    fn valid_for(&self) -> Duration {
        (*self).valid_for()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt;

    use super::*;

    /// Locks whose last heartbeat is confirmed late: between the timer and the check after it, for this many timers.
    struct Late {
        heartbeats: Cell<u32>,
        timers: Cell<u32>,
    }

    impl Trusted for Late {
        async fn nearly_lost(&self, _: Duration) -> HoldState {
            self.timers.set(self.timers.get() + 1);
            HoldState::Held
        }

        async fn changed(&self, _: HoldState) -> HoldState {
            std::future::pending().await
        }

        fn state(&self) -> HoldState {
            HoldState::Held
        }

        fn valid_for(&self) -> Duration {
            let left = self.heartbeats.get();
            self.heartbeats.set(left.saturating_sub(1));
            Duration::from_secs(if left > 0 { 22 } else { 5 })
        }
    }

    #[test]
    fn a_late_heartbeat_cancels_a_stop() {
        let locks = Late { heartbeats: Cell::new(3), timers: Cell::new(0) };
        let grace = Duration::from_secs(5);
        for on_suspect in [OnSuspect::Wait, OnSuspect::Stop] {
            locks.heartbeats.set(3);
            locks.timers.set(0);
            let stopped = unreliable(&locks, grace, on_suspect).now_or_never();
            assert_eq!((stopped, locks.timers.get()), (Some(HoldState::Held), 4), "{on_suspect:?}");
        }
    }
}

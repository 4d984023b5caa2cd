//! A value that wakes its listeners when it changes, in the order in which they wait.
//!
//! tokio's `watch` has the same calls, but wakes its listeners in a random order. With it, one seed of the simulator
//! would give several histories.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::Notify;

struct Latest<T> {
    value: RwLock<T>,
    /// The number of changes; it grows while `value` is locked for writing.
    version: AtomicU64,
    closed: AtomicBool,
    changed: Notify,
}

impl<T> Latest<T> {
    fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the value. Dropping it ends all waits. Nothing here is sent to a server.
pub struct Sender<T>(Arc<Latest<T>>);

/// Waits for changes of the value.
pub struct Receiver<T> {
    latest: Arc<Latest<T>>,
    /// The last version that was seen.
    seen: u64,
}

/// The [`Sender`] was dropped: there are no more changes.
#[derive(Debug)]
pub struct Closed;

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&*self.borrow()).finish()
    }
}

impl<T> Sender<T> {
    /// Creates the value; it has no listener.
    pub fn new(value: T) -> Self {
        let (version, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        Sender(Arc::new(Latest { value: RwLock::new(value), version, closed, changed: Notify::new() }))
    }

    /// Returns a listener that has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        let value = self.borrow();
        let receiver = Receiver { latest: self.0.clone(), seen: self.0.version.load(Ordering::Acquire) };
        drop(value);
        receiver
    }

    /// Returns the current value. No change is possible while the result lives.
    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.0.borrow()
    }

    /// Changes the value, and wakes the listeners if `change` returns true.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) {
        let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut value);
        if changed {
            self.0.version.fetch_add(1, Ordering::Release);
        }
        drop(value);
        if changed {
            // In the order in which they wait, as `Notify` promises.
            self.0.changed.notify_waiters();
        }
    }

    /// Changes the value, and wakes the listeners in the order in which they wait.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Replaces the value, and wakes the listeners. Returns the value before.
    pub fn send_replace(&self, mut new: T) -> T {
        self.send_modify(|value| std::mem::swap(value, &mut new));
        new
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    /// Returns the current value. No change is possible while the result lives.
    pub fn borrow(&self) -> RwLockReadGuard<'_, T> {
        self.latest.borrow()
    }

    /// As [`Receiver::borrow`]; [`Receiver::changed`] waits for a later change than this one.
    pub fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.latest.borrow();
        self.seen = self.latest.version.load(Ordering::Acquire);
        value
    }

    /// Waits for a change since the last one that was seen.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    ///
    /// # Errors
    ///
    /// [`Closed`] if the sender was dropped, and its last change was seen.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let mut notified = pin!(self.latest.changed.notified());
            // From here on, no change is missed.
            notified.as_mut().enable();
            let closed = self.latest.closed.load(Ordering::Acquire);
            let version = self.latest.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if closed {
                return Err(Closed);
            }
            notified.await;
        }
    }

    /// Waits until the value is as wanted, and returns it; at once if it is.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    ///
    /// # Errors
    ///
    /// [`Closed`] if the sender was dropped, and its last value is not as wanted.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<T, Closed>
    where
        T: Clone,
    {
        loop {
            let value = self.borrow_and_update().clone();
            if wanted(&value) {
                return Ok(value);
            }
            self.changed().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt;

    use super::*;

    /// The reason for this module.
    #[test]
    fn listeners_wake_in_the_order_in_which_they_wait() {
        for _ in 0..20 {
            let sender = Sender::new(0);
            let woken = Arc::new(Mutex::new(Vec::new()));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut listeners = Vec::new();
                for at in 0..16 {
                    let (mut receiver, woken) = (sender.subscribe(), woken.clone());
                    listeners.push(tokio::spawn(async move {
                        receiver.changed().await.unwrap();
                        woken.lock().unwrap().push(at);
                    }));
                }
                tokio::task::yield_now().await;
                sender.send_replace(1);
                for listener in listeners {
                    listener.await.unwrap();
                }
            });
            assert_eq!(*woken.lock().unwrap(), (0..16).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_listener_sees_each_change_once_and_none_that_was_before_it() {
        let sender = Sender::new(0);
        sender.send_replace(1);
        let mut receiver = sender.subscribe();
        assert!(receiver.changed().now_or_never().is_none(), "it knows the value from before");
        assert_eq!(sender.send_replace(2), 1);
        sender.send_if_modified(|_| false);
        assert!(receiver.changed().now_or_never().unwrap().is_ok());
        assert!(receiver.changed().now_or_never().is_none());
        sender.send_modify(|value| *value += 1);
        assert_eq!(*receiver.borrow_and_update(), 3);
        assert!(receiver.changed().now_or_never().is_none(), "it was looked at");
        assert_eq!(receiver.wait_for(|value| *value == 3).now_or_never().unwrap().unwrap(), 3);
    }

    #[test]
    fn a_listener_sees_the_last_change_and_then_the_end() {
        let sender = Sender::new(0);
        let mut receiver = sender.subscribe();
        sender.send_replace(1);
        drop(sender);
        assert!(receiver.changed().now_or_never().unwrap().is_ok());
        assert!(receiver.changed().now_or_never().unwrap().is_err());
        assert!(receiver.wait_for(|value| *value == 2).now_or_never().unwrap().is_err());
        assert!(receiver.wait_for(|value| *value == 1).now_or_never().unwrap().is_ok());
    }
}

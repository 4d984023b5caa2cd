//! One direction of a connection: messages arrive in order, each after its delay.

use tokio::sync::mpsc;
use tokio::time::Instant;

/// The sending end.
pub(super) struct Inlet<T> {
    sender: mpsc::UnboundedSender<(Instant, T)>,
    last: Instant,
}

/// The receiving end.
pub(super) struct Outlet<T> {
    receiver: mpsc::UnboundedReceiver<(Instant, T)>,
    next: Option<(Instant, T)>,
}

pub(super) fn link<T>() -> (Inlet<T>, Outlet<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Inlet { sender, last: Instant::now() }, Outlet { receiver, next: None })
}

impl<T> Inlet<T> {
    /// Sends a message that arrives after `delay`, or directly behind the one before it. Returns `false` if the
    /// receiver has ended.
    pub(super) fn send(&mut self, message: T, delay: std::time::Duration) -> bool {
        self.last = self.last.max(Instant::now() + delay);
        self.sender.send((self.last, message)).is_ok()
    }
}

impl<T> Outlet<T> {
    /// Returns the next message when it has arrived. Dropping the future loses no message.
    pub(super) async fn recv(&mut self) -> Option<T> {
        if self.next.is_none() {
            self.next = Some(self.receiver.recv().await?);
        }
        if let Some((due, _)) = &self.next {
            tokio::time::sleep_until(*due).await;
        }
        self.next.take().map(|(_, message)| message)
    }
}

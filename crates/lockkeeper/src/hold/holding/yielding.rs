//! A holder makes way for the contenders of earlier classes.

use tokio::sync::oneshot;

use crate::error::{AcquireError, SessionError};
use crate::hold::holding::Holding;
use crate::hold::telemetry::Call;
use crate::hold::{HoldRequest, YieldRequest};

impl Holding {
    /// Makes way, as [`Guard::yield_lock`](crate::Guard::yield_lock) does.
    ///
    /// # Cost
    ///
    /// As [`Guard::yield_lock`](crate::Guard::yield_lock).
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::yield_lock`](crate::Guard::yield_lock).
    ///
    /// # Errors
    ///
    /// As [`Guard::yield_lock`](crate::Guard::yield_lock).
    pub async fn yield_lock(self) -> Result<Self, AcquireError> {
        if !self.should_yield() || self.parts.part.is_some() {
            return Ok(self);
        }
        let call = Call::begin(self.path().to_owned(), self.parts.hold.meter());
        let (reply, granted) = oneshot::channel();
        // A send fails only if the driver has ended, and then the reply is dropped.
        let request = YieldRequest { reply, span: call.span() };
        _ = self.parts.requests.unbounded_send(HoldRequest::Yield(Box::new(request)));
        self.parts.span.get().into_iter().for_each(|span| span.released(&Ok(())));
        // The task takes the request before the end of the channel.
        drop(self);
        call.end(granted.await.unwrap_or(Err(SessionError::Closed.into())), |holding| holding)
    }
}

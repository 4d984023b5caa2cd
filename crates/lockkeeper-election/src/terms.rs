//! Runs hooks, term after term.

use std::time::Duration;

use lockkeeper::error::{AcquireError, Misuse, ReleaseError};
use lockkeeper::{Acquire, CancellationToken, Error};

use crate::leadership::{BoxFuture, Demotion, Leadership};

/// The pause before another campaign after an error that may pass.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) async fn run(
    request: impl Fn() -> Result<Acquire, Misuse>,
    stop: &CancellationToken,
    mut promoted: impl for<'a> FnMut(&'a Leadership, CancellationToken) -> BoxFuture<'a, ()> + Send,
    mut demoted: impl for<'a> FnMut(&'a Demotion) -> BoxFuture<'a, ()> + Send,
) -> Result<(), Error> {
    while !stop.is_cancelled() {
        let leadership = match request()?.cancel_on(stop.clone()).await {
            Ok(guard) => Leadership::new(guard),
            Err(AcquireError::Cancelled { .. }) if stop.is_cancelled() => return Ok(()),
            Err(error) if error.kind().is_retryable() => {
                _ = stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let demotion = lead(&leadership, stop, &mut promoted).await;
        demoted(&demotion).await;
        match leadership.resign().await {
            Ok(()) | Err(Error::Release(ReleaseError::NotHeld { .. })) => {}
            Err(error) if stop.is_cancelled() => return Err(error),
            // If it cannot be confirmed, the leadership ends with the session at the latest.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Does the work of one term, and returns why the term ends. Nothing of the work is left then.
async fn lead(
    leadership: &Leadership,
    stop: &CancellationToken,
    promoted: &mut impl for<'a> FnMut(&'a Leadership, CancellationToken) -> BoxFuture<'a, ()>,
) -> Demotion {
    let ends = leadership.cancelled_when_lost();
    let mut work = promoted(leadership, ends.clone());
    // Loss wins: what became ready at the same moment was not done as the leader.
    let demotion = tokio::select! {
        biased;
        loss = leadership.lost() => Demotion::Lost(loss),
        () = stop.cancelled() => Demotion::Stopped,
        asked = leadership.asked_to_step_down() => Demotion::Asked(asked),
        () = &mut work => Demotion::Done,
    };
    ends.cancel();
    if matches!(demotion, Demotion::Stopped | Demotion::Asked(_)) {
        tokio::select! {
            biased;
            loss = leadership.lost() => return Demotion::Lost(loss),
            () = work => {}
        }
    }
    // The last part of the work did not await, so nothing was noticed meanwhile.
    leadership.loss().map_or(demotion, Demotion::Lost)
}

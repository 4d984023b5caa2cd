//! Waits for what may be absent, and how long calls wait for the servers.

use std::time::Duration;

use crate::cancel::CancellationToken;
use futures_util::future::{Either, Pending, pending};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a call that does not want to wait, and has no timeout, waits for the servers. This is several times what an answer takes
/// from a slow disk or from another continent. It is short enough for a caller that does not want to wait.
pub const TRY: Duration = Duration::from_secs(2);

/// The moment for which a call is judged at its end: now, or its deadline if that has passed. If this process was stalled beyond the
/// deadline, the answer may be there, unread, and the servers were not silent.
pub fn judged_at(deadline: Option<Instant>) -> Instant {
    let now = Instant::now();
    deadline.map_or(now, |deadline| deadline.min(now))
}

/// Awaits a future that may be absent: without one it never resolves. (An async function would contain the future twice.)
pub fn or_never<F: Future>(future: Option<F>) -> Either<F, Pending<F::Output>> {
    future.map_or_else(|| Either::Right(pending()), Either::Left)
}

/// Resolves when the deadline has passed; without one, never. It needs tokio's time, as the thread of the sessions has it.
pub fn passed(deadline: Option<Instant>) -> Either<Sleep, Pending<()>> {
    or_never(deadline.map(sleep_until))
}

/// Resolves when the token is cancelled; without one, never.
pub async fn cancelled(token: Option<&CancellationToken>) {
    or_never(token.map(CancellationToken::cancelled)).await;
}

/// Waits for the reply to a request that was sent to a task. `None` if the task has ended without a reply. `ended` is
/// [`closed`](tokio::sync::mpsc::UnboundedSender::closed) of the channel to the task.
///
/// The end of the reply's sender is not enough. A request may be sent while the task drops its receiver. It can then stay in
/// tokio's channel, and the reply's sender with it, for as long as the channel has a sender.
///
/// So the task must keep its receiver until it has replied. Dropping the future leaves nothing behind.
pub async fn reply<T>(ended: impl Future<Output = ()>, mut reply: oneshot::Receiver<T>) -> Option<T> {
    tokio::select! {
        biased;
        reply = &mut reply => reply.ok(),
        () = ended => reply.try_recv().ok(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn a_call_whose_deadline_is_noticed_late_is_judged_for_its_deadline() {
        let before = Instant::now();
        let (passed, coming) = (before - Duration::from_secs(3), before + Duration::from_secs(3));
        assert_eq!(judged_at(Some(passed)), passed);
        assert!(judged_at(Some(coming)) < coming && judged_at(Some(coming)) >= before && judged_at(None) >= before);
    }

    /// A permit is the first half of a send; in the channel without bounds, both halves are one call.
    #[test]
    fn a_request_to_a_task_that_ends_at_this_moment_is_not_waited_for() {
        let (requests, receiver) = mpsc::channel(1);
        let (sender, answer) = oneshot::channel::<()>();
        let permit = requests.try_reserve().unwrap();
        drop(receiver);
        permit.send(sender);
        assert_eq!(reply(requests.closed(), answer).now_or_never(), Some(None));
    }

    #[test]
    fn a_reply_right_before_the_end_of_the_task_arrives() {
        let (requests, mut receiver) = mpsc::unbounded_channel();
        let (sender, answer) = oneshot::channel();
        requests.send(sender).unwrap();
        let mut reply = Box::pin(reply(requests.closed(), answer));
        assert_eq!(reply.as_mut().now_or_never(), None);
        receiver.try_recv().unwrap().send(7).unwrap();
        drop(receiver);
        assert_eq!(reply.now_or_never(), Some(Some(7)));
    }
}

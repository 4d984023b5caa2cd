//! The state of the decision about an unfinished cleanup in one attempt.
//!
//! While the decision is pending, the request outlasts its wait. Once it is made, it turns force on or off, and the
//! terms decide the rest.

use lockkeeper::Lockkeeper;
use tokio::sync::oneshot;

use crate::approval::{Approval, ApprovalAnswer, CleanupAlert, Decision};
use crate::node::{Look, SessionRef};
use crate::protocol::Terms;

/// How long after the decision's deadline a request would end by itself, in milliseconds.
const SLACK_MS: i64 = 5_000;

pub(super) enum CleanupVerdict {
    /// No decision will be made; the terms say what happens.
    Unasked,
    /// To be requested when the wait ends, at this time of the server.
    Open {
        over_ms: i64,
        extra_ms: i64,
    },
    /// Requested; expected until this time of the server.
    Pending {
        until_ms: i64,
        alert: Box<CleanupAlert>,
        answer: oneshot::Receiver<ApprovalAnswer>,
    },
    Made {
        approved: bool,
    },
}

impl CleanupVerdict {
    pub(super) fn new(approval: &Approval, terms: &Terms) -> Self {
        match approval.is_set() && !terms.forceful {
            true => {
                let extra_ms = i64::try_from(approval.timeout().as_millis()).unwrap_or(i64::MAX);
                CleanupVerdict::Open { over_ms: i64::MAX, extra_ms }
            }
            false => CleanupVerdict::Unasked,
        }
    }

    /// The terms for the next step, and the end of the wait.
    pub(super) fn terms(&mut self, terms: &Terms, look: &Look, give_up_ms: i64) -> (Terms, i64) {
        // A wait of zero becomes a wait for the decision.
        let waiting_ms = terms.waiting_ms.map(|waiting| waiting.max(1));
        let outlasting = || Terms { wait_past_cleanup: true, waiting_ms, ..terms.clone() };
        match self {
            CleanupVerdict::Unasked => (terms.clone(), give_up_ms),
            CleanupVerdict::Open { over_ms, extra_ms } => {
                let since_ms = look.record.request.as_ref().map_or(look.now.latest_ms, |request| request.since_ms);
                let cleanup_ms = look.record.owner.as_ref().map_or(0, |owner| owner.cleanup_ms.max(0));
                let cleaned_ms = since_ms.saturating_add(cleanup_ms);
                *over_ms = if terms.wait_past_cleanup { give_up_ms } else { give_up_ms.min(cleaned_ms) };
                (outlasting(), over_ms.saturating_add(*extra_ms).saturating_add(SLACK_MS))
            }
            CleanupVerdict::Pending { until_ms, .. } => (outlasting(), until_ms.saturating_add(SLACK_MS)),
            CleanupVerdict::Made { approved } => (Terms { forceful: *approved, ..terms.clone() }, i64::MIN),
        }
    }

    /// Until when to wait for a change, by the server's clock. Requests the decision when it is due.
    pub(super) fn until(
        &mut self,
        answered_ms: i64,
        look: &Look,
        alert: impl FnOnce() -> CleanupAlert,
        approval: &Approval,
        (keeper, session_ref): (&Lockkeeper, &SessionRef),
    ) -> i64 {
        match *self {
            CleanupVerdict::Unasked => answered_ms,
            CleanupVerdict::Open { over_ms, extra_ms } if look.now.earliest_ms >= over_ms && !look.written => {
                let mut alert = Box::new(alert());
                let until_ms = look.now.latest_ms.saturating_add(extra_ms);
                let answer = approval.ask(&mut alert, until_ms, keeper, &session_ref.session);
                *self = CleanupVerdict::Pending { until_ms, alert, answer };
                until_ms
            }
            CleanupVerdict::Open { over_ms, .. } => over_ms,
            CleanupVerdict::Pending { until_ms, .. } if look.now.earliest_ms >= until_ms => {
                self.make(approval, None);
                look.now.earliest_ms
            }
            CleanupVerdict::Pending { until_ms, .. } => until_ms,
            CleanupVerdict::Made { .. } => look.now.earliest_ms,
        }
    }

    /// Resolves when the decision is made; never if none is pending. Dropping the future loses nothing.
    pub(super) async fn decided(&mut self, approval: &Approval) {
        let CleanupVerdict::Pending { answer, .. } = self else { return std::future::pending().await };
        let answer = answer.await.ok();
        self.make(approval, answer);
    }

    fn make(&mut self, approval: &Approval, answer: Option<ApprovalAnswer>) {
        let nobody = || ApprovalAnswer { decision: Decision::no_answer(), by_rule: false };
        let answer = answer.unwrap_or_else(nobody);
        let approved = matches!(answer.decision, Decision::Approve { .. });
        if let CleanupVerdict::Pending { alert, .. } = std::mem::replace(self, CleanupVerdict::Made { approved }) {
            approval.record(*alert, answer);
        }
    }
}

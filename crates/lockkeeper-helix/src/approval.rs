//! Decisions about cleanups that are not finished in time: first by rules, then by a person or a program. No answer
//! means no.
//!
//! An approval transfers the lock by force, so it applies to requests that are not forceful themselves. Every decision
//! is logged with the target `lockkeeper::audit` and kept for
//! [`HelixLock::decisions`](crate::HelixLock::decisions). It is written to the ensemble's journal before it takes
//! effect, also if it is the rejection because no answer came. So there is no transfer without a record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockkeeper::{Lockkeeper, journal};
use lockkeeper_session::Session;
use tokio::sync::oneshot;

use crate::journal::{DecisionRecord, TransferFacts};
use crate::pending::{OperatorDecision, Pending};

/// How long writing a decision to the journal may take.
const WRITING: Duration = Duration::from_secs(5);

/// The number of decisions that a lock object keeps.
const KEPT: usize = 100;

/// A cleanup that is not finished when the wait for it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanupAlert {
    /// The path of the lock.
    pub path: String,
    /// The owner's user id.
    pub owner: String,
    /// The owner's message.
    pub owner_message: Option<String>,
    /// The owner's priority.
    pub owner_priority: i32,
    /// How long the cleanup has run.
    pub elapsed: Duration,
    /// How long the cleanup may take.
    pub allotted: Duration,
    /// The requestor's user id.
    pub requestor: String,
    /// The requestor's message.
    pub requestor_message: Option<String>,
    /// The requestor's priority.
    pub requestor_priority: i32,
    /// The id of the request in [`HelixAdmin::requests`](crate::HelixAdmin::requests), if operators are asked.
    pub request: Option<String>,
}

impl CleanupAlert {
    /// Returns the same facts in the form that operators see ([`HelixAdmin::requests`](crate::HelixAdmin::requests)).
    pub fn facts(&self) -> TransferFacts {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        TransferFacts {
            path: self.path.clone(),
            owner: self.owner.clone(),
            owner_message: self.owner_message.clone(),
            owner_priority: self.owner_priority,
            elapsed_ms: millis(self.elapsed),
            allotted_ms: millis(self.allotted),
            requestor: self.requestor.clone(),
            requestor_message: self.requestor_message.clone(),
            requestor_priority: self.requestor_priority,
        }
    }
}

/// Whether to take the lock from an owner that has not finished its cleanup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Take the lock by force.
    Approve {
        /// The person or program that decided.
        by: String,
        /// The reason.
        reason: String,
    },
    /// The owner keeps the lock.
    Reject {
        /// The person or program that decided.
        by: String,
        /// The reason.
        reason: String,
    },
}

impl Decision {
    /// Returns the decision that counts if no answer comes in time: a no by nobody.
    pub fn no_answer() -> Self {
        Decision::Reject { by: "nobody".to_owned(), reason: "no answer in time".to_owned() }
    }

    /// Whether it takes the lock, who decided, and why.
    pub(crate) fn into_parts(self) -> (bool, String, String) {
        match self {
            Decision::Approve { by, reason } => (true, by, reason),
            Decision::Reject { by, reason } => (false, by, reason),
        }
    }
}

/// A decision in advance: these requestors always take the lock from these owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferRule {
    /// The rule's name in the audit log.
    pub name: String,
    /// The user ids of the owners; `*` matches any text.
    pub owner: String,
    /// The user ids of the requestors; `*` matches any text.
    pub requestor: String,
}

impl TransferRule {
    /// Creates the rule of this name about these owners and requestors.
    pub fn new(name: impl Into<String>, owner: impl Into<String>, requestor: impl Into<String>) -> TransferRule {
        TransferRule { name: name.into(), owner: owner.into(), requestor: requestor.into() }
    }
}

/// A decision and its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decided {
    /// The unfinished cleanup. Its `request` is that of the operators, if they were asked.
    pub alert: CleanupAlert,
    /// The decision; a decision by a rule names the rule.
    pub decision: Decision,
    /// Whether a rule decided.
    pub by_rule: bool,
}

/// A decision and its source.
pub(super) struct ApprovalAnswer {
    pub(super) decision: Decision,
    pub(super) by_rule: bool,
}

type Hook = Arc<dyn Fn(CleanupAlert) -> BoxFuture<'static, Decision> + Send + Sync>;

/// How a lock object decides about unfinished cleanups.
#[derive(Clone, Default)]
pub(super) struct Approval {
    rules: Vec<TransferRule>,
    hook: Option<(Hook, Option<tokio::runtime::Handle>)>,
    /// Whether operators are asked as well.
    operators: bool,
    /// How long the hook and the operators may take.
    timeout: Duration,
    decisions: Arc<Mutex<VecDeque<Decided>>>,
}

impl Approval {
    pub(super) fn add_rule(&mut self, rule: TransferRule) {
        self.rules.push(rule);
    }

    pub(super) fn set_hook(&mut self, hook: Hook, timeout: Duration) {
        self.hook = Some((hook, tokio::runtime::Handle::try_current().ok()));
        self.timeout = self.timeout.max(timeout);
    }

    pub(super) fn ask_operators(&mut self, timeout: Duration) {
        self.operators = true;
        self.timeout = self.timeout.max(timeout);
    }

    /// Returns whether a rule, a hook or operators can decide.
    pub(super) fn is_set(&self) -> bool {
        self.hook.is_some() || self.operators || !self.rules.is_empty()
    }

    /// How long a decision may take, including its journal entry.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout.saturating_add(WRITING)
    }

    pub(super) fn decisions(&self) -> Vec<Decided> {
        self.decisions.lock().expect("held for a copy only").iter().cloned().collect()
    }

    /// Asks for a decision in a separate task, which ends with the receiver. The channel closes if no decision is made.
    pub(super) fn ask(
        &self,
        alert: &mut CleanupAlert,
        until_ms: i64,
        keeper: &Lockkeeper,
        session: &Arc<Session>,
    ) -> oneshot::Receiver<ApprovalAnswer> {
        let (answer, decision) = oneshot::channel();
        tracing::warn!(target: "lockkeeper::audit", path = %alert.path, owner = %alert.owner, requestor = %alert.requestor,
            elapsed = ?alert.elapsed, allotted = ?alert.allotted, "a cleanup is not finished");
        let id = uuid::Uuid::new_v4();
        // A rule decides alone.
        alert.request = (self.operators && self.rule_for(alert).is_none()).then(|| id.to_string());
        let pending = PendingDecision {
            approval: self.clone(),
            alert: alert.clone(),
            id,
            until_ms,
            keeper: keeper.clone(),
            session: session.clone(),
        };
        keeper.sessions().spawn(pending.run(answer));
        decision
    }

    /// The rule that decides about this cleanup.
    fn rule_for(&self, alert: &CleanupAlert) -> Option<&TransferRule> {
        self.rules.iter().find(|rule| matches(&rule.owner, &alert.owner) && matches(&rule.requestor, &alert.requestor))
    }

    /// Keeps a decision and logs it.
    pub(super) fn record(&self, alert: CleanupAlert, ApprovalAnswer { decision, by_rule }: ApprovalAnswer) {
        let (approved, by, reason) = match &decision {
            Decision::Approve { by, reason } => (true, by, reason),
            Decision::Reject { by, reason } => (false, by, reason),
        };
        tracing::warn!(target: "lockkeeper::audit", path = %alert.path, owner = %alert.owner, requestor = %alert.requestor,
            approved, by, reason, by_rule, "a forced transfer was decided");
        let mut decisions = self.decisions.lock().expect("held for a push only");
        if decisions.len() == KEPT {
            decisions.pop_front();
        }
        decisions.push_back(Decided { alert, decision, by_rule });
    }
}

struct PendingDecision {
    approval: Approval,
    alert: CleanupAlert,
    /// Its id in the journal and, if operators are asked, among the requests.
    id: uuid::Uuid,
    until_ms: i64,
    keeper: Lockkeeper,
    session: Arc<Session>,
}

impl PendingDecision {
    async fn run(self, mut answer: oneshot::Sender<ApprovalAnswer>) {
        let pending = self.approval.operators.then(|| {
            // Operators have no part of the time for the journal entry.
            let writing_ms = i64::try_from(WRITING.as_millis()).unwrap_or(0);
            let until_ms = u64::try_from(self.until_ms.saturating_sub(writing_ms)).unwrap_or(0);
            Pending::new(self.keeper.clone(), self.id, self.alert.facts(), until_ms)
        });
        if let Some(rule) = self.approval.rule_for(&self.alert) {
            let decision = Decision::Approve { by: rule.name.clone(), reason: "a rule says so".to_owned() };
            // A separate id: an operator may decide under the other one at the same moment.
            let made = self.journal(uuid::Uuid::new_v4(), decision, true).await;
            // The send fails only if the request has ended meanwhile.
            _ = answer.send(made);
            return;
        }
        let hook = self.approval.hook.clone().and_then(|hook| self.call(hook));
        let timeout = self.approval.timeout;
        let made = tokio::select! {
            biased;
            // The request has ended, so the decision is no longer needed.
            () = answer.closed() => None,
            Some(decision) = called(hook) => Some(self.journal(uuid::Uuid::new_v4(), decision, false).await),
            verdict = spoken(pending.as_ref()) => verdict,
            () = tokio::time::sleep(timeout) => None,
        };
        // A decision made before the request was withdrawn counts, even in the last moment.
        let last = match &pending {
            Some(pending) => pending.close().await.map(by_operator),
            None => None,
        };
        let made = match made.or(last) {
            // Somebody was asked and is still awaited. After the close, an operator cannot decide any more, so the id is
            // free for this record, which later decisions find.
            None if !answer.is_closed() && (self.approval.operators || self.approval.hook.is_some()) => {
                Some(self.journal(self.id, Decision::no_answer(), false).await)
            }
            made => made,
        };
        if let Some(made) = made {
            _ = answer.send(made);
        }
    }

    /// Runs the user's code on a separate thread.
    fn call(&self, (hook, runtime): (Hook, Option<tokio::runtime::Handle>)) -> Option<oneshot::Receiver<Decision>> {
        let (mut done, decision) = oneshot::channel();
        let (session, alert) = (self.session.clone(), self.alert.clone());
        let thread = std::thread::Builder::new().name("lockkeeper-approval".to_owned()).spawn(move || {
            let work = async {
                let work = hook(alert);
                let decided = tokio::select! {
                    biased;
                    () = done.closed() => None,
                    decided = work => Some(decided),
                };
                // The send fails only if another decision came first or the request has ended.
                decided.map(|decided| done.send(decided))
            };
            _ = match runtime {
                Some(runtime) => runtime.block_on(work),
                None => session.block_on(work),
            };
        });
        match thread {
            Ok(_) => Some(decision),
            Err(error) => {
                tracing::warn!(%error, "cannot create the thread that asks for a decision");
                None
            }
        }
    }

    /// Writes the decision to the journal. If that fails, the decision becomes a no.
    async fn journal(&self, id: uuid::Uuid, decision: Decision, by_rule: bool) -> ApprovalAnswer {
        let (approved, by, reason) = match &decision {
            Decision::Approve { by, reason } => (true, by, reason),
            Decision::Reject { by, reason } => (false, by, reason),
        };
        let entry = DecisionRecord {
            facts: self.alert.facts(),
            approved,
            by: self.keeper.owner().clone(),
            proof: lockkeeper::admin::Proof::default(),
            on_behalf_of: Some(by.clone()),
            by_rule,
            reason: reason.clone(),
            at: std::time::UNIX_EPOCH,
        };
        match journal::write(&self.keeper, id, &entry).await {
            Ok(()) => ApprovalAnswer { decision, by_rule },
            Err(error) => {
                let reason = format!("the decision could not be recorded: {error}");
                ApprovalAnswer { decision: Decision::Reject { by: "nobody".to_owned(), reason }, by_rule: false }
            }
        }
    }
}

/// The decision of the user's code; never resolves without a hook.
async fn called(hook: Option<oneshot::Receiver<Decision>>) -> Option<Decision> {
    match hook {
        // An error means that the code panicked; then it decides nothing.
        Some(hook) => match hook.await {
            Ok(decision) => Some(decision),
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// The decision of an operator; never resolves if operators are not asked.
async fn spoken(pending: Option<&Pending>) -> Option<ApprovalAnswer> {
    match pending {
        Some(pending) => match pending.decided().await {
            Ok(verdict) => Some(by_operator(verdict)),
            Err(error) => {
                tracing::warn!(%error, "operators cannot be asked");
                std::future::pending().await
            }
        },
        None => std::future::pending().await,
    }
}

fn by_operator(OperatorDecision { approved, by, reason }: OperatorDecision) -> ApprovalAnswer {
    let decision = if approved { Decision::Approve { by, reason } } else { Decision::Reject { by, reason } };
    ApprovalAnswer { decision, by_rule: false }
}

/// Returns whether the pattern matches a user id.
fn matches(pattern: &str, id: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = id.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, id) in [
            ("a", "a"),
            ("*", ""),
            ("*", "abc"),
            ("batch-*", "batch-7"),
            ("*-7", "x-7"),
            ("a*b*c", "a1b2bc"),
            ("a**b", "ab"),
            ("a*bc*d*e", "a1bcd2e"),
        ] {
            assert!(matches(pattern, id), "{pattern} {id}");
        }
        for (pattern, id) in
            [("a", "ab"), ("", "a"), ("batch-*", "batc"), ("a*a", "a"), ("a*b*c", "acb"), ("a*bc*c2", "a1bc2")]
        {
            assert!(!matches(pattern, id), "{pattern} {id}");
        }
    }
}

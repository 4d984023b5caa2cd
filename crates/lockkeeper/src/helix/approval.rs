//! Who decides when a cleanup is not finished in time: rules first, then a person or a program, and no answer is a no.
//!
//! An approval transfers the lock by force, so it is for requests that are not forceful themselves. Every decision is logged with
//! the target `lockkeeper::audit`, and kept for [`HelixLock::decisions`](crate::helix::HelixLock::decisions).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::session::Session;

/// How many decisions a lock object keeps.
const KEPT: usize = 100;

/// A cleanup that is not finished when the wait for it is over: all that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanupAlert {
    /// The lock.
    pub path: String,
    /// Who owns it.
    pub owner: String,
    /// Why, in its words.
    pub owner_message: Option<String>,
    /// Its priority.
    pub owner_priority: i32,
    /// How long it has been cleaning up.
    pub elapsed: Duration,
    /// How long it may.
    pub allotted: Duration,
    /// Who wants the lock.
    pub requestor: String,
    /// Why, in its words.
    pub requestor_message: Option<String>,
    /// Its priority.
    pub requestor_priority: i32,
}

/// Whether the lock is to be taken from an owner that has not cleaned up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Take it, by force.
    Approve {
        /// Who says so.
        by: String,
        /// Why.
        why: String,
    },
    /// The owner keeps it.
    Reject {
        /// Who says so.
        by: String,
        /// Why.
        why: String,
    },
}

/// A decision that was made beforehand: the lock is always taken from these owners by these requestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferRule {
    /// Its name, for the audit.
    pub name: String,
    /// Which owners' user ids; `*` stands for anything.
    pub owner: String,
    /// Which requestors' user ids; `*` stands for anything.
    pub requestor: String,
}

/// A decision, and what it was about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decided {
    /// What was to be decided.
    pub alert: CleanupAlert,
    /// What was decided, by whom and why; for a rule, by its name.
    pub decision: Decision,
    /// Whether a rule decided.
    pub by_rule: bool,
}

/// A decision, and where it came from.
pub(super) struct Answer {
    pub(super) decision: Decision,
    pub(super) by_rule: bool,
}

type Hook = Arc<dyn Fn(CleanupAlert) -> BoxFuture<'static, Decision> + Send + Sync>;

/// How unfinished cleanups of a lock object's owners are decided.
#[derive(Clone, Default)]
pub(super) struct Approval {
    rules: Vec<TransferRule>,
    hook: Option<(Hook, Option<tokio::runtime::Handle>)>,
    /// How long the hook may take.
    timeout: Duration,
    decisions: Arc<Mutex<VecDeque<Decided>>>,
}

impl Approval {
    pub(super) fn add_rule(&mut self, rule: TransferRule) {
        self.rules.push(rule);
    }

    pub(super) fn set_hook(&mut self, hook: Hook, timeout: Duration) {
        self.hook = Some((hook, tokio::runtime::Handle::try_current().ok()));
        self.timeout = timeout;
    }

    /// Whether there is anybody to decide.
    pub(super) fn is_set(&self) -> bool {
        self.hook.is_some() || !self.rules.is_empty()
    }

    /// How long a decision may take.
    pub(super) fn timeout(&self) -> Duration {
        // Also a rule's takes a look and a write.
        self.timeout.max(Duration::from_secs(1))
    }

    pub(super) fn decisions(&self) -> Vec<Decided> {
        self.decisions.lock().expect("held for a copy only").iter().cloned().collect()
    }

    /// Asks for a decision: a rule has made it already, or the user's code makes it, on a thread of its own. The channel closes
    /// where nobody decides.
    pub(super) fn ask(&self, alert: &CleanupAlert, session: &Arc<Session>) -> oneshot::Receiver<Answer> {
        let (answer, decision) = oneshot::channel();
        tracing::warn!(target: "lockkeeper::audit", path = %alert.path, owner = %alert.owner, requestor = %alert.requestor,
            elapsed = ?alert.elapsed, allotted = ?alert.allotted, "a cleanup is not finished");
        let meant =
            |rule: &&TransferRule| matches(&rule.owner, &alert.owner) && matches(&rule.requestor, &alert.requestor);
        if let Some(rule) = self.rules.iter().find(meant) {
            let decision = Decision::Approve { by: rule.name.clone(), why: "a rule says so".to_owned() };
            // The receiver is right here.
            _ = answer.send(Answer { decision, by_rule: true });
        } else if let Some((hook, runtime)) = self.hook.clone() {
            let (session, alert) = (session.clone(), alert.clone());
            let asking = std::thread::Builder::new().name("lockkeeper-approval".to_owned()).spawn(move || {
                let work = hook(alert);
                let decision = match runtime {
                    Some(runtime) => runtime.block_on(work),
                    None => session.block_on(work),
                };
                // Unheard where the request has ended meanwhile.
                _ = answer.send(Answer { decision, by_rule: false });
            });
            if let Err(error) = asking {
                tracing::warn!(%error, "no thread to ask for a decision");
            }
        }
        decision
    }

    /// Keeps a decision and logs it.
    pub(super) fn record(&self, alert: CleanupAlert, Answer { decision, by_rule }: Answer) {
        let (approved, by, why) = match &decision {
            Decision::Approve { by, why } => (true, by, why),
            Decision::Reject { by, why } => (false, by, why),
        };
        tracing::warn!(target: "lockkeeper::audit", path = %alert.path, owner = %alert.owner, requestor = %alert.requestor,
            approved, by, why, by_rule, "a forced transfer was decided");
        let mut decisions = self.decisions.lock().expect("held for a push only");
        if decisions.len() == KEPT {
            decisions.pop_front();
        }
        decisions.push_back(Decided { alert, decision, by_rule });
    }
}

/// Whether a user id is one that the pattern means.
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
    fn a_star_stands_for_anything() {
        for (pattern, id) in [
            ("a", "a"),
            ("*", ""),
            ("*", "abc"),
            ("batch-*", "batch-7"),
            ("*-7", "x-7"),
            ("a*b*c", "a1b2bc"),
            ("a**b", "ab"),
        ] {
            assert!(matches(pattern, id), "{pattern} {id}");
        }
        for (pattern, id) in [("a", "ab"), ("", "a"), ("batch-*", "batc"), ("a*a", "a"), ("a*b*c", "acb")] {
            assert!(!matches(pattern, id), "{pattern} {id}");
        }
    }
}

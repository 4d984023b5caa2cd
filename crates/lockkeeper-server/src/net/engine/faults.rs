//! The faults in force.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use lockkeeper_wire::OpCode;
use tokio::sync::{Notify, watch};

/// What a planned fault does.
#[derive(Debug)]
pub(crate) enum Action {
    LoseRequest,
    LoseReply,
    DropReply,
    DelayReply(Duration),
}

/// A fault that waits for its frame.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) operation: OpCode,
    pub(crate) left: u64,
    pub(crate) action: Action,
    pub(crate) fire: watch::Sender<bool>,
}

/// The faults of the engine.
#[derive(Debug, Default)]
pub(crate) struct FaultState {
    pub(crate) plans: Vec<Plan>,
    pub(crate) frozen: bool,
    pub(crate) thawed: Rc<Notify>,
    pub(crate) slow_fsync: Duration,
    pub(crate) fail_fsync: Option<io::ErrorKind>,
    pub(crate) skipped_ticks: u32,
}

impl FaultState {
    /// Returns the faults that are planned for this frame.
    pub(crate) fn due(&mut self, operation: OpCode) -> Vec<Action> {
        let mut due = Vec::new();
        let mut plans = std::mem::take(&mut self.plans);
        for mut plan in plans.drain(..) {
            plan.left -= u64::from(plan.operation == operation);
            if plan.left == 0 {
                plan.fire.send_replace(true);
                due.push(plan.action);
            } else {
                self.plans.push(plan);
            }
        }
        due
    }

    /// Returns whether nothing is read or sent.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Returns whether this tick must be skipped.
    pub(crate) fn skips_tick(&mut self) -> bool {
        if self.frozen {
            return true;
        }
        let skips = self.skipped_ticks > 0;
        self.skipped_ticks -= u32::from(skips);
        skips
    }
}

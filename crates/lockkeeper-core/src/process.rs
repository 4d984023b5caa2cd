//! Which process created a node, among all that have had its number.

use serde::{Deserialize, Serialize};

/// A process. The name of its machine and its number do not tell it from others: two machines may have one name, a container has
/// processes of its own and often the name of its host, and numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessInstance {
    /// What its number and its start refer to: a hash of the boot of its machine and of its namespaces.
    pub place: u64,
    /// Its number.
    pub pid: u32,
    /// When it started, as the kernel counts.
    pub started: u64,
}

/// What the machine says of a process number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// No process has it, or one that has ended.
    Ended,
    /// A process that started then.
    Runs {
        /// When.
        started: u64,
    },
    /// Nothing, for example because the process belongs to another user.
    Unknown,
}

impl ProcessInstance {
    /// A process of a machine that has booted as `boot`, in these namespaces.
    pub fn new(boot: &str, namespaces: &[&str], pid: u32, started: u64) -> Self {
        // FNV-1a: programs of all versions must agree.
        let bytes = std::iter::once(&boot).chain(namespaces).flat_map(|text| text.bytes().chain([0]));
        let place = bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        ProcessInstance { place, pid, started }
    }

    /// Whether it has ended, as the process `here` knows, to which the machine says `state` of its number. A process of another
    /// place has the number there, so nothing is known of it.
    pub fn has_ended(&self, here: &ProcessInstance, state: ProcessState) -> bool {
        self.place == here.place
            && match state {
                ProcessState::Ended => true,
                ProcessState::Runs { started } => started != self.started,
                ProcessState::Unknown => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_only_if_its_own_place_says_so() {
        let process = |boot, namespaces: &[&str]| ProcessInstance::new(boot, namespaces, 7, 100);
        let (one, here) = (process("boot", &["pid:[1]", "time:[2]"]), process("boot", &["pid:[1]", "time:[2]"]));
        let ended = |state| one.has_ended(&here, state);
        let runs = |started| ProcessState::Runs { started };
        assert_eq!([ended(ProcessState::Ended), ended(runs(101))], [true, true]);
        assert_eq!([ended(runs(100)), ended(ProcessState::Unknown)], [false, false]);
        let elsewhere = [
            process("other", &["pid:[1]", "time:[2]"]),
            process("boot", &["pid:[3]", "time:[2]"]),
            process("boot", &[]),
        ];
        for other in elsewhere {
            assert!(!one.has_ended(&other, ProcessState::Ended) && !one.has_ended(&other, runs(101)), "{other:?}");
        }
    }
}

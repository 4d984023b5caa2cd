//! Derives the current state of letters from all records. Pure: the same for every sink.

use std::collections::HashMap;

use lockkeeper::admin::Owner;

use super::{Letter, LetterEvent, LetterRecord, Mark};

/// A letter and its fate.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Filed {
    /// The letter.
    pub letter: Letter,
    /// Its fate.
    pub fate: Fate,
    /// How often a replay failed.
    pub failures: u32,
    /// The reason of the last failure.
    pub last_failure: Option<String>,
}

/// What happened to a letter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fate {
    /// Nothing yet.
    Waiting,
    /// A replay has begun, and no record says how it ended: it is under way, or its process died.
    Begun {
        /// Since when, in milliseconds since 1970.
        at_ms: u64,
        /// The process that replays it.
        by: Owner,
    },
    /// It was done.
    Replayed {
        /// When, in milliseconds since 1970.
        at_ms: u64,
        /// The process that did it.
        by: Owner,
    },
    /// It is no longer wanted.
    Dropped {
        /// When, in milliseconds since 1970.
        at_ms: u64,
        /// The process that dropped it.
        by: Owner,
        /// The reason.
        reason: Option<String>,
    },
}

impl Fate {
    /// Returns whether it was replayed or dropped.
    pub fn is_settled(&self) -> bool {
        matches!(self, Fate::Replayed { .. } | Fate::Dropped { .. })
    }

    /// Returns `waiting`, `begun`, `replayed` or `dropped`.
    pub const fn name(&self) -> &'static str {
        match self {
            Fate::Waiting => "waiting",
            Fate::Begun { .. } => "begun",
            Fate::Replayed { .. } => "replayed",
            Fate::Dropped { .. } => "dropped",
        }
    }
}

/// Returns every letter once, in the order of the records, with its fate.
///
/// A letter whose id occurs again is the same letter: its sink may return it twice. Letters of one operation that was given up
/// several times have several ids, and each has a fate of its own. A settled letter stays settled, whatever comes later. A mark
/// without a letter belongs to a letter that was deleted.
pub fn fold(records: impl IntoIterator<Item = LetterRecord>) -> Vec<Filed> {
    let mut filed: Vec<Filed> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for record in records {
        match record {
            LetterRecord::Letter(letter) => {
                if !places.contains_key(&letter.id) {
                    places.insert(letter.id.clone(), filed.len());
                    filed.push(Filed { letter: *letter, fate: Fate::Waiting, failures: 0, last_failure: None });
                }
            }
            LetterRecord::Mark(mark) => {
                if let Some(place) = places.get(&mark.letter) {
                    filed[*place].take(mark);
                }
            }
        }
    }
    filed
}

impl Filed {
    fn take(&mut self, mark: Mark) {
        if self.fate.is_settled() {
            return;
        }
        let Mark { letter: _, operation: _, event, at_ms, by } = mark;
        match event {
            LetterEvent::Begun => self.fate = Fate::Begun { at_ms, by },
            LetterEvent::Replayed => self.fate = Fate::Replayed { at_ms, by },
            LetterEvent::Dropped { reason } => self.fate = Fate::Dropped { at_ms, by, reason },
            LetterEvent::Failed { reason } => {
                self.fate = Fate::Waiting;
                self.failures += 1;
                self.last_failure = Some(reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(operation: &str) -> Letter {
        Letter::new(operation, "P1", "/P1")
    }

    fn kept(letter: &Letter) -> LetterRecord {
        LetterRecord::Letter(Box::new(letter.clone()))
    }

    fn mark(letter: &Letter, event: LetterEvent) -> LetterRecord {
        LetterRecord::Mark(Mark::new(letter, event))
    }

    fn failed() -> LetterEvent {
        LetterEvent::Failed { reason: "taken".to_owned() }
    }

    /// C-47: once, however often its sink returns it.
    #[test]
    fn a_letter_that_comes_twice_is_one_letter() {
        let (a, b) = (letter("a"), letter("b"));
        let filed = fold([kept(&a), kept(&b), mark(&a, LetterEvent::Replayed), kept(&a)]);
        let fates: Vec<_> = filed.iter().map(|filed| (filed.letter.operation.as_str(), filed.fate.name())).collect();
        assert_eq!(fates, [("a", "replayed"), ("b", "waiting")]);
    }

    /// While the first one waits, and after it was replayed; also if a sink returns all letters before all marks.
    #[test]
    fn an_operation_that_is_given_up_again_has_another_letter() {
        let [first, second, third] = [7, 8, 9].map(|payload| {
            let mut letter = letter("a");
            letter.payload = payload.into();
            letter
        });
        let replayed = || mark(&first, LetterEvent::Replayed);
        let in_order = [kept(&first), kept(&second), replayed(), kept(&third)];
        let marks_last = [kept(&first), kept(&second), kept(&third), replayed()];
        for records in [in_order, marks_last] {
            let filed = fold(records);
            let fates: Vec<_> = filed.iter().map(|filed| (filed.letter.payload.as_i64(), filed.fate.name())).collect();
            assert_eq!(fates, [(Some(7), "replayed"), (Some(8), "waiting"), (Some(9), "waiting")]);
        }
    }

    #[test]
    fn a_failed_replay_leaves_the_letter_and_the_reason() {
        let a = letter("a");
        let filed = fold([kept(&a), mark(&a, LetterEvent::Begun), mark(&a, failed()), mark(&a, failed())]);
        assert_eq!((filed.len(), filed[0].fate.name(), filed[0].failures), (1, "waiting", 2));
        assert_eq!(filed[0].last_failure.as_deref(), Some("taken"));
    }

    #[test]
    fn a_settled_letter_stays_settled() {
        let a = letter("a");
        for settled in [LetterEvent::Replayed, LetterEvent::Dropped { reason: None }] {
            let name = if settled == LetterEvent::Replayed { "replayed" } else { "dropped" };
            for later in [LetterEvent::Begun, failed(), LetterEvent::Replayed, LetterEvent::Dropped { reason: None }] {
                let filed = fold([kept(&a), mark(&a, settled.clone()), mark(&a, later)]);
                assert_eq!((filed[0].fate.name(), filed[0].failures), (name, 0));
            }
        }
    }

    #[test]
    fn a_replay_without_an_end_is_shown_as_begun() {
        let a = letter("a");
        let filed = fold([mark(&letter("gone"), LetterEvent::Begun), kept(&a), mark(&a, LetterEvent::Begun)]);
        assert_eq!((filed.len(), filed[0].fate.name()), (1, "begun"));
        assert!(!filed[0].fate.is_settled());
    }
}

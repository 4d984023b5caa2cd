//! What stands, by all that was recorded. Pure: the same whatever sink it comes from.

use std::collections::HashMap;

use lockkeeper_core::Owner;

use super::{Event, Letter, Mark, Record};

/// A letter and what became of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Filed {
    /// The letter.
    pub letter: Letter,
    /// What became of it.
    pub fate: Fate,
    /// How often it was tried again in vain.
    pub failures: u32,
    /// Why, the last time.
    pub last_failure: Option<String>,
}

/// What became of a letter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fate {
    /// Nothing yet.
    Waiting,
    /// It was begun, and nobody has said how that ended: it is under way, or whoever did it died.
    Begun {
        /// Since when, in milliseconds since 1970.
        at_ms: u64,
        /// Who does it, or did.
        by: Owner,
    },
    /// It was done.
    Replayed {
        /// When, in milliseconds since 1970.
        at_ms: u64,
        /// By whom.
        by: Owner,
    },
    /// Nobody wants it any more.
    Dropped {
        /// When, in milliseconds since 1970.
        at_ms: u64,
        /// Who says so.
        by: Owner,
        /// Why.
        why: Option<String>,
    },
}

impl Fate {
    /// Whether nothing is to be done about it any more.
    pub fn is_settled(&self) -> bool {
        matches!(self, Fate::Replayed { .. } | Fate::Dropped { .. })
    }

    /// `waiting`, `begun`, `replayed` or `dropped`.
    pub const fn name(&self) -> &'static str {
        match self {
            Fate::Waiting => "waiting",
            Fate::Begun { .. } => "begun",
            Fate::Replayed { .. } => "replayed",
            Fate::Dropped { .. } => "dropped",
        }
    }
}

/// Every letter once, in the order in which they came, with what became of it.
///
/// A letter that comes again is the same letter: its sink may give it twice. What is settled stays settled, whatever comes
/// later, and a mark without a letter is one of a letter that is gone.
pub fn fold(records: impl IntoIterator<Item = Record>) -> Vec<Filed> {
    let mut filed: Vec<Filed> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for record in records {
        match record {
            Record::Letter(letter) => {
                if !places.contains_key(&letter.operation) {
                    places.insert(letter.operation.clone(), filed.len());
                    filed.push(Filed { letter: *letter, fate: Fate::Waiting, failures: 0, last_failure: None });
                }
            }
            Record::Mark(mark) => {
                if let Some(place) = places.get(&mark.operation) {
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
        let Mark { operation: _, event, at_ms, by } = mark;
        match event {
            Event::Begun => self.fate = Fate::Begun { at_ms, by },
            Event::Replayed => self.fate = Fate::Replayed { at_ms, by },
            Event::Dropped { why } => self.fate = Fate::Dropped { at_ms, by, why },
            Event::Failed { why } => {
                self.fate = Fate::Waiting;
                self.failures += 1;
                self.last_failure = Some(why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(operation: &str) -> Record {
        Record::Letter(Box::new(Letter::new(operation, "P1", "/P1")))
    }

    fn mark(operation: &str, event: Event) -> Record {
        Record::Mark(Mark::new(operation, event))
    }

    fn failed() -> Event {
        Event::Failed { why: "taken".to_owned() }
    }

    /// C-47: once, however often its sink tells of it.
    #[test]
    fn a_letter_that_comes_twice_is_one_letter() {
        let filed = fold([letter("a"), letter("b"), mark("a", Event::Replayed), letter("a")]);
        let told: Vec<_> = filed.iter().map(|filed| (filed.letter.operation.as_str(), filed.fate.name())).collect();
        assert_eq!(told, [("a", "replayed"), ("b", "waiting")]);
    }

    #[test]
    fn a_replay_that_fails_leaves_the_letter_and_a_word_about_it() {
        let filed = fold([letter("a"), mark("a", Event::Begun), mark("a", failed()), mark("a", failed())]);
        assert_eq!((filed.len(), filed[0].fate.name(), filed[0].failures), (1, "waiting", 2));
        assert_eq!(filed[0].last_failure.as_deref(), Some("taken"));
    }

    #[test]
    fn what_is_settled_stays_settled() {
        for settled in [Event::Replayed, Event::Dropped { why: None }] {
            let name = if settled == Event::Replayed { "replayed" } else { "dropped" };
            for later in [Event::Begun, failed(), Event::Replayed, Event::Dropped { why: None }] {
                let filed = fold([letter("a"), mark("a", settled.clone()), mark("a", later)]);
                assert_eq!((filed[0].fate.name(), filed[0].failures), (name, 0));
            }
        }
    }

    #[test]
    fn a_replay_whose_end_nobody_told_is_known_as_such() {
        let filed = fold([mark("gone", Event::Begun), letter("a"), mark("a", Event::Begun)]);
        assert_eq!((filed.len(), filed[0].fate.name()), (1, "begun"));
        assert!(!filed[0].fate.is_settled());
    }
}

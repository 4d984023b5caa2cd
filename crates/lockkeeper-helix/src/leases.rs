//! The last hold of each leased lock of one `Lockkeeper`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use lockkeeper::Loss;
use lockkeeper::hold::Hold;

/// The last hold of each leased lock, by path and owner. All lock objects of a context share it.
#[derive(Default)]
pub(super) struct Leases(Mutex<Holds>);

type Holds = HashMap<(String, String), Weak<Hold>>;

impl Leases {
    /// Adds a hold. The previous hold of the same owner is superseded.
    pub(super) fn add(&self, owner: &str, hold: &Arc<Hold>) {
        let key = (hold.path.clone(), owner.to_owned());
        let mut holds = self.0.lock().expect("held for a change only");
        holds.retain(|_, hold| hold.strong_count() > 0);
        let before = holds.insert(key, Arc::downgrade(hold));
        drop(holds);
        lose(before);
    }

    /// The hold of this owner is superseded, and there is no other.
    pub(super) fn supersede(&self, owner: &str, path: &str) {
        let before = self.0.lock().expect("held for a change only").remove(&(path.to_owned(), owner.to_owned()));
        lose(before);
    }
}

fn lose(before: Option<Weak<Hold>>) {
    if let Some(before) = before.and_then(|before| before.upgrade()) {
        before.lose(Loss::Superseded);
    }
}

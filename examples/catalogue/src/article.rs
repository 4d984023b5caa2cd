//! What the locks are about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An article, with the trail of all that changed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Article {
    /// Its identity, which is the lock's too.
    pub id: String,
    /// What it says.
    pub fields: BTreeMap<String, String>,
    /// Every change so far, the oldest first.
    pub trail: Vec<Step>,
}

/// One change that got through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Which operation it was. One that is tried again finds out by this that it was done.
    pub operation: String,
    /// Under which hold: never smaller than the one before.
    pub token: i64,
    /// Whose.
    pub by: String,
}

/// A change somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its identity, over all attempts.
    pub operation: String,
    /// Which field.
    pub field: String,
    /// What it shall say.
    pub value: String,
}

impl Change {
    /// One more.
    pub fn new(field: &str, value: &str) -> Self {
        let operation = uuid::Uuid::new_v4().simple().to_string();
        Change { operation, field: field.to_owned(), value: value.to_owned() }
    }
}

impl Article {
    /// One that nobody has written yet.
    pub fn blank(id: &str) -> Self {
        Article { id: id.to_owned(), ..Article::default() }
    }

    /// How often it was changed.
    pub fn revision(&self) -> usize {
        self.trail.len()
    }

    /// Whether this change is in it.
    pub fn has(&self, change: &Change) -> bool {
        self.trail.iter().any(|step| step.operation == change.operation)
    }

    /// The article after the change, made under this token.
    pub fn changed(mut self, change: &Change, token: i64, by: &str) -> Self {
        self.fields.insert(change.field.clone(), change.value.clone());
        self.trail.push(Step { operation: change.operation.clone(), token, by: by.to_owned() });
        self
    }
}

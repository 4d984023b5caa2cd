//! The articles that the locks protect.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An article, with the list of all its changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Article {
    /// Its id, which is also the name of its lock.
    pub id: String,
    /// Its text, by field.
    pub fields: BTreeMap<String, String>,
    /// Every change so far, the oldest first.
    pub trail: Vec<Step>,
}

/// One saved change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The operation's id. A repeated attempt finds by this id that its change is already saved.
    pub operation: String,
    /// The token of the hold: never smaller than the one before.
    pub token: i64,
    /// The client's name.
    pub by: String,
}

/// A change that a client wants to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its id, the same in all attempts.
    pub operation: String,
    /// The field to change.
    pub field: String,
    /// The new text.
    pub value: String,
}

impl Change {
    /// Makes a change with a new id.
    pub fn new(field: &str, value: &str) -> Self {
        let operation = uuid::Uuid::new_v4().simple().to_string();
        Change { operation, field: field.to_owned(), value: value.to_owned() }
    }
}

impl Article {
    /// Returns an article that was never written.
    pub fn blank(id: &str) -> Self {
        Article { id: id.to_owned(), ..Article::default() }
    }

    /// Returns the number of changes.
    pub fn revision(&self) -> usize {
        self.trail.len()
    }

    /// Returns whether the article contains this change.
    pub fn has(&self, change: &Change) -> bool {
        self.trail.iter().any(|step| step.operation == change.operation)
    }

    /// Returns the article after the change, made under this token.
    pub fn changed(mut self, change: &Change, token: i64, by: &str) -> Self {
        self.fields.insert(change.field.clone(), change.value.clone());
        self.trail.push(Step { operation: change.operation.clone(), token, by: by.to_owned() });
        self
    }
}

//! Errors of kinds of lock that have error types of their own.

use std::fmt;
use std::sync::Arc;

use super::ErrorKind;

/// The error of a kind of lock that has error types of its own, such as a leased lock. Crates that build such a kind make their errors
/// part of [`Error`](super::Error) with it.
#[derive(Clone, Debug)]
pub struct ProductError {
    error: Arc<dyn std::error::Error + Send + Sync>,
    kind: ErrorKind,
    hint: Option<String>,
    holder: Option<String>,
}

impl ProductError {
    /// Wraps an error. `kind` is what a caller does about it; `hint` suggests that in one line.
    pub fn new(kind: ErrorKind, hint: Option<String>, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        ProductError { error: Arc::new(error), kind, hint, holder: None }
    }

    /// Names the holder of the lock, if the product knows it.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<String>) -> Self {
        self.holder = holder;
        self
    }

    /// Returns the product's own error if it is of this type.
    pub fn get<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }

    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns a one-line suggestion of what to do, if there is one.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    /// Returns the holder of the lock, if the product knows it.
    pub fn holder(&self) -> Option<String> {
        self.holder.clone()
    }
}

impl fmt::Display for ProductError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ProductError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

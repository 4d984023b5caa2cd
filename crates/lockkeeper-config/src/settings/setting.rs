//! A value with its origin.

use super::keys::Key;
use crate::settings::error::Origin;

/// A value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// The origin.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// Returns whether it was set, so that it is not the default.
    pub fn is_given(&self) -> bool {
        self.origin != Origin::Default
    }
}

/// One setting for display.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingEntry {
    /// The setting.
    pub key: Key,
    /// Its value as Lockkeeper's own files write it; `None` if it is not set and has no default.
    pub value: Option<String>,
    /// The origin.
    pub origin: Origin,
}

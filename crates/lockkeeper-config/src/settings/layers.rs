//! The values of each layer, before they are interpreted.

use std::path::Path;

use super::keys::Key;
use super::setting::{Setting, SettingEntry};
use super::types::RealmSetting;
use crate::settings::error::{Fault, Origin};
use lockkeeper_helix::TransferRule;

/// How a time is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// As a number of milliseconds.
    Millis,
    /// With its unit: `500ms`, `30s`.
    Written,
}

/// One value as written.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) key: Key,
    /// The key as written there.
    pub(super) written: String,
    pub(super) text: String,
    pub(super) unit: Unit,
    pub(super) origin: Origin,
}

impl Given {
    /// A mistake in this value.
    pub(super) fn fault(&self, problem: impl Into<String>) -> Fault {
        Fault::new(self.origin.clone(), &self.written, problem)
    }
}

/// All values so far, later layers after earlier ones, and the mistakes.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) given: Vec<Given>,
    /// Realms; later ones override earlier ones of the same prefix.
    pub(super) realms: Vec<Setting<RealmSetting>>,
    pub(super) transfers: Vec<Setting<TransferRule>>,
    pub(super) faults: Vec<Fault>,
    /// The values that were read, for display.
    pub(super) entries: Vec<SettingEntry>,
    /// Probable mistakes, which are errors only in strict mode.
    pub(super) warnings: Vec<Fault>,
}

impl Layers {
    /// Reads a file, or records why it cannot be read; `None` if it is missing and may be.
    pub(super) fn file(&mut self, path: &Path, may_miss: bool) -> Option<Vec<u8>> {
        match std::fs::read(path) {
            Ok(bytes) => Some(bytes),
            Err(error) if may_miss && error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                let origin = Origin::File { path: path.to_owned(), line: None };
                let fault = Fault::new(origin, "", format!("cannot be read: {error}"));
                self.faults.push(match error.kind() {
                    std::io::ErrorKind::PermissionDenied if may_miss => {
                        fault.remedy("correct HOME or XDG_CONFIG_HOME if they are another user's, or give this user the right to read it")
                    }
                    _ => fault,
                });
                None
            }
        }
    }
}

/// A place in a file.
pub(super) fn at(path: &Path, line: usize) -> Origin {
    Origin::File { path: path.to_owned(), line: Some(line) }
}

//! Reads values of any setting from the layers.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::Class;
use lockkeeper::acl::LockAcl;
use lockkeeper_jobs::Rule;
use lockkeeper_session::text::typed;

use super::keys::Key;
use super::layers::{Given, Layers, Unit};
use super::setting::{Setting, SettingEntry};
use crate::settings::error::Origin;

/// The problem of an invalid value, and the remedy.
pub(super) type Wrong = (String, String);

/// The last value of a key; every value that cannot be read is a mistake.
pub(super) fn take<T: Shown>(
    layers: &mut Layers,
    key: Key,
    default: T,
    read: impl Fn(&Given) -> Result<T, Wrong>,
) -> Setting<T> {
    let mut setting = Setting { value: default, origin: Origin::Default };
    let Layers { given, faults, entries, .. } = layers;
    for given in given.iter().filter(|given| given.key == key) {
        match read(given) {
            Ok(value) => setting = Setting { value, origin: given.origin.clone() },
            Err((problem, remedy)) => faults.push(given.fault(problem).remedy(remedy)),
        }
    }
    entries.push(SettingEntry { key, value: setting.value.shown(), origin: setting.origin.clone() });
    setting
}

/// A value as Lockkeeper's own files write it; `None` if it is not set.
pub(super) trait Shown {
    fn shown(&self) -> Option<String>;
}

/// Shows values by their `Display`.
macro_rules! shown {
    ($($value:ty),+) => {
        $(impl $crate::settings::read::Shown for $value {
            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }
        })+
    };
}

pub(super) use shown;

shown!(String, bool, u32, usize, Class, LockAcl, Rule);

impl Shown for Duration {
    fn shown(&self) -> Option<String> {
        Some(typed(*self))
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> Option<String> {
        self.as_ref()?.shown()
    }
}

/// Reads a time within these bounds.
pub(super) fn duration(given: &Given, (least, most): (Duration, Duration)) -> Result<Duration, Wrong> {
    let text = &given.text;
    let (read, example) = match given.unit {
        Unit::Millis => (
            text.parse().map(Duration::from_millis).map_err(|_| "is not a number".to_owned()),
            "milliseconds, as in 5000",
        ),
        Unit::Written => (humantime::parse_duration(text).map_err(|error| error.to_string()), "500ms, 30s, 5m or 3h"),
    };
    let duration = read.map_err(|problem| match problem.as_str() {
        "is not a number" => (format!("{text:?} is not a number"), format!("write {example}")),
        problem => (format!("{text:?} is not a time: {problem}"), format!("write {example}")),
    })?;
    if (least..=most).contains(&duration) {
        return Ok(duration);
    }
    let [least, most] = [least, most].map(|bound| match given.unit {
        Unit::Millis => bound.as_millis().to_string(),
        Unit::Written => typed(bound),
    });
    Err((format!("{text} is out of range"), format!("choose one from {least} to {most}")))
}

pub(super) fn absolute(given: &Given) -> Result<PathBuf, Wrong> {
    let path = PathBuf::from(&given.text);
    // A file is read in many working directories; a flag is typed in one.
    if path.as_os_str().is_empty() || path.is_relative() && matches!(given.origin, Origin::File { .. }) {
        return Err((format!("{:?} is not an absolute path", given.text), "write the whole path".to_owned()));
    }
    Ok(path)
}

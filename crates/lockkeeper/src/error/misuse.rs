//! Calls about locks that cannot be carried out as they are.

use lockkeeper_core::MAX_MESSAGE_BYTES;

use super::Misuse;

/// The longest reason of an intervention.
const MAX_REASON_BYTES: usize = 1024;

/// Creates the error of one call that requests the lock at `path` twice.
pub fn twice(path: &str) -> Misuse {
    let problem = format!("{path} is requested twice in one call, which would wait for itself; request each lock once");
    Misuse::new("locks", problem)
}

/// A call for several locks has requests of handles that name their servers or the chroot differently.
pub fn of_two_handles(path: &str, (one, other): (&str, &str)) -> Misuse {
    let problem = format!(
        "{path} is requested at {other}, another lock of the same call at {one}: their paths have no common order"
    );
    Misuse::new("locks", problem).remedy("make all requests of one call from handles with the same connect string")
}

/// A call for several locks has no requests.
pub fn no_locks() -> Misuse {
    Misuse::new("locks", "multi_lock has no requests; give it at least one")
}

/// Creates the error of an intervention without a reason.
pub fn no_reason(path: &str) -> Misuse {
    let problem = format!("an intervention on {path} needs a reason: it is recorded for those who ask later");
    Misuse::new("reason", problem)
}

/// Fails if the message of a request is longer than 4096 bytes.
pub fn check_message(path: &str, message: Option<&str>) -> Result<(), Misuse> {
    Misuse::check_length("message", path, message, MAX_MESSAGE_BYTES)
}

/// The reason of an intervention as it is recorded: not empty, at most 1024 bytes.
///
/// # Errors
///
/// It is empty or too long.
pub fn check_reason(path: &str, reason: &str) -> Result<String, Misuse> {
    let reason = reason.trim();
    if reason.is_empty() {
        return Err(no_reason(path));
    }
    Misuse::check_length("reason", path, Some(reason), MAX_REASON_BYTES)?;
    Ok(reason.to_owned())
}

/// Lets `?` turn an invalid path or class into an error of this type.
macro_rules! from_misuse {
    ($error:ty) => {
        $crate::error::misuse::from_misuse!($error: lockkeeper_core::PathError, lockkeeper_core::ClassError);
    };
    ($error:ty: $($source:ty),+) => {
        $(impl From<$source> for $error {
            fn from(error: $source) -> Self {
                <$error>::Misuse(error.into())
            }
        })+
    };
}
pub(crate) use from_misuse;

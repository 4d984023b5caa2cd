//! Calls that cannot be carried out as they are.

use lockkeeper_core::{ClassError, MAX_MESSAGE_BYTES, PathError, excerpt};

use super::kind::ErrorKind;

/// The longest reason of an intervention.
const MAX_REASON_BYTES: usize = 1024;

/// A call that cannot be carried out as it is: an argument or its moment is wrong. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
#[non_exhaustive]
pub struct Misuse {
    /// What is wrong: for example `path`, `class`, `permits`, `servers`, `tls`, `lock delay`, `terms`, `state`.
    pub argument: &'static str,
    /// The problem, with the value.
    pub problem: String,
    /// What to do instead. It names calls of this library.
    pub remedy: Option<String>,
}

impl Misuse {
    /// Creates an error about this argument.
    pub fn new(argument: &'static str, problem: impl Into<String>) -> Self {
        Misuse { argument, problem: problem.into(), remedy: None }
    }

    /// Adds what to do instead. It names calls of a library.
    #[must_use = "returns the error with the remedy"]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The connect string is not valid.
    pub(crate) fn servers(servers: &str, problem: &str) -> Self {
        Misuse::new("servers", format!("servers {servers:?}: {problem}"))
    }

    /// A certificate or a key for TLS cannot be used.
    pub(crate) fn tls(problem: &str) -> Self {
        Misuse::new("tls", format!("TLS: {problem}"))
    }

    /// Creates the error of one call that requests the lock at `path` twice.
    pub fn twice(path: &str) -> Self {
        let problem =
            format!("{path} is requested twice in one call, which would wait for itself; request each lock once");
        Misuse::new("locks", problem)
    }

    /// A call for several locks has requests of handles that name their servers or the chroot differently.
    pub(crate) fn of_two_handles(path: &str, (one, other): (&str, &str)) -> Self {
        let problem = format!(
            "{path} is requested at {other}, another lock of the same call at {one}: their paths have no common order"
        );
        Misuse::new("locks", problem).remedy("make all requests of one call from handles with the same connect string")
    }

    /// A call for several locks has no requests.
    pub(crate) fn no_locks() -> Self {
        Misuse::new("locks", "multi_lock has no requests; give it at least one")
    }

    /// Creates the error of an intervention without a reason.
    pub fn no_reason(path: &str) -> Self {
        let problem = format!("an intervention on {path} needs a reason: it is recorded for those who ask later");
        Misuse::new("reason", problem)
    }

    /// Creates the error of a call of an object that was closed.
    pub fn closed(path: &str) -> Self {
        Misuse::new("state", format!("this lock object for {path} is closed"))
    }

    /// Fails if the text is longer than `max` bytes.
    pub fn check_length(what: &'static str, path: &str, text: Option<&str>, max: usize) -> Result<(), Misuse> {
        match text.filter(|text| text.len() > max) {
            Some(text) => {
                let (bytes, beginning) = (text.len(), excerpt(text));
                let problem = format!(
                    "the {what} for {path} has {bytes} bytes; the limit is {max}; shorten it; it begins {beginning:?}"
                );
                Err(Misuse::new(what, problem))
            }
            None => Ok(()),
        }
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
            return Err(Misuse::no_reason(path));
        }
        Misuse::check_length("reason", path, Some(reason), MAX_REASON_BYTES)?;
        Ok(reason.to_owned())
    }

    /// Returns [`ErrorKind::Misuse`].
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Misuse
    }

    /// Returns a one-line suggestion of what to do, if there is one.
    pub fn hint(&self) -> Option<String> {
        self.remedy.clone()
    }
}

impl From<PathError> for Misuse {
    fn from(error: PathError) -> Self {
        Misuse::new("path", error.to_string())
    }
}

impl From<ClassError> for Misuse {
    fn from(error: ClassError) -> Self {
        Misuse::new("class", error.to_string())
    }
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
pub(super) use from_misuse;

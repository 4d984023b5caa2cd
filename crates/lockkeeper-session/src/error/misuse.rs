//! Calls that cannot be carried out as they are.

use lockkeeper_core::{ClassError, PathError, excerpt};

use super::kind::ErrorKind;

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

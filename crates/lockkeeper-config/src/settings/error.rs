//! The origin of a setting, and mistakes in settings.

use std::fmt;
use std::path::PathBuf;

use lockkeeper::Error;
use lockkeeper::error::{ErrorKind, ProductError};

/// The origin of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// It is not set: the default.
    Default,
    /// A file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1; `None` means the file as a whole.
        line: Option<usize>,
    },
    /// An environment variable.
    Variable(String),
    /// The command line, or a program's own code.
    Flag(String),
}

impl Origin {
    /// Returns how strong a choice between two settings is: a flag is stronger than a variable, and that than a file.
    pub fn rank(&self) -> u8 {
        match self {
            Origin::Default | Origin::File { .. } => 0,
            Origin::Variable(_) => 1,
            Origin::Flag(_) => 2,
        }
    }
}

/// `/etc/lockkeeper/config.toml:12`, `LOCKKEEPER_SERVERS`, `--servers`, `default`
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Origin::File { path, line: None } => write!(f, "{}", path.display()),
            Origin::Variable(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// One mistake in the settings: its place, its key, the problem and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The place.
    pub origin: Origin,
    /// The key as written there; empty if the file as a whole cannot be read.
    pub key: String,
    /// The problem, with the value.
    pub problem: String,
    /// What to write instead.
    pub remedy: Option<String>,
}

impl Fault {
    pub(crate) fn new(origin: Origin, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Fault { origin, key: key.into(), problem: problem.into(), remedy: None }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// `/etc/app.properties:4: zookeeper.session.timeout: "5s" is not a number; write milliseconds, as in 5000`
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        // The name of a variable or a flag is its key.
        if !self.key.is_empty() && self.key != self.origin.to_string() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// All mistakes in the settings, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    pub(crate) faults: Vec<Fault>,
}

impl SettingsError {
    /// Returns the mistakes, in the order of the layers.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Returns [`ErrorKind::Misuse`].
    pub const fn kind(&self) -> ErrorKind {
        ErrorKind::Misuse
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if at == 0 { "" } else { " | " })?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

impl From<SettingsError> for Error {
    fn from(error: SettingsError) -> Self {
        Error::Product(ProductError::new(error.kind(), None, error))
    }
}

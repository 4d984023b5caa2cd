//! Where a value was given, and what is wrong with one.

use std::fmt;
use std::path::PathBuf;

/// Where a setting's value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// In a file, at this line.
    File {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1; `None` if it is the file as a whole.
        line: Option<usize>,
    },
    /// By an environment variable.
    Variable(String),
    /// On the command line, or by a program's own code.
    Flag(String),
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

/// One mistake in the settings: where it is, which key it is about, what is wrong and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// Where.
    pub origin: Origin,
    /// The key as it is written there; empty if the file as a whole cannot be read.
    pub key: String,
    /// What is wrong, with the value.
    pub problem: String,
    /// What to write instead.
    pub remedy: Option<String>,
}

impl Fault {
    pub(super) fn new(origin: Origin, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Fault { origin, key: key.into(), problem: problem.into(), remedy: None }
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// `/etc/app.properties:4: zookeeper.session.timeout: "5s" is no number; write milliseconds, as in 5000`
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        // A variable or a flag is its own key.
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

/// Everything that is wrong with the settings, at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    pub(super) faults: Vec<Fault>,
}

impl SettingsError {
    /// The mistakes, in the order of the layers.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
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

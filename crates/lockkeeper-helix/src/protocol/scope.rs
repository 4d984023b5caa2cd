//! Helix's scopes: what a leased lock protects, and its path.

use lockkeeper::LockPath;
use lockkeeper::error::PathError;

/// The part of a Helix cluster that a lock protects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The whole cluster: `/<cluster>/LOCK/CLUSTER/<name>`.
    Cluster(String, String),
    /// One participant: `/<cluster>/LOCK/PARTICIPANT/<participant>`.
    Participant(String, String),
    /// One resource: `/<cluster>/LOCK/RESOURCE/<resource>`.
    Resource(String, String),
}

/// Why a scope is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// The scope needs other keys.
    #[error("a lock's scope {scope} takes two keys, {wanted}, not {given:?}")]
    Keys {
        /// The scope's name.
        scope: String,
        /// The meaning of the keys.
        wanted: &'static str,
        /// The given keys.
        given: Vec<String>,
    },
    /// There is no scope of this name.
    #[error("no lock scope {name:?}; there are CLUSTER, PARTICIPANT and RESOURCE")]
    Unknown {
        /// The value.
        name: String,
    },
    /// The keys do not give a valid path.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl Scope {
    /// Returns the scope of the whole cluster `name`.
    pub fn cluster(name: impl Into<String>) -> Self {
        let name = name.into();
        Scope::Cluster(name.clone(), name)
    }

    /// Returns the scope of a participant.
    pub fn participant(cluster: impl Into<String>, participant: impl Into<String>) -> Self {
        Scope::Participant(cluster.into(), participant.into())
    }

    /// Returns the scope of a resource.
    pub fn resource(cluster: impl Into<String>, resource: impl Into<String>) -> Self {
        Scope::Resource(cluster.into(), resource.into())
    }

    /// Parses Helix's name of a scope and its keys.
    ///
    /// # Errors
    /// [`ScopeError`] if the name is unknown, or if there are not two keys.
    pub fn parse(name: &str, keys: &[&str]) -> Result<Self, ScopeError> {
        let (make, wanted): (fn(String, String) -> Scope, _) = match name {
            "CLUSTER" => (Scope::Cluster, "the cluster twice"),
            "PARTICIPANT" => (Scope::Participant, "cluster and participant"),
            "RESOURCE" => (Scope::Resource, "cluster and resource"),
            _ => return Err(ScopeError::Unknown { name: name.to_owned() }),
        };
        match keys {
            [cluster, part] => Ok(make((*cluster).to_owned(), (*part).to_owned())),
            _ => {
                let given = keys.iter().map(ToString::to_string).collect();
                Err(ScopeError::Keys { scope: name.to_owned(), wanted, given })
            }
        }
    }

    /// Returns the lock's path.
    ///
    /// # Errors
    /// [`ScopeError::Path`] if a key is not a valid node name.
    pub fn path(&self) -> Result<LockPath, ScopeError> {
        let (kind, cluster, part) = match self {
            Scope::Cluster(cluster, part) => ("CLUSTER", cluster, part),
            Scope::Participant(cluster, part) => ("PARTICIPANT", cluster, part),
            Scope::Resource(cluster, part) => ("RESOURCE", cluster, part),
        };
        Ok(LockPath::parse(&format!("/{cluster}/LOCK/{kind}/{part}"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H-11: both ways to name a scope give the same path.
    #[test]
    fn scopes_map_to_helixs_paths() {
        let path = |scope: Scope| scope.path().unwrap().to_string();
        assert_eq!(path(Scope::cluster("c")), "/c/LOCK/CLUSTER/c");
        assert_eq!(path(Scope::participant("c", "p")), "/c/LOCK/PARTICIPANT/p");
        assert_eq!(path(Scope::resource("c", "r")), "/c/LOCK/RESOURCE/r");
        assert_eq!(Scope::parse("CLUSTER", &["c", "c"]), Ok(Scope::cluster("c")));
        assert_eq!(Scope::parse("RESOURCE", &["c", "r"]), Ok(Scope::resource("c", "r")));
    }

    /// H-12: the error names the scope and the keys.
    #[test]
    fn a_scope_takes_exactly_two_keys_and_says_which_were_given() {
        let error = Scope::parse("CLUSTER", &["c"]).unwrap_err().to_string();
        assert!(error.contains("CLUSTER") && error.contains("[\"c\"]"), "{error}");
        assert!(Scope::parse("PARTICIPANT", &["c", "p", "q"]).is_err());
        assert!(Scope::parse("ROOM", &["c", "p"]).is_err());
        assert!(matches!(Scope::resource("c", "a//b").path(), Err(ScopeError::Path(_))));
    }
}

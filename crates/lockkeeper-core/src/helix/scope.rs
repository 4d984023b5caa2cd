//! What a lock is for, as Helix names it, and the path that follows.

use crate::{LockPath, PathError};

/// What of a Helix cluster a lock is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The whole cluster: `/<cluster>/LOCK/CLUSTER/<name>`.
    Cluster(String, String),
    /// One participant: `/<cluster>/LOCK/PARTICIPANT/<participant>`.
    Participant(String, String),
    /// One resource: `/<cluster>/LOCK/RESOURCE/<resource>`.
    Resource(String, String),
}

/// A scope that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// Not the keys that this scope takes.
    #[error("a lock's scope {scope} takes two keys, {wanted}, not {given:?}")]
    Keys {
        /// The scope's name.
        scope: String,
        /// What the keys are.
        wanted: &'static str,
        /// The keys given.
        given: Vec<String>,
    },
    /// No such scope.
    #[error("no lock scope {name:?}; there are CLUSTER, PARTICIPANT and RESOURCE")]
    Unknown {
        /// What was given.
        name: String,
    },
    /// The keys do not make a path.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl Scope {
    /// The whole cluster `name`.
    pub fn cluster(name: impl Into<String>) -> Self {
        let name = name.into();
        Scope::Cluster(name.clone(), name)
    }

    /// A participant of a cluster.
    pub fn participant(cluster: impl Into<String>, participant: impl Into<String>) -> Self {
        Scope::Participant(cluster.into(), participant.into())
    }

    /// A resource of a cluster.
    pub fn resource(cluster: impl Into<String>, resource: impl Into<String>) -> Self {
        Scope::Resource(cluster.into(), resource.into())
    }

    /// A scope by Helix's name for it and its keys.
    ///
    /// # Errors
    /// [`ScopeError`] for an unknown name, or other than two keys.
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

    /// The lock's path.
    ///
    /// # Errors
    /// [`ScopeError::Path`] if a key is no node's name.
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

    /// H-11: whichever way the scope was named.
    #[test]
    fn scopes_map_to_helixs_paths() {
        let path = |scope: Scope| scope.path().unwrap().to_string();
        assert_eq!(path(Scope::cluster("c")), "/c/LOCK/CLUSTER/c");
        assert_eq!(path(Scope::participant("c", "p")), "/c/LOCK/PARTICIPANT/p");
        assert_eq!(path(Scope::resource("c", "r")), "/c/LOCK/RESOURCE/r");
        assert_eq!(Scope::parse("CLUSTER", &["c", "c"]), Ok(Scope::cluster("c")));
        assert_eq!(Scope::parse("RESOURCE", &["c", "r"]), Ok(Scope::resource("c", "r")));
    }

    /// H-12: the scope and the keys are in the error.
    #[test]
    fn a_scope_takes_exactly_two_keys_and_says_which_were_given() {
        let told = Scope::parse("CLUSTER", &["c"]).unwrap_err().to_string();
        assert!(told.contains("CLUSTER") && told.contains("[\"c\"]"), "{told}");
        assert!(Scope::parse("PARTICIPANT", &["c", "p", "q"]).is_err());
        assert!(Scope::parse("ROOM", &["c", "p"]).is_err());
        assert!(matches!(Scope::resource("c", "a//b").path(), Err(ScopeError::Path(_))));
    }
}

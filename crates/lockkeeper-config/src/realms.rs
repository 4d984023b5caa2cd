//! Locks on several ensembles: which ensemble has which paths.
//!
//! A realm is an ensemble and the paths at and below a prefix. A lock belongs to exactly one realm, the one with the
//! longest matching prefix. A path without a realm is an error, because two clients that guess differently would both
//! hold the lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkeeper::LockPath;
use tokio::sync::OnceCell;

use lockkeeper::engine::check_servers;
use lockkeeper::error::{ConnectError, Misuse, SessionError};
use lockkeeper::{Builder, Lockkeeper};

/// A routing of paths to ensembles. Cheap to clone; all clones share one session for each ensemble, which is opened
/// when it is first needed.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lockkeeper::Lockkeeper;
/// use lockkeeper_config::realms::Realms;
///
/// let realms = Realms::new(Lockkeeper::builder(), [("/search", "zk-a1:2181,zk-a2:2181"), ("/billing", "zk-b:2181")])?;
/// let guard = realms.keeper("/billing/invoices").await?.mutex("/billing/invoices").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Realms {
    builder: Builder,
    table: RealmTable,
    /// The handle of each ensemble, by its connect string.
    keepers: Arc<HashMap<String, OnceCell<Lockkeeper>>>,
    closed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Realm {
    prefix: String,
    servers: String,
}

impl Realm {
    fn has(&self, path: &str) -> bool {
        match self.prefix.as_str() {
            "/" => true,
            prefix => path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        }
    }
}

/// All realms, the longest prefix first.
#[derive(Clone, Debug)]
struct RealmTable(Arc<[Realm]>);

impl RealmTable {
    fn find(&self, path: &str) -> Option<&Realm> {
        self.0.iter().find(|realm| realm.has(path))
    }

    /// Returns the realm of the path.
    fn route(&self, path: &str) -> Result<&Realm, Misuse> {
        let path = LockPath::parse_node(path)?;
        self.find(path.as_str()).ok_or_else(|| {
            let realms: Vec<_> = self.0.iter().map(|realm| realm.prefix.as_str()).collect();
            Misuse::new("path", format!("no realm covers {path}; the realms are {}", realms.join(", ")))
                .remedy("add a realm for the path; the prefix / covers all paths")
        })
    }

    /// Fails if the path is in a realm of other servers than these, or in none.
    fn check(&self, path: &str, servers: &str) -> Result<(), Misuse> {
        let Realm { prefix, servers: theirs } = self.route(path)?;
        if theirs == servers {
            return Ok(());
        }
        let ours: Vec<_> = self.0.iter().filter(|realm| realm.servers == servers).map(|realm| &*realm.prefix).collect();
        let problem = format!(
            "{path} is in the realm {prefix} ({theirs}), and this handle is that of {} ({servers})",
            ours.join(", ")
        );
        Err(Misuse::new("path", problem).remedy("take the handle of the path from Realms::keeper"))
    }
}

impl Realms {
    /// Creates a routing from prefixes to connect strings. A prefix is a path such as `/search`, or `/` for all other
    /// paths. Paths stay as they are: the prefix is not removed. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if a prefix is not a path or is given twice, or if there is no realm at all. Also if a connect
    /// string is not valid.
    pub fn new<P: Into<String>, S: Into<String>>(
        builder: Builder,
        realms: impl IntoIterator<Item = (P, S)>,
    ) -> Result<Realms, Misuse> {
        let mut table: Vec<Realm> = Vec::new();
        for (prefix, servers) in realms {
            let (prefix, servers) = (prefix.into(), servers.into());
            check_prefix(&prefix)?;
            check_servers(&servers)?;
            if table.iter().any(|realm| realm.prefix == prefix) {
                return Err(invalid(&prefix, "is given twice"));
            }
            table.push(Realm { prefix, servers });
        }
        if table.is_empty() {
            return Err(Misuse::new("realm", "no realm is configured"));
        }
        table.sort_by_key(|realm| std::cmp::Reverse(realm.prefix.len()));
        let keepers = table.iter().map(|realm| (realm.servers.clone(), OnceCell::new())).collect();
        Ok(Realms { builder, table: RealmTable(table.into()), keepers: Arc::new(keepers), closed: Arc::default() })
    }

    /// Returns the connect string of the realm that has this path. No round trip.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if no realm has the path, or if it is not a path.
    pub fn servers(&self, path: impl AsRef<str>) -> Result<&str, Misuse> {
        let path = path.as_ref();
        Ok(&self.table.route(path)?.servers)
    }

    /// Returns the handle of the realm that has this path. The first call connects it. The handle refuses to acquire a lock at a path of
    /// another realm or of none, with the variant `Misuse` of the call's error. So do its admin calls.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind; the next call connects.
    ///
    /// # Errors
    ///
    /// As [`Realms::servers`] and [`Lockkeeper::connect`]; [`SessionError::Closed`] after [`Realms::close`].
    pub async fn keeper(&self, path: impl AsRef<str>) -> Result<Lockkeeper, ConnectError> {
        let path = path.as_ref();
        let servers = &self.table.route(path)?.servers;
        if self.closed.load(Ordering::Acquire) {
            return Err(SessionError::Closed.into());
        }
        let connect = || {
            let (table, ours) = (self.table.clone(), servers.clone());
            let check = move |path: &str| table.check(path, &ours);
            self.builder.clone().path_check(check).connect(servers)
        };
        let keeper = self.keepers[servers].get_or_try_init(connect).await?.clone();
        if self.closed.load(Ordering::Acquire) {
            // The routing was closed meanwhile, and did not see this one.
            keeper.close().await;
            return Err(SessionError::Closed.into());
        }
        Ok(keeper)
    }

    /// Closes the connected handles, as [`Lockkeeper::close`] does. The routing and its clones connect no others.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest open; dropping the routing closes it.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for keeper in self.keepers.values().filter_map(OnceCell::get) {
            keeper.close().await;
        }
    }
}

/// A configured realm is not valid.
fn invalid(prefix: &str, problem: &str) -> Misuse {
    Misuse::new("realm", format!("realm {prefix:?}: {problem}"))
}

/// Fails if this cannot be the prefix of a realm.
pub(crate) fn check_prefix(prefix: &str) -> Result<(), Misuse> {
    match prefix {
        "/" => Ok(()),
        prefix => match LockPath::parse_node(prefix) {
            Ok(_) => Ok(()),
            Err(error) => Err(invalid(prefix, &error.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn realms(given: &[(&str, &str)]) -> Result<Realms, Misuse> {
        Realms::new(Lockkeeper::builder(), given.iter().copied())
    }

    /// H-70: one realm a path, the longest prefix, whole components only.
    #[test]
    fn a_path_is_in_the_realm_of_its_longest_prefix() {
        let routing = realms(&[("/a", "one:1"), ("/a/b", "two:2"), ("/c", "three:3")]).unwrap();
        for (path, servers) in
            [("/a", "one:1"), ("/a/x", "one:1"), ("/a/b", "two:2"), ("/a/b/c", "two:2"), ("/c/d", "three:3")]
        {
            assert_eq!(routing.servers(path).unwrap(), servers, "{path}");
        }
        for path in ["/ab", "/d", "/cd/e"] {
            let error = routing.servers(path).unwrap_err();
            assert!(error.remedy.is_some(), "{path}: {error}");
            assert!(error.to_string().contains("/a/b, /a, /c") && error.to_string().contains(path), "{error}");
        }
        assert_eq!(realms(&[("/", "one:1"), ("/a", "two:2")]).unwrap().servers("/b").unwrap(), "one:1");
    }

    #[test]
    fn an_invalid_routing_is_refused_by_name() {
        for (given, named) in [
            (&[("a", "one:1")][..], "\"a\""),
            (&[("/a/", "one:1")], "\"/a/\""),
            (&[("/a", "one:1"), ("/a", "two:2")], "\"/a\""),
            (&[("/a", "one:x")], "one:x"),
            (&[], "no realm"),
        ] {
            let error = realms(given).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}

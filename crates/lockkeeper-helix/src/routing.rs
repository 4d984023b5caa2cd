//! Helix's routing data: which realm has which paths, as its metadata store directory service keeps it.
//!
//! Below [`ROUTING_DATA`], each realm has a node. The name of the node is the connect string of the realm, and its record lists the
//! realm's sharding keys. A sharding key is a path: all paths at and below it are in the realm. Helix's own tools write these nodes.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::FutureExt;
use futures_util::future::select_all;
use futures_util::stream::{self, StreamExt};
use lockkeeper_session::ensemble::{Ensemble, OpError, READS_IN_FLIGHT, Watcher, check_servers, linearizable};

use lockkeeper::error::{ErrorKind, ProductError, SessionError};
use lockkeeper::{Error, LockPath, Lockkeeper};
use lockkeeper_session::text::{excerpt, plain};

/// The node that has a child for each realm.
pub const ROUTING_DATA: &str = "/METADATA_STORE_ROUTING_DATA";

/// The list in the record of a realm that contains its sharding keys.
const SHARDING_KEYS: &str = "ZK_PATH_SHARDING_KEYS";

/// The first bytes of data that Helix has compressed.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Why there is no routing data that can be used. An [`Error`] that was converted from it is `Session` or `Product`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// No session, no reply, or a refusal.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// [`ROUTING_DATA`] does not exist.
    #[error("there is no routing data: {ROUTING_DATA} does not exist")]
    Missing,
    /// No realm has a sharding key.
    #[error("the routing data names no sharding key: no path is in a realm")]
    Empty,
    /// The node of a realm holds something other than a record of Helix.
    #[error("the routing data of the realm {} cannot be read: {}", plain(realm), plain(problem))]
    NotARecord {
        /// The realm.
        realm: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The name of a realm is no connect string.
    #[error("the realm {} has no usable address: {}", plain(realm), plain(problem))]
    Address {
        /// The realm.
        realm: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A sharding key is not a path.
    #[error("the sharding key {} of the realm {} is not a path: {}", plain(&excerpt(key)), plain(realm), plain(problem))]
    Key {
        /// The realm.
        realm: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Two realms have the same sharding key.
    #[error("two realms have the sharding key {}: {} and {}", plain(key), plain(realm), plain(other))]
    TwoRealms {
        /// The key.
        key: String,
        /// One of the realms.
        realm: String,
        /// The other one.
        other: String,
    },
    /// A sharding key is below another one. Helix allows that in no realm.
    #[error(
        "the sharding key {} of the realm {} is below the sharding key {} of the realm {}",
        plain(key),
        plain(realm),
        plain(above),
        plain(other)
    )]
    Overlap {
        /// The key.
        key: String,
        /// Its realm.
        realm: String,
        /// The key above.
        above: String,
        /// The realm of the key above.
        other: String,
    },
}

impl RoutingError {
    /// Returns what a caller does about it.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            RoutingError::Session(error) => error.kind(),
            RoutingError::Missing => ErrorKind::NotFound,
            RoutingError::Empty
            | RoutingError::NotARecord { .. }
            | RoutingError::Address { .. }
            | RoutingError::Key { .. }
            | RoutingError::TwoRealms { .. }
            | RoutingError::Overlap { .. } => ErrorKind::Mismatch,
        }
    }

    /// Returns a one-line suggestion of what to do, if there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            RoutingError::Session(error) => return error.hint(),
            RoutingError::Missing => {
                "name the servers of Helix's metadata store directory, which have the routing data"
            }
            RoutingError::Empty => "add a sharding key to a realm with Helix's directory service",
            RoutingError::NotARecord { .. } | RoutingError::Address { .. } | RoutingError::Key { .. } => {
                "correct the realm with Helix's directory service"
            }
            RoutingError::TwoRealms { .. } | RoutingError::Overlap { .. } => {
                "leave the sharding key in one realm only, with Helix's directory service"
            }
        };
        Some(hint.to_owned())
    }
}

impl From<RoutingError> for Error {
    fn from(error: RoutingError) -> Error {
        match error {
            RoutingError::Session(error) => Error::Session(error),
            error => Error::Product(ProductError::new(error.kind(), error.hint(), error)),
        }
    }
}

/// The lists of what Helix calls ZNRecord.
type Lists = Option<BTreeMap<String, Option<Vec<Option<String>>>>>;

/// Which realm has which paths. It was checked as a whole: each path is in one realm or in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingData {
    /// The realm of each sharding key.
    keys: BTreeMap<String, String>,
}

impl RoutingData {
    /// Reads the records of all realms, by their names.
    ///
    /// The rules are Helix's. No sharding key is below another one, so `/` is the only key or none. A record without keys is that of a
    /// realm without paths.
    ///
    /// # Errors
    ///
    /// The first mistake, in the order of the realms' names. Nothing of the data can be used then.
    pub fn read<D: AsRef<[u8]>>(realms: impl IntoIterator<Item = (String, D)>) -> Result<RoutingData, RoutingError> {
        let realms: BTreeMap<_, _> = realms.into_iter().collect();
        let mut keys: BTreeMap<String, String> = BTreeMap::new();
        for (realm, data) in realms {
            for key in keys_of(&realm, data.as_ref())? {
                if let Some(other) = keys.insert(key.clone(), realm.clone()).filter(|other| *other != realm) {
                    return Err(RoutingError::TwoRealms { key, realm: other, other: realm });
                }
            }
        }
        if keys.is_empty() {
            return Err(RoutingError::Empty);
        }
        for (key, realm) in &keys {
            if let Some((above, other)) = above(key).find_map(|above| keys.get_key_value(above)) {
                let [key, realm, above, other] = [key, realm, above, other].map(String::clone);
                return Err(RoutingError::Overlap { key, realm, above, other });
            }
        }
        Ok(RoutingData { keys })
    }

    /// Returns the sharding keys in order, each with its realm's connect string.
    pub fn keys(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().map(|(key, realm)| (key.as_str(), realm.as_str()))
    }

    /// Returns the connect string of the realm that has this path; `None` if no sharding key is the path or above it.
    pub fn realm(&self, path: &str) -> Option<&str> {
        std::iter::once(path).chain(above(path)).find_map(|key| self.keys.get(key)).map(String::as_str)
    }
}

/// Returns the paths above a path, the nearest one first, up to `/`.
fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent(path), |path| parent(path))
}

fn parent(path: &str) -> Option<&str> {
    match path.rfind('/')? {
        _ if path == "/" => None,
        0 => Some("/"),
        at => Some(&path[..at]),
    }
}

/// Reads the sharding keys of a realm.
fn keys_of(realm: &str, data: &[u8]) -> Result<Vec<String>, RoutingError> {
    check_servers(realm)
        .map_err(|error| RoutingError::Address { realm: realm.to_owned(), problem: error.problem.clone() })?;
    let not_a_record = |problem: String| RoutingError::NotARecord { realm: realm.to_owned(), problem };
    if data.starts_with(&GZIP) {
        return Err(not_a_record("it is compressed".to_owned()));
    }
    let lists = serde_json::from_slice::<serde_json::Map<_, _>>(data)
        .and_then(|mut record| record.remove("listFields").map_or(Ok(None), serde_json::from_value::<Lists>))
        .map_err(|error| not_a_record(error.to_string()))?;
    let listed = lists.and_then(|mut lists| lists.remove(SHARDING_KEYS)?).unwrap_or_default();
    let keys = listed.into_iter().map(Option::unwrap_or_default);
    keys.map(|key| match key.as_str() {
        "/" => Ok(key),
        path => match LockPath::parse_node(path) {
            Ok(_) => Ok(key),
            Err(error) => Err(RoutingError::Key { realm: realm.to_owned(), problem: error.to_string(), key }),
        },
    })
    .collect()
}

/// The routing data of an ensemble, and its changes.
///
/// It needs only the watches that every ZooKeeper has.
pub struct FollowRouting {
    keeper: Lockkeeper,
    /// Watch what was read; `None` before the first read and after a change.
    changes: Option<Vec<Watcher>>,
}

impl FollowRouting {
    /// Creates one for the ensemble of this handle. Sends nothing.
    pub fn new(keeper: &Lockkeeper) -> FollowRouting {
        FollowRouting { keeper: keeper.clone(), changes: None }
    }

    /// Returns the routing data: the first call the present one, later calls the one after the next change.
    ///
    /// The nodes of the realms are read until none of them changes meanwhile. So a sharding key that moves from one realm to another in
    /// one transaction is always in one of the two.
    ///
    /// # Cost
    ///
    /// An ordered write, a listing, and a read for each realm, at the start and after each change. Waiting costs nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind; the next call reports a change that happens meanwhile.
    ///
    /// # Errors
    ///
    /// [`RoutingError`]. After [`RoutingError::Session`] the next call reads again, so pause before it; after another error it waits for
    /// the next change.
    pub async fn next(&mut self) -> Result<RoutingData, RoutingError> {
        if let Some(changes) = &mut self.changes {
            select_all(changes).await;
            self.changes = None;
        }
        let (realms, changes) = self.keeper.sessions().ask(|ensemble| async move { read(&*ensemble).await }).await?;
        self.changes = Some(changes);
        RoutingData::read(realms.ok_or(RoutingError::Missing)?)
    }
}

impl fmt::Debug for FollowRouting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowRouting").finish_non_exhaustive()
    }
}

/// The realms with their records; `None` without routing data.
type Records = Option<Vec<(String, Vec<u8>)>>;

/// Reads the records of all realms as they were at one moment, and watches them.
async fn read(ensemble: &dyn Ensemble) -> Result<(Records, Vec<Watcher>), SessionError> {
    loop {
        let (names, list) = match linearizable(ensemble, ensemble.list_and_watch(ROUTING_DATA)).await {
            Ok(listed) => listed,
            Err(OpError::NoNode) => match ensemble.watch_creation(ROUTING_DATA).await {
                Ok(Some(creation)) => return Ok((None, vec![creation])),
                Ok(None) => continue,
                Err(fault) => return Err(refused(ROUTING_DATA, fault)),
            },
            Err(fault) => return Err(refused(ROUTING_DATA, fault)),
        };
        let reads = names.into_iter().map(|name| {
            let path = format!("{ROUTING_DATA}/{name}");
            let read = ensemble.read_and_watch(&path);
            async move { (name, read.await.map_err(|fault| (path, fault))) }
        });
        let (mut realms, mut changes) = (Vec::new(), vec![list]);
        let mut reads = stream::iter(reads).buffered(READS_IN_FLIGHT);
        while let Some((name, read)) = reads.next().await {
            match read {
                Ok((node, change)) => {
                    realms.push((name, node.data));
                    changes.push(change);
                }
                // The watch of the list fires, too.
                Err((_, OpError::NoNode)) => {}
                Err((path, fault)) => return Err(refused(&path, fault)),
            }
        }
        // An event comes before the reply to a read that shows its change. So what was read is older than none of the changes that
        // have fired.
        if !changes.iter_mut().any(|change| change.now_or_never().is_some()) {
            return Ok((Some(realms), changes));
        }
    }
}

fn refused(path: &str, fault: OpError) -> SessionError {
    let path = path.to_owned();
    match fault {
        OpError::ConnectionLoss | OpError::SessionOver => SessionError::ConnectionLost { path },
        fault => SessionError::Refused { path, reason: fault.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(keys: &[&str]) -> String {
        serde_json::json!({ "id": "x", "simpleFields": {}, "mapFields": {}, "listFields": { SHARDING_KEYS: keys } })
            .to_string()
    }

    fn read(realms: &[(&str, &[&str])]) -> Result<RoutingData, RoutingError> {
        RoutingData::read(realms.iter().map(|(realm, keys)| ((*realm).to_owned(), record(keys))))
    }

    #[test]
    fn a_path_is_in_the_realm_of_the_key_at_or_above_it() {
        let data = read(&[("a1:1,a2:1", &["/a", "/b/c"]), ("b:1", &["/b/d"]), ("empty:1", &[])]).unwrap();
        for (path, realm) in [("/a", "a1:1,a2:1"), ("/a/x/y", "a1:1,a2:1"), ("/b/c/z", "a1:1,a2:1"), ("/b/d", "b:1")] {
            assert_eq!(data.realm(path), Some(realm), "{path}");
        }
        for path in ["/", "/b", "/ab", "/b/cd", "/x"] {
            assert_eq!(data.realm(path), None, "{path}");
        }
        assert_eq!(data.keys().collect::<Vec<_>>(), [("/a", "a1:1,a2:1"), ("/b/c", "a1:1,a2:1"), ("/b/d", "b:1")]);
        assert_eq!(read(&[("a:1", &["/"])]).unwrap().realm("/x/y"), Some("a:1"));
        // A key that a realm lists twice is one key.
        assert_eq!(read(&[("a:1", &["/x", "/x"])]).unwrap().keys().count(), 1);
    }

    #[test]
    fn each_mistake_is_named_and_spoils_the_whole() {
        let good = ("good:1", &["/good"][..]);
        for (bad, said) in [
            (("b:1", &["/good"][..]), "two realms have the sharding key /good: b:1 and good:1"),
            (("b:1", &["/good/x"]), "the sharding key /good/x of the realm b:1 is below the sharding key /good of the"),
            (
                ("b:1", &["/"]),
                "the sharding key /good of the realm good:1 is below the sharding key / of the realm b:1",
            ),
            (("b:1", &["good"]), "the sharding key good of the realm b:1 is not a path"),
            (("b:1", &["/a/"]), "the sharding key /a/ of the realm b:1 is not a path"),
            (("b:x", &["/b"]), "the realm b:x has no usable address"),
        ] {
            let error = read(&[good, bad]).unwrap_err();
            assert!(error.to_string().starts_with(said), "{error}");
            assert!(error.kind() == ErrorKind::Mismatch && error.hint().is_some());
        }
        assert!(matches!(read(&[("a:1", &[]), ("b:1", &[])]), Err(RoutingError::Empty)));
        let (long, keys) = (format!("/{}", "x\u{1b}".repeat(10_000)), record(&["/a"]));
        let error = read(&[("b:1", &[&long])]).unwrap_err().to_string();
        assert!(error.len() < 1_000 && !error.contains('\u{1b}'), "{error}");
        assert!(RoutingData::read([("a:1".to_owned(), keys)]).is_ok());
    }

    #[test]
    fn what_is_no_record_is_no_realm_without_keys() {
        let data =
            |data: &[u8]| RoutingData::read([("a:1".to_owned(), data), ("b:1".to_owned(), record(&["/b"]).as_bytes())]);
        for bad in [&b""[..], b"x", b"[]", b"null", &GZIP, br#"{"listFields":{"ZK_PATH_SHARDING_KEYS":"/a"}}"#] {
            assert!(matches!(data(bad), Err(RoutingError::NotARecord { .. })), "{bad:?}");
        }
        // As Helix reads them.
        for none in ["{}", r#"{"listFields":null}"#, r#"{"listFields":{"ZK_PATH_SHARDING_KEYS":null}}"#] {
            assert_eq!(data(none.as_bytes()).unwrap().keys().collect::<Vec<_>>(), [("/b", "b:1")]);
        }
        let null = br#"{"listFields":{"ZK_PATH_SHARDING_KEYS":[null]}}"#;
        assert!(matches!(data(null), Err(RoutingError::Key { .. })));
    }
}

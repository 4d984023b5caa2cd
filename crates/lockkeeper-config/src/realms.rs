//! Locks on several ensembles: which ensemble has which paths.
//!
//! A realm is an ensemble and the paths at and below a prefix. A lock belongs to exactly one realm, the one with the
//! longest matching prefix. A path without a realm is an error, because two clients that guess differently would both
//! hold the lock.
//!
//! The routing is a table of the program ([`Realms::new`]), or Helix's routing data, with its changes ([`Realms::follow`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, watch};

use lockkeeper::error::{ConnectError, Misuse, SessionError};
use lockkeeper::{Builder, LockPath, Lockkeeper};
use lockkeeper_helix::routing::{FollowRouting, RoutingData, RoutingError};
use lockkeeper_session::ensemble::check_servers;

/// The pause before routing data is read again that could not be read.
const PAUSE: Duration = Duration::from_secs(1);

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
    routes: watch::Receiver<Routes>,
    keepers: Arc<Mutex<Keepers>>,
    closed: Arc<AtomicBool>,
}

/// The handle of each ensemble, by its connect string and by which paths it accepts.
type Keepers = HashMap<(String, Accepts), Arc<OnceCell<Lockkeeper>>>;

/// Which paths a handle accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Accepts {
    /// Those of its realms.
    Routed,
    /// Also those of no realm.
    Unrouted,
}

/// Which realm has which paths, at one moment.
#[derive(Clone, Debug)]
pub struct Routes {
    /// All realms, the longest prefix first.
    realms: Arc<[Realm]>,
    problem: Option<RoutingError>,
}

#[derive(Debug, PartialEq, Eq)]
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

impl Routes {
    fn new(mut realms: Vec<Realm>) -> Self {
        realms.sort_by_key(|realm| std::cmp::Reverse(realm.prefix.len()));
        Routes { realms: realms.into(), problem: None }
    }

    /// Returns the prefixes, the longest one first, each with its connect string.
    pub fn realms(&self) -> impl Iterator<Item = (&str, &str)> {
        self.realms.iter().map(|realm| (realm.prefix.as_str(), realm.servers.as_str()))
    }

    /// Returns why the latest routing data is not used. The realms are then those of the last routing data that was whole. Always
    /// `None` for a table.
    pub fn problem(&self) -> Option<&RoutingError> {
        self.problem.as_ref()
    }

    fn find(&self, path: &str) -> Option<&Realm> {
        self.realms.iter().find(|realm| realm.has(path))
    }

    fn prefixes(&self) -> String {
        self.realms.iter().map(|realm| realm.prefix.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the realm of the path.
    fn route(&self, path: &str) -> Result<&Realm, Misuse> {
        let path = LockPath::parse_node(path)?;
        self.find(path.as_str()).ok_or_else(|| {
            Misuse::new("path", format!("no realm covers {path}; the realms are {}", self.prefixes()))
                .remedy("add a realm for the path; the prefix / covers all paths")
        })
    }

    /// Returns the realm with this prefix.
    fn named(&self, prefix: &str) -> Result<&Realm, Misuse> {
        self.realms.iter().find(|realm| realm.prefix == prefix).ok_or_else(|| {
            Misuse::new("realm", format!("no realm has the prefix {prefix:?}; the realms are {}", self.prefixes()))
                .remedy("name a realm by its whole prefix")
        })
    }

    /// Fails if the path is in a realm of other servers than these, or in none that the handle accepts.
    fn check(&self, path: &str, servers: &str, accepts: Accepts) -> Result<(), Misuse> {
        let realm = match accepts {
            Accepts::Routed => self.route(path)?,
            Accepts::Unrouted => match self.find(LockPath::parse_node(path)?.as_str()) {
                Some(realm) => realm,
                None => return Ok(()),
            },
        };
        let Realm { prefix, servers: theirs } = realm;
        if theirs == servers {
            return Ok(());
        }
        let ours: Vec<_> = self.realms().filter(|(_, its)| *its == servers).map(|(prefix, _)| prefix).collect();
        let ours = if ours.is_empty() { "no realm any more".to_owned() } else { ours.join(", ") };
        let problem =
            format!("{path} is in the realm {prefix} ({theirs}), and this handle is that of {ours} ({servers})");
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
        // Nothing changes a table, so its sender is not needed.
        Ok(Self::with(builder, watch::channel(Routes::new(table)).1))
    }

    /// Reads Helix's routing data from the ensemble of `directory`, and follows its changes: each sharding key is a prefix, and its
    /// realm the connect string. [`Realms::keeper`] connects the ensembles with `builder`.
    ///
    /// New routing data is used as a whole or not at all. If it has a mistake, or if it cannot be read, the realms stay as they are,
    /// [`Routes::problem`] says why, and a warning is logged. The next change is read again.
    ///
    /// It is followed until this routing, its clones and the handles that it has connected are dropped, or until `directory` is
    /// closed.
    ///
    /// # What a change means
    ///
    /// A sharding key that moves to another realm takes its paths along. The handle of the former realm then refuses to acquire locks
    /// at these paths, and `keeper` returns the handle of the new one. Locks that are held stay held in the former realm, and each
    /// client learns of the change when its watch fires. **So move a sharding key only while nobody uses a lock below it.** A client
    /// that is cut off from `directory` uses the routing data that it has seen last.
    ///
    /// # Cost
    ///
    /// As [`FollowRouting::next`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`RoutingError`] if the present routing data cannot be read, is missing, or has a mistake.
    pub async fn follow(builder: Builder, directory: &Lockkeeper) -> Result<Realms, RoutingError> {
        let mut follow = FollowRouting::new(directory);
        let (told, routes) = watch::channel(Routes::of(&follow.next().await?));
        let timer = directory.sessions().timer();
        directory.sessions().spawn(async move {
            loop {
                let read = tokio::select! {
                    biased;
                    // Nobody needs the routing any more.
                    () = told.closed() => return,
                    read = follow.next() => read,
                };
                let read = read.map(|data| Routes::of(&data));
                let is_session = matches!(read, Err(RoutingError::Session(_)));
                let is_closed = matches!(read, Err(RoutingError::Session(SessionError::Closed)));
                told.send_if_modified(|routes| routes.take(read));
                if is_closed {
                    return;
                }
                if is_session {
                    timer.after(PAUSE).await;
                }
            }
        });
        Ok(Self::with(builder, routes))
    }

    fn with(builder: Builder, routes: watch::Receiver<Routes>) -> Self {
        Realms { builder, routes, keepers: Arc::default(), closed: Arc::default() }
    }

    /// Returns a receiver that follows the realms: it has the present ones, and says when they or the
    /// [problem](Routes::problem) with the latest routing data change. Those of a table never do. No round trip.
    pub fn routes(&self) -> watch::Receiver<Routes> {
        self.routes.clone()
    }

    /// Returns the connect string of the realm that has this path. No round trip.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if no realm has the path, or if it is not a path.
    pub fn servers(&self, path: impl AsRef<str>) -> Result<String, Misuse> {
        Ok(self.routes.borrow().route(path.as_ref())?.servers.clone())
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
        let servers = self.servers(path)?;
        self.connect(servers, Accepts::Routed).await
    }

    /// Returns the handle of the realm with this prefix, for locks whose paths no realm covers. The first call connects it, with a
    /// session of its own.
    ///
    /// Use it to choose the realm of one lock: `HelixLock::new(&realms.realm("/search").await?, scope, lease)`. The handle also locks
    /// the paths of its ensemble's realms, and refuses those of other realms, as that of [`Realms::keeper`] does. Nothing else says
    /// in which realm an uncovered path is, so **all clients of such a lock must choose the same one**.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no session behind; the next call connects.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if no realm has exactly this prefix. As [`Lockkeeper::connect`]; [`SessionError::Closed`] after [`Realms::close`].
    pub async fn realm(&self, prefix: impl AsRef<str>) -> Result<Lockkeeper, ConnectError> {
        let servers = self.routes.borrow().named(prefix.as_ref())?.servers.clone();
        self.connect(servers, Accepts::Unrouted).await
    }

    async fn connect(&self, servers: String, accepts: Accepts) -> Result<Lockkeeper, ConnectError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(SessionError::Closed.into());
        }
        let connect = || {
            let (routes, ours) = (self.routes.clone(), servers.clone());
            let check = move |path: &str| routes.borrow().check(path, &ours, accepts);
            self.builder.clone().path_check(check).connect(&servers)
        };
        let cell = self.cells().entry((servers.clone(), accepts)).or_default().clone();
        let keeper = cell.get_or_try_init(connect).await?.clone();
        if self.closed.load(Ordering::Acquire) {
            // The routing was closed meanwhile, and did not see this one.
            keeper.close().await;
            return Err(SessionError::Closed.into());
        }
        Ok(keeper)
    }

    fn cells(&self) -> std::sync::MutexGuard<'_, Keepers> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connected handles, as [`Lockkeeper::close`] does. The routing and its clones connect no others.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest open; dropping the routing closes it.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let keepers: Vec<_> = self.cells().values().filter_map(|cell| cell.get().cloned()).collect();
        for keeper in keepers {
            keeper.close().await;
        }
    }
}

impl Routes {
    fn of(data: &RoutingData) -> Self {
        let realm = |(prefix, servers): (&str, &str)| Realm { prefix: prefix.to_owned(), servers: servers.to_owned() };
        Routes::new(data.keys().map(realm).collect())
    }

    /// Takes over what was read, if it can be used. Returns whether anything has changed.
    fn take(&mut self, read: Result<Routes, RoutingError>) -> bool {
        match read {
            Ok(routes) => {
                let is_new = routes.realms != self.realms || self.problem.is_some();
                if is_new {
                    tracing::info!(realms = routes.prefixes(), "the realms have changed");
                }
                *self = routes;
                is_new
            }
            Err(error) => {
                let said = error.to_string();
                let is_new = self.problem.as_ref().is_none_or(|problem| problem.to_string() != said);
                if is_new {
                    tracing::warn!(%error, "the realms stay as they are: the latest routing data is not used");
                }
                self.problem = Some(error);
                is_new
            }
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

    /// A handle that was chosen by its realm's name also takes paths of no realm, and never those of another one.
    #[test]
    fn a_chosen_realm_takes_paths_of_no_realm() {
        let routing = realms(&[("/a", "one:1"), ("/b", "two:2")]).unwrap();
        let routes = routing.routes();
        let is_taken = |path: &str, accepts| routes.borrow().check(path, "one:1", accepts).is_ok();
        let taken = |accepts| ["/a/x", "/b/x", "/c", "c"].map(|path| is_taken(path, accepts));
        assert_eq!(taken(Accepts::Routed), [true, false, false, false]);
        assert_eq!(taken(Accepts::Unrouted), [true, false, true, false]);
        assert_eq!(routes.borrow().named("/b").unwrap().servers, "two:2");
        for unknown in ["/b/x", "/", "two:2"] {
            let error = routes.borrow().named(unknown).unwrap_err().to_string();
            assert!(error.contains(unknown) && error.contains("/a, /b"), "{error}");
        }
    }

    #[test]
    fn routing_data_with_a_mistake_changes_no_realm() {
        let data = |key: &str| {
            let record = format!(r#"{{"listFields":{{"ZK_PATH_SHARDING_KEYS":["{key}"]}}}}"#);
            RoutingData::read([("one:1".to_owned(), record)]).map(|data| Routes::of(&data))
        };
        let mut routes = data("/a").unwrap();
        assert!(!routes.take(data("/a")), "nothing is new");
        assert!(routes.take(data("a")) && routes.problem().is_some());
        assert_eq!(routes.realms().collect::<Vec<_>>(), [("/a", "one:1")]);
        assert!(!routes.take(data("a")), "said before");
        assert!(routes.take(data("/b")) && routes.problem().is_none());
        assert_eq!(routes.realms().collect::<Vec<_>>(), [("/b", "one:1")]);
        assert!(routes.check("/b/x", "two:2", Accepts::Routed).unwrap_err().to_string().contains("no realm any more"));
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

//! `Lockkeeper`, the handle that programs use: it creates locks.

pub(crate) mod builder;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LockPath, Owner, ProcessInstance, SessionId};
use lockkeeper_session::Sessions;

use crate::error::{Misuse, SessionError};
use crate::hold::on_lost::OnLost;
use crate::meters::Group;
use crate::queue::multi::MultiAcquire;

/// A handle for the locks of one ensemble. Cheap to clone; all clones share one session and one I/O thread.
///
/// When the session is lost, the next call opens a new one. Guards stay with the session that granted them.
///
/// # Examples
///
/// ```
/// # async fn example() -> Result<(), lockkeeper::Error> {
/// let keeper = lockkeeper::Lockkeeper::connect("zk1:2181,zk2:2181,zk3:2181").await?;
/// let guard = keeper.mutex("/locks/nightly").acquire().await?;
/// println!("reject tokens below {}", guard.token());
/// guard.release().await?;
/// keeper.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Lockkeeper {
    inner: Arc<Inner>,
}

/// What the locks of a handle share.
struct Inner {
    sessions: Sessions,
    owner: Owner,
    /// This process, as far as it can be told apart.
    process: Option<ProcessInstance>,
    on_lost: OnLost,
    group: Group,
    path_check: Option<PathCheck>,
}

/// What refuses the paths that another handle has, as that of another realm.
pub(crate) type PathCheck = Arc<dyn Fn(&str) -> Result<(), Misuse> + Send + Sync>;

impl Lockkeeper {
    /// Returns the exclusive lock at `path`, an absolute path such as `/locks/nightly`. Sends nothing; the acquire
    /// reports an invalid path.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let guard = keeper.mutex("/locks/nightly").acquire().await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn mutex(&self, path: impl AsRef<str>) -> crate::Mutex {
        crate::Mutex::new(self.clone(), LockPath::parse(path.as_ref()))
    }

    /// Returns the exclusive lock at a path below `/lockkeeper`, which [`Lockkeeper::mutex`] refuses: for a product that keeps records
    /// there. Sends nothing.
    pub fn own_mutex(&self, path: LockPath) -> crate::Mutex {
        crate::Mutex::new(self.clone(), Ok(path))
    }

    /// Returns the shared lock at `path`. Sends nothing; the acquire reports an invalid path.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let catalogue = keeper.rwlock("/locks/catalogue");
    /// let reader = catalogue.read().acquire().await?;
    /// reader.release().await?;
    /// let writer = catalogue.write().acquire().await?;
    /// writer.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn rwlock(&self, path: impl AsRef<str>) -> crate::RwLock {
        crate::RwLock::new(self.clone(), LockPath::parse(path.as_ref()))
    }

    /// Returns the semaphore at `path`, which has `permits` permits. Sends nothing; the acquire reports an invalid path
    /// or number.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let permit = keeper.semaphore("/locks/downloads", 3).acquire().await?;
    /// permit.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, path: impl AsRef<str>, permits: u32) -> crate::Semaphore {
        crate::Semaphore::new(self.clone(), LockPath::parse(path.as_ref()), permits)
    }

    /// Returns the lock with classes at `path`. Sends nothing; the acquire reports an invalid path.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// let article = keeper.priority_lock("/locks/article-7");
    /// let person = article.foreground().acquire().await?;
    /// person.release().await?;
    /// let batch = article.background().acquire().await?;
    /// batch.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn priority_lock(&self, path: impl AsRef<str>) -> crate::PriorityLock {
        crate::PriorityLock::at(self, LockPath::parse(path.as_ref()))
    }

    /// Returns a request for several locks in one call: all of them or none. Combine requests of different kinds with
    /// [`Acquire::any`](crate::Acquire::any).
    ///
    /// ```no_run
    /// # async fn example(keeper: lockkeeper::Lockkeeper) -> Result<(), Box<dyn std::error::Error>> {
    /// let both = keeper.multi_lock([keeper.mutex("/a").acquire(), keeper.mutex("/b").acquire()]).await?;
    /// both.release().await?;
    /// let mixed = [keeper.rwlock("/a").read().acquire().any(), keeper.semaphore("/s", 3).acquire().any()];
    /// let mixed = keeper.multi_lock(mixed).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn multi_lock<G>(&self, requests: impl IntoIterator<Item = crate::Acquire<G>>) -> MultiAcquire {
        MultiAcquire::new(requests.into_iter().map(crate::Acquire::any).collect())
    }

    /// Closes the session: pending calls fail with [`SessionError::Closed`](crate::error::SessionError::Closed), guards
    /// are lost, and their nodes are deleted. Returns when the server has confirmed this, or when the session has
    /// ended.
    ///
    /// While no server can be reached, the call waits for up to twice the session timeout: use
    /// [`Lockkeeper::close_within`] to limit that.
    ///
    /// Dropping the last handle and the last guard does the same in the background. A lock whose guard was dropped is
    /// free also if the process ends meanwhile: [`Holding`](crate::Holding) lists the exceptions.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest of the work to the background.
    pub async fn close(&self) {
        self.inner.sessions.close(true, None).await;
    }

    /// Does what [`Lockkeeper::close`] does, but waits for no longer than `timeout`: for a program that must end by a certain
    /// time, also in an outage. Returns whether the server has confirmed the end of the session, or the session has ended.
    ///
    /// `false` leaves the rest to the background: pending calls have failed, guards are lost, and the request to close is
    /// sent when the connection is back. If the process ends before that, its nodes stay until the session expires, at
    /// most [`Lockkeeper::session_timeout`] after the servers last heard of the process.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest of the work to the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// if !keeper.close_within(std::time::Duration::from_secs(5)).await {
    ///     eprintln!("no server has confirmed the end; the locks become free when the session expires");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`false` means that the nodes of this session may still exist"]
    pub async fn close_within(&self, timeout: Duration) -> bool {
        self.inner.sessions.close(true, Some(timeout)).await
    }

    /// Does what [`Lockkeeper::close`] does, and returns when the request to close is sent, after all confirmed releases.
    /// It may get lost; then the session ends by its timeout, and nothing depends on it. For a command, before its process ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest of the work to the background.
    pub async fn close_unconfirmed(&self) {
        self.inner.sessions.close(false, None).await;
    }

    /// Calls [`Lockkeeper::close`] and blocks this thread until it returns, for programs without async.
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn close_blocking(&self) {
        self.inner.sessions.block_on(self.close());
    }

    /// Blocks this thread until `call` is done, for programs without async: any call of this library, and any future that
    /// needs no runtime.
    ///
    /// ```no_run
    /// let keeper = lockkeeper::blocking::connect("127.0.0.1:2181")?;
    /// let locks = keeper.block_on(keeper.admin().list("/"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if called on a thread of an async runtime.
    #[track_caller]
    pub fn block_on<T>(&self, call: impl IntoFuture<Output = T>) -> T {
        self.inner.sessions.block_on(call.into_future())
    }

    /// Returns the owner that the nodes of this handle name.
    pub fn owner(&self) -> &Owner {
        &self.inner.owner
    }

    /// Returns the timeout of the current session as agreed with the server. The server may have granted less or more
    /// than requested. Returns `None` while there is no session. No round trip.
    pub fn session_timeout(&self) -> Option<Duration> {
        self.inner.sessions.ready_session().map(|(session, _)| session.timeout())
    }

    /// Returns the id of the current session, as servers log it; `None` while there is no session. No round trip.
    pub fn session_id(&self) -> Option<SessionId> {
        self.inner.sessions.ready_session().map(|(session, _)| session.id())
    }

    /// Proves that the session is alive, for health checks: a majority of the servers has ordered a write of it. Returns
    /// the session's id. If the session is over, the call opens a new one, as every call does; the id then differs.
    ///
    /// # Cost
    ///
    /// One round trip and one small write, if there is a session.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`SessionError::Unreachable`] says why no server answered within the connect timeout. Otherwise as
    /// [`Lockkeeper::connect`], and [`SessionError::Closed`].
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(keeper: &lockkeeper::Lockkeeper) -> Result<(), lockkeeper::Error> {
    /// match keeper.check().await {
    ///     Ok(session) => println!("healthy: session {session}"),
    ///     Err(error) => println!("not healthy: {error}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self) -> Result<SessionId, SessionError> {
        let sessions = self.inner.sessions.clone();
        self.inner.sessions.run_while_answered(async move { sessions.check().await }).await
    }

    /// Returns the sessions of this handle, which its locks use: for a recipe of your own beside them. The guide's page
    /// [Your own recipe](https://github.com/lockkeeper/lockkeeper/blob/main/docs/guide/recipes.md) has two.
    pub fn sessions(&self) -> &Sessions {
        &self.inner.sessions
    }

    /// Returns this path of a lock or of a node above locks. Sends nothing.
    ///
    /// # Errors
    ///
    /// It is not a path, or this is the handle of a realm that does not have it.
    pub fn path(&self, path: &str) -> Result<String, Misuse> {
        let path = LockPath::parse_node(path)?;
        self.check_path(path.as_str())?;
        Ok(path.to_string())
    }

    /// Returns the root of a question about locks; empty for `/`, which is all paths. Sends nothing.
    ///
    /// # Errors
    ///
    /// As [`Lockkeeper::path`].
    pub fn root(&self, root: &str) -> Result<String, Misuse> {
        if root == "/" { Ok(String::new()) } else { self.path(root) }
    }

    /// Fails if this is the handle of a realm, and the path is in another one. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Misuse`] that names the realm.
    pub fn check_path(&self, path: &str) -> Result<(), Misuse> {
        self.inner.path_check.as_ref().map_or(Ok(()), |check| check(path))
    }

    /// Returns what happens when a lock of this handle is lost.
    pub fn on_lost(&self) -> &OnLost {
        &self.inner.on_lost
    }

    /// Returns the group of its locks in metrics.
    pub fn metrics_group(&self) -> &Group {
        &self.inner.group
    }

    /// This process, for the nodes of this handle.
    pub(crate) fn process(&self) -> Option<ProcessInstance> {
        self.inner.process
    }
}

impl std::fmt::Debug for Lockkeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lockkeeper").field("owner", &self.inner.owner).finish_non_exhaustive()
    }
}

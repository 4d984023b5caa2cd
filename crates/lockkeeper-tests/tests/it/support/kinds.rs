//! Every kind of lock behind one interface, so that a claim about all kinds is written once.
//!
//! A claim is about a *subject*: one way to acquire one kind of lock. A subject that is held together with others of its kind
//! cannot be blocked by them. So each kind also has a *rival*, which is never held beside it: for a reader, a writer.

use std::future::IntoFuture;
use std::ops::Deref;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::error::{AcquireError, ReleaseError};
use lockkeeper::guard::{Permit, UpgradeableGuard};
use lockkeeper::request::Requeued;
use lockkeeper::{Acquire, CancellationToken, FencingToken, Guard, Holding, Lockkeeper, NodeFormat, WriteGuard};

/// The permits of a claim's semaphore. Each subject takes [`TAKE`] of them, so two do not fit.
pub(crate) const PERMITS: u32 = 3;
const TAKE: u32 = 2;

/// A kind of lock, and one way to acquire it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A mutex with the library's own names, which contain the attempt's id.
    Native,
    /// A mutex with the recipe document's names, which contain no id.
    Recipe,
    /// A mutex with Kazoo's names.
    Kazoo,
    /// A mutex whose nodes are beside the path: the path and a number.
    Numbered,
    Read,
    Write,
    /// A reader with the recipe document's names.
    RecipeRead,
    /// A writer with the recipe document's names.
    RecipeWrite,
    /// A reader with Kazoo's names.
    KazooRead,
    /// A writer with Kazoo's names.
    KazooWrite,
    Upgradeable,
    /// Two of three permits.
    Permits,
    Foreground,
    Background,
}

impl Kind {
    /// The mutex of this kind, if it is one.
    pub(crate) fn mutex(self, keeper: &Lockkeeper, path: &str) -> lockkeeper::Mutex {
        keeper.mutex(path).node_format(self.node_format())
    }

    /// The subject of a claim.
    pub(crate) fn lock(self, keeper: &Lockkeeper, path: &str) -> Lock {
        Lock { kind: self, keeper: keeper.clone(), path: path.to_owned() }
    }

    /// A kind that is never held beside this one.
    pub(crate) fn rival(self) -> Kind {
        match self {
            Kind::Read | Kind::Upgradeable => Kind::Write,
            Kind::Write => Kind::Read,
            Kind::RecipeRead => Kind::RecipeWrite,
            Kind::RecipeWrite => Kind::RecipeRead,
            Kind::KazooRead => Kind::KazooWrite,
            Kind::KazooWrite => Kind::KazooRead,
            other => other,
        }
    }

    /// Whether it is held together with others of its kind.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Kind::Read | Kind::RecipeRead | Kind::KazooRead)
    }

    /// Whether only a node's data says which attempt made it.
    pub(crate) fn is_unprotected(self) -> bool {
        !self.node_format().protects()
    }

    pub(crate) fn node_format(self) -> NodeFormat {
        match self {
            Kind::Recipe | Kind::RecipeRead | Kind::RecipeWrite => NodeFormat::Recipe,
            Kind::Kazoo | Kind::KazooRead | Kind::KazooWrite => NodeFormat::Kazoo,
            Kind::Foreground | Kind::Background => NodeFormat::Contentserv,
            Kind::Numbered => NodeFormat::Numbered,
            _ => NodeFormat::Curator,
        }
    }

    /// The mode that a listing shows.
    pub(crate) fn mode(self) -> &'static str {
        match self {
            Kind::Native | Kind::Recipe | Kind::Numbered => "exclusive",
            Kind::Read | Kind::RecipeRead | Kind::KazooRead => "read",
            // Kazoo names a mutex like a writer.
            Kind::Kazoo | Kind::KazooWrite | Kind::Write | Kind::RecipeWrite | Kind::Upgradeable => "write",
            Kind::Permits => "permits",
            Kind::Foreground | Kind::Background => "class",
        }
    }

    /// The reads of the first waiter until it only waits: one to watch its predecessor, and one to watch its own node. A
    /// semaphore's waiter reads the limit after each of two listings instead of its predecessor.
    pub(crate) fn reads_to_wait(self) -> u64 {
        if self == Kind::Permits { 3 } else { 2 }
    }

    /// The path of a node of the lock at `path`.
    pub(crate) fn node(self, path: &str, name: &str) -> String {
        let between = if self.node_format().is_beside() { "" } else { "/" };
        format!("{path}{between}{name}")
    }

    /// The node whose children are the queue of the lock at `path`: the requests of its contenders name it or nodes below it.
    pub(crate) fn parent(self, path: &str) -> &str {
        self.node_format().listed(path)
    }

    /// Whether a holder marker exists beside the holder's node.
    pub(crate) fn has_holder_marker(self) -> bool {
        matches!(self, Kind::Foreground | Kind::Background)
    }
}

/// A lock of some kind at some path.
#[derive(Clone)]
pub(crate) struct Lock {
    pub(crate) kind: Kind,
    keeper: Lockkeeper,
    path: String,
}

impl Lock {
    pub(crate) fn acquire(&self) -> Ask {
        self.ask(false)
    }

    pub(crate) fn try_acquire(&self) -> Ask {
        self.ask(true)
    }

    /// Acquires with a handle whose last session may have ended: one attempt can report that, and the next opens a new session.
    pub(crate) async fn acquire_in_new_session(&self) -> Held {
        loop {
            match self.acquire().await {
                Ok(guard) => return guard,
                Err(AcquireError::SessionLost { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn ask(&self, once: bool) -> Ask {
        let (keeper, path, node_format) = (&self.keeper, self.path.as_str(), self.kind.node_format());
        let rwlock = || keeper.rwlock(path).node_format(node_format);
        match self.kind {
            Kind::Native | Kind::Recipe | Kind::Kazoo | Kind::Numbered => {
                let lock = self.kind.mutex(keeper, path);
                Ask::Plain(if once { lock.try_acquire() } else { lock.acquire() })
            }
            Kind::Read | Kind::RecipeRead | Kind::KazooRead => {
                let lock = rwlock().read();
                Ask::Plain(if once { lock.try_acquire() } else { lock.acquire() })
            }
            Kind::Write | Kind::RecipeWrite | Kind::KazooWrite => {
                let lock = rwlock().write();
                Ask::Write(if once { lock.try_acquire() } else { lock.acquire() })
            }
            Kind::Upgradeable => {
                let lock = rwlock().upgradeable();
                Ask::Upgradeable(if once { lock.try_acquire() } else { lock.acquire() })
            }
            Kind::Permits => {
                let lock = keeper.semaphore(path, PERMITS);
                Ask::Permit(if once { lock.try_acquire_many(TAKE) } else { lock.acquire_many(TAKE) })
            }
            Kind::Foreground | Kind::Background => {
                let lock = keeper.priority_lock(path);
                let lock = if self.kind == Kind::Foreground { lock.foreground() } else { lock.background() };
                Ask::Plain(if once { lock.try_acquire() } else { lock.acquire() })
            }
        }
    }
}

/// A request for a lock of some kind.
#[must_use]
pub(crate) enum Ask {
    Plain(Acquire<Guard>),
    Write(Acquire<WriteGuard>),
    Upgradeable(Acquire<UpgradeableGuard>),
    Permit(Acquire<Permit>),
}

/// A granted guard, of any kind.
#[derive(Debug)]
#[must_use]
pub(crate) enum Held {
    Plain(Guard),
    Write(WriteGuard),
    Upgradeable(UpgradeableGuard),
    Permit(Permit),
}

/// Evaluates the same expression for each kind of request or guard.
macro_rules! each {
    ($type:ident, $value:expr, $inner:ident => $do:expr) => {
        match $value {
            $type::Plain($inner) => $do,
            $type::Write($inner) => $do,
            $type::Upgradeable($inner) => $do,
            $type::Permit($inner) => $do,
        }
    };
}

/// An option of a request of any kind.
macro_rules! option {
    ($($name:ident($type:ty);)+) => { $(
        pub(crate) fn $name(self, value: $type) -> Ask {
            match self {
                Ask::Plain(ask) => Ask::Plain(ask.$name(value)),
                Ask::Write(ask) => Ask::Write(ask.$name(value)),
                Ask::Upgradeable(ask) => Ask::Upgradeable(ask.$name(value)),
                Ask::Permit(ask) => Ask::Permit(ask.$name(value)),
            }
        }
    )+ };
}

impl Ask {
    option! {
        timeout(Duration);
        message(&str);
        cancel_on(CancellationToken);
        requeue(bool);
        on_requeued(impl Fn(&Requeued) + Send + Sync + 'static);
    }

    pub(crate) fn wait(self) -> Result<Held, AcquireError> {
        each!(Ask, self, ask => ask.wait().map(Held::from))
    }
}

impl IntoFuture for Ask {
    type Output = Result<Held, AcquireError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        each!(Ask, self, ask => ask.into_future().map(|held| held.map(Held::from)).boxed())
    }
}

impl Held {
    /// The guard's token; permits have none.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        match self {
            Held::Plain(guard) => Some(guard.token()),
            Held::Write(guard) => Some(guard.token()),
            Held::Upgradeable(guard) => Some(guard.token()),
            Held::Permit(_) => None,
        }
    }

    pub(crate) async fn release(self) -> Result<(), ReleaseError> {
        each!(Held, self, guard => guard.release().await)
    }

    pub(crate) fn release_blocking(self) -> Result<(), ReleaseError> {
        each!(Held, self, guard => guard.release_blocking())
    }

    /// The name of its node.
    pub(crate) fn name(&self) -> String {
        name(self)
    }
}

/// The name of a guard's node, as the queue has it: beside the path, what follows the path.
pub(crate) fn name(guard: &Holding) -> String {
    let (path, node) = (guard.path().to_owned(), guard.node());
    node.strip_prefix(&path).map_or(node.as_str(), |name| name.trim_start_matches('/')).to_owned()
}

/// Whether a later grant has a greater token than an earlier one; true for kinds without tokens.
pub(crate) fn grew(earlier: Option<FencingToken>, later: Option<FencingToken>) -> bool {
    earlier.is_none() && later.is_none() || earlier < later
}

impl Deref for Held {
    type Target = Holding;

    fn deref(&self) -> &Holding {
        each!(Held, self, guard => guard)
    }
}

impl From<Guard> for Held {
    fn from(guard: Guard) -> Self {
        Held::Plain(guard)
    }
}

impl From<WriteGuard> for Held {
    fn from(guard: WriteGuard) -> Self {
        Held::Write(guard)
    }
}

impl From<UpgradeableGuard> for Held {
    fn from(guard: UpgradeableGuard) -> Self {
        Held::Upgradeable(guard)
    }
}

impl From<Permit> for Held {
    fn from(permit: Permit) -> Self {
        Held::Permit(permit)
    }
}

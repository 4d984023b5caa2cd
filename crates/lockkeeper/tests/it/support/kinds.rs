//! Every kind of lock behind one face, so that a claim that holds for all is written once.
//!
//! A claim is about a *subject*: one way into one kind of lock. Who shares it with others of its kind cannot be kept waiting
//! by them, so each kind has a *rival* too, which it never holds beside: for a reader that is a writer.

use std::future::IntoFuture;
use std::ops::Deref;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockkeeper::{
    Acquire, Error, FencingToken, Guard, Holding, Lockkeeper, NodeFormat, Permit, ReleaseError, UpgradeableGuard,
    WriteGuard,
};
use tokio_util::sync::CancellationToken;

/// How many permits the semaphores of the claims have, and how many each asks for: two of these do not fit.
pub(crate) const PERMITS: u32 = 3;
const TAKE: u32 = 2;

/// A kind of lock, and a way into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A mutex with the library's own names, which carry the attempt's id.
    Native,
    /// A mutex with the recipe document's names, which carry nothing.
    Recipe,
    /// A mutex with Kazoo's names.
    Kazoo,
    /// A reader.
    Read,
    /// A writer.
    Write,
    /// A reader with the recipe document's names.
    RecipeRead,
    /// A writer with the recipe document's names.
    RecipeWrite,
    /// A reader with Kazoo's names.
    KazooRead,
    /// A writer with Kazoo's names.
    KazooWrite,
    /// A reader that may become a writer.
    Upgradeable,
    /// Two of three permits.
    Permits,
    /// A foreground request.
    Foreground,
    /// A background request.
    Background,
}

impl Kind {
    /// The mutex of this kind, where it is one.
    pub(crate) fn mutex(self, keeper: &Lockkeeper, path: &str) -> lockkeeper::Mutex {
        keeper.mutex(path).node_format(self.node_format())
    }

    /// The subject of a claim.
    pub(crate) fn lock(self, keeper: &Lockkeeper, path: &str) -> Lock {
        Lock { kind: self, keeper: keeper.clone(), path: path.to_owned() }
    }

    /// One that the subject never holds beside.
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

    /// Whether it holds beside others of its kind.
    pub(crate) fn shares(self) -> bool {
        matches!(self, Kind::Read | Kind::RecipeRead | Kind::KazooRead)
    }

    /// Whether only its data says whose a node is.
    pub(crate) fn is_unprotected(self) -> bool {
        !self.node_format().protects()
    }

    pub(crate) fn node_format(self) -> NodeFormat {
        match self {
            Kind::Recipe | Kind::RecipeRead | Kind::RecipeWrite => NodeFormat::Recipe,
            Kind::Kazoo | Kind::KazooRead | Kind::KazooWrite => NodeFormat::Kazoo,
            Kind::Foreground | Kind::Background => NodeFormat::Contentserv,
            _ => NodeFormat::Curator,
        }
    }

    /// What those who ask are told that it asks for.
    pub(crate) fn mode(self) -> &'static str {
        match self {
            Kind::Native | Kind::Recipe => "exclusive",
            Kind::Read | Kind::RecipeRead | Kind::KazooRead => "read",
            // Kazoo names a mutex like a writer.
            Kind::Kazoo | Kind::KazooWrite | Kind::Write | Kind::RecipeWrite | Kind::Upgradeable => "write",
            Kind::Permits => "permits",
            Kind::Foreground | Kind::Background => "class",
        }
    }

    /// How many reads the first waiter in line makes until it does nothing but wait: one to watch what it waits for, one to
    /// watch itself; and where permits are counted the limit behind each of two listings, but no watch by a read.
    pub(crate) fn reads_to_wait(self) -> u64 {
        if self == Kind::Permits { 3 } else { 2 }
    }

    /// The class's mark of the holder stands beside its node.
    pub(crate) fn has_mark(self) -> bool {
        matches!(self, Kind::Foreground | Kind::Background)
    }
}

/// A lock of some kind at some path, for a handle.
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

    fn ask(&self, once: bool) -> Ask {
        let (keeper, path, node_format) = (&self.keeper, self.path.as_str(), self.kind.node_format());
        let rwlock = || keeper.rwlock(path).node_format(node_format);
        match self.kind {
            Kind::Native | Kind::Recipe | Kind::Kazoo => {
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

/// What was granted.
#[derive(Debug)]
#[must_use]
pub(crate) enum Held {
    Plain(Guard),
    Write(WriteGuard),
    Upgradeable(UpgradeableGuard),
    Permit(Permit),
}

/// The same for each kind of request or guard.
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

/// An option of a request, whatever its kind.
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
    }

    pub(crate) fn wait(self) -> Result<Held, Error> {
        each!(Ask, self, ask => ask.wait().map(Held::from))
    }
}

impl IntoFuture for Ask {
    type Output = Result<Held, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        each!(Ask, self, ask => ask.into_future().map(|held| held.map(Held::from)).boxed())
    }
}

impl Held {
    /// Its token; permits have none.
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
        self.node().rsplit('/').next().unwrap().to_owned()
    }
}

/// Whether a later grant has a greater token than an earlier one, where there are tokens.
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

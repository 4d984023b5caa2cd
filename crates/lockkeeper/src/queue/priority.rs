//! The priority lock: one holder, and classes of waiters.

use std::time::Duration;

use lockkeeper_core::{Class, Discipline, HOLDER_MARKER, LockPath, Mode, NodeFormat, PathError};

use crate::Error;
use crate::queue::acquire::{Acquire, Kind};
use crate::session::context::Context;

/// A lock for one holder, for which the foreground is served before the background; within a class, first come, first served.
///
/// The layout is Contentserv's, so that its clients may stand in the same queue: a persistent node at the path, `A-` and `B-`
/// children, and `privateLock` as the mark of the holder. Nobody is interrupted: a foreground request that finds a
/// background holder waits for it, and is served before all of the background. A steady stream of the foreground starves
/// the background; that is the rule here, and [`PriorityLock::ageing`] is the way out of it.
///
/// Its tokens are those of the mark: the only order that grows from grant to grant when the last to come may be the first to
/// be served.
///
/// Made by [`Lockkeeper::priority_lock`](crate::Lockkeeper::priority_lock), which costs nothing; for the foreground unless told otherwise.
#[derive(Clone, Debug)]
pub struct PriorityLock {
    context: Context,
    path: Result<LockPath, PathError>,
    class: Class,
    ageing: Option<(Duration, Class)>,
}

impl PriorityLock {
    pub(crate) fn new(context: Context, path: Result<LockPath, PathError>) -> Self {
        PriorityLock { context, path, class: Class::FOREGROUND, ageing: None }
    }

    /// For the foreground: people who wait. Class `A`.
    pub fn foreground(self) -> Self {
        self.class(Class::FOREGROUND)
    }

    /// For the background: bulk work. Class `B`.
    pub fn background(self) -> Self {
        self.class(Class::BACKGROUND)
    }

    /// For any class; the order of the letters is the order of service.
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// A request that has waited for `after` enters `class` instead, as the last there. Off unless asked for.
    pub fn ageing(mut self, after: Duration, class: Class) -> Self {
        self.ageing = Some((after, class));
        self
    }

    /// Asks for the lock and waits for it as long as it takes, or as the options say.
    ///
    /// Uncontended it costs a create and a list in one flight, and a transaction for the mark; a release costs a look at the
    /// mark and a transaction.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(self.context.clone(), self.kind(), false)
    }

    /// Asks for the lock and gives up with [`Error::Held`] if somebody else has it or is before.
    pub fn try_acquire(&self) -> Acquire {
        Acquire::new(self.context.clone(), self.kind(), true)
    }

    fn kind(&self) -> Result<Kind, Error> {
        Ok(Kind {
            path: self.path.clone()?,
            node_format: NodeFormat::Contentserv,
            discipline: Discipline::Classes { holder_marker: HOLDER_MARKER.to_owned() },
            mode: Mode::Class(self.class),
            upgradeable: false,
            ageing: self.ageing.filter(|(_, class)| *class != self.class),
        })
    }
}

//! The kind of lock that the command line requests, as a request to the library.

use lockkeeper::error::Misuse;
use lockkeeper::{Acquire, Class, Holding, Lockkeeper, NodeFormat};
use lockkeeper_config::settings::Settings;
use lockkeeper_election::Election;
use lockkeeper_history::LockUse;

use super::args::KindArgs;
use crate::exit::{Code, Failure};

/// How a lock is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Alone(NodeFormat),
    /// Alone, as the leader of an election.
    Leading(NodeFormat),
    /// Alone, as the writer among readers.
    Writing(NodeFormat),
    /// Together with other holders that share it.
    Shared(NodeFormat),
    /// Some of its permits.
    Permits {
        permits: u32,
        take: u32,
    },
    /// Alone, in the order of the classes; whether a missing node of the lock is created as a container.
    Class {
        class: Class,
        container: bool,
    },
}

impl Kind {
    /// Reads the options; the parser has checked that they name one kind. The settings name the classes of
    /// `--foreground` and `--background`.
    ///
    /// # Errors
    /// `--take` exceeds `--permits`.
    pub(crate) fn of(args: &KindArgs, settings: &Settings) -> Result<Self, Failure> {
        let node_format = args.node_format.map_or_else(NodeFormat::default, NodeFormat::from);
        let container = settings.monitor_container.value;
        let of_class = |class| Kind::Class { class, container };
        Ok(match (args.permits, args.class) {
            (Some(permits), _) => {
                let take = args.take.unwrap_or(1);
                if take > permits {
                    let problem = format!("--take {take} asks for more than there are with --permits {permits}");
                    return Err(Failure::new(Code::Usage, problem));
                }
                Kind::Permits { permits, take }
            }
            (None, Some(class)) => of_class(class),
            (None, None) if args.foreground => of_class(settings.foreground.prefix.value),
            (None, None) if args.background => of_class(settings.background.prefix.value),
            (None, None) if args.shared => Kind::Shared(node_format),
            (None, None) if args.exclusive => Kind::Writing(node_format),
            (None, None) => Kind::Alone(node_format),
        })
    }

    /// In which way the lock is used, as its records say.
    pub(crate) const fn used_as(self) -> LockUse {
        match self {
            Kind::Alone(format) | Kind::Leading(format) | Kind::Writing(format) | Kind::Shared(format) => {
                LockUse::Plain(format)
            }
            Kind::Permits { permits, .. } => LockUse::Permits(permits),
            Kind::Class { class, .. } => LockUse::Class(class),
        }
    }

    /// Returns a request for the lock at `path`; with `once`, the request does not wait.
    ///
    /// # Errors
    /// An election cannot use the node format.
    pub(crate) fn request(self, keeper: &Lockkeeper, path: &str, once: bool) -> Result<Acquire<Holding>, Misuse> {
        Ok(match self {
            // Who leads says its id as any holder says its message.
            Kind::Leading(node_format) => {
                Election::new(keeper, path).node_format(node_format).candidate("").request()?.any()
            }
            Kind::Alone(node_format) => {
                let lock = keeper.mutex(path).node_format(node_format);
                if once { lock.try_acquire().any() } else { lock.acquire().any() }
            }
            Kind::Writing(node_format) => {
                let lock = keeper.rwlock(path).node_format(node_format).write();
                if once { lock.try_acquire().any() } else { lock.acquire().any() }
            }
            Kind::Shared(node_format) => {
                let lock = keeper.rwlock(path).node_format(node_format).read();
                if once { lock.try_acquire().any() } else { lock.acquire().any() }
            }
            Kind::Permits { permits, take } => {
                let lock = keeper.semaphore(path, permits);
                if once { lock.try_acquire_many(take).any() } else { lock.acquire_many(take).any() }
            }
            Kind::Class { class, container } => {
                let lock = keeper.priority_lock(path).class(class).container(container);
                if once { lock.try_acquire().any() } else { lock.acquire().any() }
            }
        })
    }
}

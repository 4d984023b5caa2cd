#![doc = include_str!("../README.md")]

mod clients;
mod clock;
mod conversation;
mod keep;
mod protocol;
mod remote;
mod requests;

pub use self::clients::Clients;
pub use self::clock::now;
pub use self::conversation::{Bound, ClientId};
pub use self::keep::{Ahead, LastEvent, Locks, keep};
pub use self::protocol::{BadLine, Event, HeldLock, MAX_LINE, PROTOCOL, Word, parse};
pub use self::remote::{Remote, Seen};
pub use self::requests::{asked, wanted};

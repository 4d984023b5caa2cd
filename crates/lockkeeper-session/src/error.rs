//! What any call can meet: no session, no reply, a refusal, or an argument that cannot be used.

#[cfg(feature = "embedded")]
mod embedded;
mod kind;
mod misuse;
mod session;

#[cfg(feature = "embedded")]
pub use embedded::EmbeddedError;
pub use kind::ErrorKind;
pub use lockkeeper_client::TlsProblem;
pub use misuse::Misuse;
#[cfg(feature = "embedded")]
pub(crate) use session::EMBEDDED_SERVER;
pub(crate) use session::NOT_OPEN;
pub use session::{AUTHENTICATE, ConnectError, SessionError};

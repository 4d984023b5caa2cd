//! What a request asks for, for dead letters.

/// The lock that an operation requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The locked object, in the caller's words.
    pub monitor_object: String,
    /// The lock's path.
    pub path: String,
    /// The caller's text about the lock.
    pub lock_info: Option<String>,
    /// The class of the request, if the lock has classes.
    pub class: Option<String>,
}

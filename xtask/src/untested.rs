//! Reports tests that could not run because a real program could not be fetched, or the system does not allow them.

use anyhow::Result;

/// A real program, or a part of the system, that is not available here. That is neither a pass nor a failure of the code: it is
/// reported once and counted.
#[derive(Debug, thiserror::Error)]
#[error("NOT TESTED: {what}: {why}")]
pub(crate) struct Untested {
    what: String,
    why: String,
}

/// The exit status of a chore that ends with [`Untested`].
pub(crate) const STATUS: u8 = 7;

impl Untested {
    pub(crate) fn new(what: &str, why: &str) -> Self {
        Self { what: what.to_owned(), why: why.to_owned() }
    }
}

/// Returns what was fetched from a registry; [`Untested`] if that cannot be reached.
pub(crate) fn fetched<T, E: Into<anyhow::Error>>(what: &str, result: Result<T, E>) -> Result<T> {
    // One line, so that lines can be counted.
    let why = |error: anyhow::Error| format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    result.map_err(|error| Untested::new(what, &why(error.into())).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_fetched_is_said_in_one_line() {
        let error = fetched::<(), _>("a broker", Err(anyhow::anyhow!("no route\nto host"))).unwrap_err();
        assert_eq!(error.to_string(), "NOT TESTED: a broker: no route to host");
        assert!(error.context("later").downcast_ref::<Untested>().is_some());
    }
}

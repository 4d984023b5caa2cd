//! The nodes below `/lockkeeper` in which the products keep records.

use lockkeeper_session::ensemble::NodeKind;

fn of_products() -> Vec<(&'static str, NodeKind)> {
    [&lockkeeper_jobs::REGISTERS[..], &lockkeeper_history::REGISTERS, &lockkeeper_helix::REGISTERS].concat()
}

/// All of them and those of the locks, each with its kind.
pub(crate) fn all() -> Vec<(&'static str, NodeKind)> {
    [of_products(), lockkeeper::admin::REGISTERS.to_vec()].concat()
}

/// The paths of those of the products. The first is the one that a question for the servers' time writes to.
pub(crate) fn paths() -> Vec<&'static str> {
    of_products().into_iter().map(|(path, _)| path).collect()
}

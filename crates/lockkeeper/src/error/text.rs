//! Parts of the messages.

use std::fmt;

use lockkeeper_core::excerpt;

use crate::broken::Broken;
use crate::contender::ContenderInfo;

pub(super) fn evicted(path: &str, node: &str, by: Option<&Broken>) -> String {
    match by {
        Some(broken) => format!("the wait for {path} was broken by {}{}: {}", broken.by, broken.proof, broken.reason),
        None => format!("the waiter's node {path}/{node} was deleted by someone else"),
    }
}

pub(super) fn permits_mismatch(path: &str, ours: u32, stated: Option<u32>) -> String {
    match stated {
        Some(1) => format!("{path} has 1 permit, not {ours}"),
        Some(stated) => format!("{path} has {stated} permits, not {ours}"),
        None => format!("{path} is not a semaphore: its data is something else"),
    }
}

/// ": held by build@ci-7 (pid 4711) since … (nightly index), 2 ahead". `held`: "held by", or since when that is known.
pub(super) fn holder_and_ahead(
    held: &'static str,
    holder: Option<&ContenderInfo>,
    ahead: Option<usize>,
) -> impl fmt::Display {
    let mut text = match holder {
        None => ": its holder is not known".to_owned(),
        Some(holder) => match &holder.blocked_by {
            None => format!(": {held} {holder}"),
            Some(node) => format!(
                ": nobody holds it; the next contender is {holder}, a foreign client behind the node {node}, which has no session \
                 and blocks it until somebody deletes it"
            ),
        },
    };
    if let Some(ahead) = ahead.filter(|ahead| *ahead > 1) {
        text.push_str(&format!(", {ahead} ahead"));
    }
    text
}

/// " as 0aa5…".
pub(super) fn named(id: Option<&str>) -> impl fmt::Display {
    id.map(|id| format!(" as {id}")).unwrap_or_default()
}

/// ": it is a's".
pub(super) fn owned_by(owner: Option<&str>) -> impl fmt::Display {
    owner.map(|owner| format!(": it is {owner}'s")).unwrap_or_default()
}

/// " (nightly index)".
pub(super) fn because(message: Option<&str>) -> impl fmt::Display {
    message.map(|message| format!(" ({})", excerpt(message))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_is_not_known_is_not_passed_over() {
        let text = |ahead| format!("/a is taken{}", holder_and_ahead("held by", None, ahead));
        assert_eq!(text(None), "/a is taken: its holder is not known");
        assert_eq!(text(Some(3)), "/a is taken: its holder is not known, 3 ahead");
    }
}

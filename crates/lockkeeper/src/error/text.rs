//! Parts of the messages. What another client wrote is escaped, because a message reaches terminals and logs.

use std::fmt;

use lockkeeper_core::plain;

use crate::broken::Broken;
use crate::contender::ContenderInfo;

pub(super) fn evicted(path: &str, node: &str, by: Option<&Broken>) -> String {
    match by {
        Some(broken) => {
            let what = if broken.held { "hold of" } else { "wait for" };
            format!("the {what} {path} was broken by {}{}: {}", broken.by, broken.proof, plain(&broken.reason))
        }
        None => format!("the node {path}/{} was deleted by someone else", plain(node)),
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
                ": nobody holds it; the next contender is {holder}, a foreign client behind the node {}, which has no session \
                 and blocks it until somebody deletes it",
                plain(node)
            ),
        },
    };
    if let Some(ahead) = ahead.filter(|ahead| *ahead > 1) {
        text.push_str(&format!(", {ahead} ahead"));
    }
    text
}

/// "1 contender is", "2 contenders are".
pub(super) fn contenders(count: usize) -> impl fmt::Display {
    match count {
        1 => "1 contender is".to_owned(),
        count => format!("{count} contenders are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::AcquireError;

    #[test]
    fn a_holder_that_is_not_known_is_not_passed_over() {
        let text = |ahead| format!("/a is taken{}", holder_and_ahead("held by", None, ahead));
        assert_eq!(text(None), "/a is taken: its holder is not known");
        assert_eq!(text(Some(3)), "/a is taken: its holder is not known, 3 ahead");
        let held = AcquireError::Held { path: "/a".to_owned(), holder: None, ahead: None };
        assert!(held.hint().is_some_and(|hint| hint.contains("try again")), "it may be free by now");
    }

    /// The guide prints texts of other clients with `{:?}`.
    #[test]
    fn the_debug_form_of_a_text_has_no_character_that_acts_on_a_terminal() {
        for active in (char::MIN..=char::MAX).filter(|c| lockkeeper_core::is_active(*c)) {
            assert!(!format!("{:?}", format!("a{active}b")).contains(active), "{active:?}");
        }
    }

    #[test]
    fn one_contender_is_not_several() {
        let text = |ahead| AcquireError::TooManyWaiters { path: "/a".to_owned(), ahead, most: 0 }.to_string();
        assert_eq!(text(1), "1 contender is ahead in the queue of /a; max_waiters allows 0");
        assert_eq!(text(2), "2 contenders are ahead in the queue of /a; max_waiters allows 0");
    }
}

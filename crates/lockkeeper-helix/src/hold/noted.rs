//! The note about a hold: whoever has asked for it writes it, after the release.

use std::sync::Arc;

use lockkeeper::hold::{Hold, HoldReport, Note, NotedEnd};
use lockkeeper_session::Clock;

/// Reports the end of the hold when it is dropped.
pub(super) struct LeaseNote {
    note: Option<Box<Note>>,
    hold: Arc<Hold>,
    clock: Clock,
}

impl LeaseNote {
    pub(super) fn new(mut note: Box<Note>, hold: Arc<Hold>, clock: Clock) -> Self {
        let begun = note.begun.take();
        let noted = LeaseNote { note: Some(note), hold, clock };
        // Its author may not need it.
        begun.into_iter().for_each(|begun| _ = begun.send(noted.report()));
        noted
    }

    fn report(&self) -> HoldReport {
        let (began, lost) = self.hold.span();
        let now = self.clock.now();
        let ended = lost.map_or(now, |(_, at)| at);
        HoldReport {
            waited: std::time::Duration::ZERO,
            held: ended.saturating_sub(began),
            granted_ms: None,
            ended_ago: now.saturating_sub(ended),
            revocation: None,
            loss: lost.map(|(loss, _)| loss),
            before: None,
        }
    }
}

impl Drop for LeaseNote {
    fn drop(&mut self) {
        let Some(note) = self.note.take() else { return };
        // Nobody may wait for it.
        _ = note.ended.send(NotedEnd { report: self.report(), written: false, at: self.clock.now() });
    }
}

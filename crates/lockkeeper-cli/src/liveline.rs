//! A line on a terminal that changes during a wait and is wiped afterwards.

use std::io::IsTerminal;
use std::time::Duration;

use lockkeeper_session::text::spell;
use unicode_width::UnicodeWidthStr;

use crate::screen::{Size, cut};
use crate::streams::STDERR;

/// Time limit for wiping the line before the next command starts.
const WIPING: Duration = Duration::from_millis(200);

/// The line. Dropping it wipes it.
#[derive(Debug)]
pub(crate) struct LiveLine {
    shown: bool,
}

impl LiveLine {
    /// Returns a line on standard error, if that is a terminal that supports it. Shows nothing yet.
    pub(crate) fn on_terminal() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        (std::io::stderr().is_terminal() && !dumb).then_some(LiveLine { shown: false })
    }

    /// Shows `start` and `end`. If they exceed the terminal's width, the end of `start` is cut.
    pub(crate) fn show(&mut self, start: &str, end: &str) {
        let Some(size) = Size::of(std::io::stderr()) else { return };
        self.shown = true;
        // The last column stays free: some terminals begin a new line there. The cursor waits at the first one, where a terminal prints
        // `^C`, so that the line is still the one that is wiped.
        STDERR.push(format!("\r{}\x1b[K\r", fit(start, end, size.columns - 1)));
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if self.shown {
            STDERR.push("\r\x1b[K");
            STDERR.flush(WIPING);
        }
    }
}

/// Fits `start` and `end` into `width` columns; `end` is kept as long as there is room for it.
fn fit(start: &str, end: &str, width: usize) -> String {
    let room = width.saturating_sub(end.width());
    format!("{}{}", cut(start, room), cut(end, width))
}

/// Returns the elapsed time and its limit: `4 s of 8 s`.
pub(crate) fn progress(elapsed: Duration, limit: Option<Duration>) -> String {
    match limit {
        Some(limit) => format!("{} of {}", whole(elapsed.min(limit)), spell(limit)),
        None => whole(elapsed),
    }
}

/// The time in whole seconds, for a line that changes each second.
pub(crate) fn whole(time: Duration) -> String {
    spell(Duration::from_secs(time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_line_stays_when_the_terminal_is_narrow() {
        let (start, end) = ("waiting for /locks/nightly: held by build@ci-7 (pid 4711)", ", 3 ahead; 4 s of 8 s");
        assert_eq!(fit(start, end, 80), format!("{start}{end}"));
        assert_eq!(fit(start, end, 60), "waiting for /locks/nightly: held by bu…, 3 ahead; 4 s of 8 s");
        assert_eq!(fit(start, end, 40), "waiting for /locks…, 3 ahead; 4 s of 8 s");
        assert_eq!(fit(start, end, 21), ", 3 ahead; 4 s of 8 s");
        assert_eq!(fit(start, end, 5), ", 3 …".replace(" …", "…"));
        assert_eq!(fit(start, end, 0), "");
        for width in 0..90 {
            assert!(fit("夜間の索引を待っています: 夜間の索引", end, width).width() <= width, "{width}");
        }
    }

    #[test]
    fn the_passing_time_is_in_whole_seconds() {
        let ms = Duration::from_millis;
        assert_eq!(progress(ms(4_900), Some(ms(8_000))), "4 s of 8 s");
        assert_eq!(progress(ms(300), Some(ms(500))), "0 s of 500 ms");
        assert_eq!(progress(ms(125_000), None), "2 min 05 s");
        assert_eq!(progress(ms(9_000), Some(ms(2_500))), "2 s of 2.5 s");
    }
}

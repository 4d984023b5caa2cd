//! Log lines that clients cause: a few in a period, so that no client can fill the disk with them.

use std::time::Duration;

/// Maximum number of lines in a period.
const LINES: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

/// Counts the lines of the current period.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    ends: Duration,
    lines: u32,
    left_out: u64,
}

impl Quiet {
    /// Returns how many lines were left out since the last one, or `None` if this one must be left out too.
    pub(crate) fn line(&mut self, now: Duration) -> Option<u64> {
        if now >= self.ends {
            (self.ends, self.lines) = (now + PERIOD, 0);
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_a_few_lines_and_the_next_one_says_how_many_were_left_out() {
        let mut quiet = Quiet::default();
        let second = Duration::from_secs;
        assert!((0..LINES).all(|_| quiet.line(second(1)) == Some(0)));
        assert!((0..1_000).all(|_| quiet.line(second(10)).is_none()));
        assert_eq!((quiet.line(second(11)), quiet.line(second(11))), (Some(1_000), Some(0)));
    }
}

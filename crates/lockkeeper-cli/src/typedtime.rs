//! Moments that a person types.

use jiff::civil::{Date, DateTime, Time};
use jiff::{Span, Timestamp, Zoned};

/// Which moment a time of day means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nearest {
    /// The last one before now.
    Before,
    /// The next one after now.
    After,
}

/// Returns the moment that a person means with a time of day, or with a date and a time; `None` if it is neither.
pub(crate) fn moment(text: &str, now: &Zoned, nearest: Nearest) -> Option<Timestamp> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at);
    }
    let zone = now.time_zone();
    let time = text.parse::<Time>().ok()?;
    // `Time` also reads the time of a date.
    let typed = text.parse::<DateTime>().ok().map(|at| at.date());
    let zoned = |date: Date| date.to_datetime(time).to_zoned(zone.clone()).ok();
    let at = zoned(typed.unwrap_or_else(|| now.date()))?;
    let other = match nearest {
        _ if typed.is_some() => None,
        Nearest::Before => (at > *now).then_some(-1),
        Nearest::After => (at <= *now).then_some(1),
    };
    match other {
        Some(days) => zoned(now.date().checked_add(Span::new().days(days)).ok()?),
        None => Some(at),
    }
    .map(|at| at.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_is_the_nearest_one_on_its_side_of_now() {
        let now: Zoned = "2026-10-24T10:00:00[Europe/Berlin]".parse().unwrap();
        let means = |text: &str, nearest| moment(text, &now, nearest).map(|at| at.to_string());
        for (text, before, after) in [
            ("06:00", "2026-10-24T04:00:00Z", "2026-10-25T05:00:00Z"),
            ("10:00", "2026-10-24T08:00:00Z", "2026-10-25T09:00:00Z"),
            ("10:00:01", "2026-10-23T08:00:01Z", "2026-10-24T08:00:01Z"),
            ("2026-10-25 06:00", "2026-10-25T05:00:00Z", "2026-10-25T05:00:00Z"),
            ("2026-10-20T06:00:00Z", "2026-10-20T06:00:00Z", "2026-10-20T06:00:00Z"),
        ] {
            assert_eq!(means(text, Nearest::Before).as_deref(), Some(before), "{text}");
            assert_eq!(means(text, Nearest::After).as_deref(), Some(after), "{text}");
        }
        assert_eq!((means("noon", Nearest::After), means("25:00", Nearest::After)), (None, None));
    }
}

//! Which calendar period of a time zone a time of the servers belongs to.
//!
//! Each time belongs to exactly one slot, also when clocks change. On the night in autumn, the hour that is shown twice is two
//! slots, and the day has 25 hours. On the night in spring, the skipped hour has no slot, and the day has 23 hours.

use crate::records::{RunSlot, Slot};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

use lockkeeper::error::Misuse;

const HOUR_MS: i64 = 3_600_000;

/// The slots of one period and time zone.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    per: Slot,
    zone: TimeZone,
}

impl Calendar {
    pub(super) fn new(per: Slot, zone: &str) -> Result<Self, Misuse> {
        let zone = match zone {
            "UTC" => TimeZone::UTC,
            name => TimeZone::get(name).map_err(|error| {
                let remedy = "name a zone of the tz database, as Europe/Berlin, or UTC; the database is a file of this machine (package tzdata)";
                Misuse::new("time zone", format!("time zone {name:?} is not known: {error}")).remedy(remedy)
            })?,
        };
        Ok(Calendar { per, zone })
    }

    /// The slot of this time, and before it up to `back` slots that are over, the oldest first.
    pub(super) fn slots(&self, at_ms: i64, back: u32) -> Vec<RunSlot> {
        let mut slots = vec![self.slot(at_ms)];
        for _ in 0..back {
            let first = slots.last().map_or(at_ms, |slot| slot.start_ms);
            slots.push(self.slot(first.saturating_sub(1)));
        }
        slots.reverse();
        slots
    }

    /// The slot of this time.
    pub(super) fn slot(&self, at_ms: i64) -> RunSlot {
        // Far inside of jiff's range, so that no arithmetic leaves it.
        let year = 366 * 24 * HOUR_MS;
        let at_ms = at_ms.clamp(Timestamp::MIN.as_millisecond() + year, Timestamp::MAX.as_millisecond() - year);
        let at = Timestamp::from_millisecond(at_ms).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(self.zone.clone());
        let date = at.date();
        match self.per {
            Slot::Day => self.days(date.strftime("%Y-%m-%d").to_string(), date, date.saturating_add(1.day())),
            Slot::Week => {
                let week = date.iso_week_date();
                let monday = date.saturating_sub(i64::from(date.weekday().to_monday_zero_offset()).days());
                let name = format!("{:04}-W{:02}", week.year(), week.week());
                self.days(name, monday, monday.saturating_add(7.days()))
            }
            Slot::Month => {
                let first = date.first_of_month();
                self.days(date.strftime("%Y-%m").to_string(), first, first.saturating_add(1.month()))
            }
            // The hour within the offset of that moment, so that two hours of the same name are two slots.
            _ => {
                let local_ms = at_ms + i64::from(at.offset().seconds()) * 1000;
                let start_ms = at_ms - local_ms.rem_euclid(HOUR_MS);
                let name = at.strftime("%Y-%m-%dT%H%:z").to_string();
                RunSlot::new(name, start_ms, Some(start_ms + HOUR_MS))
            }
        }
    }

    /// The slot from the start of one date to the start of another.
    fn days(&self, name: String, first: Date, next: Date) -> RunSlot {
        RunSlot::new(name, self.start_of(first).unwrap_or(i64::MIN), self.start_of(next))
    }

    /// When a date begins. A zone may skip its midnight, or a whole date.
    fn start_of(&self, date: Date) -> Option<i64> {
        let start: Zoned = date.to_zoned(self.zone.clone()).ok()?;
        Some(start.start_of_day().unwrap_or(start).timestamp().as_millisecond())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn calendar(per: Slot, zone: &str) -> Calendar {
        Calendar::new(per, zone).expect("this machine has the tz database")
    }

    fn ms(time: &str) -> i64 {
        time.parse::<Timestamp>().expect("a time").as_millisecond()
    }

    /// The slots of every minute from one time to another: each has one name, they follow each other in order, and none
    /// comes back.
    fn walk(calendar: &Calendar, from: &str, to: &str) -> Vec<(String, i64)> {
        let mut minutes: BTreeMap<i64, (String, i64)> = BTreeMap::new();
        let mut last = i64::MIN;
        for at in (ms(from)..ms(to)).step_by(60_000) {
            let slot = calendar.slot(at);
            assert!(slot.start_ms <= at && slot.end_ms.is_some_and(|end| at < end), "{at}: {slot:?}");
            assert!(slot.start_ms >= last, "{slot:?} comes back");
            last = slot.start_ms;
            let seen = minutes.entry(slot.start_ms).or_insert_with(|| (slot.name.clone(), 0));
            assert_eq!(seen.0, slot.name);
            seen.1 += 1;
        }
        minutes.into_values().collect()
    }

    #[test]
    fn a_day_is_one_slot_on_the_night_that_has_an_hour_more_and_on_the_one_that_has_an_hour_less() {
        let days = calendar(Slot::Day, "Europe/Berlin");
        let autumn = walk(&days, "2026-10-23T22:00:00Z", "2026-10-26T23:00:00Z");
        let names: Vec<_> = autumn.iter().map(|(name, minutes)| (name.as_str(), minutes / 60)).collect();
        assert_eq!(names, [("2026-10-24", 24), ("2026-10-25", 25), ("2026-10-26", 24)]);
        let spring = walk(&days, "2026-03-27T23:00:00Z", "2026-03-30T22:00:00Z");
        let names: Vec<_> = spring.iter().map(|(name, minutes)| (name.as_str(), minutes / 60)).collect();
        assert_eq!(names, [("2026-03-28", 24), ("2026-03-29", 23), ("2026-03-30", 24)]);
    }

    #[test]
    fn a_time_outside_the_calendar_has_the_first_or_the_last_slot() {
        for (per, zone) in [Slot::Hour, Slot::Day, Slot::Week, Slot::Month]
            .into_iter()
            .flat_map(|per| ["Pacific/Kiritimati", "Pacific/Pago_Pago"].map(|zone| (per, zone)))
        {
            for (at, year) in [(i64::MIN, "-999"), (i64::MAX, "999")] {
                let slot = calendar(per, zone).slot(at);
                assert!(slot.start_ms > i64::MIN && slot.end_ms.is_some_and(|end| slot.start_ms < end), "{slot:?}");
                assert!(slot.name.starts_with(year), "{slot:?}");
            }
        }
    }

    /// 15 minutes past the hour by UTC, in Kathmandu.
    #[test]
    fn an_hour_begins_when_the_zone_shows_a_full_hour() {
        let hours = walk(&calendar(Slot::Hour, "Asia/Kathmandu"), "2026-11-22T00:15:00Z", "2026-11-22T02:15:00Z");
        assert_eq!(hours, [("2026-11-22T06+05:45".to_owned(), 60), ("2026-11-22T07+05:45".to_owned(), 60)]);
    }

    #[test]
    fn an_hour_shown_twice_is_two_slots_and_a_skipped_one_is_none() {
        let hours = calendar(Slot::Hour, "Europe/Berlin");
        let autumn = walk(&hours, "2026-10-24T22:00:00Z", "2026-10-25T03:00:00Z");
        let names: Vec<_> = autumn.iter().map(|(name, minutes)| (name.as_str(), *minutes)).collect();
        let expected = ["2026-10-25T00+02:00", "2026-10-25T01+02:00", "2026-10-25T02+02:00", "2026-10-25T02+01:00"];
        assert_eq!(names[..4], expected.map(|name| (name, 60)));
        let spring = walk(&hours, "2026-03-28T23:00:00Z", "2026-03-29T03:00:00Z");
        assert!(spring.iter().all(|(name, minutes)| *minutes == 60 && !name.contains("T02")), "{spring:?}");
    }

    #[test]
    fn slots_never_come_back_in_zones_with_half_hours_missing_midnights_and_missing_days() {
        for (zone, from, to) in [
            ("Australia/Lord_Howe", "2026-04-03T00:00:00Z", "2026-04-06T00:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-02T00:00:00Z", "2026-10-05T00:00:00Z"),
            ("Africa/Cairo", "2026-04-22T00:00:00Z", "2026-04-26T00:00:00Z"),
            ("Africa/Cairo", "2026-10-28T00:00:00Z", "2026-11-01T00:00:00Z"),
            ("Pacific/Apia", "2011-12-28T00:00:00Z", "2012-01-02T00:00:00Z"),
            ("Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"),
        ] {
            walk(&calendar(Slot::Day, zone), from, to);
            let hours = calendar(Slot::Hour, zone);
            let mut last = i64::MIN;
            for at in (ms(from)..ms(to)).step_by(60_000) {
                let slot = hours.slot(at);
                assert!(slot.start_ms >= last && slot.start_ms <= at, "{zone}: {slot:?}");
                last = slot.start_ms;
            }
        }
    }

    #[test]
    fn weeks_and_months_have_the_names_of_iso_8601() {
        let at = ms("2027-01-01T12:00:00Z");
        assert_eq!(calendar(Slot::Week, "UTC").slot(at).name, "2026-W53");
        let month = calendar(Slot::Month, "Europe/Berlin").slot(at);
        assert_eq!((month.name.as_str(), month.start_ms), ("2027-01", ms("2026-12-31T23:00:00Z")));
    }

    #[test]
    fn the_slots_before_are_those_that_were() {
        let days = calendar(Slot::Day, "Europe/Berlin");
        let back: Vec<_> = days.slots(ms("2026-10-27T12:00:00Z"), 3).into_iter().map(|slot| slot.name).collect();
        assert_eq!(back, ["2026-10-24", "2026-10-25", "2026-10-26", "2026-10-27"]);
    }

    #[test]
    fn no_time_that_a_server_may_show_is_out_of_range() {
        for per in [Slot::Hour, Slot::Day, Slot::Week, Slot::Month] {
            for at in [i64::MIN, -1, 0, i64::MAX] {
                assert_eq!(calendar(per, "Asia/Kathmandu").slots(at, 2).len(), 3);
            }
        }
    }

    #[test]
    fn an_unknown_time_zone_is_named_with_the_remedy() {
        let error = Calendar::new(Slot::Day, "Mars/Olympus").expect_err("no such zone");
        assert!(error.problem.contains("Mars/Olympus") && error.hint().is_some_and(|hint| hint.contains("UTC")));
    }
}

//! `lockkeeper show --stats`: the statistics of a leased lock in a fleet, and the timeouts that follow.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper_helix::{HelixAdmin, Histogram, Statistics, Tally};
use lockkeeper_session::text::spell;
use serde::Serialize;

use super::ShowArgs;
use crate::advice::Suggested;
use crate::exit::{Code, Failure};
use crate::inquiry::inquire_of;
use crate::output::{self, Printer};
use crate::settings::{Settings, lock_path};
use crate::text::{counted, plain};

/// Prints or deletes the statistics; returns the exit status.
pub(super) async fn stats(args: ShowArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?.to_string();
    let settings = Settings::read(args.common.connect, printer)?.at([path.as_str()]).await?;
    let at = path.clone();
    let nothing = || {
        let counting = Suggested::new(["run", path.as_str(), "--lease", "10m", "--stats"]).running(["COMMAND"]);
        Failure::new(Code::NoSuchLock, format!("{path} has no statistics"))
            .hint("a program publishes its statistics with publish_statistics")
            .advise("publish them for a command", counting)
    };
    if args.reset {
        let forgotten =
            inquire_of(&settings, async move |keeper| HelixAdmin::new(&keeper).forget_statistics(&at).await).await?;
        if !forgotten {
            return Err(nothing());
        }
        printer.note(&format!("the statistics of {path} are deleted"));
        return Ok(0);
    }
    let counted = inquire_of(&settings, async move |keeper| HelixAdmin::new(&keeper).statistics(&at).await).await?;
    let counted = counted.ok_or_else(|| nothing().scoped(&settings.place))?;
    if printer.is_json() {
        output::answer(&settings.place, &StatsView::of(&path, &counted))?;
    } else {
        printer.scope(&settings.place);
        output::data(&text(&path, &counted))?;
    }
    Ok(0)
}

fn text(path: &str, counted: &Statistics) -> String {
    let mut text = format!("{}\n", plain(path));
    let total = counted.total();
    tally(&mut text, &total);
    // Writing to a string never fails.
    if let Some(lease) = total.suggested_lease_ms() {
        _ = writeln!(text, "  suggested lease       {}", span(lease));
    }
    if let Some(cleanup) = total.suggested_cleanup_ms() {
        _ = writeln!(text, "  suggested cleanup     {}", span(cleanup));
    }
    let others = ("others", &counted.others);
    let owners = counted.owners.iter().map(|(owner, tally)| (owner.as_str(), tally));
    for (owner, counted) in owners.chain((*others.1 != Tally::default()).then_some(others)) {
        _ = writeln!(text, "{}", plain(owner));
        tally(&mut text, counted);
    }
    text
}

fn tally(text: &mut String, tally: &Tally) {
    if tally.holds() > 0 {
        _ = writeln!(text, "  {} {}", row(tally.holds(), "hold"), spans(&tally.held));
        _ = writeln!(text, "        leases          {}", spans(&tally.leases));
        if tally.overran > 0 {
            _ = writeln!(text, "        expired         {} of {}", tally.overran, tally.holds());
        }
    }
    if !tally.cleanups.is_empty() {
        _ = writeln!(text, "  {} {}", row(tally.cleanups.count(), "cleanup"), spans(&tally.cleanups));
    }
    if !tally.cut_off.is_empty() {
        _ = writeln!(text, "  {} {}", row(tally.cut_off.count(), "cut-off cleanup"), spans(&tally.cut_off));
    }
    if !tally.allotted.is_empty() {
        _ = writeln!(text, "        allotted        {}", spans(&tally.allotted));
    }
    if tally.preemptions() > 0 {
        _ = writeln!(text, "  {} waited {}", row(tally.preemptions(), "preemption"), spans(&tally.waited));
        let Tally { in_time, late, forced, refused, .. } = tally;
        _ = writeln!(
            text,
            "        outcome         {in_time} in time, {late} late, {forced} by force, {refused} kept by the owner"
        );
    }
    if let Some(share) = tally.share_in_time() {
        _ = writeln!(text, "        in time         {:.0} %", share * 100.0);
    }
}

/// `12    holds          `, `1     hold           `
fn row(count: u64, one: &str) -> String {
    let counted = counted(count, one);
    let (count, what) = counted.split_once(' ').unwrap_or((&counted, ""));
    format!("{count:<5} {what:<15}")
}

/// `half within 1 min 03 s, 95 % within 2 min, all within 3 min`
fn spans(times: &Histogram) -> String {
    let within = |per_mille| times.quantile(per_mille).map_or_else(|| "-".to_owned(), span);
    format!("half within {}, 95 % within {}, all within {}", within(500), within(950), within(1000))
}

/// Rounds up to a precision that people need. The counts are at most an eighth too long.
fn span(ms: u64) -> String {
    let fine = match ms {
        0..1_000 => 1,
        1_000..10_000 => 100,
        10_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    spell(Duration::from_millis(ms.div_ceil(fine) * fine))
}

/// The statistics, as `--json` shows them. These fields are documented and stay.
#[derive(Serialize)]
struct StatsView<'a> {
    path: &'a str,
    total: TallyView,
    owners: Vec<OwnerView<'a>>,
}

#[derive(Serialize)]
struct OwnerView<'a> {
    /// `null` for the owners that are counted together.
    owner: Option<&'a str>,
    #[serde(flatten)]
    tally: TallyView,
}

#[derive(Serialize)]
struct TallyView {
    holds: u64,
    held_ms: SpansView,
    lease_ms: SpansView,
    overran: u64,
    cleanups: u64,
    cleanup_ms: SpansView,
    cut_off: u64,
    cut_off_ms: SpansView,
    allotted_ms: SpansView,
    preemptions: u64,
    waited_ms: SpansView,
    in_time: u64,
    late: u64,
    forced: u64,
    refused: u64,
    share_in_time: Option<f64>,
    suggested_lease_ms: Option<u64>,
    suggested_cleanup_ms: Option<u64>,
}

#[derive(Serialize)]
struct SpansView {
    p50: Option<u64>,
    p95: Option<u64>,
    p99: Option<u64>,
    max: Option<u64>,
}

impl SpansView {
    fn of(times: &Histogram) -> Self {
        let [p50, p95, p99, max] = [500, 950, 990, 1000].map(|per_mille| times.quantile(per_mille));
        SpansView { p50, p95, p99, max }
    }
}

impl TallyView {
    fn of(tally: &Tally) -> Self {
        TallyView {
            holds: tally.holds(),
            held_ms: SpansView::of(&tally.held),
            lease_ms: SpansView::of(&tally.leases),
            overran: tally.overran,
            cleanups: tally.cleanups.count(),
            cleanup_ms: SpansView::of(&tally.cleanups),
            cut_off: tally.cut_off.count(),
            cut_off_ms: SpansView::of(&tally.cut_off),
            allotted_ms: SpansView::of(&tally.allotted),
            preemptions: tally.preemptions(),
            waited_ms: SpansView::of(&tally.waited),
            in_time: tally.in_time,
            late: tally.late,
            forced: tally.forced,
            refused: tally.refused,
            share_in_time: tally.share_in_time(),
            suggested_lease_ms: tally.suggested_lease_ms(),
            suggested_cleanup_ms: tally.suggested_cleanup_ms(),
        }
    }
}

impl<'a> StatsView<'a> {
    fn of(path: &'a str, counted: &'a Statistics) -> Self {
        let owners = counted.owners.iter().map(|(owner, tally)| (Some(owner.as_str()), tally));
        let others = (counted.others != Tally::default()).then_some((None, &counted.others));
        let owners = owners.chain(others).map(|(owner, tally)| OwnerView { owner, tally: TallyView::of(tally) });
        StatsView { path, total: TallyView::of(&counted.total()), owners: owners.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_for_people() {
        assert_eq!(
            [0, 999, 1_234, 61_001, 3_725_000].map(span),
            ["0 s", "999 ms", "1.3 s", "1 min 02 s", "1 h 03 min"]
        );
    }
}

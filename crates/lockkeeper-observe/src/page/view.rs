//! The page as HTML. Without I/O and without a clock.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;
use lockkeeper::admin::ContenderInfo;
use lockkeeper_session::text::{plain, spell};
use maud::{DOCTYPE, Markup, html};

use super::lanes::{Axis, Bar, Lane, UNITS, UNNAMED};
use super::parts::{Command, link, more, shown};
use super::{jobs, rings};
use crate::deadlock::{Certainty, Deadlock};
use crate::watch::recent::{Past, PastHold, WINDOW};
use crate::watch::{End, Glance, LockGlance, TreeState};

/// How many locks have lanes. The page of each lock has them too.
const WITH_LANES: usize = 20;

/// Maximum lanes of a lock among others, and on its own page.
const LANES: usize = 4;
const LANES_OF_ONE: usize = 40;

/// Maximum marks of losses in a lane.
const MARKS: usize = 60;

/// Maximum rows of a table about one lock.
const ROWS: usize = 200;

/// Maximum deadlocks.
const LISTED: usize = 50;

/// The text of a cell without a value.
const NONE: &str = "–";

/// The page of all locks.
pub(super) fn all(glance: &Glance, command: &Command) -> Markup {
    let waited_for = glance.waited_for;
    let title = match waited_for {
        0 => "Locks - Lockkeeper".to_owned(),
        _ => format!("({waited_for}) Locks - Lockkeeper"),
    };
    let body = html! {
        h1 { "Locks" }
        (numbers(glance))
        (deadlocks(glance, command))
        (jobs::jobs(glance, command))
        (most_waited_for(glance, command))
    };
    page(&title, glance, &body)
}

/// The page of one lock.
pub(super) fn one(glance: &Glance, command: &Command) -> Markup {
    let Some(lock) = glance.locks.first() else { return all(glance, command) };
    let path = plain(&lock.lock.path);
    let body = html! {
        h1 { (path) }
        div data-part="lock" {
            (summary(glance, lock))
            (commands(lock, glance, command))
            (queue(glance, lock))
            h2 { "Last hour" }
            (key())
            (lanes(glance, lock, LANES_OF_ONE, true))
            (last_holds(glance, lock))
        }
    };
    page(&format!("{path} - Lockkeeper"), glance, &body)
}

fn page(title: &str, glance: &Glance, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                div.bar {
                    header {
                        p.brand { a href="/" { "Lockkeeper" } }
                        ul.trees data-part="trees" aria-label="Observed trees" {
                            @for tree in &glance.trees { li { (tree_line(tree)) } }
                        }
                    }
                }
                p.notice #stale role="status" hidden {
                    "This page may be out of date: the observer does not answer, or too many pages follow it. Load it again."
                }
                noscript { p.notice { "Without scripts, the page does not change by itself: load it again." } }
                main #main tabindex="-1" { (body) }
                footer {
                    "The times of waits and holds are measured by the observer. It only reads. The same as data: "
                    a href="/state.json" { "state.json" } ", "
                    a href="/history.jsonl" { "history.jsonl" } ", "
                    a href="/metrics" { "metrics" } "."
                }
            }
        }
    }
}

fn tree_line(tree: &TreeState) -> Markup {
    html! {
        code { (plain(&tree.root)) } " on " (plain(&tree.servers)) ": "
        @if tree.connected { span.good { "seen" } } @else { span.bad { "not seen now" } }
        @if tree.totals.unreadable > 0 { ", " span.warn { (tree.totals.unreadable) " nodes cannot be read" } }
        @if tree.totals.left_out > 0 { ", " span.warn { "not all locks are observed" } }
    }
}

fn numbers(glance: &Glance) -> Markup {
    let in_use: usize = glance.trees.iter().map(|tree| tree.totals.in_use).sum();
    let waiters: usize = glance.trees.iter().map(|tree| tree.totals.waiters).sum();
    let garbage: usize = glance.trees.iter().map(|tree| tree.totals.garbage).sum();
    let number = |count: usize, what: &str, class: &str| {
        html! { div { dt { (what) } dd class=[(count > 0 && !class.is_empty()).then_some(class)] { (count) } } }
    };
    html! {
        dl.numbers data-part="numbers" {
            (number(in_use, "locks in use", ""))
            (number(glance.waited_for, "waited for", ""))
            (number(waiters, "waiters", ""))
            (number(glance.deadlocks.len(), "deadlocks", "bad"))
            @if jobs::failed(glance) > 0 { (number(jobs::failed(glance), "failed jobs", "bad")) }
            @if garbage > 0 { (number(garbage, "nodes without a session", "warn")) }
        }
    }
}

fn deadlocks(glance: &Glance, command: &Command) -> Markup {
    html! {
        div data-part="deadlocks" {
            @if !glance.deadlocks.is_empty() {
                h2 id="deadlocks" { "Deadlocks" }
                div.rings {
                    @for (at, deadlock) in glance.deadlocks.iter().take(LISTED).enumerate() {
                        section aria-labelledby=(format!("deadlock-{}", at + 1)) {
                            h3 id=(format!("deadlock-{}", at + 1)) { "Deadlock " (at + 1) ": " (certainty(deadlock)) }
                            div.beside {
                                @if let Some(drawn) = rings::drawn(deadlock, at + 1) { (drawn) }
                                div {
                                    p { (plain(&deadlock.to_string())) "." }
                                    @if let Some(lasted) = deadlock.since().and_then(|since| ago(glance, since)) {
                                        p.muted { "All of them have waited for " (lasted) "." }
                                    }
                                }
                            }
                        }
                    }
                }
                (more(glance.deadlocks.len(), glance.deadlocks.len().min(LISTED), "deadlocks"))
                (shown(command, &["deadlocks"]))
            }
        }
    }
}

fn certainty(deadlock: &Deadlock) -> &'static str {
    match deadlock.certainty {
        Certainty::Certain => "certain",
        Certainty::Likely => "likely, unless other threads of these processes hold the locks",
        Certainty::Possible => "possible, because a process has several waits",
    }
}

fn most_waited_for(glance: &Glance, command: &Command) -> Markup {
    html! {
        section data-part="waited" aria-labelledby="waited" {
            h2 id="waited" { "Most waited for" }
            @if glance.locks.is_empty() {
                p { "No lock is in use, and none was granted " (observed(glance)) "." }
            } @else {
                (key())
                table.locks role="table" {
                    caption {
                        "The lock whose contenders waited longest " (observed(glance)) ", all together, is first."
                    }
                    thead role="rowgroup" {
                        tr role="row" {
                            th scope="col" role="columnheader" { "lock" }
                            th.number scope="col" role="columnheader" { "grants" }
                            th.number scope="col" role="columnheader" { "waits p50" }
                            th.number scope="col" role="columnheader" { "waits p99" }
                            th.number scope="col" role="columnheader" { "oldest wait" }
                            th.number scope="col" role="columnheader" { "waiters" }
                            th scope="col" role="columnheader" { "holder" }
                            th.number scope="col" role="columnheader" { "held for" }
                        }
                    }
                    @for (at, lock) in glance.locks.iter().enumerate() {
                        tbody role="rowgroup" { (row(glance, lock, command, at)) }
                    }
                }
                @if glance.others > 0 { p { "And " (glance.others) " more locks, which are waited for less." } }
            }
        }
    }
}

fn row(glance: &Glance, lock: &LockGlance, command: &Command, at: usize) -> Markup {
    let (p50, p99) = waits(&lock.past);
    html! {
        tr role="row" {
            th scope="row" role="rowheader" { (link(&lock.lock.path)) (badges(glance, lock)) }
            td.number role="cell" data-label="grants" { (grants(glance, &lock.past)) }
            td.number role="cell" data-label="waits p50" { (p50) }
            td.number role="cell" data-label="waits p99" { (p99) }
            td.number role="cell" data-label="oldest wait" { (oldest_wait(glance, lock)) }
            td.number role="cell" data-label="waiters" { (lock.since.waiters) }
            td."who wide" role="cell" data-label="holder" { (holders(lock)) }
            td.number role="cell" data-label="held for" { (held_for(glance, lock)) }
        }
        tr.more role="row" {
            td colspan="8" role="cell" {
                @if at < WITH_LANES { (lanes(glance, lock, LANES, at == 0)) }
                (shown(command, &["why", &lock.lock.path]))
            }
        }
    }
}

fn badges(glance: &Glance, lock: &LockGlance) -> Markup {
    let garbage = lock.lock.sessionless.len();
    html! {
        @for number in rings_of(glance, &lock.lock.path) {
            " " a."badge bad" href=(format!("/#deadlock-{number}")) { "deadlock " (number) }
        }
        @if lock.lock.blocked_by().is_some() { " " span."badge bad" { "blocked by a node without a session" } }
        @else if garbage > 0 { " " span."badge warn" { (garbage) " without a session" } }
    }
}

/// The numbers of the deadlocks that a lock is a part of.
fn rings_of<'g>(glance: &'g Glance, path: &str) -> impl Iterator<Item = usize> + use<'g> {
    let path = path.to_owned();
    let listed = glance.deadlocks.iter().take(LISTED).enumerate();
    listed.filter(move |(_, deadlock)| deadlock.involves(&path)).map(|(at, _)| at + 1)
}

fn summary(glance: &Glance, lock: &LockGlance) -> Markup {
    let (p50, p99) = waits(&lock.past);
    let word = |what: &str, value: &Markup| html! { div { dt { (what) } dd.word { (value) } } };
    html! {
        p { (badges(glance, lock)) }
        dl.numbers {
            (word("waiters", &html! { (lock.since.waiters) }))
            (word("oldest wait", &html! { (oldest_wait(glance, lock)) }))
            (word("holder", &holders(lock)))
            (word("held for", &html! { (held_for(glance, lock)) }))
            (word("grants", &html! { (grants(glance, &lock.past)) }))
            (word("waits p50", &html! { (p50) }))
            (word("waits p99", &html! { (p99) }))
        }
    }
}

fn commands(lock: &LockGlance, glance: &Glance, command: &Command) -> Markup {
    html! {
        (shown(command, &["why", &lock.lock.path]))
        (shown(command, &["history", &lock.lock.path]))
        @if rings_of(glance, &lock.lock.path).next().is_some() { (shown(command, &["deadlocks"])) }
    }
}

fn queue(glance: &Glance, lock: &LockGlance) -> Markup {
    let (holders, waiters) = (&lock.lock.holders, &lock.lock.waiters);
    html! {
        h2 { "Queue" }
        @if holders.is_empty() && waiters.is_empty() {
            p { "No contender is in its queue." }
        } @else {
            div.scroll #queue tabindex="0" role="region" aria-label="Queue" {
                table.rows {
                    caption { "The contenders that hold the lock, and those that wait, the oldest first." }
                    thead { tr {
                        th scope="col" { "contender" } th scope="col" { "state" } th.number scope="col" { "for" }
                        th scope="col" { "mode" } th scope="col" { "message" } th scope="col" { "session" }
                    } }
                    tbody {
                        @for holder in holders.iter().take(ROWS) { (contender(holder, ("holds", held_so_far(glance, holder)))) }
                        @for waiter in waiters.iter().take(ROWS) { (contender(waiter, ("waits", waited_so_far(glance, waiter)))) }
                    }
                }
            }
            (more(lock.since.holders, holders.len().min(ROWS), "holders"))
            (more(lock.since.waiters, waiters.len().min(ROWS), "waiters"))
        }
    }
}

fn contender(it: &ContenderInfo, (word, time): (&str, String)) -> Markup {
    html! {
        tr {
            th.who scope="row" { (who(Some(&it.described))) }
            td { (word) }
            td.number { (time) }
            td { (it.mode) }
            td.who { @if let Some(message) = &it.message { (plain(message)) } }
            td { @if !it.session.is_none() { code { (it.session) } } }
        }
    }
}

fn last_holds(glance: &Glance, lock: &LockGlance) -> Markup {
    let holds: Vec<_> = lock.past.holds.iter().rev().take(ROWS).collect();
    html! {
        h2 { "Last holds" }
        @if holds.is_empty() {
            p { "No hold ended " (observed(glance)) "." }
        } @else {
            div.scroll #holds tabindex="0" role="region" aria-label="Last holds" {
                table.rows {
                    caption { "The holds that ended " (observed(glance)) ", the last one first." }
                    thead { tr {
                        th scope="col" { "holder" } th.number scope="col" { "held for" } th scope="col" { "ended" }
                        th scope="col" { "how" } th scope="col" { "message" }
                    } }
                    tbody { @for hold in &holds { (past_hold(glance, hold)) } }
                }
            }
            (more(lock.past.holds.len(), holds.len(), "holds"))
        }
    }
}

fn past_hold(glance: &Glance, hold: &PastHold) -> Markup {
    let ended = UNIX_EPOCH + millis(hold.ended.wall_ms);
    let time = format_rfc3339_seconds(ended).to_string();
    // `2026-11-27T14:31:05Z`
    let clock = time.get(11..19).unwrap_or(&time);
    html! {
        tr {
            th.who scope="row" { (who(hold.contender.who.as_deref())) }
            td.number { (about(hold.held, hold.about)) }
            td { time datetime=(time) { (clock) " UTC" } ", " (spell(glance.now.since(hold.ended))) " ago" }
            td.who { @if hold.how.is_loss() { span.bad { "× lost" } ": " } (end(&hold.how)) }
            td.who { @if let Some(message) = &hold.contender.message { (plain(message)) } }
        }
    }
}

fn end(how: &End) -> String {
    match how {
        End::Released => "released".to_owned(),
        End::Revoked { by } => format!("released, as asked: {}", plain(by)),
        End::Broken { by, reason } => format!("broken by {}: {}", plain(by), plain(reason)),
        End::Lost { why } => plain(why),
        End::SessionOver => "its session is over".to_owned(),
        End::TakenOver => "another owner took the lease".to_owned(),
        End::Unknown => "released, or its session is over".to_owned(),
    }
}

/// The lanes of a lock, so many at most.
fn lanes(glance: &Glance, lock: &LockGlance, most: usize, has_ticks: bool) -> Markup {
    let axis = Axis::new(glance.now);
    let lanes = axis.lanes(lock);
    let unknown = axis.unknown(lock, &glance.gaps);
    let (shown, rest) = lanes.split_at(lanes.len().min(most));
    let (holds, losses) = rest.iter().fold((0, 0), |(holds, losses), it| (holds + it.holds, losses + it.losses));
    html! {
        @if shown.is_empty() { p.muted { "No hold of it was seen " (observed(glance)) "." } }
        ul.plain {
            @for lane in shown {
                li.lane {
                    span.who title=(lane.who) { (lane.who) }
                    (drawn(lane, &unknown))
                }
            }
        }
        @if !rest.is_empty() {
            p.muted {
                "and " (rest.len()) " more holders with " (holds) " holds"
                @if losses > 0 { ", " (losses) " of them lost" }
            }
        }
        @if has_ticks && !shown.is_empty() {
            div."lane axis" aria-hidden="true" {
                span {}
                ol { @for tick in axis.ticks() { li { (tick) } } }
            }
        }
    }
}

fn drawn(lane: &Lane, unknown: &[Bar]) -> Markup {
    let mut label = format!("{} holds", lane.holds);
    if lane.losses > 0 {
        _ = write!(label, ", {} lost", lane.losses);
    }
    if !lane.now.is_empty() {
        label.push_str(", holds it now");
    }
    let marks = lane.lost.iter().rev().take(MARKS);
    html! {
        svg role="img" aria-label=(label) {
            title { (label) }
            svg viewBox=(format!("0 0 {UNITS} 10")) preserveAspectRatio="none" width="100%" height="16" {
                rect.track y="1" width=(UNITS) height="8" {}
                path.grid d="M250 0v10M500 0v10M750 0v10" vector-effect="non-scaling-stroke" {}
                @if !unknown.is_empty() { path.unknown d=(bars(unknown, 1, 8)) {} }
                @if !lane.past.is_empty() { path.past d=(bars(&lane.past, 2, 6)) {} }
                @if !lane.now.is_empty() { path.now d=(bars(&lane.now, 1, 8)) {} }
            }
            @for at in marks { (cross(&format!("{}%", *at as f64 * 100.0 / UNITS as f64))) }
        }
    }
}

/// The mark of a loss, which is not only another colour.
fn cross(x: &str) -> Markup {
    const CROSS: &str = "M-4 4L4 12M4 4L-4 12";
    html! { svg x=(x) overflow="visible" { path.halo d=(CROSS) {} path.lost d=(CROSS) {} } }
}

fn bars(bars: &[Bar], top: u32, height: u32) -> String {
    let mut path = String::with_capacity(bars.len() * 16);
    for Bar { from, to } in bars {
        let width = to - from;
        // Writing to a string never fails.
        _ = write!(path, "M{from} {top}h{width}v{height}h-{width}z");
    }
    path
}

fn key() -> Markup {
    let sample = |class: &str| html! { svg aria-hidden="true" { rect class=(class) y="2" width="18" height="8" {} } };
    html! {
        p.key {
            span { (sample("past")) " held" }
            span { (sample("now")) " held now" }
            span { svg aria-hidden="true" { svg x="9" y="-2" overflow="visible" { path.lost d="M-4 4L4 12M4 4L-4 12" {} } } " lost" }
            span { (sample("unknown")) " not observed" }
        }
    }
}

fn holders(lock: &LockGlance) -> Markup {
    html! {
        @match oldest_holder(lock) {
            Some(oldest) => {
                (who(Some(&oldest.described)))
                @if lock.since.holders > 1 { " and " (lock.since.holders - 1) " more" }
            }
            None => span.muted { "nobody" }
        }
    }
}

fn oldest_holder(lock: &LockGlance) -> Option<&ContenderInfo> {
    lock.lock.holders.iter().min_by_key(|holder| holder.observed.map(|it| it.since))
}

fn held_for(glance: &Glance, lock: &LockGlance) -> String {
    oldest_holder(lock).map_or_else(|| NONE.to_owned(), |oldest| held_so_far(glance, oldest))
}

fn oldest_wait(glance: &Glance, lock: &LockGlance) -> String {
    lock.lock.waiters.first().map_or_else(|| NONE.to_owned(), |first| waited_so_far(glance, first))
}

fn waits(past: &Past) -> (String, String) {
    let text = |ms: u32| spell(Duration::from_millis(u64::from(ms)));
    past.waits.map_or_else(|| (NONE.to_owned(), NONE.to_owned()), |(p50, p99)| (text(p50), text(p99)))
}

/// How often a lock is granted, as far as it was observed.
fn grants(glance: &Glance, past: &Past) -> String {
    let (hour, now) = (WINDOW.as_millis() as i64, glance.now.ms);
    let window = (now - past.waits_since_ms.max(0).max(now - hour)).max(1);
    if window >= hour {
        return format!("{}/h", past.grants);
    }
    if past.waits_since_ms > 0 {
        // Only the last ones are kept.
        return format!("about {}/h", past.grants as i64 * hour / window);
    }
    format!("{} in {}", past.grants, spell(millis(window)))
}

/// `in the last hour`, or since the observer's start.
fn observed(glance: &Glance) -> String {
    match millis(glance.now.ms) {
        since if since >= WINDOW => "in the last hour".to_owned(),
        since => format!("in the {} since the observer's start", spell(since)),
    }
}

fn who(who: Option<&str>) -> String {
    who.filter(|who| !who.is_empty()).map_or_else(|| UNNAMED.to_owned(), plain)
}

fn about(time: Duration, is_about: bool) -> String {
    let about = if is_about { "about " } else { "" };
    format!("{about}{}", spell(time))
}

/// How long a holder has held its lock: at least so long if its grant was not seen.
fn held_so_far(glance: &Glance, holder: &ContenderInfo) -> String {
    let (held, is_least) = lasted(glance, holder);
    format!("{}{}", if is_least { "at least " } else { "" }, spell(held))
}

fn waited_so_far(glance: &Glance, waiter: &ContenderInfo) -> String {
    let (waited, is_about) = lasted(glance, waiter);
    about(waited, is_about)
}

/// How long a contender has held the lock or waited, and whether that is not exact.
fn lasted(glance: &Glance, contender: &ContenderInfo) -> (Duration, bool) {
    let lasted = |since| glance.now.wall_time().duration_since(since).unwrap_or_default();
    contender.observed.map_or((Duration::ZERO, true), |it| (lasted(it.since), it.about))
}

/// How long ago that was; `None` for a time in the future, of a server whose clock is ahead.
fn ago(glance: &Glance, then: SystemTime) -> Option<String> {
    Some(spell(glance.now.wall_time().duration_since(then).ok()?))
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

use std::collections::HashMap;
use std::sync::Arc;

use lockkeeper::admin::{ContenderInfo, LockInfo, Observed};
use lockkeeper::contest::{Contest, OwnNode};
use lockkeeper_session::Zxid;
use lockkeeper_session::ensemble::Node;

use super::*;
use crate::deadlock::{Certainty, Deadlock, among};
use crate::watch::recent::{Past, PastHold};
use crate::watch::{Contender, End, Glance, JobHealth, JobLine, Jobs, LockGlance, Moment, Since, Totals, TreeState};

const EVIL: &str = "</td><script>alert(1)</script>\"'&\u{202e}\u{1b}[2J";

fn moment(ms: i64) -> Moment {
    Moment { ms, wall_ms: 1_764_200_000_000 + ms }
}

fn contender(who: &str, since: Moment) -> ContenderInfo {
    let mut info = ContenderInfo::unread("n".to_owned());
    (info.described, info.message) = (who.to_owned(), Some(EVIL.to_owned()));
    info.observed = Some(Observed { since: since.wall_time(), about: false });
    info
}

/// An hour of a lock with texts that want to be more than texts.
fn glance(path: &str, who: &str) -> Glance {
    let now = moment(7_200_000);
    let how = End::Broken { by: EVIL.to_owned(), reason: EVIL.to_owned() };
    let (named, message, session) = (Some(who.to_owned()), Some(EVIL.to_owned()), None);
    let node = format!("{path}/n").into();
    let past = Contender { lock: path.into(), node, who: named, message, mode: "exclusive", session };
    let (held, ended) = (Duration::from_secs(2), moment(7_100_000));
    let holds = vec![PastHold { contender: past.into(), held, ended, how, about: true }];
    let past = Past { holds, holds_since_ms: i64::MIN, grants: 4_200, waits: Some((830, 3_010)), waits_since_ms: 0 };
    let (held, waiting) = (moment(7_197_000), moment(7_198_000));
    let since = Since { waiters: 1, holders: 1, held: Some(held), waiting: Some(waiting) };
    let mut lock = LockInfo::unused(path);
    (lock.holders, lock.waiters) = (vec![contender(who, held)], vec![contender(who, waiting)]);
    lock.sessionless = vec![contender(who, held); 2];
    let totals = Totals { in_use: 1, waiters: 1, holders: 1, ..Totals::default() };
    let tree = TreeState { root: "/locks".into(), servers: who.into(), connected: false, totals };
    Glance {
        now,
        trees: vec![tree],
        deadlocks: Arc::from([]),
        jobs: vec![],
        gaps: vec![],
        waited_for: 1,
        locks: vec![LockGlance { lock, since, past }],
        others: 3,
    }
}

fn command(words: &[&str]) -> String {
    format!("lockkeeper {}", words.join(" "))
}

/// A contender of a foreign client, which holds or waits.
fn info(session: i64, who: &str, sequence: u32) -> ContenderInfo {
    let node = Node {
        data: who.as_bytes().to_vec(),
        czxid: Zxid(i64::from(sequence)),
        mzxid: Zxid(i64::from(sequence)),
        pzxid: Zxid(i64::from(sequence)),
        ctime_ms: 1_764_200_000_000,
        mtime_ms: 1_764_200_000_000,
        version: 0,
        owner: lockkeeper::admin::SessionId(session),
        children: 0,
    };
    ContenderInfo::read(format!("0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__{sequence:010}"), &node)
}

/// So many sessions, each with a lock, that wait for each other.
pub(crate) fn ring(count: i64, who: &str) -> Vec<Deadlock> {
    let lock = |at: i64| {
        let waiter = (at + count - 1) % count;
        let known = [info(at + 1, who, 0), info(waiter + 1, who, 1)].map(|info| (info.node.clone(), info));
        let (path, names) = (format!("/locks/{at}"), [0, 1].map(|at| known[at].0.clone()));
        let known = known.into();
        Contest::new(&path, &names, &known).described(&OwnNode::default(), |_| None)
    };
    among(&(0..count).map(lock).collect::<Vec<_>>())
}

#[test]
fn no_text_of_a_node_becomes_markup_or_moves_the_text() {
    let mut glance = glance(&format!("/locks/{EVIL}"), EVIL);
    glance.deadlocks = ring(3, EVIL).into();
    assert_eq!(glance.deadlocks.len(), 1);
    let [path, state, slot, started, took, host, notes] = std::array::from_fn(|_| EVIL.to_owned());
    let lines = vec![JobLine { path, state, health: JobHealth::Failed, slot, started, took, host, notes }];
    glance.jobs = vec![Arc::new(Jobs { lines, problem: Some(EVIL.to_owned()) })];
    for page in [view::all(&glance, &command), view::one(&glance, &command)] {
        let page = page.into_string();
        assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
        assert_eq!(page.matches("<script").count(), 1, "only the page's own: {page}");
        assert!(!page.contains('\u{202e}') && !page.contains('\u{1b}'), "{page}");
        assert!(!page.contains("\"'&\\"), "quotes are escaped: {page}");
        assert!(!page.contains(" style="), "the policy does not allow it");
    }
}

#[test]
fn a_page_says_what_is_known_of_a_lock() {
    let glance = glance("/locks/import jobs", "root@db7 (pid 12)");
    let page = view::all(&glance, &command).into_string();
    for text in [
        "<title>(1) Locks - Lockkeeper</title>",
        "<a href=\"/lock?path=/locks/import%20jobs\">/locks/import jobs</a>",
        "4200/h",
        ">830 ms<",
        ">3 s<",
        "root@db7 (pid 12)",
        "2 holds, 1 lost, holds it now",
        "lockkeeper why /locks/import jobs",
        "And 3 more locks",
        "2 without a session",
        "not seen now",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let page = view::one(&glance, &command).into_string();
    for text in ["about 2 s", "1 min 40 s ago", "× lost", "lockkeeper history /locks/import jobs", "<td>waits</td>"] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[test]
fn a_lock_that_was_never_seen_has_a_page_that_says_so() {
    let (lock, since) = (LockInfo::unused("/locks/none"), Since::default());
    let past = Past { holds_since_ms: i64::MIN, waits_since_ms: i64::MIN, ..Past::default() };
    let locks = vec![LockGlance { lock, since, past }];
    let glance = Glance { now: moment(90_000), locks, ..glance("/x", "x") };
    let page = view::one(&glance, &command).into_string();
    assert!(page.contains("No contender is in its queue.") && page.contains("No hold ended in the 1 min 30 s since"));
}

#[test]
fn a_ring_is_drawn_unless_it_is_long_and_its_certainty_is_said() {
    let mut glance = glance("/locks/0", "x");
    glance.deadlocks = ring(3, "10.0.0.7").into();
    assert_eq!(glance.deadlocks[0].certainty, Certainty::Likely);
    let page = view::all(&glance, &command).into_string();
    assert_eq!(page.matches("class=\"party\"").count(), 3);
    assert_eq!(page.matches("class=\"edge\"").count(), 3);
    assert!(page.contains("Deadlock 1: likely, unless other threads"), "{page}");
    assert!(page.contains("href=\"/#deadlock-1\"") && page.contains("lockkeeper deadlocks"));
    glance.deadlocks = ring(17, "10.0.0.7").into();
    let page = view::all(&glance, &command).into_string();
    assert_eq!(page.matches("class=\"party\"").count(), 0);
    assert!(page.contains("it waits for /locks/"), "{page}");
}

#[test]
fn tables_have_captions_and_scopes_and_parts_have_names() {
    let glance = glance("/locks/a", "x");
    for page in [view::all(&glance, &command), view::one(&glance, &command)] {
        let page = page.into_string();
        let count = |text: &str| page.matches(text).count();
        assert_eq!(count("<table"), count("<caption>"));
        assert_eq!(count("<th "), count(" scope=\""));
        assert_eq!((count("<h1"), count("<main"), count("<header"), count("<footer")), (1, 1, 1, 1));
        assert!(count("role=\"img\"") > 0 && count("role=\"img\"") <= count("<title"));
        let parts: Vec<_> = page.split(" data-part=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        let names: std::collections::HashSet<_> = parts.iter().collect();
        assert!(parts.len() > 1 && names.len() == parts.len(), "{parts:?}");
    }
}

#[test]
fn the_address_of_a_lock_leads_to_it() {
    for path in ["/locks/a", "/locks/a b&path=/c?d#e%41+", "/locks/\u{e9}\u{202e}"] {
        let link = parts::link(path).into_string();
        let query = link.split("href=\"/lock?").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(path_of(query).as_deref(), Some(path));
    }
    for wrong in ["", "path=", "path=a", "path=%ff%2f", "x=/a"] {
        assert_eq!(path_of(wrong), None, "{wrong}");
    }
}

/// The relative luminance of WCAG 2.
fn luminance(colour: &str) -> f64 {
    let part = |at: usize| {
        let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// WCAG AA: 4.5 for text, 3 for what a picture says, in both schemes.
#[test]
fn colours_have_enough_contrast_in_both_schemes() {
    assert!((contrast("#ffffff", "#000000") - 21.0).abs() < 0.01);
    assert!((contrast("#ffffff", "#767676") - 4.54).abs() < 0.01);
    let css = include_str!("page.css");
    let schemes: Vec<HashMap<_, _>> = css
        .split(":root {")
        .skip(1)
        .map(|block| {
            let lines = block.split('}').next().unwrap().lines();
            lines.filter_map(|line| line.trim().strip_prefix("--")?.strip_suffix(';')?.split_once(": ")).collect()
        })
        .collect();
    assert_eq!((schemes.len(), schemes[0].len()), (2, schemes[1].len()));
    for scheme in schemes {
        let of = |one: &str, other: &str| contrast(scheme[one], scheme[other]);
        for text in ["text", "muted", "link", "lost", "warn", "good"] {
            for back in ["back", "raised"] {
                assert!(of(text, back) >= 4.5, "{text} on {back}: {:.2} {scheme:?}", of(text, back));
            }
        }
        for (bar, back) in
            [("past", "track"), ("now", "track"), ("past", "unknown"), ("now", "unknown"), ("lost", "track")]
        {
            assert!(of(bar, back) >= 3.0, "{bar} on {back}: {:.2} {scheme:?}", of(bar, back));
        }
    }
}

/// Events come soon, after a change, and no more than one in a second.
#[tokio::test(start_paused = true)]
async fn events_are_bounded_in_time() {
    use futures_util::StreamExt;

    let version = watch::Sender::new(0_u64);
    let begun = Instant::now();
    let mut events = Box::pin(events_of(version.subscribe(), Ticks(begun)));
    assert!(events.next().await.is_some());
    assert_eq!(begun.elapsed(), PAUSE);
    version.send_modify(|version| *version += 1);
    version.send_modify(|version| *version += 1);
    assert!(events.next().await.is_some());
    assert_eq!(begun.elapsed(), PAUSE * 2);
    // Both changes were one event. The next one is for the ages.
    assert!(events.next().await.is_some());
    assert_eq!(begun.elapsed(), PAUSE * 3 + REFRESH);
    drop(version);
    assert!(events.next().await.is_none());
}

/// Many pages cost one drawing a second, and what an event tells of is in it.
#[tokio::test(start_paused = true)]
async fn a_page_is_drawn_once_between_two_events() {
    let page = Page {
        observation: Observation::new(crate::watch::Options::default()),
        command: Arc::new(command),
        followers: Arc::new(Semaphore::new(1)),
        ticks: Ticks(Instant::now()),
        drawn: Arc::default(),
    };
    let drawn = async |page: &Page| {
        let body = all(State(page.clone())).await.into_body();
        String::from_utf8(axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap()
    };
    assert!(!drawn(&page).await.contains("Deadlock 1"));
    let mut events = Box::pin(events_of(page.observation.changes(), page.ticks));
    page.observation.set_deadlocks(ring(2, "x"));
    assert!(!drawn(&page).await.contains("Deadlock 1"));
    assert!(futures_util::StreamExt::next(&mut events).await.is_some());
    assert!(drawn(&page).await.contains("Deadlock 1"));
}

/// The page stays small, and says that it does not show all. `--nocapture` prints what it costs.
#[test]
fn ten_thousand_locks_and_their_grants_make_a_page_of_a_hundred_rows() {
    let (grants, rounds) = (20_000, 5);
    let (observation, took) = crate::watch::busy(10_000, grants);
    let (mut glanced, mut drawn, mut page) = (Duration::ZERO, Duration::ZERO, String::new());
    for _ in 0..rounds {
        let begun = std::time::Instant::now();
        let glance = observation.glance(LOCKS, EACH);
        glanced += begun.elapsed();
        page = view::all(&glance, &command).into_string();
        drawn += begun.elapsed();
    }
    println!(
        "10000 locks: {:?} a grant; a page of {} kB in {:?}, of which the observer is held up for {:?}",
        took / grants as u32,
        page.len() / 1_000,
        drawn / rounds,
        glanced / rounds
    );
    assert_eq!(page.matches("<tbody").count(), LOCKS);
    assert!(page.contains("And 9900 more locks"), "{page}");
    assert!(page.len() < 400_000, "{}", page.len());
}

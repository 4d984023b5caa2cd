//! Text for people, about locks and times.
//!
//! Messages, owners and node names are written by other programs. None of it reaches a terminal unescaped: otherwise
//! every writer of a lock's node could move the cursor, change the window's title or fake a line.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lockkeeper::Revocation;
use lockkeeper::admin::{Broken, ContenderInfo, LeaseInfo, LockInfo, Owner, RequestorInfo};
pub(crate) use lockkeeper_session::node_path;
use lockkeeper_session::text::excerpt;
pub(crate) use lockkeeper_session::text::is_active;

/// Returns text of unknown origin as a single line, without what a terminal would interpret, and without what the runner of GitHub
/// Actions would: in a log it takes `##[name]` for a command, anywhere in a line.
pub(crate) fn plain(text: &str) -> String {
    static IS_RUNNER: LazyLock<bool> = LazyLock::new(|| std::env::var_os("GITHUB_ACTIONS").is_some());
    let text = lockkeeper_session::text::plain(text);
    if *IS_RUNNER { text.replace("##[", "## [") } else { text }
}

/// The longest line about a command line or its values.
const LONGEST: usize = 2000;

/// Returns a message with its beginning and its end only, if it is very long: a value in it may be.
pub(crate) fn trimmed(message: &str) -> Cow<'_, str> {
    if message.len() <= LONGEST {
        return message.into();
    }
    let (head, tail) =
        (message.floor_char_boundary(LONGEST / 4), message.ceil_char_boundary(message.len() - LONGEST / 4));
    format!("{}… ({} bytes left out) …{}", &message[..head], tail - head, &message[tail..]).into()
}

/// `1 node`, `2 nodes`
pub(crate) fn counted(count: impl Into<u64>, one: &str) -> String {
    match count.into() {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}

/// `812 bytes`, `1.8 MB`
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_000 => counted(count, "byte"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

/// Returns the time of day, with the date if that is not today's.
pub(crate) fn moment(time: SystemTime) -> String {
    let Ok(time) = Timestamp::try_from(time) else {
        return "?".to_owned();
    };
    let zone = TimeZone::system();
    let (time, now) = (time.to_zoned(zone.clone()), Timestamp::now().to_zoned(zone));
    let format = if time.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.strftime(format).to_string()
}

/// Returns a time of the servers, in milliseconds since 1970, in this machine's zone.
pub(crate) fn when_ms(ms: i64) -> String {
    match u64::try_from(ms) {
        Ok(ms) => moment(SystemTime::UNIX_EPOCH + Duration::from_millis(ms)),
        Err(_) => "?".to_owned(),
    }
}

/// `build@ci-7 (pid 4711), reading, since 10:42:03 (nightly index)`
pub(crate) fn who(contender: &ContenderInfo) -> String {
    who_and(contender, |_| String::new())
}

/// The same, with a text behind the time of the grant, or of the queue's if that is all that is known.
pub(crate) fn who_and(contender: &ContenderInfo, age: impl Fn(SystemTime) -> String) -> String {
    let since = since_and(contender, age);
    let mut text = match part(contender) {
        // The record of a lease does not say when the hold began.
        Some(part) if !since.is_empty() => {
            format!("{}, {part},{}", described(contender), since.trim_start_matches(','))
        }
        _ => format!("{}{since}", described(contender)),
    };
    if let Some(message) = &contender.message {
        _ = write!(text, " ({})", excerpt(message));
    }
    if let Some(request) = &contender.revocation {
        _ = write!(text, ", {}", revocation(&brief(request)));
    }
    plain(&text)
}

/// ` since 10:42:03`; ` since 10:42:03, queued since 10:40:11` of a holder that waited for more than a second; where the time of the
/// grant is not known, the bounds that are known and the time of the queue. A record of a lease does not say when the hold began, and a tombstone not when its hold was
/// lost.
pub(crate) fn since(contender: &ContenderInfo) -> String {
    since_and(contender, |_| String::new())
}

fn since_and(contender: &ContenderInfo, age: impl Fn(SystemTime) -> String) -> String {
    let queued = contender.queued_since().map_or_else(String::new, |since| format!(", queued since {}", moment(since)));
    match contender.mode {
        "lease" => String::new(),
        _ if contender.abandoned => {
            format!(", held since {}; when it was abandoned is not known", moment(contender.since))
        }
        _ => match contender.bounds(|time| moment(time) + &age(time)) {
            Some(bounds) => bounds + &queued,
            None => queued + &age(contender.since),
        },
    }
}

/// Who it is. A foreign client may have written any text.
pub(crate) fn described(contender: &ContenderInfo) -> Cow<'_, str> {
    match contender.owner {
        Some(_) => Cow::Borrowed(&contender.described),
        None => excerpt(&contender.described),
    }
}

/// Returns the words before the holder of a lock: the first one, or one of several.
pub(crate) const fn held_by(at: usize) -> &'static str {
    if at == 0 { "held by" } else { "and by" }
}

/// What is said of a node without a session.
pub(crate) const SESSIONLESS: &str = "no session, so it stays until it is deleted; Curator and Kazoo wait behind it";

/// `nobody holds it: 10.0.0.7, queued since 10:42:03, a foreign client, waits behind the node /a/lock-0000000000, which has no
/// session`, if that is so.
pub(crate) fn stuck(lock: &LockInfo) -> Option<String> {
    let (node, who) = (lock.blocked_by()?, who(lock.waiters.first()?));
    Some(plain(&format!(
        "nobody holds it: {who}, a foreign client, waits behind the node {node}, which has no session"
    )))
}

/// `for a lease until 10:42:03 by the server's clock, with priority 1`
pub(crate) fn term(lease: &LeaseInfo) -> String {
    let end = match lease.until {
        Some(until) => format!("until {} by the server's clock", moment(until)),
        None => "without an end".to_owned(),
    };
    format!("for a lease {end}, with priority {}", lease.priority)
}

/// `wanted by online-1 with priority 5 since 10:42:03`
pub(crate) fn wanted(requestor: &RequestorInfo) -> String {
    let mut text = format!(
        "wanted by {} with priority {} since {}",
        excerpt(&requestor.id),
        requestor.priority,
        moment(requestor.since)
    );
    if let Some(until) = requestor.until {
        _ = write!(text, ", which waits until {} at the latest", moment(until));
    }
    plain(&text)
}

/// Returns the part of the lock that is held or requested, unless it is the whole lock.
pub(crate) fn part(contender: &ContenderInfo) -> Option<String> {
    match (contender.mode, contender.permits, &contender.class) {
        (_, Some(permits), _) => Some(counted(permits, "permit")),
        (_, _, Some(class)) => Some(format!("class {class}")),
        ("read", ..) => Some("reading".to_owned()),
        ("write", ..) => Some("writing".to_owned()),
        _ => None,
    }
}

/// Returns how many contenders are ahead of this waiter: all holders, and the waiters before it.
pub(crate) fn ahead(lock: &LockInfo, waiter: usize) -> usize {
    lock.holders.len() + waiter
}

/// `2 of 3 permits taken`; of Curator's semaphore `2 permits taken; only its clients know how many there are`
pub(crate) fn permits(lock: &LockInfo) -> Option<String> {
    let taken: u32 = lock.holders.iter().map(|holder| holder.permits.unwrap_or(1)).sum();
    if lock.semaphore.is_some() && lock.permits.is_none() {
        return Some(format!("{} taken; only its clients know how many there are", counted(taken, "permit")));
    }
    lock.permits.map(|permits| format!("{taken} of {} taken", counted(permits, "permit")))
}

/// `asked to release by ops@desk (pid 9): deploying`
pub(crate) fn revocation(request: &Revocation) -> String {
    let mut text = match (&request.by, &request.reason) {
        (None, Some(_)) => "asked to release".to_owned(),
        _ => format!("asked to release by {}", asker(request)),
    };
    if let Some(reason) = &request.reason {
        _ = write!(text, ": {reason}");
    }
    if let Some(why) = &request.refused {
        _ = write!(text, "; refuses: {why}");
    }
    text
}

/// The same request with short texts.
pub(crate) fn brief(request: &Revocation) -> Revocation {
    let mut brief = request.clone();
    for text in brief.reason.iter_mut().chain(&mut brief.refused) {
        *text = excerpt(text).into_owned();
    }
    brief
}

pub(crate) fn asker(request: &Revocation) -> String {
    request.by.as_ref().map_or_else(|| "someone unnamed".to_owned(), Owner::to_string)
}

/// `2026-11-20 10:42:03  /locks/nightly  build@ci-7 (pid 4711) removed by op@desk (pid 7): its host is gone`
pub(crate) fn broken_line(broken: &Broken) -> String {
    let at = Timestamp::try_from(broken.at).map(|at| at.to_zoned(TimeZone::system()));
    let at = at.map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    let Broken { path, described, by, proof, reason, .. } = broken;
    plain(&format!("{at}  {path}  {described} removed by {by}{proof}: {reason}"))
}

//! Laws of the pure parts, checked against restatements that are too slow or too plain to ship.

use std::time::Duration;

use lockkeeper_core::{
    AttemptId, Contender, Dialect, Discipline, Event, Failure, Inspection, LinkClock, Listing, LockPath, Loss, Mode,
    Queue, Sequence, SessionId, Testimony, Trust, Verdict, Watch, Zxid, decide,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

/// Counterexamples worth keeping become named tests, so nothing is written beside the sources.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() }
}

const DIALECTS: [Dialect; 2] = [Dialect::Curator, Dialect::Recipe];
const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Read];

fn name(dialect: Dialect, mode: Mode, id: u128, sequence: i32) -> String {
    let prefix = dialect.prefix(mode, AttemptId::new(id)).expect("both dialects name both modes");
    format!("{prefix}{}", Sequence::new(sequence))
}

/// A queue in order: distinct numbers from anywhere on the circle, close together or far apart, readers and writers.
fn queue() -> impl Strategy<Value = Vec<String>> {
    let offsets = prop_oneof![btree_set(0..40u32, 0..9), btree_set(0..(1u32 << 31), 0..9)];
    (select(&DIALECTS[..]), any::<i32>(), offsets, vec(select(&MODES[..]), 9), any::<u128>()).prop_map(
        |(dialect, start, offsets, modes, id)| {
            let sequences = offsets.into_iter().map(|offset| start.wrapping_add_unsigned(offset));
            let ids = (0..).map(|i: u128| id.wrapping_mul(2 * i + 1).wrapping_add(i));
            sequences.zip(modes).zip(ids).map(|((seq, mode), id)| name(dialect, mode, id, seq)).collect()
        },
    )
}

fn dialect_of(names: &[String]) -> Dialect {
    if names.first().is_some_and(|name| name.starts_with("_c_")) { Dialect::Curator } else { Dialect::Recipe }
}

fn reads(name: &str) -> bool {
    dialect_of(&[name.to_owned()]).parse(name).is_some_and(|node| node.mode == Mode::Read)
}

const BARRIER: &str = "privateLock";

fn disciplines() -> impl Strategy<Value = Discipline> {
    prop_oneof![
        Just(Discipline::Exclusive),
        Just(Discipline::SharedExclusive),
        (0..5u32).prop_map(|permits| Discipline::Permits { permits }),
        Just(Discipline::Classes { barrier: BARRIER.to_owned() }),
    ]
}

/// What `decide` says to `me`, kept beyond the queue it was said of.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Granted,
    TakeBarrier,
    Missing,
    Deleted { name: String, grants: bool },
    GrantedOrDeleted(String),
    Children,
    BarrierGone,
}

fn judge(discipline: &Discipline, names: &[String], me: &str) -> Said {
    let queue = Queue::read_with_barrier(dialect_of(names), discipline.barrier(), names);
    match decide(discipline, &queue, me) {
        Verdict::Granted => Said::Granted,
        Verdict::TakeBarrier => Said::TakeBarrier,
        Verdict::Missing => Said::Missing,
        Verdict::Blocked(Watch::Deleted { name, grants }) => Said::Deleted { name: name.to_owned(), grants },
        Verdict::Blocked(Watch::GrantedOrDeleted(name)) => Said::GrantedOrDeleted(name.to_owned()),
        Verdict::Blocked(Watch::Children) => Said::Children,
        Verdict::Blocked(Watch::BarrierGone) => Said::BarrierGone,
    }
}

/// The rule itself, restated: may the one at `me` hold, given who stands before it?
fn may_hold(discipline: &Discipline, names: &[String], me: usize) -> bool {
    match discipline {
        Discipline::Exclusive => me == 0,
        Discipline::SharedExclusive if reads(&names[me]) => names[..me].iter().all(|name| reads(name)),
        Discipline::SharedExclusive => me == 0,
        // No dialect prints a number of permits yet: each asks for one.
        Discipline::Permits { permits } => me < *permits as usize,
        // Nobody holds by the queue alone.
        Discipline::Classes { .. } => false,
    }
}

fn without(names: &[String], gone: &str) -> Vec<String> {
    names.iter().filter(|name| *name != gone).cloned().collect()
}

proptest! {
    #![proptest_config(config())]

    /// N-25, N-27, N-29, N-30, T-15, T-19, T-22: who holds is exactly who may; so exclusion and
    /// first come, first served are those of the rule.
    #[test]
    fn granted_is_who_the_rule_lets_hold(discipline in disciplines(), names in queue()) {
        let holders: Vec<bool> = names.iter().map(|me| judge(&discipline, &names, me) == Said::Granted).collect();
        let allowed: Vec<bool> = (0..names.len()).map(|me| may_hold(&discipline, &names, me)).collect();
        prop_assert_eq!(&holders, &allowed);
        let count = holders.iter().filter(|holds| **holds).count();
        match discipline {
            Discipline::Exclusive => prop_assert!(count <= 1),
            Discipline::SharedExclusive => {
                let writers = names.iter().zip(&holders).filter(|(name, holds)| **holds && !reads(name)).count();
                prop_assert!(writers == 0 || count == 1);
            }
            Discipline::Permits { permits } => {
                prop_assert!(count <= permits as usize);
                // No one overtakes.
                prop_assert!(holders.is_sorted_by(|older, younger| older >= younger));
            }
            Discipline::Classes { .. } => prop_assert_eq!(count, 0),
        }
    }

    /// The first takes the barrier, or waits for it; nobody else thinks of it.
    #[test]
    fn only_the_first_in_line_takes_the_barrier(names in queue(), taken in any::<bool>()) {
        let discipline = Discipline::Classes { barrier: BARRIER.to_owned() };
        let mut listed = names.clone();
        listed.extend(taken.then(|| BARRIER.to_owned()));
        for (i, me) in names.iter().enumerate() {
            let expected = match i {
                0 if taken => Said::BarrierGone,
                0 => Said::TakeBarrier,
                _ => Said::Deleted { name: names[i - 1].clone(), grants: false },
            };
            prop_assert_eq!(judge(&discipline, &listed, me), expected);
        }
    }

    /// What is watched is there and older; and following the watches from anyone leads to one who can go on.
    #[test]
    fn every_chain_of_watches_leads_to_a_holder(discipline in disciplines(), names in queue()) {
        for start in 0..names.len() {
            let mut at = start;
            loop {
                match judge(&discipline, &names, &names[at]) {
                    Said::Deleted { name, .. } | Said::GrantedOrDeleted(name) => {
                        let watched = names.iter().position(|other| *other == name);
                        prop_assert!(watched.is_some_and(|watched| watched < at), "{} watches {name}", names[at]);
                        at = watched.expect("just seen");
                    }
                    // The first waiter hears of each holder that goes; with no permits at all there is none.
                    Said::Children => {
                        let Discipline::Permits { permits } = discipline else { panic!("only permits watch children") };
                        prop_assert_eq!(at, permits as usize);
                        break;
                    }
                    Said::Granted | Said::TakeBarrier => break,
                    said => prop_assert!(false, "{at} is told {said:?}"),
                }
            }
        }
    }

    /// Whoever's going lets me hold, my watch fires for it; and `grants` is said exactly when the going of the watched
    /// node alone is enough, whoever came behind me meanwhile.
    #[test]
    fn no_going_that_lets_me_hold_is_missed(discipline in disciplines(), names in queue(), newcomers in 0..3usize) {
        for (i, me) in names.iter().enumerate() {
            let said = judge(&discipline, &names, me);
            for gone in names.iter().filter(|name| *name != me) {
                if judge(&discipline, &without(&names, gone), me) != Said::Granted {
                    continue;
                }
                let fires = match &said {
                    Said::Granted | Said::Children => true,
                    Said::Deleted { name, .. } | Said::GrantedOrDeleted(name) => name == gone,
                    _ => false,
                };
                prop_assert!(fires, "{me} is told {said:?} and hears nothing of {gone}");
            }
            if let Said::Deleted { name, grants } = said {
                let later = names.len().min(i + 1 + newcomers);
                let enough = judge(&discipline, &without(&names[..later], &name), me) == Said::Granted;
                prop_assert_eq!(grants, enough);
            }
        }
    }

    /// T-16, T-21: Curator's readers watch the first writer and wake for each; ours the nearest, and wake once.
    #[test]
    fn a_reader_watches_the_nearest_older_writer(names in queue()) {
        for (i, me) in names.iter().enumerate().filter(|(_, name)| reads(name)) {
            let nearest = names[..i].iter().rev().find(|name| !reads(name));
            match judge(&Discipline::SharedExclusive, &names, me) {
                Said::Granted => prop_assert_eq!(nearest, None),
                Said::Deleted { name, .. } => prop_assert_eq!(nearest, Some(&name)),
                said => prop_assert!(false, "{said:?}"),
            }
        }
    }

    /// One watcher a node, where one at a time is let in: a going wakes one.
    #[test]
    fn nobody_shares_a_watch(names in queue(), permits in 1..5u32) {
        for discipline in [Discipline::Exclusive, Discipline::Permits { permits }] {
            let mut watched: Vec<_> = names.iter().map(|me| judge(&discipline, &names, me)).collect();
            watched.retain(|said| *said != Said::Granted);
            for (i, said) in watched.iter().enumerate() {
                prop_assert!(!watched[..i].contains(said), "two wait for {said:?}");
            }
        }
    }

    #[test]
    fn whoever_is_not_listed_is_missing(discipline in disciplines(), names in queue(), pick in any::<Index>()) {
        prop_assume!(!names.is_empty());
        let me = pick.get(&names);
        prop_assert_eq!(judge(&discipline, &without(&names, me), me), Said::Missing);
    }

    /// Cases 18 and 29: one order, however the server lists and wherever on the circle the numbers lie. `queue` makes them
    /// in order, so the order read is the order made.
    #[test]
    fn a_listing_has_one_order(names in queue(), shuffled in any::<u64>()) {
        let mut listed = names.clone();
        let mut random = shuffled;
        for i in (1..listed.len()).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            listed.swap(i, (random >> 33) as usize % (i + 1));
        }
        let queue = Queue::read(dialect_of(&names), &listed);
        prop_assert_eq!(queue.entries().iter().map(|entry| entry.name).collect::<Vec<_>>(), names);
    }

    /// Also numbers that no server ever made stand in one order, ties too, and nothing is lost.
    #[test]
    fn any_listing_has_one_order(seqs in vec(any::<i32>(), 0..7), ties in 0..3usize, turn in any::<Index>()) {
        let mut listed: Vec<_> = seqs.iter().map(|seq| name(Dialect::Recipe, Mode::Exclusive, 0, *seq)).collect();
        listed.extend(seqs.iter().take(ties).map(|seq| name(Dialect::Recipe, Mode::Read, 0, *seq)));
        listed.sort();
        listed.dedup();
        let order = |names: &[String]| -> Vec<String> {
            Queue::read(Dialect::Recipe, names).entries().iter().map(|entry| entry.name.to_owned()).collect()
        };
        let expected = order(&listed);
        prop_assert_eq!(expected.len(), listed.len());
        if !listed.is_empty() {
            let by = turn.index(listed.len());
            listed.rotate_left(by);
            prop_assert_eq!(&order(&listed), &expected);
        }
        listed.reverse();
        prop_assert_eq!(&order(&listed), &expected);
    }

    /// Case 18.
    #[test]
    fn every_number_splits_off_as_it_was_printed(count in prop_oneof![any::<i32>(), -1000..1000, (i32::MAX - 9)..]) {
        let sequence = Sequence::new(count);
        for (dialect, mode) in DIALECTS.into_iter().flat_map(|d| MODES.map(|m| (d, m))) {
            for near in [sequence, Sequence::new(count.wrapping_add(i32::MIN))] {
                let id = AttemptId::new(count as u32 as u128);
                let prefix = dialect.prefix(mode, id).expect("both dialects name both modes");
                let name = format!("{prefix}{near}");
                prop_assert_eq!(Sequence::split(&name), Some((prefix.as_str(), near)));
                let node = dialect.parse(&name).expect("a name of its own making");
                prop_assert_eq!((node.mode, node.sequence), (mode, near));
                prop_assert_eq!(node.id, dialect.protects().then_some(id));
            }
        }
    }

    #[test]
    fn order_on_the_circle_is_one_way(a in any::<i32>(), step in 1..=i32::MAX) {
        let (a, b) = (Sequence::new(a), Sequence::new(a.wrapping_add(step)));
        prop_assert!(a.precedes(b) && !b.precedes(a) && !a.precedes(a));
    }

    #[test]
    fn an_id_reads_back_as_printed(bits in any::<u128>()) {
        let id = AttemptId::new(bits);
        prop_assert_eq!(id.to_string().parse(), Ok(id));
        prop_assert_eq!(id.to_string().to_uppercase().parse(), Ok(id));
    }

    /// Case 26: any text may stand in a listing. What is read in it prints back into it.
    #[test]
    fn any_listing_is_read(
        names in vec(prop_oneof![any::<String>(), "[-_a-zA-Z0-9]{0,60}", "(_c_[-0-9a-f]{34,38})?-?(lock-|read-|__READ__)-?[0-9]{7,20}"], 0..9),
        me in any::<String>(),
        discipline in disciplines(),
    ) {
        for dialect in DIALECTS {
            let queue = Queue::read_with_barrier(dialect, discipline.barrier(), &names);
            let barriers = names.iter().filter(|name| discipline.barrier() == Some(name)).count();
            prop_assert_eq!(queue.entries().len() + queue.unknown().len() + barriers, names.len());
            for me in names.iter().chain([&me]) {
                let known = queue.position(me).is_some();
                prop_assert_eq!(decide(&discipline, &queue, me) == Verdict::Missing, !known);
            }
        }
        for name in &names {
            if let Some((prefix, _)) = Sequence::split(name) {
                prop_assert!(name.starts_with(prefix));
            }
            _ = name.parse::<AttemptId>();
        }
    }

    #[test]
    fn any_payload_is_read(data in prop_oneof![
        vec(any::<u8>(), 0..200),
        "[{}\\[\\]\":,a-z0-9]{0,80}".prop_map(String::into_bytes),
        r#"\{"lockkeeper":[0-9]{1,12},"id":"[-0-9a-f]{0,40}","since_ms":[0-9]{1,22}\}"#.prop_map(String::into_bytes),
    ]) {
        let testimony = Testimony::read(&data);
        prop_assert_eq!(testimony == Testimony::Empty, data.is_empty());
        prop_assert_eq!(testimony.id().is_some(), testimony.record().is_some_and(|r| r.id.parse::<AttemptId>().is_ok()));
        prop_assert!(!testimony.to_string().is_empty());
    }
}

/// ZooKeeper's rules for a path, as its `PathUtils` states them, character by character over UTF-16; and ours beside them:
/// not the root, not the server's own, 1024 bytes at most.
fn acceptable(path: &str) -> bool {
    let units: Vec<u16> = path.encode_utf16().collect();
    let unfit = |c: u16| matches!(c, 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..=0xffff);
    let relative = |component: &[u16]| component == [u16::from(b'.')] || component == [u16::from(b'.'); 2];
    let Some((first, rest)) = units.split_first() else { return false };
    let mut components = rest.split(|unit| *unit == u16::from(b'/'));
    *first == u16::from(b'/')
        && !units.iter().any(|unit| unfit(*unit))
        && components.all(|component| !component.is_empty() && !relative(component))
        && path.split('/').nth(1) != Some("zookeeper")
        && path.len() <= 1024
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_path_is_accepted_iff_zookeeper_would(path in prop_oneof![
        vec(select(&["/", ".", "..", "a", "zookeeper", "ü", "名", "\0", "\u{1f}", "\u{7f}", "\u{9f}", "\u{a0}", "\u{f8ff}",
            "\u{f900}", "\u{ffef}", "\u{fff0}", "\u{d7ff}", " "][..]), 0..9).prop_map(|parts| parts.concat()),
        subsequence(vec!["/locks", "/zookeeper", "/.", "/..", "/..b", "/b.", "/", "//", "/é"], 0..6).prop_map(|parts| parts.concat()),
        "/[a-z/.]{0,12}",
        (1000..1030usize).prop_map(|len| format!("/{}", "x".repeat(len))),
        (0..=0x1_ffffu32).prop_filter_map("a character", |c| char::from_u32(c).map(|c| format!("/a{c}b"))),
    ]) {
        let parsed = LockPath::parse(&path);
        prop_assert_eq!(parsed.is_ok(), acceptable(&path), "{:?} gave {:?}", path, parsed);
        if let Ok(parsed) = parsed {
            prop_assert_eq!(parsed.as_str(), path);
        }
    }

    #[test]
    fn any_text_is_judged_as_a_path(path in any::<String>()) {
        match LockPath::parse(&path) {
            Ok(parsed) => prop_assert_eq!(parsed.as_str(), path),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// What happens to a session, each some time after the last.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Disconnected,
    Reconnected,
    Tick,
    /// The answer to a proof that was sent so many milliseconds ago.
    Proved(u64),
    Over,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        2 => Just(Turn::Disconnected),
        2 => Just(Turn::Reconnected),
        2 => Just(Turn::Tick),
        6 => (0..10_000u64).prop_map(Turn::Proved),
        1 => Just(Turn::Over),
    ]
}

proptest! {
    #![proptest_config(config())]

    /// A hold is lost from the moment the last proof is no longer good, whether or not anyone looked at the clock then, and
    /// for good; and at no moment is a session trusted that the leader may have expired. Until then it is held, or suspected
    /// where the connection was lost since the last proof.
    #[test]
    fn a_hold_is_lost_at_its_deadline_and_for_good(
        timeout_ms in 1..30_000u64,
        turns in vec((turn(), 0..10_000u64), 0..30),
        granted_at in any::<Index>(),
    ) {
        let timeout = Duration::from_millis(timeout_ms);
        let mut clock = LinkClock::connected(timeout);
        let granted_at = granted_at.index(turns.len() + 1);
        let mut hold = None;
        let mut now = Duration::from_secs(1000);
        // By the rules alone: until when the proofs so far are good, and whether one was sent on this connection.
        let (mut good_until, mut connected, mut fresh, mut lost) = (Duration::ZERO, true, false, false);
        for (i, (turn, pause)) in turns.iter().enumerate() {
            if i == granted_at && fresh && now < good_until && !lost {
                hold = Some(clock.link().breaches);
            }
            now += Duration::from_millis(*pause);
            lost |= hold.is_some() && now >= good_until;
            match turn {
                Turn::Disconnected => {
                    (connected, fresh) = (false, false);
                    clock.disconnected();
                }
                Turn::Reconnected => {
                    connected = true;
                    clock.reconnected();
                }
                Turn::Tick => clock.tick(now),
                Turn::Proved(age) => {
                    let sent = now - Duration::from_millis(*age);
                    if sent + clock.validity() > now {
                        good_until = good_until.max(sent + clock.validity());
                        fresh = connected;
                    }
                    clock.proved(sent, now);
                    // The leader heard of the session at most 3/20 of the timeout before it was sent.
                    let least = sent + timeout - timeout * 3 / 20;
                    prop_assert!(sent + clock.validity() <= least - timeout / 20);
                }
                Turn::Over => {
                    clock.over(Loss::SessionExpired);
                    lost = true;
                }
            }
            let Some(breaches) = hold else { continue };
            match clock.trust(breaches, now) {
                Trust::Lost(_) => prop_assert!(lost, "lost too early at {now:?}"),
                Trust::Held { until } => {
                    prop_assert!(!lost && connected && fresh && now < until, "held at {now:?}");
                    prop_assert_eq!(until, good_until);
                }
                Trust::Suspected { until } => {
                    prop_assert!(!lost && !fresh && now < until);
                    prop_assert_eq!(until, good_until);
                    prop_assert_eq!(clock.trust(breaches, until), Trust::Lost(Loss::Unreachable));
                }
            }
        }
    }
}

/// Something told to a contender, asked for or not.
#[derive(Clone, Debug)]
enum Told {
    Entered(Result<(usize, i64), Failure>, Result<Vec<usize>, Failure>),
    Listed(Result<Vec<usize>, Failure>),
    Inspected(Result<Look, Failure>),
    ParentMade(Result<(), Failure>),
    Watched(Result<Look, Failure>),
    Deleted(Result<(), Failure>),
    Gone(usize),
    Changed(usize),
    Lingered,
    Leave,
    SessionOver,
}

/// An owner, a czxid, an attempt, and whether its owner is asked to let go.
type Look = (i64, i64, u128, bool);

fn inspection((owner, czxid, id, asked): Look) -> Inspection {
    let (owner, czxid, id) = (SessionId(owner), Zxid(czxid), Some(AttemptId::new(id)));
    Inspection { owner, czxid, id, version: i32::from(asked), granted: false, asked }
}

fn told() -> impl Strategy<Value = Told> {
    let failures = [Failure::NoNode, Failure::ConnectionLoss, Failure::BadVersion, Failure::Refused];
    let failure = move || select(failures.to_vec());
    let unit = move || prop_oneof![Just(Ok(())), failure().prop_map(Err)];
    let listing = move || prop_oneof![3 => vec(0..8usize, 0..6).prop_map(Ok), 1 => failure().prop_map(Err)];
    let look = move || {
        let seen = (0..2i64, 0..9i64, 0..3u128, proptest::bool::weighted(0.2));
        prop_oneof![3 => seen.prop_map(Ok), 1 => failure().prop_map(Err)]
    };
    let created = prop_oneof![3 => (0..8usize, 0..9i64).prop_map(Ok), 1 => failure().prop_map(Err)];
    prop_oneof![
        6 => (created, listing()).prop_map(|(created, listed)| Told::Entered(created, listed)),
        6 => listing().prop_map(Told::Listed),
        6 => look().prop_map(Told::Inspected),
        2 => unit().prop_map(Told::ParentMade),
        4 => look().prop_map(Told::Watched),
        4 => unit().prop_map(Told::Deleted),
        4 => (0..8usize).prop_map(Told::Gone),
        2 => (0..8usize).prop_map(Told::Changed),
        1 => Just(Told::Lingered),
        1 => Just(Told::Leave),
        1 => Just(Told::SessionOver),
    ]
}

proptest! {
    #![proptest_config(config())]

    /// Case 5: whatever a contender is told, also what it did not ask for, it goes on asking for one thing at a time, holds
    /// only with a node, and says nothing more once it has ended.
    #[test]
    fn a_contender_survives_whatever_it_is_told(dialect in select(&DIALECTS[..]), events in vec(told(), 0..40)) {
        let me = AttemptId::new(1);
        let names: Vec<String> =
            (0..8).map(|i| name(dialect, MODES[i % 2], i as u128 % 3, i32::MAX - 3 + i as i32 % 4)).chain([String::new()]).collect();
        let pick = |listed: &Vec<usize>| -> Vec<String> { listed.iter().map(|i| names[*i].clone()).collect() };
        let mut contender = Contender::new(Discipline::SharedExclusive, dialect, Mode::Read, me, SessionId(1));
        let mut ended = false;
        for event in &events {
            match event {
                Told::Entered(created, listed) => {
                    let created = created.map(|(i, zxid)| (names[i].as_str(), Zxid(zxid)));
                    let listed = listed.as_ref().map(pick).map_err(|failure| *failure);
                    contender.handle(Event::Entered { created, listed: listed.as_deref().map(Listing::of).map_err(|f| *f) });
                }
                Told::Listed(listed) => {
                    let listed = listed.as_ref().map(pick).map_err(|failure| *failure);
                    contender.handle(Event::Listed(listed.as_deref().map(Listing::of).map_err(|f| *f)));
                }
                Told::Inspected(seen) => contender.handle(Event::Inspected(seen.map(inspection))),
                Told::ParentMade(outcome) => contender.handle(Event::ParentMade(*outcome)),
                Told::Watched(seen) => contender.handle(Event::Watched(seen.map(inspection))),
                Told::Deleted(outcome) => contender.handle(Event::Deleted(*outcome)),
                Told::Gone(i) => contender.handle(Event::Gone(&names[*i])),
                Told::Changed(i) => contender.handle(Event::Changed(&names[*i])),
                Told::Lingered => contender.handle(Event::Lingered),
                Told::Leave => contender.handle(Event::Leave),
                Told::SessionOver => contender.handle(Event::SessionOver),
            }
            let mut asked = 0;
            while let Some(command) = contender.next_command() {
                prop_assert!(!ended, "{command:?} after the end");
                ended |= matches!(command, lockkeeper_core::Command::End(_));
                asked += 1;
                prop_assert!(asked <= 2, "more than a grant and one request: {command:?}");
            }
            prop_assert!(!contender.holds() || contender.node().is_some());
            prop_assert!(contender.place().is_none_or(|place| place.ahead > 0));
        }
    }
}

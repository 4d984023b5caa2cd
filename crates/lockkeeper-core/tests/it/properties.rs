//! Laws of the pure parts, checked against restatements that are too slow or too simple for production.

use std::time::Duration;

use lockkeeper_core::{
    AttemptId, Class, Discipline, HOLDER_MARKER, LockPath, Loss, Mode, NodeData, NodeFormat, Queue, Sequence,
    SessionClock, Ticks, Trust, Verdict, Watch,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

/// Counterexamples worth keeping become named tests, so proptest writes no file beside the sources.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() }
}

fn name(node_format: NodeFormat, mode: Mode, id: u128, sequence: i32) -> String {
    let prefix = node_format.prefix(mode, AttemptId::new(id)).expect("a mode that the node format names");
    format!("{prefix}{}", Sequence::new(sequence))
}

fn classes() -> Vec<Mode> {
    ["10", "A", "AB", "B"].map(|class| Mode::Class(Class::new(class).expect(class))).to_vec()
}

/// A rule, and the node format and modes of its queues.
type Rule = (Discipline, NodeFormat, Vec<Mode>);

fn shared_rules() -> impl Strategy<Value = Rule> {
    let of = |node_format, modes: &[Mode]| (Discipline::SharedExclusive, node_format, modes.to_vec());
    select(vec![
        of(NodeFormat::Curator, &[Mode::Write, Mode::Read, Mode::Read]),
        of(NodeFormat::Kazoo, &[Mode::Write, Mode::Read, Mode::Read]),
        of(NodeFormat::Curator, &[Mode::Exclusive, Mode::Write, Mode::Read]),
        of(NodeFormat::Recipe, &[Mode::Exclusive, Mode::Write, Mode::Read]),
    ])
}

fn class_rules() -> impl Strategy<Value = Rule> {
    Just((Discipline::Classes, NodeFormat::Contentserv, classes()))
}

fn rules() -> impl Strategy<Value = Rule> {
    prop_oneof![
        select(&[NodeFormat::Curator, NodeFormat::Recipe, NodeFormat::Kazoo][..]).prop_map(|node_format| (
            Discipline::SharedExclusive,
            node_format,
            vec![Mode::Exclusive]
        )),
        shared_rules(),
        (0..6u32).prop_map(|permits| {
            let mut modes = [1, 1, 2, 3, u32::MAX].map(Mode::Permits).to_vec();
            // One contender treats the path as an exclusive lock's.
            modes.push(Mode::Exclusive);
            (Discipline::Permits { permits }, NodeFormat::Curator, modes)
        }),
        class_rules(),
    ]
}

/// A queue in order, and its rule. The numbers are distinct, from anywhere on the circle, close together or far apart.
#[derive(Clone, Debug)]
struct Sample {
    discipline: Discipline,
    node_format: NodeFormat,
    names: Vec<String>,
}

fn sample() -> impl Strategy<Value = Sample> {
    sample_by(rules())
}

fn sample_by(rules: impl Strategy<Value = Rule>) -> impl Strategy<Value = Sample> {
    rules.prop_flat_map(|(discipline, node_format, modes)| {
        let offsets = prop_oneof![btree_set(0..40u32, 0..9), btree_set(0..(1u32 << 31), 0..9)];
        (any::<i32>(), offsets, vec(select(modes), 9), any::<u128>()).prop_map(move |(start, offsets, modes, id)| {
            let sequences = offsets.into_iter().map(|offset| start.wrapping_add_unsigned(offset));
            let ids = (0..).map(|i: u128| id.wrapping_mul(2 * i + 1).wrapping_add(i));
            let mut entries: Vec<_> = sequences.zip(modes).zip(ids).collect();
            // Stable: within a class, the order is that of the numbers.
            entries.sort_by_key(|((_, mode), _)| if let Mode::Class(class) = mode { Some(*class) } else { None });
            let names = entries.into_iter().map(|((seq, mode), id)| name(node_format, mode, id, seq)).collect();
            Sample { discipline, node_format, names }
        })
    })
}

/// The result of `decide` for a contender, as owned data that outlives the queue.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Granted,
    TakeHolderMarker,
    Missing,
    Deleted { name: String, grants: bool },
    GrantedOrDeleted(String),
    Children,
    HolderMarkerGone,
}

impl From<Verdict<'_>> for Said {
    fn from(verdict: Verdict<'_>) -> Said {
        match verdict {
            Verdict::Granted => Said::Granted,
            Verdict::TakeHolderMarker => Said::TakeHolderMarker,
            Verdict::Missing => Said::Missing,
            Verdict::Blocked(Watch::Deleted { name, grants }) => Said::Deleted { name: name.to_owned(), grants },
            Verdict::Blocked(Watch::GrantedOrDeleted(name)) => Said::GrantedOrDeleted(name.to_owned()),
            Verdict::Blocked(Watch::Children) => Said::Children,
            Verdict::Blocked(Watch::HolderMarkerGone) => Said::HolderMarkerGone,
        }
    }
}

impl Sample {
    /// Returns what `decide` says to `me`.
    fn judge(&self, me: &str) -> Said {
        let queue = Queue::read(self.node_format, &self.names);
        self.discipline.decide(&queue, me).into()
    }

    fn mode(&self, name: &str) -> Mode {
        self.node_format.parse(name).expect("one of its own").mode
    }

    fn reads(&self, name: &str) -> bool {
        self.mode(name) == Mode::Read
    }

    /// Returns how many permits the contender of this name takes, for rules that count permits.
    fn takes(&self, name: &str) -> u64 {
        match (self.mode(name), &self.discipline) {
            (Mode::Permits(permits), _) => permits.into(),
            // All permits: it holds beside no other contender.
            (_, Discipline::Permits { permits }) => u64::from(*permits).max(1),
            _ => 1,
        }
    }

    /// The rule itself, restated: may the contender at `me` hold, given the contenders ahead of it?
    fn may_hold(&self, me: usize) -> bool {
        let mut older = self.names[..me].iter();
        match self.discipline {
            Discipline::SharedExclusive if self.reads(&self.names[me]) => older.all(|name| self.reads(name)),
            Discipline::SharedExclusive => me == 0,
            Discipline::Permits { permits } => {
                self.names[..=me].iter().map(|name| self.takes(name)).sum::<u64>() <= u64::from(permits)
            }
            // No contender holds by the queue alone.
            Discipline::Classes => false,
        }
    }

    fn without(&self, gone: &str) -> Sample {
        let names = self.names.iter().filter(|name| *name != gone).cloned().collect();
        Sample { names, ..self.clone() }
    }
}

proptest! {
    #![proptest_config(config())]

    /// N-25, N-27, N-29, N-30, T-15, T-19, T-22: the holders are exactly the contenders that may hold. So exclusion and
    /// first come, first served are those of the rule.
    #[test]
    fn granted_is_who_the_rule_lets_hold(sample in sample()) {
        let holders: Vec<bool> = sample.names.iter().map(|me| sample.judge(me) == Said::Granted).collect();
        let allowed: Vec<bool> = (0..sample.names.len()).map(|me| sample.may_hold(me)).collect();
        prop_assert_eq!(&holders, &allowed);
        let held: Vec<&String> = sample.names.iter().zip(&holders).filter(|(_, holds)| **holds).map(|(name, _)| name).collect();
        match sample.discipline {
            Discipline::SharedExclusive => {
                prop_assert!(held.len() <= 1 || held.iter().all(|name| sample.reads(name)));
            }
            Discipline::Permits { permits } => {
                prop_assert!(held.iter().map(|name| sample.takes(name)).sum::<u64>() <= u64::from(permits));
                // No contender overtakes another.
                prop_assert!(holders.is_sorted_by(|older, younger| older >= younger));
            }
            Discipline::Classes => prop_assert!(held.is_empty()),
        }
    }

    /// A reader with a writer's node holds beside the readers ahead of it, and no contender behind it holds. So when it
    /// upgrades, it waits only for those ahead.
    #[test]
    fn a_reader_with_a_writers_node_is_a_reader_to_those_ahead(sample in sample_by(shared_rules())) {
        let queue = Queue::read(sample.node_format, &sample.names);
        for (i, me) in sample.names.iter().enumerate() {
            let nearest = sample.names[..i].iter().rev().find(|name| !sample.reads(name));
            match (Said::from(sample.discipline.decide_as_reader(&queue, me)), nearest) {
                (Said::Granted, None) => {}
                (Said::Deleted { name, .. }, Some(nearest)) => prop_assert_eq!(&name, nearest),
                (said, _) => prop_assert!(false, "{said:?}"),
            }
            if !sample.reads(me) {
                prop_assert!(sample.names[i + 1..].iter().all(|behind| sample.judge(behind) != Said::Granted));
            }
        }
        prop_assert_eq!(Said::from(sample.discipline.decide_as_reader(&queue, "")), Said::Missing);
    }

    /// C-10, C-12: the first contender takes the holder marker, or waits for it; no other contender tries to.
    #[test]
    fn only_the_first_in_the_queue_takes_the_holder_marker(sample in sample_by(class_rules()), taken in any::<bool>()) {
        let mut listed = sample.clone();
        listed.names.extend(taken.then(|| HOLDER_MARKER.to_owned()));
        for (i, me) in sample.names.iter().enumerate() {
            let expected = match i {
                0 if taken => Said::HolderMarkerGone,
                0 => Said::TakeHolderMarker,
                _ => Said::Deleted { name: sample.names[i - 1].clone(), grants: false },
            };
            prop_assert_eq!(listed.judge(me), expected);
        }
    }

    /// A watched node exists and is older. Following the watches from any contender leads to one that can go on.
    #[test]
    fn every_chain_of_watches_leads_to_a_holder(sample in sample()) {
        for start in 0..sample.names.len() {
            let mut at = start;
            loop {
                match sample.judge(&sample.names[at]) {
                    Said::Deleted { name, .. } | Said::GrantedOrDeleted(name) => {
                        let watched = sample.names.iter().position(|other| *other == name);
                        prop_assert!(watched.is_some_and(|watched| watched < at), "{} watches {name}", sample.names[at]);
                        at = watched.expect("just seen");
                    }
                    // The first waiter hears of the deletion of each holder. If it asks for more permits than there
                    // are, there is no first waiter.
                    Said::Children => {
                        prop_assert!(sample.names[..at].iter().all(|older| sample.judge(older) == Said::Granted));
                        break;
                    }
                    Said::Granted | Said::TakeHolderMarker => break,
                    said => prop_assert!(false, "{at} is told {said:?}"),
                }
            }
        }
    }

    /// If the deletion of any node grants me the lock, my watch fires: for that deletion, or for the grant of the
    /// contender that I watch, which follows from it. `grants` is set exactly when the deletion of the watched node
    /// alone is enough, whatever contenders came behind me meanwhile. (This excludes a writer's node: a writer may go
    /// on as a reader.)
    #[test]
    fn no_going_that_lets_me_hold_is_missed(sample in sample(), newcomers in 0..3usize) {
        for (i, me) in sample.names.iter().enumerate() {
            let said = sample.judge(me);
            for gone in sample.names.iter().filter(|name| *name != me) {
                let after = sample.without(gone);
                if after.judge(me) != Said::Granted {
                    continue;
                }
                let fires = match &said {
                    Said::Granted | Said::Children => true,
                    Said::Deleted { name, .. } => name == gone,
                    Said::GrantedOrDeleted(name) => name == gone || after.judge(name) == Said::Granted,
                    _ => false,
                };
                prop_assert!(fires, "{me} was judged {said:?} and does not wake for {gone}");
            }
            if let Said::Deleted { name, grants } = said {
                let names = sample.names[..sample.names.len().min(i + 1 + newcomers)].to_vec();
                let enough = Sample { names, ..sample.clone() }.without(&name).judge(me) == Said::Granted;
                let can_downgrade = sample.mode(&name) == Mode::Write && !sample.reads(me);
                prop_assert_eq!(grants, enough && !can_downgrade);
            }
        }
    }

    /// T-16, T-21: Curator's readers watch the first writer and wake for each; our readers watch the nearest writer and
    /// wake once.
    #[test]
    fn a_reader_watches_the_nearest_older_writer(sample in sample_by(shared_rules())) {
        for (i, me) in sample.names.iter().enumerate().filter(|(_, name)| sample.reads(name)) {
            let nearest = sample.names[..i].iter().rev().find(|name| !sample.reads(name));
            match sample.judge(me) {
                Said::Granted => prop_assert_eq!(nearest, None),
                Said::Deleted { name, .. } => prop_assert_eq!(nearest, Some(&name)),
                said => prop_assert!(false, "{said:?}"),
            }
        }
    }

    /// Each node has one watcher, except for the readers behind one writer: a deletion wakes one contender.
    #[test]
    fn no_two_waiters_share_a_watch(sample in sample()) {
        let waits_alone = |name: &&String| sample.discipline != Discipline::SharedExclusive || !sample.reads(name);
        let mut watched: Vec<_> = sample.names.iter().filter(waits_alone).map(|me| sample.judge(me)).collect();
        watched.retain(|said| *said != Said::Granted);
        for (i, said) in watched.iter().enumerate() {
            prop_assert!(!watched[..i].contains(said), "two wait for {said:?}");
        }
    }

    #[test]
    fn an_unlisted_contender_is_missing(sample in sample(), pick in any::<Index>()) {
        prop_assume!(!sample.names.is_empty());
        let me = pick.get(&sample.names);
        prop_assert_eq!(sample.without(me).judge(me), Said::Missing);
    }

    /// Cases 18 and 29: there is one order, whatever order the server lists the names in and wherever on the circle the
    /// numbers are. `sample` makes the names in order, so the order read must be the order made.
    #[test]
    fn a_listing_has_one_order(sample in sample(), shuffled in any::<u64>()) {
        let mut listed = sample.names.clone();
        let mut random = shuffled;
        for i in (1..listed.len()).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            listed.swap(i, (random >> 33) as usize % (i + 1));
        }
        let queue = Queue::read(sample.node_format, &listed);
        prop_assert_eq!(queue.entries().iter().map(|entry| entry.name).collect::<Vec<_>>(), sample.names);
    }

    /// Numbers that no server ever made have one order too, also with ties, and no entry is lost.
    #[test]
    fn any_listing_has_one_order(seqs in vec(any::<i32>(), 0..7), ties in 0..3usize, turn in any::<Index>()) {
        let mut listed: Vec<_> = seqs.iter().map(|seq| name(NodeFormat::Recipe, Mode::Exclusive, 0, *seq)).collect();
        listed.extend(seqs.iter().take(ties).map(|seq| name(NodeFormat::Recipe, Mode::Read, 0, *seq)));
        listed.sort();
        listed.dedup();
        let order = |names: &[String]| -> Vec<String> {
            Queue::read(NodeFormat::Recipe, names).entries().iter().map(|entry| entry.name.to_owned()).collect()
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
        let id = AttemptId::new(count as u32 as u128);
        let modes = [Mode::Exclusive, Mode::Write, Mode::Read, Mode::Permits(7), Mode::Class(Class::BACKGROUND)];
        for (node_format, mode) in NodeFormat::ALL.into_iter().flat_map(|d| modes.map(|m| (d, m))) {
            let Some(prefix) = node_format.prefix(mode, id) else { continue };
            // Kazoo names both alike.
            let mode = if (node_format, mode) == (NodeFormat::Kazoo, Mode::Exclusive) { Mode::Write } else { mode };
            for near in [sequence, Sequence::new(count.wrapping_add(i32::MIN))] {
                let name = format!("{prefix}{near}");
                prop_assert_eq!(Sequence::split(&name), Some((prefix.as_str(), near)));
                let node = node_format.parse(&name).expect("a name of its own making");
                prop_assert_eq!((node.mode, node.sequence), (mode, near));
                prop_assert_eq!(node.id, node_format.protects().then_some(id));
            }
        }
    }

    #[test]
    fn an_id_reads_back_as_printed(bits in any::<u128>()) {
        let id = AttemptId::new(bits);
        prop_assert_eq!(id.to_string().parse(), Ok(id));
        prop_assert_eq!(id.to_string().to_uppercase().parse(), Ok(id));
    }

    /// Case 26: a listing may contain any text. Parsing a name and printing the result gives the same name.
    #[test]
    fn any_listing_is_read(
        names in vec(prop_oneof![any::<String>(), "[-_a-zA-Z0-9]{0,60}", "(_c_[-0-9a-f]{34,38})?-?(lock-|read-|__READ__|permits-[0-9]{1,11}-)-?[0-9]{7,20}",
            "[0-9a-f]{31,33}(__lock__|__rlock__)-?[0-9]{7,20}", "[A-Za-z0-9]{0,9}-{0,2}[0-9]{7,20}", Just(HOLDER_MARKER.to_owned())], 0..9),
        me in any::<String>(),
        (discipline, ..) in rules(),
    ) {
        for node_format in NodeFormat::ALL {
            let queue = Queue::read(node_format, &names);
            let holder_markers = names.iter().filter(|name| node_format.holder_marker() == Some(name)).count();
            prop_assert_eq!(queue.entries().len() + queue.unknown().len() + holder_markers, names.len());
            for me in names.iter().chain([&me]) {
                let known = queue.position(me).is_some();
                prop_assert_eq!(discipline.decide(&queue, me) == Verdict::Missing, !known);
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
        let node_data = NodeData::read(&data);
        prop_assert_eq!(node_data == NodeData::Empty, data.is_empty());
        prop_assert_eq!(node_data.id().is_some(), node_data.record().is_some_and(|r| r.id.parse::<AttemptId>().is_ok()));
        prop_assert!(!node_data.to_string().is_empty());
    }
}

/// ZooKeeper's rules for a path, as its `PathUtils` states them, character by character over UTF-16, together with
/// ours: not the root, not the server's own paths, at most 1024 bytes.
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

/// An event of a session, and the time since the event before it.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Disconnected,
    Reconnected,
    Tick,
    /// The reply to a heartbeat that was sent this many milliseconds ago.
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

    /// A session on a follower that is cut off from its leader right behind a heartbeat: the leader does not expire it before the trust
    /// ends. The leader asks each half tick for the sessions with signs of life, and one of its pings may be late.
    #[test]
    fn no_session_is_trusted_longer_than_a_follower_may_hide_its_signs_of_life(
        tick_ms in 200..5_000u64,
        timeout_in_tenths in 20..300u64,
        phase in 0..1_000u64,
        late in 0..1_000u64,
        signs in vec(0..=1_000u64, 1..60),
    ) {
        let timeout = Duration::from_millis(tick_ms * timeout_in_tenths / 10);
        let ticks = if timeout_in_tenths < 50 { Ticks::Two } else { Ticks::Five };
        let clock = SessionClock::connected(timeout, ticks);
        // Signs of life, the heartbeat being the last, at most a tenth of the timeout apart.
        let mut signs: Vec<_> = signs.into_iter().scan(Duration::from_secs(1_000), |at, share| {
            *at += timeout / 10 * u32::try_from(share).unwrap() / 1_000;
            Some(*at)
        }).collect();
        let sent = *signs.last().unwrap();
        // The client was idle before: it sent pings alone.
        let first = signs[0];
        signs.splice(0..0, (1..=10u32).rev().map(|ping| first - timeout / 10 * ping));
        let share = match ticks { Ticks::Two => timeout / 10, Ticks::Five => timeout / 20 };
        let delay = share * u32::try_from(late).unwrap() / 1_000;
        let half = Duration::from_millis(tick_ms) / 2;
        let start = signs[0] - half + half * u32::try_from(phase).unwrap() / 1_000;
        // The last ping before the cut is the late one: it arrives behind the cut.
        let pings = (0u32..).map(|ping| start + half * ping).take_while(|at| *at + delay <= sent);
        let mut heard = None;
        let mut before = Duration::ZERO;
        for ping in pings {
            if signs.iter().any(|sign| *sign > before && *sign <= ping) {
                heard = Some(ping);
            }
            before = ping;
        }
        let expires = heard.expect("the client was idle for a timeout") + timeout;
        prop_assert!(sent + clock.validity() * 100 / 99 <= expires, "{:?} of {timeout:?}", sent - heard.unwrap());
    }

    /// A hold is lost, finally, from the moment when the last heartbeat is no longer good, whether or not any code
    /// looked at the clock then. A session is never trusted at a moment when the leader may have expired it. Until then
    /// the lock is held, or suspected if the connection was lost since the last heartbeat.
    #[test]
    fn a_hold_is_lost_at_its_deadline_and_for_good(
        timeout_ms in 1..30_000u64,
        ticks in prop_oneof![Just(Ticks::Two), Just(Ticks::Five)],
        turns in vec((turn(), 0..10_000u64), 0..30),
        granted_at in any::<Index>(),
    ) {
        let timeout = Duration::from_millis(timeout_ms);
        let mut clock = SessionClock::connected(timeout, ticks);
        let granted_at = granted_at.index(turns.len() + 1);
        let mut hold = None;
        let mut now = Duration::from_secs(1000);
        // By the rules alone: until when the heartbeats so far are good, and whether one was sent on this connection.
        let (mut good_until, mut connected, mut fresh, mut lost) = (Duration::ZERO, true, false, false);
        for (i, (turn, pause)) in turns.iter().enumerate() {
            if i == granted_at && fresh && now < good_until && !lost {
                hold = Some(clock.link().missed_deadlines);
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
                    clock.confirmed(sent, now);
                }
                Turn::Over => {
                    clock.over(Loss::SessionExpired);
                    lost = true;
                }
            }
            let Some(missed_deadlines) = hold else { continue };
            match clock.trust(missed_deadlines, now) {
                Trust::Lost(_) => prop_assert!(lost, "lost too early at {now:?}"),
                Trust::Held { until } => {
                    prop_assert!(!lost && connected && fresh && now < until, "held at {now:?}");
                    prop_assert_eq!(until, good_until);
                }
                Trust::Suspected { until } => {
                    prop_assert!(!lost && !fresh && now < until);
                    prop_assert_eq!(until, good_until);
                    prop_assert_eq!(clock.trust(missed_deadlines, until), Trust::Lost(Loss::Unreachable));
                }
            }
        }
    }
}

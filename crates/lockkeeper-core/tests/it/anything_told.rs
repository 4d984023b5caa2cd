//! A contender that receives any events, requested or not, stays consistent: it trusts nothing from the network.

use lockkeeper_core::{
    Arrival, Ask, AttemptId, Class, Command, Contender, Discipline, Event, Failure, HOLDER_MARKER, Inspection,
    LastRelease, Limit, Listing, LockDelay, Mode, NodeFormat, PathMade, QueuePlace, ReleaseSeen, Sequence, SessionId,
    Tombstone, Zxid,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Counterexamples worth keeping become named tests, so proptest writes no file beside the sources.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() }
}

const ME: AttemptId = AttemptId::new(1);
const SESSION: SessionId = SessionId(1);

/// The kind of a contender.
#[derive(Clone, Debug)]
struct Kind {
    discipline: Discipline,
    node_format: NodeFormat,
    mode: Mode,
    upgradeable: bool,
}

impl Kind {
    /// Creates the contender, with a lock delay if that is wanted and its names have room for one.
    fn contender(&self, delayed: bool) -> Contender {
        let contender = match self.upgradeable {
            true => Contender::upgradeable(self.node_format, ME, SESSION),
            false => Contender::new(self.discipline, self.node_format, self.mode, ME, SESSION),
        };
        let contender = contender.with_records_behind(1);
        match delayed && self.node_format == NodeFormat::Curator {
            true => contender.with_delay(LockDelay::MILLISECOND),
            false => contender,
        }
    }

    /// Names that a listing may have: a few of each mode and id, with numbers near the end of the circle, and other
    /// names.
    fn names(&self) -> Vec<String> {
        let modes = match self.mode {
            Mode::Class(_) => [Mode::Class(Class::FOREGROUND), Mode::Class(Class::BACKGROUND)],
            Mode::Permits(_) => [Mode::Permits(1), Mode::Permits(2)],
            Mode::Exclusive => [Mode::Exclusive; 2],
            Mode::Read | Mode::Write => [Mode::Write, Mode::Read],
        };
        let name = |i: usize| {
            let prefix = self.node_format.prefix(modes[i % 2], AttemptId::new(i as u128 % 3)).expect("of its kind");
            format!("{prefix}{}", Sequence::new((i32::MAX - 3).wrapping_add(i as i32 % 4 * 2)))
        };
        let tombstone = |id| {
            let tombstone = Tombstone { id: AttemptId::new(id), mode: modes[0], delay: LockDelay::MILLISECOND };
            tombstone.name().unwrap_or_default()
        };
        let others = [HOLDER_MARKER.to_owned(), String::new(), tombstone(1), tombstone(2)];
        (0..NAMES - others.len()).map(name).chain(others).collect()
    }
}

const NAMES: usize = 12;

const RELEASE: Event = Event::Release { lost: false, writes: false };

fn kinds() -> impl Strategy<Value = Kind> {
    let shared = || select(&[NodeFormat::Curator, NodeFormat::Recipe, NodeFormat::Kazoo][..]);
    let kind = |discipline, node_format, mode, upgradeable| Kind { discipline, node_format, mode, upgradeable };
    prop_oneof![
        shared().prop_map(move |node_format| kind(Discipline::SharedExclusive, node_format, Mode::Exclusive, false)),
        (shared(), select(&[(Mode::Read, false), (Mode::Write, false), (Mode::Write, true)][..])).prop_map(
            move |(node_format, (mode, upgradeable))| kind(Discipline::SharedExclusive, node_format, mode, upgradeable)
        ),
        Just(kind(Discipline::Permits { permits: 2 }, NodeFormat::Curator, Mode::Permits(1), false)),
        Just(kind(Discipline::Classes, NodeFormat::Contentserv, Mode::Class(Class::BACKGROUND), false)),
    ]
}

/// The result of one read of the parent: some of the names, and a limit.
type Look = (Vec<usize>, Option<Limit>);

#[derive(Clone, Debug)]
enum Told {
    Entered(Result<(usize, i64), Failure>, Result<Look, Failure>),
    EnteredBehind(usize, usize),
    Listed(Result<Look, Failure>),
    Inspected(Result<Inspection, Failure>),
    Watched(Result<Inspection, Failure>),
    Written(Written, Result<i64, Failure>),
    Gone(usize),
    Changed(usize),
    Released(usize, bool),
    Ended(usize, bool),
    DelayOver(usize),
    Ask(Ask),
    Other(Event),
}

/// The write whose outcome is reported.
#[derive(Clone, Copy, Debug)]
enum Written {
    Parent,
    Path,
    Limit,
    HolderMarker,
    Record,
    Downgrade,
    Tombstone,
    Delete,
}

fn inspection() -> impl Strategy<Value = Inspection> {
    (0..2i64, 0..9i64, 0..3u128, 0..3i32, any::<bool>(), proptest::bool::weighted(0.2)).prop_map(
        |(owner, czxid, id, version, granted, asked)| {
            let (owner, czxid) = (SessionId(owner), Zxid(czxid));
            let id = (id > 0).then_some(AttemptId::new(id));
            Inspection { owner, czxid, id, version, granted, asked: asked.then(Box::default) }
        },
    )
}

fn told() -> impl Strategy<Value = Told> {
    use Failure::*;
    let failure = || select(&[NoNode, NodeExists, ConnectionLoss, BadVersion, Refused][..]);
    let limits = [
        None,
        Some(Limit::Permits(2)),
        Some(Limit::Permits(3)),
        Some(Limit::Foreign),
        Some(Limit::Unset { version: 0 }),
    ];
    let limit = prop_oneof![6 => Just(limits[1]), 1 => select(limits.to_vec())];
    let shown = (vec(0..NAMES, 0..6), limit);
    let look = prop_oneof![4 => shown.prop_map(Ok), 1 => failure().prop_map(Err)].boxed();
    let seen = || prop_oneof![3 => inspection().prop_map(Ok), 1 => failure().prop_map(Err)];
    let created = prop_oneof![3 => (0..NAMES - 4, 0..9i64).prop_map(Ok), 1 => failure().prop_map(Err)];
    let writes = [
        Written::Parent,
        Written::Path,
        Written::Limit,
        Written::HolderMarker,
        Written::Record,
        Written::Downgrade,
        Written::Delete,
        Written::Tombstone,
    ];
    let outcome = prop_oneof![3 => (0..9i64).prop_map(Ok), 2 => failure().prop_map(Err)];
    let other = [
        Event::ChildrenChanged,
        Event::OwnWatchDue,
        Event::YieldDue,
        Event::GrantedLate,
        Event::DeadlineNear,
        Event::LooksDue,
        Event::Looked { first: Err(Failure::NoNode), front: None },
        Event::Disconnected,
        Event::BlockerIsLocal,
        Event::PositionKnown(QueuePlace {
            ahead: 1,
            first: "lock-0000000001".to_owned(),
            front: None,
            blocks_first: None,
        }),
        Event::ReleaseRead(Ok(ReleaseSeen {
            last: LastRelease { freed: Some(Zxid(1)), version: Some(0) },
            own: Some(Zxid(1)),
        })),
        Event::ReleaseRead(Err(Failure::ConnectionLoss)),
        Event::Refuse("busy".to_owned()),
        Event::Checked(Ok(None)),
        Event::Checked(Err(Failure::ConnectionLoss)),
    ];
    let asks = [
        Ask::Downgrade,
        Ask::Upgrade,
        Ask::StayReader,
        Ask::Reclassify(Class::FOREGROUND),
        Ask::Reclassify(Class::BACKGROUND),
        Ask::WriteAtRelease,
        Ask::Verify,
        Ask::Yield,
    ];
    prop_oneof![
        6 => (created, look.clone()).prop_map(|(created, listed)| Told::Entered(created, listed)),
        3 => (0..NAMES - 4, 0..NAMES - 4).prop_map(|(own, next)| Told::EnteredBehind(own, next)),
        6 => look.prop_map(Told::Listed),
        6 => seen().prop_map(Told::Inspected),
        6 => seen().prop_map(Told::Watched),
        12 => (select(writes.to_vec()), outcome).prop_map(|(write, outcome)| Told::Written(write, outcome)),
        4 => (0..NAMES).prop_map(Told::Gone),
        2 => (0..NAMES).prop_map(Told::Changed),
        2 => (0..NAMES, any::<bool>()).prop_map(|(name, watched)| Told::Released(name, watched)),
        2 => (0..NAMES, any::<bool>()).prop_map(|(name, deleted)| Told::Ended(name, deleted)),
        3 => (NAMES - 2..NAMES).prop_map(Told::DelayOver),
        4 => select(asks.to_vec()).prop_map(Told::Ask),
        3 => select(other.to_vec()).prop_map(Told::Other),
        1 => select(vec![Event::Leave, RELEASE, Event::Lost, Event::SessionOver]).prop_map(Told::Other),
    ]
}

/// Passes the event to a contender.
fn tell(contender: &mut Contender, names: &[String], told: &Told) {
    let pick = |(shown, limit): &Look| {
        let names = shown.iter().map(|i| names[*i].clone()).collect();
        Listing { names, limit: *limit, other: None }
    };
    let listing = |look: &Result<Look, Failure>| look.as_ref().map(pick).map_err(|failure| *failure);
    match told {
        Told::Entered(created, look) => {
            let created = created.map(|(i, zxid)| (names[i].clone(), Zxid(zxid)));
            let arrival = listing(look).map_or(Arrival::Unknown, Arrival::Listed);
            contender.handle(Event::Entered { created, arrival });
        }
        Told::EnteredBehind(own, next) => {
            let name = names[*next].clone();
            let place = QueuePlace { ahead: 1, first: name.clone(), front: None, blocks_first: None };
            let arrival = Arrival::AfterLocal { name, place: Some(place).filter(|_| own % 2 == 0) };
            contender.handle(Event::Entered { created: Ok((names[*own].clone(), Zxid(1))), arrival });
        }
        Told::Listed(look) => contender.handle(Event::Listed(listing(look))),
        Told::Inspected(seen) => contender.handle(Event::Inspected(seen.clone())),
        Told::Watched(seen) => contender.handle(Event::Watched(seen.clone())),
        Told::Written(write, outcome) => {
            let (done, zxid) = (outcome.map(drop), outcome.map(Zxid));
            contender.handle(match write {
                Written::Parent => Event::ParentMade(
                    zxid.map(|zxid| PathMade { is_new: zxid.0 % 2 == 0, children_above: usize::try_from(zxid.0).ok() }),
                ),
                Written::Path => Event::PathRemoved(done),
                Written::Limit => Event::LimitStored(done),
                Written::HolderMarker => Event::HolderMarkerTaken(zxid),
                Written::Record => Event::RecordWritten(outcome.map(|version| version as i32)),
                Written::Downgrade => Event::Downgraded(zxid),
                Written::Tombstone => Event::TombstoneMade(done),
                Written::Delete => Event::Deleted(done),
            });
        }
        Told::Gone(i) => contender.handle(Event::Gone(names[*i].clone())),
        Told::Changed(i) => contender.handle(Event::Changed(names[*i].clone())),
        Told::DelayOver(i) => contender.handle(Event::DelayOver(names[*i].clone())),
        Told::Released(i, watched) => {
            contender.handle(Event::Released { name: names[*i].clone(), watched: *watched });
        }
        Told::Ended(i, deleted) => contender.handle(Event::Ended { name: names[*i].clone(), deleted: *deleted }),
        Told::Ask(ask) => contender.handle(Event::Ask(*ask)),
        Told::Other(event) => contender.handle(event.clone()),
    }
}

proptest! {
    #![proptest_config(config())]

    /// Case 5: whatever events a contender receives, including some that it did not request, it requests one thing at a
    /// time, holds only with a node, and requests nothing more after its end.
    #[test]
    fn case_05_a_contender_survives_whatever_it_is_told(
        kind in kinds(), delayed in any::<bool>(), events in vec(told(), 0..40)
    ) {
        let names = kind.names();
        let mut contender = kind.contender(delayed);
        let mut ended = false;
        for event in &events {
            tell(&mut contender, &names, event);
            let mut requests = 0;
            let mut words = 0;
            let mut delays = 0;
            let (mut checks, mut looks) = (0, 0);
            while let Some(command) = contender.next_command() {
                prop_assert!(!ended, "{command:?} after the end");
                match command {
                    Command::Grant(_)
                    | Command::Revoke
                    | Command::Upgraded
                    | Command::Reads { .. }
                    | Command::Contended(_)
                    | Command::Verified(_) => words += 1,
                    Command::End(_) => ended = true,
                    Command::Delay { .. } => delays += 1,
                    Command::Check { .. } => checks += 1,
                    Command::Look { .. } => looks += 1,
                    _ => requests += 1,
                }
                prop_assert!(requests <= 1 && checks <= 1 && looks <= 1, "two things at a time: {command:?}");
                prop_assert!(words <= 4 && delays <= 2, "the same again: {command:?}");
            }
            // A writer that reads on knows no node of its own while it resolves a lost reply.
            prop_assert!(!contender.holds() || contender.node().is_some() || kind.mode == Mode::Write);
            prop_assert!(!contender.is_alone() || contender.holds());
            prop_assert!(contender.place().is_none_or(|place| place.ahead > 0));
        }
    }
}

//! A path that one client locks with nodes below it, and another one with numbered nodes beside it: every order of their requests.
//!
//! Each request of a command is a step of its own, in the order of its session. Steps of the sessions interleave in every way.

use std::collections::{HashSet, VecDeque};

use super::*;
use crate::IncompatibleFormat;

/// One request of a command. A listing is read behind the create of its command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Request {
    Create(String),
    ListOwn,
    ListElsewhere,
    MakePath,
    Count,
    Read(String),
    Delete(String),
    RemovePath,
}

/// What a server stores: the children of the path, if it exists, and the numbered nodes beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Tree {
    below: Option<Vec<(String, Zxid)>>,
    beside: Vec<(String, Zxid)>,
    /// How many nodes were created below the path, beside it, and in all.
    numbers: (u8, u8, u8),
}

impl Tree {
    fn nodes(&mut self, node_format: NodeFormat) -> Option<&mut Vec<(String, Zxid)>> {
        if node_format.is_beside() { Some(&mut self.beside) } else { self.below.as_mut() }
    }

    fn names(nodes: &[(String, Zxid)]) -> Vec<String> {
        nodes.iter().map(|(name, _)| name.clone()).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    contender: Contender,
    /// The requests of the command in flight without an answer.
    requests: VecDeque<Request>,
    /// The event that the answers so far make.
    answer: Option<Event>,
    holds: bool,
    /// It found no path once.
    looks: bool,
    end: Option<End>,
    /// Its caller has released.
    released: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    tree: Tree,
    clients: Vec<Client>,
    /// The answer to one look may be lost.
    may_lose: bool,
}

/// A mistake in how commands are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// It looks beside before its create, not behind it.
    LooksFirst,
    /// It does not look if the path was alone when it was made.
    TrustsTheCount,
    /// It leaves the path that it made.
    KeepsThePath,
    /// A look whose answer is lost counts as one that found nothing.
    LookNotRepeated,
}

impl State {
    fn new(formats: &[NodeFormat], path_exists: bool) -> Self {
        let client = |(i, node_format): (usize, &NodeFormat)| {
            let (id, session) = (AttemptId::new(i as u128 + 1), SessionId(i as i64 + 1));
            let contender = Contender::new(Discipline::SharedExclusive, *node_format, Mode::Exclusive, id, session);
            Client {
                contender,
                requests: VecDeque::new(),
                answer: None,
                holds: false,
                looks: false,
                end: None,
                released: false,
            }
        };
        let tree = Tree { below: path_exists.then(Vec::new), ..Tree::default() };
        let clients: Vec<_> = formats.iter().enumerate().map(client).collect();
        State { tree, may_lose: clients.len() == 2, clients }
    }

    /// Every state that follows.
    fn next(&self, mistake: Mistake) -> Vec<State> {
        let mut all = Vec::new();
        for (i, client) in self.clients.iter().enumerate().filter(|(_, client)| client.end.is_none()) {
            if !client.requests.is_empty() {
                let mut next = self.clone();
                next.serve(i, mistake, false);
                all.push(next);
            }
            if client.requests.front() == Some(&Request::ListElsewhere) && self.may_lose && client.answer.is_some() {
                let mut lost = State { may_lose: false, ..self.clone() };
                lost.serve(i, mistake, true);
                all.push(lost);
            }
            if client.holds && !client.released {
                let mut leaves = self.clone();
                leaves.clients[i].contender.handle(Event::Leave);
                (leaves.clients[i].holds, leaves.clients[i].released) = (false, true);
                all.push(leaves);
            }
        }
        // What a client does alone is not a step of its own.
        all.iter_mut().for_each(|next| next.clients.iter_mut().for_each(|client| client.take_command(mistake)));
        all
    }

    /// The server answers the first request of a client.
    fn serve(&mut self, i: usize, mistake: Mistake, loses: bool) {
        let (tree, client) = (&mut self.tree, &mut self.clients[i]);
        let node_format = client.contender.terms.node_format;
        let owner = SessionId(i as i64 + 1);
        match client.requests.pop_front().expect("it waits for an answer") {
            Request::Create(prefix) => {
                let numbers = &mut tree.numbers;
                let number = if node_format.is_beside() { &mut numbers.1 } else { &mut numbers.0 };
                let (name, zxid) = (format!("{prefix}{number:010}"), Zxid(i64::from(numbers.2) + 1));
                (*number, numbers.2) = (*number + 1, numbers.2 + 1);
                let created = match tree.nodes(node_format) {
                    Some(nodes) => {
                        nodes.push((name.clone(), zxid));
                        Ok((name, zxid))
                    }
                    None => {
                        client.looks = true;
                        // The listings fail too.
                        client.requests.clear();
                        Err(Failure::NoNode)
                    }
                };
                let arrival = match client.answer.take() {
                    Some(Event::Entered { arrival, .. }) => arrival,
                    _ => Arrival::Unknown,
                };
                client.answer = Some(Event::Entered { created, arrival });
            }
            Request::ListOwn => {
                let names = Tree::names(tree.nodes(node_format).map_or(&[][..], |nodes| nodes));
                client.with_listing(|listing| listing.names = names);
            }
            Request::ListElsewhere if loses => match &mut client.answer {
                Some(Event::Listed(listed)) => *listed = Err(Failure::ConnectionLoss),
                Some(Event::Entered { arrival, .. }) if mistake != Mistake::LookNotRepeated => {
                    *arrival = Arrival::Unknown;
                }
                _ => {}
            },
            Request::ListElsewhere => {
                let names = match node_format.is_beside() {
                    true => tree.below.as_deref().unwrap_or_default(),
                    false => &tree.beside,
                };
                let theirs = if node_format.is_beside() { NodeFormat::Curator } else { NodeFormat::Numbered };
                let other = (!names.is_empty()).then_some(IncompatibleFormat::Named(theirs));
                client.with_listing(|listing| listing.other = other);
            }
            Request::MakePath => {
                let is_new = tree.below.is_none();
                _ = tree.below.get_or_insert_default();
                client.answer = Some(Event::ParentMade(Ok(PathMade { is_new, children_above: None })));
            }
            Request::Count => {
                let above = usize::from(tree.below.is_some()) + tree.beside.len();
                let trusts = mistake == Mistake::TrustsTheCount && above <= 1;
                if let Some(Event::ParentMade(Ok(made))) = &mut client.answer {
                    made.children_above = Some(above).filter(|_| !trusts);
                }
            }
            Request::Read(name) => {
                let found = tree.nodes(node_format).and_then(|nodes| nodes.iter().find(|(node, _)| *node == name));
                let seen = found.map(|(_, czxid)| Inspection {
                    owner: if client.contender.node() == Some(&name) { owner } else { SessionId(99) },
                    czxid: *czxid,
                    id: None,
                    version: 0,
                    granted: false,
                    asked: None,
                });
                let seen = seen.ok_or(Failure::NoNode);
                client.answer = Some(match &client.contender.flight {
                    Some(Flight::Watch(_)) => Event::Watched(seen),
                    _ => Event::Inspected(seen),
                });
            }
            Request::Delete(name) => {
                tree.nodes(node_format).into_iter().for_each(|nodes| nodes.retain(|(node, _)| *node != name));
                client.answer = Some(Event::Deleted(Ok(())));
                for other in self.clients.iter_mut().filter(|other| other.contender.waits_for() == Some(&*name)) {
                    let blocker = other.contender.view.blocker.as_ref();
                    if other.contender.terms.node_format == node_format
                        && blocker.is_some_and(|it| it.to_watch().is_none())
                    {
                        other.contender.handle(Event::Gone(name.clone()));
                    }
                }
            }
            Request::RemovePath => {
                let is_empty = tree.below.as_ref().is_some_and(Vec::is_empty);
                if is_empty && mistake != Mistake::KeepsThePath {
                    tree.below = None;
                }
                client.answer = Some(Event::PathRemoved(if is_empty { Ok(()) } else { Err(Failure::Refused) }));
            }
        }
        let client = &mut self.clients[i];
        if client.requests.is_empty() {
            let answer = client.answer.take().expect("each command has an answer");
            client.contender.handle(answer);
        }
    }

    /// The clients that hold, apart from each other in their ways to lock: the one below the path, if any.
    fn holds_both_ways(&self) -> Option<&Client> {
        let holds = |beside| {
            let way = |client: &&Client| client.contender.terms.node_format.is_beside() == beside;
            self.clients.iter().filter(way).find(|client| client.holds)
        };
        holds(true).and(holds(false))
    }

    fn is_over(&self) -> bool {
        self.clients.iter().all(|client| client.end.is_some())
    }
}

impl Client {
    /// A part of the listing of the command in flight is answered.
    fn with_listing(&mut self, fill: impl FnOnce(&mut Listing)) {
        let empty = || Listing::of(Vec::new());
        match self.answer.get_or_insert_with(|| Event::Listed(Ok(empty()))) {
            Event::Listed(Ok(listing)) | Event::Entered { arrival: Arrival::Listed(listing), .. } => fill(listing),
            Event::Entered { arrival, .. } => {
                let mut listing = empty();
                fill(&mut listing);
                *arrival = Arrival::Listed(listing);
            }
            _ => {}
        }
    }

    fn take_command(&mut self, mistake: Mistake) {
        let is_numbered = self.contender.terms.node_format.is_beside();
        let elsewhere = |beside: bool| (beside || is_numbered).then_some(Request::ListElsewhere);
        if !self.requests.is_empty() {
            return;
        }
        let requests: Vec<Request> = match self.contender.next_command() {
            None => return,
            Some(Command::Enter { prefix, beside, .. }) => {
                let create = Request::Create(prefix);
                match (elsewhere(beside), mistake == Mistake::LooksFirst && !is_numbered) {
                    (Some(look), true) => {
                        self.answer = Some(Event::Entered { created: Err(Failure::NoNode), arrival: Arrival::Unknown });
                        vec![look, create, Request::ListOwn]
                    }
                    (look, _) => [create, Request::ListOwn].into_iter().chain(look).collect(),
                }
            }
            Some(Command::List { beside, .. }) => std::iter::once(Request::ListOwn).chain(elsewhere(beside)).collect(),
            Some(Command::MakeParent { count: true, .. }) => vec![Request::MakePath, Request::Count],
            Some(Command::Inspect { name } | Command::Watch { name, .. }) => vec![Request::Read(name)],
            Some(Command::Delete { name, .. }) => vec![Request::Delete(name)],
            Some(Command::RemovePath) => vec![Request::RemovePath],
            Some(Command::Grant(_)) => {
                self.holds = true;
                return self.take_command(mistake);
            }
            Some(Command::End(end)) => {
                self.end = Some(end);
                return;
            }
            Some(other) => panic!("no client here does this: {other:?}"),
        };
        self.requests = requests.into();
    }
}

/// What was seen of every order.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    /// Both ways hold, and the client below had looked, or had found the path: its maker has left, and a numbered contender came in
    /// between.
    both: [bool; 2],
    /// A client was refused.
    refused: [bool; 2],
    /// Everybody has left, a client below was refused and none held, and the path exists.
    path_left: bool,
    /// A client has left, and its node exists.
    node_left: bool,
}

const BELOW: NodeFormat = NodeFormat::Curator;
const BESIDE: NodeFormat = NodeFormat::Numbered;

fn explore(formats: &[NodeFormat], path_exists: bool, mistake: Mistake) -> Seen {
    let mut first = State::new(formats, path_exists);
    first.clients.iter_mut().for_each(|client| client.take_command(mistake));
    let (mut known, mut open, mut seen) = (HashSet::from([first.clone()]), vec![first], Seen::default());
    while let Some(state) = open.pop() {
        seen.states += 1;
        if let Some(below) = state.holds_both_ways() {
            seen.both[usize::from(!below.looks)] = true;
        }
        for client in &state.clients {
            let beside = client.contender.terms.node_format.is_beside();
            seen.refused[usize::from(beside)] |= matches!(client.end, Some(End::IncompatibleFormat(_)));
        }
        if state.is_over() {
            let below = state.clients.iter().filter(|client| !client.contender.terms.node_format.is_beside());
            let refused = below.clone().count() == 1 && below.clone().all(|client| !client.released);
            seen.path_left |= refused && !path_exists && state.tree.below.is_some();
            let nodes = state.tree.beside.len() + state.tree.below.as_ref().map_or(0, Vec::len);
            seen.node_left |= nodes > 0;
        }
        for next in state.next(mistake) {
            if known.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen
}

/// D-07: an attempt that makes its path and a numbered contender never hold it together, in whatever order their requests come. The
/// refused one leaves no node, and not the path.
#[test]
fn who_makes_the_path_sees_a_numbered_contender_or_is_seen() {
    for formats in [&[BELOW, BESIDE][..], &[BELOW, BESIDE, BESIDE], &[BELOW, BELOW, BESIDE]] {
        let seen = explore(formats, false, Mistake::None);
        // A second one below may find the path. Where the only one below has made it, nothing stays open.
        let finds = formats == [BELOW, BELOW, BESIDE];
        assert_eq!(seen.both, [false, finds], "both hold: {formats:?}");
        assert_eq!((seen.refused, seen.path_left, seen.node_left), ([true; 2], false, false), "{formats:?}");
    }
}

/// What stays open: a contender that finds the path does not look beside it. Here the path was there before.
#[test]
fn who_finds_the_path_does_not_see_a_numbered_contender() {
    assert_eq!(explore(&[BELOW, BESIDE], true, Mistake::None).both, [false, true]);
}

#[test]
fn mistakes_in_the_look_beside_are_found() {
    for mistake in [Mistake::LooksFirst, Mistake::TrustsTheCount, Mistake::LookNotRepeated] {
        assert!(explore(&[BELOW, BESIDE], false, mistake).both.contains(&true), "{mistake:?}");
    }
    assert!(explore(&[BELOW, BESIDE], false, Mistake::KeepsThePath).path_left);
}

/// An attempt that has made its path, where the node above has this many children. Its next command creates its node.
fn makes_its_path(children_above: Option<usize>) -> Contender {
    let mut contender = contender(Mode::Exclusive);
    assert!(
        matches!(contender.next_command(), Some(Command::Enter { beside: false, .. })),
        "it looks for the path first"
    );
    contender.handle(Event::Entered { created: Err(Failure::NoNode), arrival: Arrival::Unknown });
    assert!(matches!(contender.next_command(), Some(Command::MakeParent { count: true, .. })));
    contender.handle(Event::ParentMade(Ok(PathMade { is_new: true, children_above })));
    contender
}

/// A long listing is not worth it, and a driver that always looks beside counts nothing.
#[test]
fn only_a_short_listing_of_the_node_above_is_read() {
    for (above, looks) in [(Some(0), true), (Some(1_000), true), (Some(1_001), false), (None, false)] {
        let mut contender = makes_its_path(above);
        let Some(Command::Enter { prefix, beside, .. }) = contender.next_command() else { panic!("it enters") };
        assert_eq!(beside, looks, "{above:?}");
        let created = Ok((format!("{prefix}0000000000"), Zxid(7)));
        contender.handle(Event::Entered { created, arrival: Arrival::Unknown });
        let lists = Some(Command::List { limit: false, watch: false, beside: looks });
        assert_eq!(contender.next_command(), lists, "{above:?}");
        // It leaves without an answer, and not its path, where a numbered contender may be.
        contender.handle(Event::Listed(Err(Failure::ConnectionLoss)));
        contender.handle(Event::Leave);
        assert!(matches!(contender.next_command(), Some(Command::Delete { .. })));
        contender.handle(Event::Deleted(Ok(())));
        if looks {
            assert_eq!(contender.next_command(), Some(Command::RemovePath));
            contender.handle(Event::PathRemoved(Err(Failure::ConnectionLoss)));
            assert_eq!(contender.next_command(), Some(Command::RemovePath), "the reply was lost");
            contender.handle(Event::PathRemoved(Err(Failure::Refused)));
        }
        assert_eq!(contender.next_command(), Some(Command::End(End::Left)), "{above:?}");
    }
}

#[test]
fn an_attempt_that_saw_no_one_beside_leaves_its_path() {
    let mut contender = makes_its_path(Some(1));
    enters(&mut contender, &[]);
    assert!(matches!(contender.next_command(), Some(Command::Grant(_))));
    contender.handle(Event::Leave);
    assert!(matches!(contender.next_command(), Some(Command::Delete { .. })));
    contender.handle(Event::Deleted(Ok(())));
    assert_eq!(contender.next_command(), Some(Command::End(End::Left)));
}

/// Behind a contender of its session it lists nothing at first. What that one lists has not looked for this one.
#[test]
fn without_a_look_beside_only_a_neighbours_hold_grants() {
    let first = format!("_c_{}-lock-0000000001", AttemptId::new(2));
    let waits_behind = || {
        let mut contender = makes_its_path(Some(1));
        let Some(Command::Enter { prefix, .. }) = contender.next_command() else { panic!("it enters") };
        let own = format!("{prefix}0000000003");
        let arrival = Arrival::BehindLocal { name: first.clone(), most_ahead: Some(1) };
        contender.handle(Event::Entered { created: Ok((own.clone(), Zxid(7))), arrival });
        assert_eq!(contender.next_command(), None);
        (contender, own)
    };
    let looks = Some(Command::List { limit: false, watch: false, beside: true });
    let between = format!("_c_{}-lock-0000000002", AttemptId::new(3));
    // Its blocker, of another session, is deleted.
    let (mut contender, own) = waits_behind();
    contender.handle(Event::ListedByLocal(Listing::of(vec![first.clone(), between.clone(), own]).into()));
    assert_eq!(contender.next_command(), watch(&between, WatchKind::Blocker));
    contender.handle(Event::Watched(Ok(SEEN)));
    contender.handle(Event::Gone(between));
    assert_eq!(contender.next_command(), looks);
    // It is the first of a listing of another one.
    let (mut contender, own) = waits_behind();
    contender.handle(Event::ListedByLocal(Listing::of(vec![own.clone()]).into()));
    assert_eq!(contender.next_command(), looks);
    contender.handle(Event::Listed(Ok(Listing::of(vec![own]))));
    assert!(matches!(contender.next_command(), Some(Command::Grant(_))));
    // The neighbour right before it held, and releases.
    let mut contender = makes_its_path(Some(1));
    let Some(Command::Enter { prefix, .. }) = contender.next_command() else { panic!("it enters") };
    let own = format!("{prefix}0000000002");
    let arrival = Arrival::AfterLocal { name: first.clone(), place: None };
    contender.handle(Event::Entered { created: Ok((own.clone(), Zxid(7))), arrival });
    contender.handle(Event::Released { name: first, watched: true });
    assert_eq!(contender.next_command(), watch(&own, WatchKind::Own));
    contender.handle(Event::Watched(Ok(SEEN)));
    assert!(matches!(contender.next_command(), Some(Command::Grant(_))));
    contender.handle(Event::Leave);
    assert!(matches!(contender.next_command(), Some(Command::Delete { .. })));
    contender.handle(Event::Deleted(Ok(())));
    assert_eq!(contender.next_command(), Some(Command::End(End::Left)), "the path stays");
}

//! Handles a client's requests on the two servers, and the requests of a connection that breaks.

use lockkeeper_core::{
    Arrival, Event, Failure, Inspection, LastRelease, Limit, Listing, Mode, PathMade, ReleaseSeen, WatchKind, Zxid,
};

use super::client::{Client, FencedWrite, Flight, Outcome, Request, Watching};
use super::mistake::Mistake;
use super::step::Step;
use super::tree::{Data, NOBODY, Name, Node, Tree, Txn, attempt};
use super::world::{Cut, Role, Server, session};

impl Step<'_> {
    /// A client has seen a reply: from here on, no server may show it less.
    fn saw(&mut self, i: u8) {
        let behind = self.state.pending.len();
        let ahead = if self.client(i).server == Some(Server::Leader) { behind } else { 0 };
        for j in self.world.process(i) {
            self.client(j).ahead = ahead;
        }
    }

    pub(crate) fn effect(&mut self, i: u8) {
        match self.client(i).flight.clone() {
            Flight::Sent(Request::Enter(mode, _)) if self.world.mistake == Some(Mistake::ListBeforeCreate) => {
                let names = self.view(i).nodes.iter().map(|n| n.name).collect();
                self.client(i).flight = Flight::ListedFirst(mode, names);
            }
            Flight::Sent(request) if request.is_write() => {
                self.decide(i, request);
                self.reply_if_due(i);
            }
            Flight::Sent(request) => self.read(i, request),
            Flight::Created { node, unlisted: true, .. } => {
                let arrival = self.behind(i, node);
                self.entered(i, node, arrival);
            }
            Flight::Created { node, .. } => {
                let listed = self.list(i);
                let arrival = listed.map(|names| Arrival::Listed(self.listing(i, names)));
                self.entered(i, node, arrival.unwrap_or(Arrival::Unknown));
            }
            Flight::ListedFirst(mode, mut names) => {
                self.decide(i, Request::Enter(mode, false));
                if let Flight::Created { node, .. } = self.client(i).flight {
                    names.push(node.name);
                    let listed = names.iter().map(|name| self.world.print(*name)).collect();
                    self.entered(i, node, Arrival::Listed(self.listing(i, listed)));
                }
            }
            Flight::None | Flight::Decided { .. } => unreachable!("has no effect to take"),
        }
    }

    pub(crate) fn view(&self, i: u8) -> &Tree {
        let server = self.state.clients[usize::from(i)].server.expect("only a connected client is served");
        self.state.tree(server)
    }

    /// Returns the names that a listing shows.
    fn list(&self, i: u8) -> Result<Vec<String>, Failure> {
        let tree = self.view(i);
        let seen = |n: &&Node| {
            let unseen = n.name.is_holder_marker() && self.world.mistake == Some(Mistake::NoHolderMarker)
                || n.name.tombstone && self.world.mistake == Some(Mistake::TombstonesUnseen);
            !unseen
        };
        let names = || tree.nodes.iter().filter(seen).map(|n| self.world.print(n.name)).collect();
        tree.counter.map(|_| names()).ok_or(Failure::NoNode)
    }

    /// Returns a listing, with the limit if the discipline has one.
    fn listing(&self, i: u8, names: Vec<String>) -> Listing {
        let limit = self.world.discipline.limit().map(|_| self.view(i).limit);
        Listing { names, limit, other: None }
    }

    /// Returns what a client knows of the queue that has listed nothing: what the others of its process show.
    fn behind(&self, i: u8, node: Node) -> Arrival {
        if self.world.mistake == Some(Mistake::BehindAnyNumber) {
            let mut others = self.world.process(i).filter(|j| *j != i).map(|j| &self.state.clients[usize::from(j)]);
            let name = others.find(|c| !c.passed_on && c.own().is_some()).and_then(Client::own);
            let behind = |name| Arrival::AfterLocal { name: self.world.print(name), place: None };
            return name.map_or(Arrival::Unknown, behind);
        }
        self.state.local.arrival(&self.world.print(node.name))
    }

    fn entered(&mut self, i: u8, node: Node, arrival: Arrival) {
        self.saw(i);
        self.client(i).flight = Flight::None;
        self.client(i).knows = node.czxid;
        let name = self.world.print(node.name);
        let created = Ok((name, Zxid(i64::from(node.czxid))));
        self.tell(i, Event::Entered { created, arrival });
    }

    /// Returns a new node of client `i`.
    fn node(&mut self, i: u8, name: Name) -> Node {
        self.state.created += 1;
        let unprotected = self.world.mistake == Some(Mistake::Unprotected);
        let keeps = self.world.mistake == Some(Mistake::DeleteByName)
            || self.world.mistake == Some(Mistake::HolderMarkerByName) && name.is_holder_marker();
        let data = if unprotected { Data { id: None, ..Data::of(i) } } else { Data::of(i) };
        let node = Node { name, czxid: self.state.created, owner: self.client(i).session, data, version: 0 };
        if keeps {
            self.client(i).made = node.czxid;
        }
        node
    }

    /// The leader decides on a write of client `i`; its reply waits for the session's own server.
    fn decide(&mut self, i: u8, request: Request) {
        let outcome = match request {
            Request::Enter(mode, unlisted) => match self.state.leader.counter {
                Some(seq) => {
                    let protected =
                        self.world.node_format.protects() && self.world.mistake != Some(Mistake::Unprotected);
                    let id = protected.then_some(i);
                    let node = self.node(i, Name { id, mode: Some(mode), seq, tombstone: false });
                    self.commit(Txn::Create(node));
                    let wait = self.distance(i);
                    self.client(i).flight = Flight::Created { node, wait, unlisted };
                    return;
                }
                None => Outcome::NoNode,
            },
            Request::MakeParent(limit) => {
                if self.state.leader.counter.is_none() {
                    self.commit(Txn::MakeParent(limit));
                }
                Outcome::Done
            }
            Request::StoreLimit(permits, version) => match (self.state.leader.counter, self.state.leader.limit) {
                (None, _) => Outcome::NoNode,
                (_, Limit::Unset { version: now }) if now == version => {
                    self.commit(Txn::StoreLimit(permits));
                    Outcome::Done
                }
                _ => Outcome::BadVersion,
            },
            Request::TakeHolderMarker(own) => self.take_holder_marker(i, own),
            Request::WriteRecord(name, granted, asked, version) => match self.state.leader.get(name) {
                None => Outcome::NoNode,
                Some(node) if i32::from(node.version) != version => Outcome::BadVersion,
                Some(node) => {
                    let version = node.version + 1;
                    if self.world.mistake != Some(Mistake::NoAnnouncement) {
                        let data = Data { granted, asked, ..Data::of(i) };
                        self.client(i).past.announced |= granted;
                        self.commit(Txn::Write(name, data));
                    }
                    Outcome::Version(version)
                }
            },
            Request::Downgrade(from, into, asked) => match (self.state.leader.get(from), self.state.leader.get(into)) {
                (_, Some(_)) => Outcome::NodeExists,
                (None, None) => Outcome::NoNode,
                (Some(writer), None) => {
                    self.state.deleted_foreign |= writer.owner != self.state.clients[usize::from(i)].session;
                    let reader = self.node(i, into);
                    let reader = Node { data: Data { asked, ..reader.data }, ..reader };
                    self.commit(Txn::Replace(from, reader));
                    Outcome::Made(reader.czxid)
                }
            },
            Request::Delete(name, version)
            | Request::ReleaseWriting(name, version)
            | Request::Release(name, version, ..) => match self.state.leader.get(name).copied() {
                None => Outcome::NoNode,
                Some(node) if !self.is_version(node, version) => Outcome::BadVersion,
                Some(node) => {
                    self.note_delete(i, node);
                    let recorded = i32::from(self.state.leader.version);
                    if let Request::ReleaseWriting(..) = request {
                        self.wrote(node.czxid);
                        let client = self.client(i);
                        (client.write, client.past.wrote_at_release) = (FencedWrite::None, true);
                    }
                    self.commit(match request {
                        Request::Release(_, _, freed, at) if recorded == at => Txn::Release(name, freed),
                        _ => Txn::Delete(name),
                    });
                    Outcome::Done
                }
            },
            Request::DeleteBoth(name, version) => {
                match (self.state.leader.get(name).copied(), self.state.leader.holder_marker().copied()) {
                    (Some(_), Some(holder_marker)) if !self.is_version(holder_marker, Some(version)) => {
                        Outcome::BadVersion
                    }
                    (Some(node), Some(holder_marker)) => {
                        self.note_delete(i, node);
                        self.note_delete(i, holder_marker);
                        self.commit(Txn::DeleteBoth(name));
                        Outcome::Done
                    }
                    _ => Outcome::NoNode,
                }
            }
            Request::GiveUpHolderMarker(own, version) => {
                match (self.state.leader.get(own), self.state.leader.holder_marker().copied()) {
                    (Some(_), Some(holder_marker)) if !self.is_version(holder_marker, Some(version)) => {
                        Outcome::BadVersion
                    }
                    (Some(_), Some(holder_marker)) => {
                        self.note_delete(i, holder_marker);
                        self.commit(Txn::Delete(holder_marker.name));
                        Outcome::Done
                    }
                    _ => Outcome::NoNode,
                }
            }
            Request::Tombstone(own, tombstone) => {
                match (self.state.leader.get(own), self.state.leader.get(tombstone)) {
                    (None, _) => Outcome::NoNode,
                    (_, Some(_)) => Outcome::NodeExists,
                    (Some(_), None) => {
                        let node = self.node(i, tombstone);
                        self.commit(Txn::Create(Node { owner: NOBODY, ..node }));
                        Outcome::Done
                    }
                }
            }
            Request::DeleteWith(name, tombstone) => {
                match (self.state.leader.get(name).copied(), self.state.leader.get(tombstone).copied()) {
                    (Some(node), Some(tombstone)) => {
                        self.note_delete(i, node);
                        self.note_delete(i, tombstone);
                        self.commit(Txn::DeleteWith(name, tombstone.name));
                        Outcome::Done
                    }
                    _ => Outcome::NoNode,
                }
            }
            _ => unreachable!("only writes are decided"),
        };
        let wait = self.distance(i);
        self.client(i).flight = Flight::Decided { request, outcome, wait };
    }

    fn is_version(&self, node: Node, version: Option<i32>) -> bool {
        self.world.mistake == Some(Mistake::DeleteByName)
            || version.is_none_or(|version| version == i32::from(node.version))
    }

    fn note_delete(&mut self, i: u8, node: Node) {
        // A client may delete its own tombstone, and those of abandoned holds whose delay is over.
        let tombstone_deleted = node.name.tombstone && self.state.leader.abandoned().any(|n| n.name == node.name);
        let client = &mut self.state.clients[usize::from(i)];
        let cooling = node.name.id.is_some_and(|id| self.state.cooling[usize::from(id)].is_some());
        let ours = if node.name.tombstone { node.name.id == Some(i) } else { node.owner == client.session };
        self.state.deleted_foreign |= !(ours || tombstone_deleted && !cooling);
        client.past.word_seen |= node.version > 0;
    }

    fn take_holder_marker(&mut self, i: u8, own: Name) -> Outcome {
        let plain = matches!(self.world.roles[usize::from(i)], Role::Plain(_));
        if !plain && self.state.leader.get(own).is_none() {
            return Outcome::NoNode;
        }
        if self.world.mistake == Some(Mistake::NoHolderMarker) {
            self.state.created += 1;
            return Outcome::Made(self.state.created);
        }
        if self.state.leader.holder_marker().is_some() {
            return Outcome::NodeExists;
        }
        let older = |n: &&&Node| n.name.class() == own.class();
        self.state.overtook |= self.state.leader.queue().iter().find(older).is_some_and(|n| n.name != own);
        let made_way_for = self.state.clients[usize::from(i)].made_way_for;
        self.state.pushed_in |= self.state.leader.queue().iter().any(|n| made_way_for & 1 << n.owner != 0);
        let node = self.node(i, Name::HOLDER_MARKER);
        self.commit(Txn::Create(node));
        Outcome::Made(node.czxid)
    }

    /// How many changes the server of client `i` is behind the leader.
    fn distance(&self, i: u8) -> usize {
        match self.state.clients[usize::from(i)].server {
            Some(Server::Follower) => self.state.pending.len(),
            _ => 0,
        }
    }

    pub(crate) fn reply_if_due(&mut self, i: u8) {
        let Flight::Decided { request, outcome, wait: 0 } = self.client(i).flight else { return };
        self.saw(i);
        self.client(i).flight = Flight::None;
        let made = match outcome {
            Outcome::Made(zxid) => Ok(Zxid(i64::from(zxid))),
            Outcome::NoNode => Err(Failure::NoNode),
            Outcome::NodeExists => Err(Failure::NodeExists),
            Outcome::BadVersion => Err(Failure::BadVersion),
            Outcome::Done | Outcome::Version(_) => Ok(Zxid(0)),
        };
        let done = made.map(drop);
        match request {
            Request::Enter(..) => {
                let failure = done.err().unwrap_or(Failure::NoNode);
                self.tell(i, Event::Entered { created: Err(failure), arrival: Arrival::Unknown });
            }
            Request::MakeParent(_) => self.tell(i, Event::ParentMade(done.map(|()| PathMade::default()))),
            Request::StoreLimit(..) => {
                self.client(i).past.stored |= done.is_ok();
                self.tell(i, Event::LimitStored(done));
            }
            Request::TakeHolderMarker(_) => self.tell(i, Event::HolderMarkerTaken(made)),
            Request::WriteRecord(..) => {
                let version = if let Outcome::Version(version) = outcome { i32::from(version) } else { 0 };
                self.tell(i, Event::RecordWritten(done.map(|()| version)));
            }
            Request::Downgrade(..) => {
                if let Outcome::Made(czxid) = outcome {
                    self.client(i).knows = czxid;
                }
                self.tell(i, Event::Downgraded(made));
            }
            Request::Tombstone(..) => self.tell(i, Event::TombstoneMade(done)),
            Request::GiveUpHolderMarker(..) => self.tell(i, Event::Deleted(done)),
            Request::Delete(name, _)
            | Request::Release(name, ..)
            | Request::ReleaseWriting(name, _)
            | Request::DeleteBoth(name, _)
            | Request::DeleteWith(name, _) => {
                let client = self.client(i);
                let own = client.own();
                client.past.stray_deleted |= done.is_ok() && own != Some(name);
                client.past.delete_repeated |= done == Err(Failure::NoNode);
                self.tell(i, Event::Deleted(done));
            }
            _ => unreachable!("only writes are decided"),
        }
    }

    fn read(&mut self, i: u8, request: Request) {
        if request == Request::Recover && self.world.mistake != Some(Mistake::NoOrderedWrite) {
            while self.client(i).server == Some(Server::Follower) && !self.state.pending.is_empty() {
                self.follower_applies();
            }
        }
        self.saw(i);
        self.client(i).flight = Flight::None;
        match request {
            Request::List { .. } | Request::Recover => {
                let names = self.list(i);
                if let (Request::List { watch: true }, Ok(_)) = (request, &names) {
                    self.watch_children(i);
                }
                let listed = names.map(|names| match request {
                    Request::Recover => Listing::of(names),
                    _ => self.listing(i, names),
                });
                self.share_listing(i, &listed);
                self.tell(i, Event::Listed(listed));
            }
            Request::ReadRelease(own) => {
                let from_memory = self.world.mistake == Some(Mistake::OwnNodeUnread);
                let own = match self.inspect(i, own) {
                    Err(_) if from_memory => Some(Zxid(i64::from(self.client(i).knows))),
                    seen => seen.ok().map(|seen| seen.czxid),
                };
                let seen = self.last_release(i).map(|last| ReleaseSeen { last, own });
                self.tell(i, Event::ReleaseRead(seen));
            }
            Request::Inspect(name) => {
                let seen = self.inspect(i, name);
                self.tell(i, Event::Inspected(seen));
            }
            Request::Watch(name, kind) => {
                let target = self.watch_target(i, name, kind);
                let node = self.view(i).get(target).copied();
                let seen = self.inspect(i, target);
                let watch = |n: Node| Watching { asked: Some(name), target, czxid: n.czxid, version: n.version };
                let remembers = kind == WatchKind::Blocker && self.world.mistake == Some(Mistake::AnyRecordCounts);
                let client = self.client(i);
                client.watches[Self::slot(name, kind)] = node.map(watch);
                client.made = node.filter(|_| remembers).map_or(client.made, |n| n.czxid);
                self.tell(i, Event::Watched(seen));
            }
            _ => unreachable!("only reads are read"),
        }
    }

    /// The leader checks a hold in order with all writes, and the session's server, which has them all then, shows the holder marker.
    pub(crate) fn check(&mut self, i: u8) {
        let Some((own, marked)) = self.client(i).check.take() else { return };
        let ordered = self.world.mistake != Some(Mistake::CheckUnordered);
        while ordered && self.client(i).server == Some(Server::Follower) && !self.state.pending.is_empty() {
            self.follower_applies();
        }
        // An event that came before the answer has ended the client.
        if !self.client(i).is_live() {
            return;
        }
        self.saw(i);
        let tree = self.view(i);
        let marker = if marked { tree.holder_marker().map(|n| Some(Zxid(i64::from(n.czxid)))) } else { Some(None) };
        let seen = tree.get(own).and(marker).ok_or(Failure::NoNode);
        self.tell(i, Event::Checked(seen));
    }

    /// The session's server shows the first of the queue.
    pub(crate) fn look(&mut self, i: u8) {
        let Some((first, front)) = self.client(i).look.take() else { return };
        self.saw(i);
        let unseen = self.world.mistake == Some(Mistake::LookFindsNothing);
        let first = if unseen { Err(Failure::NoNode) } else { self.inspect(i, first) };
        let (gone, front) = (first.is_err(), front.and_then(|front| self.inspect(i, front).ok().map(Box::new)));
        self.tell(i, Event::Looked { first, front });
        let client = self.client(i);
        client.past.looked |= gone && matches!(client.flight, Flight::Sent(Request::List { .. }));
    }

    fn last_release(&self, i: u8) -> Result<LastRelease, Failure> {
        let tree = self.view(i);
        let me = &self.state.clients[usize::from(i)];
        let freed = if self.world.mistake == Some(Mistake::AnyRecordCounts) { Some(me.made) } else { tree.freed };
        let freed = freed.map(|freed| Zxid(i64::from(freed)));
        tree.counter.map(|_| LastRelease { freed, version: Some(i32::from(tree.version)) }).ok_or(Failure::NoNode)
    }

    /// Sets a watch on the children.
    fn watch_children(&mut self, i: u8) {
        let tree = self.view(i);
        if self.world.mistake != Some(Mistake::WatchOnePlace) {
            let seen = tree.fingerprint();
            self.client(i).children = Some(seen);
            return;
        }
        let permits = self.world.discipline.limit().expect("a mistake with permits") as usize;
        let at = self.state.clients[usize::from(i)].own().and_then(|own| tree.nodes.iter().position(|n| n.name == own));
        let before = at.and_then(|at| at.checked_sub(permits)).map(|before| tree.nodes[before]);
        let watch = |n: Node| Watching { asked: None, target: n.name, czxid: n.czxid, version: n.version };
        self.client(i).watches[0] = before.map(watch);
    }

    fn inspect(&self, i: u8, name: Name) -> Result<Inspection, Failure> {
        let me = &self.state.clients[usize::from(i)];
        let from_memory = match self.world.mistake {
            Some(Mistake::DeleteByName) => me.own() == Some(name),
            Some(Mistake::HolderMarkerByName) => name.is_holder_marker() && me.made > 0,
            _ => false,
        };
        if from_memory {
            // The node must be the one that it created.
            let (owner, czxid) = (session(me.session), Zxid(i64::from(me.made)));
            return Ok(Inspection { owner, czxid, id: Some(attempt(i)), version: 0, granted: false, asked: None });
        }
        let node = self.view(i).get(name).ok_or(Failure::NoNode)?;
        let owner = if self.world.mistake == Some(Mistake::AdoptForeign) { me.session } else { node.owner };
        Ok(Inspection {
            owner: session(owner),
            czxid: Zxid(i64::from(node.czxid)),
            id: node.data.id.map(attempt),
            version: i32::from(node.version),
            granted: node.data.granted,
            asked: node.data.asked.then(Box::default),
        })
    }

    /// Returns the node that a watch is set on: the requested one, unless a mistake is on.
    fn watch_target(&self, i: u8, name: Name, kind: WatchKind) -> Name {
        let nodes = &self.view(i).nodes;
        let at = nodes.iter().position(|n| n.name == name);
        match (self.world.mistake, at, self.state.clients[usize::from(i)].own()) {
            (Some(Mistake::WatchTheFirst), Some(_), _) if kind == WatchKind::Blocker => nodes[0].name,
            (Some(Mistake::WatchTheNextYounger), Some(at), Some(own)) if kind == WatchKind::Blocker => {
                nodes[at + 1..].iter().map(|n| n.name).find(|n| *n != own).unwrap_or(own)
            }
            _ => name,
        }
    }

    pub(crate) fn cut(&mut self, i: u8, cut: Cut) {
        if let FencedWrite::Sent(_) = self.client(i).write {
            if cut == Cut::After {
                self.write(i);
            }
            self.client(i).write = FencedWrite::Unknown;
        }
        let (checks, looks) = (self.client(i).check.take().is_some(), self.client(i).look.take().is_some());
        if let (Cut::After, Flight::Sent(request)) = (cut, self.client(i).flight.clone()) {
            self.decide(i, request);
        }
        if let (Cut::Between, Flight::Created { node, .. }) = (cut, self.client(i).flight.clone()) {
            self.saw(i);
            self.client(i).server = None;
            self.tell(i, Event::Disconnected);
            self.client(i).flight = Flight::None;
            self.client(i).knows = node.czxid;
            let name = self.world.print(node.name);
            let created = Ok((name, Zxid(i64::from(node.czxid))));
            self.tell(i, Event::Entered { created, arrival: Arrival::Unknown });
            return;
        }
        self.client(i).server = None;
        self.tell(i, Event::Disconnected);
        if checks {
            self.tell(i, Event::Checked(Err(Failure::ConnectionLoss)));
        }
        if looks {
            self.tell(i, Event::Looked { first: Err(Failure::ConnectionLoss), front: None });
        }
        let flight = std::mem::replace(&mut self.client(i).flight, Flight::None);
        let request = match flight {
            Flight::None => return,
            Flight::Sent(request) | Flight::Decided { request, .. } => request,
            Flight::Created { .. } | Flight::ListedFirst(..) => Request::Enter(Mode::Exclusive, false),
        };
        let (failure, lost) = (Failure::ConnectionLoss, Err(Failure::ConnectionLoss));
        let past = &mut self.client(i).past;
        past.holder_marker_doubted |= matches!(request, Request::TakeHolderMarker(_));
        past.marker_delete_lost |= matches!(request, Request::GiveUpHolderMarker(..));
        past.downgrade_doubted |= matches!(request, Request::Downgrade(..));
        match request {
            Request::Enter(..) => self.tell(i, Event::Entered { created: Err(failure), arrival: Arrival::Unknown }),
            Request::MakeParent(_) => self.tell(i, Event::ParentMade(Err(failure))),
            Request::StoreLimit(..) => self.tell(i, Event::LimitStored(lost)),
            Request::List { .. } | Request::Recover => {
                self.client(i).listing_before = None;
                self.tell(i, Event::Listed(Err(failure)));
            }
            Request::Inspect(_) => self.tell(i, Event::Inspected(Err(failure))),
            Request::Watch(..) => self.tell(i, Event::Watched(Err(failure))),
            Request::TakeHolderMarker(_) => self.tell(i, Event::HolderMarkerTaken(Err(failure))),
            Request::WriteRecord(..) => self.tell(i, Event::RecordWritten(Err(failure))),
            Request::Downgrade(..) => self.tell(i, Event::Downgraded(Err(failure))),
            Request::Tombstone(..) => self.tell(i, Event::TombstoneMade(lost)),
            Request::ReadRelease(_) => self.tell(i, Event::ReleaseRead(Err(failure))),
            Request::Delete(..)
            | Request::Release(..)
            | Request::ReleaseWriting(..)
            | Request::DeleteBoth(..)
            | Request::GiveUpHolderMarker(..)
            | Request::DeleteWith(..) => self.tell(i, Event::Deleted(lost)),
        }
    }

    /// The session continues at `server`, and its watches too: what changed meanwhile fires immediately.
    pub(crate) fn reconnect(&mut self, i: u8, server: Server) {
        let session = self.client(i).session;
        if self.state.is_expired(session) {
            return self.tell(i, Event::SessionOver);
        }
        self.client(i).server = Some(server);
        self.client(i).overdue = false;
        for slot in 0..self.client(i).watches.len() {
            let Some(watch) = self.client(i).watches[slot] else { continue };
            let gone = match self.state.tree(server).get(watch.target) {
                None => true,
                // Another node by now, or other data: for the server, a change since this session last saw the node.
                Some(node) if (node.czxid, node.version) != (watch.czxid, watch.version) => false,
                Some(_) => continue,
            };
            self.client(i).watches[slot] = None;
            self.tell_fired(i, watch, gone);
        }
        let now = self.state.tree(server).fingerprint();
        if self.client(i).children.take_if(|seen| *seen != now).is_some() {
            self.tell(i, Event::ChildrenChanged);
        }
    }
}

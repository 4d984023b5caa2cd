//! What each action does: the commands carried out as a driver and two servers would, and the events they give.

use lockkeeper_core::{Command, Contender, End, Event, Failure, Inspection, Listing, Mode, WatchKind, Zxid};

use super::tree::{Fired, Name, Node, Tree, Txn, attempt};
use super::world::{
    Action, Client, Cut, Flight, GrantedBy, Life, Machine, Mistake, Outcome, Request, Server, State, Watching, World,
    session,
};

impl World {
    /// The world after `action`.
    pub(crate) fn after(&self, state: &State, action: Action) -> State {
        let mut next = Step { world: self, state: state.clone() };
        next.take(action);
        next.state
    }
}

struct Step<'w> {
    world: &'w World,
    state: State,
}

impl Step<'_> {
    fn take(&mut self, action: Action) {
        self.state.newborn = None;
        let budget = &mut self.state.budget;
        match action {
            Action::Start(i, server) => {
                self.start(i, server);
                self.state.newborn = Some(i);
            }
            Action::Effect(i) => self.effect(i),
            Action::FollowerApplies => self.follower_applies(),
            Action::Reconnect(i, server) => self.reconnect(i, server),
            Action::Lingered(i) => {
                self.client(i).lingered = true;
                self.tell(i, Event::Lingered);
            }
            Action::Expire(number) => {
                self.state.expired |= 1 << number;
                self.commit(Txn::Expire(number));
            }
            Action::Leave(i) => {
                if !self.state.clients[usize::from(i)].says_it_holds() {
                    budget.cancels -= 1;
                }
                self.client(i).left = true;
                self.tell(i, Event::Leave);
            }
            Action::Cut(i, cut) => {
                budget.cuts -= 1;
                self.cut(i, cut);
            }
            Action::Crash(i) => {
                budget.crashes -= 1;
                let holding = self.client(i).says_it_holds();
                self.stop(i, Life::Crashed { holding });
            }
            Action::ClockRunsOut(i) => {
                budget.breaches -= 1;
                let client = self.client(i);
                client.overdue = true;
                client.was_overdue = true;
                if client.says_it_holds() {
                    client.left = true;
                    self.tell(i, Event::Leave);
                }
            }
            Action::Close(i) => {
                budget.closes -= 1;
                self.tell(i, Event::SessionOver);
            }
            Action::Return(i, server) => {
                budget.returns -= 1;
                let client = self.client(i);
                client.session += 4;
                client.returned = true;
                client.left = false;
                client.granted_by = None;
                self.start(i, server);
            }
            Action::Reap => {
                budget.reaps -= 1;
                self.commit(Txn::Reap);
            }
            Action::Evict(name) => {
                budget.evictions -= 1;
                self.commit(Txn::Delete(name));
            }
            Action::Word(name) => {
                budget.words -= 1;
                self.commit(Txn::Write(name));
            }
        }
    }

    fn client(&mut self, i: u8) -> &mut Client {
        &mut self.state.clients[usize::from(i)]
    }

    fn start(&mut self, i: u8, server: Server) {
        let world = self.world;
        let number = self.client(i).session;
        let mode = world.modes[usize::from(i)];
        let contender = Contender::new(world.discipline.clone(), world.dialect, mode, attempt(i), session(number));
        let client = self.client(i);
        client.life = Life::Live;
        client.machine = Some(Machine::new(contender));
        client.server = Some(server);
        // A new session may be opened on any server, however far behind.
        client.ahead = 0;
        self.carry_out(i, None);
    }

    /// The client is no more, or needs its session no more for this lock.
    fn stop(&mut self, i: u8, life: Life) {
        let client = self.client(i);
        client.life = life;
        client.machine = None;
        client.server = None;
        client.overdue = false;
        client.ahead = 0;
        client.flight = Flight::None;
        client.watches = [None; 2];
        client.lingered = false;
    }

    /// Tells a contender what happened and carries out what needs no server.
    fn tell(&mut self, i: u8, event: Event<'_>) {
        let by = match event {
            Event::Gone(_) => GrantedBy::Handover,
            Event::Entered { .. } => GrantedBy::FirstListing,
            _ => GrantedBy::LaterListing,
        };
        let looked = matches!(event, Event::Inspected(_));
        let client = self.client(i);
        let had_node = client.own().is_some();
        let Some(machine) = client.machine.as_mut() else { return };
        machine.contender().handle(event);
        self.carry_out(i, Some(by));
        let client = self.client(i);
        client.adopted |= looked && !had_node && client.own().is_some();
    }

    fn carry_out(&mut self, i: u8, by: Option<GrantedBy>) {
        let dialect = self.world.dialect;
        loop {
            let client = self.client(i);
            let Some(machine) = client.machine.as_mut() else { return };
            let Some(command) = machine.contender().next_command() else {
                machine.settle(dialect);
                return;
            };
            let read = |name: &str| Name::read(dialect, name);
            let request = match command {
                Command::Grant(grant) => {
                    client.granted_by = by;
                    self.granted(i, grant.token.zxid());
                    continue;
                }
                Command::End(end) => {
                    self.stop(i, Life::Ended(end));
                    return;
                }
                Command::Enter { prefix, limit: _ } => {
                    let mode = self.world.modes[usize::from(i)];
                    assert_eq!(dialect.prefix(mode, attempt(i)), Some(prefix));
                    Request::Enter
                }
                Command::MakeParent { .. } => Request::MakeParent,
                Command::List { .. } => Request::List,
                Command::Recover => Request::Recover,
                Command::Inspect { name } => Request::Inspect(read(&name)),
                Command::Watch { name, kind } => Request::Watch(read(&name), kind),
                Command::Delete { name, version, barrier: None } => Request::Delete(read(&name), version),
                other => unreachable!("no world has a use for {other:?} yet"),
            };
            self.client(i).flight = Flight::Sent(request);
        }
    }

    fn granted(&mut self, i: u8, token: Zxid) {
        let token = u8::try_from(token.0).expect("few nodes are made");
        let server = self.client(i).server.unwrap_or(Server::Leader);
        self.state.granted_to_none |= !self.state.tree(server).nodes.iter().any(|n| n.czxid == token);
        if self.world.budget.evictions > 0 && !self.state.leader.nodes.iter().any(|n| n.czxid == token) {
            // Its server does not know yet that an operator took the node. A later token fences it off, whenever it came.
            return;
        }
        let (any, writer) = self.state.tokens;
        let reads = self.world.modes[usize::from(i)] == Mode::Read;
        // Readers hold together, so among themselves they may be told in any order.
        let least = if reads { writer } else { any };
        self.state.token_went_back |= token <= least;
        self.state.tokens = (any.max(token), if reads { writer } else { writer.max(token) });
    }

    /// The leader decides on a change; the watches of those connected to it fire.
    fn commit(&mut self, txn: Txn) {
        let fired = self.state.leader.apply(txn);
        self.state.pending.push(txn);
        self.fire(Server::Leader, &fired);
        if self.state.pending.len() > self.world.lag {
            self.follower_applies();
        }
    }

    fn follower_applies(&mut self) {
        let txn = self.state.pending.remove(0);
        let fired = self.state.follower.apply(txn);
        let mut due = Vec::new();
        for (i, client) in self.state.clients.iter_mut().enumerate() {
            client.ahead = client.ahead.saturating_sub(1);
            if client.server == Some(Server::Follower)
                && let Flight::Created { wait, .. } | Flight::Decided { wait, .. } = &mut client.flight
                && *wait > 0
            {
                *wait -= 1;
                due.push(i as u8);
            }
        }
        // An event comes before the reply to the same change.
        self.fire(Server::Follower, &fired);
        for i in due {
            self.reply_if_due(i);
        }
    }

    fn fire(&mut self, server: Server, fired: &[Fired]) {
        for fired in fired {
            let (Fired::Gone(name) | Fired::Changed(name)) = *fired;
            for i in 0..self.state.clients.len() as u8 {
                let client = self.client(i);
                let mut hit = None;
                for watch in client.watches.iter_mut().filter(|_| client.server == Some(server)) {
                    hit = hit.or(watch.take_if(|watch| watch.target == name));
                }
                if let Some(watch) = hit {
                    self.tell_fired(i, watch, matches!(fired, Fired::Gone(_)));
                }
            }
        }
    }

    /// A watch's event, under the name that the contender asked for.
    fn tell_fired(&mut self, i: u8, watch: Watching, gone: bool) {
        let name = watch.asked.print(self.world.dialect);
        self.tell(i, if gone { Event::Gone(&name) } else { Event::Changed(&name) });
    }

    /// A reply is seen: no server may show less from here on.
    fn saw(&mut self, i: u8) {
        let behind = self.state.pending.len();
        let client = self.client(i);
        client.ahead = if client.server == Some(Server::Leader) { behind } else { 0 };
    }

    fn effect(&mut self, i: u8) {
        match self.client(i).flight.clone() {
            Flight::Sent(Request::Enter) if self.world.mistake == Some(Mistake::ListBeforeCreate) => {
                let names = self.view(i).nodes.iter().map(|n| n.name).collect();
                self.client(i).flight = Flight::ListedFirst(names);
            }
            Flight::Sent(request @ (Request::Enter | Request::MakeParent | Request::Delete(..))) => {
                self.decide(i, request);
                self.reply_if_due(i);
            }
            Flight::Sent(request) => self.read(i, request),
            Flight::Created { node, .. } => {
                let listed = self.view(i).list(self.world.dialect).ok_or(Failure::NoNode);
                self.entered(i, node, listed);
            }
            Flight::ListedFirst(mut names) => {
                self.decide(i, Request::Enter);
                if let Flight::Created { node, .. } = self.client(i).flight {
                    names.push(node.name);
                    let listed = names.iter().map(|n| n.print(self.world.dialect)).collect();
                    self.entered(i, node, Ok(listed));
                }
            }
            Flight::None | Flight::Decided { .. } => unreachable!("has no effect to take"),
        }
    }

    fn view(&self, i: u8) -> &Tree {
        let server = self.state.clients[usize::from(i)].server.expect("only a connected client is served");
        self.state.tree(server)
    }

    fn entered(&mut self, i: u8, node: Node, listed: Result<Vec<String>, Failure>) {
        self.saw(i);
        self.client(i).flight = Flight::None;
        let name = node.name.print(self.world.dialect);
        let created = Ok((name.as_str(), Zxid(i64::from(node.czxid))));
        self.tell(
            i,
            Event::Entered { created, listed: listed.as_deref().map(Listing::of).map_err(|failure| *failure) },
        );
    }

    /// The leader decides on a write of client `i`; its reply waits for the session's own server.
    fn decide(&mut self, i: u8, request: Request) {
        let owner = self.client(i).session;
        let mistake = self.world.mistake;
        let outcome = match request {
            Request::Enter => match self.state.leader.counter {
                Some(seq) => {
                    let protected = self.world.dialect.protects() && mistake != Some(Mistake::Unprotected);
                    self.state.created += 1;
                    let node = Node {
                        name: Name { id: protected.then_some(i), mode: self.world.modes[usize::from(i)], seq },
                        czxid: self.state.created,
                        owner,
                        data: (mistake != Some(Mistake::Unprotected)).then_some(i),
                        version: 0,
                    };
                    if mistake == Some(Mistake::DeleteByName) {
                        self.client(i).made = node.czxid;
                    }
                    self.commit(Txn::Create(node));
                    let wait = self.distance(i);
                    self.client(i).flight = Flight::Created { node, wait };
                    return;
                }
                None => Outcome::NoNode,
            },
            Request::MakeParent => {
                if self.state.leader.counter.is_none() {
                    self.commit(Txn::MakeParent);
                }
                Outcome::Done
            }
            Request::Delete(name, version) => match self.state.leader.get(name).copied() {
                None => Outcome::NoNode,
                Some(node)
                    if mistake != Some(Mistake::DeleteByName)
                        && version.is_some_and(|version| version != i32::from(node.version)) =>
                {
                    Outcome::BadVersion
                }
                Some(node) => {
                    self.state.deleted_foreign |= node.owner != owner;
                    self.client(i).word_seen = node.version > 0;
                    self.commit(Txn::Delete(name));
                    Outcome::Done
                }
            },
            _ => unreachable!("only writes are decided"),
        };
        let wait = self.distance(i);
        self.client(i).flight = Flight::Decided { request, outcome, wait };
    }

    /// How many changes the server of client `i` is behind the leader.
    fn distance(&self, i: u8) -> usize {
        match self.state.clients[usize::from(i)].server {
            Some(Server::Follower) => self.state.pending.len(),
            _ => 0,
        }
    }

    fn reply_if_due(&mut self, i: u8) {
        let Flight::Decided { request, outcome, wait: 0 } = self.client(i).flight else { return };
        self.saw(i);
        self.client(i).flight = Flight::None;
        let outcome = match outcome {
            Outcome::Done => Ok(()),
            Outcome::NoNode => Err(Failure::NoNode),
            Outcome::BadVersion => Err(Failure::BadVersion),
        };
        match request {
            Request::Enter => {
                let failure = outcome.err().unwrap_or(Failure::NoNode);
                self.tell(i, Event::Entered { created: Err(failure), listed: Err(failure) });
            }
            Request::MakeParent => self.tell(i, Event::ParentMade(outcome)),
            Request::Delete(name, _) => {
                let client = self.client(i);
                let own = client.own();
                client.stray_deleted |= outcome.is_ok() && own != Some(name);
                client.delete_repeated |= outcome == Err(Failure::NoNode);
                self.tell(i, Event::Deleted(outcome));
            }
            _ => unreachable!("only writes are decided"),
        }
    }

    fn read(&mut self, i: u8, request: Request) {
        let dialect = self.world.dialect;
        if request == Request::Recover && self.world.mistake != Some(Mistake::NoSync) {
            while self.client(i).server == Some(Server::Follower) && !self.state.pending.is_empty() {
                self.follower_applies();
            }
        }
        self.saw(i);
        self.client(i).flight = Flight::None;
        match request {
            Request::List | Request::Recover => {
                let names = self.view(i).list(dialect);
                self.tell(i, Event::Listed(names.as_deref().map(Listing::of).ok_or(Failure::NoNode)));
            }
            Request::Inspect(name) => {
                let seen = self.inspect(i, name);
                self.tell(i, Event::Inspected(seen));
            }
            Request::Watch(name, kind) => {
                let target = self.watch_target(i, name, kind);
                let czxid = self.view(i).get(target).map(|n| n.czxid);
                let seen = self.inspect(i, target);
                let slot = usize::from(kind == WatchKind::Own);
                self.client(i).watches[slot] = czxid.map(|czxid| Watching { asked: name, target, czxid });
                self.tell(i, Event::Watched(seen));
            }
            _ => unreachable!("only reads are read"),
        }
    }

    fn inspect(&self, i: u8, name: Name) -> Result<Inspection, Failure> {
        let me = &self.state.clients[usize::from(i)];
        if self.world.mistake == Some(Mistake::DeleteByName) && me.own() == Some(name) {
            // From memory: what it made is what must be there.
            let (owner, czxid) = (session(me.session), Zxid(i64::from(me.made)));
            return Ok(Inspection { owner, czxid, id: Some(attempt(i)), version: 0, granted: false, asked: false });
        }
        let node = self.view(i).get(name).ok_or(Failure::NoNode)?;
        let owner = if self.world.mistake == Some(Mistake::AdoptForeign) { me.session } else { node.owner };
        Ok(Inspection {
            owner: session(owner),
            czxid: Zxid(i64::from(node.czxid)),
            id: node.data.map(attempt),
            version: i32::from(node.version),
            granted: false,
            asked: false,
        })
    }

    /// Where a watch goes: to the node asked for, unless a mistake is on.
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

    fn cut(&mut self, i: u8, cut: Cut) {
        if let (Cut::After, Flight::Sent(request)) = (cut, self.client(i).flight.clone()) {
            self.decide(i, request);
        }
        if let (Cut::Between, Flight::Created { node, .. }) = (cut, self.client(i).flight.clone()) {
            self.saw(i);
            self.client(i).server = None;
            self.tell(i, Event::Disconnected);
            self.client(i).flight = Flight::None;
            let name = node.name.print(self.world.dialect);
            let created = Ok((name.as_str(), Zxid(i64::from(node.czxid))));
            self.tell(i, Event::Entered { created, listed: Err(Failure::ConnectionLoss) });
            return;
        }
        self.client(i).server = None;
        self.tell(i, Event::Disconnected);
        let flight = std::mem::replace(&mut self.client(i).flight, Flight::None);
        let lost = Err(Failure::ConnectionLoss);
        let request = match flight {
            Flight::None => return,
            Flight::Sent(request) | Flight::Decided { request, .. } => request,
            Flight::Created { .. } | Flight::ListedFirst(_) => Request::Enter,
        };
        match request {
            Request::Enter => {
                let failure = Failure::ConnectionLoss;
                self.tell(i, Event::Entered { created: Err(failure), listed: Err(failure) });
            }
            Request::MakeParent => self.tell(i, Event::ParentMade(lost)),
            Request::List | Request::Recover => self.tell(i, Event::Listed(Err(Failure::ConnectionLoss))),
            Request::Inspect(_) => self.tell(i, Event::Inspected(Err(Failure::ConnectionLoss))),
            Request::Watch(..) => self.tell(i, Event::Watched(Err(Failure::ConnectionLoss))),
            Request::Delete(..) => self.tell(i, Event::Deleted(lost)),
        }
    }

    /// The session goes on at `server`, and its watches with it: what changed meanwhile fires at once.
    fn reconnect(&mut self, i: u8, server: Server) {
        let session = self.client(i).session;
        if self.state.is_expired(session) {
            return self.tell(i, Event::SessionOver);
        }
        self.client(i).server = Some(server);
        self.client(i).overdue = false;
        for slot in 0..2 {
            let Some(watch) = self.client(i).watches[slot] else { continue };
            let gone = match self.state.tree(server).get(watch.target) {
                None => true,
                // Another node by now: to the server, a change since this session last saw it.
                Some(node) if node.czxid != watch.czxid => false,
                Some(_) => continue,
            };
            self.client(i).watches[slot] = None;
            self.tell_fired(i, watch, gone);
        }
    }
}

/// Whether an attempt ended in a way that says: nothing of it is left.
pub(crate) fn says_it_left(life: Life) -> bool {
    matches!(life, Life::Ended(end) if end != End::SessionOver && end != End::Stuck)
}

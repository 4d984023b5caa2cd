//! The effect of each action: commands are carried out as a driver would, and every server applies the changes.

use lockkeeper_core::{Arrival, Ask, Class, Command, End, Event, Mode, ReleaseWrite, Revocation, WatchKind, Zxid};

use super::client::{Client, FencedWrite, Flight, GrantedBy, Life, Request, WATCHES, Watching};
use super::mistake::Mistake;
use super::tree::{Data, Fired, Node, Txn};
use super::world::{Action, Cut, Held, Role, Server, State, World};

impl World {
    /// Returns the world after `action`.
    pub(crate) fn after(&self, state: &State, action: Action) -> State {
        let mut next = Step { world: self, state: state.clone() };
        next.take(action);
        next.state
    }
}

pub(crate) struct Step<'w> {
    pub(crate) world: &'w World,
    pub(crate) state: State,
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
            Action::Reconnect(i, server) => self.live_of(i).into_iter().for_each(|j| self.reconnect(j, server)),
            Action::Lingered(i) => {
                self.client(i).lingered = true;
                let place = self.client(i).key.and_then(|key| self.state.local.place(key));
                if let (Some(place), Some(machine)) = (place, self.client(i).machine.as_mut()) {
                    machine.handle(Event::PositionKnown(place));
                }
                self.tell(i, Event::OwnWatchDue);
                if self.world.budget.looks > 0 {
                    self.tell(i, Event::LooksDue);
                }
            }
            Action::DelayOver(i, name) => {
                self.client(i).counting.retain(|counted| *counted != name);
                if let Some(id) = name.id {
                    self.state.cooling[usize::from(id)] = None;
                }
                self.tell(i, Event::DelayOver(self.world.print(name)));
            }
            Action::Expire(number) => {
                let over = |client: &Client| match client.life {
                    Life::Crashed { .. } | Life::Ended(End::SessionOver) => true,
                    _ => client.overdue,
                };
                for i in self.world.process(number % 4) {
                    let client = &self.state.clients[usize::from(i)];
                    if i == number % 4 || over(client) && !self.state.is_expired(client.session) {
                        let session = if i == number % 4 { number } else { client.session };
                        self.state.expired |= 1 << session;
                        self.commit(Txn::Expire(session));
                    }
                }
            }
            Action::Leave(i) | Action::LeaveWriting(i) => {
                if let Action::LeaveWriting(_) = action {
                    budget.release_writes -= 1;
                    self.client(i).write = FencedWrite::AtRelease;
                    if self.world.mistake != Some(Mistake::ReleaseWriteUnsaid) {
                        self.tell(i, Event::Ask(Ask::WriteAtRelease));
                    }
                } else if !self.state.clients[usize::from(i)].says_it_holds() {
                    budget.cancels -= 1;
                }
                self.client(i).left = true;
                // Its caller is done, also with a hold that was taken away meanwhile.
                self.state.cooling[usize::from(i)] = None;
                self.release(i);
            }
            Action::Hears(i) => {
                let key = self.client(i).key.expect("it has a signal");
                match self.local().take_signal(key).expect("it has a signal") {
                    Event::Ended { .. } if self.world.mistake == Some(Mistake::EndsUnheard) => {}
                    signal => self.tell(i, signal),
                }
            }
            Action::Cut(i, cut) => {
                budget.cuts -= 1;
                self.cut(i, cut);
                for j in self.world.process(i).filter(|j| *j != i) {
                    if self.client(j).server.is_some() {
                        let writes = matches!(self.client(j).flight, Flight::Sent(request) if request.is_write());
                        self.cut(j, if cut == Cut::After && writes { cut } else { Cut::Before });
                    }
                }
            }
            Action::Crash(i) => {
                budget.crashes -= 1;
                for j in self.live_of(i) {
                    let holding = self.client(j).says_it_holds();
                    self.cools(j);
                    self.stop(j, Life::Crashed { holding });
                }
            }
            Action::ClockRunsOut(i) => {
                budget.missed_deadlines -= 1;
                for j in self.live_of(i) {
                    let client = self.client(j);
                    client.overdue = true;
                    client.past.was_overdue = true;
                    if client.says_it_holds() {
                        self.cools(j);
                        self.client(j).left = true;
                        let kindly = self.world.mistake == Some(Mistake::LossLooksLikeLeaving);
                        self.tell(j, if kindly { Event::Leave } else { Event::Lost });
                    }
                }
            }
            Action::Close(i) => {
                budget.closes -= 1;
                for j in self.live_of(i) {
                    self.cools(j);
                    self.tell(j, Event::SessionOver);
                }
            }
            Action::Return(i, server) => {
                budget.returns -= 1;
                let client = self.client(i);
                client.session += 4;
                client.past.returned = true;
                client.left = false;
                client.granted_by = None;
                client.passed_on = false;
                self.start(i, server);
            }
            Action::Reap => {
                budget.reaps -= 1;
                self.commit(Txn::Reap);
            }
            Action::Remove(name) => {
                budget.removals -= 1;
                let owner = self.state.clients.iter().position(|client| client.own() == Some(name));
                if let Some(i) = owner {
                    self.cools(i as u8);
                }
                // An operator who deletes a holder marker also deletes its owner's node, as `lockkeeper break` does.
                let leader = &self.state.leader;
                let owner =
                    leader.holder_marker().filter(|_| name.is_holder_marker()).map(|holder_marker| holder_marker.owner);
                let owners = leader.queue().into_iter().find(|n| Some(n.owner) == owner).map(|n| n.name);
                self.commit(owners.map_or(Txn::Delete(name), Txn::DeleteBoth));
            }
            Action::Word(name) => {
                budget.words -= 1;
                self.commit(Txn::Write(name, Data::WORD));
            }
            Action::AskFor(name) => {
                budget.asks -= 1;
                let data = self.state.leader.get(name).expect("only of what is there").data;
                self.commit(Txn::Write(name, Data { asked: true, ..data }));
            }
            Action::Refuse(i) => {
                budget.refusals -= 1;
                let client = self.client(i);
                (client.told, client.past.refused) = (false, true);
                self.tell(i, Event::Refuse("busy".to_owned()));
            }
            Action::Date(i) => {
                budget.dates -= 1;
                self.client(i).past.dated = true;
                self.tell(i, Event::GrantedLate);
            }
            Action::Look(i) => {
                budget.looks -= 1;
                self.tell(i, Event::DeadlineNear);
            }
            Action::LookEffect(i) => self.look(i),
            Action::Upgrade(i) => {
                budget.upgrades -= 1;
                self.client(i).upgrading = true;
                self.tell(i, Event::Ask(Ask::Upgrade));
            }
            Action::StayReader(i) => {
                budget.stays -= 1;
                let client = self.client(i);
                (client.upgrading, client.past.stayed) = (false, true);
                self.tell(i, Event::Ask(Ask::StayReader));
            }
            Action::Downgrade(i) => {
                budget.downgrades -= 1;
                let client = self.client(i);
                (client.upgrading, client.told_alone, client.downgrading) = (false, false, true);
                self.tell(i, Event::Ask(Ask::Downgrade));
            }
            Action::Age(i) => {
                budget.ages -= 1;
                self.client(i).past.aged = true;
                self.tell(i, Event::Ask(Ask::Reclassify(Class::FOREGROUND)));
            }
            Action::Verify(i) => {
                budget.proofs -= 1;
                self.tell(i, Event::Ask(Ask::Verify));
            }
            Action::YieldDue(i) => {
                self.client(i).yield_due = true;
                self.tell(i, Event::YieldDue);
            }
            Action::Yield(i) => {
                budget.yields -= 1;
                let class = self.state.clients[usize::from(i)].own().and_then(|own| own.class());
                let earlier = self.state.leader.queue().into_iter().filter(|n| n.name.class() < class);
                let earlier = earlier.fold(0, |all, n| all | 1 << n.owner);
                let client = self.client(i);
                (client.made_way_for, client.granted_by) = (earlier, None);
                (client.yield_due, client.contended, client.was_first) = (false, false, false);
                client.past.yielded += 1;
                self.tell(i, Event::Ask(Ask::Yield));
            }
            Action::CheckEffect(i) => self.check(i),
            Action::Write(i) => {
                budget.writes -= 1;
                let client = self.client(i);
                client.write = FencedWrite::Sent(client.own().expect("it holds"));
            }
            Action::WriteEffect(i) => self.write(i),
        }
    }

    pub(crate) fn client(&mut self, i: u8) -> &mut Client {
        &mut self.state.clients[usize::from(i)]
    }

    /// The clients of the process of client `i` that run.
    fn live_of(&self, i: u8) -> Vec<u8> {
        self.world.process(i).filter(|j| self.state.clients[usize::from(*j)].is_live()).collect()
    }

    fn start(&mut self, i: u8, server: Server) {
        let machine = self.world.machine(i, self.client(i).session);
        // A new session may be opened on any server, however far behind.
        let ahead = self.live_of(i).first().map_or(0, |j| self.client(*j).ahead);
        let client = self.client(i);
        client.life = Life::Live;
        client.machine = Some(machine);
        client.server = Some(server);
        client.ahead = ahead;
        self.carry_out(i, None);
    }

    /// The client stops, or no longer needs its session for this lock.
    fn stop(&mut self, i: u8, life: Life) {
        let client = self.client(i);
        client.life = life;
        client.machine = None;
        client.server = None;
        client.overdue = false;
        client.ahead = 0;
        (client.flight, client.check, client.look) = (Flight::None, None, None);
        client.watches = [None; WATCHES];
        client.children = None;
        client.counting.clear();
        client.lingered = false;
        (client.upgrading, client.told_alone, client.downgrading) = (false, false, false);
        (client.told, client.was_first) = (false, false);
        (client.yield_due, client.contended, client.made_way_for) = (false, false, 0);
        self.entered_local(i);
        self.leave_local(i);
    }

    /// Passes an event to a client and carries out what needs no server.
    pub(crate) fn tell(&mut self, i: u8, event: Event) {
        let by = match event {
            Event::Gone(_) | Event::Ended { .. } | Event::Looked { .. } => GrantedBy::Handover,
            Event::Released { .. } => GrantedBy::Neighbour,
            Event::Entered { .. } => GrantedBy::FirstListing,
            Event::Inspected(_) => GrantedBy::Inspection,
            Event::ReleaseRead(_) => GrantedBy::Record,
            _ => GrantedBy::LaterListing,
        };
        let looked = matches!(event, Event::Inspected(_));
        let unlisted = matches!(event, Event::Entered { arrival: Arrival::AfterLocal { .. }, .. });
        let listed = matches!(event, Event::Listed(Ok(_)));
        let deferred = matches!(event, Event::Entered { arrival: Arrival::BehindLocal { .. }, .. });
        let shared = matches!(event, Event::ListedByLocal(_));
        let client = self.client(i);
        let had_node = client.own().is_some();
        client.past.unlisted = unlisted || client.past.unlisted && !listed;
        client.past.deferred = deferred || client.past.deferred && !listed;
        client.past.shared |= shared && client.past.deferred;
        let Some(machine) = client.machine.as_mut() else { return };
        let entered = matches!(event, Event::Entered { .. });
        machine.handle(event);
        if entered {
            self.entered_local(i);
        }
        self.carry_out(i, Some(by));
        let client = self.client(i);
        if let (true, false, Some(own)) = (looked, had_node, client.own()) {
            client.past.adopted = true;
            self.client(i).knows = self.state.leader.get(own).map_or(0, |n| n.czxid);
        }
    }

    fn carry_out(&mut self, i: u8, by: Option<GrantedBy>) {
        let world = self.world;
        loop {
            let client = self.client(i);
            let Some(machine) = client.machine.as_mut() else { return };
            let Some(command) = machine.next_command() else {
                machine.settle(world);
                // As the driver does, which removes watches that are of no more use.
                for watch in &mut client.watches {
                    watch.take_if(|watch| {
                        let name = watch.asked.map_or_else(String::new, |name| world.print(name));
                        !machine.watches(&name)
                    });
                }
                client.children.take_if(|_| !machine.watches(""));
                self.report_local(i);
                let client = self.client(i);
                if matches!(world.roles[usize::from(i)], Role::Plain(_)) && client.says_it_holds() {
                    client.granted_by = client.granted_by.or(by);
                }
                return;
            };
            let request = match command {
                Command::Grant(grant) => {
                    assert_eq!(client.granted_by, None, "granted twice");
                    client.granted_by = by;
                    self.granted(i, Zxid(grant.token.get()));
                    continue;
                }
                Command::Revoke => {
                    client.told = true;
                    continue;
                }
                Command::Contended(contended) => {
                    client.past.asked_in_vain |= client.contended && !contended;
                    client.contended = contended;
                    continue;
                }
                Command::Look { first, front } => {
                    client.look = Some((world.read(&first), front.map(|front| world.read(&front))));
                    continue;
                }
                Command::Check { own, holder_marker } => {
                    client.check = Some((world.read(&own), holder_marker.is_some()));
                    continue;
                }
                Command::Verified(shown) => {
                    (client.past.proved, client.past.disproved) = (shown.is_ok(), shown.is_err());
                    self.state.misjudged |= shown.is_ok() != self.stands(i);
                    continue;
                }
                Command::Delay { name, delay: _ } => {
                    client.counting.push(world.read(&name));
                    continue;
                }
                Command::Upgraded => {
                    (client.upgrading, client.told_alone) = (false, true);
                    self.upgraded(i);
                    continue;
                }
                Command::Reads { name: _ } => {
                    client.past.reads_on = true;
                    continue;
                }
                Command::End(end) => {
                    self.report_local(i);
                    self.stop(i, Life::Ended(end));
                    return;
                }
                Command::Enter { prefix, limit, alone, beside: _ } => {
                    assert_eq!(limit, world.discipline.limit().is_some());
                    let asked =
                        world.node_format.parse(&format!("{prefix}0000000000")).expect("a name of its node format");
                    Request::Enter(asked.mode, self.enter_local(i, alone))
                }
                Command::MakeParent { stays: _, limit, count: _ } => Request::MakeParent(limit),
                // No client is beside the path.
                Command::RemovePath => unreachable!(),
                Command::StoreLimit { permits, version } => Request::StoreLimit(permits, version),
                Command::List { limit: _, watch, beside: _ } => {
                    self.client(i).listing_before = (i < world.neighbours).then(|| self.state.local.next_key());
                    Request::List { watch }
                }
                Command::Recover => Request::Recover,
                Command::ReadRelease { own } => Request::ReadRelease(world.read(&own)),
                Command::Inspect { name } => Request::Inspect(world.read(&name)),
                Command::Watch { name, kind } => {
                    let node = world.read(&name);
                    self.report_local(i);
                    if kind == WatchKind::Blocker && self.client(i).neighbour == Some(node) {
                        self.client(i).machine.as_mut().expect("it gave the command").handle(Event::BlockerIsLocal);
                        continue;
                    }
                    Request::Watch(node, kind)
                }
                Command::TakeHolderMarker { own, holder_marker: _ } => Request::TakeHolderMarker(world.read(&own)),
                Command::GiveUpHolderMarker { own, holder_marker: _, version } => {
                    Request::GiveUpHolderMarker(world.read(&own), version)
                }
                Command::Tombstone { own, tombstone } => Request::Tombstone(world.read(&own), world.read(&tombstone)),
                Command::WriteRecord { name, granted, version, revocation } => {
                    Request::WriteRecord(world.read(&name), granted, is_open(revocation), version)
                }
                Command::Downgrade { from, into, revocation } => {
                    Request::Downgrade(world.read(&from), world.read(&into), is_open(revocation))
                }
                Command::Delete { name, version, holder_marker: None, write } => {
                    let node = world.read(&name);
                    let always = world.mistake == Some(Mistake::RecordsEachEnd) && client.own() == Some(node);
                    let any = || self.state.leader.get(node).map(|n| (n.czxid, i32::from(self.state.leader.version)));
                    match write {
                        Some(ReleaseWrite::Callers) => Request::ReleaseWriting(node, version),
                        Some(ReleaseWrite::Record(record, at)) => {
                            Request::Release(node, version, small(record.freed()), at)
                        }
                        None => match any().filter(|_| always) {
                            Some((freed, at)) => Request::Release(node, version, freed, at),
                            None => Request::Delete(node, version),
                        },
                    }
                }
                Command::Delete { name, version: None, holder_marker: Some((tombstone, 0)), write: None }
                    if world.delay.is_some() =>
                {
                    Request::DeleteWith(world.read(&name), world.read(&tombstone))
                }
                Command::Delete { name, version, holder_marker: Some((_, holder_markers)), write } => {
                    assert_eq!(version, None, "the holder marker's version is proof enough");
                    assert_eq!(write, None, "no listing of a queue with a holder marker is saved");
                    Request::DeleteBoth(world.read(&name), holder_markers)
                }
            };
            self.client(i).flight = Flight::Sent(request);
        }
    }

    /// Notes that a client has lost a hold that was handed to it: no contender may follow it immediately.
    fn cools(&mut self, i: u8) {
        let client = &self.state.clients[usize::from(i)];
        if self.world.delay.is_none() || !client.says_it_holds() || client.granted_by.is_none() || client.left {
            return;
        }
        let reads = self.world.reads(&self.state, usize::from(i));
        self.state.cooling[usize::from(i)] = Some(match self.world.roles[usize::from(i)] {
            Role::Enters(Mode::Permits(permits)) | Role::Tries(Mode::Permits(permits)) => Held::Permits(permits),
            _ if reads => Held::Reading,
            _ => Held::Alone,
        });
    }

    fn granted(&mut self, i: u8, token: Zxid) {
        let token = small(token);
        let server = self.client(i).server.unwrap_or(Server::Leader);
        let made = |tree: &super::tree::Tree| tree.nodes.iter().any(|n| n.czxid == token);
        self.state.granted_to_none |=
            !made(self.state.tree(server)) && self.world.mistake != Some(Mistake::NoHolderMarker);
        if self.world.budget.removals > 0 && !made(&self.state.leader) {
            // Its server does not know yet that an operator deleted the node. A later token fences the client off,
            // whenever it came.
            return;
        }
        if !self.world.discipline.has_tokens() {
            // Contenders that hold together have no order.
            return;
        }
        let (any, writer) = self.state.tokens;
        let reads = matches!(
            self.world.roles[usize::from(i)],
            Role::Enters(Mode::Read) | Role::Tries(Mode::Read) | Role::Upgradeable
        );
        // Readers hold together, so they may learn of their grants in any order.
        let least = if reads { writer } else { any };
        self.state.token_went_back |= token <= least;
        self.state.tokens = (any.max(token), if reads { writer } else { writer.max(token) });
    }

    /// A reader is now the only holder: the token of its grant is a writer's from here on.
    fn upgraded(&mut self, i: u8) {
        let session = self.client(i).session;
        let Some(node) = self.state.leader.nodes.iter().find(|n| n.owner == session) else { return };
        let (any, writer) = self.state.tokens;
        self.state.token_went_back |= node.czxid < any;
        self.state.tokens = (any, writer.max(node.czxid));
    }

    /// The fenced write of client `i` takes effect, if the node of its hold exists. No later holder may have been granted the lock.
    pub(crate) fn write(&mut self, i: u8) {
        let FencedWrite::Sent(name) = std::mem::replace(&mut self.client(i).write, FencedWrite::None) else { return };
        if let Some(token) = self.state.leader.get(name).map(|node| node.czxid) {
            self.wrote(token);
        }
    }

    /// A write of the hold with this token takes effect.
    pub(crate) fn wrote(&mut self, token: u8) {
        self.state.wrote_late |= self.state.tokens.0 > token;
    }

    /// Whether the leader has the nodes of the hold of client `i`.
    fn stands(&self, i: u8) -> bool {
        let (leader, client) = (&self.state.leader, &self.state.clients[usize::from(i)]);
        let ours = |node: Option<&Node>| node.is_some_and(|node| node.owner == client.session);
        let marked = self.world.discipline.holder_marker().is_none() || ours(leader.holder_marker());
        marked && ours(leader.queue().into_iter().find(|node| node.owner == client.session))
    }

    /// The leader decides on a change; the watches of the clients connected to it fire.
    pub(crate) fn commit(&mut self, txn: Txn) {
        let fired = self.state.leader.apply(txn);
        self.state.pending.push(txn);
        self.note_the_first();
        self.fire(Server::Leader, &fired);
        if self.state.pending.len() > self.world.lag {
            self.follower_applies();
        }
    }

    /// Notes the first contender while there is no holder marker: it may take the marker, now or a little later.
    fn note_the_first(&mut self) {
        if self.world.discipline.holder_marker().is_some()
            && self.state.leader.holder_marker().is_none()
            && let Some(owner) = self.state.leader.queue().first().map(|n| n.owner)
        {
            self.client(owner % 4).was_first = true;
        }
    }

    pub(crate) fn follower_applies(&mut self) {
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
            for i in 0..self.state.clients.len() as u8 {
                if self.client(i).server != Some(server) {
                    continue;
                }
                let (Fired::Gone(name) | Fired::Changed(name)) = *fired else {
                    let unheard = self.world.mistake == Some(Mistake::NewcomersUnheard);
                    if !unheard && self.client(i).children.take().is_some() {
                        self.tell(i, Event::ChildrenChanged);
                    }
                    continue;
                };
                // The driver checks the watches of its own nodes first.
                for slot in (0..WATCHES).rev() {
                    if let Some(watch) = self.client(i).watches[slot].take_if(|watch| watch.target == name) {
                        self.tell_fired(i, watch, matches!(fired, Fired::Gone(_)));
                    }
                }
            }
        }
    }

    /// Delivers a watch's event, under the name that the contender asked for.
    pub(crate) fn tell_fired(&mut self, i: u8, watch: Watching, gone: bool) {
        let name = match watch.asked {
            Some(name) => self.world.print(name),
            None => return self.tell(i, Event::ChildrenChanged),
        };
        self.tell(i, if gone { Event::Gone(name) } else { Event::Changed(name) });
    }

    /// Returns which of a client's watches this one is.
    pub(crate) fn slot(watched: super::tree::Name, kind: WatchKind) -> usize {
        usize::from(watched.is_holder_marker()) + if kind == WatchKind::Own { 2 } else { 0 }
    }
}

/// Returns the transaction as the model counts them.
pub(crate) fn small(zxid: Zxid) -> u8 {
    u8::try_from(zxid.0).expect("few nodes are made")
}

/// Whether it is a request to release that was not refused.
fn is_open(revocation: Option<Box<Revocation>>) -> bool {
    revocation.is_some_and(|asked| asked.refused.is_none())
}

/// Whether an attempt ended in a way that means that nothing of it is left.
pub(crate) fn says_it_left(life: Life) -> bool {
    matches!(life, Life::Ended(end) if end != End::SessionOver && end != End::Stuck)
}

//! The events that must occur: without them, a claim that nothing bad happens would mean nothing.

use std::sync::atomic::Ordering;

use lockkeeper_core::{Class, End, Mode};

use super::client::{Client, FencedWrite, GrantedBy, Life};
use super::world::{Role, Server, State, World};

type Look = fn(&World, &State) -> bool;

macro_rules! witnesses {
    ($($name:ident: $says:literal,)*) => {
        /// Something that must be seen to happen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Witness {
            $($name,)*
        }

        impl Witness {
            const ALL: &[Witness] = &[$(Witness::$name,)*];
            pub(crate) const COUNT: usize = Self::ALL.len();

            pub(crate) const fn says(self) -> &'static str {
                match self {
                    $(Witness::$name => $says,)*
                }
            }

            /// Returns the function that looks for it; the function carries no data.
            pub(crate) fn look(self) -> Look {
                const LOOKS: [Look; Witness::COUNT] = [$(look::<{ Witness::$name as usize }>,)*];
                LOOKS[self as usize]
            }
        }
    };
}

witnesses! {
    OneWaitsWhileAnotherHolds: "a contender waits while another holds",
    SecondGrant: "the lock is granted again after a release",
    Handover: "the deletion of a holder's node grants the lock without a second listing",
    NeighbourReleased: "a contender holds while the node of a neighbour that has released exists",
    WriteOutlastsHold: "a holder has released, its fenced write is still to take effect, and a neighbour waits for its end",
    WroteAtRelease: "a holder whose caller bound a write to the release has left, and another holds",
    Proved: "a holder has a proof of its hold while another contender waits",
    Disproved: "a holder whose node an operator deleted has learned that from a check alone",
    Unlisted: "a contender that has listed nothing holds",
    Deferred: "a contender waits behind a neighbour, a stranger is between, and it has listed nothing",
    SharedListing: "a contender holds that knows its place from a listing of a neighbour",
    RecordGrants: "the record of a release grants the lock without a second listing",
    LaterListing: "a second listing grants",
    GrantAfterTheHoldersCrash: "the lock is granted after its holder crashed",
    LostCreateAdopted: "a node whose create's reply was lost is adopted and comes to hold",
    WaiterLeft: "a waiter leaves while another holds",
    QueueAtRest: "two wait behind a holder and nothing moves",
    AllGone: "each contender has held and has left, and no node exists",
    StaleView: "a waiter's server still shows a blocker that is deleted",
    NumbersStartAgain: "the parent was created again and a later token has an earlier number",
    OldNodeBesideTheReturned: "a client has a new session while the node of its old session exists",
    DeleteRepeated: "a delete whose reply was lost is repeated and finds no node",
    StrayDeleted: "a second node of one attempt is found and deleted",
    WrapCrossed: "a holder's number is the largest, the next waiter's the smallest",
    ReadersTogether: "two readers hold while a writer waits",
    NodeRemoved: "a client learns that its node was deleted while another holds",
    WrittenNodeReleased: "a node that another client wrote to is released by its owner",
    ReleasedLate: "a holder that releases learns that its node was deleted before",
    BackInTime: "a waiter is overdue, comes back, and is granted the lock",
    ExpiredMeanwhile: "a disconnected client learns that its session has expired while another holds",
    WaiterRevoked: "a waiter withdraws after a revocation while another holds",
    HolderAsked: "a holder learns of a revocation and continues to hold",
    AskedHolderReleased: "a holder has released after a revocation and another holds",
    Refused: "a holder has refused a revocation, and its node contains no request",
    Dated: "a holder's record says when it was granted the lock, and another contender waits",
    LookedAgain: "a waiter has listed because the first of its queue was gone, and another contender holds",
    ReadsBesideAnUpgradeable: "a reader holds beside an upgradeable reader, and a writer waits",
    UpgradeWaits: "a reader that upgrades waits for another reader at rest",
    Alone: "a reader that upgraded is the only holder",
    StayedReader: "a reader that cancelled its upgrade reads beside another",
    ReadsOn: "a writer reads on, a reader behind it holds, and a writer behind both waits",
    LostDowngrade: "a downgrade whose reply was lost is seen to have happened",
    PermitsTogether: "the holders take all permits, and another contender waits at rest",
    Announced: "a contender that waited for permits has announced its grant, and the next one holds beside it",
    LastIsSilent: "a contender that waited for permits holds, is the last of the queue, and has announced nothing",
    BigWaits: "a contender that asks for more permits than are free waits, and so does a smaller one behind it",
    OtherLimit: "a contender configured with another limit is rejected while another holds",
    LimitStored: "a contender that found no limit has stored one, and two contenders hold",
    LowerClassFirst: "a contender of a lower class holds while an earlier one of a higher class waits",
    HolderMarkerWaited: "the first of the queue waits only for the holder marker at rest",
    LostHolderMarkerFound: "a holder marker whose create's reply was lost is found to be ours",
    ClassChanged: "a contender that changed its class holds while one of its old class waits",
    RefusedByAHolder: "a try has left while another contender holds",
    BesidePlain: "a contender holds while a foreign client waits",
    PlainHolds: "a foreign client holds while a contender waits",
    MadeWay: "a contender of an earlier class holds while one that made way for it waits",
    WentOn: "a contender that made way holds again while another one of its class waits",
    AskedInVain: "a holder was told that a contender of an earlier class waits, and then that it does not",
    LostYield: "a contender that made way and whose delete's reply was lost holds again",
}

use Witness::*;

/// Looks for a witness until it was seen once; the checker keeps the path to that state.
fn look<const WITNESS: usize>(world: &World, state: &State) -> bool {
    let seen = &world.seen[WITNESS];
    !seen.load(Ordering::Relaxed) && Witness::ALL[WITNESS].shows(world, state) && !seen.swap(true, Ordering::Relaxed)
}

impl Witness {
    fn shows(self, world: &World, state: &State) -> bool {
        let clients = || state.clients.iter();
        let held = || clients().any(Client::says_it_holds);
        let ended = |c: &Client| matches!(c.life, Life::Ended(_));
        let granted_by = |by| clients().any(|c| c.says_it_holds() && c.granted_by == Some(by));
        let holders_with = |test: &dyn Fn(&Client) -> bool| clients().any(|c| c.says_it_holds() && test(c));
        let waits = || clients().any(|c| c.wants_in() && c.has_blocker_watch());
        let data = |c: &Client| c.own().and_then(|own| state.leader.get(own)).map(|n| n.data);
        let plain = |i: usize| matches!(world.roles[i], Role::Plain(_));
        let of_role = |role: Role| move |(i, _): &(usize, &Client)| world.roles[*i] == role;
        match self {
            OneWaitsWhileAnotherHolds => held() && waits(),
            SecondGrant => held() && clients().any(|c| c.life == Life::Ended(End::Left) && c.granted_by.is_some()),
            Handover => granted_by(GrantedBy::Handover),
            RecordGrants => granted_by(GrantedBy::Record),
            NeighbourReleased => {
                let node = |c: &Client| state.leader.nodes.iter().any(|n| n.owner == c.session);
                holders_with(&|c| c.granted_by.is_some() && !c.passed_on) && clients().any(|c| c.passed_on && node(c))
            }
            WriteOutlastsHold => clients().any(|c| match c.write {
                FencedWrite::Sent(node) => {
                    c.left && state.leader.get(node).is_some() && clients().any(|c| c.neighbour == Some(node))
                }
                _ => false,
            }),
            WroteAtRelease => held() && clients().any(|c| c.past.wrote_at_release && c.life == Life::Ended(End::Left)),
            Proved => waits() && holders_with(&|c| c.past.proved),
            Disproved => clients().any(|c| c.says_it_holds() && c.past.disproved),
            Unlisted => holders_with(&|c| c.past.unlisted),
            Deferred => clients().any(|c| c.wants_in() && c.past.deferred && c.neighbour.is_some()),
            SharedListing => holders_with(&|c| c.past.shared),
            LaterListing => granted_by(GrantedBy::LaterListing),
            GrantAfterTheHoldersCrash => held() && clients().any(|c| c.life == Life::Crashed { holding: true }),
            LostCreateAdopted => holders_with(&|c| c.past.adopted),
            WaiterLeft => held() && clients().any(|c| c.life == Life::Ended(End::Left) && c.granted_by.is_none()),
            QueueAtRest => held() && clients().filter(|c| c.wants_in()).count() >= 2 && state.is_at_rest(world),
            AllGone => {
                state.leader.nodes.is_empty() && clients().all(|c| ended(c) && (c.left || c.granted_by.is_some()))
            }
            StaleView => clients().any(|c| {
                let stale = |name| state.follower.get(name).is_some() && state.leader.get(name).is_none();
                let watched = c.watches[..2].iter().flatten().any(|watch| stale(watch.target));
                c.wants_in() && c.server == Some(Server::Follower) && watched
            }),
            NumbersStartAgain => held() && state.leader.nodes.iter().any(|n| n.name.seq == 0 && n.czxid > 1),
            OldNodeBesideTheReturned => {
                let old = |i: usize| state.leader.nodes.iter().any(|n| usize::from(n.owner) == i);
                clients().enumerate().any(|(i, c)| c.past.returned && c.is_live() && old(i))
            }
            DeleteRepeated => clients().any(|c| c.past.delete_repeated && ended(c)),
            StrayDeleted => clients().any(|c| c.past.stray_deleted),
            WrapCrossed => {
                let seqs: Vec<_> = state.leader.nodes.iter().map(|n| n.name.seq).collect();
                held() && seqs.starts_with(&[i32::MAX, i32::MIN])
            }
            ReadersTogether => state.holders(world).len() == 2 && waits(),
            NodeRemoved => held() && clients().any(|c| c.life == Life::Ended(End::Removed)),
            ReleasedLate => clients().any(|c| c.left && c.granted_by.is_some() && c.life == Life::Ended(End::Removed)),
            BackInTime => holders_with(&|c| c.past.was_overdue),
            ExpiredMeanwhile => {
                held() && clients().any(|c| c.past.was_overdue && c.life == Life::Ended(End::SessionOver))
            }
            WrittenNodeReleased => clients().any(|c| c.past.word_seen && c.life == Life::Ended(End::Left)),
            WaiterRevoked => held() && clients().any(|c| c.life == Life::Ended(End::Revoked)),
            HolderAsked => holders_with(&|c| c.told && data(c).is_some_and(|data| data.asked && data.id.is_some())),
            AskedHolderReleased => {
                held()
                    && clients().any(|c| c.past.word_seen && c.life == Life::Ended(End::Left) && c.granted_by.is_some())
            }
            Refused => holders_with(&|c| c.past.refused && data(c).is_some_and(|data| !data.asked)),
            Dated => waits() && holders_with(&|c| c.past.dated && data(c).is_some_and(|data| data.granted)),
            LookedAgain => held() && clients().any(|c| c.past.looked && c.wants_in()),
            ReadsBesideAnUpgradeable => {
                let reader = |c: &Client| c.own().is_some_and(|own| own.mode == Some(Mode::Read));
                let upgradeable =
                    clients().enumerate().filter(of_role(Role::Upgradeable)).any(|(_, c)| c.says_it_holds());
                upgradeable && holders_with(&reader) && waits()
            }
            UpgradeWaits => clients().any(|c| c.upgrading && c.has_blocker_watch()) && state.is_at_rest(world),
            Alone => holders_with(&|c| c.told_alone),
            StayedReader => {
                holders_with(&|c| c.past.stayed && !c.says_it_is_alone()) && state.holders(world).len() == 2
            }
            ReadsOn => {
                let writer_waits =
                    clients().enumerate().filter(of_role(Role::Enters(Mode::Write))).any(|(_, c)| c.wants_in());
                writer_waits && holders_with(&|c| c.past.reads_on) && state.holders(world).len() == 2
            }
            LostDowngrade => holders_with(&|c| c.past.downgrade_doubted && c.past.adopted && c.past.reads_on),
            PermitsTogether => state.holders(world).len() >= 2 && waits() && state.is_at_rest(world),
            Announced => {
                let next = |c: &Client| {
                    c.own().and_then(|own| {
                        let at = state.leader.nodes.iter().position(|n| n.name == own)?;
                        let next = state.leader.nodes.get(at + 1)?;
                        clients().find(|c| c.own() == Some(next.name))
                    })
                };
                holders_with(&|c| c.past.announced && next(c).is_some_and(Client::says_it_holds))
            }
            LastIsSilent => {
                let last = |c: &Client| c.own() == state.leader.nodes.last().map(|n| n.name);
                let late = |c: &Client| c.granted_by == Some(GrantedBy::LaterListing);
                state.is_at_rest(world) && holders_with(&|c| late(c) && last(c) && !c.past.announced)
            }
            BigWaits => {
                let limit = world.discipline.limit().unwrap_or(0);
                let taken = |c: &Client| match c.own().and_then(|own| own.mode) {
                    Some(Mode::Permits(permits)) => permits,
                    _ => 0,
                };
                let held: u32 = clients().filter(|c| c.says_it_holds()).map(taken).sum();
                let small = clients().any(|c| c.wants_in() && taken(c) == 1);
                held > 0 && held < limit && small && state.is_at_rest(world)
            }
            OtherLimit => held() && clients().any(|c| matches!(c.life, Life::Ended(End::LimitDiffers(Some(_))))),
            LimitStored => state.holders(world).len() == 2 && clients().any(|c| c.past.stored),
            LowerClassFirst => {
                let waits = |n: &super::tree::Node| clients().any(|c| c.own() == Some(n.name) && c.wants_in());
                let earlier = |c: &Client| {
                    let Some(own) = c.own() else { return false };
                    state.leader.nodes.iter().any(|n| n.name.class() > own.class() && n.name.seq < own.seq && waits(n))
                };
                holders_with(&earlier)
            }
            HolderMarkerWaited => {
                let first = state.leader.queue().first().map(|n| n.name);
                clients().any(|c| c.wants_in() && c.own() == first && c.watches[1].is_some()) && state.is_at_rest(world)
            }
            LostHolderMarkerFound => {
                holders_with(&|c| c.past.holder_marker_doubted && c.granted_by == Some(GrantedBy::Inspection))
            }
            ClassChanged => {
                let old = |c: &Client| c.own().is_some_and(|own| own.class() == Some(Class::BACKGROUND));
                holders_with(&|c| c.past.aged && !old(c)) && clients().any(|c| c.wants_in() && old(c))
            }
            RefusedByAHolder => held() && clients().any(|c| matches!(c.life, Life::Ended(End::Held { .. }))),
            MadeWay => {
                let first = |n: &super::tree::Node| clients().any(|c| c.own() == Some(n.name) && c.says_it_holds());
                let earlier =
                    |c: &Client| state.leader.nodes.iter().any(|n| n.name.class() < c.own_class() && first(n));
                clients().any(|c| c.past.yielded > 0 && c.wants_in() && earlier(c))
            }
            WentOn => {
                let behind = |c: &Client| clients().any(|b| b.wants_in() && b.own_class() == c.own_class());
                state.is_at_rest(world) && holders_with(&|c| c.past.yielded > 0 && c.granted_by.is_some() && behind(c))
            }
            AskedInVain => holders_with(&|c| c.past.asked_in_vain && !c.contended),
            LostYield => holders_with(&|c| c.past.yielded > 0 && c.past.marker_delete_lost && c.granted_by.is_some()),
            BesidePlain | PlainHolds => {
                let holds = |which: bool| clients().enumerate().any(|(i, c)| plain(i) == which && c.says_it_holds());
                let waits = |which: bool| clients().enumerate().any(|(i, c)| plain(i) == which && c.wants_in());
                let plain_holds = self == PlainHolds;
                holds(plain_holds) && waits(!plain_holds) && state.is_at_rest(world)
            }
        }
    }
}

//! Who hears of a release: counted on the wire of those who wait, for lines of 10, of 100 and of 1 000.

use lockkeeper::{Error, Lockkeeper};
use lockkeeper_testkit::proxy::{Counts, OpCode, Proxy};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use crate::support::{Held, Kind, Lock, STEADY, World, eventually, on_the_embedded_server_for};

on_the_embedded_server_for!(
    [
        native Native, kazoo Kazoo, write Write, recipe_write RecipeWrite, upgradeable Upgradeable, permits Permits,
        foreground Foreground, background Background
    ]
    a_release_costs_the_same_however_long_the_line_is,
);

on_the_embedded_server_for!(
    [shared Write]
    a_writers_release_wakes_the_readers_behind_it_and_nobody_else,
);

on_the_embedded_server_for!(
    [classes Background]
    a_release_between_two_classes_wakes_the_first_of_each_at_most,
);

const LINES: [u64; 3] = [10, 100, 1_000];

/// Those who wait, over four sessions behind one proxy.
struct Line {
    proxy: std::sync::Arc<Proxy>,
    keepers: Vec<Lockkeeper>,
    tasks: Vec<JoinHandle<()>>,
}

impl Line {
    async fn new(world: &World) -> Line {
        let proxy = world.proxy().await;
        let mut keepers = Vec::new();
        for _ in 0..4 {
            keepers.push(world.keeper_through(&proxy, STEADY).await);
        }
        Line { proxy, keepers, tasks: Vec::new() }
    }

    /// So many more stand in line; when they have set their watches nothing happens any more.
    async fn stand(&mut self, path: &str, kind: Kind, count: u64) -> UnboundedReceiver<Held> {
        let reads = self.proxy.counts().delivered.of(OpCode::GetData) + count * kind.reads_to_wait();
        let (granted, grants) = unbounded_channel();
        for (_, keeper) in (0..count).zip(self.keepers.iter().cycle()) {
            let (lock, granted): (Lock, _) = (kind.lock(keeper, path), granted.clone());
            // Whom nobody listens to any more lets go at once.
            self.tasks.push(tokio::spawn(async move { drop(granted.send(lock.acquire().await.unwrap())) }));
        }
        // The first in a line for permits looks again for each that comes, so there may be more.
        self.proxy.wait_until(|counts| counts.delivered.of(OpCode::GetData) >= reads).await;
        let mut quiet = 0;
        while quiet < 2 {
            let since = self.since(&self.proxy.counts()).await;
            quiet = if asked(&since) == 0 { quiet + 1 } else { 0 };
        }
        grants
    }

    /// What the line was told and asked for since then. Whatever its sessions had to be told came before the answers to this.
    async fn since(&self, before: &Counts) -> Counts {
        let asked = futures_util::future::join_all(self.keepers.iter().map(|keeper| async {
            let shown = keeper.admin().show("/not/there").await;
            assert!(matches!(shown, Err(Error::NoSuchLock { .. })), "{shown:?}");
        }));
        asked.await;
        self.proxy.counts().since(before)
    }

    async fn end(self, world: &World, path: &str) {
        self.tasks.iter().for_each(JoinHandle::abort);
        eventually("nobody waits", async || world.children(path).await.is_empty()).await;
    }
}

/// What a line asked for, but for pings and the questions of [`Line::since`], a sync and a listing a session. Heartbeats are
/// deletes, as releases are: so those are counted elsewhere.
fn asked(since: &Counts) -> u64 {
    since.requested.total() - since.requested.of(OpCode::Ping) - since.requested.of(OpCode::Delete) - 2 * 4
}

/// N-20, T-08, C-14: the same small number of events and requests for a line of a thousand as for one of ten.
async fn a_release_costs_the_same_however_long_the_line_is(world: &World) {
    let mut seen = Vec::new();
    for count in LINES {
        let path = world.path(&format!("line-of-{count}"));
        let holder = world.keeper().await;
        let mut guard = world.kind.lock(&holder, &path).acquire().await.unwrap();
        let mut line = Line::new(world).await;
        let mut grants = line.stand(&path, world.kind, count).await;
        for _ in 0..4 {
            let (before, server) = (line.proxy.counts(), world.embedded().stats().events_sent);
            guard.release().await.unwrap();
            guard = grants.recv().await.unwrap();
            let since = line.since(&before).await;
            let told = world.embedded().stats().events_sent - server;
            seen.push((count, since.watch_events, asked(&since), told));
            assert!(grants.try_recv().is_err(), "two were let in");
        }
        drop((grants, guard));
        line.end(world, &path).await;
    }
    println!("(waiters, events to them, requests of theirs, events in all) of each release: {seen:?}");
    // The next in line hears of it and looks. Where permits are counted it says so in its node, which the one behind it
    // hears, and it itself; that one looks, for it is the first to wait now.
    let (events, requests) = match world.kind {
        Kind::Permits => (5, 12),
        Kind::Foreground | Kind::Background => (3, 6),
        kind if kind.is_unprotected() => (2, 4),
        _ => (2, 3),
    };
    for (count, heard, sent, told) in seen {
        assert!((1..=events).contains(&heard) && sent <= requests, "of {count}: {heard} events, {sent} requests");
        assert!(told <= events + 2, "of {count}: {told} events in all");
    }
}

/// T-23, N-26: as many readers as there are, at once and without another question; one event a session, for the server tells
/// each session once of a node. The writer behind them and the readers behind that hear nothing.
async fn a_writers_release_wakes_the_readers_behind_it_and_nobody_else(world: &World) {
    for count in LINES {
        let path = world.path(&format!("batch-of-{count}"));
        let holder = world.keeper().await;
        let guard = Kind::Write.lock(&holder, &path).acquire().await.unwrap();
        let (mut near, mut far) = (Line::new(world).await, Line::new(world).await);
        let mut batch = near.stand(&path, Kind::Read, count).await;
        let mut writer = far.stand(&path, Kind::Write, 1).await;
        let mut later = far.stand(&path, Kind::Read, count).await;
        let before = [near.proxy.counts(), far.proxy.counts()];
        guard.release().await.unwrap();
        let mut inside = Vec::new();
        for _ in 0..count {
            inside.push(batch.recv().await.unwrap());
        }
        let here = near.since(&before[0]).await;
        let there = far.since(&before[1]).await;
        assert_eq!((here.watch_events, asked(&here)), (4, 0), "{count}: {here:?}");
        assert_eq!((there.watch_events, asked(&there)), (0, 0), "{count}: {there:?}");
        assert!(writer.try_recv().is_err() && later.try_recv().is_err());
        drop(inside);
        drop(writer.recv().await.unwrap());
        for _ in 0..count {
            drop(later.recv().await.unwrap());
        }
        near.end(world, &path).await;
        far.end(world, &path).await;
    }
}

/// The mark's going is for the first in the foreground, the holder's node's for whoever stood behind it.
async fn a_release_between_two_classes_wakes_the_first_of_each_at_most(world: &World) {
    for count in [10, 100] {
        let path = world.path(&format!("classes-of-{count}"));
        let holder = world.keeper().await;
        let guard = Kind::Background.lock(&holder, &path).acquire().await.unwrap();
        let mut line = Line::new(world).await;
        let mut background = line.stand(&path, Kind::Background, count).await;
        let mut foreground = line.stand(&path, Kind::Foreground, count).await;
        let mut guard = Some(guard);
        let mut held: Option<Held> = None;
        for _ in 0..3 {
            let before = line.proxy.counts();
            match guard.take() {
                Some(guard) => guard.release().await.unwrap(),
                None => held.take().unwrap().release().await.unwrap(),
            }
            held = Some(foreground.recv().await.unwrap());
            let since = line.since(&before).await;
            assert!(since.watch_events <= 3 && asked(&since) <= 8, "{count}: {since:?}");
            assert!(background.try_recv().is_err(), "the background went first");
        }
        drop((held, foreground, background));
        line.end(world, &path).await;
    }
}

//! Random scripts with cuts, played by our client and by the crate `zookeeper-client` on the same server: the same
//! results, events and final trees.
//!
//! A script is a sequence of calls, of cuts, and of changes that another session makes, some of them while the client has
//! no connection. After each step the client makes a read: every event that belongs to the step has arrived when that is
//! answered. A failure prints the seed and the script; `LOCKKEEPER_SEED=n` repeats that script, `LOCKKEEPER_SCRIPTS=n`
//! plays as many.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod players;
mod proxy;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper_client::wire::CreateMode;
use players::{Call, Ours, Player, Theirs, Write};
use proxy::{Loss, Proxy};

/// The number of scripts, and of steps in each.
const SCRIPTS: u64 = 10;
const STEPS: usize = 60;

/// One step of a script.
#[derive(Clone, Debug)]
enum Step {
    Call(Call),
    /// Loses the request of this call, or its reply.
    Lossy(Loss, Call),
    /// Another session makes these changes while the client has no connection.
    Cut(Vec<Write>),
    /// Another session makes this change.
    Foreign(Write),
    /// Drops the watch of an earlier step.
    Unwatch(usize),
}

/// Generates a script.
struct Author {
    random: fastrand::Rng,
    root: String,
}

impl Author {
    fn path(&mut self) -> String {
        let tail = ["", "/a", "/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a"];
        format!("{}{}", self.root, tail[self.random.usize(..tail.len())])
    }

    fn version(&mut self) -> Option<i32> {
        [None, None, None, Some(0), Some(1)][self.random.usize(..5)]
    }

    fn write(&mut self) -> Write {
        let path = self.path();
        match self.random.u32(..10) {
            0..4 => {
                let mode = match self.random.usize(..4) {
                    2 => CreateMode::Ephemeral,
                    // A server removes a container that has lost its last child, and chooses the time: it may do so
                    // while one client plays, and not while the other does. These three never have a child.
                    3 if ["/a/b", "/b/a", "/a/a/a"].iter().any(|leaf| path.ends_with(leaf)) => CreateMode::Container,
                    _ => CreateMode::Persistent,
                };
                Write::Create(path, mode)
            }
            4 => Write::Create(format!("{}/n-", self.root), CreateMode::PersistentSequential),
            5..8 => Write::Set(path, self.random.u32(..), self.version()),
            // The root stays, otherwise the rest of the script would have little effect.
            _ if path == self.root => Write::Delete(format!("{path}/a"), self.version()),
            _ => Write::Delete(path, self.version()),
        }
    }

    /// A change by a session that must leave no ephemeral nodes.
    fn foreign(&mut self) -> Write {
        match self.write() {
            Write::Create(path, CreateMode::Ephemeral) => Write::Create(path, CreateMode::Persistent),
            other => other,
        }
    }

    fn call(&mut self) -> Call {
        let (path, watch) = (self.path(), self.random.u32(..3) > 0);
        match self.random.u32(..20) {
            0..5 => Call::Write(self.write()),
            5 | 6 => {
                let count = self.random.usize(1..4);
                let mut writes: Vec<_> = (0..count).map(|_| self.write()).collect();
                if self.random.bool() {
                    writes.push(Write::Check(path, self.random.i32(..2)));
                }
                Call::Multi(writes)
            }
            7..10 => Call::Get(path, watch),
            10..12 => Call::Exists(path, watch),
            12..15 => Call::Children(path, watch),
            15 => Call::Watch(path, watch),
            16 => Call::Acl(path),
            17 => Call::Ephemerals(self.root.clone()),
            18 => Call::Count(path),
            _ => Call::Sync(path),
        }
    }

    fn step(&mut self, number: usize) -> Step {
        match self.random.u32(..40) {
            0 => Step::Lossy(Loss::Request, self.call()),
            1 => Step::Lossy(Loss::Reply, self.call()),
            2 => Step::Cut((0..self.random.usize(..5)).map(|_| self.foreign()).collect()),
            3..6 => Step::Unwatch(self.random.usize(..=number)),
            6..14 => Step::Foreign(self.foreign()),
            _ => Step::Call(self.call()),
        }
    }
}

/// Plays a script. Returns what the client has seen, a line for each step, and the final tree.
async fn play(player: &mut impl Player, proxy: &Proxy, other: &Ours, root: &str, script: &[Step]) -> Vec<String> {
    let mut seen = Vec::new();
    assert!(player.answers(root).await, "the session is open before the first loss");
    for (number, step) in script.iter().enumerate() {
        let mut told = match step {
            Step::Call(call) => player.call(number, call).await,
            Step::Lossy(loss, call) => {
                proxy.lose(*loss);
                player.call(number, call).await
            }
            Step::Cut(writes) => {
                proxy.lose(Loss::All);
                for write in writes {
                    other.write(write).await;
                }
                proxy.lose(Loss::None);
                String::new()
            }
            Step::Foreign(write) => other.write(write).await,
            Step::Unwatch(number) => {
                player.unwatch(*number);
                String::new()
            }
        };
        while !player.answers(root).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if matches!(step, Step::Lossy(..) | Step::Cut(_)) {
            // zookeeper-client 0.11.2 does not set persistent watches again: it never sends `setWatches2`
            // (`resend_watches`).
            player.drop_persistent();
        }
        let mut events = player.events().await;
        events.sort();
        let _ = write!(told, " {events:?}");
        seen.push(told);
    }
    seen.push(other.tree(root).await.join("\n    "));
    seen
}

/// Plays the scripts on this server.
async fn compare(server: SocketAddr) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (first, count) = match number("LOCKKEEPER_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("LOCKKEEPER_SCRIPTS").unwrap_or(SCRIPTS)),
    };
    let other = Ours::open(server);
    let mut events = 0;
    for seed in first..first + count {
        // The same paths for both, one after the other.
        let root = format!("/script-{seed}");
        let mut author = Author { random: fastrand::Rng::with_seed(seed), root: root.clone() };
        let script: Vec<_> = (0..STEPS).map(|number| author.step(number)).collect();
        let mut seen = Vec::new();
        for ours in [true, false] {
            other.write(&Write::Create(root.clone(), CreateMode::Persistent)).await;
            let proxy = Proxy::start(server).await;
            seen.push(if ours {
                play(&mut Ours::open(proxy.addr), &proxy, &other, &root, &script).await
            } else {
                play(&mut Theirs::open(proxy.addr).await, &proxy, &other, &root, &script).await
            });
            remove(&other, &root).await;
        }
        let mut history = String::new();
        for (number, (ours, theirs)) in seen[0].iter().zip(&seen[1]).enumerate() {
            let _ = writeln!(history, "{number} {:?}\n    {ours}", script.get(number));
            assert!(ours == theirs, "LOCKKEEPER_SEED={seed}\n{history}but zookeeper-client has seen\n    {theirs}");
            events += ours.matches("watch ").count();
        }
    }
    assert!(events as u64 > count, "the scripts are too quiet: {events} events");
}

/// Removes a node and everything below it. The session that owned ephemeral nodes there may end meanwhile.
async fn remove(other: &Ours, root: &str) {
    loop {
        let mut paths: Vec<String> =
            other.tree(root).await.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        paths.reverse();
        for path in paths {
            other.write(&Write::Delete(path, None)).await;
        }
        if other.client.exists(root).await.unwrap().is_none() {
            return;
        }
    }
}

#[tokio::test]
async fn ours_plays_as_zookeeper_client_on_the_embedded_server() {
    let server = lockkeeper_server::Server::ephemeral().await.unwrap();
    compare(server.addr()).await;
}

/// The scripts cannot show this, see `play`.
#[tokio::test]
async fn a_persistent_watch_goes_on_after_a_cut() {
    let server = lockkeeper_server::Server::ephemeral().await.unwrap();
    let proxy = Proxy::start(server.addr()).await;
    let (mut player, other) = (Ours::open(proxy.addr), Ours::open(server.addr()));
    for (number, recursive) in [false, true].into_iter().enumerate() {
        player.call(number, &Call::Watch("/".to_owned(), recursive)).await;
    }
    proxy.lose(Loss::All);
    // A server sends no event for this change, see `PersistentWatcher`.
    other.write(&Write::Create("/a".to_owned(), CreateMode::Persistent)).await;
    proxy.lose(Loss::None);
    while !player.answers("/").await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    other.write(&Write::Create("/b".to_owned(), CreateMode::Persistent)).await;
    assert!(player.answers("/").await);
    assert_eq!(player.events().await, ["watch 0: children /", "watch 1: created /b"]);
}

/// `cargo xtask zookeeper test` starts the server.
#[cfg(real_servers)]
#[tokio::test]
async fn ours_plays_as_zookeeper_client_on_apaches_server() {
    let server = std::env::var("LOCKKEEPER_TEST_ZOOKEEPER").expect("run `cargo xtask zookeeper test`");
    compare(tokio::net::lookup_host(server).await.unwrap().next().unwrap()).await;
}

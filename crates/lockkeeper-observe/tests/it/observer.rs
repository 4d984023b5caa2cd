//! An observer beside other clients, on the embedded server and on Apache's.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::admin::{Admin, LockInfo};
use lockkeeper_core::leased::{Held, Record};
use lockkeeper_history::{HoldEnd, Recorder};
use lockkeeper_observe::watch::{
    End, Journal, Notice, Observation, Observer, Options, RecordedEnd, Snapshot, Totals, View,
};
use lockkeeper_server::Server;
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};
use lockkeeper_wire::ErrorCode;
use serde_json::Value;
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode};

/// The longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(90);

const CURATOR: &str = "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lock-";
const KAZOO: &str = "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4d__lock__";

/// Reads what owners have recorded with the history.
fn recorded_end(node: &str, data: &[u8]) -> Option<RecordedEnd> {
    let record = lockkeeper_history::RecordedEnd::read(node, data)?;
    let how = match record.end {
        HoldEnd::Released => End::Released,
        HoldEnd::Lost => End::Lost { why: record.why() },
        end => panic!("{end:?}"),
    };
    Some(RecordedEnd { path: record.path, owner: record.owner, token: record.token, how })
}

/// An observer, and what it has written.
struct Watching {
    observation: Observation,
    dir: tempfile::TempDir,
    task: JoinHandle<()>,
    keeper: Lockkeeper,
    /// What it has found.
    totals: Totals,
}

impl Watching {
    async fn start(servers: &str) -> Watching {
        let dir = tempfile::tempdir().unwrap();
        let journal = Some(Journal::open(dir.path()).unwrap());
        let observation = Observation::new(Options { journal, ..Options::default() });
        let keeper = Lockkeeper::connect(servers).await.unwrap();
        let observer = Observer::new(&keeper, "/locks", [""; 0], &observation).unwrap();
        let observer = observer.with_records(lockkeeper_history::ROOT, recorded_end);
        let task = tokio::spawn(async move {
            let ended = observer.run().await;
            panic!("{ended:?}");
        });
        let mut watching = Watching { observation, dir, task, keeper, totals: Totals::default() };
        let Notice::Started { totals, .. } = watching.notice().await else { panic!("it does not start") };
        watching.totals = totals;
        watching
    }

    async fn notice(&self) -> Notice {
        tokio::time::timeout(PATIENCE, self.observation.next_notice()).await.expect("no notice")
    }

    /// Waits until the state is as it should be.
    async fn until(&self, what: &str, mut is: impl FnMut(&Snapshot) -> bool) -> Snapshot {
        let mut changes = self.observation.changes();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                let snapshot = self.observation.snapshot();
                if is(&snapshot) {
                    return snapshot;
                }
                changes.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(snapshot) => snapshot,
            Err(_) => panic!("never {what}: {:#?}", self.observation.snapshot()),
        }
    }

    /// Waits until this many facts of a kind about a lock are in the journal, and returns them.
    async fn facts(&self, lock: &str, fact: &str, count: usize) -> Vec<Value> {
        let mut changes = self.observation.changes();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                let facts: Vec<_> = journal(self.dir.path()).into_iter().filter(|line| is(line, lock, fact)).collect();
                if facts.len() >= count {
                    return facts;
                }
                changes.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(facts) => facts,
            Err(_) => panic!("never {count} {fact}: {:#?}", journal(self.dir.path())),
        }
    }

    async fn stop(self) -> Vec<Value> {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
        self.keeper.close().await;
        journal(self.dir.path())
    }
}

/// Whether the nodes of its contenders were read.
fn is_read(lock: &LockInfo) -> bool {
    lock.holders.iter().chain(&lock.waiters).all(|contender| !contender.session.is_none())
}

fn journal(dir: &Path) -> Vec<Value> {
    let text: String = Journal::files(dir).iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn is(line: &Value, lock: &str, fact: &str) -> bool {
    line["fact"] == fact && (lock.is_empty() || line["lock"] == lock)
}

/// How many facts of each kind there are about a lock.
fn counts(facts: &[Value], lock: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for fact in facts.iter().filter(|fact| fact["lock"] == lock) {
        *counts.entry(fact["fact"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

async fn foreign(servers: &str) -> Client {
    Client::connect(servers).await.unwrap()
}

/// Creates the nodes of a path.
async fn make(client: &Client, path: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for (at, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
        match client.create(&path[..at], b"", &options).await {
            Ok(_) | Err(zookeeper_client::Error::NodeExists) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Joins a queue as a foreign client does.
async fn join(client: &Client, lock: &str, name: &str) -> String {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = client.create(&format!("{lock}/{name}"), b"10.0.0.7", &options).await.unwrap();
    format!("{lock}/{name}{number}")
}

async fn delete(client: &Client, node: &str) {
    client.delete(node, None).await.unwrap();
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}

/// What clients of three kinds do is seen whole, whatever the server is.
async fn everything_is_seen(server: SocketAddr) {
    let proxy = Proxy::start(server).await;
    let servers = server.to_string();
    let kazoo = foreign(&servers).await;
    for lock in ["/locks/curator", "/locks/kazoo"] {
        make(&kazoo, lock).await;
    }
    let watching = Watching::start(&proxy.connect_string()).await;
    let before = proxy.counts();
    // Curator's, as fast as they come: each holds the lock for less than a millisecond or two.
    const SHORT: usize = 40;
    for _ in 0..SHORT {
        let node = join(&kazoo, "/locks/curator", CURATOR).await;
        delete(&kazoo, &node).await;
    }
    // Kazoo's: one holds, one waits and gets it, and one leaves without it.
    let other = foreign(&servers).await;
    let holder = join(&kazoo, "/locks/kazoo", KAZOO).await;
    let waiter = join(&other, "/locks/kazoo", KAZOO).await;
    let impatient = join(&other, "/locks/kazoo", KAZOO).await;
    let snapshot = watching
        .until("one holds and two wait", |snapshot| {
            let lock = snapshot.locks.iter().find(|lock| &*lock.path == "/locks/kazoo");
            lock.is_some_and(|lock| is_read(lock) && lock.holders.len() == 1 && lock.waiters.len() == 2)
        })
        .await;
    assert_eq!(snapshot.locks[0].holders[0].node_path("/locks/kazoo"), holder);
    delete(&other, &impatient).await;
    delete(&kazoo, &holder).await;
    // Ours, from a session of its own.
    let ours = Lockkeeper::connect(&servers).await.unwrap();
    let mutex = ours.mutex("/locks/ours");
    for _ in 0..5 {
        let guard = mutex.acquire().message("a test").await.unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        guard.release().await.unwrap();
    }
    watching.facts("/locks/kazoo", "ended", 1).await;
    watching.facts("/locks/kazoo", "left_waiting", 1).await;
    watching.facts("/locks/kazoo", "granted", 2).await;
    watching.facts("/locks/ours", "ended", 5).await;
    watching.facts("/locks/curator", "ended", SHORT).await;
    let after = proxy.counts().since(&before);
    let facts = watching.stop().await;
    let of = |entered, granted, ended, left| {
        let all = [("entered", entered), ("granted", granted), ("ended", ended), ("left_waiting", left)];
        all.into_iter().filter(|(_, n)| *n > 0).map(|(fact, n)| (fact.to_owned(), n)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(counts(&facts, "/locks/curator"), of(SHORT, SHORT, SHORT, 0));
    assert_eq!(counts(&facts, "/locks/kazoo"), of(3, 2, 1, 1));
    assert_eq!(counts(&facts, "/locks/ours"), of(5, 5, 5, 0));
    assert!(facts.iter().all(|fact| fact["about"].is_null()), "{facts:#?}");
    let got = facts.iter().find(|fact| is(fact, "/locks/kazoo", "granted") && fact["node"] == waiter).unwrap();
    assert_eq!((got["who"].as_str(), got["mode"].as_str()), (Some("10.0.0.7"), Some("write")));
    let left = facts.iter().find(|fact| is(fact, "/locks/kazoo", "left_waiting")).unwrap();
    assert_eq!((left["node"].as_str(), left["end"].as_str()), (Some(&*impatient), Some("released")));
    for hold in facts.iter().filter(|fact| is(fact, "/locks/ours", "ended")) {
        let held = hold["held_ms"].as_u64().unwrap();
        assert!((20..5_000).contains(&held), "{hold}");
        assert_eq!(hold["message"], "a test");
    }
    // It reads: one node for each contender, and those of the locks, `/locks` included.
    let asked = after.requested;
    let reads = asked.of(OpCode::GetData);
    assert!(reads <= (SHORT + 3 + 5 + 4) as u64, "{asked:?}");
    assert_eq!(asked.total(), reads, "nothing else is asked, and nothing is written: {asked:?}");
}

#[test]
fn clients_of_all_kinds_are_seen_whole_and_nothing_is_written() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        everything_is_seen(server.addr()).await;
    });
}

/// The servers' events show neither: the owners record how their holds ended, a loser some time later.
#[test]
fn a_recorded_release_is_released_and_a_loss_that_is_recorded_later_explains_the_end() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let servers = server.connect_string();
        let watching = Watching::start(&servers).await;
        let ours = Lockkeeper::connect(&servers).await.unwrap();
        // Another contender of its session would show that the session lives on.
        let guard = ours.mutex("/locks/a").acquire().await.unwrap();
        let recording = Recorder::new(&ours).begin(&guard);
        watching.until("it is seen", |snapshot| snapshot.locks.iter().any(is_read)).await;
        guard.release().await.unwrap();
        recording.finish().await.unwrap();
        let ended = watching.facts("/locks/a", "ended", 1).await;
        assert_eq!(ended[0]["end"], "released", "{ended:?}");

        let guard = ours.mutex("/locks/b").acquire().await.unwrap();
        let recording = Recorder::new(&ours).begin(&guard);
        let seen = |snapshot: &Snapshot| snapshot.locks.iter().any(|lock| lock.path == "/locks/b" && is_read(lock));
        watching.until("it is seen", seen).await;
        delete(&foreign(&servers).await, &guard.node()).await;
        let ended = watching.facts("/locks/b", "ended", 1).await;
        assert_eq!(ended[0]["end"], "unknown", "{ended:?}");
        drop(guard);
        recording.finish().await.unwrap();
        let explained = watching.facts("/locks/b", "explained", 1).await;
        assert_eq!((&explained[0]["end"], &explained[0]["node"]), (&"lost".into(), &ended[0]["node"]), "{explained:?}");
        assert!(!explained[0]["why"].as_str().unwrap().is_empty());
    });
}

/// While the observer is away, a hold ends, another begins, and a contender comes and goes.
#[test]
fn a_lost_connection_is_one_gap_and_the_state_after_it_is_right() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let proxy = Proxy::start(server.addr()).await;
        let client = foreign(&server.connect_string()).await;
        make(&client, "/locks/a").await;
        let watching = Watching::start(&proxy.connect_string()).await;
        let first = join(&client, "/locks/a", CURATOR).await;
        let second = join(&client, "/locks/a", CURATOR).await;
        let has = |snapshot: &Snapshot, holder: &str, waiters: usize| {
            let lock = snapshot.locks.iter().find(|lock| &*lock.path == "/locks/a");
            lock.is_some_and(|lock| {
                let holds = lock.holders.iter().any(|it| it.node_path(&lock.path) == holder);
                holds && lock.waiters.len() == waiters && is_read(lock)
            })
        };
        watching.until("one holds", |snapshot| has(snapshot, &first, 1)).await;
        proxy.refuse();
        proxy.cut(Cut::Reset);
        assert!(matches!(watching.notice().await, Notice::Lost { .. }));
        delete(&client, &first).await;
        let unseen = join(&client, "/locks/a", CURATOR).await;
        delete(&client, &unseen).await;
        let third = join(&client, "/locks/a", CURATOR).await;
        proxy.heal();
        assert!(matches!(watching.notice().await, Notice::Back { .. }));
        watching.until("the second holds", |snapshot| has(snapshot, &second, 1)).await;
        // What happens from now on is exact again.
        delete(&client, &second).await;
        watching.until("the third holds", |snapshot| has(snapshot, &third, 0)).await;
        delete(&client, &third).await;
        watching.facts("/locks/a", "ended", 3).await;
        let facts = watching.stop().await;
        let gaps: Vec<_> = facts.iter().filter(|fact| fact["fact"] == "gap").collect();
        assert_eq!(gaps.len(), 1, "{facts:#?}");
        assert_eq!((gaps[0]["why"].as_str(), gaps[0]["root"].as_str()), (Some("disconnected"), Some("/locks")));
        let about = |node: &str, what: &str| {
            let fact = facts.iter().find(|fact| fact["node"] == node && fact["fact"] == what).unwrap();
            fact["about"] == true
        };
        assert!(about(&first, "ended") && about(&second, "granted") && about(&third, "entered"), "{facts:#?}");
        // Its wait began unseen, and its hold did not.
        assert!(!about(&first, "granted") && about(&third, "granted") && !about(&third, "ended"), "{facts:#?}");
        assert!(facts.iter().all(|fact| fact["node"] != *unseen), "nobody saw it");
    });
}

/// The journal of breaks says who removed a holder.
#[test]
fn a_break_and_a_revoked_hold_are_told_with_who_did_it() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let ours = Lockkeeper::connect(&server.connect_string()).await.unwrap();
        let watching = Watching::start(&server.connect_string()).await;
        let _guard = ours.mutex("/locks/broken").acquire().await.unwrap();
        let admin = Lockkeeper::connect(&server.connect_string()).await.unwrap().admin();
        admin.break_lock("/locks/broken", "it hangs").await.unwrap();
        let ended = watching.facts("/locks/broken", "ended", 1).await;
        assert_eq!((ended[0]["end"].as_str(), ended[0]["reason"].as_str()), (Some("broken"), Some("it hangs")));
        let guard = ours.mutex("/locks/asked").acquire().await.unwrap();
        admin.revoke("/locks/asked", Some("a deploy")).await.unwrap();
        watching
            .until("the request is seen", |snapshot| {
                let lock = snapshot.locks.iter().find(|lock| lock.path == "/locks/asked");
                lock.and_then(|lock| lock.holders.first()?.revocation.as_ref()).is_some()
            })
            .await;
        guard.release().await.unwrap();
        let ended = watching.facts("/locks/asked", "ended", 1).await;
        assert_eq!(ended[0]["end"], "revoked");
        assert!(ended[0]["by"].as_str().unwrap().contains("a deploy"), "{}", ended[0]);
    });
}

/// Each use of Curator's semaphore has a lease of its own, and each of Kazoo's a node of another name.
#[test]
fn a_semaphore_of_foreign_clients_is_one_lock_however_often_it_is_used() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let client = foreign(&server.connect_string()).await;
        for path in ["/locks/c/leases", "/locks/c/locks", "/locks/k-__lock__", "/locks/k"] {
            make(&client, path).await;
        }
        let watching = Watching::start(&server.connect_string()).await;
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        for number in 0..5 {
            let asks = join(&client, "/locks/c/locks", CURATOR).await;
            let lease = join(&client, "/locks/c/leases", "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lease-").await;
            delete(&client, &asks).await;
            delete(&client, &lease).await;
            let asks = join(&client, "/locks/k-__lock__", KAZOO).await;
            let lease = format!("/locks/k/0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4{number}");
            client.create(&lease, b"worker", &ephemeral).await.unwrap();
            delete(&client, &asks).await;
            delete(&client, &lease).await;
        }
        for lock in ["/locks/c", "/locks/k"] {
            watching.facts(lock, "granted", 5).await;
            watching.facts(lock, "ended", 5).await;
        }
        let facts = journal(watching.dir.path());
        let mut named: Vec<_> = facts.iter().filter_map(|fact| fact["lock"].as_str()).collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named, ["/locks/c", "/locks/k"]);
        // One holds, one asks.
        let lease = join(&client, "/locks/c/leases", "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lease-").await;
        join(&client, "/locks/c/locks", CURATOR).await;
        let snapshot = watching.until("it is waited for", |snapshot| {
            snapshot.locks.iter().any(|lock| lock.holders.len() == 1 && lock.waiters.len() == 1 && is_read(lock))
        });
        assert_eq!(snapshot.await.locks[0].holders[0].node_path("/locks/c"), lease);
    });
}

/// A session that ends takes all its nodes in one moment.
#[test]
fn contenders_that_end_with_their_session_are_told_from_released_ones() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let client = foreign(&server.connect_string()).await;
        for lock in ["/locks/a", "/locks/b", "/locks/c"] {
            make(&client, lock).await;
        }
        let watching = Watching::start(&server.connect_string()).await;
        let killed = foreign(&server.connect_string()).await;
        join(&killed, "/locks/a", KAZOO).await;
        join(&killed, "/locks/b", KAZOO).await;
        let released = join(&killed, "/locks/c", KAZOO).await;
        watching
            .until("all are held", |snapshot| {
                snapshot.locks.iter().filter(|lock| lock.holders.len() == 1 && is_read(lock)).count() == 3
            })
            .await;
        delete(&killed, &released).await;
        assert_eq!(watching.facts("/locks/c", "ended", 1).await[0]["end"], "released");
        drop(killed);
        for lock in ["/locks/a", "/locks/b"] {
            assert_eq!(watching.facts(lock, "ended", 1).await[0]["end"], "session_over", "{lock}");
        }
    });
}

/// It has not seen them come.
#[test]
fn holders_and_waiters_that_were_there_before_are_told_apart() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let client = foreign(&server.connect_string()).await;
        make(&client, "/locks/a").await;
        for _ in 0..3 {
            join(&client, "/locks/a", KAZOO).await;
        }
        let watching = Watching::start(&server.connect_string()).await;
        let Totals { in_use, holders, waiters, .. } = watching.totals;
        assert_eq!((in_use, holders, waiters), (1, 1, 2));
        assert!(watching.stop().await.iter().all(|fact| fact["about"] == true));
    });
}

#[test]
fn a_lock_that_was_held_before_is_found_at_every_depth() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let client = foreign(&server.connect_string()).await;
        let lock = "/locks".to_owned() + &"/a".repeat(40);
        make(&client, &lock).await;
        join(&client, &lock, KAZOO).await;
        let watching = Watching::start(&server.connect_string()).await;
        assert_eq!((watching.totals.in_use, watching.totals.holders), (1, 1));
        watching.stop().await;
    });
}

/// A view beside a client that reads all locks.
struct Beside {
    observation: Observation,
    view: View,
    locks: BTreeMap<String, LockInfo>,
    admin: Admin,
}

impl Beside {
    /// Waits until the view has what a fresh read shows, and returns it.
    async fn agrees(&mut self, what: &str) -> &BTreeMap<String, LockInfo> {
        let mut changes = self.observation.changes();
        let mut fresh = BTreeMap::new();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                for (path, lock) in self.view.refresh().unwrap_or_default() {
                    match lock {
                        Some(lock) => {
                            let lock = self.admin.recall(vec![lock]).await.unwrap().remove(0);
                            self.locks.insert(path.to_string(), lock);
                        }
                        None => _ = self.locks.remove(&*path),
                    }
                }
                // A view does not name other nodes.
                let own = |lock: LockInfo| (lock.path.clone(), without_unknown(lock));
                fresh = self.admin.list("/locks").await.unwrap().into_iter().map(own).collect();
                if self.locks == fresh {
                    return;
                }
                if !self.view.is_late() {
                    changes.changed().await.unwrap();
                }
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("{what}: {:#?} is not {fresh:#?}", self.locks);
        }
        &self.locks
    }
}

fn without_unknown(mut lock: LockInfo) -> LockInfo {
    lock.unknown.clear();
    lock
}

#[test]
fn a_view_shows_locks_of_every_kind_as_a_fresh_read_does_also_after_a_gap() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let (proxy, servers) = (Proxy::start(server.addr()).await, server.connect_string());
        let client = foreign(&servers).await;
        for path in ["/locks/before", "/locks/curator", "/locks/c/leases", "/locks/c/locks", "/locks/k-__lock__"] {
            make(&client, path).await;
        }
        let persistent = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
        let record = Record { owner: Some(lease()), request: None };
        let leased = CreateMode::Persistent.with_acls(Acls::anyone_all());
        // Its name is that of a contender of the lock /locks/early.
        client.create("/locks/early2026112901", &record.to_bytes(), &leased).await.unwrap();
        join(&client, "/locks/before", CURATOR).await;
        join(&client, "/locks/before", CURATOR).await;
        let [ours, others] =
            [Lockkeeper::connect(&servers).await.unwrap(), Lockkeeper::connect(&servers).await.unwrap()];
        let observation = Observation::new(Options::default());
        let keeper = Lockkeeper::connect(&proxy.connect_string()).await.unwrap();
        let observer = Observer::new(&keeper, "/locks", [""; 0], &observation).unwrap();
        let task = tokio::spawn(observer.run());
        let (view, locks, admin) = (observation.view(), BTreeMap::new(), others.admin());
        let mut beside = Beside { observation: observation.clone(), view, locks, admin };
        assert_eq!(beside.agrees("what was there before").await["/locks/before"].waiters.len(), 1);

        let mutex = ours.mutex("/locks/app/mutex").acquire().message("a test").await.unwrap();
        let other = others.mutex("/locks/app/mutex");
        let mut waiting = Box::pin(other.acquire().into_future());
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let rwlock = ours.rwlock("/locks/app/rw");
        let readers =
            [rwlock.read().acquire().await.unwrap(), others.rwlock("/locks/app/rw").read().acquire().await.unwrap()];
        let permits = ours.semaphore("/locks/pool", 3).acquire().await.unwrap();
        let class = ours.priority_lock("/locks/class").acquire().await.unwrap();
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        for path in ["/locks/lease", "/locks/late2026112901"] {
            client.create(path, &record.to_bytes(), &leased).await.unwrap();
        }
        client.create(&format!("/locks/curator/{CURATOR}"), b"left", &persistent).await.unwrap();
        let blocked = join(&client, "/locks/curator", CURATOR).await;
        join(&client, "/locks/c/leases", "_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d-lease-").await;
        join(&client, "/locks/c/locks", CURATOR).await;
        make(&client, "/locks/k").await;
        client.set_data("/locks/k", b"3", None).await.unwrap();
        client.create("/locks/k/0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c40", b"worker", &ephemeral).await.unwrap();
        // The last child of /locks: a view that has read it before another one came knows more of its grant than a later read.
        join(&client, "/locks", "job").await;
        let seen = beside.agrees("locks of every kind").await;
        let held = [
            "app/mutex",
            "app/rw",
            "before",
            "c",
            "class",
            "early2026112901",
            "job",
            "k",
            "late2026112901",
            "lease",
            "pool",
        ];
        let has = |name: &str| seen.get(&format!("/locks/{name}")).is_some_and(|lock| !lock.holders.is_empty());
        assert!(held.into_iter().all(has), "{:?}", seen.keys());
        assert!(seen["/locks/curator"].waiters[0].blocked_by.is_some());

        // A hold is broken, one is asked for, one is handed over, and a number of others come and go.
        beside.admin.revoke("/locks/app/rw", Some("a deploy")).await.unwrap();
        beside.agrees("a request to release").await;
        delete(&client, &blocked).await;
        let handed_over = Record { owner: Some(Held { id: "build-8".to_owned(), ..lease() }), request: None };
        client.set_data("/locks/early2026112901", &handed_over.to_bytes(), None).await.unwrap();
        mutex.release().await.unwrap();
        let granted = waiting.await.unwrap();
        for _ in 0..20 {
            let node = join(&client, "/locks/before", CURATOR).await;
            delete(&client, &node).await;
        }
        let locks = beside.agrees("a handover").await;
        assert_eq!(locks["/locks/before"].entries.unwrap().count, 22);

        proxy.refuse();
        proxy.cut(Cut::Reset);
        for guard in readers {
            guard.release().await.unwrap();
        }
        drop(permits.release().await);
        class.release().await.unwrap();
        join(&client, "/locks/before", CURATOR).await;
        client.delete("/locks/lease", None).await.unwrap();
        client.delete("/locks/early2026112901", None).await.unwrap();
        let unseen = ours.mutex("/locks/unseen").acquire().await.unwrap();
        proxy.heal();
        let locks = beside.agrees("a gap").await;
        let names = ["app/mutex", "before", "c", "curator", "job", "k", "late2026112901", "unseen"]
            .map(|name| format!("/locks/{name}"));
        assert_eq!(locks.keys().cloned().collect::<Vec<_>>(), names);
        assert_eq!(locks["/locks/before"].entries.unwrap().count, 23);
        drop((granted, unseen));
        client.delete("/locks/late2026112901", None).await.unwrap();
        beside.agrees("releases").await;
        task.abort();
    });
}

/// The owner of a leased lock.
fn lease() -> Held {
    Held {
        id: "build-7".to_owned(),
        message: Some("nightly".to_owned()),
        until_ms: i64::MAX,
        priority: 3,
        waiting_ms: 0,
        cleanup_ms: 5_000,
        revocation: None,
        notice_ms: None,
        granted_by: None,
    }
}

/// Servers before ZooKeeper 3.6 do not know the watch.
#[test]
fn an_old_server_is_refused_by_name() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let proxy = Proxy::start(server.addr()).await;
        let _old = proxy.on(OpCode::AddWatch).refuse_reply(ErrorCode::Unimplemented);
        let observation = Observation::new(Options::default());
        let keeper = Lockkeeper::connect(&proxy.connect_string()).await.unwrap();
        let observer = Observer::new(&keeper, "/locks", [""; 0], &observation).unwrap();
        let Err(error) = observer.run().await;
        let text = error.to_string();
        assert!(text.contains(&proxy.connect_string()) && text.contains("ZooKeeper 3.6"), "{text}");
    });
}

#[test]
fn locks_are_observed_where_the_epoch_cannot_be_read() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let client = foreign(&server.connect_string()).await;
        for path in ["/locks/a", "/lockkeeper"] {
            make(&client, path).await;
        }
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        client.create("/lockkeeper/epoch", b"no number", &persistent).await.unwrap();
        join(&client, "/locks/a", KAZOO).await;
        let watching = Watching::start(&server.connect_string()).await;
        assert_eq!(watching.totals.holders, 1);
        watching.stop().await;
    });
}

/// The journal says for how long no observer ran.
#[test]
fn an_observer_that_did_not_run_says_so() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let watching = Watching::start(&server.connect_string()).await;
        watching.observation.stop();
        let Watching { dir, task, observation, .. } = watching;
        task.abort();
        _ = task.await;
        drop(observation);
        let journal = Some(Journal::open(dir.path()).unwrap());
        let observation = Observation::new(Options { journal, ..Options::default() });
        let keeper = Lockkeeper::connect(&server.connect_string()).await.unwrap();
        let observer = Observer::new(&keeper, "/locks", [""; 0], &observation).unwrap();
        let task = tokio::spawn(observer.run());
        assert!(matches!(observation.next_notice().await, Notice::Started { .. }));
        task.abort();
        let facts = self::journal(dir.path());
        let last: Vec<_> = facts[facts.len() - 2..].iter().map(|fact| fact["fact"].as_str().unwrap()).collect();
        assert_eq!(last, ["stopped", "gap"], "{facts:#?}");
        assert_eq!(facts.last().unwrap()["why"], "not_running");
    });
}

#[cfg(deep)]
mod apache {
    use lockkeeper_testkit::apache::{Apache, Options};

    use super::{block_on, everything_is_seen};

    #[test]
    fn clients_of_all_kinds_are_seen_whole_on_a_real_server() {
        let apache = Apache::single(Options::default()).unwrap();
        block_on(everything_is_seen(apache.addr(0)));
    }
}

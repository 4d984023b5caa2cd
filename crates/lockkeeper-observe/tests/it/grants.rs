//! What is said of holders, judged against a log of the true grants: who holds a lock, and since when.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::{Lockkeeper, NodeFormat};
use lockkeeper_history::{Entry, Habits, History, HoldEnd, Recorder};
use lockkeeper_observe::table::{LockRow, Recorded};
use lockkeeper_observe::watch::{Observation, Observer, Options};
use lockkeeper_server::Server;
use tokio::sync::watch;
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode};

/// The longest wait for an event that must come.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often each client takes its lock.
const HOLDS: usize = 10;

/// A hold lasts until the locks were looked at so often.
const LOOKS: u64 = 2;

/// How much too early a record may say that its holder was granted the lock: by the time that the servers' answer to the create of its
/// node took.
const EARLY: Duration = Duration::from_millis(200);

/// A moment between two others.
#[derive(Clone, Copy, Debug)]
struct Between(SystemTime, SystemTime);

/// What a client did: when it created its node, believed to hold the lock, and deleted the node.
#[derive(Clone, Debug)]
struct Cycle {
    node: String,
    asked: SystemTime,
    granted: SystemTime,
    left: Between,
}

/// What was said of a holder in an answer to a question of this time.
#[derive(Clone, Debug)]
struct Claim {
    lock: String,
    node: String,
    asked: Between,
    /// It was granted the lock between these.
    granted: (SystemTime, Option<SystemTime>),
    text: String,
}

#[derive(Default)]
struct Log {
    cycles: Mutex<Vec<(String, Cycle)>>,
    claims: Mutex<Vec<Claim>>,
}

fn now() -> SystemTime {
    SystemTime::now()
}

/// Whole milliseconds, as the servers' times are.
fn floor(time: SystemTime) -> SystemTime {
    let ms = time.duration_since(UNIX_EPOCH).unwrap().as_millis();
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap())
}

/// Waits until the locks were looked at for as long as a hold lasts.
async fn looked_at(looks: &watch::Receiver<u64>) {
    let mut looks = looks.clone();
    let until = *looks.borrow() + LOOKS;
    looks.wait_for(|count| *count >= until).await.unwrap();
}

/// A client that knows nothing of Lockkeeper takes a lock again and again.
async fn foreign(servers: String, lock: &'static str, start: String, log: Arc<Log>, looks: watch::Receiver<u64>) {
    let client = Client::connect(&servers).await.unwrap();
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let number = |name: &str| name[name.len() - 10..].to_owned();
    for _ in 0..HOLDS {
        let asked = floor(now());
        let (_, sequence) = client.create(&format!("{lock}/{start}"), b"10.0.3.7", &options).await.unwrap();
        let node = format!("{lock}/{start}{sequence}");
        loop {
            let (names, watcher) = client.list_and_watch_children(lock).await.unwrap();
            if names.iter().all(|name| number(name) >= number(&node)) {
                break;
            }
            watcher.changed().await;
        }
        let granted = now();
        looked_at(&looks).await;
        let before = floor(now());
        client.delete(&node, None).await.unwrap();
        log.cycles
            .lock()
            .unwrap()
            .push((lock.to_owned(), Cycle { node, asked, granted, left: Between(before, now()) }));
    }
}

/// A client of this library does the same, and records its holds.
async fn ours(servers: String, lock: &'static str, format: NodeFormat, log: Arc<Log>, looks: watch::Receiver<u64>) {
    let keeper = Lockkeeper::connect(&servers).await.unwrap();
    for _ in 0..HOLDS {
        let asked = floor(now());
        let guard = keeper.mutex(lock).node_format(format).acquire().await.unwrap();
        let granted = now();
        let (node, recording) = (guard.node(), Recorder::new(&keeper).begin(&guard));
        looked_at(&looks).await;
        let before = floor(now());
        guard.release().await.unwrap();
        recording.finish().await.unwrap();
        log.cycles
            .lock()
            .unwrap()
            .push((lock.to_owned(), Cycle { node, asked, granted, left: Between(before, now()) }));
    }
}

/// Looks at the locks as `list`, `why` and `show` do.
async fn look(keeper: &Lockkeeper, log: &Log) {
    let before = floor(now());
    let mut locks = keeper.admin().listing("/locks").await.unwrap().locks;
    let asked = Between(before, now());
    let paths: Vec<_> = locks.iter().map(|lock| lock.path.clone()).collect();
    let habits = History::new(keeper).habits(&paths, None).await.unwrap();
    for lock in &mut locks {
        habits.get(&lock.path).iter().for_each(|habits| habits.date(lock));
    }
    for lock in &locks {
        let row = LockRow::of(lock, Some(now()), Recorded::default(), &[]);
        assert!(lock.holders.len() <= 1, "{lock:?}");
        let Some(holder) = lock.holders.first() else { continue };
        let grant = holder.grant().unwrap_or_else(|| panic!("a holder without bounds: {holder:?}"));
        assert_eq!(holder.granted, grant.known());
        let (lock, node) = (lock.path.clone(), holder.node_path(&lock.path));
        let text = format!("{holder}; {:?}", row.held);
        let claim = Claim { lock, node, asked, granted: (grant.earliest, grant.latest), text };
        log.claims.lock().unwrap().push(claim);
    }
}

/// The same as an observer tells it. Its times are its own.
fn look_at(observation: &Observation, log: &Log) {
    let before = floor(now());
    let snapshot = observation.snapshot();
    for lock in &snapshot.locks {
        for holder in &lock.holders {
            let (lock, node) = (lock.path.clone(), holder.node_path(&lock.path));
            let granted = holder.observed.unwrap().since;
            let text = format!("observed: {holder:?}");
            // It hears of a grant after it, and of an end too.
            let asked = Between(before - Duration::from_secs(5), now());
            let claim = Claim { lock, node, asked, granted: (UNIX_EPOCH, Some(granted)), text };
            log.claims.lock().unwrap().push(claim);
        }
    }
}

/// The true grant and end of each hold, by the path of its node.
struct Truth {
    node: String,
    granted: Between,
    left: Between,
}

/// Orders the holds of a lock. Each was granted after its node was created and the hold before it had ended.
fn truths(cycles: &[(String, Cycle)], lock: &str) -> Vec<Truth> {
    let mut of: Vec<_> = cycles.iter().filter(|(path, _)| path == lock).map(|(_, cycle)| cycle).collect();
    of.sort_by_key(|cycle| cycle.granted);
    let mut free = UNIX_EPOCH;
    let truth = |cycle: &Cycle| {
        let granted = Between(cycle.asked.max(free), cycle.granted);
        free = cycle.left.0;
        Truth { node: cycle.node.clone(), granted, left: cycle.left }
    };
    of.into_iter().map(truth).collect()
}

/// Returns why a claim is false, if it is.
fn falsehood(claim: &Claim, truths: &[Truth]) -> Option<String> {
    let Some(truth) = truths.iter().find(|truth| truth.node == claim.node) else {
        return Some("it never held the lock".to_owned());
    };
    let (earliest, latest) = claim.granted;
    if truth.granted.0 > claim.asked.1 || truth.left.1 < claim.asked.0 {
        return Some(format!("it held the lock at another time: {:?}, {:?}", truth.granted, truth.left));
    }
    if earliest > truth.granted.1 {
        return Some(format!("it was granted the lock before: {:?}", truth.granted));
    }
    let latest = latest.filter(|latest| *latest + EARLY < truth.granted.0);
    latest.map(|_| format!("it was granted the lock later: {:?}", truth.granted))
}

/// The sentences that were printed once: a holder is held since it joined the queue, and one that is not known since the observer came.
#[test]
fn the_judge_finds_false_sentences() {
    let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
    let truth = |node: &str, granted, left| Truth {
        node: node.to_owned(),
        granted: Between(at(granted), at(granted + 5)),
        left: Between(at(left), at(left + 5)),
    };
    let truths = [truth("a", 0, 60_000), truth("b", 60_000, 60_300)];
    let said = |node: &str, asked, earliest, latest: Option<u64>| {
        let claim = Claim {
            lock: String::new(),
            node: node.to_owned(),
            asked: Between(at(asked), at(asked + 10)),
            granted: (at(earliest), latest.map(at)),
            text: String::new(),
        };
        falsehood(&claim, &truths).is_none()
    };
    assert!(
        said("b", 60_100, 1_000, None)
            && said("b", 60_100, 59_000, Some(60_050))
            && said("b", 60_100, 59_850, Some(59_850))
            && said("b", 60_100, 60_002, Some(60_002))
    );
    assert!(!said("b", 60_100, 1_000, Some(1_000)), "it queued since then");
    assert!(!said("b", 60_100, 59_750, Some(59_750)), "its request was under way for less");
    assert!(!said("b", 60_100, 60_100, None), "it was granted the lock before");
    assert!(!said("a", 60_100, 0, None), "it holds the lock no more");
    assert!(!said("c", 60_100, 0, None), "it never held it");
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("the test hangs") });
}

/// In two queues, foreign clients and clients of this library hold a lock for short, one after the other.
#[test]
fn what_is_said_of_short_holds_of_foreign_clients_and_ours_is_true() {
    block_on(async {
        let server = Server::ephemeral().await.unwrap();
        let servers = server.connect_string();
        let start = |lock: &'static str, starts: [String; 2]| {
            let servers = servers.clone();
            move |clients: &mut JoinSet<()>, log: &Arc<Log>, looks: &watch::Receiver<u64>| {
                for start in starts.clone() {
                    clients.spawn(foreign(servers.clone(), lock, start, log.clone(), looks.clone()));
                }
            }
        };
        let kazoo = start("/locks/kazoo", ["00", "11"].map(|id| format!("{}__lock__", id.repeat(16))));
        let curator =
            start("/locks/curator", ["0", "1"].map(|id| format!("_c_0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4{id}-lock-")));
        judged(
            &servers,
            &[("/locks/kazoo", NodeFormat::Kazoo, &kazoo), ("/locks/curator", NodeFormat::Curator, &curator)],
            3 * HOLDS,
        )
        .await;
    });
}

/// Programs of other projects hold a lock 190 times for 20 ms, beside a client of this library. They print the truth.
#[cfg(deep)]
mod programs {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// How many programs there are, and how often each takes the lock.
    const PROGRAMS: usize = 5;
    const ROUNDS: usize = 38;

    /// Reads the cycles that a program prints: the path of its node, and four times in milliseconds.
    fn cycles(mut command: Command, lock: &'static str, log: &Log) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((node, times)) = line.strip_prefix("cycle ").and_then(|rest| rest.split_once(' ')) else {
                continue;
            };
            let times: Vec<_> =
                times.split(' ').map(|ms| UNIX_EPOCH + Duration::from_millis(ms.parse().unwrap())).collect();
            let [asked, granted, before, after] = times[..] else { panic!("{line}") };
            // Its times are cut to milliseconds.
            let up = |time: SystemTime| time + Duration::from_millis(1);
            let cycle = Cycle { node: node.to_owned(), asked, granted: up(granted), left: Between(before, up(after)) };
            log.cycles.lock().unwrap().push((lock.to_owned(), cycle));
        }
        assert!(child.wait().unwrap().success());
    }

    fn beside(lock: &'static str, format: NodeFormat, command: impl Fn(&str) -> Command + Sync) {
        let servers = std::env::var("LOCKKEEPER_TEST_ZOOKEEPER").expect("run `cargo xtask interop`");
        let start = |clients: &mut JoinSet<()>, log: &Arc<Log>, _: &watch::Receiver<u64>| {
            for _ in 0..PROGRAMS {
                let (mut command, log) = (command(&servers), log.clone());
                command.args([lock, &ROUNDS.to_string()]);
                clients.spawn_blocking(move || cycles(command, lock, &log));
            }
        };
        block_on(judged(&servers, &[(lock, format, &start)], PROGRAMS * ROUNDS + HOLDS));
    }

    #[test]
    fn what_is_said_of_200_short_holds_of_kazoo_and_ours_is_true() {
        let python = std::env::var("LOCKKEEPER_INTEROP_KAZOO").expect("run `cargo xtask interop kazoo`");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/kazoo/contend.py");
        beside("/locks/kazoo", NodeFormat::Kazoo, |servers| {
            let mut command = Command::new(&python);
            command.args([script, servers, "short"]);
            command
        });
    }

    #[test]
    fn what_is_said_of_200_short_holds_of_curator_and_ours_is_true() {
        let classpath = std::env::var("LOCKKEEPER_INTEROP_CURATOR").expect("run `cargo xtask interop curator`");
        beside("/locks/curator", NodeFormat::Curator, |servers| {
            let mut command = Command::new("java");
            command.args(["-cp", &classpath, "lockkeeper.interop.CuratorClient", servers, "short"]);
            command
        });
    }
}

/// Starts the foreign clients of a queue.
type Start<'a> = &'a (dyn Fn(&mut JoinSet<()>, &Arc<Log>, &watch::Receiver<u64>) + Sync);

async fn judged(servers: &str, queues: &[(&'static str, NodeFormat, Start<'_>)], holds: usize) {
    let keeper = Lockkeeper::connect(servers).await.unwrap();
    let (log, (looked, looks)) = (Arc::new(Log::default()), watch::channel(0));
    let mut clients = JoinSet::new();
    for (lock, format, start) in queues {
        // Creates the node of the lock.
        keeper.mutex(lock).node_format(*format).acquire().await.unwrap().release().await.unwrap();
        start(&mut clients, &log, &looks);
        clients.spawn(ours(servers.to_owned(), lock, *format, log.clone(), looks.clone()));
    }
    let observation = Observation::new(Options::default());
    let mut observer = None;
    while !clients.is_empty() {
        look(&keeper, &log).await;
        look_at(&observation, &log);
        looked.send_modify(|count| *count += 1);
        // It begins while the clients are at work: it finds holders whose grants it has not seen.
        if observer.is_none() && *looked.borrow() > 10 {
            let observing = Observer::new(&keeper, "/locks", Vec::<String>::new(), &observation).unwrap();
            observer = Some(tokio::spawn(async move { _ = observing.run().await }));
        }
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap();
        }
    }
    let (cycles, claims) = (log.cycles.lock().unwrap().clone(), log.claims.lock().unwrap().clone());
    let mut wrong = Vec::new();
    for (lock, ..) in queues {
        let truths = truths(&cycles, lock);
        assert_eq!(truths.len(), holds);
        for claim in claims.iter().filter(|claim| claim.lock == *lock) {
            wrong.extend(falsehood(claim, &truths).map(|why| format!("{}: {why}", claim.text)));
        }
        // What is recorded, and what only successors saw.
        let entries = History::new(&keeper).of(lock).await.unwrap();
        for hold in entries.iter().filter_map(Entry::hold).filter(|hold| hold.end == HoldEnd::Unrecorded) {
            let truth = truths.iter().find(|truth| hold.granted <= truth.granted.1 && truth.left.0 <= hold.ended);
            if truth.is_none() || hold.bounds().known().is_some() {
                wrong.push(format!("no hold is within {hold:?}"));
            }
        }
        assert!(Habits::of(&entries, None).usual_of_enough().is_some(), "{entries:?}");
    }
    let bounded = claims.iter().filter(|claim| claim.granted.1.is_some()).count();
    assert!(wrong.is_empty(), "{} of {} are false: {:#?}", wrong.len(), claims.len(), &wrong[..wrong.len().min(5)]);
    assert!(claims.len() > 2 * HOLDS && bounded > 0, "{} claims", claims.len());
    observer.unwrap().abort();
}

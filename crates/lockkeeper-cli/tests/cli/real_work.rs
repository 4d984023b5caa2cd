//! Real work: eight processes, 12 rounds each (250 with LOCKKEEPER_DEEP), one plain file, and wrappers killed with `kill -9` at
//! random moments.
//!
//! Each round is one `lockkeeper run counter -- STEP`. STEP reads the file, increments the number, adds its own name
//! and the token of its hold, and writes the file back. Only the lock keeps two steps apart. Afterwards, the file shows
//! whether it did: every step that finished must be in it once, in the order of the tokens.
//!
//! It runs on this user's embedded server, and with `--cfg deep` also on an ensemble of three whose
//! leader is killed twice. `LOCKKEEPER_TEST_SEED` repeats a run's choices.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_testkit::is_deep;
use rustix::process::{Pid, Signal, kill_process};

const WORKERS: usize = 8;

/// How many rounds each worker makes.
static ROUNDS: LazyLock<usize> = LazyLock::new(|| if is_deep() { 250 } else { 12 });

/// How many wrappers of each worker are killed. Each stalls the queue until its session has expired.
static KILLS: LazyLock<usize> = LazyLock::new(|| if is_deep() { 3 } else { 1 });

/// Within this time of its start, a wrapper that the test kills connects, waits, or holds the lock.
const KILL_WITHIN: Duration = Duration::from_millis(250);

const SESSION_TIMEOUT: &str = "3s";

/// One step: a read, a change and a write, with as much time between them as two processes take to start.
///
/// The line in `done` comes after the write is complete, so a killed step has a line in the state or none in `done`.
const STEP: &str = r#"
awk -v "line=$LOCKKEEPER_TOKEN $ID" 'NR == 1 { print $1 + 1; next } { print } END { print line }' state > "new.$$" &&
mv "new.$$" state && echo "$ID" >> "done.$WORKER"
"#;

/// D-01: jobs that share only the lock's name.
#[test]
fn no_update_is_lost_on_this_users_server() {
    real_work(None, |_| ());
}

#[cfg(deep)]
#[test]
fn no_update_is_lost_while_an_ensembles_leader_is_killed() {
    use lockkeeper_testkit::apache::{Apache, Options};
    let apache = Apache::ensemble(3, Options::default()).unwrap();
    real_work(Some(&apache.connect_string()), |rounds: &AtomicUsize| {
        for part in [1, 2] {
            while rounds.load(Ordering::Relaxed) < part * WORKERS * *ROUNDS / 3 {
                std::thread::sleep(Duration::from_millis(10));
            }
            let leader = apache.leader().unwrap();
            apache.kill(leader);
            // The others elect a leader; the former leader returns as a follower.
            apache.leader().unwrap();
            apache.restart(leader).unwrap();
        }
    });
}

/// Does the work on `servers`, or on this user's server, while `disturb` watches the number of finished rounds.
fn real_work(servers: Option<&str>, disturb: impl FnOnce(&AtomicUsize) + Send) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let _server = Server(dir);
    let seed = std::env::var("LOCKKEEPER_TEST_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("LOCKKEEPER_TEST_SEED={seed}");
    std::fs::write(dir.join("state"), "0\n").unwrap();
    // A lock of this run alone, because other tests may use the same servers.
    let lock = format!("real-work/{seed:x}");
    let place = Place { dir, servers };
    let tally = Tally::default();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (lock, tally) = (&lock, &tally);
            scope.spawn(move || work(place, lock, worker, seed, tally));
        }
        scope.spawn(|| disturb(&tally.rounds));
    });
    let (killed, lost) = (tally.killed.into_inner(), tally.lost.into_inner());
    println!("{} rounds in {:?}: {killed} wrappers killed, {lost} holds lost", WORKERS * *ROUNDS, started.elapsed());

    let state = std::fs::read_to_string(dir.join("state")).unwrap();
    let mut lines = state.lines();
    let count: usize = lines.next().unwrap().parse().unwrap();
    let steps: Vec<(i64, &str)> =
        lines.map(|line| line.split_once(' ').unwrap()).map(|(token, id)| (token.parse().unwrap(), id)).collect();
    assert_eq!(count, steps.len(), "the number counts the steps");
    let recorded: HashSet<&str> = steps.iter().map(|(_, id)| *id).collect();
    assert_eq!(recorded.len(), steps.len(), "no step is there twice");
    for worker in 0..WORKERS {
        for id in std::fs::read_to_string(dir.join(format!("done.{worker}"))).unwrap().lines() {
            assert!(recorded.contains(id), "the update of step {id} is lost (seed {seed})");
        }
    }
    assert!(steps.is_sorted_by(|a, b| a.0 < b.0), "tokens grow from step to step (seed {seed})");
    let least = WORKERS * *ROUNDS - killed - lost;
    assert!(count >= least, "only rounds that were killed or lost their hold are missing: {count} of {least}");

    // Nodes of killed wrappers are deleted with their sessions.
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let output = place.lockkeeper(&["show", &lock, "--json"]).output().unwrap();
        let free = match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
            Ok(lock) => {
                lock["holders"].as_array().unwrap().is_empty() && lock["waiters"].as_array().unwrap().is_empty()
            }
            // The lock's own node is deleted as well.
            Err(_) => output.status.code() == Some(1),
        };
        if free {
            break;
        }
        assert!(Instant::now() < deadline, "nodes are left: {output:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The results of the rounds.
#[derive(Default)]
struct Tally {
    rounds: AtomicUsize,
    killed: AtomicUsize,
    lost: AtomicUsize,
}

/// Runs the rounds of one worker.
fn work(place: Place<'_>, lock: &str, worker: usize, seed: u64, tally: &Tally) {
    let mut random = fastrand::Rng::with_seed(seed ^ worker as u64);
    let doomed: HashSet<usize> = random.choose_multiple(0..*ROUNDS, *KILLS).into_iter().collect();
    let count = |counter: &AtomicUsize| _ = counter.fetch_add(1, Ordering::Relaxed);
    for round in 0..*ROUNDS {
        let id = format!("{worker}:{round}");
        let mut command =
            place.lockkeeper(&["run", lock, "--session-timeout", SESSION_TIMEOUT, "--", "sh", "-c", STEP]);
        command.env("ID", &id).env("WORKER", worker.to_string()).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if doomed.contains(&round) {
            // A pause of random length, not a wait for a condition.
            std::thread::sleep(random.u32(..KILL_WITHIN.as_millis() as u32) * Duration::from_millis(1));
            // Not reaped yet, so the pid still belongs to it.
            kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        }
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        match status.code() {
            Some(0) => {}
            None if doomed.contains(&round) => count(&tally.killed),
            // The lock was lost, and the step was stopped: allowed, as long as no update is lost.
            Some(76) => count(&tally.lost),
            _ => panic!("round {id} ended with {status} (seed {seed}): {}", String::from_utf8_lossy(&stderr)),
        }
        count(&tally.rounds);
    }
}

/// The directory of the file, and the servers of its lock.
#[derive(Clone, Copy)]
struct Place<'a> {
    dir: &'a Path,
    servers: Option<&'a str>,
}

impl Place<'_> {
    fn lockkeeper(self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(args).current_dir(self.dir).env("LOCKKEEPER_STATE_DIR", self.dir.join("home"));
        match self.servers {
            Some(servers) => command.env("LOCKKEEPER_SERVERS", servers),
            None => command.env_remove("LOCKKEEPER_SERVERS"),
        };
        command
    }
}

/// Ends the server of a state directory with the test.
struct Server<'a>(&'a Path);

impl Drop for Server<'_> {
    fn drop(&mut self) {
        if let Ok(stream) = std::os::unix::net::UnixStream::connect(self.0.join("home/socket")) {
            let server = rustix::net::sockopt::socket_peercred(&stream).unwrap();
            _ = kill_process(server.pid, Signal::KILL);
        }
    }
}

//! The data directory: what survives, and the errors when it cannot be used.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_server::{Config, Server, ServerError};

use crate::client::*;

fn config(directory: &Path) -> Config {
    Config::default().with_directory(directory).with_tick(Duration::from_millis(100))
}

fn start(directory: &Path) -> Server {
    wait(Server::start(config(directory))).unwrap()
}

/// The longest durations and the largest number are limited to what a clock and a counter take.
#[test]
fn no_setting_is_beyond_the_range_of_a_clock_or_a_counter() {
    let mut config = Config::default().with_first_zxid(i64::MAX).with_container_unused(Duration::MAX);
    config = config.with_container_check(Duration::MAX).with_tick(Duration::MAX);
    let server = wait(Server::start(config)).unwrap();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    client.create("/b", 1).unwrap();
    assert!(server.stats().zxid > i64::MAX / 2);
}

#[test]
fn everything_acknowledged_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    let store = server.store_id();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    client.create("/a/s-", 2).unwrap();
    client.create("/a/e-", 3).unwrap();
    client.create("/gone", 0).unwrap();
    client.delete("/gone");
    client.set("/a", &[9; 5_000]);
    client.call(SET_ACL, bytes().text("/a").acl(1 | 4 | 16, "world", "anyone").int(-1));
    client.call(CREATE_CONTAINER, bytes().create("/c", b"", 4));
    client.call(CREATE_TTL, bytes().create("/t", b"", 5).long(1_000_000));
    let before = wait(server.dump()).unwrap();
    let (session, zxid) = (client.session.clone(), server.stats().zxid);
    wait(server.shutdown()).unwrap();

    let server = start(directory.path());
    assert_eq!(wait(server.dump()).unwrap(), before);
    let raised = server.stats().zxid;
    assert_eq!((raised > zxid, server.store_id()), (true, store));
    let mut client = Client::resume(server.addr(), &session, zxid).expect("sessions survive");
    assert_eq!(client.create("/a/s-", 2).unwrap(), "/a/s-0000000002");
    assert_eq!(client.last_zxid, raised + 1);
    assert_eq!(client.set("/a", b"x"), -102, "access lists survive");
    let other = Client::connect(server.addr());
    assert!(other.session.id > session.id, "session ids are never used twice");
    client.close();
    assert_eq!(Client::connect(server.addr()).children("/a", false).unwrap(), ["s-0000000000", "s-0000000002"]);
}

/// A token is made from a zxid, and resources remember tokens for longer than a store lives.
#[test]
fn zxids_grow_although_the_store_was_deleted_restored_or_lost_with_its_memory() {
    let place = tempfile::tempdir().unwrap();
    let (data, backup) = (place.path().join("data"), place.path().join("backup"));
    let mut last = 0;
    let mut grow = |server: Server, what: &str| {
        let mut client = Client::connect(server.addr());
        let zxid = client.create2("/n-", 2).unwrap().1.czxid;
        assert!(zxid > last && zxid < 1 << 47, "{what}: {zxid} after {last}");
        last = zxid;
        wait(server.shutdown()).unwrap();
    };
    grow(start(&data), "new");
    std::fs::create_dir(&backup).unwrap();
    for entry in std::fs::read_dir(&data).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), backup.join(entry.file_name())).unwrap();
    }
    grow(start(&data), "started again");
    grow(start(&backup), "restored");
    std::fs::remove_dir_all(&data).unwrap();
    grow(start(&data), "deleted");
    grow(wait(Server::ephemeral()).unwrap(), "in memory");
    // It is durable before a client sees it: a clock that goes back later changes nothing.
    let server = start(&backup);
    let raised = server.stats().zxid;
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&backup).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    wait(server.shutdown()).unwrap();
    let logs = std::fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut logs = logs.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log."));
    assert!(logs.any(|log| {
        let bytes = std::fs::read(log).unwrap();
        bytes.windows(8).any(|window| window == raised.to_be_bytes())
    }));
}

/// Case 14: clients could not reach their sessions while the server was down.
#[test]
fn a_restart_gives_every_session_its_full_timeout_and_then_expires_it() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    let timeout = Duration::from_secs(1);
    let mut client = Client::connect_with(server.addr(), 1_000);
    client.create("/e", 1).unwrap();
    wait(server.shutdown()).unwrap();
    let restarted = std::time::Instant::now();
    let server = start(directory.path());
    let mut observer = Client::connect_with(server.addr(), 10_000);
    assert!(observer.exists("/e", true).is_some());
    assert_eq!(observer.event().kind, 2);
    assert!(restarted.elapsed() >= timeout);
}

#[test]
fn writers_share_their_fsyncs() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    let addr = server.addr();
    let writers: Vec<_> = (0..64)
        .map(|_| {
            std::thread::spawn(move || {
                let mut client = Client::connect(addr);
                for _ in 0..50 {
                    client.create("/n-", 2).unwrap();
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let stats = server.stats();
    assert_eq!((stats.nodes, stats.transactions), (4 + 64 * 50, 64 * 51));
    assert!(stats.commits * 4 < stats.transactions, "{} commits of {} transactions", stats.commits, stats.transactions);
}

#[test]
fn a_directory_that_cannot_be_used_is_refused_with_its_name_and_a_way_out() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        let error = wait(Server::start(config(path))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()) && !text.contains('\n'), "{text}");
        assert!(!error.hint().is_empty() && !error.hint().contains('\n'));
        error
    };

    let used = directory.path().join("used");
    let server = start(&used);
    assert!(matches!(refused(&used), ServerError::InUse { .. }));
    wait(server.shutdown()).unwrap();
    drop(start(&used));

    for (format, hint) in
        [("1", "the version that wrote it"), ("2", "the version that wrote it"), ("4", "newer version")]
    {
        std::fs::write(used.join("format"), format!("{format}\n")).unwrap();
        let ServerError::Format { found, supported: 3, .. } = refused(&used) else { panic!() };
        assert_eq!(found, format);
        assert!(refused(&used).hint().contains(hint));
    }
    std::fs::write(used.join("format"), "3\n").unwrap();
    std::fs::remove_file(used.join("state.redb")).unwrap();
    assert!(matches!(refused(&used), ServerError::Damaged { .. }));
    std::fs::write(used.join("state.redb"), b"this was a database once").unwrap();
    assert!(matches!(refused(&used), ServerError::Damaged { .. }));

    let whole = directory.path().join("whole");
    let server = start(&whole);
    let mut client = Client::connect(server.addr());
    (0..200).for_each(|_| drop(client.create("/n-", 2).unwrap()));
    wait(server.shutdown()).unwrap();
    let state = whole.join("state.redb");
    let intact = std::fs::read(&state).unwrap();
    for keep in [1, 100, 4_096, intact.len() / 2, intact.len() - 4_096] {
        std::fs::write(&state, &intact[..keep]).unwrap();
        let error = refused(&whole);
        assert!(
            matches!(error, ServerError::Damaged { .. } | ServerError::Disk { .. }),
            "{keep} bytes left: {error:?}"
        );
    }
    std::fs::write(&state, &intact).unwrap();
    drop(start(&whole));
    let log = std::fs::read_dir(&whole).unwrap().map(|entry| entry.unwrap().path());
    let log = log.filter(|path| path.to_str().unwrap().contains("log.")).collect::<Vec<_>>().pop().unwrap();
    std::fs::remove_file(&log).unwrap();
    let error = refused(&whole);
    assert!(
        error.to_string().ends_with(&format!("{} is missing", log.file_name().unwrap().to_str().unwrap())),
        "{error}"
    );

    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(refused(&file), ServerError::NotADirectory { .. }));
    assert!(matches!(refused(&file.join("below")), ServerError::NotADirectory { .. }));

    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "").unwrap();
    assert!(matches!(refused(&foreign), ServerError::Foreign { .. }));
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "the directory is unchanged");
    assert!(matches!(
        refused(Path::new("/proc/lockkeeper")),
        ServerError::Disk { .. } | ServerError::NoPermission { .. }
    ));
}

#[cfg(unix)]
#[test]
fn the_data_is_the_users_own() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    drop(start(&data));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("state.redb")), 0o600);
}

#[test]
fn an_address_that_cannot_be_used_is_refused() {
    let server = wait(Server::ephemeral()).unwrap();
    let taken = wait(Server::start(Config::default().with_listen(server.addr()))).unwrap_err();
    assert!(matches!(taken, ServerError::AddressInUse { .. }), "{taken}");
    assert_eq!(taken.to_string(), format!("address {} is in use", server.addr()));
    let open = "0.0.0.0:0".parse().unwrap();
    let remote = wait(Server::start(Config::default().with_listen(open))).unwrap_err();
    assert!(matches!(remote, ServerError::NotLoopback { .. }), "{remote}");
    let server = wait(Server::start(Config::default().with_listen(open).allow_remote(true))).unwrap();
    wait(server.shutdown()).unwrap();
    let elsewhere = "192.0.2.1:0".parse().unwrap();
    let foreign = wait(Server::start(Config::default().with_listen(elsewhere).allow_remote(true))).unwrap_err();
    assert!(matches!(foreign, ServerError::Listen { .. }), "{foreign}");
}

/// Not a test of its own: the process that the tests below kill. It runs only with the data directory in its
/// environment.
#[test]
fn serve_until_killed() {
    let Some(directory) = std::env::var_os("LOCKKEEPER_TEST_SERVE") else { return };
    #[cfg(target_os = "linux")]
    crate::device::keep_warnings();
    // A long restart on a busy machine must not expire the session.
    let timeouts = Duration::from_millis(200)..=Duration::from_secs(600);
    let config = config(Path::new(&directory)).with_session_timeouts(timeouts);
    let server = wait(Server::start(config)).unwrap();
    println!("\nserving {}", server.addr());
    let why = wait(server.stopped());
    println!("stopped {why}");
}

/// A server in a process of its own.
pub(crate) struct Victim {
    child: Child,
    pub(crate) addr: SocketAddr,
    output: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Victim {
    /// `wrap` is a shell command line that ends by running its arguments.
    pub(crate) fn start(directory: &Path, wrap: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", wrap, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "storage::serve_until_killed", "--nocapture"])
            .env("LOCKKEEPER_TEST_SERVE", directory)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let addr = loop {
            let line = output.next().expect("the server starts").unwrap();
            if let Some(addr) = line.strip_prefix("serving ") {
                break addr.parse().unwrap();
            }
        };
        Self { child, addr, output }
    }

    /// Returns why it stopped.
    pub(crate) fn said(&mut self) -> Option<String> {
        self.output.by_ref().map_while(Result::ok).find(|line| line.starts_with("stopped "))
    }

    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The acknowledged state of one writer.
#[derive(Default)]
struct Acknowledged {
    /// The version of each node, or `None` if its deletion was acknowledged.
    nodes: BTreeMap<String, Option<i32>>,
    /// The nodes that were not yet checked on a restarted server.
    fresh: Vec<String>,
    /// Nodes whose multi created two nodes or none, acknowledged or not.
    twins: Vec<String>,
    zxid: i64,
    session: Option<(Session, String)>,
}

impl Acknowledged {
    fn note(&mut self, path: &str, version: Option<i32>) {
        self.nodes.insert(path.to_owned(), version);
        self.fresh.push(path.to_owned());
    }
}

/// Creates, overwrites and deletes nodes until the connection breaks, and records what was acknowledged.
fn write_until_cut(addr: SocketAddr, writer: usize, known: &Mutex<Acknowledged>, stop: &AtomicBool) {
    let Some(mut client) = Client::open(socket(addr), 0, 600_000, 0, &[]) else { return };
    let known = || known.lock().unwrap();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let path = format!("/w{writer}-{:x}-{number}", client.session.id);
        let Ok(created) = client.try_call(CREATE, bytes().create(&path, &[7; 200], i32::from(number == 1))) else {
            return;
        };
        assert_eq!(created.error, 0);
        known().note(&path, Some(0));
        if number == 1 {
            let mut known = known();
            if let Some((_, older)) = known.session.replace((client.session.clone(), path)) {
                // It is deleted with its session, sooner or later.
                known.nodes.remove(&older);
            }
            continue;
        }
        let (request, version) = match number % 4 {
            0 => {
                // Until the answer arrives, both states are correct.
                known().nodes.remove(&path);
                (client.try_call(DELETE, bytes().text(&path).int(-1)), None)
            }
            1 => {
                known().twins.push(path.clone());
                let one = bytes().op(CREATE).create(&format!("{path}/one"), b"1", 0);
                let both = one.op(CREATE).create(&format!("{path}/two"), b"2", 0).end();
                (client.try_call(MULTI, both), Some(0))
            }
            _ => (client.try_call(SET_DATA, bytes().text(&path).buffer(b"2").int(0)), Some(1)),
        };
        let Ok(answer) = request else { return };
        assert_eq!(answer.error, 0);
        let mut known = known();
        if number % 4 == 1 {
            known.note(&format!("{path}/one"), Some(0));
            known.note(&format!("{path}/two"), Some(0));
        }
        known.note(&path, version);
        known.zxid = known.zxid.max(answer.zxid);
    }
}

/// Overwrites one node with much data until the connection breaks. So the log is folded every few rounds, and the kill
/// may hit a fold.
fn overwrite_until_cut(addr: SocketAddr, known: &Mutex<Acknowledged>, stop: &AtomicBool) {
    let Some(mut client) = Client::open(socket(addr), 0, 600_000, 0, &[]) else { return };
    if client.try_call(CREATE, bytes().create("/much", b"", 0)).is_err() {
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut answer) = client.try_call(SET_DATA, bytes().text("/much").buffer(&[7; 500_000]).int(-1)) else {
            return;
        };
        assert_eq!(answer.error, 0);
        let mut known = known.lock().unwrap();
        known.note("/much", Some(answer.stat().version));
        known.zxid = known.zxid.max(answer.zxid);
    }
}

/// `LOCKKEEPER_KILLS=n` kills n times; `cargo xtask crash` does.
#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    // Four writers with all operations, and one with much data.
    const MUCH: usize = 4;
    let known: Vec<_> = (0..=MUCH).map(|_| Arc::new(Mutex::new(Acknowledged::default()))).collect();
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (rounds, seed) = (number("LOCKKEEPER_KILLS").unwrap_or(8), number("LOCKKEEPER_SEED").unwrap_or(7));
    println!("LOCKKEEPER_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        let victim = Victim::start(directory.path(), "exec \"$@\"");
        let addr = victim.addr;
        check(addr, &known, false);
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = known
            .iter()
            .cloned()
            .enumerate()
            .map(|(writer, known)| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || match writer {
                    MUCH => overwrite_until_cut(addr, &known, &stop),
                    _ => write_until_cut(addr, writer, &known, &stop),
                })
            })
            .collect();
        let acknowledged = || known[..MUCH].iter().map(|known| known.lock().unwrap().fresh.len()).sum::<usize>();
        // Wait for all of them: the server is about to be killed.
        let all = || known.iter().all(|known| !known.lock().unwrap().fresh.is_empty());
        until("some writes are acknowledged", || all() && acknowledged() > 20);
        // Kill at a random moment.
        std::thread::sleep(Duration::from_micros(rng.u64(..20_000)));
        victim.kill();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        if round % 50 == 49 {
            println!("killed {} times", round + 1);
        }
    }
    let victim = Victim::start(directory.path(), "exec \"$@\"");
    check(victim.addr, &known, true);
    victim.kill();
    let nodes: usize = known.iter().map(|known| known.lock().unwrap().nodes.len()).sum();
    println!("killed {rounds} times; all of {nodes} acknowledged nodes are as they were left");
}

/// Compares the state of a restarted server with what was acknowledged since the last check, or ever.
fn check(addr: SocketAddr, known: &[Arc<Mutex<Acknowledged>>], all: bool) {
    let mut client = Client::connect(addr);
    // Every answer contains the last zxid.
    assert!(client.exists("/", false).is_some());
    for known in known {
        let mut known = known.lock().unwrap();
        let fresh = std::mem::take(&mut known.fresh);
        let asked = if all { known.nodes.keys().cloned().collect() } else { fresh };
        for path in asked {
            let Some(version) = known.nodes.get(&path) else { continue };
            match (client.exists(&path, false), version) {
                (Some(stat), Some(version)) => assert!(stat.version >= *version, "{path} went back"),
                (None, None) => {}
                (found, _) => panic!("{path}: expected version {version:?}, found {found:?}"),
            }
        }
        for path in std::mem::take(&mut known.twins) {
            let [one, two] = ["one", "two"].map(|twin| client.exists(&format!("{path}/{twin}"), false).is_some());
            assert_eq!(one, two, "half of a multi below {path}");
        }
        assert!(client.last_zxid >= known.zxid, "time went back");
        if let Some((session, ephemeral)) = &known.session {
            let mut again = Client::resume(addr, session, known.zxid).expect("an acknowledged session is kept");
            assert_eq!(again.exists(ephemeral, false).unwrap().owner, session.id);
        }
    }
}

/// Full disks, simulated by a limit on the size of a file. With a limit of 2 MB the log reaches it first. With 40 MB
/// the snapshot reaches it, and the log grows until it does as well.
#[cfg(unix)]
#[test]
fn a_full_disk_stops_the_server_and_loses_nothing_acknowledged() {
    assert!((10..21).contains(&fill(4_096)));
    assert!(fill(80_000) > 450, "the log must go on when the snapshot cannot grow");
}

/// Returns how many nodes of 100 kB can be created before a limit, in blocks of 512 bytes, is reached.
#[cfg(unix)]
fn fill(limit: u32) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let mut victim = Victim::start(directory.path(), &format!("trap '' XFSZ; ulimit -f {limit}; exec \"$@\""));
    let mut client = Client::connect(victim.addr);
    let mut acknowledged = Vec::new();
    while let Ok(mut answer) = client.try_call(CREATE, bytes().create("/n-", &[7; 100_000], 2)) {
        assert_eq!(answer.error, 0);
        acknowledged.push(answer.text());
        assert!(acknowledged.len() < 2_000, "the limit does not work");
    }
    assert_eq!(victim.said(), Some(format!("stopped no space left for {}", directory.path().display())));
    assert!(victim.child.wait().unwrap().success());
    let server = start(directory.path());
    let mut client = Client::connect(server.addr());
    for path in &acknowledged {
        assert!(client.exists(path, false).is_some(), "{path} was acknowledged");
    }
    client.create("/works-again", 0).unwrap();
    acknowledged.len()
}

/// One changed byte of the state, or a state cut short: the server starts with the exact state, or reports that the
/// directory is damaged. It never starts with another state.
#[test]
fn damaged_data_is_refused_or_harmless_but_never_believed() {
    let directory = tempfile::tempdir().unwrap();
    let start = |path: &std::path::Path| wait(Server::start(Config::default().with_directory(path)));
    let (expected, sessions) = {
        let server = start(directory.path()).unwrap();
        let mut client = Client::connect(server.addr());
        for n in 0..300 {
            let data = vec![u8::try_from(n % 251).unwrap(); n];
            assert_eq!(client.call(CREATE, bytes().create(&format!("/n{n:03}"), &data, 0)).error, 0);
        }
        let told = (wait(server.dump()).unwrap(), wait(server.sessions()).unwrap());
        wait(server.shutdown()).unwrap();
        told
    };
    let whole = std::fs::read(directory.path().join("state.redb")).unwrap();
    // If the last fold cannot be read, redb goes back to the one before, and the log after that one is gone.
    let is_named =
        |what: &str| what.contains("state.redb") || what.starts_with("log.") && what.ends_with(" is missing");
    let mut refused = 0;
    // The log is empty; the store's own tests cut and damage it.
    let copy_of_all = || {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        copy
    };
    // Every byte where a page begins or ends; `cargo xtask crash --cuts` tries all bytes.
    let every = std::env::var_os("LOCKKEEPER_CUTS").is_some();
    let copy = copy_of_all();
    let state = copy.path().join("state.redb");
    let lengths: Vec<usize> = match every {
        true => (0..whole.len()).rev().collect(),
        false => {
            (0..whole.len()).step_by(32 << 10).flat_map(|at| [at + 1, at]).filter(|at| *at < whole.len()).collect()
        }
    };
    println!("{} bytes, cut at {} places", whole.len(), lengths.len());
    for keep in lengths {
        std::fs::write(&state, &whole[..keep]).unwrap();
        match start(copy.path()) {
            Ok(server) => assert_eq!(wait(server.dump()).unwrap(), expected, "{keep} bytes left"),
            Err(ServerError::Damaged { path, what }) => {
                assert!(path == copy.path() && is_named(&what), "{keep} bytes left: {what}");
            }
            Err(error) => panic!("{keep} bytes left: {error:?}"),
        }
    }
    for seed in 0..if every { 2_000 } else { 100 } {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut damaged = whole.clone();
        let at = rng.usize(..whole.len());
        if seed % 10 == 0 {
            damaged.truncate(at);
        } else {
            damaged[at] ^= 1 << rng.u8(..8);
        }
        let copy = copy_of_all();
        std::fs::write(copy.path().join("state.redb"), damaged).unwrap();
        match start(copy.path()) {
            Ok(server) => {
                assert_eq!(wait(server.dump()).unwrap(), expected, "seed {seed}, byte {at}");
                assert_eq!(wait(server.sessions()).unwrap(), sessions, "seed {seed}, byte {at}");
            }
            Err(ServerError::Damaged { path, what }) => {
                refused += 1;
                assert!(path == copy.path() && is_named(&what), "{what}");
            }
            Err(error) => panic!("seed {seed}, byte {at}: {error:?}"),
        }
    }
    assert!(refused > 10, "{refused}");
}

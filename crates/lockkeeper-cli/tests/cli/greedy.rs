//! Clients that want more than their share: the server's memory, descriptors and log stay bounded, and other clients are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::*;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const SET_ACL: i32 = 7;
const GET_CHILDREN: i32 = 8;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const CREATE_TTL: i32 = 21;
const MULTI_READ: i32 = 22;
const AUTH: i32 = 100;
const GET_EPHEMERALS: i32 = 103;
const COUNT: i32 = 104;
const SET_WATCHES: i32 = 105;
const ADD_WATCH: i32 = 106;
const CLOSE: i32 = -11;
/// The longest frame of the server.
const FRAME: usize = 1_048_575;

/// Bytes of a request.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn int(mut self, number: i32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }
    fn flag(mut self, flag: bool) -> Self {
        self.0.push(u8::from(flag));
        self
    }
    fn buffer(mut self, bytes: &[u8]) -> Self {
        self = self.int(i32::try_from(bytes.len()).unwrap());
        self.0.extend(bytes);
        self
    }
    fn long(mut self, number: i64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }
    fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
    fn list<'a>(self, texts: impl ExactSizeIterator<Item = &'a String>) -> Self {
        let with_len = self.int(i32::try_from(texts.len()).unwrap());
        texts.fold(with_len, |bytes, text| bytes.buffer(text.as_bytes()))
    }
    fn create(path: &str, data: &[u8]) -> Self {
        let acl = Bytes::default().buffer(path.as_bytes()).buffer(data).int(1).int(31);
        acl.buffer(b"world").buffer(b"anyone").int(0)
    }
}

/// A connection of a greedy client, which sends what it likes.
struct Greedy(TcpStream);

impl Greedy {
    fn connect(address: &str) -> Option<Self> {
        let mut greedy = Self(TcpStream::connect(address).ok()?);
        greedy.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let hello = Bytes::default().int(0).int(0).int(0).int(60_000).int(0).int(0).buffer(&[0; 16]);
        greedy.send(&hello.0).ok()?;
        greedy.receive().ok()?;
        Some(greedy)
    }

    fn send(&mut self, body: &[u8]) -> std::io::Result<()> {
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        self.0.write_all(&[&len, body].concat())
    }

    fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len)?;
        let mut body = vec![0; u32::from_be_bytes(len) as usize];
        self.0.read_exact(&mut body)?;
        Ok(body)
    }

    /// Returns the error of the answer.
    fn ask(&mut self, opcode: i32, body: Bytes) -> i32 {
        self.send(&[Bytes::default().int(7).int(opcode).0, body.0].concat()).unwrap();
        i32::from_be_bytes(self.receive().unwrap()[12..16].try_into().unwrap())
    }
}

/// Asks for the data of a node many times at once.
fn reads(path: &str, count: usize) -> Bytes {
    let op = |ops: Bytes, _| ops.int(4).flag(false).int(-1).buffer(path.as_bytes()).flag(false);
    (0..count).fold(Bytes::default(), op).int(-1).flag(true).int(-1)
}

/// Returns the peak of the process's memory in KiB, and the number of its descriptors.
fn taken(pid: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse().unwrap();
    (peak, std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// Random legal requests of one client, the same for the same seed.
struct Greed {
    random: u64,
    /// Names for nodes, which others create and delete too.
    paths: Vec<String>,
}

impl Greed {
    fn new(seed: u64) -> Self {
        let mut greed = Self { random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, paths: Vec::new() };
        for n in 0..40 {
            let depth = [1, 1, 2, 2, 2, 3, 8, 60][greed.below(8)];
            let name = "n".repeat([1, 1, 5, 20, 50, 400][greed.below(6)].min(3_900 / depth));
            let path = (1..depth).map(|_| format!("/{name}")).chain([format!("/{}", n % 20)]).collect();
            greed.paths.push(path);
        }
        greed
    }

    fn below(&mut self, most: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 16).unwrap() % most
    }

    fn path(&mut self) -> String {
        let at = self.below(self.paths.len());
        let path = self.paths[at].clone();
        // All above it are needed, so nodes near the root are the most frequent ones.
        let names = path.matches('/').count();
        let keep = 1 + self.below(names).min(self.below(names));
        path.split('/').take(keep + 1).collect::<Vec<_>>().join("/")
    }

    /// A length up to a frame: a short one, one of any order of magnitude, or a long one.
    fn len(&mut self) -> usize {
        let most = 1 << self.below(21);
        self.below(most.min(FRAME - 8_000))
    }

    fn acl(&mut self) -> Bytes {
        if self.below(4) > 0 {
            return Bytes::default().int(1).int(31).buffer(b"world").buffer(b"anyone");
        }
        let count = 1 + self.below(127);
        let entry = |list: Bytes, n| list.int(31).buffer(b"ip").buffer(format!("10.0.0.{n}/31").as_bytes());
        let others = (0..count).fold(Bytes::default().int(i32::try_from(count).unwrap() + 1), entry);
        others.int(31).buffer(b"world").buffer(b"anyone")
    }

    fn create(&mut self, len: usize) -> (i32, Bytes) {
        let (path, data) = (self.path(), vec![7; len]);
        let (opcode, flags) =
            [(CREATE, 0), (CREATE, 0), (CREATE, 1), (CREATE, 2), (CREATE, 3), (CREATE_TTL, 5)][self.below(6)];
        let create = Bytes::default().buffer(path.as_bytes()).buffer(&data).and(self.acl()).int(flags);
        (opcode, if opcode == CREATE_TTL { create.long(1 + self.below(60_000) as i64) } else { create })
    }

    fn write(&mut self, len: usize) -> (i32, Bytes) {
        match self.below(8) {
            0..4 => self.create(len),
            4 => (DELETE, Bytes::default().buffer(self.path().as_bytes()).int(-1)),
            5 | 6 => (SET_DATA, Bytes::default().buffer(self.path().as_bytes()).buffer(&vec![8; len]).int(-1)),
            _ => (CHECK, Bytes::default().buffer(self.path().as_bytes()).int(-1)),
        }
    }

    /// Many operations in one request: often the same one again and again, which does not fail.
    fn many(&mut self, mut one: impl FnMut(&mut Self) -> (i32, Bytes)) -> Bytes {
        let (most, mut ops) = (self.len(), Bytes::default());
        let (again, (opcode, body)) = (self.below(3) > 0, one(self));
        let mut next = (opcode, body);
        while ops.0.len() + next.1.0.len() + 40 < most {
            ops = ops.int(next.0).flag(false).int(-1).and(Bytes(next.1.0.clone()));
            if !again {
                next = one(self);
            }
        }
        ops.int(-1).flag(true).int(-1)
    }

    fn request(&mut self) -> (i32, Bytes) {
        let path = self.path();
        let named = || Bytes::default().buffer(path.as_bytes());
        match self.below(24) {
            0..6 => {
                let len = self.len();
                match self.write(len) {
                    (CHECK, _) => (EXISTS, named().flag(true)),
                    write => write,
                }
            }
            6..11 => {
                let kind = self.below(4);
                let ops = self.many(|greed| {
                    let len = [0, 0, 20, 1_000][greed.below(4)];
                    match kind {
                        0 => (SET_DATA, Bytes::default().buffer(greed.path().as_bytes()).buffer(&vec![8; len]).int(-1)),
                        1 => (CHECK, Bytes::default().buffer(greed.path().as_bytes()).int(-1)),
                        // Each one has another name.
                        2 => {
                            let path = greed.path();
                            (
                                CREATE,
                                Bytes::default()
                                    .buffer(path.as_bytes())
                                    .buffer(&vec![7; len])
                                    .and(greed.acl())
                                    .int(2 + greed.below(2) as i32),
                            )
                        }
                        _ => greed.write(len),
                    }
                });
                (MULTI, ops)
            }
            11..14 => {
                let opcode = [GET_DATA, GET_CHILDREN][self.below(2)];
                (MULTI_READ, self.many(|greed| (opcode, Bytes::default().buffer(greed.path().as_bytes()).flag(false))))
            }
            14 => (SET_ACL, named().and(self.acl()).int(-1)),
            15 => (COUNT, named()),
            16 => (GET_EPHEMERALS, Bytes::default().buffer(b"/")),
            17 => (GET_CHILDREN, named().flag(true)),
            18 => (GET_DATA, named().flag(true)),
            19 | 20 => (ADD_WATCH, named().int(self.below(2) as i32)),
            21 => {
                let count = self.len() / 60;
                let paths: Vec<String> = (0..count).map(|n| format!("{}-{n}", &path[..path.len().min(40)])).collect();
                let list = || Bytes::default().int(0);
                let watches =
                    Bytes::default().long(i64::MAX).and(list()).list(paths.iter()).and(list()).and(list()).and(list());
                (SET_WATCHES, watches)
            }
            22 => (CLOSE, Bytes::default()),
            // The connection ends without its session.
            _ => (0, Bytes::default()),
        }
    }
}

/// Sends random requests until it is told to stop. Reads the answers of some of its connections late, or never.
fn greedy(address: &str, seed: u64, over: &AtomicBool) {
    let mut greed = Greed::new(seed);
    while !over.load(Ordering::Relaxed) {
        let Some(mut client) = Greedy::connect(address) else { continue };
        let (patience, mut unread) = (greed.below(30), 0);
        while !over.load(Ordering::Relaxed) {
            let (opcode, body) = greed.request();
            // It is a legal request, but the answer would come when the server has heard nothing for too long.
            let sent = opcode != 0 && client.send(&[Bytes::default().int(7).int(opcode).0, body.0].concat()).is_ok();
            unread += 1;
            if !sent || (unread > patience && client.receive().is_err()) {
                break;
            }
        }
    }
}

/// Returns the statistics of the server's thread that carries out the requests.
fn statistics(pid: u32) -> PathBuf {
    let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| thread.unwrap().path());
    threads.find(|thread| text(&thread.join("comm")).starts_with("lockkeeper-serv")).unwrap().join("schedstat")
}

/// Returns for how long a thread has run, and for how long it has waited for a processor.
fn ran_and_queued(statistics: &Path) -> (Duration, Duration) {
    let text = text(statistics);
    let mut times = text.split(' ').map(|nanos| Duration::from_nanos(nanos.parse().unwrap_or(0)));
    (times.next().unwrap(), times.next().unwrap())
}

/// How a quiet client was served.
#[derive(Default)]
struct Served {
    count: u64,
    /// The longest time that it waited.
    longest: Duration,
    /// The longest time for which the server worked meanwhile, whatever else used the processors and the disk. Not while the client
    /// itself waited for a processor, because the answer may have been there already.
    busiest: Duration,
}

/// Asks for a write and a read again and again.
fn quiet(address: &str, pid: u32, over: &AtomicBool) -> Served {
    let mut quiet = Greedy::connect(address).unwrap();
    assert_eq!(quiet.ask(CREATE, Bytes::create("/quiet", b"")), 0);
    let (mut served, server, client) = (Served::default(), statistics(pid), Path::new("/proc/thread-self/schedstat"));
    let times = || (ran_and_queued(&server).0, ran_and_queued(client).1);
    while !over.load(Ordering::Relaxed) {
        for (opcode, body) in
            [(SET_DATA, Bytes::default().buffer(b"").int(-1)), (GET_DATA, Bytes::default().flag(false))]
        {
            let ((ran, queued), asked) = (times(), Instant::now());
            assert_eq!(quiet.ask(opcode, Bytes::default().buffer(b"/quiet").and(body)), 0);
            served.longest = served.longest.max(asked.elapsed());
            let (ran_then, queued_then) = times();
            served.busiest = served.busiest.max((ran_then - ran).saturating_sub(queued_then - queued));
            served.count += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    served
}

/// What clients may ask for, in any order, up to a frame: the server's size stays within its limits, and a client that asks for
/// little is served. For how long the server works meanwhile is judged with LOCKKEEPER_GREEDY_SECONDS only, by `cargo xtask deep`;
/// each request's work is judged always.
#[test]
fn random_legal_requests_make_the_server_neither_large_nor_slow() {
    let seconds: Option<u64> = std::env::var("LOCKKEEPER_GREEDY_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    let home = Home::new();
    let mut serve = Command::new(BINARY);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--data", "d", "--words", "all"]);
    serve.args(["--max-data", "64M", "--max-answer", "8M", "--max-nodes", "100000", "--max-watches", "100000"]);
    home.prepare(&mut serve);
    let mut running = Running::start(&mut serve);
    let (address, pid) = (running.line(), running.child.id());
    let (before, _) = taken(pid);
    let over = AtomicBool::new(false);
    let Served { count, longest, busiest } = std::thread::scope(|scope| {
        for seed in 1..=8 {
            let (address, over) = (&address, &over);
            scope.spawn(move || greedy(address, seed, over));
        }
        let waited = scope.spawn(|| quiet(&address, pid, &over));
        std::thread::sleep(Duration::from_secs(seconds.unwrap_or(4)));
        over.store(true, Ordering::Relaxed);
        waited.join().unwrap()
    });
    let (peak, _) = taken(pid);
    let mut words = TcpStream::connect(&address).unwrap();
    words.write_all(b"mntr").unwrap();
    let mut numbers = String::new();
    words.read_to_string(&mut numbers).unwrap();
    let number = |name: &str| -> u64 {
        let value =
            numbers.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {numbers}"));
        value.trim().parse().unwrap()
    };
    let (work, grown) = (number("zk_max_request_work"), (peak - before) >> 10);
    let nodes = number("zk_znode_count");
    eprintln!(
        "{count} requests of a quiet client, the longest {longest:?}, in {busiest:?} of the server's work; at most {work} units, \
         {grown} MiB more; {nodes} nodes at the end"
    );
    assert!(count >= 2, "it was served");
    // A request, the answers' bytes and the events that it was not refused for, and the end of a session.
    assert!(work < 900_000, "{work} units");
    // Data, 4 answers of the longest length, nodes, unfinished requests, batches and logs, and a quarter for what the allocator keeps, as
    // the unit file's MemoryMax has.
    let limits = 64 + 4 * 8 + 40 + 64 + 64;
    assert!(grown < limits + limits / 4, "{grown} MiB more");
    if seconds.is_some() {
        assert!(busiest < Duration::from_millis(100), "a quiet client waited for {busiest:?} of the server's work");
    }
}

/// The limits of the server here: 160 descriptors, 8 MiB of data, 4 MiB for an answer.
#[test]
fn greedy_clients_take_no_more_than_the_limits_say() {
    let home = Home::new();
    let mut serve = Command::new("sh");
    serve.args(["-c", "ulimit -n 160; exec \"$0\" \"$@\"", BINARY, "serve", "--listen", "127.0.0.1:0", "--data", "d"]);
    serve.args(["--max-data", "8M", "--max-answer", "4M", "--max-path", "512K"]);
    home.prepare(&mut serve);
    let mut running = Running::start(&mut serve);
    let (address, pid) = (running.line(), running.child.id());
    let (before, _) = taken(pid);

    // Data, names, watched paths and identities share one budget.
    let mut greedy = Greedy::connect(&address).unwrap();
    assert_eq!(greedy.ask(CREATE, Bytes::create("/big", &[7; 1_000_000])), 0);
    let refused = |asked: &mut dyn FnMut(usize) -> i32| (0..20).map(asked).find(|error| *error != 0);
    let name = |at: usize| format!("/{at}{}", "n".repeat(450_000));
    // A path may be so long here, which it is not by default.
    assert_eq!(refused(&mut |at| greedy.ask(CREATE, Bytes::create(&name(at), b""))), Some(-125));
    assert_eq!(
        refused(&mut |at| greedy.ask(ADD_WATCH, Bytes::default().buffer(name(at).as_bytes()).int(0))),
        Some(-125)
    );
    // 2 200 answers of 1 MB for a request of 46 KB.
    assert_eq!(greedy.ask(MULTI_READ, reads("/big", 2_200)), -5);
    let auth = |at: usize| Bytes::default().int(0).buffer(b"digest").buffer(format!("{at}:x").as_bytes());
    assert_eq!(refused(&mut |at| greedy.ask(AUTH, auth(at))), Some(-115));

    // Clients that read none of their answers.
    let mut unread: Vec<Greedy> = (0..20).filter_map(|_| Greedy::connect(&address)).collect();
    for client in &mut unread {
        client.send(&[Bytes::default().int(7).int(MULTI_READ).0, reads("/big", 3).0].concat()).unwrap();
    }
    // More connections than descriptors; the server closes those that do not fit.
    let idle: Vec<_> = (0..300).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    assert!(idle.len() > 200, "{}", idle.len());
    drop(unread);
    let (peak, descriptors) = taken(pid);
    assert!(descriptors <= 160 - 40, "a reserve for the store: {descriptors}");
    // The data, 4 answers of the longest length, 64 KiB for each of the others, and what debug builds take.
    assert!(peak - before < (8 + 4 * 4 + 2 + 14) << 10, "{before} KiB before, {peak} KiB at most");
    drop(idle);

    // The log rolls over and the store opens its next file; the owner's commands work.
    let owner = Home::with_servers(&address);
    until("there is room again", || owner.output(&["run", "a", "--", "true"]).status.success());
    let mut writer = Greedy::connect(&address).unwrap();
    assert_eq!(writer.ask(CREATE, Bytes::create("/small", &[])), 0);
    for _ in 0..45 {
        let set = Bytes::default().buffer(b"/big").buffer(&[8; 400_000]).int(-1);
        assert_eq!(writer.ask(5, set), 0);
    }
    let output = owner.command(&["run", "a", "--", "echo", "done"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"done\n"[..]), "{output:?}");
}

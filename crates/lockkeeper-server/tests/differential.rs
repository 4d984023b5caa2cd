//! Runs one random script on Apache's server and on ours, and compares every answer, error and event in order.
//!
//! A script has two sessions that take turns below a node of their own. Values that differ between servers are
//! normalized before they are compared: zxids count from the script's first one, sessions have names, and the order of
//! sets is ignored. A failure prints the seed and the script; `LOCKKEEPER_SEED=n` repeats that script.

#![cfg(deep)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;
use std::time::Duration;

use lockkeeper_server::{Config, Server, digest};
use lockkeeper_testkit::apache::{Apache, Distribution, Options};

#[path = "it/client.rs"]
#[allow(dead_code, reason = "shared with the tests of our server alone, which use all of it")]
mod client;

use client::*;

/// The protocol level that our server reports; other versions differ in more ways.
const LEVEL: &str = "3.9.5";
/// The number of scripts, and of requests in each.
const SCRIPTS: u64 = 2_000;
const STEPS: usize = 40;

/// One request, the same for both servers.
#[derive(Clone, Debug)]
struct Step {
    /// The session that sends it.
    who: usize,
    opcode: i32,
    body: Bytes,
    /// A description for people.
    text: String,
}

struct Author {
    rng: fastrand::Rng,
    root: String,
}

impl Author {
    fn path(&mut self) -> String {
        let tail = ["", "/a", "/a", "/b", "/a/a", "/a/b", "/b/a", "/a/a/a", "/a/s0000000001", "/a/s0000000002"];
        format!("{}{}", self.root, tail[self.rng.usize(..tail.len())])
    }

    fn version(&mut self) -> i32 {
        [-1, -1, -1, 0, 1, 2][self.rng.usize(..6)]
    }

    fn acl(&mut self, bytes: Bytes) -> Bytes {
        let user = digest(b"u0:p");
        match self.rng.u8(..28) {
            20 | 24 => bytes.acl(31, "digest", &user),
            21 | 25 => bytes.acl(31, "auth", ""),
            22 => bytes.int(2).int(1).text("world").text("anyone").int(31).text("digest").text(&user),
            23 => bytes.acl(1 + self.rng.i32(0..31), "world", "anyone"),
            19 => bytes.acl(31, "digest", "no-hash"),
            18 if self.rng.bool() => bytes.int(0),
            17 => bytes.acl(31, "ip", "127.0.0.1/8"),
            _ => bytes.open_acl(),
        }
    }

    fn data(&mut self) -> Vec<u8> {
        vec![b'x'; self.rng.usize(..5)]
    }

    /// Opcode, body without header, text.
    fn write(&mut self) -> (i32, Bytes, String) {
        let path = self.path();
        match self.rng.u8(..10) {
            0..5 => {
                let flags = self.rng.i32(0..8);
                let opcode = match flags {
                    4 => CREATE_CONTAINER,
                    5 | 6 => CREATE_TTL,
                    _ => [CREATE, CREATE2][self.rng.usize(..2)],
                };
                let name = if matches!(flags, 2 | 3 | 6) { format!("{}/a/s", self.root) } else { path };
                let flags = if flags == 7 { 0 } else { flags };
                let data = self.data();
                let body = self.acl(bytes().text(&name).buffer(&data)).int(flags);
                let body = if opcode == CREATE_TTL { body.long(1_000_000) } else { body };
                (opcode, body, format!("create({opcode}) {name} {flags}"))
            }
            5..8 => {
                // The script's root stays, otherwise the rest of the script would have little effect.
                let path = if path == self.root { format!("{path}/a") } else { path };
                let version = self.version();
                (DELETE, bytes().text(&path).int(version), format!("delete {path} {version}"))
            }
            _ => {
                let (version, data) = (self.version(), self.data());
                let text = format!("set {path} {} {version}", data.len());
                (SET_DATA, bytes().text(&path).buffer(&data).int(version), text)
            }
        }
    }

    fn step(&mut self) -> Step {
        let who = self.rng.usize(..2);
        let path = self.path();
        let watch = self.rng.bool();
        let (opcode, body, text) = match self.rng.u8(..60) {
            0..22 => self.write(),
            22..26 => (EXISTS, bytes().text(&path).flag(watch), format!("exists {path} {watch}")),
            26..30 => (GET_DATA, bytes().text(&path).flag(watch), format!("get {path} {watch}")),
            30..33 => (GET_CHILDREN, bytes().text(&path).flag(watch), format!("children {path} {watch}")),
            33..36 => (GET_CHILDREN2, bytes().text(&path).flag(watch), format!("children2 {path} {watch}")),
            36 => (GET_ACL, bytes().text(&path), format!("acl {path}")),
            37 => {
                let version = self.version();
                (SET_ACL, self.acl(bytes().text(&path)).int(version), format!("set acl {path} {version}"))
            }
            38 => (GET_ALL_CHILDREN_NUMBER, bytes().text(&path), format!("count {path}")),
            39 => (GET_EPHEMERALS, bytes().text(&path), format!("ephemerals {path}")),
            40 => (SYNC, bytes().text(&path), format!("sync {path}")),
            41..48 => {
                let mut body = bytes();
                let mut text = "multi".to_owned();
                for _ in 0..self.rng.usize(..5) {
                    let (opcode, op, what) = if self.rng.u8(..5) == 0 {
                        let (path, version) = (self.path(), self.version());
                        (CHECK, bytes().text(&path).int(version), format!("check {path} {version}"))
                    } else {
                        self.write()
                    };
                    body = body.op(opcode);
                    body.0.extend(op.0);
                    let _ = write!(text, " [{what}]");
                }
                (MULTI, body.end(), text)
            }
            48 => {
                let other = self.path();
                let body = bytes().op(GET_DATA).text(&path).flag(false).op(GET_CHILDREN).text(&other).flag(false);
                (MULTI_READ, body.end(), format!("multi read {path} {other}"))
            }
            49..51 => {
                let mode = self.rng.i32(0..2);
                (ADD_WATCH, bytes().text(&path).int(mode), format!("add watch {path} {mode}"))
            }
            51..54 => {
                let (opcode, kind) = ([CHECK_WATCHES, REMOVE_WATCHES][self.rng.usize(..2)], 1 + self.rng.i32(0..5));
                (opcode, bytes().text(&path).int(kind), format!("watches({opcode}) {path} {kind}"))
            }
            54..56 => {
                let seen = [0, i64::MAX][self.rng.usize(..2)];
                let (a, b, c, d, e) = (self.path(), self.path(), self.path(), self.path(), self.path());
                let lists = bytes().long(seen).texts(&[&a]).texts(&[&b]).texts(&[&c]);
                let text = format!("set watches {seen} {a} {b} {c} {d} {e}");
                if watch { (SET_WATCHES, lists, text) } else { (SET_WATCHES2, lists.texts(&[&d]).texts(&[&e]), text) }
            }
            56 => {
                let user = format!("u{}:p", self.rng.u8(..2));
                (AUTH, bytes().int(0).text("digest").text(&user), format!("auth {user}"))
            }
            57 => (WHO_AM_I, bytes(), "who am i".to_owned()),
            58 => (RECONFIG, bytes().int(-1).int(-1).int(-1).long(-1), "reconfig".to_owned()),
            _ => (PING, bytes(), "ping".to_owned()),
        };
        Step { who, opcode, body, text }
    }
}

/// One server's side of a script.
struct Stage {
    clients: [Client; 2],
    base: i64,
}

impl Stage {
    fn open(addr: std::net::SocketAddr, root: &str) -> Self {
        let clients = [(); 2].map(|()| Client::connect_with(addr, 60_000));
        let mut stage = Self { clients, base: 0 };
        stage.base = stage.clients[0].create2(root, 0).unwrap().1.czxid;
        // Existing nodes, otherwise most answers would be `NoNode`.
        for name in ["a", "a/a", "b"] {
            stage.clients[0].create(&format!("{root}/{name}"), 0).unwrap();
        }
        stage
    }

    fn zxid(&self, zxid: i64) -> String {
        // Stats from before the script are only known to be older than it.
        if zxid < self.base { "before".to_owned() } else { (zxid - self.base).to_string() }
    }

    fn session(&self, id: i64) -> String {
        match self.clients.iter().position(|client| client.session.id == id) {
            Some(at) => format!("session {at}"),
            None => format!("{id:#x}"),
        }
    }

    fn stat(&self, answer: &mut Answer) -> String {
        let stat = answer.stat();
        let (czxid, mzxid, pzxid) = (self.zxid(stat.czxid), self.zxid(stat.mzxid), self.zxid(stat.pzxid));
        format!(
            "{{c {czxid} m {mzxid} p {pzxid} versions {} {} {} owner {} data {} children {} changed {}}}",
            stat.version,
            stat.cversion,
            stat.aversion,
            self.session(stat.owner),
            stat.data_length,
            stat.num_children,
            stat.mtime > stat.ctime && stat.mzxid > stat.czxid || stat.mtime == stat.ctime
        )
    }

    /// Describes the answer to one operation after its header.
    fn body(&self, opcode: i32, answer: &mut Answer) -> String {
        let sorted = |mut texts: Vec<String>| {
            texts.sort();
            format!("{texts:?}")
        };
        match opcode {
            CREATE => answer.text(),
            CREATE2 | CREATE_CONTAINER | CREATE_TTL => format!("{} {}", answer.text(), self.stat(answer)),
            EXISTS | SET_DATA | SET_ACL => self.stat(answer),
            GET_DATA => format!("{:?} {}", answer.buffer(), self.stat(answer)),
            GET_CHILDREN => sorted(answer.texts()),
            GET_CHILDREN2 => format!("{} {}", sorted(answer.texts()), self.stat(answer)),
            GET_EPHEMERALS => sorted(answer.texts()),
            GET_ALL_CHILDREN_NUMBER | ADD_WATCH => answer.int().to_string(),
            SYNC => answer.text(),
            GET_ACL => {
                let list = (0..answer.int()).map(|_| (answer.int(), answer.text(), answer.text()));
                let list: Vec<_> = list.collect();
                format!("{list:?} {}", self.stat(answer))
            }
            WHO_AM_I => {
                let count = answer.int();
                sorted((0..count).map(|_| format!("{} {:?}", answer.text(), answer.buffer())).collect())
            }
            MULTI | MULTI_READ => {
                let mut results = String::new();
                loop {
                    let (kind, done, error) = (answer.int(), answer.flag(), answer.int());
                    if done {
                        return format!("{results}end {kind} {error}");
                    }
                    let result = if kind == -1 { answer.int().to_string() } else { self.body(kind, answer) };
                    let _ = write!(results, "[{kind} {error} {result}] ");
                }
            }
            _ => String::new(),
        }
    }

    /// Runs a step and describes everything that a client can see of it.
    fn play(&mut self, step: &Step) -> String {
        let asker = &mut self.clients[step.who];
        asker.send(step.opcode, step.body.clone());
        let mut answer = asker.answer();
        let mut told = match step.opcode {
            // These are answered without reading the tree.
            PING | AUTH => format!("error {}", answer.error),
            _ => format!("zxid {} error {}", self.zxid(answer.zxid), answer.error),
        };
        if answer.error == 0 {
            let _ = write!(told, " {}", self.body(step.opcode, &mut answer));
        }
        if !answer.is_finished() {
            told.push_str(" and more");
        }
        for who in 0..2 {
            self.clients[who].ping();
            let events: Vec<_> = self.clients[who].events.drain(..).collect();
            let zxids = std::mem::take(&mut self.clients[who].event_zxids);
            for ((_, event), zxid) in events.into_iter().zip(zxids) {
                let _ = write!(told, "\n    session {who} hears {} {} {}", event.kind, event.path, self.zxid(zxid));
            }
        }
        told
    }

    /// Closes the first session and describes the events in the second one.
    fn close(self, root: &str) -> String {
        let [first, mut second] = self.clients;
        first.close();
        second.ping();
        let mut events: Vec<_> = second.events.drain(..).map(|(_, event)| (event.kind, event.path)).collect();
        // Each server deletes ephemeral nodes in an order of its own.
        events.sort();
        let mut left = second.children(root, false).unwrap_or_default();
        left.sort();
        second.close();
        format!("closed: {events:?}, left {left:?}")
    }
}

#[test]
fn ours_answers_as_apaches() {
    let distribution = Distribution::fetch(LEVEL).unwrap().0;
    let options = Options::default().tick(Duration::from_secs(2)).distribution(distribution);
    // Neither server may remove containers or TTL nodes during a script: each deletion would take a zxid.
    let options = options.property("znode.container.checkIntervalMs", "86400000");
    let apache = Apache::single(options.property("zookeeper.forceSync", "no")).unwrap();
    let ours = Config::default().with_container_check(Duration::from_secs(24 * 60 * 60));
    let ours = wait(Server::start(ours)).unwrap();
    let seed = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (first, count) = match seed("LOCKKEEPER_SEED") {
        Some(seed) => (seed, 1),
        None => (1, seed("LOCKKEEPER_SCRIPTS").unwrap_or(SCRIPTS)),
    };
    println!("LOCKKEEPER_SEED from {first} to {}", first + count - 1);
    for seed in first..first + count {
        let root = format!("/script-{seed}");
        let mut author = Author { rng: fastrand::Rng::with_seed(seed), root: root.clone() };
        let mut stages = [apache.addr(0), ours.addr()].map(|addr| Stage::open(addr, &root));
        let mut history = String::new();
        for number in 0..STEPS {
            let step = author.step();
            let [theirs, ours] = [0, 1].map(|server| stages[server].play(&step));
            let _ = writeln!(history, "{number} session {}: {}\n  {theirs}", step.who, step.text);
            assert!(theirs == ours, "LOCKKEEPER_SEED={seed}\n{history}but ours says\n  {ours}\nto {:?}", step.body.0);
        }
        let [theirs, ours] = stages.map(|stage| stage.close(&root));
        assert!(theirs == ours, "LOCKKEEPER_SEED={seed}\n{history}{theirs}\nbut ours says\n{ours}");
    }
}

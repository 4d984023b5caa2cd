//! Clients that want more than their share: the server's memory, descriptors and log stay bounded, and other clients are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::*;

const CREATE: i32 = 1;
const MULTI_READ: i32 = 22;
const AUTH: i32 = 100;
const ADD_WATCH: i32 = 106;

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

/// The limits of the server here: 160 descriptors, 8 MiB of data, 4 MiB for an answer.
#[test]
fn greedy_clients_take_no_more_than_the_limits_say() {
    let home = Home::new();
    let mut serve = Command::new("sh");
    serve.args(["-c", "ulimit -n 160; exec \"$0\" \"$@\"", BINARY, "serve", "--listen", "127.0.0.1:0", "--data", "d"]);
    serve.args(["--max-data", "8M", "--max-answer", "4M"]);
    home.prepare(&mut serve);
    let mut running = Running::start(&mut serve);
    let (address, pid) = (running.line(), running.child.id());
    let (before, _) = taken(pid);

    // Data, names, watched paths and identities share one budget.
    let mut greedy = Greedy::connect(&address).unwrap();
    assert_eq!(greedy.ask(CREATE, Bytes::create("/big", &[7; 1_000_000])), 0);
    let refused = |asked: &mut dyn FnMut(usize) -> i32| (0..20).map(asked).find(|error| *error != 0);
    let name = |at: usize| format!("/{at}{}", "n".repeat(450_000));
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

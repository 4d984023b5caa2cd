//! Measures a server: `cargo run --release -p lockkeeper-server --example load [--servers HOST:PORT] [DIRECTORY]`.
//!
//! Without `--servers` it starts one of ours, in memory or on DIRECTORY; with `--serve` it does nothing else. The client
//! keeps a number of requests in flight from two threads, so its own cost is small and the same for every server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_server::{Config, Server};

/// How long each workload runs.
const RUN: Duration = Duration::from_secs(3);

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut foreign, mut directory, mut serve) = (None, None, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--serve" => serve = true,
            "--servers" => foreign = args.next().and_then(|servers| servers.parse().ok()),
            _ => directory = Some(arg),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O needs nothing");
    let config = directory.map_or_else(Config::default, |directory| Config::default().with_directory(directory));
    let started = Instant::now();
    let server = foreign.is_none().then(|| {
        let server = runtime.block_on(Server::start(config)).unwrap_or_else(|error| {
            eprintln!("{error}\nhint: {}", error.hint());
            std::process::exit(1);
        });
        println!("ready in {:?}", started.elapsed());
        server
    });
    if let Some(server) = server.as_ref().filter(|_| serve) {
        println!("serving {}", server.addr());
        eprintln!("stopped: {}", runtime.block_on(server.stopped()));
        return;
    }
    let addr: SocketAddr = foreign.or_else(|| server.as_ref().map(Server::addr)).expect("one of the two is there");
    prepare(addr);
    for connections in [1, 8, 64] {
        let before = server.as_ref().map(Server::stats);
        report("write", connections, run(addr, connections, Workload::Write));
        if let (Some(before), Some(server)) = (before, &server) {
            let after = server.stats();
            let (commits, transactions) = (after.commits - before.commits, after.transactions - before.transactions);
            println!("        {transactions} transactions in {commits} commits");
        }
        report("cycle", connections, run(addr, connections, Workload::Cycle));
        report("read", connections, run(addr, connections, Workload::Read));
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(line) = status.lines().find(|line| line.starts_with("VmHWM"))
    {
        println!("{line} (server and client)");
    }
}

#[derive(Clone, Copy)]
enum Workload {
    /// setData of 200 bytes on a node of the connection's own.
    Write,
    /// Create of an ephemeral sequential node and its deletion, each awaited: two operations a turn.
    Cycle,
    /// getData of 200 bytes.
    Read,
}

fn report(name: &str, connections: usize, mut latencies: Vec<Duration>) {
    latencies.sort_unstable();
    let at = |part: usize| latencies[(latencies.len() - 1) * part / 100];
    let rate = latencies.len() as f64 / RUN.as_secs_f64();
    println!("{name:>6} {connections:>3} in flight: {rate:>8.0}/s  p50 {:>9?}  p99 {:>9?}", at(50), at(99));
}

fn run(addr: SocketAddr, connections: usize, workload: Workload) -> Vec<Duration> {
    let (results, gathered) = mpsc::channel();
    // Few threads with many connections each: the client should not be what is measured.
    let threads = connections.min(2);
    for number in 0..threads {
        let results = results.clone();
        let share = connections / threads;
        thread::spawn(move || {
            let _ = results.send(drive(addr, number * share, share, workload));
        });
    }
    drop(results);
    gathered.iter().flatten().collect()
}

fn drive(addr: SocketAddr, first: usize, count: usize, workload: Workload) -> Vec<Duration> {
    let mut connections: Vec<_> = (first..first + count).map(|number| Connection::open(addr, number)).collect();
    let mut latencies = Vec::with_capacity(1 << 20);
    let end = Instant::now() + RUN;
    for connection in &mut connections {
        connection.send(workload);
    }
    // One answer from each in turn: with all of them always asking, nobody waits long for the others.
    while Instant::now() < end {
        for connection in &mut connections {
            latencies.push(connection.receive());
            connection.send(workload);
        }
    }
    for connection in &mut connections {
        connection.receive();
    }
    latencies
}

struct Connection {
    stream: TcpStream,
    path: String,
    made: Option<String>,
    sent: Instant,
    frame: Vec<u8>,
}

impl Connection {
    fn open(addr: SocketAddr, number: usize) -> Self {
        let mut stream = TcpStream::connect(addr).expect("the server listens");
        stream.set_nodelay(true).expect("a fresh socket takes options");
        let mut frame = Vec::new();
        int(&mut frame, 0);
        frame.extend([0; 8]);
        int(&mut frame, 30_000);
        frame.extend([0; 8]);
        text(&mut frame, &[0; 16]);
        frame.push(0);
        let mut connection = Self {
            path: format!("/load/{number}"),
            made: None,
            sent: Instant::now(),
            frame: Vec::new(),
            stream: stream.try_clone().expect("a socket can be shared"),
        };
        write(&mut stream, &frame);
        connection.read();
        connection
    }

    fn call(&mut self, opcode: i32, body: impl FnOnce(&mut Vec<u8>)) {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        int(&mut frame, 1);
        int(&mut frame, opcode);
        body(&mut frame);
        self.sent = Instant::now();
        write(&mut self.stream, &frame);
        self.frame = frame;
    }

    fn send(&mut self, workload: Workload) {
        let path = self.path.clone();
        match (workload, self.made.take()) {
            (Workload::Write, _) => self.call(5, |out| {
                text(out, path.as_bytes());
                text(out, &[7; 200]);
                int(out, -1);
            }),
            (Workload::Read, _) => self.call(4, |out| {
                text(out, path.as_bytes());
                out.push(0);
            }),
            (Workload::Cycle, Some(made)) => self.call(2, |out| {
                text(out, made.as_bytes());
                int(out, -1);
            }),
            (Workload::Cycle, None) => {
                self.call(1, |out| {
                    create(out, &format!("{path}/_c_550e8400-e29b-41d4-a716-446655440000-lock-"), &[7; 64], 3)
                });
                self.made = Some(String::new());
            }
        }
    }

    fn receive(&mut self) -> Duration {
        let body = self.read();
        let took = self.sent.elapsed();
        assert_eq!(body[12..16], [0; 4], "an error from the server");
        if self.made.is_some() {
            self.made = Some(String::from_utf8(body[20..].to_vec()).expect("a path"));
        }
        took
    }

    fn read(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).expect("the server answers");
        let mut body = vec![0; u32::from_be_bytes(len) as usize];
        self.stream.read_exact(&mut body).expect("the server answers");
        body
    }
}

fn prepare(addr: SocketAddr) {
    let mut connection = Connection::open(addr, 0);
    for number in -1..64 {
        let path = if number < 0 { "/load".to_owned() } else { format!("/load/{number}") };
        connection.call(1, |out| create(out, &path, &[7; 200], 0));
        connection.read();
    }
}

fn create(out: &mut Vec<u8>, path: &str, data: &[u8], flags: i32) {
    text(out, path.as_bytes());
    text(out, data);
    int(out, 1);
    int(out, 31);
    text(out, b"world");
    text(out, b"anyone");
    int(out, flags);
}

fn int(out: &mut Vec<u8>, value: i32) {
    out.extend(value.to_be_bytes());
}

fn text(out: &mut Vec<u8>, value: &[u8]) {
    int(out, i32::try_from(value.len()).expect("short"));
    out.extend(value);
}

fn write(stream: &mut TcpStream, body: &[u8]) {
    let mut frame = Vec::with_capacity(body.len() + 4);
    int(&mut frame, i32::try_from(body.len()).expect("short"));
    frame.extend(body);
    stream.write_all(&frame).expect("the server reads");
}

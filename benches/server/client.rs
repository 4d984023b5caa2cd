//! The client that measures: the bare protocol over sockets that never block, one poll a turn, the same for every server.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// No server may leave an answer out for longer.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// What a connection asks for, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// setData of 200 bytes on a node of the connection's own.
    Write,
    /// Create of an ephemeral sequential node and its deletion, as a lock does: two writes.
    Cycle,
    /// getData of 200 bytes.
    Read,
}

/// How many connections, and how many requests each has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) depth: usize,
}

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Operations a second.
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Makes the nodes that the workloads use.
pub(crate) fn prepare(addr: SocketAddr) -> Result<()> {
    let mut connection = Connection::open(addr, 0)?;
    connection.call(create("/load", &[7; 200], 0))?;
    for number in 0..64 {
        connection.call(create(&format!("/load/{number}"), &[7; 200], 0))?;
    }
    Ok(())
}

/// Keeps a server busy for a while and measures the later part of it.
pub(crate) fn run(addr: SocketAddr, shape: Shape, workload: Workload, length: Duration) -> Result<Figures> {
    let (results, gathered) = mpsc::channel();
    // Few threads with many connections each: the client should not be what is measured.
    let threads = shape.connections.min(2);
    for number in 0..threads {
        let results = results.clone();
        let share = shape.connections / threads;
        thread::spawn(move || {
            let _ = results.send(drive(addr, number * share, Shape { connections: share, ..shape }, workload, length));
        });
    }
    drop(results);
    let mut latencies = Vec::new();
    for share in gathered {
        latencies.extend(share?);
    }
    ensure!(!latencies.is_empty(), "no answer within {length:?}");
    latencies.sort_unstable();
    let at = |part: usize| latencies[(latencies.len() - 1) * part / 100];
    Ok(Figures { rate: latencies.len() as f64 / length.as_secs_f64(), p50: at(50), p99: at(99) })
}

fn drive(addr: SocketAddr, first: usize, shape: Shape, workload: Workload, length: Duration) -> Result<Vec<Duration>> {
    let connections = (first..first + shape.connections).map(|number| Connection::open(addr, number));
    let mut connections = connections.collect::<Result<Vec<_>>>()?;
    let mut latencies = Vec::with_capacity(1 << 20);
    // The first part only sets the pace.
    let begin = Instant::now() + length / 4;
    let end = begin + length;
    for connection in &mut connections {
        for _ in 0..shape.depth {
            connection.ask(workload);
        }
        connection.send()?;
    }
    loop {
        let mut sockets: Vec<_> = connections.iter().map(|c| PollFd::new(&c.stream, PollFlags::IN)).collect();
        ensure!(poll(&mut sockets, Some(&PATIENCE))? > 0, "a server that says nothing for a minute");
        let ready: Vec<bool> = sockets.iter().map(|socket| !socket.revents().is_empty()).collect();
        drop(sockets);
        let now = Instant::now();
        if now >= end {
            return Ok(latencies);
        }
        for (connection, _) in connections.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            connection.receive()?;
            while let Some(sent) = connection.answered()? {
                if now >= begin {
                    latencies.push(sent.elapsed());
                }
                connection.ask(workload);
            }
            connection.send()?;
        }
    }
}

/// Opens sessions that then keep still; they live as long as the result.
pub(crate) fn idle_sessions(addr: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let mut streams = Vec::with_capacity(count);
    // In groups, so that they share their fsyncs.
    for group in 0..count.div_ceil(500) {
        let from = streams.len();
        for _ in group * 500..count.min((group + 1) * 500) {
            let mut stream = TcpStream::connect(addr)?;
            stream.write_all(&framed(greeting()))?;
            streams.push(stream);
        }
        for stream in &mut streams[from..] {
            read_frame(stream)?;
        }
    }
    Ok(streams)
}

/// Makes this many nodes with 100 bytes each, a thousand below a parent.
pub(crate) fn fill(addr: SocketAddr, nodes: usize) -> Result<()> {
    const OK: [u8; 4] = [0; 4];
    let mut connection = Connection::open(addr, 0)?;
    connection.call(create("/many", b"", 0))?;
    for parent in 0..nodes.div_ceil(1_000) {
        let parent_path = format!("/many/parent-{parent:06}");
        connection.call(create(&parent_path, b"", 0))?;
        let mut multi = request(14);
        for child in 0..(nodes - parent * 1_000).min(1_000) {
            int(&mut multi, 1);
            multi.push(0);
            int(&mut multi, -1);
            multi.extend_from_slice(&create(&format!("{parent_path}/node-{child:06}"), &[7; 100], 0)[8..]);
        }
        int(&mut multi, -1);
        multi.push(1);
        int(&mut multi, -1);
        let answer = connection.call(multi)?;
        ensure!(answer[16..20] == 1_i32.to_be_bytes() && answer[21..25] == OK, "the server refused to be filled");
    }
    Ok(())
}

/// One session.
struct Connection {
    stream: TcpStream,
    path: String,
    /// When the requests without an answer were made.
    sent: VecDeque<Instant>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Up to where answers have been looked at.
    seen: usize,
    /// Nodes made and not deleted yet.
    made: VecDeque<String>,
    /// Of the requests without an answer, which are creates.
    creates: VecDeque<bool>,
}

impl Connection {
    fn open(addr: SocketAddr, number: usize) -> Result<Self> {
        let mut stream = TcpStream::connect(addr).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.write_all(&framed(greeting()))?;
        read_frame(&mut stream)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            path: format!("/load/{number}"),
            sent: VecDeque::new(),
            outgoing: Vec::new(),
            incoming: Vec::new(),
            seen: 0,
            made: VecDeque::new(),
            creates: VecDeque::new(),
        })
    }

    /// One request and its answer, for what is not measured.
    fn call(&mut self, body: Vec<u8>) -> Result<Vec<u8>> {
        self.stream.set_nonblocking(false)?;
        self.stream.write_all(&framed(body))?;
        let answer = read_frame(&mut self.stream)?;
        ensure!(answer[12..16] == [0; 4], "error {:?} from the server", &answer[12..16]);
        self.stream.set_nonblocking(true)?;
        Ok(answer)
    }

    fn ask(&mut self, workload: Workload) {
        let made = if workload == Workload::Cycle { self.made.pop_front() } else { None };
        self.creates.push_back(workload == Workload::Cycle && made.is_none());
        let body = match (workload, made) {
            (Workload::Write, _) => {
                let mut out = request(5);
                text(&mut out, self.path.as_bytes());
                text(&mut out, &[7; 200]);
                int(&mut out, -1);
                out
            }
            (Workload::Read, _) => {
                let mut out = request(4);
                text(&mut out, self.path.as_bytes());
                out.push(0);
                out
            }
            (Workload::Cycle, Some(made)) => {
                let mut out = request(2);
                text(&mut out, made.as_bytes());
                int(&mut out, -1);
                out
            }
            (Workload::Cycle, None) => {
                create(&format!("{}/_c_550e8400-e29b-41d4-a716-446655440000-lock-", self.path), &[7; 64], 3)
            }
        };
        self.outgoing.extend(framed(body));
        self.sent.push_back(Instant::now());
    }

    fn send(&mut self) -> Result<()> {
        if !self.outgoing.is_empty() {
            // 64 short requests fit into any socket's buffer, so this does not come back half done.
            self.stream.write_all(&self.outgoing).context("sending")?;
            self.outgoing.clear();
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        self.incoming.drain(..self.seen);
        self.seen = 0;
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => anyhow::bail!("the server closed a connection"),
            Ok(len) => self.incoming.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
        Ok(())
    }

    /// When the request was made whose answer comes next, if it is there.
    fn answered(&mut self) -> Result<Option<Instant>> {
        let rest = &self.incoming[self.seen..];
        let Some(len) = rest.first_chunk().map(|len| u32::from_be_bytes(*len) as usize + 4) else { return Ok(None) };
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        ensure!(frame[16..20] == [0; 4], "error {:?} from the server", &frame[16..20]);
        if self.creates.pop_front() == Some(true) {
            self.made.push_back(String::from_utf8(frame[24..].to_vec())?);
        }
        self.seen += len;
        Ok(self.sent.pop_front())
    }
}

fn greeting() -> Vec<u8> {
    let mut body = Vec::new();
    int(&mut body, 0);
    body.extend([0; 8]);
    int(&mut body, 40_000);
    body.extend([0; 8]);
    text(&mut body, &[0; 16]);
    body.push(0);
    body
}

fn request(opcode: i32) -> Vec<u8> {
    let mut out = Vec::with_capacity(300);
    int(&mut out, 1);
    int(&mut out, opcode);
    out
}

fn create(path: &str, data: &[u8], flags: i32) -> Vec<u8> {
    let mut out = request(1);
    text(&mut out, path.as_bytes());
    text(&mut out, data);
    int(&mut out, 1);
    int(&mut out, 31);
    text(&mut out, b"world");
    text(&mut out, b"anyone");
    int(&mut out, flags);
    out
}

fn int(out: &mut Vec<u8>, value: i32) {
    out.extend(value.to_be_bytes());
}

fn text(out: &mut Vec<u8>, value: &[u8]) {
    int(out, i32::try_from(value.len()).expect("short"));
    out.extend(value);
}

fn framed(body: Vec<u8>) -> Vec<u8> {
    let mut frame = Vec::with_capacity(body.len() + 4);
    int(&mut frame, i32::try_from(body.len()).expect("short"));
    frame.extend(body);
    frame
}

fn read_frame(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).context("waiting for an answer")?;
    let mut body = vec![0; u32::from_be_bytes(len) as usize];
    stream.read_exact(&mut body).context("reading an answer")?;
    Ok(body)
}

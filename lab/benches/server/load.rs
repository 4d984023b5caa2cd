//! The client that measures, the same for every server: it should not be what is measured.
//!
//! One thread for all connections, one epoll a turn, one read and one write for each connection that has answers. Requests
//! are made once, before the clock runs; nothing is allocated while it runs. A client that costs as much as the server would
//! hide half of what one server is better at than another, for both share the cores with it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use lockkeeper_wire::{CreateMode, Request, SetData, VersionedPath, WatchedPath};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::client::{Session, create, framed};
use crate::cpu;

/// No server may leave an answer out for longer.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// More than the answers to all that a connection has in flight.
const INCOMING: usize = 64 << 10;
/// The number at the end of a sequential node's name.
const DIGITS: usize = 10;

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
    /// Processor time an operation, of the server and of this client. What a packet costs on its way over loopback is the
    /// sender's.
    pub(crate) server: Duration,
    pub(crate) client: Duration,
}

/// Keeps a server, which is the process `pid`, busy for a while and measures the later part of it.
pub(crate) fn run(addr: SocketAddr, pid: u32, shape: Shape, workload: Workload, length: Duration) -> Result<Figures> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut callers = Vec::with_capacity(shape.connections);
    for number in 0..shape.connections {
        let caller = Caller::open(addr, number, shape.depth, workload)?;
        // Edges, so that a connection is looked at once for each answer. One read takes all there is: epoll(7).
        epoll::add(&epoll, &caller.stream, EventData::new_u64(number as u64), EventFlags::IN | EventFlags::ET)?;
        callers.push(caller);
    }
    let mut latencies: Vec<u32> = Vec::with_capacity(4 << 20);
    let mut events = Vec::with_capacity(shape.connections);
    let times = || Ok::<_, anyhow::Error>((Instant::now(), cpu::used_by(pid)?, cpu::used_by(std::process::id())?));
    let began = Instant::now();
    for caller in &mut callers {
        (0..shape.depth).for_each(|_| caller.ask(began));
        caller.send()?;
    }
    // The first part only sets the pace.
    let (begin, mut from) = (began + length / 4, None::<(Instant, Duration, Duration)>);
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), Some(&PATIENCE))?;
        ensure!(!events.is_empty(), "a server that says nothing for a minute");
        for event in &events {
            let data = event.data;
            let caller = &mut callers[usize::try_from(data.u64())?];
            caller.receive()?;
            let now = Instant::now();
            while let Some(sent) = caller.answered()? {
                if from.is_some() {
                    latencies.push(u32::try_from((now - sent).as_nanos()).unwrap_or(u32::MAX));
                }
                caller.ask(now);
            }
            caller.send()?;
        }
        match &from {
            None if Instant::now() >= begin => from = Some(times()?),
            Some((start, ..)) if start.elapsed() >= length => break,
            _ => {}
        }
    }
    let ((start, server, client), (end, server_after, client_after)) = (from.context("it has begun")?, times()?);
    let count = u32::try_from(latencies.len()).ok().filter(|count| *count > 0).context("no answer in all the time")?;
    latencies.sort_unstable();
    let at = |part: usize| Duration::from_nanos(latencies[(latencies.len() - 1) * part / 100].into());
    Ok(Figures {
        rate: f64::from(count) / (end - start).as_secs_f64(),
        p50: at(50),
        p99: at(99),
        server: (server_after - server) / count,
        client: (client_after - client) / count,
    })
}

/// A connection that asks for the same again and again.
struct Caller {
    stream: TcpStream,
    /// The request, and the one that undoes it: a deletion, its node's number still missing at the end of the path.
    request: Vec<u8>,
    undo: Option<Vec<u8>>,
    /// When the requests without an answer were made, and whether they make a node.
    asked: VecDeque<(Instant, bool)>,
    /// Numbers of the nodes made and not deleted yet.
    made: VecDeque<[u8; DIGITS]>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Where the answers that were not looked at begin and end.
    seen: usize,
    filled: usize,
}

impl Caller {
    fn open(addr: SocketAddr, number: usize, depth: usize, workload: Workload) -> Result<Self> {
        let Session(stream) = Session::open(addr)?;
        stream.set_nonblocking(true)?;
        let path = format!("/load/{number}");
        let (request, undo) = match workload {
            Workload::Write => {
                let data = Some(Bytes::from_static(&[7; 200]));
                (Request::SetData(SetData { path, data, version: -1 }), None)
            }
            Workload::Read => (Request::GetData(WatchedPath { path, watch: false }), None),
            Workload::Cycle => {
                let name = format!("{path}/_c_550e8400-e29b-41d4-a716-446655440000-lock-");
                let made = VersionedPath { path: format!("{name}{:01$}", 0, DIGITS), version: -1 };
                let create = create(&name, &[7; 64], CreateMode::EphemeralSequential);
                (Request::Create(create), Some(framed(&Request::Delete(made))))
            }
        };
        let request = framed(&request);
        Ok(Self {
            stream,
            outgoing: Vec::with_capacity(depth * request.len().max(undo.as_ref().map_or(0, Vec::len))),
            request,
            undo,
            asked: VecDeque::with_capacity(depth),
            made: VecDeque::with_capacity(depth),
            incoming: vec![0; INCOMING],
            seen: 0,
            filled: 0,
        })
    }

    fn ask(&mut self, now: Instant) {
        let made = self.made.pop_front();
        match (&self.undo, made) {
            (Some(undo), Some(number)) => {
                self.outgoing.extend_from_slice(undo);
                let end = self.outgoing.len() - 4;
                self.outgoing[end - DIGITS..end].copy_from_slice(&number);
            }
            _ => self.outgoing.extend_from_slice(&self.request),
        }
        self.asked.push_back((now, self.undo.is_some() && made.is_none()));
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
        self.incoming.copy_within(self.seen..self.filled, 0);
        self.filled -= self.seen;
        self.seen = 0;
        match self.stream.read(&mut self.incoming[self.filled..]) {
            Ok(0) => anyhow::bail!("the server closed a connection"),
            Ok(len) => self.filled += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
        Ok(())
    }

    /// When the request was made whose answer comes next, if that answer has arrived.
    fn answered(&mut self) -> Result<Option<Instant>> {
        let rest = &self.incoming[self.seen..self.filled];
        let Some(len) = rest.first_chunk().map(|len| u32::from_be_bytes(*len) as usize + 4) else { return Ok(None) };
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        ensure!(frame[16..20] == [0; 4], "error {:?} from the server", &frame[16..20]);
        let (asked, makes) = self.asked.pop_front().context("an answer to nothing")?;
        if makes {
            self.made.push_back(*frame.last_chunk().context("a path with a number")?);
        }
        self.seen += len;
        Ok(Some(asked))
    }
}

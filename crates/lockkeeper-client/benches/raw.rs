//! Raw operations: our client and the crate `zookeeper-client` beside the bare wire, on one embedded server.
//!
//! `cargo bench -p lockkeeper-client --bench raw [-- WORDS]` prints medians over interleaved rounds, of the rows whose
//! name contains every word. A ratio is the median of each round's ratio, so it holds on a busy machine, as far as
//! anything does. `LOCKKEEPER_ROUNDS` is the number of rounds, `LOCKKEEPER_WORKERS` the threads of the clients' runtime.
//!
//! The bare wire is one task on the same runtime, with the same encoding and decoding: it reads what has arrived, decodes
//! each reply, and writes as many requests at once. A task of a client does the same through the client's calls in the
//! rows "of a task". In the rows "tasks" each request belongs to a task of its own, which has to be woken; the bare wire
//! wakes none. The column "woken" is the least that a client of tasks can do: the bare wire, with a lock around its
//! bytes, and a channel for each reply. It keeps no session, and looks at no id, deadline or watch.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by panicking")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_client::wire::jute::Reader;
use lockkeeper_client::wire::{
    Acl, ConnectRequest, CreateMode, OpCode, Request, SetData, WatchedPath, frame, request, response,
};
use lockkeeper_client::{Client, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;
use zookeeper_client as zk;

/// Number of replies between two looks at the clock.
const CLOCK: u64 = 64;
const ROUND: Duration = Duration::from_millis(200);
const PATH: &str = "/bench";
const DATA: &[u8] = &[b'x'; 100];

#[derive(Clone, Copy)]
enum Op {
    Get,
    Set,
}

impl Op {
    fn request(self) -> Request {
        match self {
            Op::Get => Request::GetData(WatchedPath { path: PATH.to_owned(), watch: false }),
            Op::Set => Request::SetData(SetData { path: PATH.to_owned(), data: Some(DATA.into()), version: -1 }),
        }
    }
}

/// The least that a client can do: encode requests, write them, and decode the replies.
struct Bare {
    stream: TcpStream,
    received: BytesMut,
}

impl Bare {
    async fn connect(server: SocketAddr) -> Bare {
        let mut stream = TcpStream::connect(server).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut out = BytesMut::new();
        let connect = ConnectRequest { timeout_ms: 40_000, password: vec![0; 16], ..ConnectRequest::default() };
        request::encode_connect(&mut out, &connect);
        stream.write_all(&out).await.unwrap();
        let mut bare = Bare { stream, received: BytesMut::with_capacity(64 << 10) };
        while bare.frame().is_none() {
            bare.stream.read_buf(&mut bare.received).await.unwrap();
        }
        bare
    }

    fn frame(&mut self) -> Option<BytesMut> {
        let len = frame::first(&self.received, 1 << 20).unwrap()?.len();
        Some(self.received.split_to(4 + len))
    }

    /// Keeps this number of requests in flight. Returns the number of replies.
    async fn run(&mut self, op: Op, flight: usize) -> u64 {
        let until = Instant::now() + ROUND;
        let (mut out, mut replies, mut due) = (BytesMut::new(), 0, flight);
        let mut flying = 0;
        loop {
            if Instant::now() < until {
                for _ in 0..due {
                    request::encode(&mut out, 1, &op.request());
                }
                flying += due;
                self.stream.write_all(&out).await.unwrap();
                out.clear();
            } else if flying == 0 {
                return replies;
            }
            due = 0;
            self.received.reserve(64 << 10);
            self.stream.read_buf(&mut self.received).await.unwrap();
            while let Some(payload) = self.frame() {
                let mut reader = Reader::new(&payload[4..]);
                response::decode_header(&mut reader).unwrap();
                let opcode = OpCode::from_i32(op.request().opcode()).unwrap();
                response::decode(opcode, &mut reader).unwrap();
                due += 1;
            }
            flying -= due;
            replies += due as u64;
        }
    }
}

/// What the driver of the woken wire and its tasks share.
#[derive(Default)]
struct Woken {
    /// The requests that are not sent, and the tasks that wait for replies.
    shared: Mutex<(BytesMut, VecDeque<oneshot::Sender<()>>)>,
    requests: Notify,
}

impl Woken {
    fn connect(mut bare: Bare, op: Op) -> (Arc<Woken>, AbortHandle) {
        let woken = Arc::new(Woken::default());
        let shared = woken.clone();
        let driver = tokio::spawn(async move {
            let mut out = BytesMut::new();
            loop {
                bare.received.reserve(64 << 10);
                tokio::select! {
                    read = bare.stream.read_buf(&mut bare.received) => assert!(read.unwrap() > 0),
                    // The tasks that are ready make their requests first, so that one write sends them all.
                    () = shared.requests.notified() => tokio::task::yield_now().await,
                }
                let mut replies = Vec::new();
                while let Some(payload) = bare.frame() {
                    let mut reader = Reader::new(&payload[4..]);
                    response::decode_header(&mut reader).unwrap();
                    let opcode = OpCode::from_i32(op.request().opcode()).unwrap();
                    replies.push(response::decode(opcode, &mut reader).unwrap());
                }
                let waiting: Vec<_> = {
                    let mut shared = shared.shared.lock().unwrap();
                    std::mem::swap(&mut out, &mut shared.0);
                    shared.1.drain(..replies.len()).collect()
                };
                waiting.into_iter().for_each(|waiting| _ = waiting.send(()));
                bare.stream.write_all(&out).await.unwrap();
                out.clear();
            }
        });
        (woken, driver.abort_handle())
    }

    /// Makes the request now, as the clients do. The future waits for the reply.
    fn call(&self, op: Op) -> impl Future<Output = ()> + Send + use<> {
        let (reply, received) = oneshot::channel();
        let request = op.request();
        {
            let mut shared = self.shared.lock().unwrap();
            request::encode(&mut shared.0, 1, &request);
            shared.1.push_back(reply);
        }
        self.requests.notify_one();
        async { received.await.unwrap() }
    }
}

/// How many requests are in flight, and the number of tasks that make them.
#[derive(Clone, Copy)]
struct Flight {
    requests: usize,
    tasks: usize,
}

/// Keeps the requests in flight: each task has its share of them, and waits for the oldest one. Returns the number of
/// replies.
async fn calls<T: Future<Output = ()> + Send + 'static>(
    flight: Flight,
    call: impl Fn() -> T + Clone + Send + 'static,
) -> u64 {
    let tasks: Vec<_> = (0..flight.tasks)
        .map(|_| {
            let call = call.clone();
            tokio::spawn(async move {
                let until = Instant::now() + ROUND;
                let share = flight.requests / flight.tasks;
                let mut flying: VecDeque<_> = (0..share).map(|_| Box::pin(call())).collect();
                let mut replies = 0_u64;
                while let Some(oldest) = flying.pop_front() {
                    oldest.await;
                    replies += 1;
                    // The bare wire looks at the clock once for as many replies.
                    if !replies.is_multiple_of(CLOCK) || Instant::now() < until {
                        flying.push_back(Box::pin(call()));
                    } else {
                        break;
                    }
                }
                for left in flying {
                    left.await;
                    replies += 1;
                }
                replies
            })
        })
        .collect();
    let mut replies = 0;
    for task in tasks {
        replies += task.await.unwrap();
    }
    replies
}

async fn ours(client: &Client, op: Op, flight: Flight) -> u64 {
    let client = client.clone();
    match op {
        Op::Get => calls(flight, move || done(client.get(PATH))).await,
        Op::Set => calls(flight, move || done(client.set(PATH, DATA, None))).await,
    }
}

async fn theirs(client: &zk::Client, op: Op, flight: Flight) -> u64 {
    let client = client.clone();
    match op {
        Op::Get => calls(flight, move || done(client.get_data(PATH))).await,
        Op::Set => calls(flight, move || done(client.set_data(PATH, DATA, None))).await,
    }
}

/// Waits for a reply, which must be a response.
async fn done<T, E: std::fmt::Debug>(reply: impl Future<Output = Result<T, E>>) {
    reply.await.unwrap();
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn measure() {
    let server = lockkeeper_server::Server::ephemeral().await.unwrap();
    let rounds = std::env::var("LOCKKEEPER_ROUNDS").map_or(25, |rounds| rounds.parse().unwrap());
    let mut bare = Bare::connect(server.addr()).await;
    let (client, _states) =
        Client::open(server.connect_string().parse().unwrap(), Config::new(Duration::from_secs(40)));
    let their = zk::Client::connect(&server.connect_string()).await.unwrap();
    client.create(PATH, DATA, &[Acl::OPEN], CreateMode::Persistent).await.unwrap();
    let workers = tokio::runtime::Handle::current().metrics().num_workers();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load {}; {workers} workers; {rounds} rounds of {ROUND:?}; medians", load.trim());
    print!("{:<20} {:>9} {:>9} {:>7} {:>9} {:>7}", "operations/s", "bare", "ours", "ratio", "zk-client", "ratio");
    println!(" {:>9} {:>7}", "woken", "ratio");
    for (name, op, requests, tasks) in [
        ("get, 1 in flight", Op::Get, 1, 1),
        ("get, 64 of a task", Op::Get, 64, 1),
        ("get, 64 tasks", Op::Get, 64, 64),
        ("set, 1 in flight", Op::Set, 1, 1),
        ("set, 64 of a task", Op::Set, 64, 1),
        ("set, 64 tasks", Op::Set, 64, 64),
    ] {
        if !std::env::args().skip(1).all(|word| word.starts_with('-') || name.contains(&word)) {
            continue;
        }
        let flight = Flight { requests, tasks };
        let (woken, driver) = Woken::connect(Bare::connect(server.addr()).await, op);
        let mut rates = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            for (which, rates) in rates.iter_mut().enumerate() {
                let begin = Instant::now();
                let calls = match which {
                    0 => bare.run(op, requests).await,
                    1 => ours(&client, op, flight).await,
                    2 => theirs(&their, op, flight).await,
                    _ => {
                        let woken = woken.clone();
                        calls(flight, move || woken.call(op)).await
                    }
                };
                rates.push(calls as f64 / begin.elapsed().as_secs_f64());
            }
        }
        driver.abort();
        let mut ratios = [1, 2, 3].map(|which| {
            let pairs = rates[which].iter().zip(&rates[0]);
            pairs.map(|(rate, bare)| rate / bare).collect::<Vec<_>>()
        });
        let [bare, ours, theirs, woken] = rates.each_mut().map(|rates| median(rates));
        let [our_ratio, their_ratio, woken_ratio] = ratios.each_mut().map(|ratios| median(ratios));
        print!("{name:<20} {bare:>9.0} {ours:>9.0} {our_ratio:>7.2} {theirs:>9.0} {their_ratio:>7.2}");
        println!(" {woken:>9.0} {woken_ratio:>7.2}");
    }
}

fn main() {
    let workers = std::env::var("LOCKKEEPER_WORKERS").map_or(2, |workers| workers.parse().unwrap());
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap().block_on(async {
        // On a worker, as a program's tasks are.
        tokio::spawn(measure()).await.unwrap();
    });
}

//! Raw operations: our client and the crate `zookeeper-client` beside the bare wire, on one embedded server.
//!
//! `cargo bench -p lockkeeper-client` prints medians over interleaved rounds. Only the ratios of one run can be compared.
//! `LOCKKEEPER_ROUNDS` is the number of rounds.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by panicking")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use lockkeeper_client::wire::jute::Reader;
use lockkeeper_client::wire::{
    Acl, ConnectRequest, CreateMode, OpCode, Request, SetData, WatchedPath, frame, request, response,
};
use lockkeeper_client::{Client, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client as zk;

const ROUND: Duration = Duration::from_millis(500);
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

/// Runs this number of tasks that call one after the other. Returns the number of replies.
async fn tasks<T: Future<Output = ()> + Send + 'static>(
    flight: usize,
    call: impl Fn() -> T + Clone + Send + 'static,
) -> u64 {
    let until = Instant::now() + ROUND;
    let tasks: Vec<_> = (0..flight)
        .map(|_| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut calls = 0;
                while Instant::now() < until {
                    call().await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await.unwrap();
    }
    calls
}

async fn ours(client: &Client, op: Op, flight: usize) -> u64 {
    let client = client.clone();
    tasks(flight, move || {
        let client = client.clone();
        async move {
            match op {
                Op::Get => _ = client.get(PATH).await.unwrap(),
                Op::Set => _ = client.set(PATH, DATA, None).await.unwrap(),
            }
        }
    })
    .await
}

async fn theirs(client: &zk::Client, op: Op, flight: usize) -> u64 {
    let client = client.clone();
    tasks(flight, move || {
        let client = client.clone();
        async move {
            match op {
                Op::Get => _ = client.get_data(PATH).await.unwrap(),
                Op::Set => _ = client.set_data(PATH, DATA, None).await.unwrap(),
            }
        }
    })
    .await
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn measure() {
    let server = lockkeeper_server::Server::ephemeral().await.unwrap();
    let rounds = std::env::var("LOCKKEEPER_ROUNDS").map_or(11, |rounds| rounds.parse().unwrap());
    let mut bare = Bare::connect(server.addr()).await;
    let (client, _states) =
        Client::open(server.connect_string().parse().unwrap(), Config::new(Duration::from_secs(40)));
    let their = zk::Client::connect(&server.connect_string()).await.unwrap();
    client.create(PATH, DATA, &[Acl::OPEN], CreateMode::Persistent).await.unwrap();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load {}; {rounds} rounds of {ROUND:?}; medians", load.trim());
    println!("{:<20} {:>9} {:>9} {:>7} {:>9} {:>7}", "operations/s", "bare", "ours", "ratio", "zk-client", "ratio");
    for (name, op, flight) in [
        ("get, 1 in flight", Op::Get, 1),
        ("get, 64 in flight", Op::Get, 64),
        ("set, 1 in flight", Op::Set, 1),
        ("set, 64 in flight", Op::Set, 64),
    ] {
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for (which, rates) in rates.iter_mut().enumerate() {
                let begin = Instant::now();
                let calls = match which {
                    0 => bare.run(op, flight).await,
                    1 => ours(&client, op, flight).await,
                    _ => theirs(&their, op, flight).await,
                };
                rates.push(calls as f64 / begin.elapsed().as_secs_f64());
            }
        }
        let [bare, ours, theirs] = rates.each_mut().map(|rates| median(rates));
        println!("{name:<20} {bare:>9.0} {ours:>9.0} {:>7.2} {theirs:>9.0} {:>7.2}", ours / bare, theirs / bare);
    }
}

fn main() {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        // On a worker, as a program's tasks are.
        tokio::spawn(measure()).await.unwrap();
    });
}

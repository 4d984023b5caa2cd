//! A counter under one lock, from four languages, while its holders are killed and stopped. `cargo xtask interop counting`

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::Lockkeeper;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::harness::{BINARY, served, stop};

/// How often the lock is acquired, and how many of these pass between two faults.
const ACQUIRES: u64 = 100_000;
const BETWEEN_FAULTS: u64 = 1_000;

const LOCK: [&str; 3] = ["counter", "--session-timeout", "2s"];

/// What is done to a holder that has read the counter and not written it yet.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The client is killed, and its `lockkeeper` lives.
    Client,
    /// Its `lockkeeper` is killed.
    Lockkeeper,
    Both,
    /// Both stand still until the next holder has written.
    Stop,
}

const FAULTS: [Fault; 4] = [Fault::Client, Fault::Lockkeeper, Fault::Both, Fault::Stop];

/// The counter, which accepts no token below its highest one.
#[derive(Debug, Default)]
struct Counter {
    value: u64,
    token: u64,
    /// The writes by language.
    writes: [u64; 4],
    /// The writes of stale holders, which are refused.
    stale: u64,
    /// The writes that would have undone another one.
    lost: Vec<String>,
    faults: u64,
    stopped: Option<Pid>,
}

const LANGUAGES: [&str; 4] = ["python", "node", "go", "rust"];

impl Counter {
    fn answer(&mut self, words: &[&str], client: Pid) -> String {
        match *words {
            ["get"] => {
                let value = self.value;
                if value >= ACQUIRES {
                    self.strike(Fault::Client, client);
                } else if value / BETWEEN_FAULTS > self.faults && self.stopped.is_none() {
                    self.faults += 1;
                    let fault = FAULTS[usize::try_from(self.faults).unwrap() % FAULTS.len()];
                    self.strike(fault, client);
                }
                value.to_string()
            }
            ["set", value, token, language] => {
                let (value, token): (u64, u64) = (value.parse().unwrap(), token.parse().unwrap());
                if token < self.token {
                    self.stale += 1;
                    return "stale".to_owned();
                }
                if value != self.value + 1 {
                    self.lost.push(format!("{language}, token {token}: {value} after {}", self.value));
                }
                (self.value, self.token) = (value, token);
                self.writes[LANGUAGES.iter().position(|known| *known == language).unwrap()] += 1;
                if let Some(stopped) = self.stopped.take_if(|stopped| *stopped != client) {
                    _ = kill_process_group(stopped, Signal::CONT);
                }
                "written".to_owned()
            }
            _ => panic!("{words:?}"),
        }
    }

    fn strike(&mut self, fault: Fault, client: Pid) {
        match fault {
            Fault::Client => _ = kill_process(client, Signal::KILL),
            Fault::Lockkeeper => {
                for child in children(client) {
                    _ = kill_process(child, Signal::KILL);
                }
            }
            Fault::Both => _ = kill_process_group(client, Signal::KILL),
            Fault::Stop => {
                self.stopped = Some(client);
                children(client).into_iter().chain([client]).for_each(stop);
            }
        }
    }
}

fn children(parent: Pid) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", parent.as_raw_nonzero())).into_iter().flatten().flatten();
    let texts = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    texts
        .flat_map(|text| text.split(' ').filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect()
}

#[test]
fn a_counter_of_four_languages_loses_no_write_whatever_happens_to_its_holders() {
    let (server, home) = served();
    let (place, here) = (home.file("clients"), Path::new(env!("CARGO_MANIFEST_DIR")));
    std::fs::create_dir(&place).unwrap();
    for directory in ["../../docs/examples/hold", "tests/cli/counting"] {
        for file in std::fs::read_dir(here.join(directory)).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), place.join(file.file_name())).unwrap();
        }
    }
    let built = Command::new("go").args(["build", "client.go", "hold.go"]).current_dir(&place).status();
    assert!(built.unwrap().success());
    let socket = home.file("counter");
    let counter = Arc::new(Mutex::new(Counter::default()));
    let (listener, served) = (UnixListener::bind(&socket).unwrap(), Arc::clone(&counter));
    // It ends with the test.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let counter = Arc::clone(&served);
            thread::spawn(move || serve(&stream.unwrap(), &counter));
        }
    });
    let (itself, socket) = (std::env::current_exe().unwrap(), socket.to_str().unwrap());
    let options = [&[socket][..], &LOCK].concat();
    let clients = [
        ("python3", [&["client.py"][..], &options].concat()),
        ("node", [&["client.mjs"][..], &options].concat()),
        ("./client", options),
        (itself.to_str().unwrap(), vec!["--exact", "counting::in_rust"]),
    ];
    let start = |program: &str, arguments: &[&str]| {
        let mut client = Command::new(program);
        home.prepare(&mut client);
        client.args(arguments).current_dir(&place).process_group(0).stdout(Stdio::null());
        client.env("LOCKKEEPER", BINARY).env("COUNTER", socket).env("SERVER", &server.address);
        client.status().unwrap()
    };
    let (start, is_over) = (&start, &|| counter.lock().unwrap().value >= ACQUIRES);
    thread::scope(|scope| {
        for (program, arguments) in &clients {
            scope.spawn(move || {
                while !is_over() {
                    start(program, arguments);
                }
            });
        }
    });
    let counter = counter.lock().unwrap();
    println!("{counter:?}");
    assert!(counter.lost.is_empty() && counter.stale >= counter.faults / 4 && !counter.writes.contains(&0));
}

/// Answers a client until it ends.
fn serve(stream: &UnixStream, counter: &Mutex<Counter>) {
    let client = socket_peercred(stream).unwrap().pid;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = counter.lock().unwrap().answer(&line.split(' ').collect::<Vec<_>>(), client);
        // It may have been killed.
        _ = writeln!(&*stream, "{answer}");
    }
}

/// The client in Rust, which uses the library. It is a process of its own, so that it can be killed.
#[test]
fn in_rust() {
    let Some(path) = std::env::var_os("COUNTER") else { return };
    let stream = UnixStream::connect(path).unwrap();
    let mut lines = BufReader::new(&stream).lines();
    let mut ask = |words: &str| {
        writeln!(&stream, "{words}").unwrap();
        lines.next().unwrap().unwrap()
    };
    let count = async {
        let keeper = Lockkeeper::builder().session_timeout(Duration::from_secs(2));
        let keeper = keeper.connect(&std::env::var("SERVER").unwrap()).await.unwrap();
        loop {
            let Ok(guard) = keeper.mutex("/locks/counter").acquire().await else { continue };
            let value: u64 = ask("get").parse().unwrap();
            ask(&format!("set {} {} rust", value + 1, guard.token()));
            // After it stood still, the lock is lost.
            _ = guard.release().await;
        }
    };
    tokio::runtime::Runtime::new().unwrap().block_on(count)
}

//! The example's fencing in a real search engine, with clients that are stopped for longer than their session timeout.
//!
//! `cargo xtask search test` passes the place of the engine's jars.

#![cfg(real_servers)]
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::collections::{HashMap, HashSet};
use std::process::Command;
use std::time::Duration;

use catalogue::actor::{Actor, Places};
use catalogue::shelf::{Shelf, ShelfError};
use catalogue::work::{Class, Report};
use lockkeeper::{FencingToken, Lockkeeper};
use lockkeeper_core::Zxid;
use lockkeeper_testkit::search::Engine;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::sync::mpsc;

/// The number of clients that race for one article.
const WORKERS: u32 = 8;
/// The number of changes by each client.
const TIMES: u32 = 8;
/// How often the running client is stopped until another one has changed the article.
const PAUSES: usize = 6;
/// How long the test waits for an event.
const PATIENCE: Duration = Duration::from_secs(120);

/// The outcome of a race.
#[derive(Debug)]
struct Race {
    /// Changes that were reported as done.
    confirmed: usize,
    /// How many of these are not in the article.
    lost: usize,
    /// Steps whose token is smaller than the one before.
    stale: usize,
    /// How often the engine refused a write.
    refused: usize,
}

/// The running clients; removing one kills it.
type Running = HashMap<u32, (Child, Pid)>;

async fn race(engine: &Engine, article: &str, unfenced: bool) -> Race {
    let dir = tempfile::tempdir().unwrap();
    let places = Places {
        locks: Some(dir.path().display().to_string()),
        servers: None,
        shelf: Some(engine.url()),
        letters: Some(dir.path().join("letters")),
        session: Duration::from_secs(1),
    };
    // The test hosts the server, so that no client that may be stopped hosts it.
    let host = Lockkeeper::embedded(dir.path()).await.unwrap();
    let (reports, mut all) = mpsc::unbounded_channel();
    let mut running = Running::new();
    for number in 0..WORKERS {
        let actor = Actor {
            name: format!("client {number}"),
            class: Class::Background,
            article: article.to_owned(),
            times: TIMES,
            takes: Some(Duration::from_millis(20)),
            timeout: PATIENCE,
            // A refused stale write is retried under a new hold, as is a change that lost its session unexpectedly.
            retries: 100,
            unfenced,
        };
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_catalogue"));
        command.arg("client").args(places.arguments()).args(actor.arguments());
        let mut child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        running.insert(number, (child, pid));
        let reports = reports.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                drop(reports.send((number, serde_json::from_str::<Report>(&line).unwrap())));
            }
        });
    }
    drop(reports);

    let (mut confirmed, mut refused, mut pauses) = (HashSet::new(), 0, 0);
    let mut stopped: Option<u32> = None;
    while let Some((number, report)) = tokio::time::timeout(PATIENCE, all.recv()).await.unwrap() {
        match report {
            // This client was just granted the lock, and will write 20 ms later unless it is stopped.
            Report::Runs { .. } if stopped.is_none() && pauses < PAUSES => {
                kill_process(running[&number].1, Signal::STOP).unwrap();
                stopped = Some(number);
                pauses += 1;
            }
            Report::Done { operation, .. } => {
                assert!(confirmed.insert(operation), "confirmed twice");
                if let Some(sleeper) = stopped
                    && sleeper != number
                {
                    // The session of the stopped client has expired, and the article has changed meanwhile.
                    kill_process(running[&sleeper].1, Signal::CONT).unwrap();
                    stopped = None;
                }
            }
            Report::Retries { why, .. } | Report::GivesUp { why, .. } if why.contains("refuses token") => refused += 1,
            _ => {}
        }
        if let Some(sleeper) = stopped
            && running.len() == 1
        {
            kill_process(running[&sleeper].1, Signal::CONT).unwrap();
        }
    }
    for (_, (mut child, _)) in running.drain() {
        child.wait().await.unwrap();
    }
    host.close().await;

    let article = Shelf::open(&engine.url()).await.unwrap().get(article).await.unwrap();
    let there: HashSet<&String> = article.trail.iter().map(|step| &step.operation).collect();
    assert_eq!(there.len(), article.trail.len(), "a change is in it twice");
    let lost = confirmed.iter().filter(|operation| !there.contains(operation)).count();
    let stale = article.trail.windows(2).filter(|pair| pair[1].token < pair[0].token).count();
    Race { confirmed: confirmed.len(), lost, stale, refused }
}

/// The claim of the example, and for comparison the same race by clients that trust only their lock.
#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_stopped_longer_than_their_sessions_leave_no_stale_write_in_the_engine() {
    let engine = Engine::start().unwrap();
    let fenced = race(&engine, "P1", false).await;
    eprintln!("with tokens:    {fenced:?}");
    assert_eq!((fenced.lost, fenced.stale), (0, 0), "{fenced:?}");
    assert_eq!(fenced.confirmed, (WORKERS * TIMES) as usize, "{fenced:?}");
    assert!(fenced.refused > 0, "no write was ever stale: {fenced:?}");

    let unfenced = race(&engine, "P2", true).await;
    eprintln!("without tokens: {unfenced:?}");
    assert!(unfenced.lost > 0, "the race shows no difference: {unfenced:?}");
}

#[tokio::test]
async fn the_engine_itself_refuses_a_smaller_token() {
    let engine = Engine::start().unwrap();
    let shelf = Shelf::open(&engine.url()).await.unwrap();
    let token = |zxid| FencingToken::from_zxid(Zxid(zxid));
    assert!(shelf.list().await.unwrap().is_empty());
    let article = shelf.claim("P1", token(7)).await.unwrap();
    let change = catalogue::article::Change::new("title", "new");
    let article = article.changed(&change, 7, "client 1");
    shelf.put(&article, token(7)).await.unwrap();
    assert!(matches!(shelf.put(&article, token(6)).await, Err(ShelfError::Stale { token: 6, .. })));
    assert!(matches!(shelf.claim("P1", token(6)).await, Err(ShelfError::Stale { token: 6, .. })));
    assert_eq!(shelf.list().await.unwrap(), [article]);
}

/// With the articles in the engine, the scenarios end as they do with a file.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_plays_all_its_scenarios_on_the_engine() {
    let engine = Engine::start().unwrap();
    let played = Command::new(env!("CARGO_BIN_EXE_catalogue"))
        .args(["play", "--plain", "--shelf", &engine.url()])
        .env_remove("LOCKKEEPER_SERVERS")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success(), "{}\n{output}", String::from_utf8_lossy(&played.stderr));
}

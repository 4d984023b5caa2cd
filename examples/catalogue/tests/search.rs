//! The example's fence in a real search engine, with clients that are stopped for longer than their sessions live.
//!
//! `cargo xtask search test` says where the engine's jars are.

#![allow(clippy::unwrap_used, reason = "a test says by panicking that something went wrong")]

use std::collections::{HashMap, HashSet};
use std::process::Command;
use std::time::Duration;

use catalogue::actor::{Actor, Places};
use catalogue::shelf::{Shelf, ShelfError};
use catalogue::work::{Class, Told};
use lockkeeper::{FencingToken, Lockkeeper};
use lockkeeper_core::Zxid;
use lockkeeper_testkit::search::Engine;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::sync::mpsc;

/// How many race for one article.
const WORKERS: u32 = 8;
/// How often each changes it.
const TIMES: u32 = 8;
/// How often the one that runs is stopped until another has changed the article.
const PAUSES: usize = 6;
/// How long anything may take that must come.
const PATIENCE: Duration = Duration::from_secs(120);

/// What became of a race.
#[derive(Debug)]
struct Race {
    /// Changes that were said to be done.
    confirmed: usize,
    /// Of these, how many are not in the article.
    lost: usize,
    /// Steps whose token is smaller than one before.
    stale: usize,
    /// How often the engine refused.
    refused: usize,
}

/// A client that runs, for as long as it is in this map.
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
    // Hosts the server, so that no client does that may be stopped.
    let host = Lockkeeper::embedded(dir.path()).await.unwrap();
    let (told, mut all) = mpsc::unbounded_channel();
    let mut running = Running::new();
    for number in 0..WORKERS {
        let actor = Actor {
            name: format!("client {number}"),
            class: Class::Background,
            article: article.to_owned(),
            times: TIMES,
            takes: Some(Duration::from_millis(20)),
            timeout: PATIENCE,
            // A stale write is tried again, under a new hold; so is whatever a session lost that should have lived.
            retries: 100,
            unfenced,
        };
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_catalogue"));
        command.arg("client").args(places.arguments()).args(actor.arguments());
        let mut child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
        running.insert(number, (child, pid));
        let told = told.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                drop(told.send((number, serde_json::from_str::<Told>(&line).unwrap())));
            }
        });
    }
    drop(told);

    let (mut confirmed, mut refused, mut pauses) = (HashSet::new(), 0, 0);
    let mut stopped: Option<u32> = None;
    while let Some((number, told)) = tokio::time::timeout(PATIENCE, all.recv()).await.unwrap() {
        match told {
            // It has just got the lock, and will write 20 ms later unless it is stopped.
            Told::Runs { .. } if stopped.is_none() && pauses < PAUSES => {
                kill_process(running[&number].1, Signal::STOP).unwrap();
                stopped = Some(number);
                pauses += 1;
            }
            Told::Done { operation, .. } => {
                assert!(confirmed.insert(operation), "confirmed twice");
                if let Some(sleeper) = stopped
                    && sleeper != number
                {
                    // Its session has expired, and the article has changed behind it.
                    kill_process(running[&sleeper].1, Signal::CONT).unwrap();
                    stopped = None;
                }
            }
            Told::Retries { why, .. } | Told::GivesUp { why, .. } if why.contains("refuses token") => refused += 1,
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

/// The claim of the example, and beside it the same race by clients that trust their lock alone.
#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_stopped_longer_than_their_sessions_leave_no_stale_write_in_the_engine() {
    let engine = Engine::start().unwrap();
    let fenced = race(&engine, "P1", false).await;
    eprintln!("with tokens:    {fenced:?}");
    assert_eq!((fenced.lost, fenced.stale), (0, 0), "{fenced:?}");
    assert_eq!(fenced.confirmed, (WORKERS * TIMES) as usize, "{fenced:?}");
    assert!(fenced.refused > 0, "nothing was ever too late: {fenced:?}");

    let unfenced = race(&engine, "P2", true).await;
    eprintln!("without tokens: {unfenced:?}");
    assert!(unfenced.lost > 0, "the race cannot tell: {unfenced:?}");
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

/// With the articles in the engine, the scenarios end as they do on a file.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_plays_all_its_scenarios_on_the_engine() {
    let engine = Engine::start().unwrap();
    let played = Command::new(env!("CARGO_BIN_EXE_catalogue"))
        .args(["play", "--plain", "--shelf", &engine.url()])
        .env_remove("LOCKKEEPER_SERVERS")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success(), "{}\n{said}", String::from_utf8_lossy(&played.stderr));
}

//! Candidates of Curator and Kazoo and ours in one election.
//!
//! `cargo xtask interop curator` and `cargo xtask interop kazoo` install the foreign client and say where it is; each claim
//! runs on the embedded server and on Apache's.

#![cfg(deep)]

#[path = "../../../lockkeeper/tests/interop/other.rs"]
mod other;

use std::time::Duration;

use lockkeeper::{Lockkeeper, NodeFormat};
use lockkeeper_election::{Candidacy, Election, Event};
use lockkeeper_server::{Config, Server};
use tokio::task::JoinHandle;

use self::other::{Other, PATIENCE};

/// How foreign candidates are started: with servers, path and id.
type Start = fn([&str; 3]) -> Other;

/// Longer than the wait after which our holder would write into its node when it was granted the lock.
const LONG: Duration = Duration::from_millis(1300);

async fn keeper(servers: &str) -> Lockkeeper {
    Lockkeeper::builder().session_timeout(Duration::from_secs(20)).connect(servers).await.unwrap()
}

/// Waits until this many candidates stand.
async fn candidates(keeper: &Lockkeeper, path: &str, count: usize) {
    let mut follow = keeper.admin().follow(path).or_absent();
    loop {
        let seen = tokio::time::timeout(PATIENCE, follow.next()).await.unwrap().unwrap();
        if seen.holders.len() + seen.waiters.len() == count {
            return;
        }
    }
}

/// Our candidate, which waits until it is elected.
fn stand(mut candidacy: Candidacy) -> JoinHandle<Candidacy> {
    tokio::spawn(async move {
        let event = tokio::time::timeout(PATIENCE, candidacy.next()).await.unwrap().unwrap();
        assert!(matches!(event, Event::Promoted(_)), "{event:?}");
        candidacy
    })
}

/// Two foreign candidates and one of ours lead in the order of the queue; each side sees who leads, and hears of every resignation and of
/// the end of our session.
async fn elect_together(servers: &str, format: NodeFormat, start: Start) {
    let (looker, ours) = (keeper(servers).await, keeper(servers).await);
    let path = format!("/interop-{format:?}-{:?}", ours.session_id().unwrap().0);
    let election = Election::new(&ours, &path).node_format(format);
    let watching = Election::new(&looker, &path);
    let leader = async || watching.leader().await.unwrap().map(|leader| leader.id().to_owned());

    let mut first = start([servers, &path, "first"]);
    first.says("leads").await;
    assert_eq!(leader().await.as_deref(), Some("first"));
    let waiting = stand(election.candidate("ours").stand());
    candidates(&looker, &path, 2).await;
    let mut second = start([servers, &path, "second"]);
    candidates(&looker, &path, 3).await;
    tokio::time::sleep(LONG).await;
    first.hears("resign").await;
    first.says("resigned").await;
    let mut candidacy = waiting.await.unwrap();
    assert_eq!(leader().await.as_deref(), Some("ours"));
    candidates(&looker, &path, 3).await;
    if format == NodeFormat::LeaderLatch {
        // Time for a mistake: a write into our node would be the last thing that the one behind it hears of it.
        tokio::time::sleep(LONG).await;
    }

    candidacy.resign().await.unwrap();
    second.says("leads").await;
    let waiting = stand(candidacy);
    candidates(&looker, &path, 3).await;
    second.hears("contenders").await;
    let contenders = second.line().await;
    assert!(contenders.starts_with("second first {") && contenders.contains(r#""message":"ours""#), "{contenders}");
    second.hears("resign").await;
    second.says("resigned").await;
    first.says("leads").await;
    candidates(&looker, &path, 3).await;
    first.hears("resign").await;
    first.says("resigned").await;
    let candidacy = waiting.await.unwrap();
    // Our session ends without a resignation.
    ours.close().await;
    second.says("leads").await;
    assert!(!candidacy.leadership().unwrap().is_leading());
    assert_eq!(leader().await.as_deref(), Some("second"));
    looker.close().await;
}

fn on_both_servers(format: NodeFormat, start: Start) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        elect_together(&server.connect_string(), format, start).await;
        let apache = std::env::var("LOCKKEEPER_TEST_ZOOKEEPER").expect("run `cargo xtask interop`");
        elect_together(&apache, format, start).await;
    });
}

#[test]
fn curator_leader_latch_and_lockkeeper_elect_together() {
    on_both_servers(NodeFormat::LeaderLatch, |[servers, path, id]| Other::curator(&[servers, "latch", path, id]));
}

#[test]
fn curator_leader_selector_and_lockkeeper_elect_together() {
    on_both_servers(NodeFormat::Curator, |[servers, path, id]| Other::curator(&[servers, "selector", path, id]));
}

#[test]
fn kazoo_election_and_lockkeeper_elect_together() {
    on_both_servers(NodeFormat::Kazoo, |[servers, path, id]| Other::kazoo(&[servers, "election", path, id]));
}

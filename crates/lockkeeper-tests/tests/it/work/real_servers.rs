//! The same work on Apache's servers, and tests that only they can run.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::acl::LockAcl;
use lockkeeper::error::{AdminError, ConnectError, Error, ErrorKind, SessionError};
use lockkeeper_client::wire::{Acl, CreateMode, ErrorCode, EventKind};
use lockkeeper_client::{Client, Config, ConnectionState, RequestError, Watcher};
use lockkeeper_testkit::apache::{Apache, Options};
use lockkeeper_testkit::proxy::{Cut, OpCode, Proxy};
use tokio::task::JoinSet;

use super::{File, Workers};
use crate::support::{PATIENCE, STEADY, block_on, eventually};

/// On three Apache servers; their leader is killed and restarted, twice.
#[test]
fn sixty_four_tasks_lose_no_update_while_leaders_are_killed() {
    block_on(async {
        let apache = Arc::new(ensemble().await);
        let dir = tempfile::tempdir().unwrap();
        let file = File::new(&dir, false);
        let mut keepers = Vec::new();
        for _ in 0..4 {
            let builder = Lockkeeper::builder().session_timeout(Duration::from_secs(4)).connect_timeout(PATIENCE);
            keepers.push(builder.connect(&apache.connect_string()).await.unwrap());
        }
        let mutexes: Vec<_> = keepers.iter().map(|keeper| keeper.mutex("/locks/work")).collect();
        let work = Workers::at(&mutexes, &file, keepers[0].clone(), "/locks/work");
        for _ in 0..2 {
            work.wait_for_updates(100).await;
            let leader = blocking(&apache, |apache| {
                let leader = apache.leader().unwrap();
                apache.kill(leader);
                leader
            })
            .await;
            work.wait_for_updates(100).await;
            blocking(&apache, move |apache| apache.restart(leader).unwrap()).await;
        }
        work.wait_for_updates(100).await;
        work.done().await;
        eventually("no contender is left", async || empty(&keepers[0], "/locks/work").await).await;
        for keeper in keepers {
            keeper.close().await;
        }
    });
}

/// Cases 8 and 33 on a slow disk: each fsync takes 0.8 s and the connection is cut 20 ms after the create, so the session moves
/// to another server before its node is applied there. Every attempt finds its node; none creates a second one.
#[test]
fn case_08_a_cut_during_a_slow_fsync_leaves_one_node_in_20_runs_on_a_real_ensemble() {
    const RUNS: usize = 20;
    block_on(async {
        let apache = Arc::new(ensemble().await);
        let mut runs = Vec::new();
        for run in 0..RUNS {
            let mut proxies = Vec::new();
            for server in 0..apache.size() {
                proxies.push(Proxy::start(apache.addr(server)).await);
            }
            let servers: Vec<_> = proxies.iter().map(Proxy::connect_string).collect();
            let builder = Lockkeeper::builder().session_timeout(STEADY).connect_timeout(PATIENCE);
            let keeper = builder.connect(&servers.join(",")).await.unwrap();
            let path = format!("/locks/slow-{run}");
            keeper.mutex(&path).acquire().await.unwrap().release().await.unwrap();
            runs.push((keeper, path, proxies));
        }
        let slow = blocking(&apache, |apache| apache.slow_fsync(Duration::from_millis(800)).unwrap()).await;
        let mut attempts = JoinSet::new();
        for (keeper, path, proxies) in runs {
            attempts.spawn(async move {
                let cut = |proxy: &Proxy| {
                    proxy.on_any(OpCode::CREATES).path(&*path).cut_after_request(Duration::from_millis(20))
                };
                let _cuts: Vec<_> = proxies.iter().map(cut).collect();
                let guard = keeper.mutex(&path).acquire().timeout(PATIENCE).await.unwrap();
                let connections: u64 = proxies.iter().map(|proxy| proxy.counts().accepted).sum();
                let seen = keeper.admin().show(&path).await.unwrap();
                assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{path}: a second node: {seen:?}");
                assert_eq!(seen.holders[0].token, Some(guard.token()));
                proxies.iter().for_each(Proxy::heal);
                guard.release().await.unwrap();
                assert!(empty(&keeper, &path).await, "{path}");
                (keeper, connections, proxies)
            });
        }
        let mut broken = 0;
        let mut ended = Vec::new();
        while let Some(attempt) = attempts.join_next().await {
            let (keeper, connections, proxies) = attempt.unwrap();
            broken += usize::from(connections > 1);
            ended.push((keeper, proxies));
        }
        drop(slow);
        assert_eq!(broken, RUNS, "the connection was cut in each run");
        for (keeper, _proxies) in ended {
            keeper.close().await;
        }
    });
}

/// The servers have no majority for twice the session timeout of the waiters. The next leader gives each session its whole
/// timeout again, so each waiter keeps its session and its place in the queue.
#[test]
fn no_waiter_loses_its_place_in_an_election_that_is_longer_than_its_session_timeout() {
    const WAITERS: usize = 20;
    const TIMEOUT: Duration = Duration::from_secs(4);
    block_on(async {
        let options = Options::default().session_timeouts(TIMEOUT, Duration::from_secs(60));
        let apache = tokio::task::spawn_blocking(|| Apache::ensemble(3, options).unwrap()).await.unwrap();
        let apache = Arc::new(apache);
        let leader = blocking(&apache, |apache| apache.leader().unwrap()).await;
        let followers: Vec<_> = (0..apache.size()).filter(|server| *server != leader).collect();
        let (follower, other) = (followers[0], followers[1]);
        let servers = format!("{},{}", apache.addr(follower), apache.addr(other));
        let connect = async |timeout| {
            let builder = Lockkeeper::builder().session_timeout(timeout).connect_timeout(PATIENCE);
            builder.connect(&servers).await.unwrap()
        };
        let (first, path) = (connect(Duration::from_secs(60)).await, "/locks/election");
        let guard = first.mutex(path).acquire().await.unwrap();
        let (mut keepers, mut waiters) = (Vec::new(), Vec::new());
        let waiting = async || first.admin().show(path).await.unwrap().waiters;
        for number in 1..=WAITERS {
            let keeper = connect(TIMEOUT).await;
            assert_eq!(keeper.session_timeout(), Some(TIMEOUT));
            waiters.push(crate::support::spawn(keeper.mutex(path).acquire().requeue(false).into_future()));
            eventually("it is in the queue", async || waiting().await.len() == number).await;
            keepers.push(keeper);
        }
        let before = waiting().await;

        blocking(&apache, move |apache| [leader, other].map(|server| apache.pause(server))).await;
        // The other follower has noticed: it serves nobody.
        eventually("no server serves", async || blocking(&apache, move |apache| apache.mode(follower).is_none()).await)
            .await;
        tokio::time::sleep(2 * TIMEOUT).await;
        blocking(&apache, move |apache| {
            apache.resume(other);
            apache.wait_serving(follower).unwrap();
        })
        .await;

        let after = waiting().await;
        let places = |waiters: &[lockkeeper::admin::ContenderInfo]| {
            waiters.iter().map(|waiter| (waiter.node.clone(), waiter.session)).collect::<Vec<_>>()
        };
        assert_eq!(places(&after), places(&before));
        blocking(&apache, move |apache| apache.resume(leader)).await;
        guard.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap().unwrap().release().await.unwrap();
        }
        for keeper in keepers {
            keeper.close().await;
        }
        first.close().await;
    });
}

/// Each server is killed and restarted in turn, and then the leader. The session is the same until the end.
#[test]
fn ten_thousand_watches_lose_no_event_while_every_server_and_the_leader_restart() {
    const WATCHES: usize = 10_000;
    block_on(async {
        let apache = Arc::new(ensemble().await);
        let open = || Client::open(apache.connect_string().parse().unwrap(), Config::new(Duration::from_secs(20)));
        let ((client, mut states), (writer, _states)) = (open(), open());
        let path = |number: usize| format!("/watched-{number}");
        let mut watchers = BTreeMap::new();
        for first in (0..WATCHES).step_by(1_000) {
            let asked: Vec<_> = (first..first + 1_000).map(|number| client.exists_and_watch(&path(number))).collect();
            for (number, reply) in (first..).zip(asked) {
                let (missing, watcher) = reply.await;
                assert_eq!(missing, Ok(None));
                watchers.insert(number, watcher);
            }
        }
        let session = client.session();
        for round in 0..4 {
            let down = blocking(&apache, move |apache| {
                let server = if round < apache.size() { round } else { apache.leader().unwrap() };
                apache.kill(server);
                server
            });
            let down = down.await;
            let created = (round..WATCHES).step_by(100);
            for number in created.clone() {
                create(&writer, &path(number)).await;
            }
            blocking(&apache, move |apache| apache.restart(down).unwrap()).await;
            for number in created {
                let fired = tokio::time::timeout(PATIENCE, watchers.remove(&number).unwrap()).await;
                let fired = fired.unwrap_or_else(|_| panic!("round {round} has lost the event of {}", path(number)));
                assert_eq!(fired.unwrap().kind, EventKind::Created);
            }
        }
        while client.sync("/").await.is_err() {}
        let fired = |watcher: &mut Watcher| {
            let watcher = Pin::new(watcher);
            watcher.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert_eq!(watchers.values_mut().filter_map(|watcher| fired(watcher).then_some(())).count(), 0);
        assert_eq!(client.session(), session);
        let mut cuts = 0;
        while let Ok(state) = states.try_recv() {
            assert!(!matches!(state, ConnectionState::Over(_)), "{state:?}");
            cuts += usize::from(state == ConnectionState::Disconnected);
        }
        assert!(cuts > 0, "its server was restarted");
    });
}

/// The session sets its watches again in packets below the server's limit, and reads no node. Changes that were made while
/// it was away are reported, and later ones too.
#[test]
fn case_37_a_hundred_thousand_watches_are_set_again_in_few_packets_on_an_apache_server() {
    const WATCHES: usize = 100_000;
    const CREATED: usize = 100;
    block_on(async {
        let apache = tokio::task::spawn_blocking(|| Apache::single(Options::default()).unwrap()).await.unwrap();
        let proxy = Proxy::start(apache.addr(0)).await;
        let open = |servers: String| Client::open(servers.parse().unwrap(), Config::new(Duration::from_secs(60)));
        let (client, mut states) = open(proxy.connect_string());
        let (writer, _states) = open(apache.connect_string());
        let path = |number: usize| format!("/a-name-that-fills-several-packets-{number:010}");
        let mut watchers = Vec::new();
        for first in (0..WATCHES).step_by(1_000) {
            let asked: Vec<_> = (first..first + 1_000).map(|number| client.exists_and_watch(&path(number))).collect();
            for reply in asked {
                let (missing, watcher) = reply.await;
                assert_eq!(missing, Ok(None));
                watchers.push(watcher);
            }
        }
        let session = client.session();
        assert_eq!(states.recv().await, Some(ConnectionState::Connected));
        proxy.refuse();
        proxy.cut(Cut::Reset);
        assert_eq!(states.recv().await, Some(ConnectionState::Disconnected));
        for number in (0..WATCHES).step_by(WATCHES / CREATED) {
            create(&writer, &path(number)).await;
        }
        let before = proxy.counts();
        proxy.heal();
        // The session may have tried its only server before.
        while states.recv().await.unwrap() != ConnectionState::Connected {}
        for number in (WATCHES / CREATED / 2..WATCHES).step_by(WATCHES / CREATED) {
            create(&writer, &path(number)).await;
        }
        // They live until the requests are counted: dropping one removes its watch at the server.
        for (number, watcher) in watchers.iter_mut().enumerate() {
            if number.is_multiple_of(WATCHES / CREATED / 2) {
                let fired = tokio::time::timeout(PATIENCE, watcher).await;
                let fired = fired.unwrap_or_else(|_| panic!("the event of {} is lost", path(number)));
                assert_eq!(fired.unwrap().kind, EventKind::Created);
            } else {
                let fired = Pin::new(watcher).poll(&mut Context::from_waker(Waker::noop()));
                assert!(fired.is_pending(), "{} has an event", path(number));
            }
        }
        assert_eq!(client.session(), session);
        let sent = proxy.counts().since(&before).requested;
        let packets = sent.of_any(&[OpCode::SetWatches, OpCode::SetWatches2]);
        assert!((2..100).contains(&packets), "{sent:?}");
        let others = sent.total() - packets;
        assert!(others < 10, "{sent:?}");
        drop((watchers, apache));
    });
}

/// The user's nodes admit no other client. A wrong password and an unknown user get the error that names the servers.
#[test]
fn a_sasl_user_of_an_apache_server_gets_the_lock_and_a_wrong_password_is_refused_by_name() {
    const PASSWORD: &str = r#"a "secret" \ with, everything="#;
    block_on(async {
        let options = Options::default().sasl_user("jobs", PASSWORD).sasl_user("other", "another");
        let apache = tokio::task::spawn_blocking(|| Apache::single(options).unwrap()).await.unwrap();
        let servers = apache.connect_string();
        let config = Config { sasl: Some(("jobs".to_owned(), PASSWORD.to_owned())), ..Config::new(STEADY) };
        let (client, _states) = Client::open(servers.parse().unwrap(), config);
        let identities = client.who_am_i().await.unwrap();
        assert!(identities.contains(&("sasl".to_owned(), Some("jobs".to_owned()))), "{identities:?}");

        let builder = || Lockkeeper::builder().connect_timeout(PATIENCE).acl(LockAcl::Private);
        let keeper = builder().sasl("jobs", PASSWORD).connect(&servers).await.unwrap();
        let other = builder().sasl("other", "another").connect(&servers).await.unwrap();
        let guard = keeper.mutex("/sasl/a").acquire().await.unwrap();
        let refused = other.mutex("/sasl/a").acquire().await.unwrap_err();
        assert_eq!(Error::from(refused.clone()).kind(), ErrorKind::Refused, "{refused}");
        guard.release().await.unwrap();
        // Not an unknown user with another user's password: Apache's server then checks the password of the user before.
        for (user, password) in [("jobs", "hunter2"), ("nobody", "hunter2"), ("other", PASSWORD)] {
            let error = builder().sasl(user, password).connect(&servers).await.unwrap_err();
            let ConnectError::Session(SessionError::AuthFailed { servers: named }) = &error else {
                panic!("{user}: {error:?}");
            };
            assert_eq!(named, &servers);
            assert!(error.to_string().contains(&servers) && !error.to_string().contains(password), "{error}");
        }
        keeper.close().await;
        other.close().await;
        drop(apache);
    });
}

/// The server tells each client without SASL so, and closes its connection. Nothing is gained by more connections.
#[test]
fn an_apache_server_that_requires_sasl_ends_a_call_without_further_connections() {
    block_on(async {
        let options = Options::default().property("zookeeper.sessionRequireClientSASLAuth", "true");
        let options = options.sasl_user("jobs", "secret");
        let apache = tokio::task::spawn_blocking(|| Apache::single(options).unwrap()).await.unwrap();
        let proxy = Proxy::start(apache.addr(0)).await;
        let builder = || Lockkeeper::builder().connect_timeout(PATIENCE);
        let error: Error = match builder().connect(&proxy.connect_string()).await {
            Ok(keeper) => keeper.mutex("/sasl/a").acquire().timeout(PATIENCE).await.unwrap_err().into(),
            Err(error) => error.into(),
        };
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("SASL") && error.hint().unwrap().contains("Builder::sasl"), "{error}");
        // Two if the server has ended the session before the acquire begins, which then opens another.
        assert!(proxy.counts().accepted <= 2, "{error}: {:?}", proxy.counts());

        // Calls that open another session end as well.
        let begin = proxy.counts().accepted;
        if let Ok(keeper) = builder().connect(&proxy.connect_string()).await {
            let error = Error::from(keeper.check().await.unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        }
        assert!(proxy.counts().accepted - begin <= 2, "{:?}", proxy.counts());

        let keeper = builder().sasl("jobs", "secret").connect(&proxy.connect_string()).await.unwrap();
        keeper.mutex("/sasl/a").acquire().await.unwrap().release().await.unwrap();
        keeper.close().await;
        drop(apache);
    });
}

/// Creates a node that no one else creates, through lost connections.
async fn create(writer: &Client, path: &str) {
    loop {
        match writer.create(path, "", &[Acl::OPEN], CreateMode::Persistent).await {
            Ok(_) | Err(RequestError::Refused(ErrorCode::NodeExists)) => return,
            Err(RequestError::ConnectionLoss) => {}
            Err(error) => panic!("{path}: {error}"),
        }
    }
}

async fn empty(keeper: &Lockkeeper, path: &str) -> bool {
    match keeper.admin().show(path).await {
        Ok(seen) => seen.holders.is_empty() && seen.waiters.is_empty(),
        Err(error) => matches!(error, AdminError::NoSuchLock { .. }),
    }
}

async fn ensemble() -> Apache {
    tokio::task::spawn_blocking(|| Apache::ensemble(3, Options::default()).unwrap()).await.unwrap()
}

/// Runs a blocking job on the servers.
async fn blocking<T: Send + 'static>(apache: &Arc<Apache>, job: impl FnOnce(&Apache) -> T + Send + 'static) -> T {
    let apache = apache.clone();
    tokio::task::spawn_blocking(move || job(&apache)).await.unwrap()
}

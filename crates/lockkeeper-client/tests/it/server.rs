//! Tests of the client with the embedded server.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_client::wire::{
    Create, CreateMode, ErrorCode, EventKind, Request, Response, SetData, VersionedPath, WatchedPath,
};
use lockkeeper_client::{Client, Config, ConnectionState, End, RequestError};
use lockkeeper_server::{Accounts, Server, Storage};
use tokio::sync::mpsc::UnboundedReceiver;

/// Only a fault ends a connection with such a timeout, and no busy machine.
const TIMEOUT: Duration = Duration::from_secs(40);

async fn connected(server: &Server) -> (Client, UnboundedReceiver<ConnectionState>) {
    let (client, mut states) = Client::open(server.connect_string().parse().unwrap(), Config::new(TIMEOUT));
    assert_eq!(states.recv().await, Some(ConnectionState::Connected));
    (client, states)
}

fn watched(path: &str, watch: bool) -> WatchedPath {
    WatchedPath { path: path.to_owned(), watch }
}

#[tokio::test]
async fn requests_are_answered_in_the_order_of_the_calls() {
    let server = Server::ephemeral().await.unwrap();
    let (client, _states) = connected(&server).await;
    let replies: Vec<_> = (0..1_000)
        .map(|_| client.request(Request::Create(Create::new("/n-", "x", CreateMode::EphemeralSequential))))
        .collect();
    for (at, reply) in replies.into_iter().enumerate() {
        match reply.await {
            Ok(Response::Created { path, .. }) => assert_eq!(*path, *format!("/n-{at:010}")),
            other => panic!("{other:?}"),
        }
    }
    client.close();
}

#[tokio::test]
async fn a_watch_fires_once_with_what_happened() {
    let server = Server::ephemeral().await.unwrap();
    let (client, _states) = connected(&server).await;
    let (missing, made) = client.request_and_watch(Request::Exists(watched("/a", true))).await;
    assert_eq!(missing, Err(RequestError::Refused(ErrorCode::NoNode)));
    client.request(Request::Create(Create::new("/a", "x", CreateMode::Persistent))).await.unwrap();
    assert_eq!(made.await.map(|event| event.kind), Some(EventKind::Created));

    let (read, changed) = client.request_and_watch(Request::GetData(watched("/a", true))).await;
    assert!(matches!(read, Ok(Response::Data { .. })));
    let set = SetData { path: "/a".to_owned(), data: Some("y".into()), version: -1 };
    client.request(Request::SetData(set)).await.unwrap();
    assert_eq!(changed.await.map(|event| event.kind), Some(EventKind::DataChanged));
}

#[tokio::test]
async fn a_persistent_watch_delivers_every_event_below_it() {
    let server = Server::ephemeral().await.unwrap();
    let (client, _states) = connected(&server).await;
    let mut watcher = client.watch("/", true).await.unwrap();
    for path in ["/a", "/a/b"] {
        client.request(Request::Create(Create::new(path, "", CreateMode::Persistent))).await.unwrap();
        let event = watcher.next().await.unwrap();
        assert_eq!((event.kind, &*event.path), (EventKind::Created, path));
    }
    client.request(Request::Delete(VersionedPath { path: "/a/b".to_owned(), version: -1 })).await.unwrap();
    assert_eq!(watcher.next().await.unwrap().kind, EventKind::Deleted);
}

#[tokio::test]
async fn a_dropped_handle_closes_the_session_and_deletes_its_nodes() {
    let server = Server::ephemeral().await.unwrap();
    let (client, mut states) = connected(&server).await;
    let (observer, _observed) = connected(&server).await;
    client.request(Request::Create(Create::new("/mine", "", CreateMode::Ephemeral))).await.unwrap();
    let (_, gone) = observer.request_and_watch(Request::Exists(watched("/mine", true))).await;
    drop(client);
    assert_eq!(gone.await.map(|event| event.kind), Some(EventKind::Deleted));
    // Before an answer that arrives with the request, there is no `Closing`.
    let state = match states.recv().await {
        Some(ConnectionState::Closing) => states.recv().await,
        state => state,
    };
    assert_eq!(state, Some(ConnectionState::Over(End::Closed)));
    assert_eq!(states.recv().await, None);
}

#[tokio::test]
async fn a_request_after_close_fails_with_closed() {
    let server = Server::ephemeral().await.unwrap();
    let (client, _states) = connected(&server).await;
    client.close();
    assert_eq!(client.request(Request::WhoAmI).await, Err(RequestError::SessionOver(End::Closed)));
}

#[tokio::test]
async fn a_request_after_the_end_of_the_session_is_answered_and_leaves_no_watch() {
    let server = Server::ephemeral().await.unwrap();
    let (client, mut states) = connected(&server).await;
    server.faults().expire(client.session()).await.unwrap();
    while states.recv().await.is_some() {}
    let over = Err(RequestError::SessionOver(End::Expired));
    let answered = tokio::time::timeout(TIMEOUT, async {
        assert_eq!(client.request(Request::WhoAmI).await, over);
        let (reply, watcher) = client.request_and_watch(Request::Exists(watched("/a", true))).await;
        assert_eq!((reply, watcher.await), (over, None));
        assert!(client.watch("/", true).await.is_err());
    });
    answered.await.expect("every request is answered");
}

#[test]
fn a_session_without_its_runtime_answers_every_request() {
    let servers = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = servers.block_on(Server::ephemeral()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (client, mut states) = runtime.block_on(connected(&server));
    let mut watcher = runtime.block_on(client.watch("/", true)).unwrap();
    let (_, fired) = runtime.block_on(client.request_and_watch(Request::Exists(watched("/a", true))));
    // The server's only thread stands still, so this request is on its way.
    let (stands, is_standing) = std::sync::mpsc::channel();
    let (goes_on, stop) = std::sync::mpsc::channel::<()>();
    servers.spawn(async move {
        _ = stands.send(());
        _ = stop.recv();
    });
    is_standing.recv().unwrap();
    let under_way = client.request(Request::WhoAmI);
    drop(runtime);
    drop(goes_on);
    let elsewhere = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let all = async {
        assert_eq!(under_way.await, Err(RequestError::DriverEnded));
        assert_eq!(client.request(Request::WhoAmI).await, Err(RequestError::DriverEnded));
        assert_eq!((watcher.next().await, fired.await), (None, None));
        while let Some(state) = states.recv().await {
            assert!(matches!(state, ConnectionState::Disconnected | ConnectionState::Paused), "{state:?}");
        }
        client.close();
    };
    elsewhere.block_on(async { tokio::time::timeout(TIMEOUT, all).await }).expect("nothing waits forever");
}

/// Opens a session as this SASL user and returns its first state.
async fn logged_in(user: &str, password: &str) -> Option<ConnectionState> {
    let config = lockkeeper_server::Config::default()
        .with_storage(Storage::Memory)
        .with_listen("127.0.0.1:0".parse().unwrap())
        .with_accounts(Accounts::new().with_sasl_user("client1", "password1"));
    let server = Server::start(config).await.unwrap();
    let config = Config { sasl: Some((user.to_owned(), password.to_owned())), ..Config::new(TIMEOUT) };
    let (client, mut states) = Client::open(server.connect_string().parse().unwrap(), config);
    let state = states.recv().await;
    if state == Some(ConnectionState::Connected) {
        let identities = client.request(Request::WhoAmI).await.unwrap();
        let sasl = ("sasl".to_owned(), Some(user.to_owned()));
        assert!(matches!(identities, Response::Identities(identities) if identities.contains(&sasl)));
    }
    state
}

#[tokio::test]
async fn a_user_of_sasl_is_known_to_the_server_and_a_wrong_password_is_refused() {
    assert_eq!(logged_in("client1", "password1").await, Some(ConnectionState::Connected));
    assert_eq!(logged_in("client1", "password2").await, Some(ConnectionState::Over(End::AuthFailed)));
    assert_eq!(logged_in("nobody", "password1").await, Some(ConnectionState::Over(End::AuthFailed)));
}

#[tokio::test]
async fn a_session_whose_server_was_replaced_by_an_empty_one_is_over() {
    let memory = |listen: &str| {
        let config = lockkeeper_server::Config::default().with_storage(Storage::Memory);
        Server::start(config.with_listen(listen.parse().unwrap()))
    };
    let server = memory("127.0.0.1:0").await.unwrap();
    let address = server.connect_string();
    let config = Config::new(Duration::from_secs(1));
    let (client, mut states) = Client::open(address.parse().unwrap(), config);
    assert_eq!(states.recv().await, Some(ConnectionState::Connected));
    for _ in 0..50 {
        client.request(Request::Create(Create::new("/n-", "x", CreateMode::EphemeralSequential))).await.unwrap();
    }
    server.shutdown().await.unwrap();
    let _empty = memory(&address).await.unwrap();
    let over = async {
        while let Some(state) = states.recv().await {
            if let ConnectionState::Over(end) = state {
                return Some(end);
            }
        }
        None
    };
    assert_eq!(tokio::time::timeout(TIMEOUT, over).await.unwrap(), Some(End::Expired));
}

#[tokio::test]
async fn a_thread_that_was_blocked_reads_what_has_arrived_before_it_gives_up_the_connection() {
    let server = Server::ephemeral().await.unwrap();
    let (client, mut states) = connected(&server).await;
    let before = server.stats().packets_received;
    let early = client.get("/");
    while server.stats().packets_received == before {
        tokio::task::yield_now().await;
    }
    // Longer than the accepted silence, shorter than the session timeout: this is the fault.
    std::thread::sleep(client.session_timeout() / 2);
    let late = client.get("/");
    assert!(early.await.is_ok());
    assert!(late.await.is_ok());
    assert!(states.try_recv().is_err(), "the connection has stayed");
}

#[tokio::test]
async fn a_request_that_the_session_refuses_is_answered_without_a_word_from_the_server() {
    let server = Server::ephemeral().await.unwrap();
    let (client, _states) = connected(&server).await;
    client.request(Request::Sync { path: "/".to_owned() }).await.unwrap();
    let mut refused = client.request(Request::Ping);
    // The driver is the only other task of this runtime.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let answer = Pin::new(&mut refused).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(answer, Poll::Ready(Err(RequestError::Refused(ErrorCode::BadArguments))));
}

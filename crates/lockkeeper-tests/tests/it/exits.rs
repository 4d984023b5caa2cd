//! Short programs: what is left of a lock when the process ends right after its guard was dropped.

use std::process::{Command, Stdio};
use std::time::Duration;

use lockkeeper::embedded::Home;
use lockkeeper::{Guard, Lockkeeper, blocking};
use lockkeeper_server::{Config, Server};
use lockkeeper_testkit::proxy::{OpCode, Proxy};

use crate::support::block_on;

/// Set only for the child processes: how the guard is dropped, and the servers.
const WAY: &str = "LOCKKEEPER_TEST_EXIT";
const SERVERS: &str = "LOCKKEEPER_TEST_EXIT_SERVERS";

/// How many processes end in each way.
const RUNS: usize = 8;

/// How many locks one process has that drops several guards.
const SEVERAL: usize = 5;

/// The session of a child lives for this long, and its locks with it if nothing releases them.
const SESSION: Duration = Duration::from_secs(40);

/// The longest wait for a lock that must be free. Far shorter than the session.
const SOON: Duration = Duration::from_secs(15);

type Done = Result<(), Box<dyn std::error::Error>>;

fn fail(_guard: Guard) -> Done {
    Err("as asked")?;
    Ok(())
}

/// Not a test: a child process that acquires, drops its guard, and ends at once.
#[test]
fn child() {
    let (Ok(way), Ok(servers)) = (std::env::var(WAY), std::env::var(SERVERS)) else { return };
    let builder = Lockkeeper::builder().session_timeout(SESSION);
    let keeper = builder.connect_blocking(&servers).unwrap();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let acquire = || keeper.mutex("/locks/exits").acquire();
    match &*way {
        "a drop" => drop(acquire().wait().unwrap()),
        "an early return" => fail(acquire().wait().unwrap()).unwrap_err().to_string().truncate(0),
        "a panic" => {
            let guard = acquire().wait().unwrap();
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _guard = guard;
                panic!("as asked");
            }));
            assert!(unwound.is_err());
        }
        "a drop in a task" => {
            let runtime = runtime();
            runtime.block_on(async {
                let guard = acquire().await.unwrap();
                let exits = async move {
                    drop(guard);
                    std::process::exit(0)
                };
                crate::support::spawn(exits).await.unwrap()
            })
        }
        "a drop after the runtime" => {
            let runtime = runtime();
            let guard = runtime.block_on(acquire().into_future()).unwrap();
            drop(runtime);
            drop(guard);
        }
        "several drops" => {
            let acquire = |at| keeper.mutex(format!("/locks/exits-{at}")).acquire().wait().unwrap();
            drop((0..SEVERAL).map(acquire).collect::<Vec<_>>());
        }
        other => panic!("{other}"),
    }
    std::process::exit(0)
}

/// Runs a child that ends in this way, until it has ended.
fn run(way: &str, servers: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["exits::child", "--exact", "--nocapture"]).env(WAY, way).env(SERVERS, servers);
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(child.status().unwrap().success(), "{way}");
}

/// Each lock of a child that has ended is free long before its session expires.
fn leaves_nothing(keeper: &Lockkeeper, servers: &str) {
    for way in ["a drop", "an early return", "a panic", "a drop in a task", "a drop after the runtime"] {
        for at in 0..RUNS {
            run(way, servers);
            let next = keeper.mutex("/locks/exits").acquire().timeout(SOON).wait();
            next.unwrap_or_else(|error| panic!("{way}, process {at}: {error}")).release_blocking().unwrap();
        }
    }
}

/// Runs a claim with a handle for the server that answers at this address, while the server runs.
async fn with_keeper(servers: String, claim: impl FnOnce(&Lockkeeper, &str) + Send + 'static) {
    let claimed = tokio::task::spawn_blocking(move || {
        let keeper = blocking::connect(&servers).unwrap();
        claim(&keeper, &servers);
        keeper.close_blocking();
    });
    claimed.await.unwrap();
}

#[test]
fn a_process_that_ends_right_after_the_drop_of_its_guard_leaves_no_lock() {
    block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        with_keeper(server.connect_string(), leaves_nothing).await;
    });
}

#[test]
fn a_process_that_ends_right_after_the_drop_leaves_no_lock_on_an_embedded_server_of_another_process() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let hosted = Home::new(dir.path()).host().await.unwrap();
        with_keeper(hosted.endpoint().connect_string(), leaves_nothing).await;
        hosted.shutdown().await.unwrap();
    });
}

/// Deletes that follow each other gather while two are under way, unless the program may end next.
#[test]
fn a_process_that_drops_several_guards_and_ends_leaves_none_of_their_locks() {
    block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        let claim = |keeper: &Lockkeeper, servers: &str| {
            for at in 0..RUNS {
                run("several drops", servers);
                for lock in 0..SEVERAL {
                    let next = keeper.mutex(format!("/locks/exits-{lock}")).acquire().timeout(SOON).wait();
                    next.unwrap_or_else(|error| panic!("process {at}, lock {lock}: {error}"))
                        .release_blocking()
                        .unwrap();
                }
            }
        };
        with_keeper(server.connect_string(), claim).await;
    });
}

/// A hold of a tenth of a second begins to watch its node. Its process may end before that is answered.
#[test]
fn a_dropped_guard_waits_for_no_answer_about_its_node() {
    block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        let proxy = Proxy::start(server.addr()).await;
        let keeper = Lockkeeper::connect(&proxy.connect_string()).await.unwrap();
        let watch = proxy.on(OpCode::GetData).path("lock-").hold_reply();
        let guard = keeper.mutex("/locks/exits").acquire().await.unwrap();
        watch.caught().await;
        let before = proxy.counts();
        drop(guard);
        proxy.wait_until(|counts| counts.since(&before).requested.of(OpCode::Delete) == 1).await;
        watch.release();
        keeper.close().await;
    });
}

//! Short programs: what is left of a lock when the process ends right after its guard was dropped.

use std::io::{BufRead, BufReader};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper::embedded::ServerDir;
use lockkeeper::error::Error;
use lockkeeper::{Guard, Holding, Lockkeeper, NodeFormat, blocking};
use lockkeeper_helix::HelixLock;
use lockkeeper_server::{Config, Server};
use lockkeeper_testkit::proxy::{OpCode, Proxy};

use crate::support::block_on;

/// Set only for the child processes: how the guard is dropped, the servers, and the lock.
const WAY: &str = "LOCKKEEPER_TEST_EXIT";
const SERVERS: &str = "LOCKKEEPER_TEST_EXIT_SERVERS";
const LOCK: &str = "LOCKKEEPER_TEST_EXIT_LOCK";

/// How many processes end in each way.
const RUNS: usize = if cfg!(deep) { 200 } else { 8 };

/// What a child prints once it holds its lock, before the time.
const HELD: &str = "held at ";

/// The process waits no longer than this when it exits, which may be too short on a busy machine.
const AT_EXIT: Duration = Duration::from_millis(100);

/// How many locks one process has that drops several guards.
const SEVERAL: usize = 5;

/// The session of a child lives for this long, and its locks with it if nothing releases them.
const SESSION: Duration = Duration::from_secs(40);

/// The longest wait for a lock that must be free. Far shorter than the session.
const SOON: Duration = Duration::from_secs(15);

/// The locks whose release begins with a read.
const READ_FIRST: [&str; 4] = ["a lock with classes", "a lock of Recipe's format", "a numbered lock", "a leased lock"];

type Done = Result<(), Box<dyn std::error::Error>>;

/// Acquires the lock of a child that ends in this way.
fn acquire(keeper: &Lockkeeper, way: &str, lock: &str, id: &str) -> Result<Holding, Error> {
    let formatted = |format| keeper.mutex(lock).node_format(format).acquire();
    let acquire = match way {
        "a lock with classes" => keeper.priority_lock(lock).acquire(),
        "a lock of Recipe's format" => formatted(NodeFormat::Recipe),
        "a numbered lock" => formatted(NodeFormat::Numbered),
        "a leased lock" => {
            let lock = HelixLock::new(keeper, lock, SESSION).user_id(id);
            return Ok(lock.acquire().timeout(SOON).wait()?.into());
        }
        _ => keeper.mutex(lock).acquire(),
    };
    Ok(acquire.timeout(SOON).wait()?.into())
}

/// Its task is woken on the library's own thread.
struct Exits;

impl Wake for Exits {
    fn wake(self: Arc<Self>) {
        std::process::exit(0)
    }
}

fn fail(_guard: Guard) -> Done {
    Err("as asked")?;
    Ok(())
}

/// Not a test: a child process that acquires, drops its guard, and ends at once.
#[test]
fn child() {
    let (Ok(way), Ok(servers)) = (std::env::var(WAY), std::env::var(SERVERS)) else { return };
    let builder = Lockkeeper::builder().session_timeout(SESSION);
    let keeper = match servers.starts_with('/') {
        true => builder.embedded_blocking(&servers),
        false => builder.connect_blocking(&servers),
    };
    let keeper = keeper.unwrap();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lock = std::env::var(LOCK).unwrap();
    let acquire = || keeper.mutex(&lock).acquire();
    match &*way {
        "a drop" => drop(held(acquire().wait().unwrap())),
        "an early return" => fail(held(acquire().wait().unwrap())).unwrap_err().to_string().truncate(0),
        "a panic" => {
            let guard = held(acquire().wait().unwrap());
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _guard = guard;
                panic!("as asked");
            }));
            assert!(unwound.is_err());
        }
        "a drop in a task" => {
            let runtime = runtime();
            runtime.block_on(async {
                let guard = held(acquire().await.unwrap());
                let exits = async move {
                    drop(guard);
                    std::process::exit(0)
                };
                crate::support::spawn(exits).await.unwrap()
            })
        }
        "a drop after the runtime" => {
            let runtime = runtime();
            let guard = held(runtime.block_on(acquire().into_future()).unwrap());
            drop(runtime);
            drop(guard);
        }
        "several drops" => {
            let acquire = |at| keeper.mutex(format!("{lock}-{at}")).acquire().wait().unwrap();
            drop(held((0..SEVERAL).map(acquire).collect::<Vec<_>>()));
        }
        "an exit on the library's thread" => {
            drop(held(acquire().wait().unwrap()));
            let mut next = pin!(acquire().into_future());
            while next.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Exits)))).is_pending() {
                std::thread::park();
            }
        }
        "a drop while no server answers" => {
            let guard = held(acquire().wait().unwrap());
            std::io::stdin().read_line(&mut String::new()).unwrap();
            drop(guard);
        }
        way if READ_FIRST.contains(&way) => drop(held(self::acquire(&keeper, way, &lock, "child").unwrap())),
        other => panic!("{other}"),
    }
    std::process::exit(0)
}

/// Says in a child that it holds its lock now.
fn held<T>(hold: T) -> T {
    println!("{HELD}{}", now().as_nanos());
    hold
}

fn now() -> Duration {
    UNIX_EPOCH.elapsed().unwrap()
}

/// A child that ends in this way.
fn child_of(way: &str, servers: &str, lock: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["exits::child", "--exact", "--nocapture"]).env(WAY, way).env(SERVERS, servers).env(LOCK, lock);
    child.stdin(Stdio::null()).stderr(Stdio::null());
    child
}

/// Runs a child that ends in this way, until it has ended. Returns for how long it has lived after it held its lock.
fn run(way: &str, servers: &str, lock: &str) -> Duration {
    let output = child_of(way, servers, lock).output().unwrap();
    let ended = now();
    assert!(output.status.success(), "{way}");
    let said = String::from_utf8(output.stdout).unwrap();
    let held = said.lines().find_map(|line| Some(line.split_once(HELD)?.1)).expect("it says so");
    ended.saturating_sub(Duration::from_nanos(held.parse().unwrap()))
}

/// Each lock of a child that has ended is free long before its session expires.
fn leaves_nothing(keeper: &Lockkeeper, servers: &str) {
    let ways = ["a drop", "an early return", "a panic", "a drop in a task", "a drop after the runtime"];
    for (runs, way) in ways.map(|way| (RUNS, way)).into_iter().chain(READ_FIRST.map(|way| (RUNS / 4, way))) {
        for at in 0..runs {
            let lock = format!("/locks/{}-{at}", way.replace(' ', "-"));
            let lived = run(way, servers, &lock);
            is_free(keeper, way, &lock, lived);
        }
    }
}

/// The lock of a child that ended in this way is free, if the child has `lived` for less than the time that it may wait.
fn is_free(keeper: &Lockkeeper, way: &str, lock: &str, lived: Duration) {
    match acquire(keeper, way, lock, "next") {
        Ok(next) => next.release_blocking().unwrap(),
        Err(error) if lived >= AT_EXIT => println!("{way}: no server has answered within {lived:?}: {error}"),
        Err(error) => panic!("{way}, {lived:?} after the grant: {error}"),
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
        let hosted = ServerDir::new(dir.path()).host().await.unwrap();
        with_keeper(hosted.endpoint().connect_string(), leaves_nothing).await;
        hosted.shutdown().await.unwrap();
    });
}

#[test]
fn a_process_that_ends_right_after_the_drop_leaves_no_lock_on_its_own_embedded_server() {
    let dir = tempfile::tempdir().unwrap();
    for at in 0..RUNS {
        let lived = run("a drop", dir.path().to_str().unwrap(), &format!("/locks/exits-{at}"));
        let keeper = blocking::embedded(dir.path()).unwrap();
        is_free(&keeper, "a drop", &format!("/locks/exits-{at}"), lived);
        keeper.close_blocking();
    }
}

/// Deletes that follow each other gather while two are under way.
#[test]
fn a_process_that_drops_several_guards_and_ends_leaves_none_of_their_locks() {
    block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        let claim = |keeper: &Lockkeeper, servers: &str| {
            for at in 0..RUNS {
                let lived = run("several drops", servers, &format!("/locks/exits-{at}"));
                (0..SEVERAL)
                    .for_each(|lock| is_free(keeper, "several drops", &format!("/locks/exits-{at}-{lock}"), lived));
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

/// The drop and the exit wait for no server for ever.
#[test]
fn a_process_ends_whose_release_no_server_answers() {
    block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        let proxy = Proxy::start(server.addr()).await;
        let ends = tokio::task::spawn_blocking(move || {
            let mut child = child_of("a drop while no server answers", &proxy.connect_string(), "/locks/exits");
            let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(said.any(|line| line.unwrap().contains(HELD)));
            proxy.stall();
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        });
        ends.await.unwrap();
    });
}

/// There, it waits for itself, in vain.
#[test]
fn a_process_ends_whose_waker_exits_on_the_thread_of_the_library() {
    block_on(async {
        let server = Server::start(Config::default()).await.unwrap();
        let exits = |_: &Lockkeeper, servers: &str| _ = run("an exit on the library's thread", servers, "/locks/exits");
        with_keeper(server.connect_string(), exits).await;
    });
}

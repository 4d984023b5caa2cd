//! `Lockkeeper::embedded`: one directory, one machine, and one server at a time, whichever handle hosts it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::acl::LockAcl;
use lockkeeper::embedded::{Endpoint, ServerDir, server_config};
use lockkeeper::error::{AcquireError, ConnectError, EmbeddedError, SessionError};
use lockkeeper::{Guard, Lockkeeper, Mutex, blocking};
use lockkeeper_config::settings::own_server_dir;

use crate::support::{STEADY, block_on, eventually};

/// The shortest session timeout of an embedded server.
const SHORT: Duration = Duration::from_secs(1);

async fn embedded(dir: &Path, session_timeout: Duration) -> Lockkeeper {
    Lockkeeper::builder().session_timeout(session_timeout).embedded(dir).await.unwrap()
}

/// Acquires despite server failures.
async fn acquire_despite_failures(mutex: &Mutex) -> Guard {
    loop {
        match mutex.acquire().await {
            Ok(guard) => return guard,
            Err(error) if error.kind().is_retryable() => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn an_empty_directory_path_is_refused_by_name() {
    block_on(async {
        let Err(ConnectError::Misuse(error)) = Lockkeeper::embedded("").await else { panic!("an empty path is used") };
        assert_eq!(error.to_string(), "the path of the embedded server's directory is empty");
        assert!(error.hint().is_some_and(|hint| hint.contains("name a directory")), "{error:?}");
    });
}

/// The first handle hosts the server, the second and the third join; they exclude each other. When the host closes, another
/// handle hosts: the holder keeps its lock, the waiter its position, and tokens keep increasing.
#[test]
fn holders_and_waiters_survive_the_closing_of_the_hosting_handle() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let first = embedded(dir.path(), STEADY).await;
        let second = embedded(dir.path(), STEADY).await;
        let third = embedded(dir.path(), STEADY).await;
        let home = ServerDir::new(dir.path());
        let endpoint = home.find().unwrap().expect("the first hosts");
        assert_eq!(pid(&endpoint).await, std::process::id());
        let guard = second.mutex("/locks/nightly").acquire().await.unwrap();
        assert!(matches!(first.mutex("/locks/nightly").try_acquire().await, Err(AcquireError::Held { .. })));
        let waiting = crate::support::spawn(third.mutex("/locks/nightly").acquire().into_future());
        eventually("the third waits", async || waiters(&second, "/locks/nightly").await == 1).await;
        first.close().await;
        drop(first);
        // The answer may come from any server.
        eventually("a server answers", async || waiters(&second, "/locks/nightly").await == 1).await;
        assert_eq!(home.find().unwrap().expect("one of the others hosts"), endpoint);
        eventually("the hold is still held", async || guard.is_held()).await;
        let token = guard.token();
        guard.release().await.unwrap();
        let next = waiting.await.unwrap().expect("the waiter kept its position");
        assert!(token < next.token(), "{token} is not before {}", next.token());
        next.release().await.unwrap();
        second.close().await;
        third.close().await;
    });
}

async fn pid(endpoint: &Endpoint) -> u32 {
    endpoint.pid().await.unwrap().expect("it is on this machine")
}

/// Counts the waiters of a lock; 0 if no server answers.
async fn waiters(keeper: &Lockkeeper, path: &str) -> usize {
    keeper.admin().show(path).await.map_or(0, |lock| lock.waiters.len())
}

/// A stop loses nothing that was acknowledged: a later host finds it.
#[test]
fn tokens_increase_across_hosts() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let mut last = None;
        for _ in 0..3 {
            let keeper = embedded(dir.path(), STEADY).await;
            let guard = keeper.mutex("/locks/nightly").acquire().await.unwrap();
            assert!(last < Some(guard.token()));
            last = Some(guard.token());
            guard.release().await.unwrap();
            keeper.close().await;
        }
    });
}

/// Only this user may enter the directory and connect to the socket, whatever the umask is.
#[test]
fn the_directory_and_the_socket_are_this_users_alone() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let keeper = embedded(&home, STEADY).await;
        let mode = |name: &str| std::fs::metadata(home.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("socket"), mode("data")), (0o700, 0o600, 0o700));
        // Any program of this user can use it by its connect string.
        let endpoint = ServerDir::new(&home).find().unwrap().unwrap();
        let guard = keeper.mutex("/locks/nightly").acquire().await.unwrap();
        let other = Lockkeeper::builder().session_timeout(STEADY).connect(&endpoint.connect_string()).await.unwrap();
        assert_eq!(other.admin().list("/locks").await.unwrap().len(), 1);
        other.close().await;
        guard.release().await.unwrap();
        assert!(endpoint.ask("srvr").await.unwrap().contains("Mode: standalone"));
        keeper.close().await;
    });
}

#[test]
fn an_option_that_has_no_effect_with_an_embedded_server_is_refused_by_its_name() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let nowhere = dir.path().join("nowhere");
        let builder = Lockkeeper::builder;
        for (option, given) in [
            ("Builder::sasl", builder().sasl("jobs", "secret")),
            ("Builder::credential", builder().credential("digest", "user:secret")),
            ("Builder::auth_file", builder().auth_file(&nowhere)),
            ("Builder::tls_files", builder().tls_files(&nowhere, None::<(PathBuf, PathBuf)>)),
        ] {
            match given.embedded(&home).await {
                Err(ConnectError::Misuse(error)) => {
                    assert!(error.problem.starts_with(&format!("{option} has no effect")), "{error}");
                    assert!(error.remedy.is_some_and(|remedy| remedy.contains("Builder::connect")));
                }
                other => panic!("{option}: {other:?}"),
            }
        }
        assert!(!home.exists(), "a refused call has started a server");
    });
}

/// This user is the credential. A client of the port, which proves no user, may do nothing there.
#[test]
fn the_access_list_of_a_handle_is_that_of_its_nodes_on_an_embedded_server() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let mut config = server_config();
        config.listen = Some(([127, 0, 0, 1], 0).into());
        let hosted = ServerDir::new(dir.path()).host_with(config, &[]).await.unwrap();
        let private = Lockkeeper::builder().acl(LockAcl::Private).embedded(dir.path()).await.unwrap();
        private.mutex("/locks/ours").acquire().await.unwrap().release().await.unwrap();
        let same_user = embedded(dir.path(), STEADY).await;
        same_user.mutex("/locks/ours").acquire().await.unwrap().release().await.unwrap();
        let stranger = Lockkeeper::connect(&hosted.server().connect_string()).await.unwrap();
        let refused = stranger.mutex("/locks/ours").acquire().await;
        assert!(matches!(refused, Err(AcquireError::Session(SessionError::Refused { .. }))), "{refused:?}");
        for keeper in [private, same_user, stranger] {
            keeper.close().await;
        }
    });
}

/// Then another user could put another server there, and two could hold one lock.
#[test]
fn a_directory_that_others_can_write_is_refused_before_and_after_it_is_used() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let home = dir.path().join("home");
        embedded(&home, STEADY).await.close().await;
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Lockkeeper::embedded(&home).await.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, ConnectError::Session(SessionError::Embedded(EmbeddedError::File { .. }))),
            "{error:?}"
        );
        assert!(text.contains("chmod go-w") && text.contains(&home.display().to_string()), "{text}");
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o700)).unwrap();
        embedded(&home, STEADY).await.close().await;
    });
}

/// The file of a socket is no proof: clients ignore what a killed host left, and what is no socket.
#[test]
fn a_stale_socket_is_ignored_and_replaced() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        embedded(dir.path(), STEADY).await.close().await;
        let home = ServerDir::new(dir.path());
        for stale in [true, false] {
            eventually("no handle hosts", async || home.find().unwrap().is_none()).await;
            match stale {
                true => drop(std::os::unix::net::UnixListener::bind(home.socket()).unwrap()),
                false => std::fs::write(home.socket(), "x").unwrap(),
            }
            assert_eq!(home.find().unwrap(), None);
            let keeper = embedded(dir.path(), STEADY).await;
            assert!(home.find().unwrap().is_some());
            keeper.mutex("/locks/a").acquire().await.unwrap().release().await.unwrap();
            keeper.close().await;
        }
    });
}

/// The address of a Unix socket has room for 107 bytes.
#[test]
#[cfg(target_os = "linux")]
fn a_directory_may_be_as_deep_as_the_system_allows() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        for depth in [1, 12] {
            let home = dir.path().join(vec!["twenty-bytes-of-name"; depth].join("/"));
            let keepers = [embedded(&home, STEADY).await, embedded(&home, STEADY).await];
            let guard = keepers[0].mutex("/locks/a").acquire().await.unwrap();
            assert!(keepers[1].mutex("/locks/a").try_acquire().await.is_err());
            let endpoint = ServerDir::new(&home).find().unwrap().unwrap();
            assert_eq!(pid(&endpoint).await, std::process::id());
            let other = Lockkeeper::connect(&endpoint.connect_string()).await.unwrap();
            assert_eq!(other.admin().list("/locks").await.unwrap().len(), 1);
            other.close().await;
            guard.release().await.unwrap();
            for keeper in keepers {
                keeper.close().await;
            }
        }
    });
}

/// Any number of handles that open together share one server.
#[test]
fn handles_that_race_to_host_share_one_server() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let racers = (0..8).map(|_| {
            crate::support::spawn(Lockkeeper::builder().session_timeout(STEADY).embedded(dir.path().to_owned()))
        });
        let mut keepers = Vec::new();
        for racer in futures_util::future::join_all(racers).await {
            keepers.push(racer.unwrap().unwrap());
        }
        let guard = keepers[0].mutex("/locks/nightly").acquire().await.unwrap();
        for keeper in &keepers {
            match keeper.mutex("/locks/nightly").try_acquire().await {
                Err(AcquireError::Held { holder: Some(holder), .. }) => assert_eq!(holder.token, Some(guard.token())),
                other => panic!("{other:?}"),
            }
        }
        drop(guard);
        // The handles close together, and the host closes last, because the others need its server.
        let closing = keepers.iter().map(Lockkeeper::close);
        futures_util::future::join_all(closing).await;
    });
}

/// Set only for the child process of [`a_hold_outlives_the_killed_process_that_hosts_its_server`].
const HOST: &str = "LOCKKEEPER_TEST_EMBEDDED_HOST";

/// The value for a child without async.
const BLOCKING: &str = "blocking";

/// Not a test: a child process that hosts its user's own server until it is killed.
#[test]
fn host() {
    if std::env::var_os(HOST).is_none() {
        return;
    }
    if std::env::var(HOST).is_ok_and(|how| how == BLOCKING) {
        let _keeper = blocking::embedded(own_server_dir().unwrap()).unwrap();
        loop {
            std::thread::park();
        }
    }
    block_on(async {
        let _keeper = Lockkeeper::embedded(own_server_dir().unwrap()).await.unwrap();
        std::future::pending::<()>().await;
    });
}

#[test]
fn a_program_without_async_uses_an_embedded_server() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = blocking::embedded(dir.path()).unwrap();
    let other = Lockkeeper::builder().session_timeout(STEADY).embedded_blocking(dir.path()).unwrap();
    let guard = keeper.mutex("/locks/nightly").acquire().wait().unwrap();
    assert!(matches!(other.mutex("/locks/nightly").try_acquire().wait(), Err(AcquireError::Held { .. })));
    guard.release_blocking().unwrap();
    other.mutex("/locks/nightly").try_acquire().wait().unwrap().release_blocking().unwrap();
    other.close_blocking();
    keeper.close_blocking();
}

/// The directory of this user's own server, where a settings file names it, is the command's.
#[test]
fn this_users_own_server_is_where_the_settings_say() {
    let dir = tempfile::tempdir().unwrap();
    let (state, config) = (dir.path().join("elsewhere"), dir.path().join("config.toml"));
    std::fs::write(&config, format!("state_dir = {state:?}\nservers = \"127.0.0.1:1\"\n")).unwrap();
    let mut host = Command::new(std::env::current_exe().unwrap());
    host.args(["embedded::host", "--exact"]).env(HOST, BLOCKING).env("LOCKKEEPER_CONFIG", &config);
    host.env_remove("LOCKKEEPER_STATE_DIR").env("HOME", dir.path()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut host = host.spawn().unwrap();
    let found = || ServerDir::new(&state).find().is_ok_and(|found| found.is_some());
    block_on(eventually("the child hosts there", async || found() || host.try_wait().unwrap().is_some()));
    let hosted = found();
    host.kill().unwrap();
    host.wait().unwrap();
    assert!(hosted);
}

/// The hosting process is killed: the holder's process hosts, and the hold and the wait continue.
#[test]
fn a_hold_outlives_the_killed_process_that_hosts_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Command::new(std::env::current_exe().unwrap());
    host.args(["embedded::host", "--exact"]).env(HOST, "1").env("LOCKKEEPER_STATE_DIR", dir.path());
    host.stdin(Stdio::null()).stdout(Stdio::null());
    let mut host = host.spawn().unwrap();
    let home = ServerDir::new(dir.path());
    block_on(async {
        eventually("the child hosts", async || home.find().is_ok_and(|found| found.is_some())).await;
        let endpoint = home.find().unwrap().expect("the child hosts");
        assert_eq!(pid(&endpoint).await, host.id());
        let (holder, waiter) = (embedded(dir.path(), STEADY).await, embedded(dir.path(), STEADY).await);
        let guard = holder.mutex("/locks/nightly").acquire().await.unwrap();
        let waiting = crate::support::spawn(waiter.mutex("/locks/nightly").acquire().into_future());
        eventually("one waits", async || waiters(&holder, "/locks/nightly").await == 1).await;
        host.kill().unwrap();
        host.wait().unwrap();
        eventually("a server answers", async || waiters(&holder, "/locks/nightly").await == 1).await;
        let now = home.find().unwrap().expect("this process hosts");
        assert_eq!((pid(&now).await, now), (std::process::id(), endpoint));
        eventually("the hold is still held", async || guard.is_held()).await;
        guard.release().await.unwrap();
        waiting.await.unwrap().expect("the waiter kept its position").release().await.unwrap();
        holder.close().await;
        waiter.close().await;
    });
}

/// The directory of a child process of [`killed_hosts_lose_no_update_of_others`]; set only for children.
const CHILD: &str = "LOCKKEEPER_TEST_EMBEDDED_CHILD";

/// Not a test: a child process that repeatedly raises the number in a file under the lock, and logs each update.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD).map(std::path::PathBuf::from) else { return };
    let stop = dir.join("stop");
    // The other end of its input is the parent's. A parent that is killed or fails leaves no child.
    std::thread::spawn({
        let stop = stop.clone();
        move || {
            _ = std::io::read_to_string(std::io::stdin());
            if !stop.exists() {
                std::process::exit(1);
            }
        }
    });
    block_on(async {
        let keeper = embedded(&dir.join("home"), SHORT).await;
        let mutex = keeper.mutex("/locks/number");
        while !stop.exists() {
            let guard = acquire_despite_failures(&mutex).await;
            let file = dir.join("number");
            let seen: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
            tokio::task::yield_now().await;
            if guard.is_held() {
                // Renamed into place, so a kill leaves the old number or the new one.
                let fresh = dir.join(format!("number.{}", std::process::id()));
                std::fs::write(&fresh, (seen + 1).to_string()).unwrap();
                std::fs::rename(&fresh, &file).unwrap();
                let mut log = std::fs::File::options().append(true).create(true).open(dir.join("log")).unwrap();
                std::io::Write::write_all(&mut log, b"x").unwrap();
            }
            _ = guard.release().await;
        }
        keeper.close().await;
    });
}

/// Four processes share one directory. The hosting process is killed with SIGKILL three times, and a new process replaces it
/// each time. A kill may leave one update unlogged, but loses none.
#[test]
fn killed_hosts_lose_no_update_of_others() {
    const KILLS: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("number"), "0").unwrap();
    let spawn = || {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["embedded::child", "--exact", "--nocapture"]).env(CHILD, dir.path());
        child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
        child.spawn().unwrap()
    };
    let number = || std::fs::read_to_string(dir.path().join("number")).unwrap().parse::<u64>().unwrap();
    let mut children: Vec<Child> = (0..4).map(|_| spawn()).collect();
    let home = ServerDir::new(dir.path().join("home"));
    block_on(async {
        for _ in 0..KILLS {
            let before = number();
            eventually("the work continues", async || number() >= before + 20).await;
            eventually("a process hosts", async || home.find().is_ok_and(|found| found.is_some())).await;
            let host = pid(&home.find().unwrap().unwrap()).await;
            let at = children.iter().position(|child| child.id() == host).expect("a child hosts");
            let mut host = children.remove(at);
            host.kill().unwrap();
            host.wait().unwrap();
            children.push(spawn());
        }
        let before = number();
        eventually("the work continues", async || number() >= before + 20).await;
        std::fs::write(dir.path().join("stop"), "").unwrap();
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let logged = std::fs::metadata(dir.path().join("log")).unwrap().len();
    assert!((logged..=logged + KILLS as u64).contains(&number()), "{} updates, {logged} logged", number());
}

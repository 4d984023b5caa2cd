//! Tests without a server always run; tests with one run only with `--cfg deep`.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// Returns a distribution whose Java is a script.
fn pretender(dir: &Path, script: &str) -> Distribution {
    let java = dir.join("java");
    write(&java, &format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&java, fs::Permissions::from_mode(0o755)).unwrap();
    Distribution::pretend(java)
}

#[test]
fn a_server_that_ends_is_reported_with_the_end_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let java = pretender(dir.path(), "for i in $(seq 30); do echo line $i; done; exit 1");
    let error = Apache::single(Options::default().distribution(java)).unwrap_err().to_string();
    assert!(error.starts_with("server 0 of a pretender ended; its log ends:\nline 11\n"), "{error}");
    assert!(error.ends_with("line 30"), "{error}");
}

#[test]
fn a_server_that_does_not_hear_sigterm_is_killed_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let java = pretender(dir.path(), "trap '' TERM; echo up; while :; do sleep 1; done");
    let home = tempfile::tempdir().unwrap();
    let server = Server::new(home.path().to_path_buf(), Ports::free().unwrap().client);
    server.start(java.server(&[], home.path())).unwrap();
    while !server.log().contains("up") {
        std::thread::yield_now();
    }
    let pid = server.pid().unwrap();
    server.stop();
    assert!(server.pid().is_none() && !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn ports_differ_and_are_not_the_kernels_to_give_away() {
    let all: Vec<Ports> = (0..20).map(|_| Ports::free().unwrap()).collect();
    for Ports { client, quorum, election } in all {
        assert!(client != quorum && quorum != election && client != election);
    }
}

#[test]
fn a_home_without_jars_is_named() {
    let home = tempfile::tempdir().unwrap();
    let error = Distribution::in_home("java".into(), home.path()).unwrap_err().to_string();
    assert!(error.contains(&home.path().display().to_string()) && !error.contains('\n'), "{error}");
    let lib = home.path().join("lib");
    fs::create_dir(&lib).unwrap();
    write(&lib.join("zookeeper-3.9.3.jar"), "").unwrap();
    write(&lib.join("README"), "").unwrap();
    let found = Distribution::in_home("java".into(), home.path()).unwrap();
    assert_eq!(found.classpath, lib.join("zookeeper-3.9.3.jar").into_os_string());
}

#[test]
fn options_win_over_our_own_lines() {
    let options = Options::default().tick(Duration::from_millis(200)).config("syncLimit", "9").property("a", "b");
    let config = options.zoo_cfg(Path::new("/x"), Ports { client: 1, quorum: 2, election: 3 }, Ipv4Addr::LOCALHOST);
    for line in ["tickTime=200", "minSessionTimeout=400", "maxSessionTimeout=120000", "syncLimit=9", "clientPort=1"] {
        assert!(config.lines().any(|found| found == line), "{line} in {config}");
    }
    assert!(!config.contains("syncLimit=4"), "{config}");
    assert!(options.java_flags(Path::new("/x")).contains(&"-Da=b".to_owned()));
}

#[cfg(deep)]
#[test]
fn one_server_serves_and_comes_back_on_its_port() {
    let apache = Apache::single(Options::default()).unwrap();
    assert_eq!((apache.leader().unwrap(), apache.mode(0)), (0, Some(Mode::Standalone)));
    assert_eq!(apache.mntr(0).unwrap()["zk_server_state"], "standalone");
    let first = apache.pid(0).unwrap();
    apache.pause(0);
    assert!(apache.mode(0).is_none(), "a stopped server answers nothing");
    apache.resume(0);
    apache.wait_serving(0).unwrap();
    apache.kill(0);
    assert_eq!((apache.pid(0), apache.mode(0)), (None, None));
    apache.restart(0).unwrap();
    assert_ne!(apache.pid(0), Some(first));
    let dir = apache.servers[0].dir.clone();
    drop(apache);
    assert!(!dir.exists());
}

#[cfg(deep)]
#[test]
fn an_ensemble_gets_a_new_leader_when_its_own_is_killed() {
    let apache = Apache::ensemble(3, Options::default()).unwrap();
    assert_eq!(apache.connect_string().split(',').count(), 3);
    let old = apache.leader().unwrap();
    apache.kill(old);
    let new = apache.leader().unwrap();
    assert_ne!(new, old);
    apache.restart(old).unwrap();
    assert_eq!(apache.mode(old), Some(Mode::Follower));
}

#[cfg(deep)]
#[test]
fn a_slow_disk_delays_a_write_until_it_is_let_go() {
    let apache = Apache::single(Options::default()).unwrap();
    let delay = Duration::from_millis(800);
    let slow = apache.slow_fsync(delay).unwrap();
    assert!(open_session(&apache) >= delay, "opening a session is a write");
    drop(slow);
    let status = fs::read_to_string(format!("/proc/{}/status", apache.pid(0).unwrap())).unwrap();
    assert!(status.lines().any(|line| line == "TracerPid:\t0"), "it is still delayed: {status}");
    open_session(&apache);
}

/// A server that hears its leader late shows old data, and the newest data after a sync.
#[cfg(deep)]
#[test]
fn a_lagging_server_shows_old_data_until_a_sync() {
    use zookeeper_client as zk;

    let apache = Apache::ensemble(3, Options::default().lag(Duration::from_millis(300))).unwrap();
    let leader = apache.leader().unwrap();
    let laggard = (0..3).find(|server| *server != leader).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let at = async |server| zk::Client::connect(&apache.addr(server).to_string()).await.unwrap();
        let (writer, reader) = (at(leader).await, at(laggard).await);
        for path in ["/first", "/second"] {
            let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
            writer.create(path, b"", &options).await.unwrap();
            assert_eq!(reader.check_stat(path).await.unwrap(), None, "{path} is there already");
            reader.sync(path).await.unwrap();
            assert!(reader.check_stat(path).await.unwrap().is_some(), "{path} is not there behind a sync");
        }
        apache.lag(laggard, Duration::ZERO);
    });
}

/// Opens a session with a hand-written ConnectRequest; returns the time until the answer.
#[cfg(deep)]
fn open_session(apache: &Apache) -> Duration {
    let mut request = vec![0, 0, 0, 44];
    request.extend([0; 12]);
    request.extend(5_000_u32.to_be_bytes());
    request.extend([0; 8]);
    request.extend([0, 0, 0, 16]);
    request.extend([0; 16]);
    let start = Instant::now();
    let mut stream = TcpStream::connect(apache.addr(0)).unwrap();
    stream.write_all(&request).unwrap();
    stream.read_exact(&mut [0; 40]).unwrap();
    start.elapsed()
}

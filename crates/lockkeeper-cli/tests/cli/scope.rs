//! The place in answers, and the server that all users of a machine share.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Home, Running, Served, failure, held, names, served, until};

/// Returns the name that answers give to the server of the user who runs the tests.
fn own_server() -> String {
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    format!("{}'s own server", String::from_utf8(user).unwrap().trim())
}

#[test]
fn every_answer_names_this_users_own_server() {
    let (home, mut holder) = held("a", &[]);
    let own = own_server();
    for question in [&["list"][..], &["show", "a"], &["why", "a"], &["list", "/none"], &["list", "--broken"]] {
        let told = home.tells(question, 0);
        assert!(told.contains(&format!("on {own}")), "{question:?}: {told}");
        let answer = home.json(&[question, &["--json"]].concat());
        assert_eq!((&answer["scope"]["kind"], &answer["scope"]["name"]), (&"own".into(), &own.clone().into()));
        assert_eq!(answer["scope"]["directory"], home.state().to_str().unwrap());
    }
    let refusals = [
        &["show", "b"][..],
        &["run", "a", "--try", "--", "true"],
        &["run", "a", "--background", "--try", "--", "true"],
        &["revoke", "b"],
        &["break", "a", "--node", "nobodys", "--reason", "test", "--yes"],
        &["show", "--stats", "none"],
    ];
    for refused in refusals {
        let (_, line) = failure(&home.output(refused));
        assert!(line.contains(&format!("on {own}")), "{refused:?}: {line}");
    }
    let mut waiter = home.spawn("a", &["--wait", "60s"], "true");
    names(&waiter.told(), &["waiting for /locks/a: held by ", &format!(", on {own}")]);
    holder.finish();
    waiter.ends(0);
}

#[test]
fn the_json_events_of_run_have_a_scope() {
    let home = Home::new();
    let mut holder = home.starts("a", &["--json", "--message", "the first"], "echo up; exec sleep 1000");
    let mut waiter = home.spawn("a", &["--json"], "true");
    let mut events = waiter.told();
    events += &home.tells(&["run", "a", "--json", "--try", "--", "true"], 75);
    home.ok(&["revoke", "a"]);
    events += &holder.end().1;
    waiter.ends(0);
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["waiting", "error", "asked"]);
    let waiting = (&events[0]["ahead"], &events[0]["lock"]["holders"][0]["message"]);
    assert_eq!((waiting, &events[1]["exit_code"]), ((&1.into(), &"the first".into()), &75.into()), "{events:?}");
    for event in events {
        let scope = &event["scope"];
        assert_eq!((&scope["kind"], &scope["name"]), (&"own".into(), &own_server().into()), "{event}");
        assert_eq!(scope["directory"], home.state().to_str().unwrap());
    }
}

#[test]
fn a_change_that_succeeded_names_this_users_own_server() {
    let (home, other) = (Home::new(), Home::new());
    let target = Served::start(&other);
    let _holder = home.holds("a", &["--on-revoke", "ignore"]);
    let own = own_server();
    for change in [
        &["revoke", "a"][..],
        &["break", "a", "--reason", "test", "--yes"],
        &["admin", "epoch"],
        &["admin", "epoch", "--above", "7", "--yes"],
        &["admin", "copy", "--to", &target.address, "--raise-epoch"],
    ] {
        let told = home.tells(change, 0);
        assert!(told.contains(&format!("on {own}")), "{change:?}: {told}");
    }
    let copied = home.output(&["admin", "copy", "--to", &target.address, "--json"]);
    let copied: Value = serde_json::from_slice(&copied.stdout).unwrap();
    assert_eq!(copied["scope"]["kind"], "own", "{copied}");
}

/// A person who names servers needs no line about the place; programs get it.
#[test]
fn answers_of_named_servers_name_them_for_programs_alone() {
    let (served, home) = served();
    home.ok(&["run", "a", "--", "true"]);
    let output = home.output(&["show", "a"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let failed = home.output(&["show", "nowhere", "--json"]);
    let failed: Value = serde_json::from_slice(&failed.stderr).unwrap();
    for scope in [&home.show("a")["scope"], &failed["scope"]] {
        assert_eq!((&scope["kind"], &scope["servers"]), (&"servers".into(), &served.address.as_str().into()));
    }
}

/// The server of a machine, and its directory.
struct Shared {
    home: Home,
    dir: PathBuf,
}

impl Shared {
    fn new() -> Self {
        let home = Home::new();
        let dir = home.file("shared");
        Shared { home, dir }
    }

    fn option(&self) -> String {
        format!("--machine={}", self.dir.display())
    }

    /// Starts the server, and returns when it serves.
    fn serve(&self) -> Running {
        let mut server = Running::start(&mut self.home.command(&["serve", &self.option()]));
        assert_eq!(server.line(), format!("unix:{}", self.dir.join("socket").display()));
        server
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// Two users, as far as one test can have two: each has a state directory of its own.
#[test]
fn users_of_one_machines_server_exclude_each_other_and_never_start_it() {
    let shared = Shared::new();
    let machine = shared.option();
    let (one, other) = (Home::new(), Home::new());
    one.refuses(&["run", "a", &machine, "--", "touch", "ran"], 69, "this machine's server is not running");
    let hints = String::from_utf8(one.output(&["list", &machine]).stderr).unwrap();
    assert!(hints.contains(&format!("lockkeeper serve {machine}\n")), "{hints}");
    assert!(!shared.dir.exists() && !one.file("ran").exists());

    let server = shared.serve();
    assert_eq!((mode(&shared.dir), mode(&shared.dir.join("data"))), (0o755, 0o700));
    assert_eq!(mode(&shared.dir.join("socket")), 0o666);
    let mut holder = one.holds("a", &[&machine]);
    other.refuses(&["run", "a", "--try", &machine, "--", "true"], 75, "on this machine's server");
    assert!(!one.state().exists() && !other.state().exists(), "a server of its own was started");
    let shown = other.json(&["show", "a", "--json", &machine]);
    assert_eq!((&shown["scope"]["kind"], &shown["holders"][0]["mode"]), (&"machine".into(), &"exclusive".into()));

    // A service manager starts it again; the hold continues.
    server.signal(Signal::KILL);
    drop(server);
    let _server = shared.serve();
    until("it answers", || other.output(&["list", &machine]).status.success());
    holder.finish();
    other.ok(&["run", "a", "--try", &machine, "--", "true"]);
}

#[test]
fn the_machines_server_can_be_a_setting_and_a_state_directory_comes_before_it() {
    let shared = Shared::new();
    let _server = shared.serve();
    let home = Home::new();
    let config = home.file("config.toml");
    std::fs::write(&config, format!("machine = {:?}\n", shared.dir)).unwrap();
    let scope = |with_state: bool| {
        let mut command = home.command(&["list", "--json", "--config", config.to_str().unwrap()]);
        if !with_state {
            command.env_remove("LOCKKEEPER_STATE_DIR");
        }
        command.output().unwrap()
    };
    let answer: Value = serde_json::from_slice(&scope(false).stdout).unwrap();
    assert_eq!(answer["scope"]["directory"], shared.dir.to_str().unwrap());
    assert_eq!(scope(true).status.code(), Some(69), "the own server does not run");
    let hint = home.command(&["run", "a", "--try", &shared.option(), "--", "true"]).output().unwrap();
    assert!(hint.status.success(), "{hint:?}");
}

/// Otherwise a user could put a socket of its own there, and serve all users.
#[test]
fn a_shared_directory_that_others_may_write_is_refused() {
    let shared = Shared::new();
    let machine = shared.option();
    let server = shared.serve();
    std::fs::set_permissions(&shared.dir, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::set_permissions(shared.dir.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    let home = Home::new();
    home.refuses(
        &["run", "a", &machine, "--", "touch", "ran"],
        70,
        "can be written by others than its owner; run chmod go-w on it",
    );
    assert!(!home.file("ran").exists());
    drop(server);
    shared.home.failure(&["serve", &machine], 70);
}

/// This test starts what the unit file starts, except for the program and the directory.
#[test]
fn the_unit_file_starts_the_machines_server() {
    let unit = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/lockkeeper.service"))
        .unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let shared = Shared::new();
    let words: Vec<_> = start.split(' ').skip(1).collect();
    let dir = words.iter().find_map(|word| word.strip_prefix("--machine=")).unwrap();
    assert_eq!(dir, lockkeeper::embedded::MACHINE_DIR);
    assert!(unit.contains(&format!("StateDirectory={}\n", dir.strip_prefix("/var/lib/").unwrap())));
    let words: Vec<_> = words.iter().map(|word| word.replace(dir, shared.dir.to_str().unwrap())).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut server = Running::start(&mut shared.home.command(&words));
    assert!(server.line().starts_with("unix:/"));
    assert!(Home::new().output(&["run", "a", &shared.option(), "--", "true"]).status.success());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// A crash leaves the file of the socket. Another process may hold the store, so that the server seems to run.
#[test]
fn a_machines_server_that_was_killed_gives_no_lock_and_no_wait() {
    let shared = Shared::new();
    let machine = shared.option();
    let mut server = shared.serve();
    let home = Home::new();
    home.ok(&["run", "a", &machine, "--", "true"]);
    server.kill();
    assert!(shared.dir.join("socket").exists());
    home.refuses(&["run", "a", &machine, "--", "touch", "ran"], 69, "this machine's server is not running");

    let store = std::fs::File::open(shared.dir.join("data/lock")).unwrap();
    store.lock().unwrap();
    let started = std::time::Instant::now();
    home.failure(&["run", "a", &machine, "--wait", "2s", "--", "touch", "ran"], 69);
    assert!(started.elapsed() < std::time::Duration::from_secs(2 + 5), "{:?}", started.elapsed());
    assert!(!home.file("ran").exists());
    drop(store);

    let _server = shared.serve();
    home.ok(&["run", "a", "--try", &machine, "--", "true"]);
}

//! Other users of the machine, containers and links: what they can reach of a server of this machine, and what it records.
//!
//! Only root can be another user. As another user than root, these tests check nothing.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{BINARY, Home, Running, failure, is_alive, names, refused, text, until};

/// A user without any rights here.
const STRANGER: u32 = 54321;

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A home that other users may enter, with a program that they may run; none if this user cannot be another one.
fn open_home() -> Option<Home> {
    let home = rustix::process::geteuid().is_root().then(Home::new)?;
    mode(home.state().parent().unwrap(), 0o755);
    let (program, own) = (Path::new(BINARY), home.file("lockkeeper"));
    if program.ancestors().all(|at| at.metadata().unwrap().permissions().mode() & 1 != 0) {
        symlink(program, own).unwrap();
    } else {
        std::fs::copy(program, own).unwrap();
    }
    Some(home)
}

/// A command of another user. `HOME` is the home's directory.
fn of_stranger(home: &Home, args: &[&str]) -> Command {
    of_user(home, STRANGER, args)
}

/// The same of a user with this number.
fn of_user(home: &Home, uid: u32, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let user = uid.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
    command.arg(home.file("lockkeeper")).args(args);
    home.prepare(&mut command);
    command.stdin(Stdio::null());
    command
}

/// The machine's server in a directory of a home.
fn serve(home: &Home) -> (Running, String) {
    let option = format!("--machine={}", home.file("shared").display());
    let mut server = Running::start(&mut home.command(&["serve", &option]));
    assert!(server.line().starts_with("unix:"));
    (server, option)
}

/// `su` without a dash keeps HOME.
#[test]
fn settings_in_the_home_of_another_user_are_refused_with_a_remedy() {
    let Some(home) = open_home() else { return };
    let closed = home.file("closed");
    std::fs::create_dir_all(closed.join(".config/lockkeeper")).unwrap();
    mode(&closed, 0o700);
    let mut command = of_stranger(&home, &["list"]);
    command.env_remove("LOCKKEEPER_CONFIG").env_remove("XDG_CONFIG_HOME").env("HOME", &closed);
    let (code, line) = failure(&command.output().unwrap());
    assert_eq!(code, Some(64), "{line}");
    names(&line, &["Permission denied", "; correct HOME or XDG_CONFIG_HOME"]);
}

#[test]
fn a_stranger_cannot_connect_to_the_own_server_nor_enter_a_closed_machines_server() {
    let Some(home) = open_home() else { return };
    home.ok(&["run", "a", "--", "true"]);
    let servers = format!("unix:{}", home.state().join("socket").display());
    home.ok(&["list", "--servers", &servers]);
    // The socket's own mode refuses him too.
    for open in [0o700, 0o755] {
        mode(&home.state(), open);
        let output = of_stranger(&home, &["list", "--servers", &servers]).output().unwrap();
        refused(&output, 69, "Permission denied");
    }

    let (_server, machine) = serve(&home);
    assert!(of_stranger(&home, &["run", "a", &machine, "--", "true"]).output().unwrap().status.success());
    // A directory of his own would have other locks, so no hint leads there.
    for (closed, who) in [(0o750, "root and the group root may enter "), (0o700, "only root may enter ")] {
        mode(&home.file("shared"), closed);
        for verb in [&["run", "a", &machine, "--", "true"][..], &["list", &machine], &["server", "status", &machine]] {
            let output = of_stranger(&home, verb).output().unwrap();
            refused(&output, 70, "Permission denied");
            let told = String::from_utf8(output.stderr).unwrap();
            let hint =
                format!("hint: {who}{} (mode {closed:03o}): ask the administrator", home.file("shared").display());
            assert!(told.contains(&hint), "{told}");
            assert!(!told.contains("HOME") && !told.contains("--state-dir"), "{told}");
        }
    }
}

/// As in `/tmp`: the modes of that directory are right.
#[test]
fn in_a_directory_for_all_users_the_directory_of_another_user_is_named() {
    let Some(home) = open_home() else { return };
    let (shared, users) = (home.file("tmp"), home.file("tmp/users"));
    std::fs::create_dir_all(&users).unwrap();
    mode(&shared, 0o1777);
    // A user with a name.
    let uid = Command::new("id").args(["-u", "nobody"]).output().unwrap();
    let uid = String::from_utf8(uid.stdout).unwrap().trim().parse().unwrap();
    chown(&users, Some(uid), None).unwrap();
    let state = users.join("state").display().to_string();
    let output = home.output(&["run", "a", "--state-dir", &state, "--", "touch", "ran"]);
    let (code, line) = failure(&output);
    assert_eq!(code, Some(70), "{line}");
    assert!(line.contains(&format!("{} belongs to nobody", users.display())) && !line.contains("chmod"), "{line}");
    assert!(!home.file("ran").exists());
}

/// He may not open the store, so he learns only from the socket whether the server runs.
#[test]
fn a_stranger_learns_at_once_that_the_machines_server_does_not_run() {
    let Some(home) = open_home() else { return };
    let (mut server, machine) = serve(&home);
    server.kill();
    assert!(home.file("shared/socket").exists());
    refused(
        &of_stranger(&home, &["run", "a", &machine, "--", "true"]).output().unwrap(),
        69,
        "this machine's server is not running",
    );
}

/// A size of 0 would look like data that is lost.
#[test]
fn a_stranger_who_may_not_see_the_data_of_the_machines_server_reads_that_and_no_size() {
    let Some(home) = open_home() else { return };
    let (_server, machine) = serve(&home);
    let status = |of: &mut Command| String::from_utf8(of.output().unwrap().stdout).unwrap();
    let args = ["server", "status", &machine];
    let said = status(&mut of_stranger(&home, &args));
    names(&said, &["\n  data       ", " nodes, of a size that this user may not see\n"]);
    let json = ["server", "status", &machine, "--json"];
    let shown = |of: &mut Command| serde_json::from_str::<Value>(&status(of)).unwrap()["data_bytes"].clone();
    assert_eq!(shown(&mut of_stranger(&home, &json)), Value::Null);
    assert!(shown(&mut home.command(&json)).as_u64().is_some_and(|bytes| bytes > 0));
}

#[test]
fn a_user_without_a_name_is_shown_with_his_number() {
    let Some(home) = open_home() else { return };
    let output = of_stranger(&home, &["server", "status"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with(&format!("uid {STRANGER}'s own server is not running")), "{output:?}");
}

/// The environment says who a command's user claims to be.
#[test]
fn a_strangers_break_is_recorded_with_his_uid_whatever_he_claims() {
    let Some(home) = open_home() else { return };
    let (_server, machine) = serve(&home);
    let mut holder = home.holds("a", &[&machine]);
    let breaks = ["break", "a", "--yes", "--reason", "mine now", &machine];
    let output = of_stranger(&home, &breaks).env("USER", "root").env("LOGNAME", "root").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (_, told) = holder.end();
    assert!(told.contains(&format!("(uid {STRANGER}): mine now")), "{told}");

    // He writes a record as if root had made it, and tries to change one of root's.
    let (servers, runtime) = (format!("unix:{}", home.file("shared/socket").display()), runtime());
    let again = home.holds("a", &[&machine]);
    home.ok(&["break", "a", "--yes", "--reason", "the real one", &machine]);
    drop(again);
    let (found, records) = runtime.block_on(async {
        let (client, _states) = lockkeeper_client::Client::open(
            servers.parse().unwrap(),
            lockkeeper_client::Config::new(std::time::Duration::from_secs(10)),
        );
        let (names, _) = client.children("/lockkeeper/audit").await.unwrap();
        let mut records = Vec::new();
        for name in names.iter() {
            let path = format!("/lockkeeper/audit/{name}");
            let (data, _) = client.get(&path).await.unwrap();
            let (acl, _) = client.acl(&path).await.unwrap();
            // Nobody may change it, and no list names another user than the client's own.
            client.set(&path, "{}", None).await.unwrap_err();
            let forged = acl.iter().map(|entry| lockkeeper_client::wire::Acl {
                id: match &entry.id {
                    lockkeeper_client::wire::AclId::Other { scheme, .. } => {
                        lockkeeper_client::wire::AclId::Other { scheme: scheme.clone(), id: (STRANGER + 1).to_string() }
                    }
                    anyone => anyone.clone(),
                },
                ..entry.clone()
            });
            let forged: Vec<_> = forged.collect();
            let mode = lockkeeper_client::wire::CreateMode::Persistent;
            let path = format!("/lockkeeper/audit/break-{}", forged_id(records.len()));
            client.create(&path, data.clone(), &forged, mode).await.unwrap_err();
            records.push(data);
        }
        let open = [lockkeeper_client::wire::Acl::OPEN];
        let mode = lockkeeper_client::wire::CreateMode::Persistent;
        let path = format!("/lockkeeper/audit/break-{}", forged_id(records.len()));
        client.create(&path, records[0].clone(), &open, mode).await.unwrap();
        client.close();
        (names.len(), records.len())
    });
    assert_eq!((found, records), (2, 2));
    let listed = home.json(&["list", "--broken", "--json", &machine]);
    let listed: Vec<_> = listed["broken"].as_array().unwrap().iter().collect();
    let by: Vec<_> = listed.iter().map(|broken| &broken["by"]["uid"]).collect();
    assert_eq!(by, [&Value::from(STRANGER), &Value::from(0), &Value::Null]);
    let lines = home.ok(&["list", "--broken", &machine]);
    assert!(lines.contains(&format!("(uid {STRANGER}): mine now")), "{lines}");
    names(&lines, &["(uid 0): the real one", "(not proved): "]);
}

/// An id as in the name of a record.
fn forged_id(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// `su` and `sudo` may keep `HOME`.
#[test]
fn root_with_another_users_home_is_refused_and_nothing_is_made_or_emptied() {
    let Some(home) = open_home() else { return };
    let (users, kept) = (home.file("users"), home.file("kept"));
    mode(home.state().parent().unwrap(), 0o755);
    std::fs::write(&kept, "content").unwrap();
    std::fs::create_dir(&users).unwrap();
    chown(&users, Some(STRANGER), Some(STRANGER)).unwrap();
    let run = || {
        let mut command = home.command(&["run", "a", "--", "touch", "ran"]);
        command.env_remove("LOCKKEEPER_STATE_DIR").env_remove("XDG_STATE_HOME").env("HOME", &users);
        refused(&command.output().unwrap(), 70, &format!("belongs to user {STRANGER}"));
    };
    run();
    assert_eq!(std::fs::read_dir(&users).unwrap().count(), 0);
    // He has a directory of his own, with links in the places of the server's files.
    let state = users.join(".local/state/lockkeeper");
    std::fs::create_dir_all(&state).unwrap();
    for file in ["server.log", "starting", "endpoint", "socket", "data"] {
        symlink(&kept, state.join(file)).unwrap();
    }
    for dir in [&state, &users.join(".local/state"), &users.join(".local")] {
        chown(dir, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    run();
    assert_eq!((text(&kept).as_str(), home.file("ran").exists()), ("content", false));
}

/// Systems with the umask 002 give each user a group of the same number, and make directories that it may write.
#[test]
fn the_private_group_of_a_user_may_write_his_directory_and_no_other_group() {
    let Some(home) = open_home() else { return };
    let own = home.file("own");
    std::fs::create_dir(&own).unwrap();
    // A server that does not run any more.
    drop(std::os::unix::net::UnixListener::bind(own.join("socket")).unwrap());
    let list = |group| {
        chown(&own, Some(STRANGER), Some(group)).unwrap();
        mode(&own, 0o775);
        let mut command = of_stranger(&home, &["list"]);
        failure(&command.env("LOCKKEEPER_STATE_DIR", &own).output().unwrap())
    };
    let (code, line) = list(STRANGER);
    assert!(code == Some(69) && line.contains("not running"), "{code:?}, {line}");
    let (code, line) = list(STRANGER + 1);
    assert!(code == Some(70) && line.contains("can be written by others"), "{code:?}, {line}");
}

/// The directory was open to others for a while, and is this user's alone again.
#[test]
fn planted_links_are_not_followed() {
    let home = Home::new();
    let kept = home.file("kept");
    std::fs::write(&kept, "content").unwrap();
    std::fs::create_dir(home.state()).unwrap();
    symlink(&kept, home.state().join("starting")).unwrap();
    home.refuses(&["run", "a", "--", "touch", "ran"], 70, "starting: it is a link");
    std::fs::remove_file(home.state().join("starting")).unwrap();
    for file in ["server.log", "socket", "socket.new"] {
        symlink(&kept, home.state().join(file)).unwrap();
    }
    home.ok(&["run", "a", "--", "true"]);
    assert_eq!(text(&kept), "content");
}

/// He made it while the directory was open to others, and could still change what is in it.
#[test]
fn data_of_another_user_is_not_served() {
    let Some(home) = open_home() else { return };
    let data = home.state().join("data");
    std::fs::create_dir_all(&data).unwrap();
    chown(&data, Some(STRANGER), None).unwrap();
    home.refuses(&["run", "a", "--", "touch", "ran"], 70, &format!("belongs to user {STRANGER}"));
    assert!(!home.file("ran").exists());
}

#[test]
fn the_own_server_listens_on_no_port_and_at_any_depth() {
    let home = Home::new();
    let deep = home.file("twenty-bytes-of-name").join(["twenty-bytes-of-name"; 10].join("/"));
    let at = |command: &[&str]| {
        let mut command = home.command(command);
        command.env("LOCKKEEPER_STATE_DIR", &deep);
        command
    };
    assert!(at(&["run", "a", "--", "true"]).status().unwrap().success());
    let listed = at(&["list"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let server = rustix::fs::open(&deep, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let short = format!("/proc/self/fd/{}/socket", std::os::fd::AsRawFd::as_raw_fd(&server));
    let stream = std::os::unix::net::UnixStream::connect(short).unwrap();
    let pid = rustix::net::sockopt::socket_peercred(&stream).unwrap().pid;
    let inodes = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().flatten();
    let sockets: Vec<String> = inodes
        .filter_map(|fd| {
            let link = std::fs::read_link(fd.path()).ok()?.to_str()?.to_owned();
            Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    assert!(!sockets.is_empty());
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let table = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let networked = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9));
        assert_eq!(networked.filter(|inode| sockets.iter().any(|own| own == inode)).count(), 0, "{table}");
    }
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    until("it is gone", || !is_alive(pid));
}

#[test]
fn another_network_namespace_shares_the_own_server() {
    let Some(home) = open_home() else { return };
    let mut holder = home.holds("a", &[]);
    let mut command = Command::new("unshare");
    command.args(["--net", "--", BINARY, "run", "a", "--try", "--", "true"]).stdin(Stdio::null());
    home.prepare(&mut command);
    let output = command.output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("unshare") {
        // This container may not make one.
        return;
    }
    let (code, line) = failure(&output);
    assert_eq!(code, Some(75), "{line}");
    holder.finish();
}

/// The choice of a user with clients that know TCP only.
#[test]
fn serve_on_the_own_servers_data_serves_foreign_clients_and_the_own_commands() {
    let home = Home::new();
    home.ok(&["run", "a", "--", "true"]);
    let server = home.server().unwrap();
    rustix::process::kill_process(server, Signal::TERM).unwrap();
    until("it is gone", || !is_alive(server));
    // Without sessions it stays ended until the next command that uses its data.
    assert_eq!(home.output(&["server", "status"]).status.code(), Some(69));
    assert_eq!(home.server(), None);
    let data = home.state().join("data");
    let mut serving =
        Running::start(&mut home.command(&["serve", "--data", data.to_str().unwrap(), "--listen", "127.0.0.1:0"]));
    let address = serving.line();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let mut holder = home.holds("a", &[]);
    assert_eq!(home.server(), None, "no other server was started");
    let foreign = Home::with_servers(&address);
    foreign.failure(&["run", "a", "--try", "--", "true"], 75);
    holder.finish();
    serving.signal(Signal::TERM);
    assert!(serving.wait().success());
}

/// With a list of his own on `/locks`, he would shut all others out.
#[test]
fn a_stranger_can_change_no_list_of_the_nodes_that_all_users_share() {
    let Some(home) = open_home() else { return };
    let hijacks = |machine: &str| {
        let init = ["admin", "init", machine, "--acl", "creator-all"];
        refused(&of_stranger(&home, &init).output().unwrap(), 77, "not authorized");
        for user in [STRANGER, STRANGER + 1] {
            let run = of_user(&home, user, &["run", &format!("a-{user}"), machine, "--", "true"]).output().unwrap();
            assert!(run.status.success(), "{run:?}");
        }
    };
    // A server that served one user made the nodes, and anyone may change their lists.
    let state = ["--state-dir", &home.file("shared").display().to_string()].map(str::to_owned);
    let own = |args: &[&str]| home.output(&[args, &[&state[0], &state[1]]].concat());
    assert!(own(&["admin", "init"]).status.success());
    assert!(own(&["server", "stop"]).status.success());
    mode(&home.file("shared"), 0o755);
    let (server, machine) = serve(&home);
    hijacks(&machine);
    drop(server);
    // And a server of the machine makes them.
    std::fs::remove_dir_all(home.file("shared")).unwrap();
    let (_server, machine) = serve(&home);
    hijacks(&machine);
}

#[test]
fn root_and_the_servers_user_may_always_mend_access_lists_and_read_who_changed_them() {
    let Some(home) = open_home() else { return };
    std::fs::create_dir(home.file("shared")).unwrap();
    chown(home.file("shared"), Some(STRANGER), Some(STRANGER)).unwrap();
    let machine = format!("--machine={}", home.file("shared").display());
    let mut server = of_stranger(&home, &["serve", &machine]);
    let mut server = Running::start(&mut server);
    assert!(server.line().starts_with("unix:"));
    let closes = of_stranger(&home, &["admin", "init", &machine, "--acl", "creator-all"]).output().unwrap();
    assert!(closes.status.success(), "{closes:?}");
    let run = ["run", "a", &machine, "--", "true"];
    refused(&of_user(&home, STRANGER + 1, &run).output().unwrap(), 77, "its list is not shown to this client");
    // Root reads whose list it is, and may change it.
    let refused = home.output(&run);
    let (code, line) = failure(&refused);
    let whose = format!("its list is uid:{STRANGER}:cdrwa (user {STRANGER} may change it)");
    assert!(code == Some(77) && line.contains(&whose), "{code:?}, {line}");
    let told = String::from_utf8_lossy(&refused.stderr);
    let advised = told.split("as root or as the user who runs the server: lockkeeper ").nth(1);
    let mended = shlex::split(advised.unwrap_or_else(|| panic!("{told}"))).unwrap();
    assert!(!told.contains("--auth-file"), "{told}");
    let doctor = home.output(&["doctor", &machine]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains(&whose), "{doctor:?}");
    home.ok(&mended.iter().map(String::as_str).collect::<Vec<_>>());
    for output in [home.output(&run), of_user(&home, STRANGER + 1, &run).output().unwrap()] {
        assert!(output.status.success(), "{output:?}");
    }
}

/// One user's connections would keep all others out.
#[test]
fn each_user_of_the_machine_has_a_quarter_of_the_connections_and_of_the_sessions_and_the_refused_one_is_told_so() {
    for (flag, what) in [("--max-connections=8", "connections"), ("--max-sessions=8", "sessions")] {
        let Some(home) = open_home() else { return };
        let machine = format!("--machine={}", home.file("shared").display());
        let mut server = Running::start(&mut home.command(&["serve", &machine, flag]));
        assert!(server.line().starts_with("unix:"));
        let holders = ["a", "b"].map(|name| {
            let mut holder = of_stranger(&home, &["run", name, &machine, "--", "sh", "-c", "echo up; exec cat"]);
            let mut holder = Running::start(&mut holder);
            assert_eq!(holder.line(), "up");
            holder
        });
        let one_more = ["run", "c", &machine, "--wait", "5s", "--", "true"];
        let (code, line) = failure(&of_stranger(&home, &one_more).output().unwrap());
        assert_eq!(code, Some(69), "{line}");
        let limit = flag.split('=').next().unwrap();
        let told = format!("uid {STRANGER} has 2 {what}, its share: a quarter of the 8 that {limit} allows");
        assert!(line.contains(&told) && !line.contains("does not answer"), "{line}");
        // Other users, and root, have their own.
        let other = of_user(&home, STRANGER + 1, &one_more).output().unwrap();
        assert!(other.status.success(), "{other:?}");
        let own: Vec<_> = ["d", "e", "f"].map(|name| home.spawn(name, &[&machine], "echo up; cat")).into();
        for mut holder in own {
            assert_eq!(holder.line(), "up");
        }
        drop(holders);
        server.signal(Signal::TERM);
        let (_, log) = server.end();
        names(&log, &["refusing a ", &told]);
    }
}

/// `su` keeps `HOME`, and the one whose home it is has planted links to files of root.
#[test]
fn no_command_writes_through_a_link_that_another_user_has_planted() {
    let (Some(home), server) = (open_home(), Home::new()) else { return };
    let (users, kept) = (home.file("users"), home.file("kept"));
    let state = users.join(".local/state/lockkeeper");
    for dir in [state.join("serve"), users.join("journal")] {
        std::fs::create_dir_all(dir).unwrap();
    }
    std::fs::write(&kept, "content").unwrap();
    mode(&kept, 0o644);
    let files = ["unsent.jsonl", "dead-letters.jsonl", "serve/format.new", "serve/lock"];
    for link in files.map(|file| state.join(file)).into_iter().chain([users.join("journal/history.jsonl")]) {
        symlink(&kept, link).unwrap();
    }
    let chown = Command::new("chown").args(["-Rh", &STRANGER.to_string()]).arg(&users).status().unwrap();
    assert!(chown.success());
    server.ok(&["run", "a", "--", "true"]);
    let servers = format!("unix:{}", server.state().join("socket").display());
    let (data, journal) = (state.join("serve").display().to_string(), users.join("journal").display().to_string());
    let nobody = ["--servers", "127.0.0.1:1", "--wait", "200ms"];
    let run = [&["run", "a"], &nobody[..], &["--", "true"]].concat();
    let letter = [&["run", "a", "--retries", "1", "--retry-delay", "1ms", "--dead-letter", "file"], &run[2..]].concat();
    for (args, code, says) in [
        (&run[..], 69, "no server"),
        (&letter, 70, "it is a link"),
        (&["serve", "--listen", "127.0.0.1:0"], 70, "belongs to"),
        (&["serve", "--listen", "127.0.0.1:0", "--data", &data], 70, "is a link, which someone may have planted"),
        (&["observe", "--listen", "127.0.0.1:0", "--journal", &journal, "--servers", &servers], 70, "it is a link"),
    ] {
        let mut command = home.command(args);
        command.env_remove("LOCKKEEPER_STATE_DIR").env_remove("XDG_STATE_HOME").env("HOME", &users);
        let mut running = Running::start(&mut command);
        running.close_stdin();
        // A server would go on. Its first line is on standard output.
        let line = running.line();
        let done = text(&kept);
        let mode = kept.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((line.as_str(), done.as_str(), mode), ("", "content", 0o644), "{args:?}");
        let (ended, told) = running.end();
        assert!(ended == Some(code) && told.contains(says), "{args:?}: {ended:?}, {told}");
    }
}

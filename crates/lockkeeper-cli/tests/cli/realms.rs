//! `[realms]`: assigns paths to ensembles.

use std::process::Output;

use serde_json::Value;

use crate::harness::{Home, Running, Served, failure, names, refused};
use crate::plain::Plain;

/// Two realms on two servers, and a settings file. Further realms and servers may be in it.
struct Two {
    first: Served,
    second: Served,
    home: Home,
    _homes: (Home, Home),
}

impl Two {
    /// The realm `/locks/search`, and this one.
    fn new(other: &str, more: &str) -> Self {
        let (one, two, home) = (Home::new(), Home::new(), Home::new());
        let (first, second) = (Served::start(&one), Served::start(&two));
        let realms = format!("\"/locks/search\" = \"{}\"\n\"{other}\" = \"{}\"\n", first.address, second.address);
        std::fs::write(home.file("realms.toml"), format!("[realms]\n{realms}{more}")).unwrap();
        Two { first, second, home, _homes: (one, two) }
    }

    fn output(&self, args: &[&str]) -> Output {
        let (verb, command) = args.split_at(args.iter().position(|word| *word == "--").unwrap_or(args.len()));
        self.home.output(&[verb, &["--config", "realms.toml"], command].concat())
    }

    /// `ADDRESS (realm /locks/search), ADDRESS (realm OTHER)`, in the order of their prefixes.
    fn names(&self, other: &str) -> String {
        let mut realms = [("/locks/search", &self.first.address), (other, &self.second.address)];
        realms.sort();
        realms.map(|(prefix, servers)| format!("{servers} (realm {prefix})")).join(", ")
    }
}

fn printed(output: &Output) -> (String, String) {
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// H-70: each command uses the ensemble of its lock, and fails without a realm.
#[test]
fn a_command_goes_to_the_realm_of_its_lock() {
    let two = Two::new("/locks/b", "");
    let realms = ["--config", "realms.toml"];
    let mut holder = two.home.spawn("search/x", &realms, "echo up; cat");
    let mut other = two.home.spawn("b/x", &[&realms[..], &["--lease", "10m"]].concat(), "echo up; cat");
    assert_eq!((holder.line(), other.line()), ("up".to_owned(), "up".to_owned()));
    let (here, there) = (Home::with_servers(&two.first.address), Home::with_servers(&two.second.address));
    let held = |name: &str| (here.count(name).0, there.count(name).0);
    assert_eq!((held("search/x"), held("b/x")), ((1, 0), (0, 1)));
    for verb in [["show", "b/x"], ["why", "b/x"], ["list", "b"]] {
        names(&printed(&two.output(&verb)).0, &["for a lease"]);
    }
    let (code, line) = failure(&two.output(&["run", "c", "--", "true"]));
    assert!(code == Some(64) && line.contains("no realm covers /locks/c"), "{line}");
    let (code, line) = failure(&two.output(&["run", "search/y", "b/y", "--", "true"]));
    assert!(code == Some(64) && line.contains("in two realms"), "{line}");
    // `--servers` overrides the realms.
    assert!(two.output(&["run", "c", "--servers", &two.first.address, "--", "true"]).status.success());
    for running in [&mut holder, &mut other] {
        running.close_stdin();
        assert!(running.wait().success());
    }
}

/// The one line of an empty answer, and the server line of the others, name each realm.
#[test]
fn a_listing_shows_the_locks_of_all_realms() {
    let two = Two::new("/", "");
    let on = format!("on {}", two.names("/"));
    for listing in [&["list"][..], &["list", "/"]] {
        let (shown, said) = printed(&two.output(listing));
        assert_eq!(shown, "");
        names(&said, &["has a holder or a waiter on", &on]);
    }
    let mut search = two.home.spawn("search/a", &["--config", "realms.toml"], "echo up; cat");
    let mut rest = two.home.spawn("b", &["--config", "realms.toml"], "echo up; cat");
    assert_eq!((search.line(), rest.line()), ("up".to_owned(), "up".to_owned()));
    // A lock at this path of the other server is not that of the realm.
    let foreign = Home::with_servers(&two.second.address);
    let _foreign = foreign.holds("search/foreign", &[]);
    for listing in [&["list"][..], &["list", "/"]] {
        let output = two.output(listing);
        let (shown, said) = printed(&output);
        let names: Vec<_> = shown.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names, ["b", "search/a"], "{output:?}");
        assert!(said.contains(&on), "{said}");
    }
    let json: Value = serde_json::from_slice(&two.output(&["list", "--json"]).stdout).unwrap();
    assert_eq!(json["locks"].as_array().unwrap().len(), 2, "{json}");
    assert_eq!(json["scope"]["kind"], "realms");
    assert_eq!(json["scope"]["realms"][1]["prefix"], "/locks/search");
    assert_eq!(json["scope"]["realms"][1]["servers"], *two.first.address);
    let broken = two.output(&["break", "search/a", "--reason", "test", "--yes"]);
    assert!(broken.status.success(), "{broken:?}");
    let (shown, said) = printed(&two.output(&["list", "--broken"]));
    assert!(shown.contains("/locks/search/a") && said.contains(&on), "{shown} {said}");
    for verb in [&["requests"][..], &["requests", "--decided"]] {
        let (_, said) = printed(&two.output(verb));
        assert!(said.contains(&on), "{said}");
    }
    let (code, line) = failure(&two.output(&["run", "search/y", "b", "--", "true"]));
    assert!(code == Some(64) && line.contains("in two realms"), "{code:?} {line}");
    // The settings show each realm with its origin.
    let line = format!("realm /locks/search  {}  (realms.toml:2)", two.first.address);
    let (told, _) = printed(&two.output(&["config"]));
    assert!(told.lines().any(|told| told == line), "{line:?} is missing in {told}");
    // One realm needs no name.
    let (shown, said) = printed(&two.output(&["list", "search"]));
    assert!(!shown.contains("\nb ") && !said.contains("realm"), "{shown} {said}");
}

/// Also if no realm has the root: it names no path that nobody named.
#[test]
fn jobs_of_all_realms_are_shown_and_checked() {
    for other in ["/", "/locks/billing"] {
        let two = Two::new(other, "");
        let on = format!("on {}", two.names(other));
        assert!(printed(&two.output(&["jobs"])).1.contains(&format!("no job has run {on}")));
        assert_eq!(two.output(&["run", "search/a", "--slot", "1", "--", "false"]).status.code(), Some(1));
        assert_eq!(two.output(&["run", "billing/b", "--slot", "1", "--", "true"]).status.code(), Some(0));
        let (shown, said) = printed(&two.output(&["jobs"]));
        assert!(shown.contains("search/a") && shown.contains("billing/b") && said.contains(&on), "{shown} {said}");
        let checked = two.output(&["jobs", "--check"]);
        assert_eq!(checked.status.code(), Some(2), "{checked:?}");
        assert!(printed(&checked).0.starts_with("search/a: failed"), "{checked:?}");
        let json: Value = serde_json::from_slice(&two.output(&["jobs", "--json"]).stdout).unwrap();
        let paths: Vec<_> = json["jobs"].as_array().unwrap().iter().map(|job| job["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["/locks/billing/b", "/locks/search/a"]);
        assert!(json["now_ms"].as_i64().unwrap() > 0);
        let (metrics, _) = printed(&two.output(&["jobs", "--prometheus", "-"]));
        for metric in ["failed", "late", "running"] {
            let name = format!("lockkeeper_job_{metric}");
            let starting = |start: &str| metrics.lines().filter(|line| line.starts_with(start)).count();
            assert_eq!(starting(&format!("# HELP {name} ")), 1, "{metrics}");
            assert_eq!(starting(&format!("{name}{{")), 2, "{metrics}");
        }
        // It follows one realm, and says how to name its servers.
        let watched = two.output(&["jobs", "--watch"]);
        refused(&watched, 64, &two.names(other));
        for servers in [&two.first.address, &two.second.address] {
            assert!(printed(&watched).1.contains(&format!(" --servers {servers}\n")), "{watched:?}");
        }
        // One job is that of its realm.
        let (shown, said) = printed(&two.output(&["jobs", "search/a"]));
        assert!(shown.contains("search/a") && !said.contains("realm"), "{shown} {said}");
    }
}

/// The realm is named with its reason, and the others are shown. `why` and `show` of another realm's locks know nothing of it.
#[test]
fn a_realm_that_does_not_answer_is_named_and_why_asks_the_realm_of_its_lock_alone() {
    let two = Two::new("/", "\"/locks/gone\" = \"127.0.0.1:1\"\n");
    assert_eq!(two.output(&["run", "b", "--slot", "1", "--", "true"]).status.code(), Some(0));
    let _holder = two.home.holds("search/a", &["--config", "realms.toml"]);
    // At once, because each of them waits for the realm that does not answer.
    let asking = [
        (&["list"][..], "search/a "),
        (&["list", "--json"], "/locks/search/a"),
        (&["jobs"], "b "),
        (&["jobs", "--check"], ""),
        (&["jobs", "--prometheus", "-"], "lockkeeper_job_failed{job=\"/locks/b\"} 0"),
        (&["requests"], ""),
    ];
    let asking = asking.map(|(verb, has)| {
        let words = [verb, &["--config", "realms.toml"]].concat();
        (verb, has, Running::start(&mut two.home.command(&words)))
    });
    for (verb, has, running) in asking {
        let output = running.output();
        let (shown, said) = printed(&output);
        assert_eq!(output.status.code(), Some(69), "{verb:?}: {output:?}");
        assert!(shown.contains(has), "{verb:?}: {output:?}");
        assert!(said.contains("127.0.0.1:1 (realm /locks/gone) is left out: "), "{verb:?}: {said}");
    }
    for verb in ["why", "show"] {
        let output = two.output(&[verb, "search/a"]);
        let (shown, said) = printed(&output);
        assert!(output.status.success() && shown.contains("/locks/search/a"), "{output:?}");
        assert!(!said.contains("gone"), "{said}");
    }
    // Side by side: each tries its servers for the connect timeout.
    std::thread::scope(|scope| {
        for verb in [&["why", "gone/a"][..], &["why", "gone/a", "--json"], &["list", "gone"], &["jobs", "gone/a"]] {
            let two = &two;
            scope.spawn(move || {
                let output = two.output(verb);
                let (shown, said) = printed(&output);
                assert_eq!((output.status.code(), shown.as_str()), (Some(69), ""), "{output:?}");
                assert!(said.contains("127.0.0.1:1"), "{said}");
            });
        }
    });
}

/// The whole servers of all realms are not one thing to change, and this user's own server is none of them.
#[test]
fn commands_about_whole_servers_want_the_servers_by_name() {
    let two = Two::new("/", "");
    for verb in [
        &["admin", "epoch"][..],
        &["admin", "epoch", "--above", "1", "--yes"],
        &["admin", "init"],
        &["admin", "copy", "--to", &two.first.address, "--dry-run"],
        &["config", "--connect"],
    ] {
        let output = two.output(verb);
        let (code, line) = failure(&output);
        assert_eq!(code, Some(64), "{verb:?}: {output:?}");
        names(&line, &["the settings have realms", &two.names("/")]);
        assert!(printed(&output).1.contains("--servers"), "{output:?}");
    }
    assert!(!two.home.state().exists());
    let told = printed(&two.output(&["config"])).0;
    let servers = told.lines().find(|line| line.starts_with("servers ")).unwrap();
    assert!(servers.contains("none: the realms below are used") && !servers.contains("own server"), "{servers}");
    let named = two.output(&["admin", "epoch", "--servers", &two.first.address]);
    assert!(named.status.success(), "{named:?}");
}

/// A server with Helix's routing data in a chroot.
struct Directory {
    served: Served,
}

impl Directory {
    fn new(realms: &[(&str, &str)]) -> Self {
        let directory = Directory { served: Served::start(&Home::new()) };
        directory.create("/helix", "");
        if !realms.is_empty() {
            directory.create("/helix/METADATA_STORE_ROUTING_DATA", "");
        }
        for (realm, keys) in realms {
            let path = format!("/helix/METADATA_STORE_ROUTING_DATA/{realm}");
            directory.create(&path, &format!(r#"{{"id":"r","listFields":{{"ZK_PATH_SHARDING_KEYS":[{keys}]}}}}"#));
        }
        directory
    }

    fn create(&self, path: &str, data: &str) {
        Plain::connect(&self.served.address).create(path, data);
    }

    fn servers(&self) -> String {
        format!("{}/helix", self.served.address)
    }
}

/// H-70: each command uses the ensemble of its lock, and fails without a realm.
/// Every verb, by option, variable and file. Each command reads the data again; a session of the directory stays for no command.
#[test]
fn a_command_takes_its_realms_from_the_routing_data() {
    let (one, two, home) = (Home::new(), Home::new(), Home::new());
    let (first, second) = (Served::start(&one), Served::start(&two));
    let directory = Directory::new(&[(&first.address, r#""/locks/a""#), (&second.address, r#""/locks/b""#)]);
    let servers = directory.servers();
    let routing = ["--routing-servers", &servers];
    let mut holder = home.holds("a/x", &routing);
    let mut other = home.holds("b/x", &[&routing[..], &["--lease", "10m"]].concat());
    let (here, there) = (Home::with_servers(&first.address), Home::with_servers(&second.address));
    assert_eq!((here.count("a/x").0, there.count("a/x").0), (1, 0));
    assert_eq!((here.count("b/x").0, there.count("b/x").0), (0, 1));
    let realms = format!("{} (realm /locks/a), {} (realm /locks/b)", first.address, second.address);
    std::fs::write(home.file("routing.toml"), format!("routing_servers = \"{servers}\"\n")).unwrap();
    let listed = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        let (shown, said) = printed(&output);
        assert!(shown.contains("a/x") && shown.contains("b/x") && said.contains(&realms), "{output:?}");
    };
    listed(&mut home.command(&["list", routing[0], routing[1]]));
    listed(home.command(&["list"]).env("LOCKKEEPER_ROUTING_SERVERS", &servers));
    listed(&mut home.command(&["list", "--config", "routing.toml"]));
    // An option is stronger than a variable, which is stronger than a file.
    listed(home.command(&["list", routing[0], routing[1]]).env("LOCKKEEPER_SERVERS", "127.0.0.1:1"));
    let named = home.command(&["list", "--config", "routing.toml"]).env("LOCKKEEPER_SERVERS", &first.address).output();
    let (shown, said) = printed(&named.unwrap());
    assert!(shown.contains("a/x") && !shown.contains("b/x"), "{shown} {said}");
    for (verb, has) in [
        (&["show", "b/x"][..], "for a lease"),
        (&["why", "b/x"], "for a lease"),
        (&["list", "b"], "for a lease"),
        (&["doctor"], "servers"),
        (&["deadlocks"], ""),
        (&["history", "--all"], ""),
        (&["requests"], ""),
        (&["jobs"], ""),
        (&["admin", "gc"], ""),
        (&["run", "b/y", "--slot", "1", "--", "true"], ""),
    ] {
        let at = verb.iter().position(|word| *word == "--").unwrap_or(verb.len());
        let output = home.output(&[&verb[..at], &routing, &verb[at..]].concat());
        assert!(matches!(output.status.code(), Some(0..=2)), "{verb:?}: {output:?}");
        assert!(printed(&output).0.contains(has), "{verb:?}: {output:?}");
    }
    home.refuses(&["run", "c", routing[0], routing[1], "--", "true"], 64, "no realm covers /locks/c");
    names(&home.failure(&["admin", "epoch", routing[0], routing[1]], 64), &[&servers, "whole servers"]);
    let told = printed(&home.output(&["config", routing[0], routing[1]])).0;
    let line = told.lines().find(|line| line.starts_with("servers ")).unwrap();
    assert!(line.contains("none: the realms of the routing data are used"), "{line}");
    let line = told.lines().find(|line| line.starts_with("routing_servers ")).unwrap();
    assert!(line.contains(&format!("{servers}  (--routing-servers)")), "{line}");
    assert!(!home.state().exists(), "no server of this user was started");
    // The next command sees a realm that is new.
    let late = directory.served.address.clone();
    let record = r#"{"listFields":{"ZK_PATH_SHARDING_KEYS":["/locks/c"]}}"#;
    directory.create(&format!("/helix/METADATA_STORE_ROUTING_DATA/{late}"), record);
    home.ok(&["run", "c", routing[0], routing[1], "--", "true"]);
    for running in [&mut holder, &mut other] {
        running.finish();
    }
}

/// The value and the remedy are named, and nothing is guessed: no lock of this user's own server is taken in its place.
#[test]
fn routing_servers_that_do_not_help_are_named() {
    let home = Home::new();
    let empty = Directory::new(&[]);
    let wrong = Directory::new(&[("127.0.0.1:1", r#""/a","/a/b""#)]);
    let (empty, wrong) = (empty.servers(), wrong.servers());
    let missing = empty.replace("/helix", "/nowhere");
    std::fs::write(home.file("both.toml"), "routing_servers = \"zk:1\"\n[realms]\n\"/\" = \"zk:2\"\n").unwrap();
    std::fs::write(home.file("two.toml"), "routing_servers = \"zk:1\"\nservers = \"zk:2\"\n").unwrap();
    for (place, code, said) in [
        (["--routing-servers", "127.0.0.1:1"], 69, &["127.0.0.1:1 (--routing-servers)", "hint: "][..]),
        (["--routing-servers", &empty], 64, &[&empty, "there is no routing data", "name the servers of Helix's"]),
        (["--routing-servers", &missing], 64, &[&missing, "hint: "]),
        (["--routing-servers", &wrong], 64, &["/a/b", "is below the sharding key /a", "leave the sharding key"]),
        (["--routing-servers", "zk:x"], 64, &["--routing-servers", "zk:x", "; as in zk1:2181"]),
        (["--config", "both.toml"], 64, &["both.toml:1", "zk:1", "both.toml:3", "[realms]"]),
        (["--config", "two.toml"], 64, &["two.toml:1", "zk:1", "two.toml:2", "leave out one of the two"]),
    ] {
        let output = home.output(&["run", "x", place[0], place[1], "--", "touch", "ran"]);
        let (_, told) = printed(&output);
        assert_eq!(output.status.code(), Some(code), "{place:?}: {told}");
        assert!(said.iter().all(|said| told.contains(said)), "{place:?}: {told}");
        assert!(!told.contains("lockkeeper admin init"), "{told}");
    }
    home.says(&["list", "--routing-servers", "zk:1", "--servers", "zk:2"], 64);
    assert!(!home.file("ran").exists() && !home.state().exists());
}

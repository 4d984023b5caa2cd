//! The command and TLS: every setting is used or refused, never ignored.

use crate::harness::{Home, Running, failure, names, refused, served, until};

#[test]
fn tls_settings_belong_together() {
    let home = Home::new();
    for (args, say) in [
        (["--tls-cert", "a.pem", "--tls-ca", "ca.pem"], "tls.key"),
        (["--tls-key", "a.pem", "--tls-ca", "ca.pem"], "tls.cert"),
        (["--tls-key", "a.pem", "--tls-cert", "a.pem"], "tls.ca"),
    ] {
        names(&home.tells(&[&["config"], &args[..]].concat(), 64), &["cannot be used without", say]);
    }
}

/// The own server and the server of the machine are reached over loopback, and have no access lists for their users. A
/// setting of a file is for the servers that other commands use.
#[test]
fn options_of_an_ensemble_are_refused_where_no_servers_are_named() {
    let home = Home::new();
    home.secret("auth", "digest jobs:hunter2\n");
    let machine = format!("--machine={}", home.file("machine").display());
    for option in [["--tls-ca", "ca.pem"], ["--auth-file", "auth"], ["--acl", "creator-all"], ["--acl", "open"]] {
        for (place, named) in [(None, "own server"), (Some(machine.as_str()), "this machine's server")] {
            let told = home.failure(&[&["list"], place.as_slice(), &option[..]].concat(), 64);
            assert!(told.contains(&format!("{} is not used with", option.join(" "))), "{told}");
            assert!(told.contains(named), "{told}");
        }
    }
    let file = home.file("auth").display().to_string();
    std::fs::write(home.file("c.toml"), format!("auth_file = {file:?}\nacl = \"creator-all\"\n")).unwrap();
    home.ok(&["run", "nightly", "--config", "c.toml", "--", "true"]);
}

/// The command does not even open a plain connection.
#[test]
fn files_that_cannot_be_used_stop_everything() {
    let home = Home::new();
    for servers in ["127.0.0.1:1", "localhost:1"] {
        let output = home.output(&["show", "a", "--servers", servers, "--tls-ca", "nowhere.pem"]);
        let (code, told) = failure(&output);
        assert!(code == Some(64) && told.contains("TLS: ") && told.contains("nowhere.pem"), "{told}");
        assert_eq!(told.contains("built without TLS"), !cfg!(feature = "tls"), "{told}");
    }
}

/// The server and the command verify each other by their certificates.
#[cfg(feature = "tls")]
#[test]
fn run_holds_its_lock_over_tls() {
    use std::process::{Command, Stdio};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use crate::harness::BINARY;

    let home = Home::new();
    let write = |name: &str, text: String| std::fs::write(home.file(name), text).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write("ca.pem", params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        home.secret(&format!("{name}.key"), &key.serialize_pem());
    }
    let mut serve = Command::new(BINARY);
    home.prepare(&mut serve);
    serve.args(["serve", "--memory", "--listen", "127.0.0.1:0", "--tls-cert", "server.pem", "--tls-key", "server.key"]);
    serve.args(["--tls-client-ca", "ca.pem"]);
    let mut server = Running::start(&mut serve);
    let servers = server.line();

    let known = ["--tls-ca", "ca.pem", "--tls-cert", "client.pem", "--tls-key", "client.key"];
    let run = |flags: &[&str]| {
        let args =
            [&["run", "nightly", "--wait", "10s", "--servers", &servers], flags, &["--", "echo", "done"]].concat();
        home.command(&args).stdin(Stdio::null()).output().unwrap()
    };
    let output = run(&known);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"done\n"[..]), "{output:?}");
    let output = run(&known[..2]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("CertificateRequired"), "{output:?}");

    // The same from the environment, as in a service.
    let mut command = home.command(&["run", "nightly", "--wait", "10s", "--", "true"]);
    let variables = [("CA", "ca.pem"), ("CERT", "client.pem"), ("KEY", "client.key")];
    command.envs(variables.map(|(name, file)| (format!("LOCKKEEPER_TLS_{name}"), home.file(file))));
    let output = command.env("LOCKKEEPER_SERVERS", &servers).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");

    // Asked one by one, without a session: by TLS, without a certificate, and without TLS.
    for (flags, code, say) in [
        (&known[..], 0, "  alone  "),
        (&known[..2], 2, " fails the TLS handshake: "),
        (&[], 2, " has a port for TLS there, and this client has no TLS"),
    ] {
        names(&home.says(&[&["doctor", "--servers", &servers], flags].concat(), code), &[&format!("{servers}{say}")]);
    }
    drop(server);
}

#[test]
fn credentials_of_a_file_open_the_nodes_of_their_access_list() {
    let machine = Home::new();
    machine.secret("accounts", "sasl jobs:secret\n");
    let serve = ["serve", "--memory", "--listen", "127.0.0.1:0", "--accounts", "accounts"];
    let mut server = Running::start(&mut machine.command(&serve));
    check_that_credentials_open_nodes(&server.line());
}

/// The list of docs/commands: clients without the right keep their locks, and touch neither the epoch nor the jobs.
#[test]
fn the_recipe_of_access_lists_keeps_clients_from_the_epoch_and_from_the_jobs() {
    let machine = Home::new();
    machine.secret("accounts", "sasl ops:hunter2\nsasl jobs:hunter3\n");
    let serve = ["serve", "--memory", "--listen", "127.0.0.1:0", "--accounts", "accounts"];
    let mut server = Running::start(&mut machine.command(&serve));
    let servers = server.line();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let recipe: Vec<_> =
        page.lines().filter_map(|line| line.strip_prefix("    lockkeeper admin init --servers zk1")).collect();
    let [recipe] = recipe[..] else { panic!("{recipe:?}") };
    let recipe: Vec<_> = ["admin", "init"].into_iter().chain(recipe.split(' ').skip(1)).collect();
    let home = Home::with_servers(&servers);
    home.secret("ops", "sasl ops hunter2\n");
    home.secret("jobs", "sasl jobs hunter3\n");
    let status = |args: &[&str]| home.output(args).status.code();
    assert_eq!(status(&recipe), Some(0), "{recipe:?}");
    // Without credentials: a lock with its token, and nothing else.
    assert_eq!(status(&["run", "a", "--", "sh", "-c", "[ $LOCKKEEPER_TOKEN -gt 0 ]"]), Some(0));
    assert_eq!(status(&["admin", "epoch", "--above", "1", "--yes"]), Some(77));
    assert_eq!(status(&["run", "daily", "--once-per", "day", "--", "touch", "ran"]), Some(77));
    assert!(!home.file("ran").exists());
    // A break is still recorded.
    let holder = home.starts("a", &[], "echo up; read line");
    assert_eq!(status(&["break", "a", "--reason", "test", "--yes"]), Some(0));
    drop(holder);
    assert_eq!(status(&["run", "daily", "--once-per", "day", "--auth-file", "jobs", "--", "touch", "ran"]), Some(0));
    assert!(home.file("ran").exists());
    // A client that may not ask for the servers' time sees the job all the same.
    names(&home.ok(&["doctor"]), &["\njobs       1 job\n", "\nunseen     the servers' clock, "]);
    assert_eq!(status(&["admin", "epoch", "--above", "1", "--yes", "--auth-file", "jobs"]), Some(77));
    assert_eq!(status(&["admin", "epoch", "--above", "1", "--yes", "--auth-file", "ops"]), Some(0));
    assert_eq!(status(&["run", "a", "--", "sh", "-c", "[ $LOCKKEEPER_TOKEN -gt 281474976710656 ]"]), Some(0));
}

/// The first user of a chroot has private locks. Everyone after it has locks and jobs of their own.
fn check_that_a_private_lock_keeps_no_one_out(servers: &str) {
    let home = Home::with_servers(&format!("{servers}/app"));
    home.secret("one", "digest one:hunter2\n");
    home.secret("two", "digest two:hunter3\n");
    let status = |args: &[&str]| home.output(args).status.code();
    let one = ["--auth-file", "one", "--acl", "creator-all", "--create-chroot", "--", "true"];
    assert_eq!(status(&[&["run", "nightly"], &one[..]].concat()), Some(0));
    let two = ["--auth-file", "two", "--acl", "creator-all", "--", "true"];
    assert_eq!(status(&[&["run", "other"], &two[..]].concat()), Some(0));
    assert_eq!(status(&[&["run", "daily", "--once-per", "day"], &two[..]].concat()), Some(0));
    // The lock of the first one is still its own.
    assert_eq!(status(&[&["run", "nightly"], &two[..]].concat()), Some(77));
    assert_eq!(status(&["run", "open", "--", "true"]), Some(0), "without credentials");
}

/// What `init` says: the lists that it made, those that it found, and how to change them.
fn check_that_init_sets_up_the_shared_nodes(servers: &str) {
    // A chroot that others may not even read is not called unreachable.
    let home = Home::with_servers(&format!("{servers}/private"));
    home.secret("ops", "digest ops:hunter2\n");
    home.ok(&["admin", "init", "--create-chroot", "--auth-file", "ops", "--acl", "creator-all"]);
    assert_eq!(home.output(&["run", "nightly", "--", "true"]).status.code(), Some(77));
    let home = Home::with_servers(servers);
    home.secret("ops", "digest ops:hunter2\n");
    let init = |args: &[&str]| home.output(&[&["admin", "init"], args].concat());
    let text = |output: &std::process::Output| String::from_utf8(output.stdout.clone()).unwrap();
    let made = init(&["--auth-file", "ops", "--acl", "creator-all", "--json"]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let told: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let of = |path: &str| told["nodes"].as_array().unwrap().iter().find(|node| node["path"] == path).unwrap().clone();
    assert_eq!((&of("/locks")["done"], &of("/locks")["open"]), (&"created".into(), &false.into()));
    // A hash of a password belongs neither on a terminal nor in a log.
    assert_eq!(of("/locks")["acl"], "digest:ops:x:cdrwa");
    // Everyone reads the epoch.
    assert_eq!(of("/lockkeeper/epoch")["open"], true);
    // A client that finds them private learns the remedy.
    let output = home.output(&["run", "nightly", "--", "true"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("/locks is shared by all clients but not open to all"), "{told}");
    assert!(
        told.contains(
            "hint: let all clients contend: lockkeeper admin init --acl 'auth::cdrwa,world:anyone:cdrw' --auth-file FILE "
        ),
        "{told}"
    );
    assert!(told.contains("hint: a client that may administrate that node opens it\n"), "{told}");
    assert_eq!(output.status.code(), Some(77));
    // Without --acl, what exists stays.
    let kept = init(&[]);
    let told = String::from_utf8_lossy(&kept.stderr);
    assert!(told.contains("lockkeeper admin init --acl 'auth::cdrwa,world:anyone:cdrw' --auth-file FILE "), "{told}");
    // A remedy of `init` repeats the credentials of this command, and not its list. Those of a refused command do not help.
    home.secret("ours", "digest ours:hunter3\n");
    let file = home.file("ours").display().to_string();
    let run = ["run", "a", "--auth-file", "ours", "--acl", "creator-all", "--", "true"];
    for (words, file) in [(&["admin", "init", "--auth-file", "ours"][..], &*file), (&run, "FILE")] {
        let told = String::from_utf8(home.output(words).stderr).unwrap();
        let remedy =
            told.lines().find(|line| line.contains(": lockkeeper admin init ")).unwrap_or_else(|| panic!("{told}"));
        assert!(remedy.contains(&format!(" --auth-file {file}")) && remedy.matches("--acl").count() == 1, "{remedy}");
    }
    refused(&kept, 1, "/locks, /lockkeeper, ");
    assert!(text(&kept).contains("/locks: was there, the servers do not show its list\n"), "{kept:?}");
    refused(&init(&["--acl", "open"]), 77, "/locks");
    let opened = init(&["--auth-file", "ops", "--acl", "auth::cdrwa,world:anyone:cdrw"]);
    assert_eq!(opened.status.code(), Some(0), "{opened:?}");
    assert!(text(&opened).contains("/locks: changed, digest:ops:"), "{opened:?}");
    let again = init(&[]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(
        text(&again).lines().all(|line| line.contains(": was there, digest:ops:x:cdrwa,world:anyone:")),
        "{again:?}"
    );
    home.ok(&["run", "nightly", "--", "true"]);
}

#[test]
fn a_private_lock_keeps_no_one_out_and_init_sets_up_what_all_share() {
    let machine = Home::new();
    let mut server = Running::start(&mut machine.command(&["serve", "--memory", "--listen", "127.0.0.1:0"]));
    let servers = server.line();
    check_that_a_private_lock_keeps_no_one_out(&servers);
    check_that_init_sets_up_the_shared_nodes(&servers);
}

/// The administrator's file is all that the reader adds. A realm's servers are in the hint, as `init` asks for them.
#[test]
fn the_hint_of_a_refused_command_works_as_it_is_printed() {
    let machine = Home::new();
    machine.secret("accounts", "sasl ops:hunter2\n");
    let serve = ["serve", "--memory", "--listen", "127.0.0.1:0", "--accounts", "accounts"];
    let mut server = Running::start(&mut machine.command(&serve));
    let servers = server.line();
    let realms = Home::new();
    std::fs::write(realms.file("c.toml"), format!("[realms]\n\"/\" = {servers:?}\n")).unwrap();
    for (home, place) in [(Home::with_servers(&servers), None), (realms, Some(["--config", "c.toml"]))] {
        home.secret("FILE", "sasl ops hunter2\n");
        home.secret("other", "digest other:hunter2\n");
        let other = ["jobs", "--auth-file", "other"];
        let close =
            ["admin", "init", "--auth-file", "FILE", "--acl", "sasl:ops:cdrwa,world:anyone:r", "--servers", &servers];
        home.ok(&close);
        let job = ["run", "j", "--slot", "1", "--auth-file", "FILE", "--servers", &servers, "--", "true"];
        home.ok(&job);
        let place = place.as_ref().map_or(&[][..], |place| place);
        for (words, command) in [(&["jobs"][..], &[][..]), (&other, &[]), (&["run", "a"], &["--", "true"])] {
            let words = [words, place, command].concat();
            let told = home.tells(&words, 77);
            let hint = told.split("contend: lockkeeper ").nth(1).unwrap_or_else(|| panic!("{words:?}: {told}"));
            let hint = shlex::split(hint.lines().next().unwrap()).unwrap();
            let hint: Vec<_> = hint.iter().map(String::as_str).collect();
            home.ok(&hint);
            home.ok(&close);
        }
    }
}

#[test]
fn a_list_of_a_scheme_that_the_servers_do_not_know_is_the_mistake_that_is_named() {
    let (_served, home) = served();
    names(
        &home.tells(&["run", "a", "--acl", "unheard:of:cdrwa", "--", "true"], 77),
        &["invalid access list", "  hint: correct --acl or the setting acl"],
    );
}

/// A lock that may not be read may have a holder.
#[test]
fn a_listing_claims_nothing_about_locks_that_this_client_may_not_read() {
    let (_served, home) = served();
    home.secret("auth", "digest jobs:hunter2\n");
    let _holder = home.holds("hid", &["--auth-file", "auth", "--acl", "creator-all"]);
    let output = home.output(&["list"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("cannot read /locks/hid"), "{told}");
    assert!(told.contains("no lock that this client may read at or below /locks has a holder or a waiter"), "{told}");
}

#[cfg(deep)]
#[test]
fn a_private_lock_keeps_no_one_out_and_init_sets_up_what_all_share_on_an_apache_server() {
    use lockkeeper_testkit::apache::{Apache, Options};
    let apache = Apache::single(Options::default()).unwrap();
    check_that_a_private_lock_keeps_no_one_out(&apache.connect_string());
    check_that_init_sets_up_the_shared_nodes(&apache.connect_string());
}

/// It was set up without credentials before: existing lists are kept.
#[test]
fn init_with_credentials_says_that_every_client_administrates_what_is_there() {
    let (_served, home) = served();
    home.secret("ops", "digest ops:hunter2\n");
    home.ok(&["admin", "init"]);
    let with_ops = || home.output(&["admin", "init", "--auth-file", "ops"]);
    let output = with_ops();
    refused(&output, 1, "every client may administrate /locks, /lockkeeper, ");
    let told = String::from_utf8(output.stderr).unwrap();
    let remedy = told.split("administrate: lockkeeper ").nth(1).unwrap_or_else(|| panic!("{told}"));
    let words = shlex::split(remedy).unwrap();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    assert_eq!(home.output(&words).status.code(), Some(0), "{words:?}");
    let output = with_ops();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!String::from_utf8(output.stdout).unwrap().contains("world:anyone:cdrwa"));
}

/// This user's own server has one user, and no lists.
#[test]
fn init_on_the_own_server_takes_no_list_and_is_harmless() {
    let home = Home::new();
    home.refuses(&["admin", "init", "--acl", "open"], 64, "--acl open is not used with");
    for done in ["created", "was there"] {
        let output = home.output(&["admin", "init"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let expected = format!("/locks: {done}, world:anyone:cdrwa\n");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(&expected), "{output:?}");
    }
}

#[cfg(deep)]
#[test]
fn credentials_of_a_file_open_the_nodes_of_their_access_list_on_an_apache_server() {
    use lockkeeper_testkit::apache::{Apache, Options};
    let apache = Apache::single(Options::default().sasl_user("jobs", "secret")).unwrap();
    check_that_credentials_open_nodes(&apache.connect_string());
}

/// The nodes admit only clients with the same credentials, whether they are a digest or the SASL user `jobs` with the
/// password `secret`.
fn check_that_credentials_open_nodes(servers: &str) {
    for (name, line, ours) in
        [("/a/x", "digest jobs:hunter2", "auth::cdrwa"), ("/b/x", "sasl jobs secret", "sasl:jobs:cdrwa")]
    {
        let home = Home::with_servers(servers);
        home.secret("auth", &format!("# ours\n{line}\n"));
        let known = ["--auth-file", "auth", "--acl", "creator-all"];
        let mut holder = home.holds(name, &known);
        home.failure(&["show", name], 77);
        home.ok(&["show", name, "--auth-file", "auth"]);
        // The same from a settings file, and with an access list of named users.
        let file = home.file("auth").display().to_string();
        std::fs::write(home.file("c.toml"), format!("auth_file = {file:?}\nacl = \"creator-all-world-read\"\n"))
            .unwrap();
        let mut next = home.spawn(name, &["--config", "c.toml"], "echo next");
        until("it waits", || {
            let shown = home.output(&["show", name, "--json", "--auth-file", "auth"]);
            String::from_utf8_lossy(&shown.stdout).contains("\"waiters\":[{")
        });
        holder.finish();
        next.ends_after("next");
        let (open, list) = (format!("{name}-open"), format!("{ours},world:anyone:r"));
        let named = ["--auth-file", "auth", "--acl", &list];
        home.ok(&[&["run", &open], &named[..], &["--", "true"]].concat());
        home.ok(&["show", &open]);
        assert_eq!(home.output(&["run", &open, "--", "true"]).status.code(), Some(77), "only jobs may write it");
    }
    let home = Home::with_servers(servers);
    home.secret("auth", "sasl jobs hunter2\n");
    let output = home.output(&["list", "--auth-file", "auth"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains(servers) && told.contains("--auth-file") && !told.contains("hunter2"), "{told}");
    assert_eq!(output.status.code(), Some(77));
}

#[test]
fn credentials_and_access_lists_that_cannot_be_used_are_refused() {
    let home = Home::with_servers("127.0.0.1:1");
    std::fs::write(home.file("all"), "digest jobs:hunter2\n").unwrap();
    std::fs::set_permissions(home.file("all"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    home.secret("wrong", "\nhunter2\n");
    home.secret("group", "digest jobs:hunter2\n");
    std::fs::set_permissions(home.file("group"), std::os::unix::fs::PermissionsExt::from_mode(0o620)).unwrap();
    home.secret("theirs", "digest jobs:hunter2\n");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(home.file("theirs"), Some(65534), None).unwrap();
    } else {
        eprintln!("NOT TESTED: a file of another user, because only root may give one away");
        std::fs::set_permissions(home.file("theirs"), std::os::unix::fs::PermissionsExt::from_mode(0o602)).unwrap();
    }
    for (args, say) in [
        (["--auth-file", "all"], "chmod 600 all"),
        (["--auth-file", "group"], "group has credentials, and may be written by other users (mode 620)"),
        (["--auth-file", "theirs"], "chmod 600 theirs"),
        (["--auth-file", "wrong"], "wrong:2: no scheme and credential"),
        (["--auth-file", "nowhere"], "cannot read nowhere"),
        (["--acl", "creator-all"], "--auth-file"),
        (["--acl", "sasl:jobs"], "it has only one colon"),
    ] {
        let output = home.output(&[&["list"], &args[..]].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(say) && !told.contains("hunter2"), "{told}");
        assert_eq!(output.status.code(), Some(64), "{told}");
    }
}

/// Each mistake about TLS has a hint about TLS, not one about a server that does not run.
#[cfg(feature = "tls")]
#[test]
fn mistakes_about_tls_get_hints_about_tls() {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

    let home = Home::new();
    let write = |name: &str, text: String| std::fs::write(home.file(name), text).unwrap();
    let authority = |name: &str, called: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, called);
        write(&format!("{name}.pem"), params.self_signed(&key).unwrap().pem());
        Issuer::new(params, key)
    };
    let issuer = authority("ca", "ours");
    _ = (authority("other-ca", "another"), authority("successor", "ours"));
    let issue = |name: &str, host: &str, expired: bool| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        if expired {
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        home.secret(&format!("{name}.key"), &key.serialize_pem());
    };
    issue("good", "127.0.0.1", false);
    issue("expired", "127.0.0.1", true);
    issue("elsewhere", "elsewhere", false);
    let serve = |flags: &[&str]| {
        let mut server =
            Running::start(&mut home.command(&[&["serve", "--memory", "--listen", "127.0.0.1:0"], flags].concat()));
        let address = server.line();
        (server, address)
    };
    let secured = |name: &str, more: &[&str]| {
        serve(&[&["--tls-cert", &format!("{name}.pem"), "--tls-key", &format!("{name}.key")], more].concat())
    };
    let (good, expired, elsewhere) = (secured("good", &[]), secured("expired", &[]), secured("elsewhere", &[]));
    let (mutual, plain) = (secured("good", &["--tls-client-ca", "other-ca.pem"]), serve(&[]));
    let known = ["--tls-ca", "ca.pem"];
    let presented = [&known[..], &["--tls-cert", "good.pem", "--tls-key", "good.key"]].concat();
    for (server, flags, problem, hint) in [
        (&good, &["--tls-ca", "other-ca.pem"][..], "an authority that is not trusted", "--tls-ca"),
        (&good, &["--tls-ca", "successor.pem"], "an authority that is not trusted", "--tls-ca"),
        (&expired, &known, "is not valid now", "renew the server's certificate"),
        (&elsewhere, &known, "for another name", "--servers"),
        (&mutual, &known, "requires a client certificate", "--tls-cert"),
        (&mutual, &presented, "requires a client certificate", "--tls-cert"),
        (&plain, &known, "without TLS", "leave out --tls-ca and the setting tls.ca"),
        (&good, &[], "one for TLS", "--tls-ca"),
    ] {
        // Those that may pass are waited out.
        let lasts = !["is not valid now", "requires a client certificate", "without TLS"].contains(&problem);
        let wait = if lasts { "60s" } else { "2s" };
        let args = [&["run", "a", "--wait", wait, "--servers", &server.1], flags, &["--", "true"]].concat();
        let told = home.tells(&args, 69);
        let (line, rest) = told.split_once("\n  hint: ").unwrap_or_else(|| panic!("{told}"));
        assert!(line.contains(problem) && rest.contains(hint), "{flags:?}: {told}");
        assert!(!told.contains("check that a ZooKeeper server runs"), "{flags:?}: {told}");
        assert_eq!(line.contains(" within 2 s: "), !lasts, "{told}");
        assert!(!line.contains(" within 1 min: "), "{told}");
    }
}

/// Some servers close a connection without TLS at once. Then a half handshake shows what the port is for.
#[test]
fn a_port_for_tls_that_only_closes_plain_connections_is_recognised() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            use std::io::{Read, Write};
            let (mut connection, mut first) = (connection.unwrap(), [0]);
            if connection.read(&mut first).is_ok_and(|read| read == 1) && first == [0x16] {
                _ = connection.write_all(&[0x15, 3, 3, 0, 2, 2, 50]);
            }
        }
    });
    let output = Home::new().output(&["run", "a", "--wait", "2s", "--servers", &address, "--", "true"]);
    let told = String::from_utf8(output.stderr).unwrap();
    names(&told, &["its port is one for TLS", "hint: connect by TLS with --tls-ca"]);
}

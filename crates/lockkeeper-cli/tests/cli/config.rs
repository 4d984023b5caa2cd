//! Settings on the command line: their values, their origins, and their effect on `run`.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Home, Served, failure, names, refused};

fn write(home: &Home, name: &str, text: &str) -> String {
    let path = home.file(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns one setting of `config --json`.
fn of<'a>(told: &'a Value, key: &str) -> &'a Value {
    told["settings"].as_array().unwrap().iter().find(|entry| entry["key"] == key).unwrap()
}

#[test]
fn config_prints_every_value_and_who_says_so() {
    let home = Home::new();
    let properties = write(&home, "app.properties", "# x\nzookeeper.session.timeout=7000\n");
    let mut command = home.command(&["config", "--json", "--properties", &properties, "--servers", "zk1:2181"]);
    let output = command.env("LOCKKEEPER_BACKGROUND_TIMEOUT", "9s").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let brief = |key: &str| {
        let entry = of(&told, key);
        (entry["value"].as_str(), entry["origin"].as_str().unwrap(), entry["name"].as_str(), entry["line"].as_i64())
    };
    assert_eq!(brief("servers"), (Some("zk1:2181"), "flag", Some("--servers"), None));
    assert_eq!(brief("session_timeout"), (Some("7s"), "file", None, Some(2)));
    assert_eq!(of(&told, "session_timeout")["file"], properties.as_str());
    assert_eq!(brief("background.timeout"), (Some("9s"), "variable", Some("LOCKKEEPER_BACKGROUND_TIMEOUT"), None));
    assert_eq!(brief("foreground.timeout"), (Some("2s"), "default", None, None));
    let text = home.ok(&["config"]);
    assert!(text.contains("'s own server  (default)"), "{text}");
    assert!(text.contains("LOCKKEEPER_STATE_DIR"), "{text}");
    assert!(!home.state().exists(), "looking starts nothing");
}

/// C-36: prints the session timeout that the server grants.
#[test]
fn config_shows_the_negotiated_session_timeout() {
    let home = Home::new();
    let served = Served::start(&home);
    let args = ["config", "--connect", "--json", "--servers", &served.address, "--session-timeout", "7500ms"];
    let told = home.json(&args);
    // As it is typed: in one word.
    assert_eq!(
        (&told["negotiated_session_timeout"], &of(&told, "session_timeout")["value"]),
        (&"7s500ms".into(), &"7s500ms".into())
    );
    let text = home.ok(&["config", "--connect", "--servers", &served.address, "--session-timeout", "500ms"]);
    let line = text.lines().find(|line| line.starts_with("session_timeout")).unwrap();
    assert!(line.contains("500ms  (--session-timeout, ") && line.ends_with(" agreed with the server)"), "{line}");
}

/// C-44: a warning on standard error; with --strict an error.
#[test]
fn a_mistyped_key_is_told_and_with_strict_it_is_an_error() {
    let home = Home::new();
    let properties = write(&home, "app.properties", "zookeeper.server=zk1\n");
    let text = home.tells(&["config", "--properties", &properties], 0);
    assert!(text.contains("app.properties:1: zookeeper.server: there is no such key"), "{text}");
    assert!(text.contains("did you mean zookeeper.servers?"), "{text}");
    let (code, line) =
        failure(&home.output(&["run", "a", "--strict", "--properties", &properties, "--", "touch", "ran"]));
    assert_eq!(code, Some(64), "{line}");
    assert!(line.contains("app.properties:1: ") && !home.file("ran").exists(), "{line}");
    for (name, text, say) in [
        ("a.toml", "session_timeout = 5", "a.toml:1: session_timeout: is of the type integer"),
        ("b.toml", "severs = 'x'", "did you mean servers?"),
    ] {
        let config = write(&home, name, text);
        home.refuses(&["list", "--config", &config], 64, say);
    }
    home.refuses(&["list", "--config", "missing.toml"], 64, "missing.toml: cannot be read");
}

#[test]
fn the_users_own_file_is_read_where_none_is_named() {
    let home = Home::new();
    std::fs::create_dir_all(home.file("etc/lockkeeper")).unwrap();
    write(&home, "etc/lockkeeper/config.toml", "session_timeout = \"8s\"\n");
    let output =
        home.command(&["config"]).env_remove("LOCKKEEPER_CONFIG").env("XDG_CONFIG_HOME", home.file("etc")).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    names(&text, &["8s  (", "etc/lockkeeper/config.toml:1)"]);
}

/// The output needs no home directory; only a session does.
#[test]
fn the_settings_are_told_without_a_home_directory() {
    let home = Home::new();
    let run = |args: &[&str]| {
        let mut command = home.command(args);
        for variable in ["LOCKKEEPER_STATE_DIR", "HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
            command.env_remove(variable);
        }
        command.output().unwrap()
    };
    let output = run(&["config"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    names(&text, &["session_timeout", "HOME is not set"]);
    let output = run(&["config", "--json"]);
    assert!(output.status.success() && output.stdout.starts_with(b"{"), "{output:?}");
    for words in [&["config", "--connect"][..], &["run", "a", "--", "true"]] {
        refused(&run(words), 70, "HOME is not set");
    }
}

/// C-28, C-39, C-40, C-42, C-43: dead letters and waits of the classes come from the file; --wait overrides them.
#[test]
fn run_uses_the_classes_of_the_settings() {
    let home = Home::new();
    let config = write(
        &home,
        "config.toml",
        "[foreground]\nprefix = \"K\"\ntimeout = \"2s\"\n[background]\nprefix = \"P\"\ntimeout = \"30s\"\n",
    );
    let mut holder = home.holds("a", &["--background", "--config", &config]);
    assert_eq!(home.show("a")["holders"][0]["class"], "P");
    let since = Instant::now();
    let output =
        home.output(&["run", "a", "--foreground", "--config", &config, "--message", "save", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(since.elapsed() >= Duration::from_secs(2) && !home.file("ran").exists());
    let mut patient = home.waits("a", &["--foreground", "--wait", "60s", "--config", &config], "echo in");
    assert_eq!(home.show("a")["waiters"][0]["class"], "K");
    holder.close_stdin();
    assert_eq!((holder.end().0, patient.line().as_str(), patient.end().0), (Some(0), "in", Some(0)));
    assert!(Path::new(&config).exists());
}

/// The flag overrides the variable, and the variable the file.
#[test]
fn the_settings_of_jobs_come_from_every_layer() {
    let home = Home::new();
    std::fs::write(home.file("config.toml"), "[jobs]\non_failure = \"keep\"\nkeep_output = \"1k\"\nlate = \"1h\"\n")
        .unwrap();
    let run = |name: &str, variables: &[(&str, &str)], args: &[&str]| {
        let words =
            [&["run", name, "--slot", "1", "--config", "config.toml"], args, &["--", "sh", "-c", "echo x >&2; exit 3"]];
        let mut command = home.command(&words.concat());
        command.envs(variables.iter().copied()).output().unwrap().status.code()
    };
    let next = [("LOCKKEEPER_JOBS_ON_FAILURE", "next")];
    for (name, variables, args, code) in
        [("file", &[][..], &[][..], 82), ("variable", &next, &[], 0), ("flag", &next, &["--on-failure", "retry"], 3)]
    {
        assert_eq!(run(name, variables, args), Some(3), "{name}");
        assert_eq!(run(name, variables, args), Some(code), "{name}");
    }
    let document = home.json(&["jobs", "file", "--json"]);
    assert_eq!(document["jobs"][0]["runs"][0]["end"]["output"], "x\n");
    let check =
        |late: &[&str]| home.output(&[&["jobs", "variable", "--check", "--config", "config.toml"], late].concat());
    assert_eq!(check(&[]).status.code(), Some(2), "it failed");
    for (key, value, remedy) in [
        ("TIME_ZONE", "Berlin", "Europe/Berlin"),
        ("ON_CRASH", "again", "retry:N"),
        ("CATCH_UP", "367", "from 0 to 366"),
        ("IF_UNREACHABLE", "go", "skip, run or wait"),
        ("KEEP_OUTPUT", "17k", "such as 4k"),
        ("KEEP_RUNS", "0", "from 1 to 1000"),
        ("LATE", "soon", "30s"),
    ] {
        let variable = format!("LOCKKEEPER_JOBS_{key}");
        let output = home.command(&["jobs"]).env(&variable, value).output().unwrap();
        let (code, line) = failure(&output);
        assert_eq!(code, Some(64), "{line}");
        names(&line, &[&variable, value, remedy]);
    }
}

/// Each directory in which a command is run would have other locks.
#[test]
fn a_relative_directory_of_the_own_server_is_refused_unless_it_was_typed() {
    let home = Home::new();
    let list = |variables: &[(&str, Option<&str>)], args: &[&str]| {
        let mut command = home.command(&[&["list"], args].concat());
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        crate::harness::failure(&command.output().unwrap())
    };
    let unset = [("LOCKKEEPER_STATE_DIR", None), ("XDG_STATE_HOME", None)];
    let (code, line) = list(&[unset[0], unset[1], ("HOME", Some("here"))], &[]);
    assert!(code == Some(64) && line.contains("HOME names a directory, and here is not an absolute path"), "{line}");
    let (code, line) = list(&[("LOCKKEEPER_STATE_DIR", Some("state"))], &[]);
    assert!(code == Some(64) && line.contains("LOCKKEEPER_STATE_DIR names a directory, and state is no"), "{line}");
    let (code, line) = list(&[], &["--state-dir", "typed"]);
    assert!(code == Some(69) && line.contains("is not running"), "{line}");
}

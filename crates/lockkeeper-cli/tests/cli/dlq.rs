//! Retries of commands, the dead letters of those that never got their lock, and their replays.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{BINARY, Home, Running, Served, failure, held, names, refused, stderr, text, until};
use crate::terminal::Screen;

/// Runs `run NAME --background --retries 1` behind a holder, with attempts that do not wait.
fn give_up(home: &Home, name: &str, more: &[&str], script: &str) -> Output {
    let args = ["run", name, "--background", "--try", "--retries", "1", "--retry-delay", "1ms"];
    let output = home.output(&[&args[..], &["--dead-letter", "file"], more, &["--", "sh", "-c", script]].concat());
    last_attempt(output)
}

/// Removes the lines about attempts that others followed, after checking their form.
fn last_attempt(mut output: Output) -> Output {
    let text = String::from_utf8(output.stderr).unwrap();
    let is_before = |line: &&str| line.contains("lockkeeper: attempt ");
    for line in text.lines().filter(is_before) {
        names(line, &[" ended: ", "; the next one begins after 1 ms or more"]);
    }
    let rest: String = text.split_inclusive('\n').filter(|line| !is_before(line)).collect();
    output.stderr = rest.into_bytes();
    output
}

fn hold(home: &Home, name: &str) -> Running {
    home.holds(name, &["--foreground", "--message", "Save Content"])
}

/// Leaves a letter of a command that never got the lock `a`, which is free then. Returns its operation.
fn left(home: &Home, more: &[&str], script: &str) -> String {
    let mut holder = hold(home, "a");
    give_up(home, "a", more, script);
    holder.finish();
    id(&letters(home)[0]).to_owned()
}

fn letters(home: &Home) -> Vec<Value> {
    let told = home.json(&["dlq", "list", "--all", "--json"]);
    assert_eq!(told["unreadable"].as_array().unwrap().len(), 0, "{told}");
    told["letters"].as_array().unwrap().clone()
}

fn id(letter: &Value) -> &str {
    letter["operation"].as_str().unwrap()
}

/// C-45, C-47: the letter has the command line, the holder, the number of attempts and the time; only its owner can
/// read it, and it is written once.
#[test]
fn a_command_that_never_gets_its_lock_is_kept_once() {
    let home = Home::new();
    let mut holder = hold(&home, "a");
    let output = give_up(&home, "a", &["--message", "Bulk Propagation"], "touch ran");
    let (code, line) = failure(&output);
    assert_eq!(code, Some(75), "{line}");
    names(&line, &["given up after 2 attempts", "kept as the dead letter"]);
    names(&line, &["/locks/a", "\"Bulk Propagation\""]);
    assert!(!home.file("ran").exists());
    let letters = letters(&home);
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert!(stderr(&output).contains(&format!("lockkeeper dlq replay {}", id(letter))));
    assert_eq!((letter["fate"].as_str(), letter["attempts"].as_u64()), (Some("waiting"), Some(2)));
    assert_eq!((letter["path"].as_str(), letter["class"].as_str()), (Some("/locks/a"), Some("B")));
    assert_eq!(
        (letter["lock_info"].as_str(), letter["error"].as_str()),
        (Some("Bulk Propagation"), Some("InstanceLock"))
    );
    assert!(letter["waited_ms"].is_u64() && letter["behind"].as_str().unwrap().contains("Save Content"), "{letter}");
    assert_eq!(letter["payload"]["command"], serde_json::json!(["sh", "-c", "touch ran"]));
    let mode = home.state().join("dead-letters.jsonl").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let shown = home.output(&["dlq", "show", &id(letter)[..8]]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    names(&shown, &["Bulk Propagation", "-- sh -c 'touch ran'"]);
    let listed = home.ok(&["dlq", "list"]);
    let lines: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["LETTER", "FATE", "LOCK", "ATTEMPTS", "LAST", "COMMAND"]);
    assert_eq!(lines[1][1..4], ["waiting", "/locks/a", "2"], "{listed}");
    assert!(listed.contains(", not granted in time  "), "{listed}");
    holder.finish();
}

/// C-48: a lock that was granted in the end leaves no letter, whatever the exit status of its command.
#[test]
fn a_command_that_got_its_lock_is_no_letter() {
    let home = Home::new();
    let mut holder = hold(&home, "a");
    let args = ["--background", "--wait", "1s", "--retries", "1000", "--retry-delay", "500ms", "--dead-letter", "file"];
    let mut waiting = home.spawn("a", &args, "echo in; exit 3");
    for waiters in [1, 0] {
        until("it comes and goes", || home.count("a").1 == waiters);
    }
    holder.finish();
    assert_eq!((waiting.line().as_str(), waiting.end().0), ("in", Some(3)));
    assert_eq!(letters(&home), Vec::<Value>::new());
}

/// C-45: the settings apply to the background only; a flag applies to its own command.
#[test]
fn the_settings_count_the_retries_of_the_background_only() {
    let home = Home::new();
    let properties = home.file("elasticsearch-details.properties");
    std::fs::write(&properties, "elastic.request.retry.count=2\nzookeeper.background.task.timeout=60000\n").unwrap();
    let run = |kind: &str, more: &[&str]| {
        let config = ["--try", "--properties", properties.to_str().unwrap()];
        failure(&last_attempt(home.output(&[&["run", "a", kind], &config[..], more, &["--", "true"]].concat())))
    };
    // The file names a deployment on localhost:2181; this server is at another address.
    let served = Served::start(&home);
    let mut other = home.holds("a", &["--foreground", "--servers", &served.address]);
    let (code, line) = run("--background", &["--servers", &served.address, "--retry-delay", "1ms"]);
    assert!(code == Some(75) && line.contains("given up after 3 attempts"), "{line}");
    let (code, line) = run("--foreground", &["--servers", &served.address]);
    assert!(code == Some(75) && !line.contains("given up"), "{line}");
    let (code, line) = run("--foreground", &["--servers", &served.address, "--retry-delay", "1500ms"]);
    assert!(code == Some(64) && line.contains("--retry-delay 1s500ms is not used without retries"), "{line}");
    let (code, line) = run("--foreground", &["--servers", &served.address, "--retries", "1", "--retry-delay", "1ms"]);
    assert!(code == Some(75) && line.contains("given up after 2 attempts"), "{line}");
    other.finish();
}

#[test]
fn a_replay_that_succeeds_is_marked_and_one_that_fails_stays_once() {
    let home = Home::new();
    let mut holder = hold(&home, "a");
    give_up(&home, "a", &[], "echo $LOCKKEEPER_PATH >> ran; exit $(cat status)");
    let operation = id(&letters(&home)[0]).to_owned();
    let replay = ["dlq", "replay", &operation];
    // The lock is still taken.
    home.tells_of(&replay, 75, "stays: lockkeeper run ended with 75");
    holder.finish();
    // The command of the letter fails.
    std::fs::write(home.file("status"), "4").unwrap();
    home.tells_of(&replay, 75, "ended with 4");
    let now = letters(&home);
    assert_eq!((now.len(), now[0]["fate"].as_str(), now[0]["failures"].as_u64()), (1, Some("waiting"), Some(2)));
    // It succeeds, in the directory and under the lock of the letter, wherever it is replayed.
    std::fs::write(home.file("status"), "0").unwrap();
    let elsewhere = home.command(&replay).current_dir("/").output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(0), "{elsewhere:?}");
    assert_eq!(text(&home.file("ran")), "/locks/a\n/locks/a\n");
    // It does not run again.
    home.tells_of(&replay, 1, "was replayed by");
    assert_eq!(text(&home.file("ran")).lines().count(), 2);
    assert_eq!(letters(&home)[0]["fate"], "replayed");
    home.tells_of(&["dlq", "replay", "--all"], 0, "no dead letter waits");
}

#[test]
fn two_replays_at_once_run_a_letter_once() {
    let home = Home::new();
    let operation = left(&home, &[], "echo ran >> ran; while [ ! -e go ]; do sleep 0.01; done");
    let start = || Running::start(&mut home.command(&["dlq", "replay", &operation]));
    let mut first = start();
    until("it runs", || home.file("ran").metadata().is_ok_and(|ran| ran.len() > 0));
    let (code, told) = start().end();
    assert!(code == Some(75) && told.contains("is being replayed by"), "{told}");
    std::fs::write(home.file("go"), "").unwrap();
    first.ends(0);
    let mut racers: Vec<_> = (0..3).map(|_| start()).collect();
    for racer in &mut racers {
        let (code, told) = racer.end();
        assert!(code == Some(1) && told.contains("was replayed by"), "{told}");
    }
    assert_eq!(text(&home.file("ran")), "ran\n");
}

#[test]
fn a_replay_that_died_is_not_run_again_unless_asked_for() {
    let home = Home::new();
    let operation =
        left(&home, &["--session-timeout", "4s"], "echo ran >> ran; [ $(wc -l < ran) -gt 1 ] || exec sleep 1000");
    let mut replay = Running::start(&mut home.command(&["dlq", "replay", &operation]));
    until("it runs", || home.file("ran").metadata().is_ok_and(|ran| ran.len() > 0));
    replay.kill();
    assert_eq!(letters(&home)[0]["fate"], "begun");
    let path = format!("/lockkeeper/locks/{operation}");
    until("its lock is free", || home.count(&path).0 == 0 && home.count("a").0 == 0);
    home.tells_of(&["dlq", "replay", &operation], 75, "recorded no result");
    home.tells_of(&["dlq", "replay", "--all"], 0, "no dead letter waits");
    home.ok(&["dlq", "replay", "--all", "--again"]);
    assert_eq!(text(&home.file("ran")).lines().count(), 2);
}

/// A replay runs what the file says, as the user who replays it.
#[test]
fn letters_that_another_user_may_have_written_are_replayed_only_by_name_and_on_request() {
    let home = Home::new();
    let operation = left(&home, &[], "touch ran");
    let file = home.state().join("dead-letters.jsonl");
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("NOT TESTED: files and directories of other owners, because only root may give one away");
    }
    let mode = |path: &std::path::Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let refused = |why: &str| {
        for replay in [&["--all"][..], &["--all", "--yes"], &[&operation]] {
            let output = home.output(&[&["dlq", "replay"], replay].concat());
            refused(&output, 77, why);
            assert!(stderr(&output).contains(&format!("dlq replay {operation} --foreign")), "{output:?}");
        }
        assert!(!home.file("ran").exists());
        assert_eq!(letters(&home).len(), 1, "they can be read");
    };
    mode(&file, 0o660);
    refused("dead-letters.jsonl may be written by other users (mode 660)");
    mode(&file, 0o600);
    // Other users can enter the directory above, as with a home directory of mode 0755.
    mode(home.state().parent().unwrap(), 0o755);
    mode(&home.state(), 0o777);
    refused("state may be written by other users (mode 777)");
    mode(&home.state(), 0o700);
    if is_root {
        for path in [&file, &home.state()] {
            chown(path, Some(65534), None).unwrap();
            refused("belongs to user 65534");
            chown(path, Some(0), None).unwrap();
        }
        // In a sticky directory, its owner can still replace the file.
        mode(&home.state(), 0o1700);
        chown(home.state(), Some(65534), None).unwrap();
        refused("belongs to user 65534");
        chown(home.state(), Some(0), None).unwrap();
        mode(&home.state(), 0o700);
    }
    // An old file counts too.
    let old = home.state().join("dead-letters.jsonl.1");
    std::fs::rename(&file, &old).unwrap();
    mode(&old, 0o602);
    refused("dead-letters.jsonl.1 may be written");
    let replay = |more: &[&str]| home.output(&[&["dlq", "replay", &operation, "--foreign"], more].concat());
    assert_eq!(replay(&["--all"]).status.code(), Some(64));
    assert_eq!(failure(&replay(&[])).0, Some(64), "there is no terminal to ask on");
    assert!(!home.file("ran").exists());
    let output = replay(&["--yes"]);
    assert!(output.status.success() && home.file("ran").exists(), "{output:?}");
}

/// The advice names what the replay will need.
#[test]
fn the_advice_about_a_letter_that_another_user_may_have_written_says_foreign() {
    let home = Home::new();
    let mut holder = hold(&home, "a");
    give_up(&home, "a", &[], "echo ran >> ran; exec sleep 1000");
    let file = home.state().join("dead-letters.jsonl");
    std::fs::set_permissions(&file, Permissions::from_mode(0o660)).unwrap();
    let output = give_up(&home, "a", &[], "true");
    assert!(stderr(&output).contains(" --foreign --dead-letter file "), "{output:?}");
    holder.finish();
    let operation = id(&letters(&home)[0]).to_owned();
    let words = ["dlq", "replay", &operation, "--foreign", "--yes"];
    let mut replay = Running::start(&mut home.command(&words));
    until("it runs", || home.file("ran").metadata().is_ok_and(|ran| ran.len() > 0));
    replay.kill();
    let path = format!("/lockkeeper/locks/{operation}");
    until("its lock is free", || home.count(&path).0 == 0);
    let output = home.output(&words);
    let again = format!("run it anyway: lockkeeper dlq replay {operation} --again --foreign");
    assert!(stderr(&output).contains(&again), "{output:?}");
    // A replay that needs both options, with one of them.
    let output = home.output(&["dlq", "replay", &operation, "--again"]);
    assert!(
        stderr(&output).contains(&format!("run it: lockkeeper dlq replay {operation} --again --foreign")),
        "{output:?}"
    );
}

#[cfg(feature = "kafka")]
#[test]
fn a_letter_for_kafka_without_a_broker_is_said_to_be_in_the_spool() {
    let home = Home::new();
    let mut holder = hold(&home, "a");
    let place = "kafka:127.0.0.1:1/Letters";
    let output = home.output(&["run", "a", "--foreground", "--try", "--dead-letter", place, "--", "touch", "ran"]);
    let (code, line) = failure(&output);
    assert_eq!(code, Some(75), "{line}");
    let spool = home.state().join("spool").join("kafka:127.0.0.1:1%2FLetters");
    assert!(
        line.ends_with(&format!(
            " in the spool {}, until a process that uses the spool reaches {place}",
            spool.display()
        )),
        "{line}"
    );
    assert!(stderr(&output).contains(&format!(" --foreign --dead-letter {place} ")), "{output:?}");
    holder.finish();
}

#[test]
fn a_person_sees_all_commands_before_they_run() {
    let home = Home::new();
    let mut holder = hold(&home, "a");
    give_up(&home, "a", &[], "echo one >> ran");
    give_up(&home, "a", &[], "echo two >> ran");
    holder.finish();
    let mut screen = Screen::start(&home, BINARY, &["dlq", "replay", "--all"]);
    let shown = screen.expect("Run these 2 commands? [y/N] ");
    names(&shown, &["echo one >> ran", "echo two >> ran"]);
    screen.press(b"n\r");
    assert_eq!(screen.end().code(), Some(75));
    assert!(!home.file("ran").exists());
    let mut screen = Screen::start(&home, BINARY, &["dlq", "replay", "--all"]);
    screen.expect("[y/N] ");
    screen.press(b"y\r");
    assert_eq!(screen.end().code(), Some(0));
    assert_eq!(text(&home.file("ran")), "one\ntwo\n");
}

#[test]
fn a_signal_ends_a_replay_of_several_letters_with_the_command_that_runs() {
    let home = Home::new();
    let mut holder = hold(&home, "a");
    for _ in 0..2 {
        give_up(&home, "a", &[], "echo up; exec sleep 1000");
    }
    holder.finish();
    let mut replay = Running::start(&mut home.command(&["dlq", "replay", "--all"]));
    assert_eq!(replay.line(), "up");
    replay.signal(Signal::TERM);
    let (code, told) = replay.end();
    assert!(code == Some(75) && told.contains("stopped by a signal: 1 letter not replayed"), "{code:?} {told}");
    let failed: u64 = letters(&home).iter().filter_map(|letter| letter["failures"].as_u64()).sum();
    assert_eq!((letters(&home).len(), failed), (2, 1), "the second command was not run");
}

/// A service that gives up the same operation again has another letter; one letter that is stored twice is one.
#[test]
fn letters_of_one_operation_are_told_apart_by_their_own_ids() {
    let home = Home::new();
    std::fs::create_dir_all(home.state()).unwrap();
    let letter = |id: &str, payload: u32| {
        let letter = serde_json::json!({"letter": {
            "id": id, "operation": "op", "monitor_object": "x", "path": "/locks/x", "payload": payload, "attempts": 1,
            "error": "InstanceLock", "detail": "", "first_ms": 1, "last_ms": 1, "waited_ms": 1,
            "owner": {"user": "root", "host": "here", "pid": 1},
        }});
        format!("{letter}\n")
    };
    let file = home.state().join("dead-letters.jsonl");
    std::fs::write(file, letter("one", 7) + &letter("two", 8) + &letter("one", 7)).unwrap();
    let said = |words: &[&str]| home.ok(&[&["dlq"], words].concat());
    let list = said(&["list"]);
    let starts = |list: &str| list.lines().skip(1).map(|line| line[..12].trim().to_owned()).collect::<Vec<_>>();
    assert_eq!(starts(&list), ["one     wait", "two     wait"], "{list}");
    home.refuses(&["dlq", "drop", "op"], 64, "2 dead letters of \"op\" wait");
    home.ok(&["dlq", "drop", "one", "--reason", "not wanted"]);
    home.refuses(&["dlq", "replay", "one"], 1, "was dropped by");
    assert!(said(&["show", "one"]).contains("not wanted"));
    let list = said(&["list"]);
    assert_eq!(starts(&list), ["op      wait"], "{list}");
    assert!(said(&["list", "--all"]).contains("  dropped  "));
    assert!(said(&["show", "op"]).lines().any(|row| row.starts_with("payload") && row.ends_with(" 8")));
    home.ok(&["dlq", "drop", "two"]);
    assert!(stderr(&home.output(&["dlq", "list"])).contains("no dead letter waits"));
}

#[test]
fn mistakes_about_letters_are_told() {
    let home = Home::new();
    for (args, code, say) in [
        (&["dlq", "show", "x"][..], 1, "there is no dead letter \"x\""),
        (&["dlq", "replay"], 64, "required"),
        (&["dlq", "list", "--dead-letter", "nowhere"], 64, "\"nowhere\" is not a place for dead letters"),
        (&["run", "a", "--dead-letter", "file:", "--", "touch", "ran"], 64, "is not a place for dead letters"),
        (&["run", "a", "--retries", "many", "--", "touch", "ran"], 64, "invalid value 'many'"),
        (&["run", "a", "--lease", "1s", "--retries", "2", "--", "touch", "ran"], 64, "cannot be used with"),
    ] {
        home.refuses(args, code, say);
    }
    // A slip of the fingers creates no directory.
    let file = format!("file:{}", home.file("misspelt/deep/letters").display());
    for words in
        [&["run", "a", "--dead-letter", &file, "--", "touch", "ran"][..], &["dlq", "list", "--dead-letter", &file]]
    {
        let (code, line) = failure(&home.output(words));
        let missing = format!("there is no directory {} ", home.file("misspelt").display());
        assert!(code == Some(64) && line.contains(&missing), "{code:?} {line}");
    }
    assert!(!home.file("misspelt").exists());
    std::fs::create_dir_all(home.state()).unwrap();
    std::fs::write(home.state().join("dead-letters.jsonl"), "{\"letter\":{\"oper").unwrap();
    home.tells_of(&["dlq", "list"], 0, "dead-letters.jsonl:1: ");
    assert!(!home.file("ran").exists());
}

/// Another attempt would be refused as well, so a replay has no use.
#[test]
fn a_refusal_that_keeps_no_letter_says_so() {
    let (home, _holder) = held("a", &["--permits", "2"]);
    let words = ["run", "a", "--permits", "3", "--dead-letter", "file", "--", "touch", "ran"];
    home.refuses(&words, 64, "; no dead letter is kept, because another attempt fails too");
    assert!(letters(&home).is_empty());
    let plain = failure(&home.output(&["run", "a", "--permits", "3", "--", "touch", "ran"])).1;
    assert!(!plain.contains("dead letter"), "{plain}");
}

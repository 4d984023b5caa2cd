//! Texts about the command itself: help, manual pages, and suggestions after a mistake.

use std::path::Path;

use crate::harness::{Home, Served, failure, names, refused, without_time};

const VERBS: &[&[&str]] = &[
    &[],
    &["run"],
    &["lead"],
    &["list"],
    &["show"],
    &["jobs"],
    &["jobs", "import"],
    &["jobs", "resolve"],
    &["jobs", "rerun"],
    &["jobs", "pause"],
    &["jobs", "resume"],
    &["jobs", "expect"],
    &["jobs", "forget"],
    &["why"],
    &["deadlocks"],
    &["doctor"],
    &["history"],
    &["top"],
    &["revoke"],
    &["break"],
    &["requests"],
    &["requests", "approve"],
    &["requests", "reject"],
    &["dlq"],
    &["dlq", "list"],
    &["dlq", "show"],
    &["dlq", "replay"],
    &["dlq", "drop"],
    &["fence"],
    &["admin"],
    &["admin", "gc"],
    &["admin", "epoch"],
    &["admin", "init"],
    &["admin", "copy"],
    &["config"],
    &["observe"],
    &["serve"],
    &["server"],
    &["server", "status"],
    &["server", "stop"],
    &["server", "restart"],
    &["server", "backup"],
    &["server", "restore"],
    &["completions"],
    &["man"],
];

fn help(home: &Home, verb: &[&str], option: &str, columns: usize) -> String {
    let output = home.command(&[verb, &[option]].concat()).env("COLUMNS", columns.to_string()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn short_help_fits_one_screen_and_all_help_fits_the_terminal() {
    let home = Home::new();
    for verb in VERBS {
        let short = help(&home, verb, "-h", 80);
        assert!(short.lines().count() <= 40, "{verb:?} has {} lines", short.lines().count());
        for columns in [80, 100] {
            for option in ["-h", "--help"] {
                let text = help(&home, verb, option, columns);
                let wide = text.lines().find(|line| line.chars().count() > columns);
                assert_eq!(wide, None, "{verb:?} {option}");
            }
        }
    }
    assert!(help(&home, &["run"], "-h", 80).contains("lockkeeper run --help"), "it names the way to all options");
    for (verb, status) in [("resolve", "no run of the job waits for a decision"), ("forget", "the job has no records")]
    {
        let help = help(&home, &["jobs", verb], "--help", 80);
        assert!(help.split_once("Exit status").is_some_and(|(_, rest)| rest.contains(status)), "{help}");
    }
    let run = help(&home, &["run"], "--help", 100).split_whitespace().collect::<Vec<_>>().join(" ");
    // What a lock cannot do, too.
    let says = ["Exit status:", "76 the lock was lost", "paused", "LOCKKEEPER_TOKEN grows", "daemon"];
    names(&run, &[&says[..], &["a plain or shared hold takes all permits"]].concat());
    // The options of other verbs that a first `init` needs.
    let init = help(&home, &["admin", "init"], "-h", 100);
    for option in ["--auth-file <FILE>", "--acl <LIST>", "Give the shared nodes this access list", "--create-chroot"] {
        assert!(init.contains(option), "{option:?} is missing in {init}");
    }
}

#[test]
fn the_help_of_the_command_has_five_groups_however_it_is_asked_for() {
    let home = Home::new();
    let text = help(&home, &[], "--help", 80);
    let groups = text.lines().skip(3).filter(|line| !line.starts_with(' '));
    assert_eq!(groups.count(), 5, "{text}");
    assert_eq!(text, help(&home, &[], "-h", 80));
    assert_eq!(text, home.ok(&["help"]));
}

/// Each option is under the heading of its subject.
#[test]
fn options_stand_under_their_own_headings() {
    let home = Home::new();
    let text = help(&home, &["run"], "--help", 100);
    let mut heading = "";
    let mut found = Vec::new();
    for line in text.lines() {
        if !line.starts_with(' ') && line.ends_with(':') {
            heading = line;
        } else if let Some(option) = line.trim_start().split([' ', '=', ',']).find(|word| word.starts_with("--")) {
            found.push((option, heading));
        }
    }
    for (option, heading) in [
        ("--try", "Options:"),
        ("--json", "Options:"),
        ("--help", "Options:"),
        ("--shared", "How the lock is held:"),
        ("--servers", "Where the locks are:"),
        ("--strict", "Where the locks are:"),
        ("--lease", "Leased locks, shared with Apache Helix:"),
        ("--stats", "Leased locks, shared with Apache Helix:"),
    ] {
        assert!(found.contains(&(option, heading)), "{option} is not under {heading:?}: {found:?}");
    }
    let arguments = text.split("\nArguments:").nth(1).and_then(|rest| rest.split("\n\nOptions:").next()).unwrap();
    names(arguments, &["<NAME>...", "<COMMAND>..."]);
}

/// The verbs that people try first exist, or the error says what to type instead.
#[test]
fn verbs_that_people_type_first_exist_or_are_suggested() {
    let home = Home::new();
    let text = |args: &[&str]| {
        let output = home.output(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(text(&["version"]), text(&["--version"]));
    assert!(text(&["help"]).contains("Usage: lockkeeper"));
    assert_eq!(text(&["help", "run"]), text(&["run", "--help"]));
    home.ok(&["run", "a", "--", "true"]);
    for list in ["ls", "ps"] {
        assert_eq!(text(&[list, "--json"]), text(&["list", "--json"]));
    }
    let cases: [(&[&str], &str); 67] = [
        (&["jobs", "resolve", "a"], "<--again|--accept>"),
        (&["run", "a", "--nowait", "--", "b"], "hint: write --try\n"),
        (&["run", "a", "-n", "--", "b"], "hint: write --try\n"),
        (&["run", "-x", "a", "--", "b"], "hint: leave -x out: a lock without --shared is exclusive\n"),
        (&["flock", "a", "--", "b"], "run a command under the lock: lockkeeper run a --"),
        (&["watch"], "see the locks as they change: lockkeeper list --config"),
        (&["watch"], " --watch\n"),
        (&["watch", "a"], "follow its holds: lockkeeper history a --config"),
        (&["rm", "a"], "take it from its holder: lockkeeper break a --config"),
        (&["jobs", "import"], "hint: name the crontab, or - for standard input"),
        (&["run", "-w", "3", "a", "--", "b"], "hint: write --wait 3s\n"),
        (&["run", "-w3", "a", "--", "b"], "hint: write --wait 3s\n"),
        (&["run", "a", "--timeout=2m", "--", "b"], "hint: write --wait 2m\n"),
        (&["run", "a", "--timeout", "--", "b"], "hint: write --wait 30s\n"),
        (&["run", "a", "-c", "echo $x"], "let a shell run it: lockkeeper run a --config /dev/null"),
        (&["run", "a", "-c", "echo $x"], " -- sh -c 'echo $x'\n"),
        (&["run", "-c", "make all", "a", "--try"], "let a shell run it: lockkeeper run a --try --config /dev/null"),
        (&["run", "-c"], "let a shell run it: lockkeeper run NAME --"),
        (&["run", "a", "--retry", "3", "--", "b"], "hint: write --retries 3\n"),
        (&["run", "a", "--retry", "--", "b"], "hint: write --retries COUNT\n"),
        (&["run", "a", "--verbose", "--", "b"], "--verbose is for jobs: it goes with --once-per, --every or --slot\n"),
        (&["run", "a", "-v", "--", "b"], "hint: leave it out: "),
        (
            &["run", "a", "--catch-up", "3", "--", "b"],
            "--catch-up needs --once-per PERIOD, --every DURATION or --slot TEXT\n",
        ),
        (&["run", "a", "--time-zone", "UTC", "--", "b"], "hint: add --once-per PERIOD, or leave --time-zone out\n"),
        (&["run", "a", "--priority=3", "--", "b"], "--priority needs --lease DURATION\n"),
        (&["run", "a", "--lease", "1m", "--emergency", "--", "b"], "--emergency needs --reason TEXT\n"),
        (&["histroy", "a"], "did you mean: lockkeeper history a --"),
        (&["jobs", "histroy", "a"], "list its runs: lockkeeper jobs a --"),
        (&["status"], "see which locks there are: lockkeeper list --"),
        (&["status", "a b"], "see its holders and waiters: lockkeeper show 'a b' --"),
        (&["lock", "a"], "run a command under the lock: lockkeeper run a --"),
        (&["lock"], "run a command under the lock: lockkeeper run NAME --"),
        (&["acquire", "a", "--try", "--", "echo", "$x"], " -- echo '$x'\n"),
        (&["unlock", "a"], "ask its holder: lockkeeper revoke a --"),
        (&["unlock"], "take it from its holder: lockkeeper break NAME --"),
        (&["log"], " --broken\n"),
        (&["log", "a"], "see the last holds: lockkeeper history a --"),
        (&["log", "a"], "list the runs of a job: lockkeeper jobs a --"),
        (&["history"], "were not provided: <NAME>"),
        (&["check"], "look for trouble: lockkeeper doctor --"),
        (&["prune", "team"], "list what is left of locks that nobody uses: lockkeeper admin gc team --"),
        (&["cancel", "a"], "or with --node a waiter: lockkeeper revoke a --"),
        (&["kill", "a"], " --reason WHY\n"),
        (&["nightly", "--", "make", "all"], "run a command under that lock: lockkeeper run nightly --"),
        (&["run", "a", "ls", "-l", "a b"], "write -- before the command: lockkeeper run a --config /dev/null"),
        (&["run", "a", "ls", "-l", "a b"], " -- ls -l 'a b'\n"),
        (
            &["run", "--wait", "5s", "a", "-m", "b", "./x y"],
            "before the command: lockkeeper run --wait 5s a -m b --config",
        ),
        (&["run", "a"], " -- COMMAND\n"),
        (&["dlq"], "see all options: lockkeeper dlq --help"),
        (&["sohw", "a"], "did you mean: lockkeeper show a --"),
        (&["revok", "a"], "did you mean: lockkeeper revoke a --"),
        (&["rnu", "a", "--try", "--", "echo", "$x"], "did you mean: lockkeeper run a --try --"),
        (&["help", "rnu"], "did you mean: lockkeeper help run\n"),
        (&["help", "jobs", "resovle"], "did you mean: lockkeeper help jobs resolve\n"),
        (&["jobs", "resovle", "a", "--again"], "did you mean: lockkeeper jobs resolve a --again --"),
        (&["jobs", "run", "a"], "run a command as a job: lockkeeper run a --once-per day --"),
        (&["jobs", "history", "a"], "list its runs: lockkeeper jobs a --"),
        (&["jobs", "show", "a"], "see that job: lockkeeper jobs a --"),
        (&["list", "--reason", "x"], "hint: --reason is an option of run, fence, hold, acquire, revoke, break, "),
        (&["list", "--verbose"], "hint: --verbose is an option of run\n"),
        (&["list", "--all"], "too: lockkeeper list /\n"),
        (&["jobs", "--all"], "it shows all jobs: lockkeeper jobs\n"),
        (&["show", "a", "--al"], "did you mean --all?"),
        (&["run", "a", "--reason", "x", "--", "b"], "write --message TEXT\n"),
        // Only the name is missing.
        (&["run", "-v", "--slot", "1", "--", "b"], "were not provided: <NAME>..."),
        (&["run", "--lease", "1m", "--emergency", "--reason", "x", "--", "b"], "<NAME>...\n  hint: see all options: "),
        // A job may be called nearly like a verb.
        (&["jobs", "report", "--history", "--check"], "cannot be used with"),
    ];
    for (args, say) in cases {
        let output = home.output(args);
        assert_eq!(failure(&output).0, Some(64), "{args:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(say), "{args:?}: {say:?} is missing in {text}");
        // The place that the terminal's variables name is included.
        let place = format!("--state-dir {}", home.state().display());
        assert!(!say.contains(" --\n") || text.contains(&place), "{text}");
    }
    // Half of a short word is no slip of the fingers, and `init` writes to the servers.
    let text = String::from_utf8(home.output(&["wait", "a"]).stderr).unwrap();
    assert!(text.contains("wait") && !text.contains("did you mean"), "{text}");
    let (_, line) = failure(&home.output(&["dlq"]));
    assert_eq!(line, "the verb is missing: list, show, replay, drop");
}

#[test]
fn a_misspelt_option_is_recognised() {
    let home = Home::new();
    for (typed, meant) in [("--tyr", "--try"), ("--shred", "--shared"), ("--wiat=5s", "--wait"), ("--jsno", "--json")] {
        for command in [&["run", "a", typed, "--", "true"][..], &["run", "a", typed, "true"]] {
            let output = home.output(command);
            assert_eq!(failure(&output).0, Some(64));
            let text = String::from_utf8(output.stderr).unwrap();
            assert!(text.contains(&format!("did you mean {meant}?")), "{command:?}: {text}");
        }
    }
    let text = String::from_utf8(home.output(&["run", "a", "--colour", "--", "true"]).stderr).unwrap();
    assert!(!text.contains("did you mean"), "{text}");
    // Similar only to the parser.
    for args in [&["list", "--reason", "x"][..], &["list", "--all"], &["jobs", "--reason", "x"]] {
        let text = String::from_utf8(home.output(args).stderr).unwrap();
        assert!(!text.contains("--json") && !text.contains("--acl"), "{args:?}: {text}");
    }
}

#[test]
fn every_manual_page_is_printed_and_written() {
    let home = Home::new();
    let page = |args: &[&str]| home.ok(&[&["man"], args].concat());
    assert!(page(&[]).contains(".TH lockkeeper 1"));
    assert!(page(&["run"]).contains(".TH lockkeeper-run 1") && page(&["run"]).contains("\\-\\-try"));
    assert!(page(&["dlq", "replay"]).contains(".TH lockkeeper-dlq-replay 1"));
    let (code, line) = failure(&home.output(&["man", "frobnicate"]));
    assert_eq!((code, line.as_str()), (Some(64), "there is no page for \"frobnicate\""));
    let directory = home.file("share/man1");
    let write = || assert!(home.output(&["man", "--directory", directory.to_str().unwrap()]).status.success());
    write();
    // Another user may have planted a link.
    let main = directory.join("lockkeeper.1");
    std::fs::rename(&main, home.file("kept")).unwrap();
    std::fs::write(home.file("kept"), "content").unwrap();
    std::os::unix::fs::symlink(home.file("kept"), &main).unwrap();
    write();
    assert_eq!(std::fs::read_to_string(home.file("kept")).unwrap(), "content");
    for verb in VERBS {
        let name = [&["lockkeeper"], *verb].concat().join("-");
        let file = directory.join(Path::new(&format!("{name}.1")));
        assert_eq!(crate::harness::text(&file), page(verb), "{name}");
    }
}

/// A warning names an unknown variable with our prefix, and the variable that was probably meant.
#[test]
fn an_unknown_variable_is_told() {
    let home = Home::new();
    let run = |name: &str, more: &[&str]| {
        let args = [&["run", "a"], more, &["--", "true"]].concat();
        home.command(&args).env(name, "5s").output().unwrap()
    };
    let output = run("LOCKKEEPER_WAIT", &[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    names(&text, &["LOCKKEEPER_WAIT: there is no such variable", "write --wait"]);
    refused(&run("LOCKKEEPER_WAIT", &["--strict"]), 64, "LOCKKEEPER_WAIT");
    // A command under a lock may run lockkeeper: the variables that we set for it are known.
    let output = home.output(&["run", "b", "--", crate::harness::BINARY, "run", "c", "--", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// The granted timeout determines when the lock is free after a crash.
#[test]
fn a_granted_session_timeout_that_differs_is_told() {
    let home = Home::new();
    let served = Served::start(&home);
    let run = |timeout: &str| {
        let args = ["run", "a", "--servers", &served.address, "--session-timeout", timeout, "--", "true"];
        let output = home.output(&args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = run("500ms");
    assert_eq!(
        without_time(&told),
        "lockkeeper: the servers grant a session timeout of 1 s, not the requested 500 ms\n"
    );
    assert_eq!(run("7s"), "");
}

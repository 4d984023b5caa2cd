//! `fence` and `epoch`: how a job uses its token, and tokens that outlive a server.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use crate::harness::{BINARY, Home, failure, until};

/// A process of the broken job that became a daemon can no longer change the file.
#[test]
fn a_job_that_lost_its_lock_does_not_replace_the_file_of_its_successor() {
    let home = Home::new();
    let mut stale = home.spawn("nightly", &[], "echo up; cat");
    assert_eq!(stale.line(), "up");
    let token = home.show("nightly")["holders"][0]["token"].as_i64().unwrap();
    assert!(home.output(&["break", "nightly", "-r", "test", "-y"]).status.success());
    let script = format!("echo new | {BINARY} fence report && cat report");
    let mut next = home.spawn("nightly", &[], &script);
    assert_eq!(next.line(), "new");
    assert!(next.wait().success());
    let late = |args: &[&str]| {
        let mut command = home.command(&[&["fence", "report", "--token", &token.to_string()], args].concat());
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        _ = child.stdin.take().unwrap().write_all(b"stale\n");
        failure(&child.wait_with_output().unwrap())
    };
    for args in [&[][..], &["--", "touch", "ran"]] {
        let (code, line) = late(args);
        assert_eq!(code, Some(76), "{line}");
        assert!(line.contains(&format!("token {token} is stale: ")), "{line}");
    }
    assert_eq!(fs::read_to_string(home.file("report")).unwrap(), "new\n");
    assert!(!home.file("ran").exists());
    assert_eq!(stale.end().0, Some(76));
}

/// The command replaces the process, so its exit status is returned, and the gate is closed until it ends.
#[test]
fn a_command_behind_the_gate_keeps_others_out_and_its_own_exit_status() {
    let home = Home::new();
    let mut first = crate::harness::Running::start(&mut home.command(&[
        "fence",
        "dir",
        "--token",
        "5",
        "--",
        "sh",
        "-c",
        "echo up; read line; echo done > first; exit 7",
    ]));
    assert_eq!(first.line(), "up");
    let mut second = home.command(&["fence", "dir", "--token", "6", "--", "sh", "-c", "cat first"]);
    let second = second.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    first.close_stdin();
    assert_eq!(first.wait().code(), Some(7));
    let output = second.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"done\n".as_slice()));
    let (code, _) = failure(&home.output(&["fence", "dir", "--token", "6", "--", "no-such-program"]));
    assert_eq!(code, Some(127));
}

#[test]
fn fence_refuses_invalid_tokens() {
    let home = Home::new();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["fence", "a"], 64, "LOCKKEEPER_TOKEN is not set"),
        (&["fence", "a", "--token", "007"], 64, "is no fencing token"),
        (&["fence", "a", "--token", "-7"], 64, ""),
        (&["fence", "no/such/directory", "--token", "7"], 73, "no/such/directory.fence"),
    ];
    for (args, expected, say) in cases {
        let (code, line) = failure(&home.output(args));
        assert_eq!(code, Some(expected), "{args:?}: {line}");
        assert!(line.contains(say), "{args:?}: {line}");
    }
    let script = format!("{BINARY} fence x; echo $?");
    let output = home.output(&["run", "a", "b", "--", "sh", "-c", &script]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "64\n");
    assert!(!home.file("a.fence").exists() && !home.file("x.fence").exists());
}

/// The state directory is lost, and with it the counter of the server.
#[test]
fn an_epoch_puts_the_tokens_of_a_server_that_begins_anew_above_the_old_ones() {
    let home = Home::new();
    let run = |home: &Home| {
        let output = home.output(&["run", "a", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
        String::from_utf8(output.stdout).unwrap().trim().parse::<i64>().unwrap()
    };
    let tokens = [run(&home), run(&home), run(&home)];
    assert!(tokens.is_sorted());
    let anew = Home::new();
    let (code, line) = failure(&anew.output(&["epoch"]));
    assert_eq!(code, Some(69), "{line}");
    assert!(run(&anew) <= tokens[2]);
    // The epoch cannot be lowered again, so the command needs a confirmation; here is no terminal.
    let (code, line) = failure(&anew.output(&["epoch", "--above", &tokens[2].to_string()]));
    assert!(code == Some(64) && line.contains("there is no terminal to ask on"), "{line}");
    let told: serde_json::Value = serde_json::from_slice(&anew.output(&["epoch", "--json"]).stdout).unwrap();
    assert_eq!(told["epoch"], 0);
    let output = anew.output(&["epoch", "--yes", "--above", &tokens[2].to_string()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("token epoch 1: tokens are above {}\n", 1_i64 << 48));
    let first = run(&anew);
    assert!(first > tokens[2] && first > 1 << 48);
    // Raised again, above its own tokens; and never lowered.
    assert!(anew.output(&["epoch", "--yes", "--above", &first.to_string()]).status.success());
    assert!(anew.output(&["epoch", "--yes", "--above", "1"]).status.success());
    let output = anew.output(&["epoch", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["epoch"], &told["above"]), (&2.into(), &(2_i64 << 48).into()));
    until("it is granted above", || run(&anew) > 2 << 48);
    assert_eq!(failure(&anew.output(&["epoch", "--yes", "--above", "9223372036854775807"])).0, Some(64));
}

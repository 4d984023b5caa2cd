//! `fence` and `epoch`: how a job uses its token, and tokens that outlive a server.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::harness::{BINARY, Home, Served, failure, held, names, refused, until};

/// A process of the broken job that became a daemon can no longer change the file.
#[test]
fn a_job_that_lost_its_lock_does_not_replace_the_file_of_its_successor() {
    let (home, mut stale) = held("nightly", &[]);
    let token = home.show("nightly")["holders"][0]["token"].as_i64().unwrap();
    home.ok(&["break", "nightly", "-r", "test", "-y"]);
    let script = format!("echo new | {BINARY} fence report && cat report");
    let mut next = home.spawn("nightly", &[], &script);
    next.ends_after("new");
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
    stale.ends(76);
}

#[test]
fn a_closed_standard_input_is_no_new_contents_and_an_empty_one_is() {
    let home = Home::new();
    let file = home.file("report");
    fs::write(&file, "old\n").unwrap();
    let fence = |token: u32, input: &str| {
        let script = format!("exec {BINARY} fence report --token {token} {input}");
        Command::new("sh").args(["-c", &script]).current_dir(file.parent().unwrap()).output().unwrap()
    };
    refused(&fence(9, "<&-"), 64, "standard input is closed");
    assert_eq!(fs::read_to_string(&file).unwrap(), "old\n");
    // Nor was the token taken.
    assert_eq!(fence(8, "</dev/null").status.code(), Some(0));
    assert_eq!(fs::read_to_string(&file).unwrap(), "");
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
    home.failure(&["fence", "dir", "--token", "6", "--", "no-such-program"], 127);
}

#[test]
fn fence_refuses_invalid_tokens() {
    let home = Home::new();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["fence", "a"], 64, "LOCKKEEPER_TOKEN is not set"),
        (&["fence", "a", "--token", "007"], 64, "is no fencing token"),
        (&["fence", "a", "--token", "-7"], 64, ""),
        (&["fence", "no/such/directory", "--token", "7"], 70, "finding the directory of no/such/directory"),
    ];
    for (args, expected, say) in cases {
        home.refuses(args, expected, say);
    }
    let script = format!("{BINARY} fence x; echo $?");
    let output = home.output(&["run", "a", "b", "--", "sh", "-c", &script]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "64\n");
    assert!(!home.file("a.fence").exists() && !home.file("x.fence").exists());
}

/// Holders at the same time have no order.
#[test]
fn a_command_under_permits_is_told_that_it_has_no_token() {
    let home = Home::new();
    let script = "echo x | \"$0\" fence f";
    let lockkeeper = crate::harness::BINARY;
    names(
        &home.tells(&["run", "a", "--permits", "3", "--", "sh", "-c", script, lockkeeper], 64),
        &["holds permits or a shared lock, which have no token"],
    );
}

/// A server begins anew with a clock that is behind.
#[test]
fn an_epoch_puts_the_tokens_of_a_server_that_begins_anew_above_the_old_ones() {
    let machine = Home::new();
    let old = Served::start_after(&machine, 1 << 46);
    let home = Home::with_servers(&old.address);
    let run = |home: &Home| {
        let output = home.output(&["run", "a", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
        String::from_utf8(output.stdout).unwrap().trim().parse::<i64>().unwrap()
    };
    let tokens = [run(&home), run(&home), run(&home)];
    assert!(tokens.is_sorted());
    let anew = Home::new();
    anew.failure(&["admin", "epoch"], 69);
    assert!(run(&anew) <= tokens[2]);
    home.ok(&["fence", "f", "--token", &tokens[2].to_string(), "--", "true"]);
    let stale = home.output(&["fence", "f", "--token", &tokens[0].to_string(), "--", "true"]);
    assert_eq!(stale.status.code(), Some(76));
    let hint = format!("lockkeeper admin epoch --above {}", tokens[2]);
    assert!(String::from_utf8_lossy(&stale.stderr).contains(&hint), "{stale:?}");
    // The epoch cannot be lowered again, so the command needs a confirmation; here is no terminal.
    anew.refuses(&["admin", "epoch", "--above", &tokens[2].to_string()], 64, "there is no terminal to ask on");
    let told = anew.json(&["admin", "epoch", "--json"]);
    assert_eq!(told["epoch"], 0);
    let text = anew.ok(&["admin", "epoch", "--yes", "--above", &tokens[2].to_string()]);
    assert_eq!(text, format!("token epoch 1: tokens are above {}\n", 1_i64 << 48));
    let first = run(&anew);
    assert!(first > tokens[2] && first > 1 << 48);
    // Raised again, above its own tokens; and never lowered.
    anew.ok(&["admin", "epoch", "--yes", "--above", &first.to_string()]);
    // Nothing changes, so nothing is to be confirmed.
    anew.ok(&["admin", "epoch", "--above", "1"]);
    let told = anew.json(&["admin", "epoch", "--json"]);
    assert_eq!((&told["epoch"], &told["above"]), (&2.into(), &(2_i64 << 48).into()));
    until("it is granted above", || run(&anew) > 2 << 48);
    anew.failure(&["admin", "epoch", "--yes", "--above", "9223372036854775807"], 64);
}

/// Runs `lockkeeper fence ARGS` in a shell, which may redirect its input.
fn fence(home: &Home, line: &str) -> Output {
    let mut shell = Command::new("sh");
    home.prepare(shell.args(["-c", &format!("{BINARY} fence {line}")]).stdin(Stdio::null()));
    shell.output().unwrap()
}

/// The guide says: generate the contents first.
#[test]
fn contents_that_were_generated_beside_the_file_are_not_lost() {
    let home = Home::new();
    let at = |name: &str| home.file(name);
    fs::write(at("report"), "old").unwrap();
    fs::write(at("report.new"), "new").unwrap();
    assert!(fence(&home, "report --token 5 < report.new").status.success());
    assert_eq!(fs::read_to_string(at("report")).unwrap(), "new");
    assert_eq!(fs::read_to_string(at("report.new")).unwrap(), "new");
    fs::hard_link(at("report"), at("same")).unwrap();
    for input in ["report", "same", "report.fence"] {
        refused(&fence(&home, &format!("report --token 5 < {input}")), 64, "standard input is report");
    }
    assert_eq!(fs::read_to_string(at("report")).unwrap(), "new");
    // A command behind the gate may read what it likes.
    assert!(fence(&home, "report --token 5 -- cat < report").status.success());
}

#[test]
fn a_wait_for_the_gate_ends_with_75() {
    let home = Home::new();
    let args = ["fence", "dir", "--token", "5", "--", "sh", "-c", "echo up; read line"];
    let mut first = crate::harness::Running::start(&mut home.command(&args));
    assert_eq!(first.line(), "up");
    for rest in ["--token 6 --wait 20ms -- touch ran", "--token 6 --wait 0s", "--show --wait 20ms"] {
        refused(&fence(&home, &format!("dir {rest}")), 75, "kept the gate closed");
    }
    first.close_stdin();
    first.wait();
    assert!(
        fence(&home, "dir --token 5 --wait 1m -- true").status.success(),
        "a token that waited in vain raised the mark"
    );
    assert!(!home.file("ran").exists());
}

#[test]
fn a_gate_that_a_wrong_token_would_close_stays_open_or_is_opened_with_a_reason() {
    let home = Home::new();
    let shown = || String::from_utf8(fence(&home, "dir --show").stdout).unwrap();
    assert_eq!(shown(), "no token\n");
    assert!(fence(&home, "dir --token 7 -- true").status.success());
    let output = fence(&home, "dir --token 9223372036854775807 -- touch ran");
    assert!(
        failure(&output).0 == Some(64) && String::from_utf8_lossy(&output.stderr).contains("--force"),
        "{output:?}"
    );
    assert_eq!(shown(), "token 7 of epoch 0\n");
    assert!(fence(&home, "dir --token 9223372036854775807 --force -- true").status.success());
    assert_eq!(failure(&fence(&home, "dir --token 8 -- touch ran")).0, Some(76));
    // A reset needs a reason, and a yes.
    assert_eq!(failure(&fence(&home, "dir --reset --yes")).0, Some(64));
    assert_eq!(failure(&fence(&home, "dir --reset --yes --reason ' '")).0, Some(64));
    assert_eq!(failure(&fence(&home, "dir --reset --reason typo")).0, Some(64));
    assert!(fence(&home, "dir --reset --token 8 --yes --reason 'a typo\nin a script'").status.success());
    refused(&fence(&home, "dir --reset --token 9 --yes --reason up"), 64, "token 9 is greater than 8");
    let text = shown();
    let (mark, reset) = text.trim_end().split_once('\n').unwrap();
    assert_eq!(mark, "token 8 of epoch 0");
    assert!(
        reset.starts_with("reset 2") && reset.contains("from token 9223372036854775807 to token 8: a typo"),
        "{reset}"
    );
    assert_eq!(failure(&fence(&home, "dir --token 7 -- touch ran")).0, Some(76));
    assert!(fence(&home, "dir --token 8 -- true").status.success() && !home.file("ran").exists());
}

/// No epoch is above it, so the advice for a rebuilt ensemble could not work.
#[test]
fn after_the_largest_token_the_advice_is_to_forget_it() {
    let home = Home::new();
    let fence = |token: &str| home.output(&["fence", "report", "--force", "--token", token, "--", "true"]);
    assert!(fence(&i64::MAX.to_string()).status.success());
    let output = fence("5");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(76), "{told}");
    assert!(!told.contains("epoch --above") && told.contains("lockkeeper fence "), "{told}");
    assert!(told.contains(" --reset --reason WHY"), "{told}");
}

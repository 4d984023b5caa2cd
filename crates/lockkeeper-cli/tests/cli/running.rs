//! The command under the lock: its environment, and how its end looks from outside.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use rustix::process::Signal;

use crate::harness::{Home, Running, failure, is_alive};

#[test]
fn case_47_exit_status_is_the_commands() {
    let home = Home::new();
    for status in [0, 1, 3, 75, 255] {
        let output = home.output(&["run", "a", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status));
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    for signal in [1, 2, 9, 15] {
        let output = home.output(&["run", "a", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.code(), Some(128 + signal));
    }
}

#[test]
fn commands_that_cannot_run_have_the_shells_exit_codes_and_leave_no_node() {
    let home = Home::new();
    let output = home.output(&["run", "a", "--", "no-such-command-anywhere"]);
    assert_eq!(failure(&output), (Some(127), "no-such-command-anywhere: command not found".to_owned()));
    let output = home.output(&["run", "a", "--", "/etc/passwd"]);
    assert_eq!(failure(&output), (Some(126), "/etc/passwd: permission denied".to_owned()));
    assert_eq!(home.count("a"), (0, 0));
}

#[test]
fn the_missing_program_of_a_command_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    for (name, first_line, missing) in
        [("job", "#!/nonexistent/sh -e\n", "\"/nonexistent/sh\""), ("crlf", "#! /bin/sh\r\n", "\"/bin/sh\\r\"")]
    {
        let file = home.file(name);
        std::fs::write(&file, first_line).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        let file = file.to_str().unwrap();
        let (code, line) = failure(&home.output(&["run", "a", "--", file]));
        assert_eq!((code, line), (Some(126), format!("{file}: its interpreter {missing} was not found")));
    }
    let output = home.output(&["run", "a", "--", "sleep 5"]);
    assert_eq!(failure(&output), (Some(127), "sleep 5: command not found".to_owned()));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("  hint: leave out the quotes: -- sleep 5; or let a shell run it: -- sh -c 'sleep 5'\n"),
        "{text}"
    );
    let output = home.output(&["run", "a", "--", "no such", "command"]);
    assert!(!String::from_utf8(output.stderr).unwrap().contains("hint"));
}

#[test]
fn standard_streams_pass_through_untouched() {
    let home = Home::new();
    let mut running = home.spawn("a", &[], "cat; echo to-stderr >&2");
    let input: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut stdin = running.child.stdin.take().unwrap();
    let sent = input.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent).unwrap());
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut running.stdout, &mut output).unwrap();
    writer.join().unwrap();
    assert!(output == input, "{} bytes came back", output.len());
    assert_eq!(running.end(), (Some(0), "to-stderr\n".to_owned()));
}

#[test]
fn arguments_keep_their_bytes() {
    let home = Home::new();
    let odd = std::ffi::OsStr::from_bytes(b"not \xff utf-8\n");
    let mut command = home.command(&["run", "a", "--", "printf", "%s|", "two words", "", "--try", "*", "$HOME"]);
    let output = command.arg(odd).output().unwrap();
    assert_eq!(output.stdout, b"two words||--try|*|$HOME|not \xff utf-8\n|");
}

#[test]
fn the_hold_is_told_in_the_environment() {
    let home = Home::new();
    let script = "echo $LOCKKEEPER_TOKEN; echo $LOCKKEEPER_PATH; echo $LOCKKEEPER_NODE; cat";
    let mut first = home.spawn("deep/er", &[], script);
    let (token, path, node) = (first.line(), first.line(), first.line());
    assert_eq!(path, "/locks/deep/er");
    let holder = &home.show("deep/er")["holders"][0];
    assert_eq!(holder["token"].to_string(), token);
    assert_eq!(holder["node"], node);
    first.close_stdin();
    first.wait();
    // A later hold has a greater token.
    let mut second = home.spawn("deep/er", &[], script);
    let (earlier, later): (i64, i64) = (token.parse().unwrap(), second.line().parse().unwrap());
    assert!(later > earlier, "{later} after {earlier}");
    second.close_stdin();
    second.wait();
}

#[test]
fn the_command_is_a_child_in_a_group_of_its_own_with_signals_at_their_defaults() {
    let home = Home::new();
    let script = "cut -d' ' -f 1,4,5 /proc/self/stat; grep -E 'SigBlk|SigIgn' /proc/self/status; cat";
    let mut running = home.spawn("a", &[], &format!("exec sh -c \"{script}\""));
    let line = running.line();
    let fields: Vec<i32> = line.split(' ').map(|field| field.parse().unwrap()).collect();
    // `cut` is the shell's child, and the shell leads the group.
    assert_eq!(fields[1], fields[2], "parent and group of {fields:?}");
    assert_ne!(fields[2], running.pid().as_raw_nonzero().get());
    let ours = std::process::Command::new("grep").args(["-E", "SigBlk|SigIgn", "/proc/self/status"]).output().unwrap();
    assert_eq!(format!("{}\n{}\n", running.line(), running.line()), String::from_utf8(ours.stdout).unwrap());
    running.finish();
}

#[test]
fn a_signal_ignored_at_the_start_stays_ignored() {
    let home = Home::new();
    let mut command = std::process::Command::new("sh");
    let script = format!("trap '' HUP; exec {} run a -- sh -c 'echo up; read end; echo $end'", crate::harness::BINARY);
    home.prepare(command.args(["-c", &script]));
    let mut running = Running::start(&mut command);
    assert_eq!(running.line(), "up");
    running.signal(Signal::HUP);
    running.child.stdin.take().unwrap().write_all(b"survived\n").unwrap();
    running.ends_after("survived");
}

#[test]
fn background_processes_of_the_command_stay() {
    let home = Home::new();
    let mut running = home.spawn("a", &[], "sleep 1000 >/dev/null 2>&1 & echo $!");
    let left = running.pid_line();
    assert!(running.wait().success());
    assert!(is_alive(left));
    assert_eq!(home.count("a"), (0, 0));
    rustix::process::kill_process(left, Signal::KILL).unwrap();
}

//! Runs the command lines of README and of docs/command.md unchanged.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::{BINARY, Home, Running, until};

/// Texts in a line that is only parsed, and why it is not run. A unit test of the definitions parses all lines.
const ONLY_PARSED: [(&str, &str); 6] = [
    ("zk1:", "it needs an ensemble"),
    ("--machine", "it needs the service of the machine, in a directory of root's"),
    ("…", "it is a pattern"),
    ("[", "it is a pattern"),
    (" VERB", "it is a pattern"),
    (" SHELL", "it is a pattern"),
];

/// Returns the command lines, without the text beside them.
fn lines() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for page in ["README.md", "docs/command.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let lines = text.lines().map(|line| line.trim().trim_start_matches("$ "));
        let inline = text.split('`').skip(1).step_by(2);
        let all = lines.chain(inline).filter(|line| line.starts_with("lockkeeper "));
        // Inline, a verb alone is only a name.
        found.extend(all.filter(|line| line.split(' ').count() > 2 || *line == "lockkeeper list").map(str::to_owned));
    }
    found
}

/// Returns a home with the scripts that the lines run, and a directory of programs for `PATH`.
fn home_with_scripts() -> (Home, String) {
    let home = Home::new();
    let bin = home.file("bin");
    std::fs::create_dir(&bin).unwrap();
    symlink(BINARY, bin.join("lockkeeper")).unwrap();
    let script = |file: &Path, text: &str| {
        std::fs::write(file, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
    };
    for name in ["job.sh", "report.sh", "fetch.sh", "propagate.sh", "transfer.sh"] {
        script(&home.file(name), "exit 0");
    }
    script(&bin.join("make"), "exit 0");
    script(&bin.join("less"), "exec cat");
    std::fs::write(home.file("new.json"), "{}\n").unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    (home, path)
}

#[test]
fn every_command_line_of_the_documents_that_a_bare_machine_can_run_succeeds() {
    let (home, path) = home_with_scripts();
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        home.prepare(shell.args(["-c", line]).env("PATH", &path).stdin(Stdio::null()));
        shell
    };
    let (mut ran, mut parsed) = (0, Vec::new());
    for line in lines() {
        if let Some((mark, _)) = ONLY_PARSED.iter().find(|(mark, _)| line.contains(mark)) {
            parsed.push(*mark);
            continue;
        }
        ran += 1;
        let verb = line.split(' ').nth(1).unwrap();
        let command = line.split('#').next().unwrap().trim_end();
        let output = match verb {
            // It runs until it is stopped, and the port of the example may be in use.
            "serve" => {
                let line = format!("exec {}", command.replace(":2181", ":0"));
                let mut server = Running::start(&mut shell(&line));
                assert!(server.line().starts_with("127.0.0.1:"), "{line}");
                server.signal(Signal::TERM);
                assert_eq!(server.wait().code(), Some(0), "{line}");
                continue;
            }
            // They need a holder, and there is no terminal to confirm on.
            "show" | "why" | "revoke" | "break" => {
                let mut holder = home.spawn("nightly", &[], "echo up; exec sleep 1000");
                assert_eq!(holder.line(), "up");
                let yes = if verb == "break" { " --yes" } else { "" };
                let output = shell(&format!("{command}{yes}")).output().unwrap();
                if matches!(verb, "show" | "why") {
                    holder.signal(Signal::TERM);
                }
                holder.wait();
                until("it is released", || home.count("nightly").0 == 0);
                output
            }
            // It runs in a job.
            "fence" => home
                .command(&["run", "reports", "--", "sh", "-c", command])
                .env("PATH", &path)
                .stdin(Stdio::null())
                .output()
                .unwrap(),
            _ => shell(command).output().unwrap(),
        };
        assert!(output.status.success(), "{line}: {output:?}");
    }
    assert!(ran >= 14, "only {ran} lines were run");
    for (mark, why) in ONLY_PARSED {
        assert!(parsed.contains(&mark), "no line has {mark:?} any more ({why})");
    }
    assert_eq!(crate::harness::text(&home.file("report.json")), "{}\n");
}

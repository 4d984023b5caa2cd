//! Completion, in the shells themselves. A shell that is not there is said: `cargo xtask interop shells` installs all three.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{BINARY, Home, Running, Served, until};
use crate::plain::Plain;
use crate::terminal::Screen;

/// Ctrl-U: forget the line.
const FORGET: &[u8] = b"\x15";

/// A shell at its prompt, with the script of `lockkeeper completions`.
struct Shell {
    name: &'static str,
    screen: Screen,
    terminal: vt100::Parser,
    /// How many commands were run.
    said: usize,
}

impl Shell {
    fn start(name: &'static str, home: &Home) -> Option<Self> {
        if Command::new(name).arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("NOT TESTED: completion in {name}, which is not installed (Debian: apt-get install {name})");
            return None;
        }
        let bin = Path::new(BINARY).parent().unwrap().display();
        let own = home.file("bin");
        let (args, prepare): (&[&str], _) = match name {
            "bash" => (
                &["--norc", "--noprofile", "-i"],
                "PS1='ready> '; f=/usr/share/bash-completion/bash_completion; [ ! -r $f ] || . $f; source <(lockkeeper completions bash)",
            ),
            "zsh" => (
                &["-f", "-i"],
                "PS1='ready> '; autoload -Uz compinit; compinit -u -D; source <(lockkeeper completions zsh)",
            ),
            _ => (
                &["--no-config", "--private", "-i"],
                "function fish_prompt; echo -n 'ready> '; end; set -g fish_autosuggestion_enabled 0; \
                 lockkeeper completions fish | source",
            ),
        };
        let path = match name {
            "fish" => format!("set -x PATH {bin} {} $PATH", own.display()),
            _ => format!("PATH={bin}:{}:$PATH", own.display()),
        };
        let mut shell =
            Shell { name, screen: Screen::start(home, name, args), terminal: vt100::Parser::new(24, 200, 0), said: 0 };
        shell.say(&path);
        shell.say("export LOCKKEEPER_CONFIG=/dev/null");
        shell.say(prepare);
        Some(shell)
    }

    /// Runs a command of the shell's own to its end.
    fn say(&mut self, line: &str) {
        self.said += 1;
        self.screen.press(format!("{line}; echo do''ne{}\r", self.said).as_bytes());
        self.screen.until_shown(&mut self.terminal, &format!("done{}", self.said));
    }

    /// Types this and a tab; waits until the line is `whole`.
    fn completes(&mut self, typed: &str, whole: &str) {
        self.screen.press(typed.as_bytes());
        let whole = format!("ready> {whole}");
        let shown = self.screen.press_until_shown(b"\t", &mut self.terminal, &whole);
        assert!(!shown.contains("lockkeeper:") && !shown.contains("hint"), "{}: {shown}", self.name);
        self.screen.press(FORGET);
        // A line that is typed ahead may be drawn over this one.
        self.say("true");
    }
}

/// Tries a claim in every shell that is there.
fn in_each_shell(home: &Home, claim: impl Fn(&mut Shell)) {
    for name in ["bash", "zsh", "fish"] {
        if let Some(mut shell) = Shell::start(name, home) {
            claim(&mut shell);
        }
    }
}

#[test]
fn shells_complete_verbs_options_values_and_files() {
    let home = Home::new();
    std::fs::write(home.file("only-here.toml"), "").unwrap();
    in_each_shell(&home, |shell| {
        shell.completes("lockkeeper deadl", "lockkeeper deadlocks");
        shell.completes("lockkeeper run a --once-", "lockkeeper run a --once-per");
        shell.completes("lockkeeper run a --once-per we", "lockkeeper run a --once-per week");
        shell.completes("lockkeeper run a --on-failure=ke", "lockkeeper run a --on-failure=keep");
        shell.completes(
            "lockkeeper run a --on-revoke USR2 --if-unr",
            "lockkeeper run a --on-revoke USR2 --if-unreachable",
        );
        shell.completes("lockkeeper list --config onl", "lockkeeper list --config only-here.toml");
        shell.completes("lockkeeper list --config=onl", "lockkeeper list --config=only-here.toml");
        shell.completes("lockkeeper completions zs", "lockkeeper completions zsh");
    });
    assert!(!home.state().exists(), "no server was started");
}

/// With the completion of that command, where the shell has one.
#[test]
fn what_follows_the_dashes_is_completed_as_if_it_were_typed_alone() {
    let home = Home::new();
    std::fs::create_dir(home.file("bin")).unwrap();
    std::fs::write(home.file("bin/zebra-tool"), "#!/bin/sh\n").unwrap();
    Command::new("chmod").arg("+x").arg(home.file("bin/zebra-tool")).status().unwrap();
    std::fs::write(home.file("only-here.txt"), "").unwrap();
    in_each_shell(&home, |shell| {
        shell.completes("lockkeeper run a -- zebra-t", "lockkeeper run a -- zebra-tool");
        shell.completes("lockkeeper run a --try -- cat onl", "lockkeeper run a --try -- cat only-here.txt");
        shell.completes("lockkeeper lead a -- zebra-t", "lockkeeper lead a -- zebra-tool");
        let own = match shell.name {
            "bash" if !Path::new("/usr/share/bash-completion/bash_completion").exists() => {
                eprintln!("NOT TESTED: a command's own completion in bash (Debian: apt-get install bash-completion)");
                return;
            }
            "bash" => "complete -W 'alpha-word beta-word' zebra-tool",
            "zsh" => "_zebra() { compadd alpha-word beta-word }; compdef _zebra zebra-tool",
            _ => "complete -c zebra-tool -f -a 'alpha-word beta-word'",
        };
        shell.say(own);
        shell.completes(
            "lockkeeper run a -m why -- zebra-tool x al",
            "lockkeeper run a -m why -- zebra-tool x alpha-word",
        );
    });
}

#[test]
fn names_of_locks_and_jobs_come_from_the_servers_and_nothing_is_left_there() {
    let (of_server, home) = (Home::new(), Home::new());
    let served = Served::start(&of_server);
    let user = Home::with_servers(&served.address);
    let mut holders =
        ["nightly/backup", "/app/x:1", "odd;name", "odd$(touch ran)"].map(|name| user.spawn(name, &[], "echo up; cat"));
    for holder in &mut holders {
        assert_eq!(holder.line(), "up");
    }
    user.ok(&["run", "weekly", "--slot", "1", "--", "true"]);
    let paths = || Plain::connect(&served.address).tree().into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    let before = paths();
    let servers = format!("--servers {}", served.address);
    in_each_shell(&home, |shell| {
        shell
            .completes(&format!("lockkeeper show {servers} nig"), &format!("lockkeeper show {servers} nightly/backup"));
        shell.say(&format!("export LOCKKEEPER_SERVERS={}", served.address));
        for verb in ["run", "run --try", "lead", "show", "why", "revoke", "break", "list", "history", "top"] {
            shell.completes(&format!("lockkeeper {verb} nightly/b"), &format!("lockkeeper {verb} nightly/backup"));
        }
        shell.completes("lockkeeper why /app/x", "lockkeeper why /app/x:1");
        shell.completes("lockkeeper jobs wee", "lockkeeper jobs weekly");
        shell.completes("lockkeeper jobs resolve wee", "lockkeeper jobs resolve weekly");
    });
    let odd = user.output(&["__complete", "bash", "lockkeeper", "show", "odd"]);
    assert_eq!(String::from_utf8(odd.stdout).unwrap(), "", "a name that a shell would run is not offered");
    for verb in ["revoke", "break"] {
        // A machine that is busy may need longer than a shell waits.
        until("the node of the holder is offered", || {
            let nodes = user.output(&["__complete", "bash", "lockkeeper", verb, "nightly/backup", "--node", ""]);
            let nodes = String::from_utf8(nodes.stdout).unwrap();
            nodes.lines().count() == 1 && nodes.starts_with("_c_")
        });
    }
    assert_eq!(paths(), before);
    assert!(!home.state().exists(), "no server was started");
    holders.iter_mut().for_each(Running::finish);
}

/// Servers that take a connection and say nothing, that are not there, and none at all.
#[test]
fn servers_that_do_not_answer_cost_the_shell_nothing_and_say_nothing() {
    let home = Home::new();
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging = (hanging.local_addr().unwrap().to_string(), hanging);
    for servers in [Some(&*hanging.0), Some("127.0.0.1:1"), Some("nobody.invalid:1"), Some("no servers"), None] {
        let mut command = home.command(&["__complete", "fish", "lockkeeper", "show", "a"]);
        if let Some(servers) = servers {
            command.env("LOCKKEEPER_SERVERS", servers);
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success() && output.stdout.is_empty(), "{servers:?}: {output:?}");
    }
    in_each_shell(&home, |shell| {
        shell.say(&format!("export LOCKKEEPER_SERVERS={}", hanging.0));
        shell.screen.press(b"lockkeeper show a\t");
        shell.screen.press(FORGET);
        // The next line is completed as always.
        shell.completes("lockkeeper deadl", "lockkeeper deadlocks");
    });
    assert!(!home.state().exists(), "no server was started");
}

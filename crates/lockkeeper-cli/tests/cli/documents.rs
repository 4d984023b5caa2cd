//! Runs the command lines of README, of docs/commands and of the guide unchanged, and the crontab and the Makefile of the guide.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::{BINARY, Home, Running, until};

/// Texts in a line that is only parsed, and why it is not run. A unit test of the definitions parses all lines.
const ONLY_PARSED: [(&str, &str); 25] = [
    ("lockkeeper observe", "it runs until it is stopped; the tests of `looking` run it"),
    ("lockkeeper top", "it needs a terminal; the tests of `looking` run it"),
    ("zk1", "it needs an ensemble"),
    ("--machine", "it needs the service of the machine, in a directory of root's"),
    ("…", "it is a pattern"),
    ("[", "it is a pattern"),
    (" VERB", "it is a pattern"),
    (" NAME", "it is a pattern"),
    (" CMD", "it is a pattern"),
    (" COMMAND", "it is a pattern"),
    ("sh -c 'a", "it is a pattern"),
    (" ZXID", "it is a pattern"),
    ("$$(", "it is a line of a Makefile, which another test runs"),
    ("kafka:", "it needs Kafka"),
    ("--reset", "it needs a mark"),
    ("jobs resolve", "it needs a run that was kept"),
    ("jobs rerun build", "it needs a run of that slot"),
    (" /srv/", "it needs that directory"),
    (" /var/lib/", "it needs that directory"),
    (" /etc/crontab", "it needs that file"),
    (" --follow", "it runs until it is stopped; the tests of `history` run it"),
    ("requests approve", "it needs a question; the tests of `deciding` answer one"),
    ("requests reject", "it needs a question; the tests of `deciding` answer one"),
    (" 01981d", "it needs a letter of this name"),
    ("server stop", "the lines behind it need the server; the tests of `server` run it"),
];

/// The pages of verbs without a line that is run.
const NOT_RUN: [&str; 2] = ["observe.md", "top.md"];

/// Returns the command lines, without the text beside them, each with its page. The page of `run` is before those of the other verbs: they
/// look at what its lines have done.
fn lines() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let pages = |directory: &str| {
        let pages = std::fs::read_dir(root.join(directory)).unwrap().map(|entry| entry.unwrap().path());
        let mut pages: Vec<_> = pages.filter(|page| page.extension().is_some_and(|kind| kind == "md")).collect();
        pages.sort_by_key(|page| (!page.ends_with("run.md"), page.clone()));
        pages
    };
    for page in [root.join("README.md")].into_iter().chain(pages("docs/commands")).chain(pages("docs/guide")) {
        let text = std::fs::read_to_string(&page).unwrap();
        let is_command = |line: &&str| line.starts_with("lockkeeper ");
        let own = text.lines().map(|line| line.trim().trim_start_matches("$ ")).filter(is_command);
        let inline = text.split('`').skip(1).step_by(2).filter(is_command);
        // Inline, a verb alone is only a name.
        let is_name = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
            [_, verb] => verb != "list",
            [_, "admin" | "dlq" | "jobs" | "requests" | "server", verb] => !verb.starts_with('-'),
            _ => false,
        };
        let all = own.chain(inline.filter(|line| !is_name(line)));
        found.extend(all.map(|line| (page.clone(), line.to_owned())));
    }
    found
}

/// Returns a home with the scripts that the lines run, and a directory of programs for `PATH`.
fn home_with_scripts() -> (Home, String) {
    let home = Home::new();
    let bin = home.file("bin");
    std::fs::create_dir(&bin).unwrap();
    symlink(BINARY, bin.join("lockkeeper")).unwrap();
    for name in ["job", "report", "fetch", "propagate", "transfer", "reindex", "restock"] {
        home.script(&format!("{name}.sh"), "exit 0");
    }
    for name in ["scheduler", "take-ip", "drop-ip", "primary", "beside-java"] {
        home.script(name, "exit 0");
    }
    for name in ["make-report", "report"] {
        home.script(&format!("bin/{name}"), "echo '{}'");
    }
    for name in ["make", "ansible-playbook", "terraform", "rsync", "man"] {
        home.script(&format!("bin/{name}"), "exit 0");
    }
    home.script("bin/less", "exec cat");
    std::fs::write(home.file("new.json"), "{}\n").unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    (home, path)
}

#[test]
fn every_command_line_of_the_documents_that_a_bare_machine_can_run_succeeds() {
    let (home, path) = home_with_scripts();
    let shell = |line: &str| {
        let mut shell = Command::new("sh");
        let shell_of = shell.args(["-c", line]).env("PATH", &path).env("HOME", home.file("home")).stdin(Stdio::null());
        home.prepare(shell_of);
        shell
    };
    let (mut ran, mut parsed, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    let lines = lines();
    for (page, line) in &lines {
        if let Some((mark, _)) = ONLY_PARSED.iter().find(|(mark, _)| line.contains(mark)) {
            parsed.push(*mark);
            continue;
        }
        ran.push(page);
        let verb = line.split(' ').nth(1).unwrap();
        let command = line.split('#').next().unwrap().trim_end();
        let output = match verb {
            // It runs until it is stopped, and the port of the example may be in use.
            "serve" => {
                let listen = if line.contains("--listen") { "" } else { " --listen 127.0.0.1:0" };
                let line = format!("exec {}{listen}", command.replace(":2181", ":0"));
                let mut server = Running::start(&mut shell(&line));
                assert!(server.line().starts_with("127.0.0.1:"), "{line}");
                server.signal(Signal::TERM);
                assert_eq!(server.wait().code(), Some(0), "{line}");
                continue;
            }
            // They need a holder, and there is no terminal to confirm on.
            "show" | "why" | "revoke" | "break" => {
                let name = command.split(' ').nth(2).unwrap();
                let mut holder = home.starts(name, &[], "echo up; exec sleep 1000");
                let yes = if verb == "break" { " --yes" } else { "" };
                let output = shell(&format!("{command}{yes}")).output().unwrap();
                if matches!(verb, "show" | "why") {
                    holder.signal(Signal::TERM);
                }
                holder.wait();
                until("it is released", || home.count(name).0 == 0);
                output
            }
            // They need a hold, and leave none.
            "acquire" | "with-hold" | "release" => {
                let acquire = if verb == "acquire" { command } else { "lockkeeper acquire docs --for 10m" };
                let acquired = shell(acquire).output().unwrap();
                let id =
                    String::from_utf8_lossy(&acquired.stdout).split_whitespace().next().unwrap_or_default().to_owned();
                let command = command.replace("3f2a9c1b", "$id").replace(" ID", " $id");
                let under =
                    || shell(&command).env("id", &id).env("ID", &id).env("LOCKKEEPER_HOLD", &id).output().unwrap();
                let output = if verb == "acquire" { acquired } else { under() };
                home.output(&["release", &id]);
                until("its keeper has ended", || home.json(&["server", "status", "--json"])["sessions"] == 0);
                output
            }
            "admin" if command.contains("--above") => shell(&format!("{command} --yes")).output().unwrap(),
            // It runs in a job.
            "fence" => home
                .command(&["run", "reports", "--", "sh", "-c", command])
                .env("PATH", &path)
                .stdin(Stdio::null())
                .output()
                .unwrap(),
            _ => shell(command).output().unwrap(),
        };
        if !output.status.success() {
            failed.push(format!("{}: {line}: {output:?}", page.display()));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    let pages: BTreeSet<_> = lines.iter().map(|(page, _)| page).collect();
    let is_verb = |page: &&&PathBuf| page.parent().is_some_and(|directory| directory.ends_with("docs/commands"));
    let not_run: Vec<_> = pages.iter().filter(is_verb).filter(|page| !ran.contains(page)).collect();
    let not_run: Vec<_> = not_run.iter().map(|page| page.file_name().unwrap().to_string_lossy()).collect();
    assert_eq!(not_run, NOT_RUN, "each page has an example that is run");
    assert!(ran.len() >= 100, "only {} lines were run", ran.len());
    for (mark, why) in ONLY_PARSED {
        assert!(parsed.contains(&mark), "no line has {mark:?} any more ({why})");
    }
    assert_eq!(crate::harness::text(&home.file("report.json")), "{}\n");
}

/// Returns the text of the only block of this language in the guide of jobs.
fn block(language: &str) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/jobs.md")).unwrap();
    let start = format!("```{language}\n");
    let mut blocks = page.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap());
    let block = blocks.next().unwrap().to_owned();
    assert_eq!(blocks.next(), None, "another block of {language}");
    block
}

/// Runs a shell line with these variables and no other.
fn alone(home: &Home, variables: &[(&str, &str)], line: &str) -> std::process::Output {
    let mut shell = Command::new("/bin/sh");
    shell.env_clear().envs(variables.iter().copied()).args(["-c", line]);
    shell.current_dir(home.file("")).stdin(Stdio::null()).output().unwrap()
}

/// D-01: the line of the guide, in the environment of cron. Its second start on the day runs nothing.
#[test]
fn the_crontab_of_the_guide_runs_its_job_once_a_day() {
    let (home, _) = home_with_scripts();
    let line = block("crontab");
    let command = line.trim().splitn(6, ' ').nth(5).unwrap();
    assert!(command.starts_with("/usr/local/bin/lockkeeper run nightly "), "cron finds no program outside its PATH");
    let own = format!("{BINARY} run nightly --state-dir {} --config /dev/null ", home.state().display());
    let script = home.file("job.sh").display().to_string();
    std::fs::write(&script, "#!/bin/sh\necho ran >> ran\n").unwrap();
    let command = command
        .replace("/usr/local/bin/lockkeeper run nightly ", &own)
        .replace("--jitter 1m", "--jitter 1ms")
        .replace("/opt/job.sh", &script);
    let home_dir = home.file("").display().to_string();
    let cron = [("HOME", &*home_dir), ("PATH", "/usr/bin:/bin"), ("SHELL", "/bin/sh"), ("LOGNAME", "nobody")];
    for _ in 0..2 {
        let output = alone(&home, &cron, &command);
        assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
    assert_eq!(crate::harness::text(&home.file("ran")), "ran\n");
}

/// D-01: the target of the guide, in a build without other variables. The next build of the commit finds it done, and that of
/// another commit does not.
#[test]
fn the_makefile_of_the_guide_publishes_each_commit_once() {
    let (home, _) = home_with_scripts();
    // The other programs are the machine's.
    std::fs::remove_file(home.file("bin/make")).unwrap();
    std::fs::write(home.file("Makefile"), format!("{}build:\n", block("make"))).unwrap();
    std::fs::rename(home.file("job.sh"), home.file("publish.sh")).unwrap();
    std::fs::write(home.file("publish.sh"), "#!/bin/sh\ngit rev-parse HEAD >> published\n").unwrap();
    let (state, path) = (home.state().display().to_string(), format!("{}:/usr/bin:/bin", home.file("bin").display()));
    let build =
        [("PATH", &*path), ("LOCKKEEPER_STATE_DIR", &*state), ("LOCKKEEPER_CONFIG", "/dev/null"), ("HOME", &*state)];
    let commit = "git -c user.name=a -c user.email=a@example.org commit --quiet --allow-empty --message a";
    let mut published = String::new();
    for first in ["git init --quiet && ", ""] {
        let output = alone(&home, &build, &format!("{first}{commit} && git rev-parse HEAD"));
        assert!(output.status.success(), "{output:?}");
        published += &String::from_utf8(output.stdout).unwrap();
        for _ in 0..2 {
            let output = alone(&home, &build, "make --silent publish");
            assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        }
        assert_eq!(crate::harness::text(&home.file("published")), published);
    }
}

/// The options of a table's row that another program's users copy.
#[test]
fn the_guides_options_for_timeout_are_accepted_as_they_are() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/from-cron-and-flock.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let row = guide.lines().find(|line| line.starts_with("| `timeout -k ")).unwrap();
    let options = row.split('`').nth(3).unwrap().split(' ');
    let home = Home::new();
    let words: Vec<_> = ["run", "a"].into_iter().chain(options).chain(["--", "true"]).collect();
    home.ok(&words);
}

/// A row of a page says which test shows it.
#[test]
fn the_tests_that_pages_for_newcomers_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut sources, mut directories) = (String::new(), vec![root.join("crates")]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => directories.push(path),
                Some("rs") => sources += &std::fs::read_to_string(path).unwrap(),
                _ => {}
            }
        }
    }
    for page in ["look", "from-curator", "from-kazoo", "production", "kubernetes"] {
        let text = std::fs::read_to_string(root.join(format!("docs/guide/{page}.md"))).unwrap();
        let is_claim = |word: &&str| {
            word.matches('_').count() > 3
                && word.bytes().all(|b| b == b'_' || b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        for name in text.split('`').skip(1).step_by(2).filter(is_claim) {
            assert!(sources.contains(&format!("fn {name}(")), "{page}.md names {name}, which is no test");
        }
    }
}

/// Until the names are owned (docs/publishing.md), another project could publish something under them.
#[test]
fn no_document_names_a_package_that_is_not_published() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut pages, mut directories) = (Vec::new(), vec![root.join("docs"), root.join("crates")]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => directories.push(path),
                Some("md") => pages.push(path),
                Some("rs") if path.components().any(|part| part.as_os_str() == "src") => pages.push(path),
                _ => {}
            }
        }
    }
    pages.push(root.join("README.md"));
    let published = [
        "crates.io/crates/lockkeeper",
        "docs.rs/lockkeeper",
        "cargo add lockkeeper",
        "cargo install --locked lockkeeper",
        "\nlockkeeper = \"",
        "\nlockkeeper = { version",
    ];
    let mut named = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let text = ["client", "config", "election", "fence", "helix", "observe", "server", "work"]
            .iter()
            .fold(text, |text, of| text.replace(&format!("\nlockkeeper-{of} = "), "\nlockkeeper = "));
        named.extend(
            published.iter().filter(|name| text.contains(*name)).map(|name| format!("{}: {name:?}", page.display())),
        );
    }
    assert!(named.is_empty(), "{named:#?}");
}

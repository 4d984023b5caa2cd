//! The gate, which is everything that a change must pass after `cargo test`, and the deep parts, which take longer.
//!
//! Steps are chores that a person can run. Each runs in processes of its own, so that a step that hangs can be ended
//! and outputs stay apart. All steps run; the failed ones are named at the end.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use xshell::{Shell, cmd};

use crate::untested::{self, fetched};
use crate::workspace::{root, shell, target_dir};

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Run only the steps with one of these texts in their names
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// Print the steps and run none
    #[arg(long)]
    list: bool,
}

/// A step of the gate without a chore of its own; not for people.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum Part {
    /// Checks dependencies and their licences.
    Dependencies,
    /// Checks dependencies against the database of advisories.
    Advisories,
}

/// Tests at their full size, which are small in `cargo test`.
macro_rules! deep {
    ($arguments:literal) => {
        concat!("env LOCKKEEPER_DEEP=1 RUSTC_WORKSPACE_WRAPPER=.cargo/deep cargo test --quiet ", $arguments)
    };
}

/// The phase and the lane of a step, its limit in minutes, its name and its command; `xtask` stands for this program.
type Step = (u8, char, u64, &'static str, &'static str);

/// What a change must pass after `cargo test`: half an hour with it, on two cores and from a clean clone.
///
/// Phases run one after the other, the lanes of a phase concurrently, the steps of a lane one after the other. A step that uses a core
/// for long never runs beside a step with a time limit.
pub(crate) const GATE: &[Step] = &[
    // Compilers use every core.
    (0, 'a', 1, "formatting", "cargo fmt --all --check"),
    (0, 'a', 2, "acceptance", "xtask acceptance --gaps"),
    (0, 'a', 10, "lints", "cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings --cfg deep"),
    (0, 'a', 10, "sets of features", "xtask features --without-pairs"),
    (0, 'a', 10, "documentation", "env RUSTDOCFLAGS=-Dwarnings cargo doc --quiet --workspace --no-deps"),
    (0, 'a', 3, "Apache ZooKeeper", "xtask zookeeper install"),
    (0, 'a', 10, "a thousand seeded worlds", "xtask simulate --seeds 1000 --here"),
    // These wait for servers, and for sessions to end.
    (1, 'a', 15, "one server and an ensemble", "xtask zookeeper test --brief"),
    (1, 'b', 10, "dependencies", "nice -n 19 xtask part dependencies"),
    (1, 'b', 4, "advisories about dependencies", "nice -n 19 xtask part advisories"),
    (1, 'b', 8, "Kazoo's locks beside ours", "nice -n 19 xtask interop kazoo"),
    (1, 'b', 5, "clients of the hold protocol", "nice -n 19 xtask interop hold"),
];

/// What takes longer, part by part: before a release, and before an issue of its subject is called done (docs/development.md).
pub(crate) const DEEP: &[Step] = &[
    // Whole worlds of the model checker, one after the other: each uses two threads and much memory.
    (0, 'a', 20, "model of the queue", deep!("--profile worlds -p lockkeeper-core --test model -- --test-threads 1")),
    (0, 'a', 10, "model of the lease", deep!("--profile worlds -p lockkeeper-helix --test model -- --test-threads 1")),
    (0, 'a', 20, "worlds", "xtask simulate"),
    (0, 'a', 5, "worlds, one seed twice", deep!("--profile worlds -p lockkeeper-testkit --lib one_seed")),
    (
        0,
        'a',
        60,
        "full size",
        "env LOCKKEEPER_DEEP=1 cargo test --quiet --lib --bins --test it --test cli -- --skip one_seed",
    ),
    (
        0,
        'a',
        15,
        "every kind, embedded",
        deep!("--test it -- ::recipe ::kazoo ::numbered ::foreground --skip apache --skip ensemble --skip interop"),
    ),
    (0, 'a', 30, "every kind, on one server and an ensemble", "xtask zookeeper test"),
    (0, 'a', 15, "lagging followers", "xtask zookeeper test --lag 20ms"),
    (0, 'a', 20, "chaos", "xtask chaos --minutes 5"),
    (0, 'a', 8, "storm", "xtask storm --brief"),
    (0, 'a', 10, "storm, planted mistakes", "xtask storm --self-check"),
    (0, 'a', 4, "slots", "xtask slots --slots 20 --kill-every 6s"),
    (0, 'a', 4, "slots, planted mistakes", "xtask slots --self-check"),
    (0, 'a', 40, "figures", "xtask figures"),
    (0, 'a', 20, "healthy", "xtask healthy"),
    (0, 'a', 20, "crash", "xtask crash"),
    // For how long the server works while a quiet client waits: only an optimised one keeps the limit.
    (
        0,
        'a',
        30,
        "greedy clients",
        "env LOCKKEEPER_GREEDY_SECONDS=600 cargo test --quiet --release --test cli -- random_legal_requests",
    ),
    (0, 'a', 25, "fuzz", "xtask fuzz"),
    (0, 'a', 5, "versions", "xtask skew"),
    (0, 'a', 5, "interop: TLS", "xtask interop tls"),
    (0, 'a', 8, "interop: Curator", "xtask interop curator"),
    (0, 'a', 8, "interop: Kazoo", "xtask interop kazoo"),
    (0, 'a', 10, "interop: Python", "xtask interop python"),
    (0, 'a', 5, "interop: looking at Curator and Kazoo", "xtask interop look"),
    (0, 'a', 8, "interop: Helix", "xtask interop helix"),
    (0, 'a', 10, "interop: Kafka", "xtask interop kafka"),
    (0, 'a', 5, "interop: clients of the hold protocol", "xtask interop hold"),
    (0, 'a', 30, "interop: a counter of four languages", "xtask interop counting"),
    (0, 'a', 8, "interop: databases", "xtask interop postgres"),
    (0, 'a', 5, "interop: browser", "xtask interop page"),
    (0, 'a', 5, "interop: shells", "xtask interop shells"),
    (0, 'a', 5, "interop: pipelines", "xtask interop pipeline"),
    (0, 'a', 15, "suites: Apache beside ours", "xtask peers apache"),
    (0, 'a', 5, "suites: ZooKeeper's command line", "xtask peers zkcli"),
    (0, 'a', 15, "suites: Kazoo", "xtask peers kazoo"),
    (0, 'a', 10, "suites: aiozk", "xtask peers aiozk"),
    (0, 'a', 10, "suites: go-zookeeper", "xtask peers go"),
    (0, 'a', 15, "suites: C", "xtask peers c"),
    (0, 'a', 15, "suites: Rust", "xtask peers rust"),
    (0, 'a', 30, "suites: ZooKeeper's Java client", "xtask peers zookeeper"),
    (0, 'a', 60, "suites: Curator", "xtask peers curator"),
    (0, 'a', 5, "contrib: Prometheus and Kubernetes", "xtask contrib"),
    (0, 'a', 15, "site", "xtask site"),
    (0, 'a', 60, "packages", "xtask dist all"),
    (0, 'a', 30, "packages in clean roots", "xtask dist check"),
    (0, 'a', 40, "features in pairs", "xtask features"),
    (0, 'a', 5, "features of the gates", "cargo test --quiet -p lockkeeper-fence --all-features"),
    (0, 'a', 5, "traces", "cargo test --quiet -p lockkeeper-example-otlp"),
    (0, 'a', 60, "mutants of core", "xtask mutants core --shard 0/30"),
    (0, 'a', 60, "mutants of the machine", "xtask mutants machine --shard 0/30"),
    (0, 'a', 60, "mutants of the library", "xtask mutants library --shard 0/60"),
];

/// How a step ended.
#[derive(Debug, PartialEq)]
struct End {
    name: &'static str,
    how: How,
    took: Duration,
}

#[derive(Debug, PartialEq)]
enum How {
    Passed,
    Failed(String),
    /// A real program that it needs could not be fetched.
    Untested,
}

/// Runs the steps of a table.
pub(crate) fn run(table: &[Step], options: &Options) -> Result<()> {
    let wanted = |step: &&Step| options.parts.is_empty() || options.parts.iter().any(|part| step.3.contains(part));
    let steps: Vec<_> = table.iter().filter(wanted).copied().collect();
    if let Some(part) = options.parts.iter().find(|part| !table.iter().any(|step| step.3.contains(part.as_str()))) {
        bail!("no step has {part:?} in its name; --list prints all");
    }
    if options.list {
        for (_, _, limit, name, command) in steps {
            let words: Vec<_> =
                command.split(' ').map(|word| if word == "xtask" { "cargo xtask" } else { word }).collect();
            // A reader may end early.
            if writeln!(io::stdout(), "{name}: {}, {limit} min at most", words.join(" ")).is_err() {
                break;
            }
        }
        return Ok(());
    }
    let (sh, start) = (shell()?, Instant::now());
    let home = target_dir(&sh).join("ci");
    fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
    let own = env::current_exe().context("finding this program")?;
    let mut ends = Vec::new();
    for phase in 0..=1 {
        let steps: Vec<_> = steps.iter().copied().filter(|step| step.0 == phase).collect();
        ends.extend(side_by_side(&steps, &own, &home)?);
    }

    eprintln!("== all steps");
    let (mut failed, mut untested) = (Vec::new(), Vec::new());
    for End { name, how, took } in &ends {
        let how = match how {
            How::Passed => "passed",
            How::Failed(how) => {
                failed.push(*name);
                how
            }
            How::Untested => {
                untested.push(*name);
                "NOT TESTED"
            }
        };
        eprintln!("{:8.1} s  {how:11} {name}", took.as_secs_f64());
    }
    eprintln!("{} steps in {:.0?}", ends.len(), start.elapsed());
    if !untested.is_empty() {
        eprintln!("{} not tested: {}", untested.len(), untested.join(", "));
    }
    if !failed.is_empty() {
        bail!("{} failed: {}", failed.len(), failed.join(", "));
    }
    Ok(())
}

/// Runs the steps of a phase, a thread for each lane.
fn side_by_side(steps: &[Step], own: &Path, home: &Path) -> Result<Vec<End>> {
    let mut lanes: Vec<_> = steps.iter().map(|step| step.1).collect();
    lanes.dedup();
    thread::scope(|scope| {
        let run = |lane| {
            let steps = steps.iter().filter(move |step| step.1 == lane);
            scope.spawn(move || steps.map(|step| one(step, own, home)).collect::<Vec<_>>())
        };
        let lanes: Vec<_> = lanes.into_iter().map(run).collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Runs a step and prints its output when it has ended.
fn one(step: &Step, own: &Path, home: &Path) -> Result<End> {
    let (_, lane, minutes, name, command) = *step;
    eprintln!("== {name}: begun");
    let start = Instant::now();
    let path = home.join(format!("output-{lane}"));
    let output = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    // `timeout` makes a process group and ends it after the limit, and also when this program dies.
    let limit = format!("{minutes}m");
    let mut child = Command::new("setpriv");
    child.args(["--pdeathsig", "TERM", "timeout", "--kill-after=15", limit.as_str()]);
    child.args(command.split(' ').map(|word| if word == "xtask" { own.as_os_str() } else { word.as_ref() }));
    child
        .current_dir(root())
        .stdin(Stdio::null())
        .stderr(output.try_clone().context("one file for both streams")?)
        .stdout(output);
    let mut child = child.spawn().with_context(|| format!("starting {name} with setpriv and timeout"))?;
    let leader = Pid::from_child(&child);
    let status = child.wait().with_context(|| format!("waiting for {name}"))?;
    // Ends the processes that the step has left. Without any, the group no longer exists.
    _ = kill_process_group(leader, Signal::TERM);
    let took = start.elapsed();
    let how = match (status.code(), status.signal()) {
        (Some(0), _) => How::Passed,
        (Some(code), _) if code == i32::from(untested::STATUS) => How::Untested,
        _ if took >= Duration::from_secs(minutes * 60) => How::Failed(format!("HUNG for {minutes} min")),
        (_, Some(signal)) => How::Failed(format!("FAILED by signal {signal}")),
        _ => How::Failed("FAILED".to_owned()),
    };
    let mut stdout = io::stdout().lock();
    eprintln!("== {name}:");
    io::copy(&mut File::open(&path).context("reading what a step printed")?, &mut stdout)?;
    eprintln!("== {name}: {how:?} in {took:.1?}\n");
    Ok(End { name, how, took })
}

impl Part {
    pub(crate) fn run(self) -> Result<()> {
        let sh = shell()?;
        match self {
            Part::Dependencies => dependencies(&sh),
            Part::Advisories => advisories(&sh, FETCH_SECONDS),
        }
    }
}

fn dependencies(sh: &Shell) -> Result<()> {
    if !has_cargo_deny(sh) {
        // Not optimised: that is most of its installation time, and it runs for a second.
        let target = target_dir(sh).join("ci/cargo-deny");
        let installed = cmd!(sh, "cargo install --quiet --locked --debug --target-dir {target} cargo-deny").run();
        fetched("the rules of deny.toml, because cargo-deny cannot be installed", installed)?;
        // It needs half a gigabyte that is not used again.
        sh.remove_path(Path::new(&target))?;
    }
    Ok(cmd!(sh, "cargo deny check bans licenses sources").run()?)
}

fn has_cargo_deny(sh: &Shell) -> bool {
    cmd!(sh, "cargo deny --version").quiet().ignore_stdout().ignore_stderr().run().is_ok()
}

/// Checks the advisories, whose database is a separate repository. A machine that cannot reach it has not tested them, which is
/// neither a pass nor a failure. The step before it has installed cargo-deny.
fn advisories(sh: &Shell, seconds: &str) -> Result<()> {
    if !has_cargo_deny(sh) {
        fetched("advisories about dependencies", Err(anyhow::anyhow!("cargo-deny is not installed")))?;
    }
    // A network that answers nothing must not use the time of the whole step.
    let got = cmd!(sh, "timeout --kill-after=5 {seconds} cargo deny fetch db").run();
    fetched("advisories about dependencies, because their database cannot be fetched", got)?;
    Ok(cmd!(sh, "cargo deny check --disable-fetch advisories").run()?)
}

/// The time limit for fetching the database of advisories: it takes a few seconds.
const FETCH_SECONDS: &str = "90";

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(steps: &[Step]) -> Vec<End> {
        let home = tempfile::tempdir().unwrap();
        side_by_side(steps, Path::new("sh"), home.path()).unwrap()
    }

    #[test]
    fn steps_have_their_own_names_and_lanes_stay_together() {
        for table in [GATE, DEEP] {
            let names: std::collections::BTreeSet<_> = table.iter().map(|step| step.3).collect();
            assert_eq!(names.len(), table.len());
            assert!(table.is_sorted_by_key(|step| (step.0, step.1)));
        }
    }

    #[test]
    fn a_step_that_hangs_fails_and_those_after_it_run() {
        let ends = ends(&[
            (0, 'a', 0, "hangs", "timeout --signal=KILL 0.05 sleep 1000"),
            (0, 'a', 1, "passes", "true"),
            (0, 'a', 1, "fails", "false"),
            (0, 'a', 1, "has no network", "xtask -c exit${IFS}7"),
        ]);
        let hows: Vec<_> = ends.into_iter().map(|end| end.how).collect();
        let expected = [How::Failed("HUNG for 0 min".into()), How::Passed, How::Failed("FAILED".into()), How::Untested];
        assert_eq!(hows, expected);
    }

    /// A database that cannot be reached says nothing about the code, and must not hang CI.
    #[test]
    fn advisories_that_cannot_be_fetched_are_not_tested_and_those_that_apply_fail() {
        use std::os::unix::fs::PermissionsExt;

        let bin = tempfile::tempdir().unwrap();
        let outcome = |version: &str, fetch: &str, check: &str| {
            let cargo = bin.path().join("cargo");
            let cases = format!(r#"'deny --version') {version};; 'deny fetch db') {fetch};; *advisories) {check};;"#);
            fs::write(&cargo, format!("#!/bin/sh\ncase \"$*\" in {cases} *) exit 9;; esac\n")).unwrap();
            fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
            let sh = shell().unwrap();
            sh.set_var("PATH", format!("{}:{}", bin.path().display(), env::var("PATH").unwrap()));
            advisories(&sh, "0.5")
        };
        let is_untested = |result: Result<()>| result.is_err_and(|error| error.is::<untested::Untested>());
        assert!(outcome("exit 0", "exit 0", "exit 0").is_ok());
        assert!(is_untested(outcome("exit 1", "exit 0", "exit 0")), "cargo-deny is missing");
        assert!(is_untested(outcome("exit 0", "exit 1", "exit 0")), "no such host");
        assert!(is_untested(outcome("exit 0", "exec sleep 1000", "exit 0")), "a network without answers");
        let found = outcome("exit 0", "exit 0", "exit 1");
        assert!(found.is_err() && !is_untested(found), "an advisory applies");
    }

    #[test]
    fn lanes_run_side_by_side() {
        // Each one waits for the other one's end of a pipe.
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe").display().to_string();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (input, output) = (format!("cat {pipe}").leak(), format!("cp /dev/null {pipe}").leak());
        let ends = ends(&[(0, 'a', 1, "in", input), (0, 'b', 1, "out", output)]);
        assert!(ends.iter().all(|end| end.how == How::Passed), "{ends:?}");
    }
}

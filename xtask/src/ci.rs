//! Everything that CI checks after `cargo test`.
//!
//! Steps are chores that a person can run. Each runs in processes of its own, so that a step that hangs can be ended
//! and outputs stay apart. All steps run; the failed ones are named at the end.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process_group};
use xshell::{Shell, cmd};

use crate::programs::{self, Tests};
use crate::untested::{self, fetched};
use crate::workspace::{root, shell, target_dir};

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Run only the steps with this in their names; may be given several times
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Print the steps and run none
    #[arg(long)]
    list: bool,
}

/// A part of CI without a chore of its own; not for people.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum Part {
    /// Builds every test program with every feature.
    Programs,
    /// Checks dependencies and their licences.
    Dependencies,
    /// Checks dependencies against the database of advisories.
    Advisories,
    /// Runs the unit tests that need features.
    Features,
    /// Runs the chores' own tests, and prints the table of acceptance.
    Acceptance,
}

/// The phase and the lane of a step, its limit in minutes, its name and its command; `xtask` stands for this program.
type Step = (u8, char, u64, &'static str, &'static str);

/// Phases run one after the other, the lanes of a phase concurrently, the steps of a lane one after the other.
///
/// A step that uses a core for long never runs beside a step with a time limit. Only one lane of a phase fetches
/// packages of the system, and only one those of Maven, because neither apt nor Maven can run twice at a time.
const STEPS: [Step; 37] = [
    // Compilers use every core.
    (0, 'a', 1, "formatting", "cargo fmt --all --check"),
    (0, 'a', 25, PROGRAMS, "xtask part programs"),
    (
        0,
        'a',
        15,
        "lints",
        "cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings --cfg real_servers",
    ),
    (0, 'a', 20, "sets of features", "xtask features --without-pairs"),
    (0, 'a', 10, "documentation", "env RUSTDOCFLAGS=-Dwarnings cargo doc --quiet --workspace --no-deps"),
    (0, 'a', 15, "optimised chores", "cargo build --quiet --profile worlds --package=xtask"),
    (0, 'a', 2, "layers", "xtask layers"),
    (0, 'a', 15, "the documentation as a site", "xtask site"),
    (0, 'a', 5, "Apache ZooKeeper", "xtask zookeeper install"),
    // Chaos waits most of the time, and tolerates a busy core that yields.
    (1, 'a', 20, "chaos", "xtask chaos --brief"),
    (1, 'b', 15, "dependencies", "nice -n 19 xtask part dependencies"),
    (1, 'b', 4, "advisories about dependencies", "nice -n 19 xtask part advisories"),
    (1, 'b', 25, "invalid inputs", "nice -n 19 xtask fuzz --seconds 20 --at-once 1"),
    (1, 'c', 5, "acceptance", "nice -n 19 xtask part acceptance"),
    (1, 'c', 15, "two versions on one server", "xtask skew"),
    (1, 'c', 20, "ten thousand seeded worlds", "nice -n 19 xtask simulate"),
    // These wait for servers, and for sessions to end.
    (2, 'a', 15, "tests against one server and an ensemble", "xtask zookeeper test"),
    (2, 'a', 5, "locks over TLS", "xtask interop tls"),
    (2, 'b', 8, "Helix's lock beside ours", "xtask interop helix"),
    (2, 'b', 8, "Curator's locks beside ours", "xtask interop curator"),
    (2, 'b', 10, "dead letters in Kafka", "xtask interop kafka"),
    (2, 'b', 10, "our server beside Apache's", "xtask peers apache"),
    (2, 'b', 5, "ZooKeeper's command line", "xtask peers zkcli"),
    (2, 'c', 8, "Kazoo's locks beside ours", "nice -n 19 xtask interop kazoo"),
    (2, 'c', 15, "Kazoo's suite against the embedded server", "nice -n 19 xtask peers kazoo"),
    (2, 'c', 10, "go-zookeeper's suite against the embedded server", "nice -n 19 xtask peers go"),
    (2, 'c', 5, "fencing statements on SQLite and PostgreSQL", "xtask interop postgres"),
    (2, 'c', 5, "the page of observe in a browser", "nice -n 19 xtask interop page"),
    (2, 'c', 5, "completion in three shells", "nice -n 19 xtask interop shells"),
    // These need the whole machine.
    (3, 'a', 20, "figures of docs/guarantees.md, few of each", "xtask figures --few"),
    (3, 'a', 8, "a storm of jobs", "xtask storm --brief"),
    (3, 'a', 10, "mistakes planted in a storm", "xtask storm --self-check"),
    (3, 'a', 4, "slots of hosts with wrong clocks", "xtask slots --slots 20 --kill-every 6s"),
    (3, 'a', 4, "mistakes planted in slots", "xtask slots --self-check"),
    (3, 'a', 8, "kill -9 in the middle of writes", "xtask crash --rounds 120"),
    (3, 'a', 40, "large worlds and many watches", "xtask deep"),
    (3, 'a', 5, "what features add", "xtask part features"),
];

/// All later steps need this one.
const PROGRAMS: &str = "test programs";

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

pub(crate) fn run(options: &Options) -> Result<()> {
    let wanted =
        |step: &Step| options.only.is_empty() || options.only.iter().any(|text| step.3.contains(text.as_str()));
    let steps: Vec<_> = STEPS.into_iter().filter(wanted).collect();
    if options.list {
        for (_, _, limit, name, command) in steps {
            let words: Vec<_> =
                command.split(' ').map(|word| if word == "xtask" { "cargo xtask" } else { word }).collect();
            println!("{name}: {}, {limit} min at most", words.join(" "));
        }
        return Ok(());
    }
    let (sh, start) = (shell()?, Instant::now());
    let home = target_dir(&sh).join("ci");
    fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
    let own = env::current_exe().context("finding this program")?;
    let mut ends = Vec::new();
    for phase in 0..=3 {
        let mut environment = Vec::new();
        // With `--only`, the programs of the last whole run, or those that cargo builds.
        if phase > 0 && programs_list(&sh).exists() {
            environment.push((programs::ENV_LIST, programs_list(&sh)));
        }
        let steps: Vec<_> = steps.iter().copied().filter(|step| step.0 == phase).collect();
        ends.extend(side_by_side(&steps, &own, &home, &environment)?);
        if ends.iter().any(|end| end.name == PROGRAMS && end.how != How::Passed) {
            break;
        }
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
    if failed.contains(&PROGRAMS) {
        bail!("the test programs do not build, so the other phases did not run; failed: {}", failed.join(", "));
    }
    if !failed.is_empty() {
        bail!("{} failed: {}", failed.len(), failed.join(", "));
    }
    Ok(())
}

/// Runs the steps of a phase, a thread for each lane.
fn side_by_side(steps: &[Step], own: &Path, home: &Path, environment: &[(&'static str, PathBuf)]) -> Result<Vec<End>> {
    let mut lanes: Vec<_> = steps.iter().map(|step| step.1).collect();
    lanes.dedup();
    thread::scope(|scope| {
        let run = |lane| {
            let steps = steps.iter().filter(move |step| step.1 == lane);
            scope.spawn(move || steps.map(|step| one(step, own, home, environment)).collect::<Vec<_>>())
        };
        let lanes: Vec<_> = lanes.into_iter().map(run).collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Runs a step and prints its output when it has ended.
fn one(step: &Step, own: &Path, home: &Path, environment: &[(&'static str, PathBuf)]) -> Result<End> {
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
    child.envs(environment.iter().map(|(name, value)| (name, value))).current_dir(root());
    child.stdin(Stdio::null()).stderr(output.try_clone().context("one file for both streams")?).stdout(output);
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

/// Returns the path of the list of test programs.
fn programs_list(sh: &Shell) -> PathBuf {
    target_dir(sh).join("ci/programs.json")
}

impl Part {
    pub(crate) fn run(self) -> Result<()> {
        let sh = shell()?;
        match self {
            Part::Programs => programs::write_list(&sh, &programs_list(&sh)),
            Part::Dependencies => dependencies(&sh),
            Part::Advisories => advisories(&sh, FETCH_SECONDS),
            Part::Features => features(&sh),
            Part::Acceptance => {
                Tests { package: "xtask", target: programs::MAIN, features: "" }.run(&sh, &[], [])?;
                Tests { package: "lab", target: programs::LIB, features: "" }.run(&sh, &[], [])?;
                Tests { package: "otlp", target: "links", features: "" }.run(&sh, &[], [])?;
                crate::acceptance::run(&root(), &crate::acceptance::Options { gaps: true })
            }
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

fn features(sh: &Shell) -> Result<()> {
    // Tests that need a broker have a step of their own.
    let arguments = ["--skip", "kafka"].map(str::to_owned);
    for (package, target, features) in [
        ("lockkeeper-helix", programs::LIB, "metrics"),
        ("lockkeeper-fence", "http", "tower"),
        ("lockkeeper-fence", "gate", "persistent"),
    ] {
        Tests { package, target, features }.run(sh, &arguments, [])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(steps: &[Step]) -> Vec<End> {
        let home = tempfile::tempdir().unwrap();
        side_by_side(steps, Path::new("sh"), home.path(), &[]).unwrap()
    }

    #[test]
    fn steps_have_their_own_names_and_lanes_stay_together() {
        let names: std::collections::BTreeSet<_> = STEPS.iter().map(|step| step.3).collect();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.is_sorted_by_key(|step| (step.0, step.1)));
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

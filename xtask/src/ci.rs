//! Everything CI checks after `cargo test`: which steps there are, which run side by side, and how long each may take.
//!
//! Steps are chores that a person can run, each a process of its own, so that one that hangs can be ended and the output of
//! those that run side by side stays apart. All are run; those that failed are named at the end.

mod lanes;

use std::env;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use xshell::{Shell, cmd};

use crate::peers::target_dir;
use crate::programs::{self, Tests};
use crate::untested::fetched;
use lanes::{Lane, Step, Verdict};

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Only the steps with this in their names; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Prints the steps and runs none.
    #[arg(long)]
    list: bool,
}

/// A part of CI that is no chore of its own; not for people.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum Part {
    /// Builds every test program with every feature.
    Programs,
    /// Checks dependencies and their licences.
    Dependencies,
    /// Runs the unit tests of what only features add.
    Features,
    /// Runs the example's tests.
    Example,
    /// Runs the chores' own tests, and makes the table of acceptance.
    Acceptance,
}

/// What is built before anything runs. Compilers use every core there is.
fn builds() -> Vec<Step> {
    vec![
        Step::cargo("formatting", 1, "fmt --all --check"),
        Step::chore("test programs", 25, "part programs"),
        Step::cargo("lints", 15, "clippy --quiet --workspace --all-targets --all-features -- -D warnings"),
        Step::chore("every set of features", 20, "features"),
        Step::cargo("documentation", 10, "doc --quiet --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings"),
        Step::cargo("optimised chores", 15, "build --quiet --profile worlds -p xtask"),
        Step::chore("acceptance", 2, "part acceptance"),
        Step::chore("layers", 2, "layers"),
        Step::chore("Apache ZooKeeper", 5, "zookeeper install"),
    ]
}

/// What runs after that, one group after the other; the lanes of a group run side by side.
///
/// Beside a step that promises a time there is nothing that uses a core for long. Packages of the system and of Maven are
/// fetched in one lane of a group only: neither apt nor Maven likes company.
fn groups() -> Vec<Vec<Lane>> {
    vec![
        // Chaos waits most of the time and is used to worse than a busy core that yields to it.
        vec![
            Lane::of(vec![Step::chore("chaos", 20, "chaos --brief")]),
            Lane::yielding(vec![
                Step::chore("dependencies", 15, "part dependencies"),
                Step::chore("inputs that nobody would send", 25, "fuzz --seconds 60 --at-once 1"),
            ]),
        ],
        // These wait for servers, and for sessions to end.
        vec![
            Lane::of(vec![
                Step::chore("tests against one server and an ensemble", 15, "zookeeper test"),
                Step::chore("locks over TLS", 5, "tls"),
                Step::chore("Kazoo's suite against the embedded server", 10, "peers kazoo"),
                Step::chore("go-zookeeper's suite against the embedded server", 10, "peers go"),
                Step::chore("fencing statements on PostgreSQL", 5, "postgres test"),
            ]),
            Lane::of(vec![
                Step::chore("Helix's lock beside ours", 8, "interop helix"),
                Step::chore("Curator's locks beside ours", 8, "interop curator"),
                Step::chore("Kazoo's locks beside ours", 8, "interop kazoo"),
                Step::chore("dead letters in Kafka", 10, "kafka test"),
                Step::chore("the example on a search engine", 8, "search test"),
                Step::chore("our server beside Apache's", 10, "peers apache"),
                Step::chore("ZooKeeper's command line", 5, "peers zkcli"),
            ]),
        ],
        // And these want the machine for themselves.
        vec![Lane::of(vec![
            Step::chore("figures of docs/guarantees.md, few of each", 20, "figures --few"),
            Step::chore("a storm of jobs", 8, "storm --brief"),
            Step::chore("mistakes planted in a storm", 10, "storm --self-check"),
            Step::chore("kill -9 in the middle of writes", 8, "crash --rounds 120"),
            Step::chore("ten thousand seeded worlds", 10, "simulate"),
            Step::chore("what features add", 5, "part features"),
            Step::chore("the example", 8, "part example"),
        ])],
    ]
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let sh = crate::shell()?;
    let wanted =
        |step: &Step| options.only.is_empty() || options.only.iter().any(|text| step.name.contains(text.as_str()));
    let (mut builds, mut groups) = (builds(), groups());
    builds.retain(wanted);
    for lane in groups.iter_mut().flatten() {
        lane.steps.retain(wanted);
    }
    if options.list {
        for step in builds.iter().chain(groups.iter().flatten().flat_map(|lane| &lane.steps)) {
            println!("{step}");
        }
        return Ok(());
    }

    let start = Instant::now();
    let home = target_dir(&sh).join("ci");
    fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
    let list = programs_list(&sh);
    let own = env::current_exe().context("finding this program")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("making an event loop")?;
    let mut crew = lanes::Crew::new(own, home);

    let mut ends = runtime.block_on(crew.group(vec![Lane::of(builds)]))?;
    let unbuilt = ends.iter().any(|end| end.name == "test programs" && end.verdict != Verdict::Passed);
    if !unbuilt {
        // With `--only`, as the last whole run left them, or by cargo.
        if list.exists() {
            crew.environment.push((programs::ENV_LIST.into(), list.into()));
        }
        for group in groups {
            ends.extend(runtime.block_on(crew.group(group))?);
        }
    }

    eprintln!("== all steps");
    for end in &ends {
        eprintln!("{end}");
    }
    let named = |verdict: Verdict| {
        let names: Vec<_> = ends.iter().filter(|end| end.verdict == verdict).map(|end| end.name).collect();
        (names.len(), names.join(", "))
    };
    let ((failed, which), (untested, not)) = (named(Verdict::Failed), named(Verdict::Untested));
    eprintln!("{} steps in {:.0?}", ends.len(), start.elapsed());
    if untested > 0 {
        eprintln!("{untested} not tested: {not}");
    }
    if unbuilt {
        bail!("nothing else was run, for the test programs cannot be built; failed: {which}");
    }
    if failed > 0 {
        bail!("{failed} failed: {which}");
    }
    Ok(())
}

/// Where the list of the test programs is.
fn programs_list(sh: &Shell) -> std::path::PathBuf {
    target_dir(sh).join("ci/programs.json")
}

impl Part {
    pub(crate) fn run(self) -> Result<()> {
        let sh = crate::shell()?;
        match self {
            Part::Programs => programs::build(&sh, &programs_list(&sh)),
            Part::Dependencies => dependencies(&sh),
            Part::Features => features(&sh),
            Part::Example => example(&sh),
            Part::Acceptance => {
                Tests { package: "xtask", target: programs::MAIN, features: "" }.run(&sh, &[], [])?;
                crate::acceptance::run(&crate::root(), &crate::acceptance::Options { gaps: true })
            }
        }
    }
}

fn dependencies(sh: &Shell) -> Result<()> {
    if cmd!(sh, "cargo deny --version").quiet().ignore_stdout().ignore_stderr().run().is_err() {
        // Not optimised: that is most of what its installation takes, and it has a second's work to do.
        let target = target_dir(sh).join("ci/cargo-deny");
        let installed = cmd!(sh, "cargo install --quiet --locked --debug --target-dir {target} cargo-deny").run();
        fetched("the rules of deny.toml, for cargo-deny cannot be installed", installed)?;
        // Half a gigabyte that nothing else uses.
        sh.remove_path(Path::new(&target))?;
    }
    // Not `advisories`: its database is a repository of its own that a build machine may not reach. A person who can
    // runs `cargo deny check`.
    Ok(cmd!(sh, "cargo deny check bans licenses sources").run()?)
}

fn features(sh: &Shell) -> Result<()> {
    // What needs a broker has a step of its own.
    let arguments = ["--skip", "kafka"].map(str::to_owned);
    Tests { package: "lockkeeper", target: programs::LIB, features: "metrics" }.run(sh, &arguments, [])
}

fn example(sh: &Shell) -> Result<()> {
    match env::var_os(programs::ENV_LIST) {
        None => Ok(cmd!(sh, "cargo test --quiet -p catalogue").run()?),
        Some(_) => EXAMPLE
            .into_iter()
            .try_for_each(|target| Tests { package: "catalogue", target, features: "" }.run(sh, &[], [])),
    }
}

/// Its test programs that need nothing.
const EXAMPLE: [&str; 3] = [programs::LIB, programs::MAIN, "scenarios"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_apart_by_their_names() {
        let mut names: Vec<_> = builds().iter().map(|step| step.name).collect();
        names.extend(groups().iter().flatten().flat_map(|lane| &lane.steps).map(|step| step.name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

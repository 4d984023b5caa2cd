//! `cargo xtask zookeeper`: runs real servers for a person, a command or the tests.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand};
use lockkeeper_testkit::apache::{Apache, Distribution, Options, SlowFsync, WrongClock};
use xshell::Shell;

use crate::peers::apache;
use crate::programs::{DEEP, LIB, Tests as Program};

/// The connect string of a running server for the contract tests.
const ENV_SINGLE: &str = "LOCKKEEPER_TEST_ZOOKEEPER";
/// The connect string of a running ensemble of three.
const ENV_ENSEMBLE: &str = "LOCKKEEPER_TEST_ENSEMBLE";
/// The variable in which the `lockkeeper` command finds its servers.
const ENV_COMMAND: &str = "LOCKKEEPER_SERVERS";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start servers and keep them until Ctrl-C, or until CMD has ended
    Start(Start),
    /// Run the contract tests against a fresh server and a fresh ensemble of three
    Test(Tests),
    /// Look for Java, ZooKeeper, strace and libfaketime; as root, install what is missing from Debian, except Java
    Install,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Start three servers instead of one
    #[arg(long)]
    ensemble: bool,
    /// The servers' tick in milliseconds; sessions expire in steps of it
    #[arg(long, value_name = "MS", default_value = "500", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    tick: u64,
    /// In an ensemble, delay what followers hear from their leader by this much, and one of them by half of it
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "ensemble", default_value = "0s")]
    lag: Duration,
    #[command(flatten)]
    release: Release,
    /// Run this with the servers' addresses in LOCKKEEPER_SERVERS, then stop them and exit with its status
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Default, Args)]
pub(crate) struct Tests {
    #[command(flatten)]
    release: Release,
    /// Run only the tests on the ensemble, with followers that hear their leader this late, one of them half as late:
    /// for instance 40ms. A test that forgets that a server may lag fails there
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    lag: Option<Duration>,
    /// Arguments of the contract's test program, such as a part of a test's name; with them, only that program runs
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

#[derive(Debug, Default, Args)]
struct Release {
    /// A release from Maven Central, for instance 3.9.3, instead of ZOOKEEPER_HOME or Debian's
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
}

impl Release {
    /// Returns the distribution, and its home if it was chosen here, for processes that must choose the same.
    fn get(&self) -> Result<(Distribution, Option<PathBuf>)> {
        Ok(match &self.version {
            Some(version) => Distribution::fetch(version).map(|(distribution, home)| (distribution, Some(home)))?,
            None => (Distribution::install()?, None),
        })
    }
}

/// Returns the release for chores that kill leaders.
///
/// Debian's 3.8.0 can lose a confirmed write when its leader is killed (ZOOKEEPER-4712): a follower applies what is in its log
/// while the last write is still on its way there, becomes the leader without that write, and a deleted node is back.
pub(crate) fn sound() -> Result<Distribution> {
    apache::release()
}

pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Start(options) => start(&options),
        Command::Test(tests) => test(&crate::workspace::shell()?, &tests).map(|()| ExitCode::SUCCESS),
        Command::Install => {
            println!("{}", Distribution::install()?.origin());
            SlowFsync::install()?;
            WrongClock::install()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs the tests that need real servers: the contract, the command's real work, and the test tools' own tests.
pub(crate) fn test(sh: &Shell, tests: &Tests) -> Result<()> {
    let (distribution, home) = tests.release.get()?;
    if let Some(lag) = tests.lag {
        return test_lagging(sh, lag, distribution, &tests.arguments);
    }
    let home: Vec<(&'static str, OsString)> = home.map(|home| ("ZOOKEEPER_HOME", home.into())).into_iter().collect();
    let arguments = &tests.arguments;
    // `cargo test` has run the tests that need no server of Apache's.
    let usual = ["apache", "ensemble", "real_servers"].map(str::to_owned);
    // They wait for servers most of the time, each on paths of its own.
    let mut which = vec!["--test-threads".to_owned(), "8".to_owned()];
    which.extend_from_slice(if arguments.is_empty() { &usual[..] } else { arguments });
    {
        let single = launch(false, Options::default().distribution(distribution.clone()))?;
        let ensemble = launch(true, Options::default().distribution(distribution))?;
        let servers = [(ENV_SINGLE, single.connect_string().into()), (ENV_ENSEMBLE, ensemble.connect_string().into())];
        Program { package: "lockkeeper", target: "it", features: "" }.run(
            sh,
            &which,
            servers.clone().into_iter().chain(home.clone()),
        )?;
        if arguments.is_empty() {
            Program { package: "lockkeeper-client", target: "batches", features: "" }.run(
                sh,
                &["apache".to_owned()],
                servers.clone().into_iter().chain(home.clone()),
            )?;
        }
    }
    if arguments.is_empty() {
        // These start servers of their own, because they kill them.
        let work = ["no_update_is_lost_while_an_ensembles_leader_is_killed".to_owned()];
        let features = "";
        Program { package: "lockkeeper-cli", target: "real_work", features }.run(
            sh,
            &work,
            home.clone().into_iter().chain([(DEEP, "1".into())]),
        )?;
        Program { package: "lockkeeper-cli", target: "cli", features }.run(
            sh,
            &["moving", "healthy", "secured", "jobs_clock", "jobs_pictures"].map(str::to_owned),
            home.clone(),
        )?;
        Program { package: "lockkeeper-testkit", target: LIB, features }.run(sh, &["apache".to_owned()], home)?;
    }
    Ok(())
}

/// Runs the contract on an ensemble whose followers always lag.
fn test_lagging(sh: &Shell, lag: Duration, distribution: Distribution, arguments: &[String]) -> Result<()> {
    let ensemble = launch(true, Options::default().distribution(distribution).lag(lag))?;
    let servers = ensemble.connect_string();
    // Tests with servers of their own, and a time limit that needs servers without a delay.
    let others = ["embedded", "apache", "real_servers", "within_a_tenth_of_a_second"];
    let mut which = vec!["--test-threads".to_owned(), "16".to_owned()];
    which.extend(others.into_iter().flat_map(|name| ["--skip".to_owned(), name.to_owned()]));
    match arguments {
        [] => which.push("ensemble".to_owned()),
        some => which.extend_from_slice(some),
    }
    let program = Program { package: "lockkeeper", target: "it", features: "" };
    program.run(sh, &which, [(ENV_ENSEMBLE, servers.into())])
}

fn launch(ensemble: bool, options: Options) -> Result<Apache> {
    let start = Instant::now();
    let apache = if ensemble { Apache::ensemble(3, options)? } else { Apache::single(options)? };
    let pids: Vec<String> =
        (0..apache.size()).filter_map(|server| apache.pid(server)).map(|pid| pid.to_string()).collect();
    let origin = apache.distribution().origin();
    eprintln!("{origin}, process {}, serving after {:.1?}", pids.join(" "), start.elapsed());
    Ok(apache)
}

fn start(options: &Start) -> Result<ExitCode> {
    crate::beside::keep(&options.command, || {
        let (distribution, home) = options.release.get()?;
        let tick = Duration::from_millis(options.tick);
        let apache =
            launch(options.ensemble, Options::default().tick(tick).lag(options.lag).distribution(distribution))?;
        let servers = apache.connect_string();
        let mut environment = vec![(ENV_COMMAND, OsString::from(&servers))];
        environment.extend(home.map(|home| ("ZOOKEEPER_HOME", home.into())));
        Ok((apache, servers, environment))
    })
}

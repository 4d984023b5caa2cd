//! `cargo xtask zookeeper`: runs real servers for a person, a command or the tests.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lockkeeper_testkit::apache::{Apache, Distribution, Options, SlowFsync, WrongClock};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use xshell::Shell;

use crate::programs::{LIB, Tests as Program};
use crate::untested::fetched;
use crate::workspace::shell;

/// The connect string of a running server for the contract tests.
const ENV_SINGLE: &str = "LOCKKEEPER_TEST_ZOOKEEPER";
/// The connect string of a running ensemble of three.
const ENV_ENSEMBLE: &str = "LOCKKEEPER_TEST_ENSEMBLE";

/// The kinds of locks that differ from the others in the names of their nodes.
const OTHER_KINDS: [&str; 6] =
    ["::recipe::", "::kazoo::", "::numbered::", "::recipe_read::", "::recipe_write::", "::foreground::"];

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

#[derive(Debug, Args)]
pub(crate) struct Tests {
    #[command(flatten)]
    release: Release,
    /// Run only the tests on the ensemble, with followers that hear their leader this late, one of them half as late:
    /// for instance 40ms. A test that forgets that a server may lag fails there
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    lag: Option<Duration>,
    /// Run only the contract, and only for the kinds of locks that `cargo test` runs it for
    #[arg(long, conflicts_with_all = ["lag", "arguments"])]
    brief: bool,
    /// Arguments of the contract's test program, such as a part of a test's name; with them, only that program runs
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

#[derive(Debug, Args)]
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

/// Returns Apache's release that our server is compared with, request by request. It is also for chores that kill leaders.
///
/// Debian's 3.8.0 can lose a confirmed write when its leader is killed (ZOOKEEPER-4712): a follower applies what is in its log
/// while the last write is still on its way there, becomes the leader without that write, and a deleted node is back.
pub(crate) fn sound() -> Result<Distribution> {
    let fetch = Distribution::fetch("3.9.5");
    fetched("ZooKeeper 3.9.5, which comes from Maven Central", fetch).map(|(distribution, _)| distribution)
}

pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Start(options) => start(&options),
        Command::Test(tests) => test(&shell()?, &tests).map(|()| ExitCode::SUCCESS),
        Command::Install => {
            println!("{}", Distribution::install()?.origin());
            SlowFsync::install()?;
            WrongClock::install()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Runs the tests that need real servers: the contract, the command's real work, and the test tools' own tests.
fn test(sh: &Shell, tests: &Tests) -> Result<()> {
    let (distribution, home) = tests.release.get()?;
    if let Some(lag) = tests.lag {
        return test_lagging(sh, lag, distribution, &tests.arguments);
    }
    if let Some(home) = home {
        sh.set_var("ZOOKEEPER_HOME", home);
    }
    let run = |package, target, tests: &[&str], environment: &[(&'static str, OsString)]| {
        let tests: Vec<_> = tests.iter().map(|&test| test.to_owned()).collect();
        Program { package, target, features: "" }.run(sh, &tests, environment.iter().cloned())
    };
    // They wait for servers most of the time, each on paths of its own.
    let mut which = vec!["--test-threads=8"];
    // `cargo test` has run the tests that need no server of Apache's.
    let is_all = tests.arguments.is_empty() && !tests.brief;
    which.extend(if tests.arguments.is_empty() { vec!["apache", "ensemble", "real_servers"] } else { vec![] });
    which.extend(if tests.brief {
        OTHER_KINDS.map(|kind| ["--skip", kind]).into_iter().flatten().collect()
    } else {
        vec![]
    });
    which.extend(tests.arguments.iter().map(String::as_str));
    {
        let single = launch(false, Options::default().distribution(distribution.clone()))?;
        let ensemble = launch(true, Options::default().distribution(distribution))?;
        let servers = [(ENV_SINGLE, single.connect_string().into()), (ENV_ENSEMBLE, ensemble.connect_string().into())];
        run("lockkeeper-tests", "it", &which, &servers)?;
        if is_all {
            run("lockkeeper-client", "it", &["apache"], &servers)?;
        }
    }
    if is_all {
        // These start servers of their own, because they kill them.
        let work = ["no_update_is_lost_while_an_ensembles_leader_is_killed"];
        run("lockkeeper-cli", "cli", &work, &[("LOCKKEEPER_DEEP", "1".into())])?;
        let of_command = ["doctor", "moving", "healthy", "secured", "jobs_clock", "jobs_pictures"];
        run("lockkeeper-cli", "cli", &of_command, &[])?;
        run("lockkeeper-observe", "it", &["apache"], &[])?;
        run("lockkeeper-testkit", LIB, &["apache"], &[])?;
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
    let program = Program { package: "lockkeeper-tests", target: "it", features: "" };
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

/// Starts servers and keeps them until Ctrl-C, or until the command has ended, whose exit status is returned; 128 + n after a
/// signal, as shells report it.
fn start(options: &Start) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("making an event loop")?;
    runtime.block_on(async {
        // Before the server starts, so that a signal always ends the server in order.
        let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        let (distribution, home) = options.release.get()?;
        let servers = Options::default().tick(Duration::from_millis(options.tick)).lag(options.lag);
        let apache = launch(options.ensemble, servers.distribution(distribution))?;
        let Some((program, arguments)) = options.command.split_first() else {
            // The address is data; its reader, perhaps a pipe, needs it before this program ends.
            println!("{}", apache.connect_string());
            std::io::stdout().flush().context("printing the address")?;
            eprintln!("Ctrl-C stops it");
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            return Ok(ExitCode::SUCCESS);
        };
        let mut command = tokio::process::Command::new(program);
        // The variable in which the `lockkeeper` command finds its servers.
        command.args(arguments).env("LOCKKEEPER_SERVERS", apache.connect_string());
        command.envs(home.map(|home| ("ZOOKEEPER_HOME", home)));
        let mut child = command.spawn().with_context(|| format!("running {}", program.display()))?;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.context("waiting for the command")?,
                // The terminal sends Ctrl-C to the command as well, and the command decides when to end.
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {
                    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
                    if let Some(pid) = pid {
                        kill_process(pid, Signal::TERM).context("passing SIGTERM on")?;
                    }
                }
            }
        };
        let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
        Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
    })
}

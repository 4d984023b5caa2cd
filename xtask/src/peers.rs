//! `cargo xtask peers`: other clients' own tests, unchanged, against our server.
//!
//! They were written by people who have never heard of this server, so they are the judges that cannot be tuned.

mod c;
mod go;
mod java;
mod rust;
mod served;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use lockkeeper_testkit::apache::Distribution;
use xshell::{Shell, cmd};

use crate::programs::{self, Tests};
use crate::untested::fetched;

pub(crate) use go::run as go;
pub(crate) use java::zkcli;

/// The release of Kazoo whose tests are run.
const KAZOO: &str = "2.11.0";
/// What its tests import.
const KAZOO_NEEDS: [&str; 8] = [
    "pytest>=8,<10",
    "pytest-timeout>=2,<3",
    "objgraph>=3,<4",
    "pyjks",
    "pyOpenSSL<25",
    "gevent",
    "eventlet",
    "pure_sasl",
];
/// How many pass, as many as on Apache ZooKeeper 3.8.0. Fewer means that something was left out.
const KAZOO_PASSES: u32 = 389;

/// Puts one server of ours where the suite wants a cluster of Java's.
const KAZOO_PLUGIN: &str = include_str!("peers/kazoo_one_server.py");

/// The users that the suites' own servers have.
const ACCOUNTS: &str =
    "super super:D/InIHSb7yEEbrWz8b9l71RjZJU=\nsasl super:super_secret\nsasl jaasuser:jaas_password\n";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs Kazoo's tests; needs Python 3 with venv and a package index for pip.
    Kazoo {
        /// Arguments of pytest, such as -k TestLock; with them, any number of passes will do.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Runs go-zookeeper's tests; needs Go.
    Go {
        /// Arguments of go test, such as -run TestIntegration_Lock; with them, any number of passes will do.
        #[arg(last = true, value_name = "ARGS")]
        arguments: Vec<String>,
    },
    /// Runs the tests of ZooKeeper's C client, as Debian has them; needs Debian's apt, Java, Maven, CMake and CppUnit.
    C {
        /// Suites or tests, such as Zookeeper_multi or Zookeeper_multi::testCheck; with them, any number of passes will do.
        #[arg(last = true, value_name = "TESTS")]
        tests: Vec<String>,
    },
    /// Runs the tests of clients in Rust; needs what cargo can fetch.
    Rust {
        /// Crates, such as tokio-zookeeper.
        #[arg(last = true, value_name = "CRATES")]
        crates: Vec<String>,
    },
    /// Types a session into ZooKeeper's command line on Apache's server and on ours; needs Java and Maven.
    Zkcli,
    /// Runs tests of ZooKeeper's own Java client; needs Java and Maven.
    Zookeeper {
        /// Classes of org.apache.zookeeper, such as test.WatcherTest; with them, any number of passes will do.
        #[arg(last = true, value_name = "CLASSES")]
        classes: Vec<String>,
    },
    /// Runs tests of Curator; needs Java and Maven.
    Curator {
        /// Classes of org.apache.curator.framework, such as imps.TestCreate; with them, any number of passes will do.
        #[arg(last = true, value_name = "CLASSES")]
        classes: Vec<String>,
    },
    /// Plays random scripts to Apache's server and to ours and compares all that clients see; needs Java and Maven.
    Apache {
        /// How many scripts.
        #[arg(long, value_name = "N", default_value_t = SCRIPTS)]
        scripts: u64,
    },
}

/// How many scripts are enough to find again every difference that was ever found, and then some.
pub(crate) const SCRIPTS: u64 = 2_000;

/// The release of Apache's server that ours is compared with, request by request.
pub(crate) const APACHE: &str = "3.9.5";

/// There is no Python that can make a virtual environment.
#[derive(Debug, thiserror::Error)]
#[error("no Python 3 with venv: install it (Debian: apt-get install python3-venv) and try again")]
pub(crate) struct NoPython;

pub(crate) fn run(command: &Command) -> Result<()> {
    let sh = crate::shell()?;
    match command {
        Command::Kazoo { arguments } => kazoo(&sh, arguments),
        Command::Go { arguments } => go(&sh, arguments),
        Command::C { tests } => c::run(&sh, tests),
        Command::Rust { crates } => rust::run(&sh, crates),
        Command::Zkcli => zkcli(&sh),
        Command::Zookeeper { classes } => java::run(&sh, &java::ZOOKEEPER, classes),
        Command::Curator { classes } => java::run(&sh, &java::CURATOR, classes),
        Command::Apache { scripts } => apache(&sh, *scripts),
    }
}

/// Compares our server with Apache's, in every answer, error and event.
pub(crate) fn apache(sh: &Shell, scripts: u64) -> Result<()> {
    apache_release()?;
    Tests { package: "lockkeeper-server", target: "differential", features: "real-servers" }
        .run(sh, &["--nocapture".to_owned()], [("LOCKKEEPER_SCRIPTS", scripts.to_string().into())])
        .context("our server does not answer as Apache's")
}

/// Apache's server, of that release.
pub(crate) fn apache_release() -> Result<Distribution> {
    let (distribution, _home) =
        fetched(&format!("ZooKeeper {APACHE}, which comes from Maven Central"), Distribution::fetch(APACHE))?;
    Ok(distribution)
}

/// Runs Kazoo's tests against a server that the plugin starts, stops and starts again as they ask.
pub(crate) fn kazoo(sh: &Shell, arguments: &[String]) -> Result<()> {
    let target = target_dir(sh);
    let home = target.join(format!("peers/kazoo-{KAZOO}"));
    install_kazoo(sh, &home)?;
    let command = programs::command(sh)?;
    let plugin = home.join("plugin");
    fs::create_dir_all(&plugin).with_context(|| format!("making {}", plugin.display()))?;
    fs::write(plugin.join("kazoo_one_server.py"), KAZOO_PLUGIN).context("writing the plugin")?;
    let accounts = plugin.join("accounts");
    fs::write(&accounts, ACCOUNTS).context("writing the accounts")?;

    let least = if arguments.is_empty() { KAZOO_PASSES } else { 0 };
    let _suite = sh.push_dir(home.join(format!("kazoo-{KAZOO}")));
    let python = home.join("venv/bin/python");
    cmd!(
        sh,
        "{python} -m pytest -p kazoo_one_server -p no:cacheprovider -o log_cli=false -q -rfE --color=no --disable-warnings --tb=short --show-capture=no --timeout 120
         kazoo/tests {arguments...}"
    )
    .env("PYTHONPATH", plugin)
    .env("LOCKKEEPER", command)
    .env("LOCKKEEPER_ACCOUNTS", accounts)
    .env("LOCKKEEPER_LEAST_PASSES", least.to_string())
    .run()
    .context("Kazoo's tests do not all pass")
}

/// The Python that has Kazoo, installed if need be.
pub(crate) fn kazoo_python(sh: &Shell) -> Result<PathBuf> {
    let home = target_dir(sh).join(format!("peers/kazoo-{KAZOO}"));
    install_kazoo(sh, &home)?;
    let python = home.join("venv/bin/python");
    if cmd!(sh, "{python} -c 'import kazoo'").quiet().ignore_stderr().run().is_err() {
        let pip = home.join("venv/bin/pip");
        cmd!(sh, "{pip} install --quiet --disable-pip-version-check kazoo=={KAZOO}").run()?;
    }
    Ok(python)
}

/// Fetches the suite and what it imports, once.
fn install_kazoo(sh: &Shell, home: &Path) -> Result<()> {
    let complete = home.join("complete");
    if complete.exists() {
        return Ok(());
    }
    need_python(sh)?;
    // Whatever an interrupted attempt has left.
    sh.remove_path(home)?;
    sh.create_dir(home)?;
    let (venv, needs) = (home.join("venv"), KAZOO_NEEDS);
    cmd!(sh, "python3 -m venv {venv}").run()?;
    let pip = venv.join("bin/pip");
    let quiet = ["--quiet", "--disable-pip-version-check"];
    let installed = cmd!(sh, "{pip} install {quiet...} {needs...}").run();
    fetched("Kazoo, for pip cannot install what its tests import", installed)?;
    let downloaded = cmd!(sh, "{pip} download {quiet...} --no-deps --no-binary kazoo kazoo=={KAZOO} -d {home}").run();
    fetched("Kazoo, for pip cannot fetch it", downloaded)?;
    let archive = home.join(format!("kazoo-{KAZOO}.tar.gz"));
    cmd!(sh, "tar -xzf {archive} -C {home}").run()?;
    sh.write_file(complete, "")?;
    Ok(())
}

/// As root on Debian installs what is missing; otherwise says so.
fn need_python(sh: &Shell) -> Result<()> {
    let usable = || cmd!(sh, "python3 -c 'import venv, ensurepip'").quiet().ignore_stderr().run().is_ok();
    if usable() {
        return Ok(());
    }
    let installed = rustix::process::geteuid().is_root()
        && cmd!(sh, "apt-get install --yes --quiet --no-install-recommends python3-venv").run().is_ok();
    if !(installed && usable()) {
        bail!(NoPython);
    }
    Ok(())
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir(sh: &Shell) -> PathBuf {
    sh.current_dir().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

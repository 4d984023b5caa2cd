//! `cargo xtask peers`: runs other clients' own tests, unchanged, against our server, by `interop/suites/run.py`.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lockkeeper_testkit::apache::{self, Apache};
use xshell::Shell;

use crate::programs::{self, Tests};
use crate::script::{done, python};
use crate::workspace::{shell, target_dir};
use crate::{maven, zookeeper};

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    suite: Suite,
    /// The number of scripts of `apache`; the default is more than enough to find every difference that was ever found
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    scripts: u64,
    /// Arguments of pytest or `go test`, classes, crates, or tests in C; with them, the number of passes is not checked
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Suite {
    /// Kazoo's tests; needs Python 3 with venv and a package index for pip
    Kazoo,
    /// aiozk's tests; needs the same
    Aiozk,
    /// go-zookeeper's tests; needs Go
    Go,
    /// The tests of ZooKeeper's C client from Debian; needs Debian's apt, Java, Maven, CMake and `CppUnit`
    C,
    /// The tests of clients in Rust; needs crates that cargo fetches
    Rust,
    /// A session in ZooKeeper's command line on Apache's server and on ours; needs Java and Maven
    Zkcli,
    /// Tests of ZooKeeper's own Java client; needs Java and Maven
    Zookeeper,
    /// Tests of Curator; needs Java and Maven
    Curator,
    /// Random scripts on Apache's server and on ours: everything that clients see is compared; needs Java and Maven
    Apache,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { suite, scripts, arguments } = options;
    let sh = shell()?;
    if *suite == Suite::Apache {
        zookeeper::sound()?;
        return Tests { package: "lockkeeper-server", target: "differential", features: "" }
            .run(&sh, &["--nocapture".to_owned()], [("LOCKKEEPER_SCRIPTS", scripts.to_string().into())])
            .context("our server does not answer as Apache's");
    }
    let name = format!("{suite:?}").to_lowercase();
    let mut script = script(&sh, &name, &name);
    script.args(arguments).env("LOCKKEEPER", programs::command(&sh)?);
    if [Suite::C, Suite::Zkcli, Suite::Zookeeper, Suite::Curator].contains(suite) {
        script.env("CLASSPATH", maven::build(&sh, "suites")?);
    }
    let mut apache = None;
    if *suite == Suite::Zkcli {
        let options = apache::Options::default().tick(Duration::from_secs(2)).distribution(zookeeper::sound()?);
        script.env("APACHE", apache.insert(Apache::single(options)?).connect_string());
    }
    done(script.output()).map(drop)
}

/// Returns the Python that has Kazoo; installs Kazoo if necessary.
pub(crate) fn kazoo_python(sh: &Shell) -> Result<String> {
    done(script(sh, "kazoo-python", "kazoo").stdout(Stdio::piped()).output())
}

/// Returns the command that runs a suite, which keeps what it fetches in its directory.
fn script(sh: &Shell, suite: &str, directory: &str) -> Command {
    let mut command = python("interop/suites/run.py");
    command.arg(suite).env("SUITE_HOME", target_dir(sh).join("peers").join(directory));
    command
}

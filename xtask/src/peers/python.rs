//! The tests of clients in Python, from their source distributions.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use super::served::{Served, write_accounts};
use crate::programs;
use crate::untested::fetched;
use crate::workspace::target_dir;

/// A client whose tests are in its source distribution.
struct Suite {
    name: &'static str,
    release: &'static str,
    /// The modules that its tests import beside itself.
    needs: &'static [&'static str],
    /// The number of tests that pass. A smaller number means that tests were left out.
    passes: u32,
}

/// As many tests pass as on Apache ZooKeeper 3.8.0.
const KAZOO: Suite = Suite {
    name: "kazoo",
    release: "2.11.0",
    needs: &[
        "pytest>=8,<10",
        "pytest-timeout>=2,<3",
        "objgraph>=3,<4",
        "pyjks",
        "pyOpenSSL<25",
        "gevent",
        "eventlet",
        "pure_sasl",
    ],
    passes: 389,
};

const AIOZK: Suite =
    Suite { name: "aiozk", release: "0.32.0", needs: &["pytest>=8,<10", "pytest-asyncio>=1,<2"], passes: 85 };

/// Replaces the suite's cluster of Java servers with our server.
const KAZOO_PLUGIN: &str = include_str!("kazoo_one_server.py");

/// No Python was found that can create a virtual environment.
#[derive(Debug, thiserror::Error)]
#[error("no Python 3 with venv: install it (Debian: apt-get install python3-venv) and try again")]
pub(crate) struct NoPython;

/// Runs Kazoo's tests against a server that the plugin starts and stops for them.
pub(super) fn kazoo(sh: &Shell, arguments: &[String]) -> Result<()> {
    let home = KAZOO.install(sh)?;
    let command = programs::command(sh)?;
    let plugin = home.join("plugin");
    fs::create_dir_all(&plugin).with_context(|| format!("making {}", plugin.display()))?;
    fs::write(plugin.join("kazoo_one_server.py"), KAZOO_PLUGIN).context("writing the plugin")?;
    let accounts = plugin.join("accounts");
    write_accounts(&accounts)?;

    let least = if arguments.is_empty() { KAZOO.passes } else { 0 };
    let _suite = sh.push_dir(KAZOO.tests(&home));
    let python = python(&home);
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

/// Returns the Python that has Kazoo; installs Kazoo if necessary.
pub(crate) fn kazoo_python(sh: &Shell) -> Result<PathBuf> {
    let python = python(&KAZOO.install(sh)?);
    if cmd!(sh, "{python} -c 'import kazoo'").quiet().ignore_stderr().run().is_err() {
        let release = KAZOO.release;
        cmd!(sh, "{python} -m pip install --quiet --disable-pip-version-check kazoo=={release}").run()?;
    }
    Ok(python)
}

/// Runs aiozk's tests against one server.
pub(super) fn aiozk(sh: &Shell, arguments: &[String]) -> Result<()> {
    let home = AIOZK.install(sh)?;
    let server = Served::start(&programs::command(sh)?, None)?;
    let (host, port) = server.address.rsplit_once(':').context("an address has a port")?;
    let _suite = sh.push_dir(AIOZK.tests(&home));
    let python = python(&home);
    // Without its own settings, which measure the coverage of the client.
    let said = cmd!(
        sh,
        "{python} -m pytest -p no:cacheprovider -c /dev/null --rootdir . -o asyncio_mode=auto -q -rfE --color=no --disable-warnings aiozk/test {arguments...}"
    )
    .env("ZK_HOST", host)
    .env("ZK_PORT", port)
    .ignore_status()
    .output()
    .context("running aiozk's tests")?;
    let text = String::from_utf8_lossy(&said.stdout);
    println!("{text}");
    let passed = text.lines().rev().find_map(|line| line.split_once(" passed")?.0.rsplit(' ').next()?.parse().ok());
    if !said.status.success() {
        bail!("aiozk's tests do not all pass");
    }
    if arguments.is_empty() && passed < Some(AIOZK.passes) {
        bail!("only {} of {} passed: some were left out", passed.unwrap_or(0), AIOZK.passes);
    }
    Ok(())
}

impl Suite {
    /// Fetches the client and its dependencies once; returns the directory.
    fn install(&self, sh: &Shell) -> Result<PathBuf> {
        let Suite { name, release, needs, .. } = *self;
        let home = target_dir(sh).join(format!("peers/{name}-{release}"));
        let complete = home.join("complete");
        if complete.exists() {
            return Ok(home);
        }
        need_python(sh)?;
        // An interrupted attempt may have left files.
        sh.remove_path(&home)?;
        sh.create_dir(&home)?;
        let venv = home.join("venv");
        cmd!(sh, "python3 -m venv {venv}").run()?;
        let pip = venv.join("bin/pip");
        let quiet = ["--quiet", "--disable-pip-version-check"];
        let installed = cmd!(sh, "{pip} install {quiet...} {needs...}").run();
        fetched(&format!("{name}, for pip cannot install what its tests import"), installed)?;
        let source =
            cmd!(sh, "{pip} download {quiet...} --no-deps --no-binary {name} {name}=={release} -d {home}").run();
        fetched(&format!("{name}, for pip cannot fetch it"), source)?;
        let archive = home.join(format!("{name}-{release}.tar.gz"));
        cmd!(sh, "tar -xzf {archive} -C {home}").run()?;
        sh.write_file(complete, "")?;
        Ok(home)
    }

    /// Returns the directory of its source.
    fn tests(&self, home: &Path) -> PathBuf {
        home.join(format!("{}-{}", self.name, self.release))
    }
}

fn python(home: &Path) -> PathBuf {
    home.join("venv/bin/python")
}

/// Installs missing tools as root on Debian; otherwise returns an error that names them.
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

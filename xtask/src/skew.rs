//! `cargo xtask skew`: commands of two versions share this user's own server, as on a machine during an upgrade.
//!
//! The newer version is this tree, the older one the commit in `xtask/skew.commit`. Each of them once starts the server, and
//! then the other one works on it and takes its place.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use xshell::{Shell, cmd};

use crate::programs;
use crate::untested::{Untested, fetched};
use crate::workspace::target_dir;

/// The exit status of a command that was ended by a revoke, with SIGTERM.
const REVOKED: i32 = 128 + 15;
/// The exit statuses of `lockkeeper` if the lock is taken, and if the server cannot serve.
const TAKEN: i32 = 75;
const CANNOT_SERVE: i32 = 73;

pub(crate) fn run(sh: &Shell) -> Result<()> {
    let (older, newer) = (older(sh)?, programs::command(sh)?);
    for (first, second, who) in [(&older, &newer, "the older version"), (&newer, &older, "the newer version")] {
        println!("== {who} starts the server");
        let machine = Machine(tempfile::Builder::new().prefix("lockkeeper-skew-").tempdir()?);
        let shared = share(&machine, first, second, second == &older);
        _ = machine.call(first, &["server", "stop", "--force"]);
        shared.with_context(|| format!("{who} started the server"))?;
    }
    Ok(())
}

/// Builds the older version, unless it is there.
fn older(sh: &Shell) -> Result<PathBuf> {
    let commit = include_str!("../skew.commit").lines().find(|line| !line.starts_with('#'));
    let commit = commit.context("xtask/skew.commit names a commit")?;
    let home = target_dir(sh).join("skew");
    let program = home.join(format!("lockkeeper-{}", &commit[..7]));
    if program.exists() {
        return Ok(program);
    }
    let [source, target, archive] = ["source", "target", "source.tar"].map(|name| home.join(name));
    if cmd!(sh, "git cat-file -e {commit}").run().is_err() {
        let why = format!("git has no commit {commit} here, as in a shallow clone or an archive");
        return Err(Untested::new("two versions on one server", &why).into());
    }
    sh.remove_path(&home)?;
    sh.create_dir(&source)?;
    cmd!(sh, "git archive --output {archive} {commit}").run()?;
    cmd!(sh, "tar --extract --file {archive} --directory {source}").run()?;
    let there = sh.push_dir(&source);
    let got = cmd!(sh, "cargo fetch --quiet --locked --target host-tuple").run();
    fetched("two versions on one server, because the dependencies of the older one cannot be fetched", got)?;
    // In a directory of its own: cargo would take its packages for those of this tree. Other steps may measure times meanwhile.
    cmd!(sh, "nice -n 19 cargo build --quiet --locked --profile mutant -p lockkeeper-cli --target-dir {target}")
        .env("CARGO_INCREMENTAL", "0")
        .run()
        .with_context(|| format!("building the commit {commit}"))?;
    drop(there);
    fs::rename(target.join("mutant/lockkeeper"), &program).context("keeping the older version")?;
    for used in [source, target, archive] {
        sh.remove_path(used)?;
    }
    Ok(program)
}

/// One version works on the server of the other, and then takes its place.
fn share(machine: &Machine, first: &Path, second: &Path, is_older: bool) -> Result<()> {
    // A hold through everything: a newer command takes the place of an idle server of an older release by itself.
    let kept = machine.hold(first, "kept")?;
    let held = machine.hold(first, "a")?;
    machine.succeeds(first, &["run", "job", "--slot", "one", "--", "true"])?;
    machine.is_served_by(first)?;

    for asks in [&["list"][..], &["show", "a"], &["why", "a"]] {
        machine.shows(second, asks, held.token)?;
    }
    machine.ends(TAKEN, second, &["run", "a", "--try", "--", "true"])?;
    // The slot has run.
    machine.succeeds(second, &["run", "job", "--slot", "one", "--", "false"])?;
    let waiter = machine.wait(second, "a", held.token)?;
    machine.succeeds(second, &["revoke", "a", "--wait", "1m"])?;
    held.ends(REVOKED)?;
    let held = waiter.granted()?;
    ensure!(held.token > kept.token, "the token {} is not above {}", held.token, kept.token);
    machine.shows(first, &["show", "a"], held.token)?;
    machine.is_served_by(first)?;

    let restarted = machine.call(second, &["server", "restart"])?;
    if is_older && restarted.status.code() == Some(CANNOT_SERVE) {
        // It may not know the format of the data, which then stays as it is.
        let said = String::from_utf8_lossy(&restarted.stderr);
        ensure!(said.contains("format"), "no word about the format of the data: {said}");
        println!("the older version refuses the data: {said}");
        machine.succeeds(first, &["run", "b", "--", "true"])?;
        return machine.shows(first, &["show", "kept"], kept.token);
    }
    ensure!(restarted.status.success(), "{restarted:?}");
    machine.is_served_by(second)?;
    for program in [first, second] {
        machine.shows(program, &["show", "kept"], kept.token)?;
        machine.shows(program, &["show", "a"], held.token)?;
        machine.succeeds(program, &["run", "job", "--slot", "one", "--", "false"])?;
        let next = machine.hold(program, "b")?;
        ensure!(next.token > held.token, "the token {} is not above {}", next.token, held.token);
        next.ends(0)?;
    }
    machine.is_served_by(second)?;
    held.ends(0)?;
    kept.ends(0)
}

/// A machine with one user, as far as the commands see.
struct Machine(TempDir);

impl Machine {
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOCKKEEPER_")) {
            command.env_remove(name);
        }
        command.env("LOCKKEEPER_CONFIG", "/dev/null").env("LOCKKEEPER_STATE_DIR", self.0.path().join("state"));
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn call(&self, program: &Path, arguments: &[&str]) -> Result<Output> {
        self.command(program, arguments).output().with_context(|| format!("running {}", program.display()))
    }

    /// Runs a command that must end with this status.
    fn ends(&self, status: i32, program: &Path, arguments: &[&str]) -> Result<Output> {
        let output = self.call(program, arguments)?;
        ensure!(output.status.code() == Some(status), "{} {arguments:?}: {output:?}", program.display());
        Ok(output)
    }

    fn succeeds(&self, program: &Path, arguments: &[&str]) -> Result<()> {
        self.ends(0, program, arguments).map(drop)
    }

    /// Checks that an answer has this token.
    fn shows(&self, program: &Path, arguments: &[&str], token: i64) -> Result<()> {
        let output = self.ends(0, program, &[arguments, &["--json"]].concat())?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(said.contains(&format!("\"token\":{token}")), "{arguments:?} without the token {token}: {said}");
        Ok(())
    }

    /// Checks that the server runs this program.
    fn is_served_by(&self, program: &Path) -> Result<()> {
        let status: Value = serde_json::from_slice(&self.ends(0, program, &["server", "status", "--json"])?.stdout)?;
        let serving = fs::read_link(format!("/proc/{}/exe", status["pid"])).context("finding the server's program")?;
        ensure!(serving == program.canonicalize()?, "{} serves, not {}", serving.display(), program.display());
        Ok(())
    }

    /// Starts a command that prints its token when it holds the lock, and holds it until its input ends.
    fn start(&self, program: &Path, lock: &str, errors: Stdio) -> Result<Waiter> {
        let work = ["--", "sh", "-c", "echo $LOCKKEEPER_TOKEN; exec cat"];
        let mut command = self.command(program, &[&["run", lock, "--json", "--wait", "1m"], &work[..]].concat());
        let mut child = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors).spawn()?);
        let output = BufReader::new(child.0.stdout.take().context("its output is a pipe")?);
        Ok(Waiter { child, output })
    }

    fn hold(&self, program: &Path, lock: &str) -> Result<Holder> {
        self.start(program, lock, Stdio::inherit())?.granted()
    }

    /// Starts a command that waits for a lock, and returns when it has said that it waits for the holder with this token.
    fn wait(&self, program: &Path, lock: &str, token: i64) -> Result<Waiter> {
        let mut waiter = self.start(program, lock, Stdio::piped())?;
        let errors = BufReader::new(waiter.child.0.stderr.take().context("its error output is a pipe")?);
        for line in errors.lines() {
            let line = line?;
            if line.contains("\"waiting\"") && line.contains(&format!("\"token\":{token}")) {
                return Ok(waiter);
            }
        }
        bail!("the command of {} does not wait for the holder", program.display())
    }
}

/// A command that runs. It ends with this value: a holder would start a stopped server again.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

struct Waiter {
    child: Running,
    output: BufReader<ChildStdout>,
}

impl Waiter {
    fn granted(mut self) -> Result<Holder> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let token = line.trim().parse().with_context(|| format!("no lock was granted: {line:?}"))?;
        Ok(Holder { child: self.child, token })
    }
}

struct Holder {
    child: Running,
    token: i64,
}

impl Holder {
    /// Ends the command's input, and checks the status of the command.
    fn ends(mut self, status: i32) -> Result<()> {
        // Before it waits, it closes the input.
        let ended = self.child.0.wait()?;
        ensure!(ended.code() == Some(status), "a holder ended with {ended}");
        Ok(())
    }
}

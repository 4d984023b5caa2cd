//! `cargo xtask fuzz`: changes input from clients and disks at random, for as long as wanted.
//!
//! The targets and their corpus are in the server's crate; `cargo test` runs each briefly. Here each target has a
//! process of its own, with one per core at a time. So a target that crashes, or gets no more memory, leaves its input.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use xshell::{Shell, cmd};

use crate::programs::{self, LIB};
use crate::workspace::target_dir;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// The seed of the changes; printed
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Run only targets with this in their name
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Run one failed input: a file that is named like its target
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "target", "keep"])]
    replay: Option<PathBuf>,
    /// Add inputs with new outcomes to the corpus of the repository
    #[arg(long)]
    keep: bool,
    /// Targets that run at a time [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    at_once: Option<u16>,
}

/// Cargo's report of a program that it has built.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
}

pub(crate) fn run(sh: &Shell, options: &Options) -> Result<()> {
    let program = build(sh)?;
    let chosen = match &options.replay {
        Some(file) => file.file_stem().map(|name| name.to_string_lossy().into_owned()),
        None => options.target.clone(),
    };
    let named = |target: &String| match (&chosen, &options.replay) {
        (None, _) => true,
        (Some(name), Some(_)) => target == name,
        (Some(name), None) => target.contains(name.as_str()),
    };
    let all = targets(&program)?;
    let targets: Vec<_> = all.iter().filter(|target| named(target)).cloned().collect();
    if targets.is_empty() {
        bail!("no target has that name; there are {}", all.join(", "));
    }
    let directory = target_dir(sh).join("fuzz");
    let left = Mutex::new(targets.into_iter());
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..options.at_once.map_or_else(cores, usize::from) {
            scope.spawn(|| {
                loop {
                    // Outside the loop's condition, which would hold the lock while the target runs.
                    let next = left.lock().expect("no target panics with the lock").next();
                    let Some(target) = next else { break };
                    if let Err(failure) = one(&program, &target, &directory, options) {
                        eprintln!("{failure:#}");
                        failures.lock().expect("no target panics with the lock").push(target);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no target panics with the lock");
    if !failures.is_empty() {
        bail!("inputs that the server does not handle: {}", failures.join(", "));
    }
    Ok(())
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs one target; its failure names the file of the input and the command that runs it again.
fn one(program: &Path, target: &str, directory: &Path, options: &Options) -> Result<()> {
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let mut command = Command::new(program);
    command
        .args(["--exact", &format!("fuzz::{target}"), "--test-threads=1"])
        // The store panics on some damaged pages, and the start handles that; thousands of traces would not help.
        .env("RUST_BACKTRACE", "0")
        // Otherwise each thread of the store would reserve address space.
        .env("MALLOC_ARENA_MAX", "1")
        .env("LOCKKEEPER_FUZZ_DIR", directory)
        .env("LOCKKEEPER_FUZZ_SECONDS", options.seconds.to_string())
        .env("LOCKKEEPER_SEED", seed.to_string());
    if let Some(file) = &options.replay {
        command
            .env("LOCKKEEPER_FUZZ_REPLAY", fs::canonicalize(file).with_context(|| format!("no {}", file.display()))?);
    }
    if options.keep {
        command.env("LOCKKEEPER_FUZZ_KEEP", "1");
    }
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("starting {}", program.display()))?;
    let output = String::from_utf8_lossy(&stderr);
    let summary = output.lines().filter(|line| line.starts_with(target) || !status.success());
    for line in summary {
        eprintln!("{line}");
    }
    if status.success() {
        return Ok(());
    }
    eprintln!("{}", String::from_utf8_lossy(&stdout));
    let under_way = directory.join(target);
    let kept = directory.join("failed").join(format!("{target}.{}", std::process::id()));
    fs::create_dir_all(directory.join("failed")).context("making a directory for inputs that fail")?;
    if fs::rename(&under_way, &kept).is_err() {
        bail!("{target} ended with {status} before its first input");
    }
    bail!(
        "{target} ended with {status}; the input is in {kept}
  again:    cargo xtask fuzz --replay {kept}
  for good: cp {kept} crates/lockkeeper-server/fuzz/corpus/{target}/",
        kept = kept.display()
    )
}

/// Builds the tests of the server's crate; returns the program.
fn build(sh: &Shell) -> Result<PathBuf> {
    if let Some(program) = programs::built("lockkeeper-server", LIB)? {
        return Ok(program);
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = cmd!(sh, "{cargo} test --quiet -p lockkeeper-server --lib --no-run --message-format=json").read()?;
    let built = output.lines().filter_map(|line| serde_json::from_str::<Built>(line).ok());
    built.filter_map(|built| built.executable).next_back().context("cargo has built no tests of lockkeeper-server")
}

/// Returns the targets that the program lists.
fn targets(program: &Path) -> Result<Vec<String>> {
    let listed = Command::new(program).args(["--list", "fuzz::"]).output().context("listing the targets")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let tests = listed.lines().filter_map(|line| line.strip_prefix("fuzz::")?.strip_suffix(": test"));
    // The names of the corpus's own tests begin with `the_`.
    Ok(tests.filter(|test| !test.starts_with("the_")).map(str::to_owned).collect())
}

//! The repository's chores: a person can run every step of CI with the same command.
//!
//! Nothing here is part of the product. Run a chore as `cargo xtask <chore>`; `docs/development.md` says when.

mod acceptance;
mod ci;
mod contrib;
mod crash;
mod dist;
mod interop;
mod maven;
mod peers;
mod programs;
mod script;
mod simulate;
mod site;
mod tools;
mod untested;
mod workspace;
mod zookeeper;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lockkeeper_lab::{Profile, Tools};

use script::Script;
use workspace::{root, shell};

/// Lockkeeper's chores.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Run everything that a change must pass after `cargo test`; name the failed steps at the end
    Ci(ci::Options),
    /// Run what takes longer, or only the parts with these texts in their names; print how long each took
    Deep(ci::Options),
    /// Run a step of the gate
    #[command(subcommand, hide = true)]
    Part(ci::Part),
    /// Print which tests cover which lines of docs/acceptance; fail on a required line without a test
    Acceptance(acceptance::Options),
    /// Check that every published crate compiles with every set of its features
    Features(Script),
    /// Run Apache ZooKeeper on free loopback ports
    #[command(subcommand)]
    Zookeeper(zookeeper::Command),
    /// Run our tests that need programs of other projects, such as foreign clients on the same nodes
    Interop(interop::Options),
    /// Check the rules for Prometheus and the manifests for Kubernetes of contrib, by promtool and the schemas of Kubernetes
    Contrib,
    /// Kill the embedded server while it works, and damage its data, many times
    Crash(crash::Options),
    /// Send invalid input to the embedded server, for as long as wanted
    Fuzz(Script),
    /// Change the product in many places, one at a time, and check that a test notices each
    Mutants(Script),
    #[command(flatten)]
    Lab(Profile),
    /// Run seeded worlds of the simulator; shrink a failing one and print it as a test
    Simulate(simulate::Options),
    /// Build the documentation as a site with a search, and check its links
    Site,
    /// Run commands of an older version and of this one on one server of this machine
    Skew(Script),
    /// Run the test suites of other clients, unchanged, against the embedded server
    Peers(peers::Options),
    /// Build what a release consists of, and try it in clean roots
    #[command(subcommand)]
    Dist(dist::Dist),
}

const EXIT_CODES: &str = "Exit status: 1 a step failed, 2 usage, 6 no Python, 7 something that is tested with cannot be \
                          fetched; with `zookeeper start -- CMD` that of CMD.";

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::Ci(options) => ci::run(ci::GATE, &options).map(|()| ExitCode::SUCCESS),
        Chore::Part(part) => part.run().map(|()| ExitCode::SUCCESS),
        Chore::Acceptance(options) => acceptance::run(&root(), &options).map(|()| ExitCode::SUCCESS),
        Chore::Deep(options) => ci::run(ci::DEEP, &options).map(|()| ExitCode::SUCCESS),
        Chore::Features(script) => script.run("features", &[]).map(|()| ExitCode::SUCCESS),
        Chore::Zookeeper(command) => zookeeper::run(command),
        Chore::Interop(options) => interop::run(&options).map(|()| ExitCode::SUCCESS),
        Chore::Contrib => contrib::run().map(|()| ExitCode::SUCCESS),
        Chore::Crash(options) => shell().and_then(|sh| crash::run(&sh, &options)).map(|()| ExitCode::SUCCESS),
        Chore::Lab(profile) => {
            let command = || programs::command(&shell()?);
            profile.run(&Tools { command, servers: zookeeper::sound })
        }
        Chore::Fuzz(script) => shell().and_then(|sh| programs::fuzz(&sh, &script)).map(|()| ExitCode::SUCCESS),
        Chore::Mutants(script) => script.run("mutants", &[]).map(|()| ExitCode::SUCCESS),
        Chore::Simulate(options) => {
            shell().and_then(|sh| simulate::simulate(&sh, &options)).map(|()| ExitCode::SUCCESS)
        }
        Chore::Site => site::run().map(|()| ExitCode::SUCCESS),
        Chore::Skew(script) => shell().and_then(|sh| programs::skew(&sh, &script)).map(|()| ExitCode::SUCCESS),
        Chore::Peers(options) => peers::run(&options).map(|()| ExitCode::SUCCESS),
        Chore::Dist(dist) => dist::run(&dist).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        if let Some(untested) = error.downcast_ref::<untested::Untested>() {
            eprintln!("{untested}");
            return ExitCode::from(untested::STATUS);
        }
        if let Some(script::Failed(status)) = error.downcast_ref() {
            return ExitCode::from(*status);
        }
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

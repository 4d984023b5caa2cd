//! Lockkeeper under faults: workloads run on servers while faults are made, and a judge reads their history.
//!
//! Each profile of the campaign is a chore of `cargo xtask`. The history and its judge are in `lockkeeper-testkit`, where
//! simulated worlds use them too.

mod campaign;
mod figures;
mod process;
mod site;
mod slots;
mod testbed;
mod tools;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use campaign::{chaos, healthy, storm};
use process::Role;
pub use tools::Tools;

/// A profile of the campaign, with its options.
#[derive(Debug, Subcommand)]
pub enum Profile {
    /// Make faults on an ensemble of Apache ZooKeeper for some minutes, and judge the history of the contenders
    Chaos(chaos::Options),
    /// Measure every figure of docs/guarantees.md and print the table
    Figures(figures::Options),
    /// Run queues of jobs through the command and print how many healthy ones were stopped; measure how long servers
    /// are away
    Healthy(healthy::Options),
    /// Run the slots of one job on hosts with wrong clocks while leaders are killed; check that each is claimed exactly once
    Slots(slots::Options),
    /// Run random jobs through the command under seeded faults, and judge them by their own logs
    Storm(storm::Options),
    /// Run one process of a profile
    #[command(hide = true)]
    Work { role: Role, task: String },
}

impl Profile {
    /// Runs the profile until its end.
    ///
    /// # Errors
    /// A promise was broken, or the profile could not run.
    pub fn run(self, tools: &Tools) -> Result<ExitCode> {
        match self {
            Profile::Chaos(options) => chaos::run(&options, tools),
            Profile::Figures(options) => figures::run(&options, tools),
            Profile::Healthy(options) => healthy::run(&options, tools),
            Profile::Slots(options) => slots::run(&options, tools),
            Profile::Storm(options) => storm::run(&options, tools),
            Profile::Work { role, task } => return work(role, &task),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

/// Does a task, given as JSON.
fn work(role: Role, task: &str) -> Result<ExitCode> {
    match role {
        Role::Contend => serde_json::from_str::<campaign::Contender>(task)?.run()?,
        Role::Job => return serde_json::from_str::<campaign::Work>(task)?.run(),
        Role::Stand => serde_json::from_str::<figures::Stand>(task)?.run()?,
        Role::Tick => figures::tick(),
    }
    Ok(ExitCode::SUCCESS)
}

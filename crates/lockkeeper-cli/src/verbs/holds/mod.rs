//! `lockkeeper holds`: lists this user's holds of `lockkeeper acquire` on this machine.

use lockkeeper_hold::HeldLock;
use serde::Serialize;

use crate::args::common::Common;
use crate::colour::bold;
use crate::exit::Failure;
use crate::keepers::Keepers;
use crate::output::{self, Printer};
use crate::statuses::{Statuses, USUAL, help};
use crate::text::plain;
use crate::verb::{Context, Verb};

const EXAMPLES: &str = "\
Examples:
  lockkeeper holds
  lockkeeper holds --json";

/// `lockkeeper holds`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = help(USUAL, "", EXAMPLES), add = Statuses(USUAL))]
pub(crate) struct HoldsArgs {
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for HoldsArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        holds(&self, context.printer).await
    }
}

/// The holds, as `--json` shows them. These fields are documented and stay.
#[derive(Serialize)]
struct HoldsView {
    holds: Vec<HoldView>,
}

#[derive(Serialize)]
struct HoldView {
    hold: String,
    locks: Vec<HeldLock>,
    /// `held`, `suspected`, `lost: …`, `waits for its lock` or `is being released`
    state: String,
    bond: Option<String>,
    /// Who asks for the lock, and why, if somebody does.
    asked: Option<String>,
}

/// Lists the holds; returns the exit status.
async fn holds(args: &HoldsArgs, printer: &Printer) -> Result<u8, Failure> {
    let (all, silent) = Keepers::of(&args.common.connect, printer)?.all().await?;
    for (id, error) in silent {
        printer.note(&format!("the keeper of the hold {id}: {error}"));
    }
    let view = |(hold, remote): (String, lockkeeper_hold::Remote)| {
        let seen = remote.seen();
        let asked = seen.asked.map(|(by, why)| {
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            format!("asked for by {}{why}", by.as_deref().unwrap_or("someone unnamed"))
        });
        let state = match (seen.waits, seen.is_ending && seen.last.is_none()) {
            (true, _) => "waits for its lock".to_owned(),
            (_, true) => "is being released".to_owned(),
            _ => remote.state().to_string(),
        };
        HoldView { hold, locks: seen.locks, state, bond: seen.bond, asked }
    };
    let holds: Vec<_> = all.into_iter().map(view).collect();
    if printer.is_json() {
        output::document(&HoldsView { holds })?;
    } else if holds.is_empty() {
        printer.note("no hold of this user goes on, on this machine");
    } else {
        output::styled(&table(&holds))?;
    }
    Ok(0)
}

fn table(holds: &[HoldView]) -> String {
    let mut text = bold("HOLD      LOCKS") + "\n";
    for HoldView { hold, locks, state, bond, asked } in holds {
        let paths: Vec<_> = locks.iter().map(|lock| lock.path.as_str()).collect();
        let rest = [Some(state), bond.as_ref(), asked.as_ref()].into_iter().flatten();
        let rest: Vec<_> = rest.map(String::as_str).collect();
        text += &format!("{hold}  {}  {}\n", plain(&paths.join(", ")), plain(&rest.join(", ")));
    }
    text
}

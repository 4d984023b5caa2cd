//! `lockkeeper release`: ends a hold of `lockkeeper acquire`.

use std::time::Duration;

use lockkeeper_hold::{Event, Word};
use lockkeeper_session::text::spell;
use serde::Serialize;
use tokio::time::timeout;

use crate::args::common::Common;
use crate::exit::{Code, Failure};
use crate::keepers::Keepers;
use crate::output::{self, Printer};
use crate::statuses::{Status, Statuses, help};
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper release`.
pub(crate) const STATUSES: &[Status] = &[
    (Code::Done, "released: the servers have confirmed it", ""),
    (Code::NoSuchLock, "no hold of this user has this id", ""),
    (Code::Usage, "the command line or a setting is wrong; nothing was done", ""),
    (Code::Unreachable, "released, and no server has confirmed it", "the lock is free when the keeper's session ends"),
    (Code::Internal, "the operating system or lockkeeper failed", ""),
    (
        Code::Lost,
        "the lock was lost before: another contender may have held it meanwhile",
        "also if its keeper was killed",
    ),
];

const EXAMPLES: &str = "\
Examples:
  lockkeeper release 3f2a9c1b
  lockkeeper release     # the hold of LOCKKEEPER_HOLD";

/// `lockkeeper release`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = help(STATUSES, "", EXAMPLES), add = Statuses(STATUSES))]
pub(crate) struct ReleaseArgs {
    /// The id that lockkeeper acquire has printed [default: that of LOCKKEEPER_HOLD]
    pub id: Option<String>,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for ReleaseArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        release(&self, context.printer).await
    }
}

/// How long a keeper has for the release, beside the time that commands under the hold have.
const CONFIRMING: Duration = Duration::from_secs(15);

/// A hold that is over, as `--json` shows it.
#[derive(Serialize)]
struct Released<'a> {
    hold: &'a str,
}

/// Releases the hold; returns the exit status.
async fn release(args: &ReleaseArgs, printer: &Printer) -> Result<u8, Failure> {
    let (id, hold) = Keepers::of(&args.common.connect, printer)?.find(args.id.as_deref()).await?;
    hold.say(Word::Release);
    let limit = hold.seen().session_timeout + CONFIRMING;
    let last = timeout(limit, hold.last()).await.map_err(|_| {
        Failure::new(Code::Internal, format!("the keeper of {id} has not released it within {}", spell(limit)))
            .hint("it stands still; the lock is free when its process is killed and its session has ended")
    })?;
    // A keeper whose lock was lost hears that nobody needs to be told any more.
    hold.finish().await;
    match last {
        Some(Event::Released { message: None }) => {
            if printer.is_json() {
                output::document(&Released { hold: &id })?;
            }
            Ok(Code::Done.status())
        }
        Some(Event::Released { message: Some(message) }) => Err(Failure::new(Code::Unreachable, message)),
        Some(Event::Lost { message, .. } | Event::Failed { message, .. }) => {
            Err(Failure::new(Code::Lost, format!("the hold {id} was lost before: {message}")))
        }
        _ => Err(Failure::new(Code::Internal, format!("the keeper of {id} has ended without a release"))
            .hint("the lock is free when its session ends")),
    }
}

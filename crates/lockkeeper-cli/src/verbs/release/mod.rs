//! `lockkeeper release`: ends a hold of `lockkeeper acquire`.

use lockkeeper_hold::{Event, Word};

use crate::args::common::Common;
use crate::exit::{Code, Failure};
use crate::keepers::Keepers;
use crate::output::Printer;
use crate::statuses::{Status, Statuses, help};
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper release`.
pub(crate) const STATUSES: &[Status] = &[
    (Code::Done, "released: the servers have confirmed it", ""),
    (Code::NoSuchLock, "no hold of this user has this id", ""),
    (Code::Usage, "the command line or a setting is wrong; nothing was done", ""),
    (Code::Unreachable, "released, and no server has confirmed it", "the lock is free when the keeper's session ends"),
    (Code::Internal, "the operating system or lockkeeper failed", ""),
    (Code::Lost, "the lock was lost before: another contender may have held it meanwhile", ""),
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

/// Releases the hold; returns the exit status.
async fn release(args: &ReleaseArgs, printer: &Printer) -> Result<u8, Failure> {
    let (id, hold) = Keepers::of(&args.common.connect, printer)?.find(args.id.as_deref()).await?;
    hold.say(Word::Release);
    match hold.last().await {
        Some(Event::Released { message: None }) => Ok(Code::Done.status()),
        Some(Event::Released { message: Some(message) }) => Err(Failure::new(Code::Unreachable, message)),
        Some(Event::Lost { message, .. } | Event::Failed { message, .. }) => {
            Err(Failure::new(Code::Lost, format!("the hold {id} was lost before: {message}")))
        }
        _ => Err(Failure::new(Code::Internal, format!("the keeper of {id} has ended without a release"))
            .hint("the lock is free when its session ends")),
    }
}

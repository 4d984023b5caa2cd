//! `lockkeeper admin epoch`: prints the epoch of fencing tokens, or raises it.

use lockkeeper::admin::TokenEpoch;
use lockkeeper::{FencingToken, Lockkeeper};
use serde::Serialize;

use crate::args::common::Common;
use crate::confirm;
use crate::exit::{Code, Failure};
use crate::inquiry::inquire;
use crate::local;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::settings::Settings;
use crate::statuses::{Status, Statuses, help};
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper admin epoch`.
const STATUSES: &[Status] = &[
    (Code::Done, "printed, or raised", ""),
    (Code::NoSuchLock, "nothing was changed: the answer to the question was not yes", ""),
    (
        Code::Usage,
        "the command line is wrong, or there is no terminal to ask on",
        "also if the node of the epoch holds no number",
    ),
];

/// `lockkeeper admin epoch`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
Tokens grow for the life of one ensemble. In an ensemble that was rebuilt empty, restored from an older backup or replaced, tokens \
begin below earlier ones. Then raise the epoch above the greatest token that any resource has seen, before the holders return. The \
epoch can never be lowered, so the command asks first; without a terminal it refuses unless --yes is given.", "\
Examples:
  lockkeeper admin epoch
  lockkeeper admin epoch --above 68719476741"))]
pub(crate) struct EpochArgs {
    /// Raise the epoch, so that all later tokens are greater than this one
    #[arg(long, value_name = "TOKEN")]
    pub above: Option<FencingToken>,
    /// Skip the confirmation before raising the epoch
    #[arg(long, short, requires = "above")]
    pub yes: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for EpochArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        epoch(self, context.printer).await
    }
}

/// The report, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct Report {
    epoch: u32,
    /// All tokens of the epoch are greater.
    above: i64,
}

/// Prints the epoch, or raises it; returns the exit status.
async fn epoch(args: EpochArgs, printer: &Printer) -> Result<u8, Failure> {
    let wanted = args.above.map(above).transpose()?;
    let settings = Settings::read(args.common.connect, printer)?.whole_servers()?;
    let epoch = match wanted {
        None => inquire(&settings, async |admin| admin.token_epoch().await).await?,
        Some(wanted) => {
            let builder = settings.builder();
            let keeper = match &settings.place {
                Place::Ensemble(servers) => builder.connect(servers).await?,
                Place::Machine(home) => local::connect(home, &builder, printer).await?,
            };
            let raised = raise(&keeper, wanted, args.yes).await;
            keeper.close().await;
            raised?
        }
    };
    let above = floor(epoch);
    if printer.is_json() {
        output::answer(&settings.place, &Report { epoch: epoch.get(), above })?;
    } else {
        printer.scope(&settings.place);
        output::data(&format!("token epoch {epoch}: tokens are above {above}\n"))?;
    }
    Ok(0)
}

/// Raises the epoch, with a confirmation on the terminal if it is needed. An epoch that is high enough stays.
async fn raise(keeper: &Lockkeeper, wanted: TokenEpoch, yes: bool) -> Result<TokenEpoch, Failure> {
    let admin = keeper.admin();
    let now = admin.token_epoch().await?;
    if now.get() >= wanted.get() {
        return Ok(now);
    }
    confirm::possible("epoch --above", yes)?;
    let question = format!(
        "the token epoch is {now}; after this it is {wanted}, and all tokens to come are above {}\n\
         It is never lowered again. Raise it?",
        floor(wanted)
    );
    if !yes && !confirm::agreed(&question) {
        return Err(Failure::new(Code::NoSuchLock, "nothing was changed"));
    }
    Ok(admin.raise_token_epoch(wanted).await?)
}

/// Returns the number that all tokens of an epoch exceed.
fn floor(epoch: TokenEpoch) -> i64 {
    i64::from(epoch.get()) << 48
}

fn above(token: FencingToken) -> Result<TokenEpoch, Failure> {
    TokenEpoch::above(token).ok_or_else(|| Failure::new(Code::Usage, format!("{token} is in the last possible epoch")))
}

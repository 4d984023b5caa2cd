//! `lockkeeper epoch`: prints the epoch of fencing tokens, or raises it.

use lockkeeper::admin::TokenEpoch;
use lockkeeper::{FencingToken, Lockkeeper};
use serde::Serialize;

use crate::args::ask::EpochArgs;
use crate::commands::show::inquire;
use crate::confirm;
use crate::exit::{Code, Failure};
use crate::local;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::settings::Settings;

/// The report, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct Report {
    epoch: u32,
    /// All tokens of the epoch are greater.
    above: i64,
}

/// Prints the epoch, or raises it; returns the exit status.
pub(crate) async fn epoch(args: EpochArgs, printer: &Printer) -> Result<u8, Failure> {
    let wanted = args.above.map(above).transpose()?;
    let settings = Settings::read(args.connect, printer)?.whole_servers()?;
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

//! `lockkeeper epoch`: which life of the ensemble fencing tokens are of, and the step to the next.

use lockkeeper::{FencingToken, TokenEpoch};
use serde::Serialize;

use crate::args::EpochArgs;
use crate::commands::show::inquire;
use crate::exit::{Code, Failure};
use crate::local;
use crate::output::{self, Printer};
use crate::settings::{Place, Settings};

/// As `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct Report {
    epoch: u32,
    /// All tokens of the epoch are greater.
    above: i64,
}

/// Tells the epoch, or raises it; returns the exit status.
pub(crate) async fn epoch(args: EpochArgs, printer: &Printer) -> Result<u8, Failure> {
    let wanted = args.above.map(above).transpose()?;
    let settings = Settings::read(args.connect, printer)?;
    let epoch = match wanted {
        None => inquire(&settings, async |admin| admin.token_epoch().await).await?,
        Some(wanted) => {
            let builder = settings.builder();
            let keeper = match &settings.place {
                Place::Ensemble(servers) => builder.connect(servers).await?,
                Place::Machine(home) => local::connect(home, &builder).await?,
            };
            let raised = keeper.admin().raise_token_epoch(wanted).await;
            keeper.close().await;
            raised?
        }
    };
    let above = i64::from(epoch.get()) << 48;
    if printer.is_json() {
        output::document(&Report { epoch: epoch.get(), above })?;
    } else {
        output::data(&format!("token epoch {epoch}: tokens are above {above}\n"))?;
    }
    Ok(0)
}

fn above(token: FencingToken) -> Result<TokenEpoch, Failure> {
    TokenEpoch::above(token).ok_or_else(|| Failure::new(Code::Usage, format!("{token} is of the last epoch there is")))
}

//! `lockkeeper admin copy`: copies from one server to others, and keeps tokens growing.

use std::fmt::Write as _;

use lockkeeper::Lockkeeper;
use lockkeeper::admin::{Admin, Copied, CopyOptions, TokenEpoch};
use serde::Serialize;

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::exit::{Code, Failure};
use crate::inquiry::connect_running;
use crate::output::{self, Printer};
use crate::settings::Settings;
use crate::statuses::{Status, Statuses, help};
use crate::text::{counted, plain};
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper admin copy`.
const STATUSES: &[Status] = &[
    (Code::Done, "copied; with --dry-run, nothing prevents a copy", ""),
    (Code::NoSuchLock, "nothing was copied: other content at the target, or tokens would fall", ""),
];

/// `lockkeeper admin copy`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
Copies nodes with their data and access lists, parents first. It leaves out nodes that end with a session: stop all users of locks, \
then copy. It also leaves out /zookeeper, with its quotas, and the epoch of tokens. It copies nothing if the target has a node with \
other content, or if the target's tokens are not above the source's. The last run of each job gets the time of the copy. Copying \
again is harmless.", "\
Examples:
  lockkeeper admin copy --to zk1:2181,zk2:2181,zk3:2181 --dry-run
  lockkeeper admin copy --to zk1:2181,zk2:2181,zk3:2181 --raise-epoch
  lockkeeper admin copy --servers zk1/app --to zk2/app --create-chroot /config"))]
pub(crate) struct CopyArgs {
    /// Copy to these servers
    #[arg(long, value_name = "SERVERS")]
    pub to: String,
    /// Copy these absolute paths, with everything below and missing parents [default: everything]
    #[arg(value_name = "PATH")]
    pub paths: Vec<String>,
    /// Replace nodes of the target that have other data or another access list
    #[arg(long)]
    pub overwrite: bool,
    /// First raise the target's epoch of tokens, if its tokens are not above the source's
    #[arg(long, conflicts_with = "dry_run")]
    pub raise_epoch: bool,
    /// Compare, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for CopyArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        copy(self, context.printer).await
    }
}

/// The report, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct Report<'a> {
    done: bool,
    created: u64,
    replaced: u64,
    same: u64,
    ephemeral: u64,
    conflicting: u64,
    conflicts: &'a [String],
    meanwhile: u64,
    changed: u64,
    source_token: Option<i64>,
    target_token: Option<i64>,
    tokens_fall: bool,
}

/// Copies; returns the exit status.
async fn copy(args: CopyArgs, printer: &Printer) -> Result<u8, Failure> {
    let settings = Settings::read(args.common.connect, printer)?.whole_servers()?;
    let builder = settings.builder();
    let mut options = CopyOptions::default();
    // The records of holds that the target had itself stay.
    options.keep.push(lockkeeper_history::ROOT.to_owned());
    (options.paths, options.overwrite, options.dry_run) = (args.paths, args.overwrite, args.dry_run);
    let source = connect_running(&settings, &builder).await?;
    let target = match builder.connect(&args.to).await {
        Ok(target) => target,
        Err(error) => {
            source.close().await;
            return Err(error.into());
        }
    };
    let copied = between(&source, &target, &options, args.raise_epoch, printer).await;
    source.close().await;
    target.close().await;
    let copied = copied?;
    if printer.is_json() {
        output::answer(&settings.place, &report(&copied))?;
    } else {
        printer.scope(&settings.place);
        output::data(&text(&copied))?;
    }
    match refusal(&copied, &args.to) {
        Some(failure) if !args.dry_run => Err(failure),
        // The problem is reported, and nothing was to be changed.
        Some(failure) => {
            printer.failure(&failure);
            Ok(Code::NoSuchLock.status())
        }
        None => Ok(0),
    }
}

async fn between(
    source: &Lockkeeper,
    target: &Lockkeeper,
    options: &CopyOptions,
    raise: bool,
    printer: &Printer,
) -> Result<Copied, Failure> {
    let (source, target): (Admin, Admin) = (source.admin(), target.admin());
    let copied = source.copy_to(&target, options).await?;
    let token = copied.source_token.filter(|_| raise && copied.tokens_fall() && copied.conflicting == 0);
    let Some(epoch) = token.and_then(TokenEpoch::above) else { return Ok(copied) };
    let epoch = target.raise_token_epoch(epoch).await?;
    printer.note(&format!("the target's token epoch is {epoch} now"));
    Ok(source.copy_to(&target, options).await?)
}

fn report(copied: &Copied) -> Report<'_> {
    Report {
        done: copied.done,
        created: copied.created,
        replaced: copied.replaced,
        same: copied.same,
        ephemeral: copied.ephemeral,
        conflicting: copied.conflicting,
        conflicts: &copied.conflicts,
        meanwhile: copied.meanwhile,
        changed: copied.changed,
        source_token: copied.source_token.map(|token| token.get()),
        target_token: copied.target_token.map(|token| token.get()),
        tokens_fall: copied.tokens_fall(),
    }
}

fn text(copied: &Copied) -> String {
    let Copied { created, replaced, same, ephemeral, meanwhile, changed, .. } = copied;
    let (verb, would) = if copied.done { ("", "") } else { ("to be ", " (nothing was copied)") };
    let mut text =
        format!("nodes {verb}created: {created}, {verb}replaced: {replaced}, the same already: {same}{would}\n");
    // Writing to a string never fails.
    if *ephemeral > 0 {
        _ = writeln!(text, "left out, because they end with a session: {ephemeral}");
    }
    if *changed > 0 {
        _ = writeln!(text, "changed while they were read: {changed}; stop the writers and copy again");
    } else if *meanwhile > 0 {
        _ = writeln!(
            text,
            "transactions at the source meanwhile: {meanwhile}, including sessions that opened or closed"
        );
    }
    if let (Some(source), Some(target)) = (copied.source_token, copied.target_token) {
        _ = writeln!(text, "tokens of the source are at most {source}, new tokens of the target are above {target}");
    }
    for path in &copied.conflicts {
        _ = writeln!(text, "exists with other content: {}", plain(path));
    }
    text
}

fn refusal(copied: &Copied, to: &str) -> Option<Failure> {
    if copied.conflicting > 0 {
        let count = copied.conflicting;
        return Some(
            Failure::new(Code::NoSuchLock, format!("{} with other content on the target", counted(count, "node")))
                .hint("look at them, then remove them or copy with --overwrite"),
        );
    }
    let token = copied.source_token.filter(|_| copied.tokens_fall())?;
    Some(
        Failure::new(
            Code::NoSuchLock,
            format!("the target's tokens would not be above {token}, which the source has granted"),
        )
        .hint("copy with --raise-epoch, which raises them first")
        .advise("raise them without copying", Suggested::new(["admin", "epoch", "--above", &token.to_string()]).at(to)),
    )
}

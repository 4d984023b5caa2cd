//! `lockkeeper acquire`: acquires locks that are held after it has ended, by a keeper process.

pub(crate) mod args;
mod bond;
pub(crate) mod keeper;

use std::process::Stdio;

use lockkeeper_hold::{Event, HeldLock, Word};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

pub(crate) use self::args::AcquireArgs;
use self::bond::Bond;
use crate::args::common::Common;
use crate::exit::{Code, Failure};
use crate::keepers::{HOLD, Keepers};
use crate::output::{self, Printer};
use crate::program::{not_started, this_program};
use crate::verb::{Context, Verb};
use crate::verbs::hold::args::take_names;

impl Verb for AcquireArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        acquire(self, context.printer).await
    }
}

/// A hold that goes on, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct Acquired<'a> {
    hold: &'a str,
    token: Option<&'a str>,
    locks: &'a [HeldLock],
    bond: &'a str,
}

/// Starts the keeper, and prints the hold when it has the locks; returns the exit status.
async fn acquire(mut args: AcquireArgs, printer: &Printer) -> Result<u8, Failure> {
    take_names("acquire", &mut args.names, &mut args.command)?;
    args.leased.check_without_command("acquire")?;
    let bond = Bond::of(args.process, args.time)?;
    let keepers = Keepers::of(&args.common.connect, printer)?;
    keepers.create()?;
    let id = keepers.new_id();
    let mut keeper = this_program(keeper::WORD);
    // The words after the verb, which the keeper parses as this process did.
    keeper.arg(&id).arg(bond.word()).args(std::env::args_os().skip(2));
    keeper.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut keeper = tokio::process::Command::from(keeper);
    let mut keeper = keeper.spawn().map_err(|error| not_started("cannot start the keeper", error))?;
    // The hold ends with this until the keeper reads that it is to go on.
    let mut says = keeper.stdin.take().expect("it is a pipe");
    let mut lines = BufReader::new(keeper.stdout.take().expect("it is a pipe")).lines();
    let mut is_told = false;
    loop {
        let line = lines.next_line().await.map_err(|error| Failure::system("cannot hear the keeper", error))?;
        let event = line.as_deref().map(serde_json::from_str::<Event>);
        match event {
            Some(Ok(Event::Waiting { path, ahead, holder })) if !is_told && !printer.is_json() => {
                is_told = true;
                let by = holder.map_or_else(String::new, |holder| format!(": held by {holder}"));
                printer.note(&format!("waiting for {path}{by}, {ahead} ahead"));
            }
            Some(Ok(Event::Acquired { locks, only, .. })) => {
                let token = only.and_then(|only| only.token);
                print(&args, &id, (token.as_deref(), &locks), bond, printer)?;
                let kept = says.write_all(Word::Keep.line().as_bytes()).await;
                kept.map_err(|error| Failure::system("cannot tell the keeper", error))?;
                return Ok(Code::Done.status());
            }
            Some(Ok(Event::Failed { exit_code, message, hint, .. })) => {
                let code = Code::of(exit_code).unwrap_or(Code::Internal);
                return Err(Failure { hint, ..Failure::new(code, message) });
            }
            Some(Ok(Event::Released { .. })) => {
                let message = "the wait has ended: the process of --while has, or the keeper was told to";
                return Err(Failure::new(Code::NotAcquired, message));
            }
            Some(Ok(Event::Lost { message, .. })) => return Err(Failure::new(Code::Lost, message)),
            Some(_) => {}
            None => {
                let status = keeper.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
                return Err(Failure::new(Code::Internal, format!("the keeper has ended with {status}")));
            }
        }
    }
}

fn print(
    args: &AcquireArgs,
    id: &str,
    (token, locks): (Option<&str>, &[HeldLock]),
    bond: Bond,
    printer: &Printer,
) -> Result<(), Failure> {
    let bond = bond.text();
    if printer.is_json() {
        return output::document(&Acquired { hold: id, token, locks, bond: &bond });
    }
    if args.shell {
        let token = token.map_or_else(
            || "unset LOCKKEEPER_TOKEN".to_owned(),
            |token| format!("LOCKKEEPER_TOKEN={token}; export LOCKKEEPER_TOKEN"),
        );
        output::data(&format!("{HOLD}={id}; export {HOLD}; {token};\n"))?;
    } else {
        output::data(&format!("{id} {}\n", token.unwrap_or_default()).replace(" \n", "\n"))?;
    }
    let paths: Vec<_> = locks.iter().map(|lock| lock.path.as_str()).collect();
    printer.note(&format!("{} is held {bond}; to end it: lockkeeper release {id}", paths.join(", ")));
    Ok(())
}

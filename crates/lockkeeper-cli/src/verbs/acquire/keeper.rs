//! The process that keeps a hold after the command that acquired it: `lockkeeper __keep ID BOND WORDS…`, started by `acquire`.
//!
//! It belongs to no terminal. While it waits, it ends with `acquire`. From the grant on it ends with its bond, with a release by a client of
//! its socket, or with a loss, of which it tells whoever comes until the bond is over. Then it removes the socket.

use std::ffi::OsString;
use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;

use futures_util::stream::poll_fn;
use lockkeeper_hold::{Bound, Clients, keep};
use rustix::process::Signal;
use tokio::sync::{Notify, mpsc};

use super::args::AcquireArgs;
use super::bond::Bond;
use crate::daemon::leave_session;
use crate::exit::{Code, Failure};
use crate::keepers::{self, Keepers};
use crate::output::Printer;
use crate::signals::Signals;
use crate::streams;
use crate::verbs::hold::{Alone, Coprocess, NotHeld, failed, status};
use crate::verbs::run::Request;

/// The argument that starts this part of the program.
pub(crate) const WORD: &str = "__keep";

pub(crate) fn main(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let (id, bond) = (words.next(), words.next());
    let bond = bond.and_then(|bond| Bond::read(bond.to_str()?));
    let (Some(id), Some(bond), Some(args)) = (id.and_then(|id| id.into_string().ok()), bond, AcquireArgs::parse(words))
    else {
        return ExitCode::from(Code::Usage.status());
    };
    let runtime = match leave_session().map(|()| tokio::runtime::Builder::new_current_thread().enable_all().build()) {
        Ok(Ok(runtime)) => runtime,
        _ => return ExitCode::from(Code::Internal.status()),
    };
    let code = runtime.block_on(serve(&args, &id, bond));
    runtime.shutdown_background();
    streams::flush();
    ExitCode::from(code)
}

/// Acquires and keeps the locks; returns the exit status.
async fn serve(args: &AcquireArgs, id: &str, bond: Bond) -> u8 {
    let mut clients = Clients::default();
    let starter = clients.add(tokio::io::stdin(), tokio::io::stdout());
    let bound = Bound::Otherwise { starter, bond: bond.ahead() };
    let (printer, held) = (Printer::new(args.common.json), Arc::new(Notify::new()));
    let begun = async {
        let over = bond.watch(Arc::clone(&held))?;
        let (request, keepers, signals) = begin(args, id, bond, &printer).await?;
        clients.listen(keepers.serve(id)?);
        Ok((request, keepers.socket(id), signals, over))
    };
    let (request, socket, mut signals, over) = match begun.await {
        Ok(begun) => begun,
        Err(failure) => {
            let mut none = NotHeld::new(failed(&failure, false));
            return status(&keep(&mut none, poll_fn(|_| None.into()), (clients, bound), pending()).await);
        }
    };
    let (waits_to, mut waits) = mpsc::unbounded_channel();
    let alone = Alone { held, bond: Box::new(move || bond.text()) };
    let mut locks = Coprocess::new(&request, waits_to, None).going_on_alone(alone);
    let over = async {
        tokio::select! {
            () = over => {}
            _ = signals.next() => {}
        }
    };
    let last = keep(&mut locks, poll_fn(move |cx| waits.poll_recv(cx)), (clients, bound), over).await;
    keepers::remove(&socket);
    status(&last)
}

/// Checks everything before anything is sent.
async fn begin(
    args: &AcquireArgs,
    id: &str,
    bond: Bond,
    printer: &Printer,
) -> Result<(Request, Keepers, Signals), Failure> {
    let mut signals = Signals::default();
    signals.catch(&[Signal::TERM, Signal::HUP, Signal::QUIT, Signal::INT])?;
    let keepers = Keepers::of(&args.common.connect, printer)?;
    keepers.create()?;
    let mut request = Request::read(args.request(), printer).await?;
    request.named = Some(format!("lockkeeper acquire, hold {id} {}", bond.ahead()));
    // After the relative paths of the options are read.
    std::env::set_current_dir("/").map_err(|error| Failure::system("cannot leave the directory", error))?;
    Ok((request, keepers, signals))
}

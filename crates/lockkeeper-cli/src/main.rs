//! The `lockkeeper` command: runs anything under a lock, shows locks, and serves them on one machine.
//!
//! It is a thin layer over the library. It adds what a Unix command needs: signals, process groups, terminals, exit
//! codes, and safe text.
//!
//! Layers, top first; a file imports from its own layer and from those below it:
//!
//! 1. `main`
//! 2. `args`: the parser and its mistakes; `verbs`: a folder for each verb, and the table of them
//! 3. the command under the lock and its processes: `child`, `letters`, `local`, `control`, `launcher`, `daemon`, `watchdog`
//! 4. the meaning of the options: `settings`, `grace`, `waiting`, `signals` and others
//! 5. `verb`: what each verb has; the options that verbs share, below `args`
//! 6. `output`, below it `exit`, `advice` and the definitions of options
//! 7. text, places, streams and terminals

mod advice;
mod args;
mod atwork;
mod broken;
mod child;
mod colour;
mod confirm;
mod control;
mod daemon;
mod evidence;
mod exit;
mod grace;
mod group;
mod held;
mod ids;
mod inherited;
mod inquiry;
mod jobsview;
mod keepers;
mod launcher;
mod letters;
#[cfg(feature = "top")]
mod live;
mod liveline;
mod local;
mod nested;
mod output;
mod pastview;
mod place;
mod presence;
mod program;
mod realms;
mod registers;
mod screen;
mod serverlog;
mod servertime;
mod service;
mod settings;
mod signals;
mod statuses;
mod streams;
mod supervision;
mod table;
mod terminal;
mod text;
mod typedtime;
mod verb;
mod verbs;
mod views;
mod waiting;
mod watchdog;

use std::io::IsTerminal;
use std::process::ExitCode;

use crate::advice::PlaceOption;
use crate::args::Args;
use crate::exit::Failure;
use crate::output::Printer;
use crate::verb::Context;
use crate::verbs::acquire::keeper;
use crate::verbs::{Verb, completions};

fn main() -> ExitCode {
    // The parts that this program starts of itself come first: the launcher should cost next to nothing.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == launcher::WORD => return launcher::exec(words),
        Some(word) if word == daemon::WORD => return daemon::main(words),
        Some(word) if word == watchdog::WORD => return watchdog::main(words),
        Some(word) if word == keeper::WORD => return keeper::main(words),
        Some(word) if word == completions::WORD => return completions::main(words, args::definitions),
        _ => {}
    }
    let args = match args::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let mut printer = Printer::new(args.verb.json()).with_place(place(&args.verb));
    if args.verb.takes_a_while() && !std::io::stderr().is_terminal() {
        printer = printer.with_time();
    }
    streams::report_panics();
    streams::STDERR.say_losses_by(move |lines| printer.losses(lines));
    // A service has no other place for its warnings.
    let warnings = matches!(args.verb, Verb::Serve(_)).then(|| "warn".to_owned());
    if let Some(filter) = settings::variable("LOCKKEEPER_LOG").or(warnings) {
        streams::log(&filter);
    }
    let status = obey(args, &printer).unwrap_or_else(|failure| {
        printer.failure(&failure);
        failure.code.status()
    });
    streams::flush();
    ExitCode::from(status)
}

/// Returns the options that name the place of the locks. Printed commands repeat them.
fn place(verb: &Verb) -> Vec<PlaceOption> {
    verb.connect().map_or_else(Vec::new, |connect| advice::place(connect, |name| std::env::var_os(name)))
}

fn obey(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start an event loop", error))?;
    let outcome = runtime.block_on(args.verb.obey(Context { printer, definitions: args::definitions }));
    // A thread may still wait for a server that another command starts; nothing depends on it any more.
    runtime.shutdown_background();
    outcome
}

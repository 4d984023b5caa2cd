//! The `lockkeeper` command: runs anything under a lock, shows locks, and serves them on one machine.
//!
//! It is a thin layer over the library. It adds what a Unix command needs: signals, process groups, terminals, exit
//! codes, and safe text.
//!
//! Layers, top first; a file imports from its own layer and from those below it:
//!
//! 1. `main`
//! 2. `commands`: one file for each verb
//! 3. the command under the lock and its processes: `child`, `retrying`, `letters`, `local`, `control`, `launcher`, `daemon`, `watchdog`
//! 4. the meaning of the options: `settings`, `kind`, `grace`, `waiting`, `signals` and others
//! 5. `args`: the parser, help and manual pages
//! 6. `output`, below it `exit`, `advice` and the definitions of options
//! 7. text, places, streams and terminals

mod advice;
mod alert;
mod args;
mod atwork;
mod backup;
mod broken;
mod child;
mod colour;
mod commands;
mod confirm;
mod control;
mod crontab;
mod daemon;
mod evidence;
mod exit;
mod findings;
mod grace;
mod group;
mod held;
mod inherited;
mod jobsview;
mod kind;
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
mod records;
mod registers;
mod retrying;
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
mod tail;
mod terminal;
mod text;
#[cfg(feature = "top")]
mod top;
mod unsent;
mod views;
mod waiting;
mod watchdog;

use std::io::IsTerminal;
use std::process::ExitCode;

use crate::args::ask::WhyArgs;
use crate::args::{Args, Verb};
use crate::exit::Failure;
use crate::output::Printer;

fn main() -> ExitCode {
    // The parts that this program starts of itself come first: the launcher should cost next to nothing.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == launcher::WORD => return launcher::exec(words),
        Some(word) if word == daemon::WORD => return daemon::main(words),
        Some(word) if word == watchdog::WORD => return watchdog::main(words),
        Some(word) if word == commands::complete::WORD => return commands::complete::main(words),
        _ => {}
    }
    let args = match args::parse() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let mut printer = Printer::new(args.verb.json()).with_place(args.verb.place());
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
        failure.code as u8
    });
    streams::flush();
    ExitCode::from(status)
}

fn obey(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system("cannot start an event loop", error))?;
    let outcome = runtime.block_on(async {
        match args.verb {
            Verb::Run(args) => commands::run::run(*args, printer).await,
            Verb::Lead(args) => commands::lead::lead(*args, printer).await,
            Verb::List(args) => commands::list::list(args, printer).await,
            Verb::Show(args) => commands::show::show(args, printer).await,
            Verb::Jobs(args) => commands::jobs::jobs(args, printer).await,
            Verb::History(args) => commands::history::history(args, printer).await,
            #[cfg(feature = "top")]
            Verb::Top(args) => commands::top::top(args, printer).await,
            Verb::Deadlocks(args) => commands::deadlocks::deadlocks(args, printer).await,
            Verb::Doctor(args) => commands::doctor::doctor(args, printer).await,
            Verb::Gc(args) => commands::gc::gc(args, printer).await,
            Verb::Why(WhyArgs { show, at: Some(at), .. }) => commands::past::why_at(show, &at, printer).await,
            Verb::Why(WhyArgs { show, mine, at: None }) => commands::why::why(show, mine, printer).await,
            Verb::Revoke(args) => commands::revoke::revoke(args, printer).await,
            Verb::Break(args) => commands::breaking::break_lock(args, printer).await,
            Verb::Stats(args) => commands::stats::stats(args, printer).await,
            Verb::Requests(args) => commands::requests::requests(args, printer).await,
            Verb::Approve(args) => commands::requests::decide(args, true, printer).await,
            Verb::Reject(args) => commands::requests::decide(args, false, printer).await,
            Verb::Dlq(args) => commands::dlq::dlq(args, printer).await,
            Verb::Fence(args) => commands::fence::fence(args),
            Verb::Epoch(args) => commands::epoch::epoch(args, printer).await,
            Verb::Init(args) => commands::init::init(args, printer).await,
            Verb::Copy(args) => commands::copy::copy(args, printer).await,
            Verb::Config(args) => commands::config::config(args, printer).await,
            Verb::Observe(args) => commands::observe::observe(*args, printer).await,
            Verb::Serve(args) => commands::serve::serve(args, printer).await,
            Verb::Server(args) => commands::server::server(args, printer).await,
            Verb::Completions { shell } => commands::complete::script(shell),
            Verb::Man(args) => args::pages::man(args::definitions(), args),
            Verb::Version => args::pages::version(args::definitions()),
        }
    });
    // A thread may still wait for a server that another command starts; nothing depends on it any more.
    runtime.shutdown_background();
    outcome
}

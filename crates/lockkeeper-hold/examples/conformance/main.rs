//! Runs a client of the hold protocol through many holds, and says what it believes wrongly.
//!
//! `conformance [--case TEXT] [--patience SECONDS] ADAPTER ARGS...` starts the adapter, a program over the client, once for each case, and
//! plays `lockkeeper` for it. `docs/hold-conformance.md` describes what an adapter reads and prints. The exit status is 0 if all cases
//! pass, 1 if one fails, and 64 for a wrong command line.

mod cases;
mod part;
mod play;

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::{env, io, thread};

/// How many cases run at once.
const AT_ONCE: usize = 4;

fn main() -> io::Result<ExitCode> {
    if let Some(socket) = env::var_os(part::SOCKET) {
        return part::play(&socket);
    }
    let mut arguments = env::args_os().skip(1).peekable();
    let mut only = String::new();
    if arguments.next_if(|argument| argument == "--case").is_some() {
        only = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    }
    if arguments.next_if(|argument| argument == "--patience").is_some() {
        let seconds = arguments.next().and_then(|seconds| seconds.to_str()?.parse().ok()).unwrap_or(10);
        play::PATIENCE.store(seconds, Ordering::Relaxed);
    }
    let adapter: Vec<_> = arguments.collect();
    let cases: Vec<_> = cases::all().into_iter().filter(|case| case.name.contains(&only)).collect();
    if adapter.is_empty() || cases.is_empty() {
        eprintln!("usage: conformance [--case A-PART-OF-ITS-NAME] [--patience SECONDS] ADAPTER [ARGS]...");
        return Ok(ExitCode::from(64));
    }
    // Most cases wait most of the time.
    let (next, (sender, ends)) = (AtomicUsize::new(0), channel());
    let (mut passed, mut failed) = (0, 0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            let (next, cases, adapter, sender) = (&next, &cases, &adapter, sender.clone());
            scope.spawn(move || {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    _ = sender.send((&case.name, play::run(adapter, &case.run)));
                }
            });
        }
        drop(sender);
        for (name, verdict) in ends {
            match verdict {
                Ok(()) => {
                    passed += 1;
                    println!("ok      {name}");
                }
                Err(why) => {
                    failed += 1;
                    println!("FAILED  {name}: {why}");
                }
            }
        }
    });
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

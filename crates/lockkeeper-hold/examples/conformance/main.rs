//! Runs a client of the hold protocol through many holds, and says what it believes wrongly.
//!
//! `conformance [--case TEXT] [--patience SECONDS] ADAPTER ARGS...` starts the adapter, a program over the client, once for each case, and plays `lockkeeper`
//! for it. `docs/hold-conformance.md` describes what an adapter reads and prints. The exit status is 0 if all cases pass, 1 if one fails,
//! and 64 for a wrong command line.

#[cfg(unix)]
mod cases;
#[cfg(unix)]
mod part;
#[cfg(unix)]
mod play;

#[cfg(unix)]
fn main() -> std::io::Result<std::process::ExitCode> {
    use std::process::ExitCode;

    if let Some(socket) = std::env::var_os(part::SOCKET) {
        return part::play(&socket);
    }
    let mut arguments = std::env::args_os().skip(1).peekable();
    let mut only = String::new();
    if arguments.next_if(|argument| argument == "--case").is_some() {
        only = arguments.next().unwrap_or_default().to_string_lossy().into_owned();
    }
    if arguments.next_if(|argument| argument == "--patience").is_some() {
        let seconds = arguments.next().and_then(|seconds| seconds.to_str()?.parse().ok()).unwrap_or(10);
        play::PATIENCE.store(seconds, std::sync::atomic::Ordering::Relaxed);
    }
    let adapter: Vec<_> = arguments.collect();
    let cases: Vec<_> = cases::all().into_iter().filter(|case| case.name.contains(&only)).collect();
    if adapter.is_empty() || cases.is_empty() {
        eprintln!("usage: conformance [--case A-PART-OF-ITS-NAME] [--patience SECONDS] ADAPTER [ARGS]...");
        return Ok(ExitCode::from(64));
    }
    let (mut passed, mut failed) = (0, 0);
    for case in cases {
        match play::run(&adapter, case.run) {
            Ok(()) => {
                passed += 1;
                println!("ok      {}", case.name);
            }
            Err(why) => {
                failed += 1;
                println!("FAILED  {}: {why}", case.name);
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(not(unix))]
fn main() {
    eprintln!("this needs Unix sockets");
}

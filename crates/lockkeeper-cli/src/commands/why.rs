//! `lockkeeper why`: why a lock cannot be had now, and what one can do about it.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use lockkeeper::{Broken, ContenderInfo, LockInfo};
use serde::Serialize;

use crate::args::ShowArgs;
use crate::commands::show::inquire;
use crate::exit::Failure;
use crate::output::{
    self, BrokenView, LockView, Printer, broken_line, moment, part, permits, plain, standing, term, wanted,
};
use crate::settings::{Settings, lock_path};

/// How many of those who wait are told one by one.
const TOLD: usize = 10;

#[derive(Serialize)]
struct Why<'a> {
    lock: LockView<'a>,
    broken: Vec<BrokenView<'a>>,
}

/// Explains a lock; returns the exit status.
pub(crate) async fn why(args: ShowArgs, printer: &Printer) -> Result<u8, Failure> {
    let path = lock_path(&args.name)?;
    let settings = Settings::read(args.connect, printer)?.at([path.as_str()])?;
    let at = path.clone();
    let answer =
        inquire(&settings, async move |admin| Ok((admin.show(at.as_str()).await?, admin.broken(at.as_str()).await?)));
    let (lock, mut broken) = answer.await?;
    broken.retain(|broken| broken.path == lock.path);
    if printer.is_json() {
        let broken = broken.iter().map(BrokenView::of).collect();
        output::document(&Why { lock: LockView::of(&lock), broken })?;
    } else {
        output::data(&text(&lock, &broken, &args.name, SystemTime::now()))?;
    }
    Ok(0)
}

fn text(lock: &LockInfo, broken: &[Broken], name: &str, now: SystemTime) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let path = plain(&lock.path);
    match lock.holders.as_slice() {
        [] if lock.lease.is_none() && lock.waiters.is_empty() => {
            _ = writeln!(text, "{path} is free: nobody holds it, nobody waits")
        }
        [] => _ = writeln!(text, "{path} is held by nobody at this moment; the next in line is about to have it"),
        holders => {
            for (at, holder) in holders.iter().enumerate() {
                let is = if at == 0 { format!("{path} is held by") } else { "and by".to_owned() };
                _ = writeln!(text, "{is} {}", stands(holder, now));
                if let Some(program) = holder.owner.as_ref().and_then(|owner| owner.program.as_deref()) {
                    _ = writeln!(text, "  which runs {}", plain(program));
                }
            }
        }
    }
    if let Some(lease) = &lock.lease {
        _ = writeln!(text, "held {}; a higher priority may take it, and past its end anybody", term(lease));
        if let Some(requestor) = &lease.requestor {
            _ = writeln!(text, "{}", wanted(requestor));
        }
    }
    if let Some(permits) = permits(lock) {
        _ = writeln!(text, "{permits}");
    }
    if !lock.waiters.is_empty() {
        let waiters = lock.waiters.len();
        _ = writeln!(text, "{waiters} in line; who comes now stands behind them");
        for (at, waiter) in lock.waiters.iter().take(TOLD).enumerate() {
            _ = writeln!(text, "  {}. {}", at + 1, stands(waiter, now));
        }
        if waiters > TOLD {
            _ = writeln!(text, "  and {} more: lockkeeper show {}", waiters - TOLD, plain(name));
        }
    }
    if let Some(last) = broken.last() {
        _ = writeln!(text, "broken before, last on {}", broken_line(last));
    }
    if let Some(lease) = lock.lease.as_ref().filter(|_| !lock.holders.is_empty()) {
        let (name, higher) = (plain(name), lease.priority.saturating_add(1));
        _ = write!(
            text,
            "what one can do\n\
             \x20 come after it        lockkeeper run {name} --lease 10m -- COMMAND\n\
             \x20 before its end       lockkeeper run {name} --lease 10m --priority {higher} -- COMMAND\n\
             \x20 see it all           lockkeeper show {name}\n\
             \x20 ask for it           lockkeeper revoke {name} --reason 'WHY' --wait 1m\n\
             \x20 take it away         lockkeeper break {name} --reason 'WHY'\n"
        );
    } else if !lock.holders.is_empty() {
        let name = plain(name);
        _ = write!(
            text,
            "what one can do\n\
             \x20 wait in line         lockkeeper run {name} -- COMMAND\n\
             \x20 not for ever         lockkeeper run {name} --wait 5m -- COMMAND\n\
             \x20 see it all           lockkeeper show {name}\n\
             \x20 ask for it           lockkeeper revoke {name} --reason 'WHY' --wait 1m\n\
             \x20 take it away         lockkeeper break {name} --reason 'WHY'\n"
        );
    }
    text
}

/// `build@ci-7 (pid 4711) since 10:42:03, 12m ago (nightly index)`
fn stands(contender: &ContenderInfo, now: SystemTime) -> String {
    let ago = now.duration_since(contender.since).unwrap_or_default();
    let part = part(contender).map_or_else(String::new, |part| format!(", {part},"));
    let mut text = match contender.mode {
        // Its record does not say since when.
        "lease" => contender.described.clone(),
        _ => format!("{}{part} since {}, {} ago", contender.described, moment(contender.since), coarse(ago)),
    };
    if let Some(message) = &contender.message {
        _ = write!(text, " ({message})");
    }
    if let Some(request) = &contender.revocation {
        _ = write!(text, ", {}", standing(request));
    }
    plain(&text)
}

/// A duration without digits nobody needs: seconds below a minute, minutes below a day.
fn coarse(duration: Duration) -> humantime::FormattedDuration {
    let seconds = duration.as_secs();
    let fine = match seconds {
        0..60 => 1,
        60..86_400 => 60,
        _ => 3_600,
    };
    humantime::format_duration(Duration::from_secs(seconds / fine * fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_without_digits_nobody_needs() {
        let told = |seconds| coarse(Duration::from_secs(seconds)).to_string();
        assert_eq!(told(0), "0s");
        assert_eq!(told(59), "59s");
        assert_eq!(told(3_725), "1h 2m");
        assert_eq!(told(90_061), "1day 1h");
    }
}

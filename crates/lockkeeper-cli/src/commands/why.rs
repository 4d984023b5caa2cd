//! `lockkeeper why`: explains why a lock is not available now, and what to do about it.

use std::fmt::Write as _;

use clap::ValueEnum;
use lockkeeper::NodeFormat;
use lockkeeper::admin::{Broken, ContenderInfo, LockInfo};
use lockkeeper::error::AdminError;
use serde::Serialize;

use crate::advice::{Suggested, can_be_asked};
use crate::args::ask::ShowArgs;
use crate::args::run::NodeFormatArg;
use crate::commands::show::inquire;
use crate::exit::Failure;
use crate::liveline::whole;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::presence::GONE;
use crate::servertime::ServerTime;
use crate::settings::{Settings, lock_path};
use crate::text::{SESSIONLESS, ahead, broken_line, permits, plain, stuck, term, wanted, who_and};
use crate::views::{BrokenView, LockView};

/// Maximum waiters that are printed one by one.
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
    // A server of this machine has its clock.
    let asks = !printer.is_json() && matches!(settings.place, Place::Ensemble(_));
    let answer = inquire(&settings, async move |admin| {
        let lock = match admin.show(at.as_str()).await {
            // The servers delete the node of a lock that nobody uses.
            Err(AdminError::NoSuchLock { .. }) => None,
            lock => Some(lock?),
        };
        let contended = lock.as_slice();
        let time = match asks {
            true => ServerTime::ask(&admin, contended).await,
            false => ServerTime::of(contended),
        };
        Ok((lock, admin.broken(at.as_str()).await?, time))
    });
    let (lock, mut broken, time) = answer.await?;
    broken.retain(|broken| broken.path == path.as_str());
    if printer.is_json() {
        let broken = broken.iter().map(BrokenView::of).collect();
        output::answer(
            &settings.place,
            &Why { lock: lock.as_ref().map_or_else(|| LockView::free(path.as_str()), LockView::of), broken },
        )?;
    } else {
        printer.scope(&settings.place);
        time.note.iter().for_each(|note| printer.note(note));
        output::data(&match &lock {
            Some(lock) => text(lock, &broken, &args.name, &time, printer),
            None => unused(path.as_str(), &broken),
        })?;
    }
    Ok(0)
}

/// The text about a lock without a node.
fn unused(path: &str, broken: &[Broken]) -> String {
    let mut text = format!(
        "{} is free: nobody holds it or waits; it has no node, because it was not used for a while, or never\n",
        plain(path)
    );
    if let Some(last) = broken.last() {
        // Writing to a string never fails.
        _ = writeln!(text, "broken before, last on {}", broken_line(last));
    }
    text
}

fn text(lock: &LockInfo, broken: &[Broken], name: &str, time: &ServerTime, printer: &Printer) -> String {
    // As it was typed, unless it would be read as an option.
    let name = if name.starts_with('-') { &lock.path } else { name };
    let mut text = String::new();
    // Writing to a string never fails.
    let path = plain(&lock.path);
    match lock.holders.as_slice() {
        [] if lock.lease.is_none() && lock.waiters.is_empty() => {
            _ = writeln!(text, "{path} is free: nobody holds it or waits")
        }
        [] => {
            let stuck = stuck(lock)
                .unwrap_or_else(|| "has no holder at this moment; the next waiter is about to get it".to_owned());
            _ = writeln!(text, "{path} {stuck}");
        }
        holders => {
            for (at, holder) in holders.iter().enumerate() {
                let is = if at == 0 { format!("{path} is held by") } else { "and by".to_owned() };
                _ = writeln!(text, "{is} {}", since(holder, time));
                if let Some(program) = holder.owner.as_ref().and_then(|owner| owner.program.as_deref()) {
                    _ = writeln!(text, "  which runs {}", plain(program));
                }
                if holder.process_has_ended() {
                    _ = writeln!(text, "  {GONE}");
                }
            }
        }
    }
    if let Some(lease) = &lock.lease {
        _ = writeln!(
            text,
            "held {}; a higher priority may take it, and after its end every contender may",
            term(lease)
        );
        if let Some(requestor) = &lease.requestor {
            _ = writeln!(text, "{}", wanted(requestor));
        }
    }
    if let Some(permits) = permits(lock) {
        _ = writeln!(text, "{permits}");
    }
    for node in lock.sessionless.iter().take(TOLD) {
        _ = writeln!(text, "{SESSIONLESS}: {}", plain(&node.node_path(&lock.path)));
    }
    if !lock.waiters.is_empty() {
        let waiters = lock.waiters.len();
        _ = writeln!(text, "{waiters} waiting; a new contender has {} ahead", ahead(lock, waiters));
        for (at, waiter) in lock.waiters.iter().take(TOLD).enumerate() {
            _ = writeln!(text, "  {}. {}, {} ahead", at + 1, since(waiter, time), ahead(lock, at));
            if waiter.process_has_ended() {
                _ = writeln!(text, "     {GONE}");
            }
        }
        if waiters > TOLD {
            let show = printer.command(&Suggested::new(["show", name]));
            _ = writeln!(text, "  and {} more: {show}", waiters - TOLD);
        }
    }
    if let Some(last) = broken.last() {
        _ = writeln!(text, "broken before, last on {}", broken_line(last));
    }
    let recipes = recipes(lock, name);
    if !recipes.is_empty() {
        text.push_str("possible actions, with your own COMMAND and WHY\n");
    }
    for (what, command) in recipes {
        _ = writeln!(text, "  {what:<20} {}", printer.command(&command));
    }
    text
}

/// Returns the possible actions on a lock, each with its command.
fn recipes(lock: &LockInfo, name: &str) -> Vec<(&'static str, Suggested)> {
    let removals = lock.sessionless.iter().take(TOLD).map(|node| {
        let node = node.node_path(&lock.path);
        ("delete that node", Suggested::new(["break", name]).with(["--reason", "WHY", "--node", node.as_str()]))
    });
    let mut recipes: Vec<_> = removals.collect();
    let Some(first) = lock.holders.first() else { return recipes };
    let run = |options: &[&str]| Suggested::new(["run", name]).with(options).running(["COMMAND"]);
    if let Some(lease) = &lock.lease {
        // A lease has no queue: other contenders are refused until it is over.
        recipes.push(("if the lease is over", run(&["--lease", "10m"])));
        let next = lease.requestor.as_ref().map_or(lease.priority, |next| next.priority.max(lease.priority));
        if let Some(higher) = next.checked_add(1) {
            recipes.push(("preempt the owner", run(&["--lease", "10m", "--priority", &higher.to_string()])));
        }
    } else {
        let kind = kind(lock);
        let kind: Vec<_> = kind.iter().map(String::as_str).collect();
        if first.mode == "read" {
            let shared = [&kind[..], &["--shared"]].concat();
            recipes.push(("share it", run(&shared)));
        }
        recipes.push(("wait in the queue", run(&kind)));
        recipes.push(("wait at most 5 min", run(&[&kind[..], &["--wait", "5m"]].concat())));
    }
    recipes.push(("see all contenders", Suggested::new(["show", name])));
    if lock.holders.iter().any(can_be_asked) {
        let ask = Suggested::new(["revoke", name]).with(["--reason", "WHY", "--wait", "1m"]);
        let all = if lock.holders.len() > 1 { "ask all holders to release it" } else { "ask the holder to release it" };
        recipes.push((all, ask.clone()));
        // One permit may be enough; one reader is not.
        let one = lock
            .holders
            .iter()
            .find(|holder| lock.holders.len() > 1 && holder.mode == "permits" && can_be_asked(holder));
        if let Some(one) = one {
            recipes.push(("ask one of them", ask.with(["--node", one.node_path(&lock.path).as_str()])));
        }
    }
    for (at, holder) in lock.holders.iter().take(TOLD).enumerate() {
        let node = holder.node_path(&lock.path);
        let which = (lock.holders.len() > 1).then_some(["--node", node.as_str()]).into_iter().flatten();
        let take = Suggested::new(["break", name]).with(["--reason", "WHY"]).with(which);
        recipes.push((if at == 0 { "break the lock" } else { "break the next hold" }, take));
    }
    recipes
}

/// Returns the options with which a command joins the same queue.
fn kind(lock: &LockInfo) -> Vec<String> {
    let all = || lock.holders.iter().chain(&lock.waiters);
    if let Some(permits) = lock.permits {
        return vec!["--permits".to_owned(), permits.to_string()];
    }
    if let Some(class) = all().find_map(|contender| contender.class) {
        return vec!["--class".to_owned(), class.to_string()];
    }
    let Some(used) = all().map(|contender| NodeFormat::of_node(&contender.node)).next() else { return Vec::new() };
    let format = NodeFormatArg::value_variants().iter().find(|format| NodeFormat::from(**format) == used);
    match format {
        None | Some(NodeFormatArg::Curator) => Vec::new(),
        Some(format) => {
            let name = format.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
            vec!["--format".to_owned(), name]
        }
    }
}

/// `build@ci-7 (pid 4711) since 10:42:03, 12 min 03 s ago (nightly index)`
fn since(contender: &ContenderInfo, time: &ServerTime) -> String {
    who_and(contender, |then| time.ago(then).map_or_else(String::new, |ago| format!(", {} ago", whole(ago))))
}

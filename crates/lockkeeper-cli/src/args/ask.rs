//! The options of the verbs that print or change locks.

use std::ffi::OsString;
use std::path::PathBuf;

use lockkeeper::FencingToken;

use super::connect::ConnectArgs;
use super::values::{Completes, duration};
use crate::statuses::help;

/// `lockkeeper list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// List the contenders that break removed instead, the oldest first
    #[arg(long)]
    pub broken: bool,
    /// Sort by this, the most first: the longest wait, the longest hold, contenders per hour; or by name
    #[arg(long, value_name = "BY", value_enum, default_value = "name")]
    pub sort: ListOrder,
    /// Draw the list again after each change, until Ctrl-C
    #[cfg(feature = "top")]
    #[arg(long, conflicts_with_all = ["broken", "json"])]
    pub watch: bool,
    /// List only locks with waiters
    #[arg(long)]
    pub waiting: bool,
    /// List only locks that were held, or waited for, for at least this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub longer: Option<std::time::Duration>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper top`.
#[cfg(feature = "top")]
#[derive(Debug, clap::Args)]
#[command(after_help = help("top", "", ""))]
pub(crate) struct TopArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Sort by this at first, as the keys w, h, r and n do later
    #[arg(long, value_name = "BY", value_enum, default_value = "wait")]
    pub sort: ListOrder,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// What `lockkeeper list` sorts by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ListOrder {
    /// The names of the locks
    #[default]
    Name,
    /// The longest wait
    Wait,
    /// The longest hold
    Held,
    /// Contenders per hour
    Rate,
}

/// `lockkeeper deadlocks`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("deadlocks", "\
A ring is certain if each waiter says that it keeps its holds while it waits: a lockkeeper run in the command of another one, a run of \
several locks, or a program that says so. Without that, a session that holds one lock and waits for another is a likely party, \
because a process may have several threads.", ""))]
pub(crate) struct DeadlocksArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper show` and `lockkeeper why`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("show", "", ""))]
pub(crate) struct ShowArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Print all holders and waiters: on a terminal not only what fits, and of why not only the first ten
    #[arg(long)]
    pub all: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the lock.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper why`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("why", "", ""))]
pub(crate) struct WhyArgs {
    /// What `show` takes too.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Also print the place of each waiter of this user on this machine, and about how long it still waits
    #[arg(long, conflicts_with = "at")]
    pub mine: bool,
    /// Explain what happened at this moment, from the history of the lock: 02:13, or '2026-11-24 02:13'
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
}

/// `lockkeeper revoke`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("revoke", "\
A revoke takes nothing by force. A command under lockkeeper run gets the signal of its --on-revoke, and the lock is free when it has \
ended. To remove a holder by force: lockkeeper break.", ""))]
pub(crate) struct RevokeArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Ask the contender of this node, as show prints it; a waiter withdraws [default: all holders]
    #[arg(long, value_name = "NODE", add = Completes::Nodes)]
    pub node: Option<String>,
    /// Send this reason
    #[arg(long, short, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait for the answers, at most this long [default: does not wait]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<std::time::Duration>,
    /// Print the contenders and their answers as one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the lock.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper break`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("break", "\
The removed holder is notified, but it may be at work beside the next holder until it has stopped. Only a resource that checks \
LOCKKEEPER_TOKEN is safe then. The break is recorded, with its author and its reason: lockkeeper list --broken.", ""))]
pub(crate) struct BreakArgs {
    /// The lock
    #[arg(add = Completes::Locks)]
    pub name: String,
    /// Record this reason; not empty, at most 1024 bytes
    #[arg(long, short, value_name = "TEXT")]
    pub reason: String,
    /// Remove the contender of this node, as show prints it; it may also be a waiter [default: the only holder]
    #[arg(long, value_name = "NODE", add = Completes::Nodes)]
    pub node: Option<String>,
    /// Skip the confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// Print what was done as one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the lock.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper fence`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("fence", "\
Beside FILE, FILE.fence keeps the greatest token so far. It is locked while FILE is replaced or the command runs. A smaller token is \
refused with exit status 76, and nothing is changed. Use it in a job:
  lockkeeper run nightly -- sh -c 'report > new && lockkeeper fence all < new'
  lockkeeper run nightly -- lockkeeper fence /mirror -- rsync -a src/ /mirror/

Standard input is read to its end: if generating the contents may fail, generate them first. With a command, the gate stays \
closed until the command, and everything that it leaves running, has ended.", ""))]
pub(crate) struct FenceArgs {
    /// The file, or a name for the resource that the command changes; not a symbolic link
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Use this token; with --reset, lower the greatest one to it [env: LOCKKEEPER_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<FencingToken>,
    /// Wait at most this long for another process behind the gate [default: until it ends]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<std::time::Duration>,
    /// Accept a token of any epoch
    ///
    /// A token of an epoch more than one above the greatest one is refused, because it would close the gate to all others.
    #[arg(long, hide_short_help = true)]
    pub force: bool,
    /// Print the greatest token so far, and the resets with their reasons
    #[arg(long, conflicts_with_all = ["token", "force", "reset", "command"])]
    pub show: bool,
    /// Forget the greatest token, or lower it to --token, for a gate that a wrong token has closed
    ///
    /// LOCKKEEPER_TOKEN does not count. Older holders can pass again. First make sure that none is left.
    #[arg(long, hide_short_help = true, requires = "reason", conflicts_with_all = ["force", "command"])]
    pub reset: bool,
    /// Record this reason for --reset; not empty, at most 1024 bytes
    #[arg(long, short, hide_short_help = true, value_name = "TEXT", requires = "reset")]
    pub reason: Option<String>,
    /// Skip the confirmation of --reset
    #[arg(long, short, hide_short_help = true, requires = "reset")]
    pub yes: bool,
    /// Run this command behind FILE's gate instead of replacing FILE
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `lockkeeper epoch`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("epoch", "\
Tokens grow for the life of one ensemble. In an ensemble that was rebuilt empty, restored from an older backup or replaced, tokens \
begin below earlier ones. Then raise the epoch above the greatest token that any resource has seen, before the holders return. The \
epoch can never be lowered, so the command asks first; without a terminal it refuses unless --yes is given.", ""))]
pub(crate) struct EpochArgs {
    /// Raise the epoch, so that all later tokens are greater than this one
    #[arg(long, value_name = "TOKEN")]
    pub above: Option<FencingToken>,
    /// Skip the confirmation before raising the epoch
    #[arg(long, short, requires = "above")]
    pub yes: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper init`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("acl", |acl| acl.hide_short_help(false).help(
    "Give the shared nodes this access list, also those that exist: open, creator-all, creator-all-world-read, or entries SCHEME:ID:PERMS",
).long_help(
    "Give the shared nodes this access list, also those that exist: open, creator-all, creator-all-world-read, or entries \
     SCHEME:ID:PERMS. Without this option, LOCKKEEPER_ACL does not count: new nodes get auth::cdrwa,world:anyone:cdrw with \
     --auth-file, and open without it. PERMS are letters of cdrwa: create, delete, read, write, administrate. Commas separate entries.",
)))]
#[command(mut_arg("auth_file", |file| file.hide_short_help(false)))]
#[command(mut_arg("create_chroot", |create| create.hide_short_help(false)))]
#[command(after_help = help("init", "\
An administrator runs it once, before any client uses the servers. It creates /locks, /lockkeeper and the nodes below it that all \
clients write; with --create-chroot, the chroot first. Without --acl, every client may contend for locks, existing nodes stay as they \
are, and only the credentials of --auth-file can change the lists; without --auth-file, everyone can. With --acl, new and existing \
nodes get that list. Everyone may read the epoch, and only entries with the letter a may write it or delete a register.", "\
Examples:
  lockkeeper init --servers zk1:2181/app --create-chroot --auth-file ops
  lockkeeper init --servers zk1:2181 --auth-file ops --acl sasl:team:cdrwa"))]
pub(crate) struct InitArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper copy`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("copy", "\
Copies nodes with their data and access lists, parents first. It leaves out nodes that end with a session: stop all users of locks, \
then copy. It also leaves out /zookeeper, with its quotas, and the epoch of tokens. It copies nothing if the target has a node with \
other content, or if the target's tokens are not above the source's. The last run of each job gets the time of the copy. Copying \
again is harmless.", "\
Examples:
  lockkeeper copy --to zk1:2181,zk2:2181,zk3:2181 --dry-run
  lockkeeper copy --to zk1:2181,zk2:2181,zk3:2181 --raise-epoch
  lockkeeper copy --servers zk1/app --to zk2/app --create-chroot /config"))]
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
    /// Print what was done as one JSON document
    #[arg(long)]
    pub json: bool,
    /// The source of the copy.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// `lockkeeper config`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The later layer counts: defaults, /etc/lockkeeper/config.toml, ~/.config/lockkeeper/config.toml, --properties files, a --config \
file, the environment, flags. With a properties file, the defaults are those of Contentserv's document.")]
pub(crate) struct ConfigArgs {
    /// Open a session, and print the session timeout that the server grants
    #[arg(long)]
    pub connect: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// The sources of the settings.
    #[command(flatten)]
    pub settings: ConnectArgs,
}

/// `lockkeeper man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockkeeper man run | man -l -
  lockkeeper man --directory ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The verb of the page, with a second verb as in dlq replay [default: the main page]
    #[arg(value_name = "VERB")]
    pub verb: Vec<String>,
    /// Write all pages into this directory; create it if it is missing
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    pub directory: Option<PathBuf>,
}

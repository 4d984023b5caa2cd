//! `lockkeeper admin init`: sets up the nodes that all clients share.

use lockkeeper::acl::LockAcl;
use lockkeeper::admin::{SetUp, SharedNode};
use lockkeeper_config::settings::Origin;
use serde::Serialize;

use crate::advice::Suggested;
use crate::args::common::Common;
use crate::exit::{Code, Failure};
use crate::inquiry::connect_with;
use crate::local;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::registers;
use crate::settings::Settings;
use crate::statuses::{Status, Statuses, help};
use crate::text::plain;
use crate::verb::{Context, Verb};

/// The exit statuses of `lockkeeper admin init`.
const STATUSES: &[Status] = &[
    (Code::Done, "set up; of existing nodes, the lists are as asked", ""),
    (Code::Refused, "the server refused", "the nodes before the refused one are set up"),
    (
        Code::NoSuchLock,
        "without --acl: a kept list keeps clients out, or lets all administrate",
        "the latter only if this command has credentials",
    ),
];

/// `lockkeeper admin init`.
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
#[command(add = Statuses(STATUSES), after_help = help(STATUSES, "\
An administrator runs it once, before any client uses the servers. It creates /locks, /lockkeeper and the nodes below it that all \
clients write; with --create-chroot, the chroot first. Without --acl, every client may contend for locks, existing nodes stay as they \
are, and only the credentials of --auth-file can change the lists; without --auth-file, everyone can. With --acl, new and existing \
nodes get that list. Everyone may read the epoch, and only entries with the letter a may write it or delete a register.", "\
Examples:
  lockkeeper admin init --servers zk1:2181/app --create-chroot --auth-file ops
  lockkeeper admin init --servers zk1:2181 --auth-file ops --acl sasl:team:cdrwa"))]
pub(crate) struct InitArgs {
    /// The place of the locks, and the form of the output.
    #[command(flatten)]
    pub common: Common,
}

impl Verb for InitArgs {
    fn common(&self) -> Option<&Common> {
        Some(&self.common)
    }

    async fn obey(self, context: Context<'_>) -> Result<u8, Failure> {
        init(self, context.printer).await
    }
}

/// The report, as `--json` shows it. These fields are documented and stay.
#[derive(Serialize)]
struct Report<'a> {
    nodes: Vec<NodeView<'a>>,
}

/// A node that all clients share.
#[derive(Serialize)]
struct NodeView<'a> {
    path: &'a str,
    done: SetUp,
    /// Its access list; `null` if the servers do not show it.
    acl: Option<String>,
    /// Whether every client may contend.
    open: bool,
}

/// Sets up the shared nodes and prints them; returns the exit status.
async fn init(args: InitArgs, printer: &Printer) -> Result<u8, Failure> {
    let settings = Settings::read_with_list(args.common.connect, printer)?.whole_servers()?;
    // A list in a file or a variable is for the locks of the users.
    let acl = matches!(settings.all.acl.origin, Origin::Flag(_)).then(|| settings.all.acl.value.clone());
    let builder = settings.builder();
    let keeper = connect_with(&settings, &builder, async |home| local::connect(home, &builder, printer).await).await?;
    let nodes = keeper.admin().set_up(acl.clone(), &registers::all()).await;
    keeper.close().await;
    let nodes = nodes?;
    if printer.is_json() {
        output::answer(&settings.place, &Report { nodes: nodes.iter().map(view).collect() })?;
    } else {
        printer.scope(&settings.place);
        output::data(&nodes.iter().map(line).collect::<String>())?;
    }
    let closed: Vec<_> = nodes.iter().filter(|node| !node.is_open).map(|node| node.path.as_str()).collect();
    // The kernel names the users of this machine.
    let is_shared = matches!(&settings.place, Place::Machine(home) if home.is_shared());
    let has_credentials = is_shared || settings.all.auth_file.value.is_some() || settings.all.tls.cert.value.is_some();
    let unguarded: Vec<_> = nodes.iter().filter(|node| all_administrate(node)).map(|node| node.path.as_str()).collect();
    let (message, what) = match (acl, &closed[..], &unguarded[..]) {
        (Some(_), ..) => return Ok(0),
        (None, [], unguarded @ [_, ..]) if has_credentials => (
            format!("every client may administrate {}: their lists were kept", unguarded.join(", ")),
            "let all clients contend, and only these credentials administrate",
        ),
        (None, [], _) => return Ok(0),
        (None, closed, _) => (
            format!("not all clients may contend for locks: the lists of {} were kept", closed.join(", ")),
            "let all clients contend, as a client that may administrate these nodes",
        ),
    };
    let credentials = ["--auth-file", "FILE"].into_iter().filter(|_| !has_credentials);
    let again = Suggested::new(["admin", "init", "--acl", &LockAcl::open_to_contend().to_string()]).with(credentials);
    let failure = Failure::new(Code::NoSuchLock, message).hint("leave it if an administrator wants it so");
    Err(failure.advise(what, again).at(&settings.place))
}

/// Whether the list lets every client change the list.
fn all_administrate(node: &SharedNode) -> bool {
    node.acl.as_ref().is_some_and(|acl| acl.gives_everyone("a"))
}

fn view(node: &SharedNode) -> NodeView<'_> {
    let acl = node.acl.as_ref().map(ToString::to_string);
    NodeView { path: &node.path, done: node.set_up, acl, open: node.is_open }
}

fn line(node: &SharedNode) -> String {
    let done = match node.set_up {
        SetUp::Created => "created",
        SetUp::Changed => "changed",
        SetUp::Unchanged => "was there",
        // Of a later library.
        _ => "set up",
    };
    let acl = node.acl.as_ref().map_or_else(|| "the servers do not show its list".to_owned(), ToString::to_string);
    plain(&format!("{}: {done}, {acl}", node.path)) + "\n"
}

//! `lockkeeper init`: sets up the nodes that all clients share.

use lockkeeper::acl::LockAcl;
use lockkeeper::admin::{SetUp, SharedNode};
use lockkeeper_config::settings::Origin;
use serde::Serialize;

use crate::advice::Suggested;
use crate::args::ask::InitArgs;
use crate::commands::show::connect_with;
use crate::exit::{Code, Failure};
use crate::local;
use crate::output::{self, Printer};
use crate::place::Place;
use crate::registers;
use crate::settings::Settings;
use crate::text::plain;

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
pub(crate) async fn init(args: InitArgs, printer: &Printer) -> Result<u8, Failure> {
    let settings = Settings::read_with_list(args.connect, printer)?.whole_servers()?;
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
    let again = Suggested::new(["init", "--acl", &LockAcl::open_to_contend().to_string()]).with(credentials);
    let failure = Failure::new(Code::Mismatch, message).hint("leave it if an administrator wants it so");
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

//! The options of `lockkeeper observe`.

use std::net::SocketAddr;
use std::path::PathBuf;

use lockkeeper_observe::watch::Rule;

use super::connect::ConnectArgs;
use super::values::Completes;
use crate::statuses::help;

/// `lockkeeper observe`.
#[derive(Debug, clap::Args)]
#[command(after_help = help("observe", "\
It needs ZooKeeper 3.6 or later, sees foreign clients too, and changes nothing.", "\
Examples:
  lockkeeper observe --servers zk1:2181,zk2:2181 --journal /var/lib/observe
  lockkeeper observe --alert 'held>1h' --alert gap --alert-command ./page.sh"))]
pub(crate) struct ObserveArgs {
    /// Where to look: a name below /locks, or an absolute path [default: /locks]
    #[arg(add = Completes::Locks)]
    pub prefix: Option<String>,
    /// Serve HTTP here
    ///
    /// It has a web page, /metrics, /state.json, /history.jsonl and /healthz. Port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9750")]
    pub listen: SocketAddr,
    /// Allow an address that other machines can reach; everyone there can read which locks exist and who holds them
    #[arg(long, hide_short_help = true)]
    pub allow_remote: bool,
    /// Accept this name of the machine in HTTP requests, besides addresses and localhost; can be repeated
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    pub host: Vec<String>,
    /// Write what happens into this directory [default: nowhere]
    ///
    /// The file is history.jsonl. With the older ones, it has at most 256 MiB.
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// Raise an alert while this rule holds, as held>1h; can be repeated
    ///
    /// held>1h: a hold is older. waits>10m: a contender waits for longer. changes>10/h: a lock is granted more often. deadlock: contenders
    /// wait for each other in a ring. gap: changes are not seen.
    #[arg(long, value_name = "RULE")]
    pub alert: Vec<Rule>,
    /// Run this command for each alert
    ///
    /// It runs in sh when the rule begins to hold, and not again before it has ceased to. It gets LOCKKEEPER_ALERT_RULE,
    /// LOCKKEEPER_ALERT_SUBJECT and LOCKKEEPER_ALERT_TEXT, and JSON on standard input.
    #[arg(long, value_name = "COMMAND", requires = "alert")]
    pub alert_command: Option<String>,
    /// Maximum locks, and maximum contenders, that are observed; further ones are left out
    #[arg(long, hide_short_help = true, value_name = "NUMBER", default_value_t = 100_000)]
    pub max_locks: usize,
    /// Print messages as JSON
    #[arg(long)]
    pub json: bool,
    /// The place of the locks.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

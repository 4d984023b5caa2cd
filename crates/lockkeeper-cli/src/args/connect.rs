//! The options that name the place of the locks.

use std::path::PathBuf;
use std::time::Duration;

use super::values::{Completes, duration};

/// The place of the locks.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Where the locks are")]
pub(crate) struct ConnectArgs {
    /// Use these ZooKeeper servers, as zk1:2181,zk2:2181/chroot [env: LOCKKEEPER_SERVERS]
    #[arg(long, value_name = "SERVERS")]
    pub servers: Option<String>,
    /// Take the realms from Helix's routing data on these ZooKeeper servers [env: LOCKKEEPER_ROUTING_SERVERS]
    ///
    /// They are those of its metadata store directory. Each command reads the data once, at its start.
    #[arg(long, value_name = "SERVERS", hide_short_help = true, conflicts_with_all = ["servers", "machine"])]
    pub routing_servers: Option<String>,
    /// Create the chroot of the servers, and the nodes above it, if it is missing
    ///
    /// Without this option, a missing chroot is an error (78): most often it is misspelt.
    #[arg(long, hide_short_help = true)]
    pub create_chroot: bool,
    /// Keep the state of this user's own server in this directory [env: LOCKKEEPER_STATE_DIR]
    ///
    /// The server is used if no servers are set. The default is $XDG_STATE_HOME/lockkeeper or ~/.local/state/lockkeeper.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Use the server that all users of this machine share [env: LOCKKEEPER_MACHINE]
    ///
    /// It is a service: lockkeeper serve --machine. DIR is its directory, by default /var/lib/lockkeeper.
    #[arg(long, hide_short_help = true, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = lockkeeper::embedded::MACHINE_DIR, conflicts_with_all = ["servers", "state_dir"])]
    pub machine: Option<PathBuf>,
    /// Ask for this session timeout: after a crash of this process, its locks are free this much later
    /// [env: LOCKKEEPER_SESSION_TIMEOUT]
    ///
    /// If the servers are away for less than a third of it, the command runs on. The default is 30s, and 10s with this user's own
    /// server. If the servers grant another timeout, run reports it.
    #[arg(long, value_name = "DURATION", value_parser = duration, hide_short_help = true)]
    pub session_timeout: Option<Duration>,
    /// Read settings from this TOML file, not from /etc/lockkeeper/config.toml and ~/.config/lockkeeper/config.toml
    /// [env: LOCKKEEPER_CONFIG]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub config: Option<PathBuf>,
    /// Read settings from this Contentserv properties file; may be repeated [env: LOCKKEEPER_PROPERTIES]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub properties: Vec<PathBuf>,
    /// Connect by TLS, and trust servers whose certificates lead to one of these (PEM) [env: LOCKKEEPER_TLS_CA]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_ca: Option<PathBuf>,
    /// Send this certificate, with its chain, to the servers (PEM) [env: LOCKKEEPER_TLS_CERT]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,
    /// Use this key of the certificate (PEM) [env: LOCKKEEPER_TLS_KEY]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_key: Option<PathBuf>,
    /// Authenticate with the lines of this file, such as digest USER:PASSWORD or sasl USER PASSWORD
    /// [env: LOCKKEEPER_AUTH_FILE]
    ///
    /// A file that every user may read is refused. Servers of this machine need no credentials, and refuse the option.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub auth_file: Option<PathBuf>,
    /// Create the nodes of locks with this access list: open, creator-all, creator-all-world-read, or entries SCHEME:ID:PERMS
    /// [env: LOCKKEEPER_ACL]
    ///
    /// The default is open. Servers of this machine refuse the option. PERMS are letters of cdrwa: create, delete, read, write, administrate. Commas separate entries.
    #[arg(long, value_name = "LIST", hide_short_help = true)]
    #[arg(add = Completes::Words(&["open", "creator-all", "creator-all-world-read"]))]
    pub acl: Option<String>,
    /// Treat unknown zookeeper.* keys and unknown variables as errors, not as warnings [env: LOCKKEEPER_STRICT]
    #[arg(long, hide_short_help = true)]
    pub strict: bool,
}

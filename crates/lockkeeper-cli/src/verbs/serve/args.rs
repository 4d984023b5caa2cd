//! The options of `lockkeeper serve`, with the limits and times of the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::value_parser;
use lockkeeper_server::{Config, Words};

use crate::args::values::duration;
use crate::statuses::{Code, Status, Statuses, help};
use crate::verb::Files;

/// The exit statuses of `lockkeeper serve`.
const STATUSES: &[Status] = &[
    (Code::Done, "SIGTERM or SIGINT has stopped it", ""),
    (Code::Usage, "the command line or a setting is wrong", ""),
    (Code::Internal, "it cannot use its directory, disk or address, or it failed", ""),
];

/// Its files.
const FILES: &[(&str, &str)] = &[
    ("~/.local/state/lockkeeper/serve", "the data, without --data and --machine"),
    ("/var/lib/lockkeeper", "the data and the socket, with --machine"),
];

/// `lockkeeper serve`.
#[derive(Debug, clap::Args)]
#[command(add = Statuses(STATUSES), add = Files(FILES), after_help = help(STATUSES, "\
Any ZooKeeper client on this machine can use it. It is one server on one disk, not an ensemble. Stop it with Ctrl-C or SIGTERM: \
everything that was acknowledged is on the disk.", "\
Examples:
  lockkeeper serve
  lockkeeper serve --memory --listen 127.0.0.1:2181
  lockkeeper serve --machine"))]
pub(crate) struct ServeArgs {
    /// Listen here; port 0 takes a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2181")]
    pub listen: SocketAddr,
    /// Keep the data here [default: the state directory's serve/]
    #[arg(long, value_name = "DIR", conflicts_with = "memory")]
    pub data: Option<PathBuf>,
    /// Keep everything in memory: a restart starts empty
    #[arg(long)]
    pub memory: bool,
    /// Serve all users of this machine, on a socket in its directory
    ///
    /// DIR is the server's directory, by default /var/lib/lockkeeper. Users who may enter it may use the server.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = lockkeeper::embedded::MACHINE_DIR)]
    #[arg(conflicts_with_all = ["listen", "data", "memory", "allow_remote", "tls_cert", "accounts", "secret_file", "state_dir"])]
    pub machine: Option<PathBuf>,
    /// Allow an address that other machines can reach; without TLS, everyone on the way can read and write
    #[arg(long)]
    pub allow_remote: bool,
    /// Accept TLS only, with this certificate and its chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Use this key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Reject clients without a certificate that leads to one of these (PEM); access lists name such a client x509:SUBJECT
    #[arg(long, hide_short_help = true, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Serve HTTP for operators here: /health, /metrics and /commands [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin: Option<SocketAddr>,
    /// Accept this name of the machine in requests for operators' HTTP, besides addresses and localhost; can be repeated
    #[arg(long, hide_short_help = true, value_name = "NAME", requires = "admin")]
    pub admin_host: Vec<String>,
    /// Answer only these four-letter words, as stat,dump, or all [default: ruok,srvr,isro,envi,mntr,conf]
    #[arg(long, hide_short_help = true, value_name = "LIST", value_parser = words)]
    pub words: Option<Words>,
    /// Serve only clients that present the secret in this file: 16 to 1024 bytes on one line
    ///
    /// A client presents it in its --auth-file, in a line of the word lockkeeper and the secret.
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Give more rights to the accounts of this file: lines `super USER:HASH`, which passes every access list, and
    /// `sasl USER:PASSWORD`
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub accounts: Option<PathBuf>,
    /// In a new data directory, start transactions after this one, so that fencing tokens exceed those of a replaced server
    #[arg(long, hide_short_help = true, value_name = "ZXID", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    pub first_zxid: i64,
    /// Keep the default data directory here [env: LOCKKEEPER_STATE_DIR]
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Limits of what clients can make the server store and do.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Limits and times of `lockkeeper serve`.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Maximum length of a frame, and so of data: bytes, or 512K, 4M [default: 1048575, as ZooKeeper]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = frame)]
    pub max_frame: Option<usize>,
    /// Maximum nodes; each takes about 400 bytes of memory besides its data [default: 10000000]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = value_parser!(u64).range(4..))]
    pub max_nodes: Option<u64>,
    /// Maximum data, paths, access lists, watches, identities and sessions together: bytes, or 512M, 4G [default: 1G]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = size)]
    pub max_data: Option<u64>,
    /// Maximum length of a new node's path: bytes, or 8K [default: 4K]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = frame)]
    pub max_path: Option<usize>,
    /// Maximum names in a new node's path [default: 64]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = value_parser!(u64).range(8..))]
    pub max_depth: Option<u64>,
    /// Maximum ephemeral nodes of one session; they end in one transaction [default: 20000]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = value_parser!(u64).range(1..))]
    pub max_ephemerals: Option<u64>,
    /// Maximum length of one answer: bytes, or 16M, 128M [default: 64M, or --max-frame if that is more]
    #[arg(long, hide_short_help = true, value_name = "SIZE", value_parser = frame)]
    pub max_answer: Option<usize>,
    /// Maximum watches [default: 10000000]
    #[arg(long, hide_short_help = true, value_name = "COUNT")]
    pub max_watches: Option<usize>,
    /// Maximum sessions; further clients are rejected [default: 1000000]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = value_parser!(u64).range(1..))]
    pub max_sessions: Option<u64>,
    /// Maximum open connections; excess ones are closed [default: 65536, or what the limit of open files allows]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = value_parser!(u64).range(1..))]
    pub max_connections: Option<u64>,
    /// Maximum open connections from one address; excess ones are closed [default: as --max-connections]
    #[arg(long, hide_short_help = true, value_name = "COUNT", value_parser = value_parser!(u64).range(1..))]
    pub max_connections_per_address: Option<u64>,
    /// Enforce the hard limits of ZooKeeper's quotas; without this option they are only logged
    #[arg(long, hide_short_help = true)]
    pub enforce_quotas: bool,
    /// Expire sessions at multiples of this time [default: 500ms]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = some_time)]
    pub tick: Option<Duration>,
    /// Minimum session timeout [default: 1s, or two ticks]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = some_time)]
    pub min_session_timeout: Option<Duration>,
    /// Maximum session timeout [default: 1m, or 120 ticks]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = some_time)]
    pub max_session_timeout: Option<Duration>,
    /// Remove empty containers and expired TTL nodes this often [default: 1m]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = some_time)]
    pub container_check: Option<Duration>,
    /// Keep a container that never had a child for this long [default: 5m]
    #[arg(long, hide_short_help = true, value_name = "DURATION", value_parser = duration)]
    pub container_unused: Option<Duration>,
}

impl LimitArgs {
    /// Returns `config` with the values that were given.
    pub(crate) fn apply(&self, mut config: Config) -> Config {
        let mut limits = config.limits;
        let count = |given: Option<u64>, default| given.map_or(default, |n| usize::try_from(n).unwrap_or(usize::MAX));
        limits.nodes = count(self.max_nodes, limits.nodes);
        limits.data_bytes = self.max_data.unwrap_or(limits.data_bytes);
        limits.path_bytes = self.max_path.unwrap_or(limits.path_bytes);
        limits.path_depth = count(self.max_depth, limits.path_depth);
        limits.ephemerals = count(self.max_ephemerals, limits.ephemerals);
        let longest = limits.answer_bytes.max(self.max_frame.unwrap_or(config.max_frame));
        limits.answer_bytes = self.max_answer.unwrap_or(longest);
        limits.watches = self.max_watches.unwrap_or(limits.watches);
        limits.sessions = count(self.max_sessions, limits.sessions);
        limits.connections = count(self.max_connections, limits.connections);
        limits.connections_per_address = count(self.max_connections_per_address, limits.connections_per_address);
        if let Some(tick) = self.tick {
            config = config.with_tick(tick).with_session_timeouts(tick * 2..=tick.saturating_mul(120));
        }
        if let Some(bounds) = config.session_timeouts.clone() {
            let least = self.min_session_timeout.unwrap_or(*bounds.start());
            let most = self.max_session_timeout.unwrap_or(*bounds.end());
            config = config.with_session_timeouts(least..=most.max(least));
        }
        config.container_check = self.container_check.unwrap_or(config.container_check);
        config.container_unused = self.container_unused.unwrap_or(config.container_unused);
        config.max_frame = self.max_frame.unwrap_or(config.max_frame);
        config.with_limits(limits).enforce_quotas(self.enforce_quotas)
    }
}

fn words(text: &str) -> Result<Words, String> {
    text.parse()
}

/// Parses a time from 1 ms to a year.
fn some_time(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(366 * 24 * 3_600);
    match duration(text)? {
        time if time < Duration::from_millis(1) => Err("it must be at least 1ms".to_owned()),
        time if time > MOST => Err("it must be at most a year".to_owned()),
        time => Ok(time),
    }
}

/// Parses a number of bytes, with K, M or G for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let units = [('K', 10), ('M', 20), ('G', 30)];
    let unit = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let number: Option<u64> = digits.parse().ok();
    number.and_then(|number| number.checked_mul(1 << shift)).ok_or_else(|| "write bytes, or 512K, 64M, 2G".to_owned())
}

/// Parses the size of a frame, which must hold a path and an access list. Its length is a signed number of 32 bits.
fn frame(text: &str) -> Result<usize, String> {
    let size = size(text)?;
    if (1 << 10..=1 << 30).contains(&size) {
        Ok(usize::try_from(size).expect("at most 2^30"))
    } else {
        Err("it must be between 1K and 1G".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_powers_of_1024() {
        for (text, bytes) in [("0", 0), ("17", 17), ("2K", 2_048), ("3M", 3 << 20), ("4G", 4 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "1T", "-1", "1.5G", "2KK", "99999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert!(frame("1023").is_err() && frame("2G").is_err() && frame("4M") == Ok(4 << 20));
        assert!(some_time("0s").is_err() && some_time("9999y").is_err() && some_time("1ms").is_ok());
    }

    #[test]
    fn a_tick_moves_the_session_timeouts_unless_they_are_given() {
        let config = |limits: LimitArgs| limits.apply(lockkeeper::embedded::server_config()).session_timeouts.unwrap();
        let seconds = |from, to| Duration::from_secs(from)..=Duration::from_secs(to);
        assert_eq!(config(LimitArgs::default()), seconds(1, 60));
        let tick = Some(Duration::from_secs(2));
        assert_eq!(config(LimitArgs { tick, ..LimitArgs::default() }), seconds(4, 240));
        let least = Some(Duration::from_secs(300));
        assert_eq!(config(LimitArgs { tick, min_session_timeout: least, ..LimitArgs::default() }), seconds(300, 300));
    }
}

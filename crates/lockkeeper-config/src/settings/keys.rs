//! The settings: a row for each, with its name in each layer, and what people read about it.
//!
//! The keys of files, the variables, the flags of the command, `lockkeeper config` and the page about settings come from these rows. To add
//! a setting, add its row, its field (in `types.rs`, `jobs.rs` or `kafka.rs`) and the reading of its value (in `values.rs`, or beside the
//! field). A flag that only `run` has is an option of `run`, which reads the setting, as `--no-history` does.

/// What is known of a setting but its value.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Row {
    /// Its name in Lockkeeper's own files; the part before a dot is the table.
    pub name: &'static str,
    /// Its name in Contentserv's files, if it has one.
    pub property: Option<&'static str>,
    /// What its value is: a word such as `DURATION`.
    pub value: &'static str,
    /// Where it counts.
    pub counts: &'static str,
    /// What it is if no layer has it.
    pub default: &'static str,
    /// What it is then with a properties file; empty if that makes no difference.
    pub contentserv: &'static str,
    /// The flag of the command, if it has one in every verb.
    pub flag: Option<Flag>,
}

/// A flag of the command that sets a setting.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Flag {
    /// Its name, with the dashes.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
    /// More about it; may be empty.
    pub more: &'static str,
    /// Whether the short help leaves it out.
    pub hidden: bool,
}

/// The kind of value of a switch.
pub(super) const SWITCH: &str = "true or false";

/// Returns a row of a setting with no default, no property and no flag.
const fn row(name: &'static str, value: &'static str, counts: &'static str) -> Row {
    Row { name, property: None, value, counts, default: "none", contentserv: "", flag: None }
}

impl Row {
    /// Whether its value is true or false, so that its flag has none.
    pub fn is_switch(&self) -> bool {
        self.value == SWITCH
    }

    /// Whether its value is the path of a file or of a directory.
    pub fn is_path(&self) -> bool {
        matches!(self.value, "FILE" | "DIR")
    }

    const fn property(self, name: &'static str) -> Self {
        Row { property: Some(name), ..self }
    }

    const fn default(self, default: &'static str, contentserv: &'static str) -> Self {
        Row { default, contentserv, ..self }
    }

    const fn flag(self, name: &'static str, hidden: bool) -> Self {
        Row { flag: Some(Flag { name, help: "", more: "", hidden }), ..self }
    }

    const fn help(mut self, help: &'static str) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.help = help;
        }
        self
    }

    const fn more(mut self, more: &'static str) -> Self {
        if let Some(flag) = &mut self.flag {
            flag.more = more;
        }
        self
    }
}

/// Makes the keys from the rows.
macro_rules! settings {
    ($(#[doc = $is:literal] $key:ident = $row:expr;)+) => {
        /// A setting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Key {
            $(#[doc = $is] $key,)+
        }

        /// Each setting with what it is, in the order of [`Key::ALL`].
        const ROWS: &[(&str, Row)] = &[$(($is, $row),)+];

        impl Key {
            /// All settings, in the order of their listing.
            pub const ALL: &[Key] = &[$(Key::$key,)+];
        }
    };
}

settings! {
    /// The servers of the ensemble.
    Servers = row("servers", "SERVERS", "everywhere").property("zookeeper.servers")
        .default("none: this user's server", "`localhost:2181`").flag("--servers", false)
        .help("Use these ZooKeeper servers, as zk1:2181,zk2:2181/chroot");
    /// The servers that have Helix's routing data.
    RoutingServers = row("routing_servers", "SERVERS", "everywhere").flag("--routing-servers", true)
        .help("Take the realms from Helix's routing data on these ZooKeeper servers")
        .more("They are those of its metadata store directory. Each command reads the data once, at its start.");
    /// The session timeout.
    SessionTimeout = row("session_timeout", "DURATION", "everywhere").property("zookeeper.session.timeout")
        .default("`30s`; `10s` with this user's own server", "5000").flag("--session-timeout", true)
        .help("Ask for this session timeout: after a crash of this process, its locks are free this much later")
        .more("If the servers are away for less than a third of it, the command runs on. The default is 30s, and 10s with this user's \
             own server. If the servers grant another timeout, run reports it.");
    /// How often a lost or missing connection is retried.
    ConnectionRetry = row("connection.retry", "COUNT", "everywhere").property("zookeeper.connection.retry")
        .default("tries for 10 s; while waiting in a queue, as long as the session may live, then on in a new one", "5");
    /// The pause between these retries.
    ConnectionDelay = row("connection.delay", "DURATION", "everywhere").property("zookeeper.connection.delay").default("`1s`", "1000");
    /// The letters of the foreground's nodes.
    ForegroundPrefix = row("foreground.prefix", "CLASS", "run --foreground").property("zookeeper.foreground.lock.prefix")
        .default("`A`", "`A`");
    /// How long a foreground request waits.
    ForegroundTimeout = row("foreground.timeout", "DURATION", "run --foreground").property("zookeeper.foreground.task.timeout")
        .default("waits", "2000");
    /// The letters of the background's nodes.
    BackgroundPrefix = row("background.prefix", "CLASS", "run --background").property("zookeeper.background.lock.prefix")
        .default("`B`", "`B`");
    /// How long a background request waits.
    BackgroundTimeout = row("background.timeout", "DURATION", "run --background").property("zookeeper.background.task.timeout")
        .default("waits", "2000");
    /// Whether the nodes of objects are containers.
    MonitorContainer = row("monitor_container", SWITCH, "run with a class").property("zookeeper.monitor.container")
        .default("false", "false");
    /// How often background work that was not granted its lock is retried.
    Retries = row("background.retries", "COUNT", "run --background").property("elastic.request.retry.count").default("0", "3");
    /// The first pause between these retries; later ones are longer.
    RetryDelay = row("background.retry_delay", "DURATION", "run --background").default("`1s`", "`1s`");
    /// The place for work that was never granted its lock.
    DeadLetter = row("background.dead_letter", "WHERE", "run --background").default("none", "none");
    /// How the Kafka brokers of dead letters are reached: with TLS, with a login, with both or with neither.
    KafkaSecurityProtocol = row("kafka.security_protocol", "WORD", "dead letters in Kafka").default("`plaintext`", "`plaintext`");
    /// The file with the certificate authorities that the brokers' certificates are checked with.
    KafkaCa = row("kafka.ca", "FILE", "dead letters in Kafka").default("with TLS: this machine's authorities", "");
    /// The file with the certificate that the brokers are shown.
    KafkaCert = row("kafka.cert", "FILE", "dead letters in Kafka");
    /// The file with its key.
    KafkaKey = row("kafka.key", "FILE", "dead letters in Kafka");
    /// How the login proves the password.
    KafkaSaslMechanism = row("kafka.sasl_mechanism", "WORD", "dead letters in Kafka");
    /// The user of the login.
    KafkaUser = row("kafka.user", "TEXT", "dead letters in Kafka");
    /// The file with the password.
    KafkaPasswordFile = row("kafka.password_file", "FILE", "dead letters in Kafka");
    /// The time zone of the calendar of jobs.
    JobsTimeZone = row("jobs.time_zone", "ZONE", "run with a slot").default("`UTC`", "`UTC`");
    /// What follows a run of a job that failed.
    JobsOnFailure = row("jobs.on_failure", "RULE", "run with a slot").default("`next`", "`next`");
    /// What follows a run of a job whose host crashed.
    JobsOnCrash = row("jobs.on_crash", "RULE", "run with a slot").default("`next`", "`next`");
    /// How many missed slots of a job are run.
    JobsCatchUp = row("jobs.catch_up", "COUNT", "run with a slot").default("0", "0");
    /// What happens to a job while no server is reachable.
    JobsIfUnreachable = row("jobs.if_unreachable", "WHAT", "run with a slot").default("`skip`", "`skip`");
    /// How much of a job's standard error is kept.
    JobsKeepOutput = row("jobs.keep_output", "SIZE", "run with a slot").default("0: none", "0");
    /// How many runs of a job are kept.
    JobsKeepRuns = row("jobs.keep_runs", "COUNT", "run with a slot").default("100", "100");
    /// How long after its last success a job is late.
    JobsLate = row("jobs.late", "DURATION", "jobs, doctor").default("none: a whole slot without a run", "none");
    /// The file with the trusted certificate authorities for TLS.
    TlsCa = row("tls.ca", "FILE", "servers of an ensemble").default("none: plain TCP", "").flag("--tls-ca", true)
        .help("Connect by TLS, and trust servers whose certificates lead to one of these (PEM)");
    /// The file with the client certificate for TLS.
    TlsCert = row("tls.cert", "FILE", "servers of an ensemble").flag("--tls-cert", true)
        .help("Send this certificate, with its chain, to the servers (PEM)");
    /// The file with its key.
    TlsKey = row("tls.key", "FILE", "servers of an ensemble").flag("--tls-key", true)
        .help("Use this key of the certificate (PEM)");
    /// The file with the credentials.
    AuthFile = row("auth_file", "FILE", "servers of an ensemble").flag("--auth-file", true)
        .help("Authenticate with the lines of this file, such as digest USER:PASSWORD or sasl USER PASSWORD")
        .more("A file that every user may read is refused. Servers of this machine need no credentials, and refuse the option.");
    /// The access list of new nodes.
    Acl = row("acl", "LIST", "servers of an ensemble").default("`open`", "").flag("--acl", true)
        .help("Create the nodes of locks with this access list: open, creator-all, creator-all-world-read, or entries SCHEME:ID:PERMS")
        .more("The default is open. Servers of this machine refuse the option. PERMS are letters of cdrwa: create, delete, read, \
             write, administrate. Commas separate entries.");
    /// The directory of this user's own server.
    StateDir = row("state_dir", "DIR", "this user's server").default("[this user's server](server.md#this-users-server)", "").flag("--state-dir", false)
        .help("Keep the state of this user's own server in this directory")
        .more("The server is used if no servers are set. The default is $XDG_STATE_HOME/lockkeeper or ~/.local/state/lockkeeper.");
    /// The directory of the server that all users of this machine share.
    Machine = row("machine", "DIR", "this machine").default("none: this user's own server", "").flag("--machine", true)
        .help("Use the server that all users of this machine share")
        .more("It is a service: lockkeeper serve --machine. DIR is its directory, by default /var/lib/lockkeeper.");
    /// Whether holds of commands, and their refusals, are recorded.
    History = row("history", SWITCH, "run, lead").default("true", "true");
    /// Whether unknown keys are errors.
    Strict = row("strict", SWITCH, "everywhere").default("false", "false").flag("--strict", true)
        .help("Treat unknown zookeeper.* keys and unknown variables as errors, not as warnings");
}

impl Key {
    /// Returns its row.
    pub const fn row(self) -> &'static Row {
        &ROWS[self as usize].1
    }

    /// Returns what it is, in a sentence.
    pub fn is(self) -> &'static str {
        ROWS[self as usize].0.trim()
    }

    /// Returns its name in Lockkeeper's own files; the part before a dot is the table.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns its name in Contentserv's files, if it has one.
    pub const fn property(self) -> Option<&'static str> {
        self.row().property
    }

    /// Returns the name of its flag, if it has one.
    pub fn flag(self) -> Option<&'static str> {
        Some(self.row().flag?.name)
    }

    /// Returns its environment variable: the name in capitals, with `_` instead of the dot.
    pub fn variable(self) -> String {
        format!("LOCKKEEPER_{}", self.name().replace('.', "_").to_uppercase())
    }
}

/// The known name that was probably meant, if one is similar enough.
pub(super) fn meant<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |name: &&str| strsim::jaro_winkler(written, name);
    let best = known.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&best) > LIKE).then_some(best)
}

/// The similarity from which two names are probably the same, misspelt; 1 is equality.
const LIKE: f64 = 0.85;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_and_a_strange_one_is_not() {
        let names = || Key::ALL.iter().copied().map(Key::name);
        assert_eq!(meant("sever", names()), Some("servers"));
        assert_eq!(meant("session-timeout", names()), Some("session_timeout"));
        assert_eq!(meant("colour", names()), None);
    }

    #[test]
    fn variables_are_named_after_the_keys() {
        assert_eq!(Key::SessionTimeout.variable(), "LOCKKEEPER_SESSION_TIMEOUT");
        assert_eq!(Key::Retries.variable(), "LOCKKEEPER_BACKGROUND_RETRIES");
    }
}

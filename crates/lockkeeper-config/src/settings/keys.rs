//! The names of every setting in each layer.

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Key {
    /// The servers of the ensemble.
    Servers,
    /// The servers that have Helix's routing data.
    RoutingServers,
    /// The session timeout.
    SessionTimeout,
    /// How often a lost or missing connection is retried.
    ConnectionRetry,
    /// The pause between these retries.
    ConnectionDelay,
    /// The letters of the foreground's nodes.
    ForegroundPrefix,
    /// How long a foreground request waits.
    ForegroundTimeout,
    /// The letters of the background's nodes.
    BackgroundPrefix,
    /// How long a background request waits.
    BackgroundTimeout,
    /// Whether the nodes of objects are containers.
    MonitorContainer,
    /// How often background work that was not granted its lock is retried.
    Retries,
    /// The first pause between these retries; later ones are longer.
    RetryDelay,
    /// The place for work that was never granted its lock.
    DeadLetter,
    /// How the Kafka brokers of dead letters are reached: with TLS, with a login, with both or with neither.
    KafkaSecurityProtocol,
    /// The file with the certificate authorities that the brokers' certificates are checked with.
    KafkaCa,
    /// The file with the certificate that the brokers are shown.
    KafkaCert,
    /// The file with its key.
    KafkaKey,
    /// How the login proves the password.
    KafkaSaslMechanism,
    /// The user of the login.
    KafkaUser,
    /// The file with the password.
    KafkaPasswordFile,
    /// The time zone of the calendar of jobs.
    JobsTimeZone,
    /// What follows a run of a job that failed.
    JobsOnFailure,
    /// What follows a run of a job whose host crashed.
    JobsOnCrash,
    /// How many missed slots of a job are run.
    JobsCatchUp,
    /// What happens to a job while no server is reachable.
    JobsIfUnreachable,
    /// How much of a job's standard error is kept.
    JobsKeepOutput,
    /// How many runs of a job are kept.
    JobsKeepRuns,
    /// How long after its last success a job is late.
    JobsLate,
    /// The file with the trusted certificate authorities for TLS.
    TlsCa,
    /// The file with the client certificate for TLS.
    TlsCert,
    /// The file with its key.
    TlsKey,
    /// The file with the credentials.
    AuthFile,
    /// The access list of new nodes.
    Acl,
    /// The directory of this user's own server.
    StateDir,
    /// The directory of the server that all users of this machine share.
    Machine,
    /// Whether holds of commands, and their refusals, are recorded.
    History,
    /// Whether unknown keys are errors.
    Strict,
}

impl Key {
    /// All settings, in the order of their listing.
    pub const ALL: [Key; 37] = [
        Key::Servers,
        Key::RoutingServers,
        Key::SessionTimeout,
        Key::ConnectionRetry,
        Key::ConnectionDelay,
        Key::ForegroundPrefix,
        Key::ForegroundTimeout,
        Key::BackgroundPrefix,
        Key::BackgroundTimeout,
        Key::MonitorContainer,
        Key::Retries,
        Key::RetryDelay,
        Key::DeadLetter,
        Key::KafkaSecurityProtocol,
        Key::KafkaCa,
        Key::KafkaCert,
        Key::KafkaKey,
        Key::KafkaSaslMechanism,
        Key::KafkaUser,
        Key::KafkaPasswordFile,
        Key::JobsTimeZone,
        Key::JobsOnFailure,
        Key::JobsOnCrash,
        Key::JobsCatchUp,
        Key::JobsIfUnreachable,
        Key::JobsKeepOutput,
        Key::JobsKeepRuns,
        Key::JobsLate,
        Key::TlsCa,
        Key::TlsCert,
        Key::TlsKey,
        Key::AuthFile,
        Key::Acl,
        Key::StateDir,
        Key::Machine,
        Key::History,
        Key::Strict,
    ];

    /// Returns its name in Lockkeeper's own files; the part before a dot is the table.
    pub const fn name(self) -> &'static str {
        match self {
            Key::Servers => "servers",
            Key::RoutingServers => "routing_servers",
            Key::SessionTimeout => "session_timeout",
            Key::ConnectionRetry => "connection.retry",
            Key::ConnectionDelay => "connection.delay",
            Key::ForegroundPrefix => "foreground.prefix",
            Key::ForegroundTimeout => "foreground.timeout",
            Key::BackgroundPrefix => "background.prefix",
            Key::BackgroundTimeout => "background.timeout",
            Key::MonitorContainer => "monitor_container",
            Key::Retries => "background.retries",
            Key::RetryDelay => "background.retry_delay",
            Key::DeadLetter => "background.dead_letter",
            Key::KafkaSecurityProtocol => "kafka.security_protocol",
            Key::KafkaCa => "kafka.ca",
            Key::KafkaCert => "kafka.cert",
            Key::KafkaKey => "kafka.key",
            Key::KafkaSaslMechanism => "kafka.sasl_mechanism",
            Key::KafkaUser => "kafka.user",
            Key::KafkaPasswordFile => "kafka.password_file",
            Key::JobsTimeZone => "jobs.time_zone",
            Key::JobsOnFailure => "jobs.on_failure",
            Key::JobsOnCrash => "jobs.on_crash",
            Key::JobsCatchUp => "jobs.catch_up",
            Key::JobsIfUnreachable => "jobs.if_unreachable",
            Key::JobsKeepOutput => "jobs.keep_output",
            Key::JobsKeepRuns => "jobs.keep_runs",
            Key::JobsLate => "jobs.late",
            Key::TlsCa => "tls.ca",
            Key::TlsCert => "tls.cert",
            Key::TlsKey => "tls.key",
            Key::AuthFile => "auth_file",
            Key::Acl => "acl",
            Key::StateDir => "state_dir",
            Key::Machine => "machine",
            Key::History => "history",
            Key::Strict => "strict",
        }
    }

    /// Returns its name in Contentserv's files, if it has one.
    pub const fn property(self) -> Option<&'static str> {
        match self {
            Key::Servers => Some("zookeeper.servers"),
            Key::SessionTimeout => Some("zookeeper.session.timeout"),
            Key::ConnectionRetry => Some("zookeeper.connection.retry"),
            Key::ConnectionDelay => Some("zookeeper.connection.delay"),
            Key::ForegroundPrefix => Some("zookeeper.foreground.lock.prefix"),
            Key::ForegroundTimeout => Some("zookeeper.foreground.task.timeout"),
            Key::BackgroundPrefix => Some("zookeeper.background.lock.prefix"),
            Key::BackgroundTimeout => Some("zookeeper.background.task.timeout"),
            // Not in Contentserv's document, but beside its keys.
            Key::MonitorContainer => Some("zookeeper.monitor.container"),
            Key::Retries => Some("elastic.request.retry.count"),
            Key::RoutingServers | Key::RetryDelay | Key::DeadLetter => None,
            Key::KafkaSecurityProtocol | Key::KafkaCa | Key::KafkaCert | Key::KafkaKey => None,
            Key::KafkaSaslMechanism | Key::KafkaUser | Key::KafkaPasswordFile => None,
            Key::JobsTimeZone | Key::JobsOnFailure | Key::JobsOnCrash | Key::JobsCatchUp => None,
            Key::JobsIfUnreachable | Key::JobsKeepOutput | Key::JobsKeepRuns | Key::JobsLate => None,
            Key::TlsCa | Key::TlsCert | Key::TlsKey => None,
            Key::AuthFile | Key::Acl => None,
            Key::StateDir | Key::Machine | Key::History | Key::Strict => None,
        }
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
        let names = Key::ALL.map(Key::name);
        assert_eq!(meant("sever", names), Some("servers"));
        assert_eq!(meant("session-timeout", names), Some("session_timeout"));
        assert_eq!(meant("colour", names), None);
    }

    #[test]
    fn variables_are_named_after_the_keys() {
        assert_eq!(Key::SessionTimeout.variable(), "LOCKKEEPER_SESSION_TIMEOUT");
        assert_eq!(Key::Retries.variable(), "LOCKKEEPER_BACKGROUND_RETRIES");
    }
}

//! How Apache servers are set up.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use super::{Distribution, Host, Ports, WrongClock, sasl};

/// The setup of servers. The defaults are for tests: short ticks, so that sessions expire soon.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(super) tick: Duration,
    pub(super) sessions: Option<(Duration, Duration)>,
    pub(super) config: Vec<(String, String)>,
    pub(super) properties: Vec<(String, String)>,
    pub(super) sasl: Vec<(String, String)>,
    pub(super) distribution: Option<Distribution>,
    pub(super) heap_mib: Option<u32>,
    pub(super) places: Vec<Host>,
    pub(super) disk: Option<u64>,
    pub(super) clock: Option<WrongClock>,
    pub(super) lag: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(500),
            sessions: None,
            config: Vec::new(),
            properties: Vec::new(),
            sasl: Vec::new(),
            distribution: None,
            heap_mib: None,
            places: Vec::new(),
            disk: None,
            clock: None,
            lag: Duration::ZERO,
        }
    }
}

impl Options {
    /// Sets the tick, by default 500 ms: sessions expire in steps of it.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Sets the shortest and the longest session timeout; the defaults are two ticks and two minutes.
    pub fn session_timeouts(mut self, shortest: Duration, longest: Duration) -> Self {
        self.sessions = Some((shortest, longest));
        self
    }

    /// Adds a line to `zoo.cfg`; it overrides our line with the same key.
    pub fn config(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.push((key.into(), value.into()));
        self
    }

    /// Adds a Java system property, for instance `znode.container.checkIntervalMs`.
    pub fn property(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((key.into(), value.into()));
        self
    }

    /// Adds a user with a password that clients can prove by SASL DIGEST-MD5.
    pub fn sasl_user(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.sasl.push((user.into(), password.into()));
        self
    }

    /// Sets the ZooKeeper to run; the default is the result of [`Distribution::find`].
    pub fn distribution(mut self, distribution: Distribution) -> Self {
        self.distribution = Some(distribution);
        self
    }

    /// Lets Java choose its compiler and collector, and gives it this much memory: slower to start, fastest when warm.
    pub fn for_speed(mut self, heap_mib: u32) -> Self {
        self.heap_mib = Some(heap_mib);
        self
    }

    /// Sets where the servers run, in their order; the default is loopback.
    pub fn places(mut self, places: Vec<Host>) -> Self {
        self.places = places;
        self
    }

    /// Gives each server a file system of its own of this many bytes, in memory, for its data; needs root.
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk = Some(bytes);
        self
    }

    /// Sets the servers' wall clock this many seconds ahead of the machine's, or behind it.
    pub fn clock_off(mut self, seconds: i64) -> Self {
        self.clock = Some(WrongClock::off(seconds));
        self
    }

    /// Delays what the first followers of an ensemble on loopback receive: for the first one by this much, for each
    /// later one by half the delay of the one before it. A client that reads there reads stale data until it syncs.
    pub fn lag(mut self, lag: Duration) -> Self {
        self.lag = lag;
        self
    }

    pub(super) fn place(&self, server: usize) -> Host {
        self.places.get(server).cloned().unwrap_or_else(Host::loopback)
    }

    pub(super) fn zoo_cfg(&self, dir: &Path, ports: Ports, ip: Ipv4Addr) -> String {
        let (shortest, longest) = self.sessions.unwrap_or((self.tick * 2, Duration::from_secs(120)));
        let mut lines: BTreeMap<&str, String> = BTreeMap::from([
            ("tickTime", self.tick.as_millis().to_string()),
            ("minSessionTimeout", shortest.as_millis().to_string()),
            ("maxSessionTimeout", longest.as_millis().to_string()),
            ("dataDir", dir.join("data").display().to_string()),
            ("clientPort", ports.client.to_string()),
            ("clientPortAddress", ip.to_string()),
            ("maxClientCnxns", "0".into()),
            ("admin.enableServer", "false".into()),
            ("4lw.commands.whitelist", "*".into()),
            ("extendedTypesEnabled", "true".into()),
            // In ticks: the limits for a starting server, and for a running one with a silent leader.
            ("initLimit", "40".into()),
            ("syncLimit", "4".into()),
        ]);
        lines.extend(self.config.iter().map(|(key, value)| (key.as_str(), value.clone())));
        lines.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
    }

    pub(super) fn java_flags(&self, dir: &Path) -> Vec<String> {
        // Tests start servers often and give them little work. Measured from start to the first answer on two cores:
        // 420 ms with Java's own choices; 250 ms with the plain collector and the quick compiler alone, which also need
        // 8 MB less.
        let quick = "-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.awt.headless=true";
        let mut flags: Vec<String> = match self.heap_mib {
            Some(mib) => vec![format!("-Xmx{mib}m"), "-Djava.awt.headless=true".to_owned()],
            None => quick.split(' ').map(String::from).collect(),
        };
        let logback = dir.join("logback.xml").display().to_string();
        let own = [
            ("org.slf4j.simpleLogger.defaultLogLevel", "warn"),
            ("org.slf4j.simpleLogger.showDateTime", "true"),
            ("org.slf4j.simpleLogger.dateTimeFormat", "HH:mm:ss.SSS"),
            ("logback.configurationFile", &logback),
            ("zookeeper.extendedTypesEnabled", "true"),
        ];
        flags.extend(own.iter().map(|(key, value)| format!("-D{key}={value}")));
        if !self.sasl.is_empty() {
            flags.extend(sasl::properties(dir).iter().map(|(key, value)| format!("-D{key}={value}")));
        }
        flags.extend(self.properties.iter().map(|(key, value)| format!("-D{key}={value}")));
        flags
    }
}

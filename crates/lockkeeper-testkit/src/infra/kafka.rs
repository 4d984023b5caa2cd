//! A Kafka broker on demand: one process that is broker and controller (KRaft), on free loopback ports.
//!
//! The jars come from Maven; `cargo xtask` fetches them and sets their class path. Nothing here downloads anything. No broker
//! outlives the process that started it or leaves anything on disk.

use std::env;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::infra::process::{POLL, Server, free_ports, refused, tail};

/// The variable with the class path of the jars of `interop/kafka`, dependencies included.
pub const ENV_JARS: &str = "LOCKKEEPER_KAFKA_JARS";

/// The identity of every cluster made here: no test joins two of them.
const CLUSTER: &str = "bG9ja2tlZXBlci10ZXN0cw";

/// Half of what Kafka's scripts give a broker: it stores a few thousand small letters.
const HEAP: &str = "-Xmx384m";

/// Time limit for a broker to serve; measured on two cores: 3 s.
const START: Duration = Duration::from_secs(120);

/// A running broker. Dropping it stops it and removes its data.
///
/// Every operation blocks for as long as the broker takes.
#[derive(Debug)]
pub struct Broker {
    // Before the directory: fields are dropped in this order, so the server ends before its data is removed.
    server: Server,
    _dir: TempDir,
    jars: String,
    /// The listeners with security, if it has them.
    secured: Option<SecuredPorts>,
}

/// The certificates of a broker with security, all PEM.
#[derive(Debug)]
pub struct Certificates<'a> {
    /// The authority that the broker checks clients with.
    pub authority: &'a str,
    /// The broker's own certificate, for 127.0.0.1.
    pub certificate: &'a str,
    /// Its key, as PKCS#8.
    pub key: &'a str,
}

/// The ports of the listeners with security.
#[derive(Clone, Copy, Debug)]
struct SecuredPorts {
    tls: u16,
    sasl_tls: u16,
    sasl: u16,
}

/// The user that can log in to a broker with security.
pub const USER: &str = "letters";

pub const PASSWORD: &str = "pass word-1";

impl Broker {
    /// Starts an empty broker, and waits until it listens.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// Starts an empty broker that also listens with TLS (clients must have a certificate of the authority), with a login over TLS, and
    /// with a login without TLS. [`USER`] can log in with SCRAM-SHA-256, SCRAM-SHA-512 and, over TLS, PLAIN.
    pub fn start_secured(certificates: &Certificates<'_>) -> Result<Self> {
        Self::start_with(Some(certificates))
    }

    fn start_with(certificates: Option<&Certificates<'_>>) -> Result<Self> {
        let jars = env::var(ENV_JARS).ok().filter(|jars| !jars.is_empty());
        let jars = jars.context("no jars in LOCKKEEPER_KAFKA_JARS: run `cargo xtask interop kafka`")?;
        let [port, controller, tls, sasl_tls, sasl] = free_ports()?;
        let dir = tempfile::Builder::new().prefix("lockkeeper-kafka-").tempdir()?;
        let home = dir.path().join("0");
        fs::create_dir(&home).map_err(refused("creating", &home))?;
        fs::write(home.join("log4j2.properties"), LOG4J2)?;
        let data = home.join("data").display().to_string();
        let secured = certificates.map(|_| SecuredPorts { tls, sasl_tls, sasl });
        if let Some(Certificates { authority, certificate, key }) = certificates {
            fs::write(home.join("authority.pem"), authority)?;
            fs::write(home.join("broker.pem"), format!("{key}{certificate}"))?;
        }
        fs::write(home.join("server.properties"), properties(port, controller, secured, &data))?;
        let broker = Broker { server: Server::new(home, port), _dir: dir, jars, secured };
        let mut format = broker.java();
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "server.properties"]);
        if secured.is_some() {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                format.args(["--add-scram", &format!("{mechanism}=[name={USER},password={PASSWORD}]")]);
            }
        }
        let formatted = format.output().context("running java")?;
        if !formatted.status.success() {
            let said = [formatted.stdout, formatted.stderr].concat();
            bail!("the broker has no storage ({}): {}", formatted.status, tail(&String::from_utf8_lossy(&said), 10));
        }
        broker.run()?;
        Ok(broker)
    }

    fn java(&self) -> Command {
        let java = env::var_os("JAVA_HOME").map_or_else(|| "java".into(), |home| Path::new(&home).join("bin/java"));
        let mut command = Command::new(java);
        command.args([HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
        command.args(["-Djava.awt.headless=true", "-cp", &self.jars]).current_dir(&self.server.dir);
        command
    }

    /// Starts the process, and waits until its port is open: it opens that last.
    fn run(&self) -> Result<()> {
        let mut java = self.java();
        java.env_remove("KAFKA_OPTS").args(["kafka.Kafka", "server.properties"]);
        self.server.start(java)?;
        let deadline = Instant::now() + START;
        loop {
            // Checked first: another program might listen on this port.
            let ended = self.server.has_ended();
            if ended || Instant::now() > deadline {
                let what = if ended { "ended" } else { "does not serve" };
                bail!("the broker {what}; its log ends:\n{}", tail(&self.log(), 20));
            }
            if TcpStream::connect_timeout(&self.addr(), POLL).is_ok() {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Returns its address, whether it runs or not.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Returns the address at which it speaks TLS.
    ///
    /// # Panics
    /// If it was started without security, as the next two do.
    #[must_use]
    pub fn tls_addr(&self) -> SocketAddr {
        self.secured_addr(|ports| ports.tls)
    }

    /// Returns the address at which it asks for a login over TLS.
    #[must_use]
    pub fn sasl_tls_addr(&self) -> SocketAddr {
        self.secured_addr(|ports| ports.sasl_tls)
    }

    /// Returns the address at which it asks for a login without TLS.
    #[must_use]
    pub fn sasl_addr(&self) -> SocketAddr {
        self.secured_addr(|ports| ports.sasl)
    }

    fn secured_addr(&self, port: impl FnOnce(SecuredPorts) -> u16) -> SocketAddr {
        let ports = self.secured.expect("it was started with security");
        SocketAddr::new(self.addr().ip(), port(ports))
    }

    /// Returns its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Ends it by SIGKILL and waits for its end. Its data stays.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Starts it again on its old ports and data, and waits until it listens.
    pub fn restart(&self) -> Result<()> {
        self.kill();
        self.run()
    }

    /// Sends SIGSTOP: its sockets stay open and do not answer.
    pub fn pause(&self) {
        self.server.pause();
    }

    pub fn resume(&self) {
        self.server.resume();
    }

    /// Returns its output since its first start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.log()
    }
}

/// Returns the properties of a node with all roles. Its own topics have one copy and one partition each, because no
/// other node exists.
fn properties(port: u16, controller: u16, secured: Option<SecuredPorts>, data: &str) -> String {
    let [mut listeners, mut protocols, mut security] = [const { String::new() }; 3];
    if let Some(SecuredPorts { tls, sasl_tls, sasl }) = secured {
        listeners = format!(",SSL://127.0.0.1:{tls},SASL_SSL://127.0.0.1:{sasl_tls},SASL_PLAINTEXT://127.0.0.1:{sasl}");
        protocols = ",SSL:SSL,SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT".to_owned();
        security = SECURITY.replace("USER", USER).replace("PASSWORD", PASSWORD);
    }
    format!(
        "process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}
num.partitions=3
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
{security}"
    )
}

/// The properties of the listeners with security. `USER` and `PASSWORD` are replaced.
const SECURITY: &str = r#"ssl.keystore.type=PEM
ssl.keystore.location=broker.pem
ssl.truststore.type=PEM
ssl.truststore.location=authority.pem
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_USER="PASSWORD";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_plaintext.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"#;

const LOG4J2: &str = "status=error
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss.SSS} [%t] %-5level %logger{1} - %msg%n
";

//! A Kafka broker on demand: one process that is broker and controller (KRaft), on free loopback ports.

use std::net::SocketAddr;

use crate::infra::jvm::{Error, Jvm, jars};
use crate::infra::process::{free_ports, refused};

/// The variable with the class path of the jars of `interop/kafka`, dependencies included.
pub const ENV_JARS: &str = "LOCKKEEPER_KAFKA_JARS";

/// The identity of every cluster made here: no test joins two of them.
const CLUSTER: &str = "bG9ja2tlZXBlci10ZXN0cw";

/// Half of what Kafka's scripts give a broker: it stores a few thousand small letters.
const HEAP_MB: u32 = 384;

/// A running broker. Dropping it stops it and removes its data.
///
/// Every operation blocks for as long as the broker takes.
#[derive(Debug)]
pub struct Broker {
    jvm: Jvm,
    jars: String,
}

impl Broker {
    /// Starts an empty broker, and waits until it listens.
    ///
    /// # Errors
    /// [`Error::NoJars`] outside of `cargo xtask interop kafka`; other errors if it does not serve.
    pub fn start() -> Result<Self, Error> {
        Self::start_from(jars(ENV_JARS, "cargo xtask interop kafka")?)
    }

    /// Starts a broker from this class path.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn start_from(jars: String) -> Result<Self, Error> {
        let [port, controller] = free_ports()?;
        let broker = Broker { jvm: Jvm::new("the Kafka broker", "lockkeeper-kafka-", port)?, jars };
        broker.jvm.write("log4j2.properties", LOG4J2)?;
        let data = broker.jvm.dir().join("data");
        broker.jvm.write("server.properties", &properties(port, controller, &data.display().to_string()))?;

        let mut format = broker.jvm.java(HEAP_MB, &broker.jars);
        format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", "server.properties"]);
        let java = std::path::PathBuf::from(format.get_program());
        let formatted = format.output().map_err(refused("running", &java))?;
        if !formatted.status.success() {
            let said = [formatted.stdout, formatted.stderr].concat();
            let (said, what) = (String::from_utf8_lossy(&said), format!("has no storage ({})", formatted.status));
            return Err(Error::Start { name: "the Kafka broker", what, log: crate::infra::process::tail(&said, 10) });
        }
        broker.run()?;
        Ok(broker)
    }

    fn run(&self) -> Result<(), Error> {
        let mut java = self.jvm.java(HEAP_MB, &self.jars);
        java.env_remove("KAFKA_OPTS").args(["kafka.Kafka", "server.properties"]);
        self.jvm.start(java)
    }

    /// Returns its address, whether it runs or not.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.jvm.addr()
    }

    /// Returns its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.jvm.server().pid()
    }

    /// Ends it by SIGKILL and waits for its end. Its data stays.
    pub fn kill(&self) {
        self.jvm.server().kill();
    }

    /// Starts it again on its old ports and data, and waits until it listens.
    ///
    /// # Errors
    /// If it does not listen.
    pub fn restart(&self) -> Result<(), Error> {
        self.kill();
        self.run()
    }

    /// Sends SIGSTOP: its sockets stay open and do not answer.
    pub fn pause(&self) {
        self.jvm.server().pause();
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.jvm.server().resume();
    }

    /// Returns its output since its first start.
    #[must_use]
    pub fn log(&self) -> String {
        self.jvm.server().log()
    }
}

/// Returns the properties of a node with all roles. Its own topics have one copy and one partition each, because no
/// other node exists.
fn properties(port: u16, controller: u16, data: &str) -> String {
    format!(
        "process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={data}
num.partitions=3
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"
    )
}

const LOG4J2: &str = "status=error
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss.SSS} [%t] %-5level %logger{1} - %msg%n
";

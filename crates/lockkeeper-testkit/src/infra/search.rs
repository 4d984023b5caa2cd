//! A search engine on demand: one OpenSearch node on a free loopback port.
//!
//! It refuses a write with a smaller version than the document has, which is what a fencing token needs from a
//! resource.

use std::net::SocketAddr;

use crate::infra::jvm::{Error, Jvm, jars};
use crate::infra::process::free_ports;

/// The variable with the class path of the jars of `interop/search`, dependencies included.
pub const ENV_JARS: &str = "LOCKKEEPER_SEARCH_JARS";

/// Enough for a node with a few hundred articles; it uses about 370 MB of memory in total.
const HEAP_MB: u32 = 512;

/// A running node. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Engine {
    jvm: Jvm,
}

impl Engine {
    /// Starts an empty node, and waits until it listens.
    ///
    /// # Errors
    /// [`Error::NoJars`] outside of `cargo xtask search`; other errors if it does not serve.
    pub fn start() -> Result<Self, Error> {
        Self::start_from(&jars(ENV_JARS, "cargo xtask search test")?)
    }

    /// Starts a node from this class path.
    ///
    /// # Errors
    /// If it does not serve.
    pub fn start_from(jars: &str) -> Result<Self, Error> {
        let [http, transport] = free_ports()?;
        let engine = Engine { jvm: Jvm::new("the search engine", "lockkeeper-search-", http)? };
        let mut java = engine.jvm.java(HEAP_MB, jars);
        let base = engine.jvm.dir().join("node");
        java.arg("lockkeeper.interop.SearchNode").arg(base).arg(http.to_string()).arg(transport.to_string());
        engine.jvm.start(java)?;
        Ok(engine)
    }

    /// Returns its HTTP address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.jvm.addr()
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Returns its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.jvm.server().pid()
    }
}

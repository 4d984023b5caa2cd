//! A search engine on demand: one OpenSearch node on a free loopback port.
//!
//! It refuses a write with a smaller version than a document has, which is what a fencing token needs of a resource.

use std::net::SocketAddr;

use crate::infra::jvm::{Error, Jvm, jars};
use crate::infra::process::free_ports;

/// Where the jars of `interop/search` are, dependencies included.
pub const ENV_JARS: &str = "LOCKKEEPER_SEARCH_JARS";

/// Enough for a node with a few hundred articles; it uses about 370 MB of memory in all.
const HEAP_MB: u32 = 512;

/// A running node. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Engine {
    jvm: Jvm,
}

impl Engine {
    /// Starts a node with nothing in it, and waits until it listens.
    ///
    /// # Errors
    /// [`Error::NoJars`] outside of `cargo xtask search`, else when it does not serve.
    pub fn start() -> Result<Self, Error> {
        Self::start_from(&jars(ENV_JARS, "cargo xtask search test")?)
    }

    /// The same from this class path.
    ///
    /// # Errors
    /// When it does not serve.
    pub fn start_from(jars: &str) -> Result<Self, Error> {
        let [http, transport] = free_ports()?;
        let engine = Engine { jvm: Jvm::new("the search engine", "lockkeeper-search-", http)? };
        let mut java = engine.jvm.java(HEAP_MB, jars);
        let base = engine.jvm.dir().join("node");
        java.arg("lockkeeper.interop.SearchNode").arg(base).arg(http.to_string()).arg(transport.to_string());
        engine.jvm.start(java)?;
        Ok(engine)
    }

    /// Where it serves HTTP.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.jvm.addr()
    }

    /// The same as clients want it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Its process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.jvm.server().pid()
    }
}

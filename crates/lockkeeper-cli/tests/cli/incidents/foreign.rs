//! Clients that know nothing of Lockkeeper, in the queues of its locks: their nodes, or their programs.

use zookeeper_client::{Acls, CreateMode};

use crate::plain::Plain;

/// One client, in one process.
pub(crate) trait Foreign {
    /// Its names for nodes, as an option names them.
    fn format(&self) -> &'static str;
    /// Joins the queue of a lock. Returns before it holds the lock.
    fn join(&mut self, name: &str);
    fn leave(&mut self);
}

/// A client that is only a session.
pub(crate) struct Nodes {
    plain: Plain,
    format: &'static str,
    joined: Vec<String>,
}

impl Nodes {
    pub(crate) fn connect(servers: &str, format: &'static str) -> Self {
        Nodes { plain: Plain::connect(servers), format, joined: Vec::new() }
    }

    /// Creates the node of a lock, and those above it.
    fn lock(&self, name: &str) {
        let mut path = "/locks".to_owned();
        for part in [""].into_iter().chain(name.split('/')) {
            path = if part.is_empty() { path } else { format!("{path}/{part}") };
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            // It may be there.
            _ = self.plain.runtime.block_on(self.plain.client.create(&path, b"", &options));
        }
    }

    /// Creates a contender's node that belongs to no session. Returns its path.
    pub(crate) fn leave_behind(&self, name: &str) -> String {
        self.lock(name);
        let path = format!("/locks/{name}/{}0000000000", self.start());
        self.plain.create(&path, "");
        path
    }

    /// The name of a contender before its number.
    fn start(&self) -> &'static str {
        match self.format {
            "kazoo" => "a5bc3cd3b2f34e29a4f4c2d1e2f3a4b5__lock__",
            _ => "_c_6a58ee75-b8ac-4f38-a22d-2a2b3cf6e4f8-lock-",
        }
    }
}

impl Foreign for Nodes {
    fn format(&self) -> &'static str {
        self.format
    }

    fn join(&mut self, name: &str) {
        self.lock(name);
        let start = format!("/locks/{name}/{}", self.start());
        self.joined.push(self.plain.create_as(CreateMode::EphemeralSequential, &start, "10.0.3.7"));
    }

    fn leave(&mut self) {
        self.joined.drain(..).for_each(|path| self.plain.delete(&path));
    }
}

/// Kazoo or Curator itself. It takes the lock of each line that it reads, and releases them all at the end.
#[cfg(deep)]
pub(crate) struct Program {
    format: &'static str,
    running: crate::harness::Running,
}

#[cfg(deep)]
impl Program {
    fn start(format: &'static str, command: &mut std::process::Command) -> Self {
        let mut running = crate::harness::Running::start(command);
        assert_eq!(running.line(), "connected");
        Program { format, running }
    }

    pub(crate) fn kazoo(servers: &str) -> Self {
        Program::kazoo_as(servers, "kazoo")
    }

    /// A program of Kazoo's with this identifier.
    pub(crate) fn kazoo_as(servers: &str, identifier: &str) -> Self {
        let python = std::env::var("LOCKKEEPER_INTEROP_KAZOO").expect("run `cargo xtask interop kazoo`");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/kazoo/contend.py");
        Program::start("kazoo", std::process::Command::new(python).args([script, servers, "nest", identifier]))
    }

    pub(crate) fn curator(servers: &str) -> Self {
        let classpath = std::env::var("LOCKKEEPER_INTEROP_CURATOR").expect("run `cargo xtask interop curator`");
        let mut java = std::process::Command::new("java");
        java.args(["-cp", &classpath, "lockkeeper.interop.CuratorClient", servers, "nest"]);
        Program::start("curator", &mut java)
    }
}

#[cfg(deep)]
impl Foreign for Program {
    fn format(&self) -> &'static str {
        self.format
    }

    fn join(&mut self, name: &str) {
        use std::io::Write;
        writeln!(self.running.child.stdin.as_mut().unwrap(), "/locks/{name}").unwrap();
    }

    fn leave(&mut self) {
        self.running.finish();
    }
}

//! Our server in memory, for suites that take an address.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// The users on the suites' own servers.
const ACCOUNTS: &str =
    "super super:D/InIHSb7yEEbrWz8b9l71RjZJU=\nsasl super:super_secret\nsasl jaasuser:jaas_password\n";

/// Writes the users into a file that only this user can read: the server refuses another one.
pub(super) fn write_accounts(file: &Path) -> Result<()> {
    let written = fs::write(file, ACCOUNTS).and_then(|()| fs::set_permissions(file, Permissions::from_mode(0o600)));
    written.with_context(|| format!("writing {}", file.display()))
}

/// A running server. Dropping it stops the server.
pub(super) struct Served {
    process: Child,
    pub(super) address: String,
}

impl Served {
    /// Starts the server on a free port, with these users if there are any, and waits until it serves.
    pub(super) fn start(command: &Path, accounts: Option<&Path>) -> Result<Self> {
        let mut server = Command::new(command);
        server.args(["serve", "--memory", "--listen", "127.0.0.1:0", "--words", "all"]);
        if let Some(accounts) = accounts {
            server.arg("--accounts").arg(accounts);
        }
        let mut process = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("starting our server")?;
        let said = process.stdout.take().context("our server has no output")?;
        let mut served = Self { process, address: String::new() };
        let mut address = String::new();
        BufReader::new(said).read_line(&mut address).context("waiting for our server")?;
        if address.is_empty() {
            bail!("our server does not start");
        }
        address.trim().clone_into(&mut served.address);
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

//! The connect string: checked before anything is sent.

use lockkeeper_client::InvalidServers;
pub(crate) use lockkeeper_client::Servers;
use lockkeeper_core::LockPath;

use crate::error::Misuse;

/// Fails if a connect string is not valid. Sends nothing.
///
/// # Errors
///
/// [`Misuse`] with the mistake.
pub fn check_servers(servers: &str) -> Result<(), Misuse> {
    parse(servers).map(drop)
}

/// Parses a connect string: `zk1:2181,zk2:2181,zk3:2181/chroot`.
pub(crate) fn parse(text: &str) -> Result<Servers, Misuse> {
    let servers: Servers = text.parse().map_err(|error: InvalidServers| Misuse::servers(text, &error.problem))?;
    if !servers.chroot().is_empty() {
        let checked = LockPath::parse_node(servers.chroot());
        checked.map_err(|error| Misuse::servers(text, &format!("its chroot: {error}")))?;
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        for (text, say) in [
            ("zk1:1, zk2/app/locks", "ok"),
            ("", "\"\" is not a server"),
            ("zk1,,zk2", "\"\" is not a server"),
            ("zk1:70000", "from 1 to 65535"),
            ("/x", "\"\" is not a server"),
            ("zk1:2181//x", "empty"),
            ("zk1/zookeeper/x", "its chroot"),
            ("zk1/a\u{1}", "its chroot"),
        ] {
            match parse(text) {
                Ok(_) => assert_eq!(say, "ok", "{text}"),
                Err(error) => assert!(error.to_string().contains(say), "{text}: {error}"),
            }
        }
    }
}

//! Users that a server knows by SASL DIGEST-MD5, in a JAAS file.

use std::path::Path;

/// The name of the file in a server's directory.
pub(super) const FILE: &str = "jaas.conf";

/// Returns the text of the file for these users and passwords.
pub(super) fn jaas(users: &[(String, String)]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let users = users.iter().map(|(user, password)| format!("\n  user_{user}=\"{}\"", quoted(password)));
    let users: String = users.collect();
    format!("Server {{\n  org.apache.zookeeper.server.auth.DigestLoginModule required{users};\n}};\n")
}

/// Returns the Java system properties of a server in this directory that knows such users.
pub(super) fn properties(dir: &Path) -> [(&'static str, String); 2] {
    [
        ("java.security.auth.login.config", dir.join(FILE).display().to_string()),
        ("zookeeper.authProvider.1", "org.apache.zookeeper.server.auth.SASLAuthenticationProvider".to_owned()),
    ]
}

//! The command and TLS: every setting is used or refused, never ignored.

use crate::harness::{Home, failure};

#[test]
fn tls_settings_belong_together() {
    let home = Home::new();
    for (args, say) in [
        (["--tls-cert", "a.pem", "--tls-ca", "ca.pem"], "tls.key"),
        (["--tls-key", "a.pem", "--tls-ca", "ca.pem"], "tls.cert"),
        (["--tls-key", "a.pem", "--tls-cert", "a.pem"], "tls.ca"),
    ] {
        let output = home.output(&[&["config"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("cannot be used without") && told.contains(say), "{told}");
    }
}

/// The own server is reached over loopback without TLS.
#[test]
fn an_authority_is_refused_where_no_servers_are_named() {
    let (code, told) = failure(&Home::new().output(&["list", "--tls-ca", "ca.pem"]));
    assert_eq!(code, Some(64), "{told}");
    assert!(told.contains("--tls-ca ca.pem is not used with"), "{told}");
}

/// The command does not even open a plain connection.
#[test]
fn files_that_cannot_be_used_stop_everything() {
    let home = Home::new();
    for servers in ["127.0.0.1:1", "localhost:1"] {
        let output = home.output(&["show", "a", "--servers", servers, "--tls-ca", "nowhere.pem"]);
        let (code, told) = failure(&output);
        assert!(code == Some(64) && told.contains("TLS: ") && told.contains("nowhere.pem"), "{told}");
        assert_eq!(told.contains("built without TLS"), !cfg!(feature = "tls"), "{told}");
    }
}

/// The server and the command verify each other by their certificates.
#[cfg(feature = "tls")]
#[test]
fn run_holds_its_lock_over_tls() {
    use std::process::{Command, Stdio};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use crate::harness::{BINARY, Running};

    let home = Home::new();
    let write = |name: &str, text: String| std::fs::write(home.file(name), text).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    write("ca.pem", params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    let mut serve = Command::new(BINARY);
    home.prepare(&mut serve);
    serve.args(["serve", "--memory", "--listen", "127.0.0.1:0", "--tls-cert", "server.pem", "--tls-key", "server.key"]);
    serve.args(["--tls-client-ca", "ca.pem"]);
    let mut server = Running::start(&mut serve);
    let servers = server.line();

    let known = ["--tls-ca", "ca.pem", "--tls-cert", "client.pem", "--tls-key", "client.key"];
    let run = |flags: &[&str]| {
        let args =
            [&["run", "nightly", "--wait", "10s", "--servers", &servers], flags, &["--", "echo", "done"]].concat();
        home.command(&args).stdin(Stdio::null()).output().unwrap()
    };
    let output = run(&known);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"done\n"[..]), "{output:?}");
    let output = run(&known[..2]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("CertificateRequired"), "{output:?}");

    // The same from the environment, as in a service.
    let mut command = home.command(&["run", "nightly", "--wait", "10s", "--", "true"]);
    let variables = [("CA", "ca.pem"), ("CERT", "client.pem"), ("KEY", "client.key")];
    command.envs(variables.map(|(name, file)| (format!("LOCKKEEPER_TLS_{name}"), home.file(file))));
    let output = command.env("LOCKKEEPER_SERVERS", &servers).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop(server);
}

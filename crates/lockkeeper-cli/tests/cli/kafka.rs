//! Dead letters of the command in a Kafka topic: `cargo xtask interop kafka`.

use std::path::Path;

use lockkeeper_testkit::kafka::{Broker, Certificates, PASSWORD, USER};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;

use crate::harness::{Home, SETTINGS};

/// Runs `run NAME --background` behind a holder; its command is `touch NAME`.
fn give_up(home: &Home, name: &str, place: &str) {
    let mut holder = home.spawn(name, &["--foreground"], "echo up; cat");
    assert_eq!(holder.line(), "up");
    let args = ["run", name, "--background", "--wait", "3s", "--dead-letter", place, "--", "touch", name];
    let output = home.output(&args);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{told}");
    assert!(told.contains("kept as the dead letter"), "{told}");
    holder.close_stdin();
    assert_eq!(holder.end().0, Some(0));
}

/// Returns the fate of the letter of each path.
fn fates(home: &Home, place: &str) -> Vec<(String, String, String)> {
    let output = home.output(&["dlq", "list", "--all", "--json", "--dead-letter", place]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |letter: &Value, field: &str| letter[field].as_str().unwrap().to_owned();
    let letters = told["letters"].as_array().unwrap();
    let mut fates: Vec<_> =
        letters.iter().map(|letter| (text(letter, "path"), text(letter, "fate"), text(letter, "operation"))).collect();
    fates.sort();
    fates
}

/// C-47: a letter in a topic can be listed, shown, replayed and dropped like one in a file. A letter that was written
/// while the broker was down is there too.
#[test]
fn kafka_letters_are_dealt_with_like_those_in_a_file() {
    let broker = Broker::start().unwrap();
    let place = format!("kafka:{}/Letters", broker.addr());
    let home = Home::new();
    give_up(&home, "a", &place);
    broker.kill();
    // Stored in the spool.
    give_up(&home, "b", &place);
    broker.restart().unwrap();
    give_up(&home, "c", &place);
    let told = fates(&home, &place);
    let short: Vec<_> = told.iter().map(|(path, fate, _)| (path.as_str(), fate.as_str())).collect();
    assert_eq!(short, [("/locks/a", "waiting"), ("/locks/b", "waiting"), ("/locks/c", "waiting")]);

    assert!(home.output(&["dlq", "show", &told[0].2, "--dead-letter", &place]).status.success());
    let replay = ["dlq", "replay", &told[0].2, &told[1].2, "--dead-letter", &place];
    // Others may have written the topic.
    assert_eq!(home.output(&replay).status.code(), Some(77));
    assert!(!home.file("a").exists());
    let replayed = home.output(&[&replay[..], &["--foreign", "--yes"]].concat());
    assert!(replayed.status.success(), "{replayed:?}");
    assert!(home.file("a").exists() && home.file("b").exists() && !home.file("c").exists());
    assert!(home.output(&["dlq", "drop", &told[2].2, "--dead-letter", &place]).status.success());
    let short: Vec<_> = fates(&home, &place).into_iter().map(|(path, fate, _)| (path, fate)).collect();
    let settled = [("/locks/a", "replayed"), ("/locks/b", "replayed"), ("/locks/c", "dropped")];
    assert_eq!(short, settled.map(|(path, fate)| (path.to_owned(), fate.to_owned())));
    // Nothing is left to replay.
    assert_eq!(home.output(&["dlq", "replay", &told[0].2, "--dead-letter", &place]).status.code(), Some(1));
}

/// An authority, and what it has signed for the broker and for a client.
struct Signed {
    authority: String,
    broker: (String, String),
    client: (String, String),
}

impl Signed {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate whose issuer has its own name for one that signs itself.
        params.distinguished_name.push(DnType::CommonName, "authority");
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let [broker, client] = ["127.0.0.1", "client"].map(|host| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([host.to_owned()]).unwrap();
            (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
        });
        Signed { authority, broker, client }
    }

    fn start(&self) -> Broker {
        let (certificate, key) = &self.broker;
        Broker::start_secured(&Certificates { authority: &self.authority, certificate, key }).unwrap()
    }
}

/// A home with these settings of Kafka.
fn home_with(settings: &str, files: &[(&str, &str)]) -> Home {
    let home = Home::new();
    for (name, content) in files {
        home.secret(name, content);
    }
    let dir = home.file("");
    let settings = settings.replace("DIR", dir.to_str().unwrap().trim_end_matches('/'));
    std::fs::write(home.file(SETTINGS), format!("[kafka]\n{settings}")).unwrap();
    home
}

/// C-47: letters go to clusters as people run them: TLS with a certificate of the client, and a login over TLS with each mechanism, or
/// without TLS. What one connection has written, the others read.
#[test]
fn kafka_letters_go_over_tls_and_with_a_login() {
    let signed = Signed::new();
    let broker = signed.start();
    let files = [
        ("ca.pem", &*signed.authority),
        ("cert.pem", &signed.client.0),
        ("key.pem", &signed.client.1),
        ("password", "pass word-1\n"),
    ];
    assert_eq!(files[3].1.trim(), PASSWORD);
    let login =
        |mechanism| format!("sasl_mechanism = '{mechanism}'\nuser = '{USER}'\npassword_file = 'DIR/password'\n");
    let over_tls = "security_protocol = 'sasl_ssl'\nca = 'DIR/ca.pem'\n";
    let certificate = "security_protocol = 'ssl'\nca = 'DIR/ca.pem'\ncert = 'DIR/cert.pem'\nkey = 'DIR/key.pem'\n";
    let ways = [
        ("a", broker.tls_addr(), certificate.to_owned()),
        ("b", broker.sasl_tls_addr(), over_tls.to_owned() + &login("PLAIN")),
        ("c", broker.sasl_tls_addr(), over_tls.to_owned() + &login("SCRAM-SHA-256")),
        ("d", broker.sasl_tls_addr(), over_tls.to_owned() + &login("SCRAM-SHA-512")),
        ("e", broker.sasl_addr(), "security_protocol = 'sasl_plaintext'\n".to_owned() + &login("SCRAM-SHA-512")),
    ];
    for (count, (name, addr, settings)) in ways.iter().enumerate() {
        let home = home_with(settings, &files);
        let place = format!("kafka:{addr}/Letters");
        give_up(&home, name, &place);
        let told = fates(&home, &place);
        assert_eq!(told.len(), count + 1, "{name}: {told:?}");
        assert_eq!(told[count].0, format!("/locks/{name}"));
        // It is in the topic, and not only in the spool.
        let spool = home.state().join("spool").join(format!("kafka:{addr}%2FLetters"));
        assert_eq!(records(&spool), 0, "{name}");
    }
}

/// How many records are in a spool.
fn records(spool: &Path) -> usize {
    let entries = std::fs::read_dir(spool).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "record")).count()
}

/// A broker that refuses the login, or whose certificate is not trusted, is told by name, and the letter is kept in the spool.
#[test]
fn kafka_that_refuses_the_login_or_is_not_trusted_is_said() {
    let signed = Signed::new();
    let broker = signed.start();
    let other = Signed::new();
    let login = format!(
        "security_protocol = 'sasl_ssl'\nca = 'DIR/ca.pem'\nsasl_mechanism = 'SCRAM-SHA-256'\nuser = '{USER}'\npassword_file = 'DIR/password'\n"
    );
    let place = format!("kafka:{}/Letters", broker.sasl_tls_addr());
    for (authority, password, says) in [
        (&signed.authority, "wrong", "uthentication failed"),
        (&other.authority, PASSWORD, "certificate verify failed"),
    ] {
        let home = home_with(&login, &[("ca.pem", authority), ("password", password)]);
        let output = home.output(&["dlq", "list", "--dead-letter", &place]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(says), "{told}");
        assert!(!told.contains(PASSWORD), "{told}");
    }
}

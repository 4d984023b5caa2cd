//! `requests`, `approve` and `reject`: decide about a leased lock whose owner does not clean up.

#[cfg(feature = "webhook")]
use std::io::{Read, Write};
#[cfg(feature = "webhook")]
use std::net::TcpListener;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::harness::{BINARY, Home, Running, Served, failure, names, served, text, until};
use crate::terminal::Screen;

/// A fleet of two machines: one has an owner that hangs, the other a requestor of its lock.
struct Fleet {
    home: Home,
    hung: Running,
    served: Served,
}

impl Fleet {
    fn start(owner: &[&str]) -> Self {
        let (served, home) = served();
        let args = [&["--lease", "10m", "--cleanup", "200ms", "-m", "nightly index"], owner].concat();
        let hung = home.starts("a", &args, "echo up; read line");
        hung.signal(Signal::STOP);
        Fleet { home, hung, served }
    }

    fn want(&self, args: &[&str]) -> Running {
        let args = [&["--lease", "10m", "--priority", "5", "-m", "urgent"], args].concat();
        self.home.spawn("a", &args, "echo in; read line")
    }

    /// Waits for the open decision and returns it.
    fn waited_for(&self) -> Value {
        let mut found = Value::Null;
        until("a decision is waited for", || {
            let listing = self.home.json(&["requests", "--json"]);
            found = listing["requests"][0].clone();
            !found.is_null()
        });
        found
    }

    fn decided(&self) -> Vec<Value> {
        let listing = self.home.json(&["requests", "--decided", "--json"]);
        listing["decisions"].as_array().unwrap().clone()
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.home.file(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

/// H-76: an operator finds and approves it from another machine, with a reason, which is recorded.
#[test]
fn an_operator_approves_and_the_command_runs() {
    let mut fleet = Fleet::start(&[]);
    let mut high = fleet.want(&["--ask", "10m"]);
    let request = fleet.waited_for();
    assert_eq!((&request["path"], &request["owner_message"]), (&"/locks/a".into(), &"nightly index".into()));
    assert_eq!((&request["requestor_message"], &request["requestor_priority"]), (&"urgent".into(), &5.into()));
    assert!(request["elapsed_ms"].as_u64() >= Some(200) && request["allotted_ms"] == 200, "{request}");
    let told = fleet.home.ok(&["requests"]);
    for say in ["/locks/a", "nightly index", "urgent", "no answer is a no", request["id"].as_str().unwrap()] {
        assert!(told.contains(say), "{say:?} is missing in {told}");
    }
    let mut screen = Screen::with_columns(80, &fleet.home, BINARY, &["requests", "--servers", &fleet.served.address]);
    let shown = screen.rest();
    // A command is not broken, so that it can be copied.
    let wide = shown.lines().find(|line| line.width() > 80 && !line.contains(" lockkeeper "));
    assert!(wide.is_none() && shown.contains("no answer is a no"), "{shown}");
    let (code, line) = failure(&fleet.home.output(&["requests", "approve", "a", "--reason", " "]));
    assert_eq!(
        (code, line.as_str()),
        (Some(64), "an intervention on /locks/a needs a reason: it is recorded for those who ask later")
    );
    let none = fleet.home.output(&["requests", "approve", "b", "-r", "x", "--json"]);
    let told = String::from_utf8_lossy(&[&none.stdout[..], &none.stderr].concat()).into_owned();
    assert!(none.status.code() == Some(1) && told.contains("about /locks/b") && told.contains("\"scope\""), "{told}");
    fleet.home.ok(&["requests", "approve", "a", "--reason", "its host hangs"]);
    assert_eq!(high.line(), "in");
    let decided = fleet.decided();
    assert_eq!((decided.len(), &decided[0]["approved"]), (1, &true.into()));
    assert_eq!((&decided[0]["why"], &decided[0]["by_rule"]), (&"its host hangs".into(), &false.into()));
    fleet.home.failure(&["requests", "approve", "a", "-r", "again"], 1);
    // A preempted owner that hung learns of it when it runs again.
    fleet.hung.signal(Signal::CONT);
    fleet.hung.ends(76);
    high.close_stdin();
    high.wait();
}

/// H-76: the owner keeps the lock, and the command does not run.
#[test]
fn an_operator_rejects_and_so_does_silence() {
    let fleet = Fleet::start(&[]);
    let mut high = fleet.want(&["--ask", "10m"]);
    fleet.waited_for();
    fleet.home.ok(&["requests", "reject", "a", "--reason", "let it finish"]);
    let told = high.ends(75);
    assert!(told.contains("has not finished the cleanup"), "{told}");
    names(&told, &["; the transfer was rejected by ", ": let it finish"]);
    assert!(told.contains("hint: talk to them, wait longer with --waiting, or") && !told.contains("--ask"), "{told}");
    assert_eq!(fleet.decided()[0]["approved"], false);
    let (code, told) = fleet.want(&["--ask", "300ms"]).end();
    assert_eq!(code, Some(75), "{told}");
    names(&told, &["; nobody decided about the transfer: no answer in time", "--ask, wait"]);
    let decided = fleet.decided();
    assert_eq!(
        (decided.len(), &decided[1]["approved"], &decided[1]["why"]),
        (2, &false.into(), &"no answer in time".into())
    );
    assert_eq!(fleet.home.show("a")["lease"]["requestor"], Value::Null);
}

/// H-52: an infinite wait ends when the owner has cleaned up, however much longer than its cleanup timeout that takes.
#[test]
fn an_infinite_wait_outlasts_the_cleanup_timeout() {
    let mut fleet = Fleet::start(&[]);
    let mut high = fleet.want(&["--waiting", "infinite"]);
    until("the request shows", || fleet.home.show("a")["lease"]["requestor"].is_object());
    assert_eq!(fleet.home.show("a")["lease"]["requestor"]["until_ms"], Value::Null, "its wait has an end");
    assert_eq!(fleet.home.show("a")["lease"]["cleanup_ms"], 200);
    fleet.hung.signal(Signal::CONT);
    assert_eq!(high.line(), "in");
    fleet.hung.ends(76);
    high.close_stdin();
    high.wait();
}

/// H-77: a rule of the settings file decides, and the audit has its name; without a matching rule, the plain error.
#[test]
fn a_rule_of_the_settings_file_decides() {
    let rule = "[[transfer]]\nname = \"batch yields\"\nowner = \"batch-*\"\nrequestor = \"online\"\n";
    let fleet = Fleet::start(&["--id", "batch-7"]);
    let config = fleet.file("config.toml", rule);
    let config = config.to_str().unwrap();
    let (code, told) = fleet.want(&["--config", config, "--id", "somebody"]).end();
    assert_eq!(code, Some(75), "{told}");
    let mut high = fleet.want(&["--config", config, "--id", "online"]);
    assert_eq!(high.line(), "in");
    let decided = fleet.decided();
    assert_eq!((&decided[0]["by_rule"], &decided[0]["on_behalf_of"]), (&true.into(), &"batch yields".into()));
    names(&fleet.home.ok(&["requests", "--decided"]), &["online may take it from batch-7", "batch yields"]);
    high.close_stdin();
    high.wait();
}

/// H-75: an alert command gets all facts, and its success is not an answer.
/// H-76: an alert command that prints a decision decides.
#[test]
fn an_alert_command_is_told_and_may_decide() {
    let fleet = Fleet::start(&[]);
    let told = fleet.home.file("told");
    let tell = format!("cat > {}", told.display());
    let mut high = fleet.want(&["--ask", "10m", "--alert-command", &tell]);
    let request = fleet.waited_for();
    until("the alert", || std::fs::read(&told).is_ok_and(|told| !told.is_empty()));
    let alert: Value = serde_json::from_str(&text(&told)).unwrap();
    assert_eq!((&alert["event"], &alert["request"]), (&"cleanup_unfinished".into(), &request["id"]));
    for fact in ["path", "owner", "owner_message", "owner_priority", "allotted_ms", "requestor", "requestor_priority"] {
        assert_eq!(alert[fact], request[fact], "{fact}");
    }
    fleet.home.ok(&["requests", "reject", "a", "-r", "no"]);
    high.ends(75);
    let says = r#"echo paged; echo '{"decision": "approve", "by": "pager", "why": "nobody at home"}'"#;
    let mut high = fleet.want(&["--ask", "10m", "--alert-command", says]);
    assert_eq!(high.line(), "in");
    let decided = fleet.decided();
    let last = decided.last().unwrap();
    assert_eq!((&last["on_behalf_of"], &last["why"]), (&"pager".into(), &"nobody at home".into()));
    high.close_stdin();
    high.wait();
}

/// Reads what an alert posts, and answers with a decision.
#[cfg(feature = "webhook")]
fn answer(stream: &mut (impl Read + Write), says: &str) -> String {
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains("requestor_priority\":5") {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0);
        seen.extend_from_slice(&chunk[..read]);
    }
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{says}", says.len()).unwrap();
    stream.flush().unwrap();
    String::from_utf8(seen).unwrap()
}

/// H-75: the same by HTTP, once.
#[cfg(feature = "webhook")]
#[test]
fn an_address_on_the_web_is_told_and_may_decide() {
    let fleet = Fleet::start(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/locks", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        answer(&mut stream, r#"{"decision":"approve","by":"bot","why":"stale"}"#)
    });
    fleet.home.secret("webhook", &format!("# ours\n{url}\n"));
    let mut high = fleet.want(&["--ask", "10m", "--alert-webhook", "webhook"]);
    assert_eq!(high.line(), "in");
    let seen = server.join().unwrap();
    assert!(seen.starts_with("POST /locks HTTP/1.1") && seen.contains("\"cleanup_unfinished\""), "{seen}");
    assert_eq!(fleet.decided()[0]["on_behalf_of"], "bot");
    high.close_stdin();
    high.wait();
    for (text, mode, say) in [
        ("file:///hunter2", 0o600, "has no http or https address"),
        ("https://ops.example/hunter2", 0o644, "chmod 600 webhook"),
        ("https://ops.example/hunter2", 0o620, "may be written by other users (mode 620)"),
    ] {
        fleet.home.secret("webhook", text);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(fleet.home.file("webhook"), mode).unwrap();
        let args = ["run", "a", "--lease", "1m", "--ask", "1s", "--alert-webhook", "webhook", "--", "true"];
        let told = fleet.home.tells(&args, 64);
        assert!(told.contains(say) && !told.contains("hunter2"), "{told}");
    }
}

/// H-75: by TLS, only to servers that this machine trusts.
#[cfg(feature = "webhook")]
#[test]
fn an_address_is_trusted_by_the_machines_own_certificates() {
    use std::sync::Arc;

    use rustls::{ServerConfig, ServerConnection, Stream};

    let fleet = Fleet::start(&[]);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let trusted = fleet.file("trusted.pem", &made.cert.pem());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/hunter2", listener.local_addr().unwrap().port());
    fleet.home.secret("webhook", &url);
    let config = Arc::new(config);
    let server = std::thread::spawn(move || {
        let mut sockets = listener.incoming().map(Result::unwrap);
        // A client that does not trust the server sends an alert instead of a request.
        let mut refused = ServerConnection::new(config.clone()).unwrap();
        assert!(Stream::new(&mut refused, &mut sockets.next().unwrap()).read(&mut [0; 1]).is_err());
        let (mut connection, mut socket) = (ServerConnection::new(config).unwrap(), sockets.next().unwrap());
        answer(&mut Stream::new(&mut connection, &mut socket), r#"{"decision":"reject","by":"bot","why":"busy"}"#);
    });
    let args = ["run", "a", "--lease", "10m", "--priority", "5", "--alert-webhook", "webhook"];
    let ask = |how_long| [&args[..], &["--ask", how_long, "--", "true"]].concat();
    let stranger = fleet.home.command(&ask("4s")).stdin(std::process::Stdio::null()).output().unwrap();
    let told = String::from_utf8(stranger.stderr).unwrap();
    assert!(stranger.status.code() == Some(75) && told.contains("cannot alert https://localhost:"), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
    let known = fleet.home.command(&ask("10m")).env("SSL_CERT_FILE", &trusted).output().unwrap();
    assert_eq!(known.status.code(), Some(75), "{known:?}");
    server.join().unwrap();
    // The stranger's alert was not delivered, so no answer came.
    let decided: Vec<_> = fleet.decided().iter().map(|decision| decision["on_behalf_of"].clone()).collect();
    assert_eq!(decided, ["nobody", "bot"]);
}

//! `lockkeeper serve` with all of its options.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::*;

/// A server with the address of its operators' HTTP.
struct Watched {
    running: Running,
    address: String,
    admin: String,
}

fn serve(home: &Home, more: &[&str]) -> Watched {
    let args = ["serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut running = Running::start(&mut home.command(&[&args[..], more].concat()));
    let address = running.line();
    let line = running.told_of("http://");
    let admin = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    Watched { running, address, admin }
}

/// Returns the status and the body of a path.
fn get(admin: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn ask(admin: &str, command: &str) -> Value {
    let (status, body) = get(admin, &format!("/commands/{command}"));
    assert_eq!(status, 200, "{command}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn serve_tells_operators_of_a_lock_that_is_held() {
    let machine = Home::new();
    let served = serve(&machine, &[]);
    assert_eq!(get(&served.admin, "/health").0, 200);
    let home = Home::with_servers(&served.address);
    let mut holder = Running::start(&mut home.command(&["run", "a", "--", "sh", "-c", "echo held; read x"]));
    assert_eq!(holder.line(), "held");
    let paths = ask(&served.admin, "dump")["session_id_to_ephemeral_paths"].to_string();
    assert!(paths.contains("/a/"), "{paths}");
    assert!(get(&served.admin, "/metrics").1.contains("ephemerals_count 1"));
    assert_eq!(get(&served.admin, "/commands/leader").0, 404);
    holder.close_stdin();
    holder.wait();
}

#[test]
fn every_limit_is_a_flag_and_shown() {
    let home = Home::new();
    let flags = "--max-frame 2M --max-nodes 50 --max-data 3M --max-watches 60 --max-answer 5M --max-sessions 70 --max-connections 80 \
                 --max-path 6K --max-depth 65 --max-ephemerals 66 \
                 --max-connections-per-address 90 --enforce-quotas --tick 100ms --min-session-timeout 300ms \
                 --max-session-timeout 9s --container-check 700ms --container-unused 8s";
    let served = serve(&home, &flags.split(' ').collect::<Vec<_>>());
    let shown = ask(&served.admin, "configuration");
    for (name, value) in [
        ("jute.maxbuffer", json!(2 << 20)),
        ("maxNodes", json!(50)),
        ("maxDataBytes", json!(3 << 20)),
        ("maxAnswerBytes", json!(5 << 20)),
        ("maxWatches", json!(60)),
        ("maxPathBytes", json!(6 << 10)),
        ("maxPathDepth", json!(65)),
        ("maxEphemerals", json!(66)),
        ("maxSessions", json!(70)),
        ("maxCnxns", json!(80)),
        ("maxClientCnxns", json!(90)),
        ("enforceQuota", json!(true)),
        ("tickTime", json!(100)),
        ("minSessionTimeout", json!(300)),
        ("maxSessionTimeout", json!(9_000)),
        ("containerCheckIntervalMs", json!(700)),
        ("containerMaxNeverUsedIntervalMs", json!(8_000)),
    ] {
        assert_eq!(shown[name], value, "{name}");
    }
}

#[test]
fn limits_that_make_no_sense_are_refused_by_name() {
    let home = Home::new();
    let cases = [
        ("--max-frame", "12", "between 1K and 1G"),
        ("--max-data", "a lot", "512K, 64M, 2G"),
        ("--max-answer", "12", "between 1K and 1G"),
        ("--max-path", "12", "between 1K and 1G"),
        ("--max-depth", "7", "8.."),
        ("--max-ephemerals", "0", "1.."),
        ("--words", "stats", "write all, or some of"),
        ("--max-nodes", "3", "4.."),
        ("--max-connections", "0", "1.."),
        ("--tick", "0s", "at least 1ms"),
        ("--container-check", "0s", "at least 1ms"),
        ("--max-session-timeout", "soon", "write 500ms"),
    ];
    for (flag, value, say) in cases {
        names(&home.failure(&["serve", "--memory", "--listen", "127.0.0.1:0", flag, value], 64), &[flag, value, say]);
    }
}

/// Another user could read the secret, or change who is admitted.
#[test]
fn serve_refuses_files_that_others_may_read_or_change() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    home.secret("secret", "0123456789abcdef\n");
    home.secret("accounts", "sasl jobs:hunter2\n");
    home.secret("cert.pem", "no certificate");
    let mode = |file: &str, mode| {
        std::fs::set_permissions(home.file(file), PermissionsExt::from_mode(mode)).unwrap();
    };
    let serve = |args: &[&str]| {
        // This data is no directory, so a server that believes the file ends as well.
        let output = home.output(&[&["serve", "--data", "cert.pem", "--listen", "127.0.0.1:0"], args].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for bits in [0o644, 0o620, 0o602, 0o660] {
        for (file, args) in [
            ("secret", &["--secret-file", "secret"][..]),
            ("accounts", &["--accounts", "accounts"]),
            ("accounts", &["--tls-cert", "cert.pem", "--tls-key", "accounts"]),
        ] {
            mode(file, bits);
            let (code, line) = serve(args);
            let how = if bits == 0o644 { "every user may read it" } else { "may be written by other users" };
            assert!(code == Some(64) && line.contains(how), "{bits:o} {line}");
            assert!(line.contains(&format!("chmod 600 {file}")) && !line.contains("hunter2"), "{line}");
        }
    }
    home.secret("short", "0123456789abcde\n");
    let (code, line) = serve(&["--secret-file", "short"]);
    assert!(code == Some(64) && line.contains("16 to 1024 bytes") && !line.contains("abcde"), "{line}");
    if rustix::process::geteuid().is_root() {
        mode("secret", 0o600);
        std::os::unix::fs::chown(home.file("secret"), Some(12_345), None).unwrap();
        let (code, line) = serve(&["--secret-file", "secret"]);
        assert!(code == Some(64) && line.contains("belongs to user 12345"), "{line}");
    }
}

#[test]
fn only_clients_with_the_secret_are_served() {
    let machine = Home::new();
    machine.secret("secret", "open sesame, please\n");
    let served = serve(&machine, &["--secret-file", "secret"]);
    let home = Home::with_servers(&served.address);
    home.secret("auth", "lockkeeper open sesame, please\n");
    home.secret("guess", "lockkeeper open sesame, pleasf\n");
    let run = |args: &[&str]| home.output(&[&["run", "a", "--wait", "10s"], args, &["--", "echo", "done"]].concat());
    let output = run(&["--auth-file", "auth"]);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"done\n"[..]), "{output:?}");
    let output = run(&["--auth-file", "guess"]);
    assert_eq!(output.status.code(), Some(77), "{output:?}");
    assert_eq!(get(&served.admin, "/commands/dump").0, 403);
}

/// A service has no other place for them.
#[test]
fn serve_logs_its_warnings_without_being_asked() {
    let home = Home::new();
    let mut served = serve(&home, &["--max-connections", "1"]);
    let _first = TcpStream::connect(&served.address).unwrap();
    let mut second = TcpStream::connect(&served.address).unwrap();
    _ = second.read(&mut [0]);
    served.running.signal(rustix::process::Signal::TERM);
    let (_, log) = served.running.end();
    names(&log, &["WARN", "there are 1 connections, and --max-connections allows no more"]);
}

/// TLS alone does not say who connects.
#[test]
fn a_server_that_admits_everyone_from_everywhere_says_so() {
    let home = Home::new();
    home.secret("secret", "open sesame, please\n");
    for (args, warned) in [(&[][..], true), (&["--secret-file", "secret"], false)] {
        let everywhere = ["serve", "--memory", "--allow-remote", "--listen", "0.0.0.0:0"];
        let mut running = Running::start(&mut home.command(&[&everywhere[..], args].concat()));
        running.line();
        let said = running.told_of("one server on one machine");
        assert_eq!(said.contains("everyone who can reach 0.0.0.0:"), warned, "{said}");
        assert_eq!(said.contains("clients send the secret over the network in clear (no TLS)"), !warned, "{said}");
    }
}

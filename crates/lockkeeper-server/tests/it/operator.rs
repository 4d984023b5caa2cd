//! The operators' reports.

use std::time::Duration;

use lockkeeper_server::{Server, Words};

use crate::client::*;

fn server() -> Server {
    wait(Server::ephemeral()).unwrap()
}

#[test]
fn four_letter_words_answer_operators() {
    let server = server();
    let mut client = Client::connect(server.addr());
    client.create("/e", 1).unwrap();
    client.exists("/e", true);
    assert_eq!(four_letters(server.addr(), "ruok"), "imok");
    let srvr = four_letters(server.addr(), "srvr");
    assert!(srvr.starts_with("Zookeeper version: 3.9.") && srvr.contains("\nMode: standalone\n"), "{srvr}");
    let zxid = client.last_zxid;
    assert!(srvr.contains(&format!("\nZxid: {zxid:#x}\nMode: standalone\nNode count: 5\n")), "{srvr}");
    for word in ["stat", "cons", "dirs", "dump", "wchs", "wchc", "wchp", "srst", "crst"] {
        let refused = format!("{word} is not executed because it is not in the whitelist.\n");
        assert_eq!(four_letters(server.addr(), word), refused);
    }
    assert!(four_letters(server.addr(), "conf").contains("clientPort="));
    // The version, by which Kazoo decides what it sends, and nothing of the machine.
    let envi = four_letters(server.addr(), "envi");
    assert!(envi.starts_with("Environment:\nzookeeper.version=3.9.5-lockkeeper-"), "{envi}");
    assert_eq!(envi.lines().count(), 2, "{envi}");
    let mntr = four_letters(server.addr(), "mntr");
    for line in ["zk_server_state\tstandalone", "zk_znode_count\t5", "zk_watch_count\t1", "zk_ephemerals_count\t1"] {
        assert!(mntr.lines().any(|have| have == line), "{line} in {mntr}");
    }
}

#[test]
fn stat_lists_the_clients() {
    let server = wait(Server::start(with_words("stat"))).unwrap();
    let mut client = Client::connect(server.addr());
    client.create("/e", 1).unwrap();
    client.exists("/e", true);
    let stat = four_letters(server.addr(), "stat");
    assert!(
        stat.contains(&format!(" /{}[1](queued=0,recved=3,sent=3)\n /", client.stream.local_addr().unwrap()))
            && stat.contains("[0](queued=0,recved=1,sent=0)\n\nLatency "),
        "{stat}"
    );
    assert!(four_letters(server.addr(), "ruok").contains("not in the whitelist"), "the list is the whole one");
    assert!("all,stat".parse::<Words>().is_err() && "ruok, wchp".parse::<Words>().is_ok());
}

fn with_words(words: &str) -> lockkeeper_server::Config {
    lockkeeper_server::Config::default().with_words(words.parse().unwrap())
}

/// The list has several slices, and each path appears once, whoever watches it.
#[test]
fn a_long_list_of_watches_is_complete() {
    let server = wait(Server::start(with_words("wchp,wchc"))).unwrap();
    let mut clients = [Client::connect(server.addr()), Client::connect(server.addr())];
    let paths: Vec<String> = (0..1_300).map(|at| format!("/watched-{at:04}")).collect();
    let listed: Vec<&str> = paths.iter().map(String::as_str).collect();
    for client in &mut clients {
        assert_eq!(client.call(SET_WATCHES, bytes().long(0).texts(&[]).texts(&listed).texts(&[])).error, 0);
    }
    let sessions = clients.each_ref().map(|client| format!("{:#x}", client.session.id));
    let under = |heading: &String, items: &[String]| {
        format!("{heading}\n{}", items.iter().map(|item| format!("\t{item}\n")).collect::<String>())
    };
    let by_path: String = paths.iter().map(|path| under(path, &sessions)).collect();
    assert!(four_letters(server.addr(), "wchp") == by_path, "by path");
    let by_session: String = sessions.iter().map(|session| under(session, &paths)).collect();
    assert!(four_letters(server.addr(), "wchc") == by_session, "by session");
}

#[test]
fn every_word_is_answered_as_programs_expect_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = with_words("all").with_directory(directory.path());
    let server = wait(Server::start(config)).unwrap();
    let ask = |word| four_letters(server.addr(), word);
    let mut client = Client::connect(server.addr());
    let session = client.session.id;
    client.create("/a", 0).unwrap();
    client.create("/a/e", 1).unwrap();
    client.exists("/a", true);
    client.children("/a", true).unwrap();
    client.exists("/later", true);
    assert_eq!(ask("isro"), "rw");
    let conf = ask("conf");
    for line in
        [format!("clientPort={}", server.addr().port()), "tickTime=2000".into(), "maxSessionTimeout=40000".into()]
    {
        assert!(conf.lines().any(|have| have == line), "{line} in {conf}");
    }
    assert!(conf.contains(&format!("dataDir={}\n", directory.path().display())));
    let cons = ask("cons");
    let expected =
        format!(" /{}[1](queued=0,recved=6,sent=6,sid={session:#x},lop=EXIS,est=", client.stream.local_addr().unwrap());
    assert!(cons.starts_with(&expected), "{cons}");
    // Apache's layout: the client's line, the line of the word's own connection, and an empty line.
    let [line, asker, ""] = cons.lines().collect::<Vec<_>>()[..] else { panic!("{cons}") };
    let (_, fields) = line.trim_end_matches(')').split_once("](").unwrap();
    let fields: Vec<_> = fields.split(',').map(|field| field.split_once('=').unwrap()).collect();
    let names: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names.join(" "),
        "queued recved sent sid lop est to lcxid lzxid lresp llat minlat avglat maxlat",
        "{cons}"
    );
    let told = |name: &str| fields.iter().find(|(field, _)| *field == name).unwrap().1;
    let zxid = format!("{:#x}", client.last_zxid);
    assert_eq!((told("to"), told("lcxid"), told("lzxid")), ("10000", "0x5", &*zxid), "{cons}");
    let number = |name| told(name).parse::<u64>().unwrap();
    assert!(number("minlat") <= number("avglat") && number("avglat") <= number("maxlat"), "{cons}");
    assert!(number("llat") <= number("maxlat"), "{cons}");
    assert!(asker.starts_with(" /127.0.0.1:") && asker.ends_with("[0](queued=0,recved=1,sent=0)"), "{cons}");
    let dirs = ask("dirs");
    let files = std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap());
    let bytes: u64 = files.filter(|file| file.is_file()).map(|file| file.len()).sum();
    assert!(bytes > 0);
    assert_eq!(dirs, format!("datadir_size: {bytes}\nlogdir_size: {bytes}\n\n"));
    let dump = ask("dump");
    assert!(dump.starts_with("SessionTracker dump:\nSession Sets (1)/(1):\n1 expire in "), "{dump}");
    assert!(
        dump.ends_with(&format!(
            ":\n\t{session:#x}\nephemeral nodes dump:\nSessions with Ephemerals (1):\n{session:#x}:\n\t/a/e\n"
        )),
        "{dump}"
    );
    assert_eq!(ask("wchs"), "1 connections watching 2 paths\nTotal watches:3\n");
    assert_eq!(ask("wchc"), format!("{session:#x}\n\t/a\n\t/later\n"));
    assert_eq!(ask("wchp"), format!("/a\n\t{session:#x}\n/later\n\t{session:#x}\n"));
    assert_eq!(ask("crst"), "Connection stats reset.\n");
    let cons = ask("cons");
    assert!(cons.contains("(queued=0,recved=0,sent=0,sid=") && cons.contains(",lop=NA,"), "{cons}");
    assert!(cons.contains(",to=10000,lzxid=0xffffffffffffffff,lresp=0,llat=0,minlat=0,avglat=0,maxlat=0)\n"), "{cons}");
}

fn http(server: &Server, request: &str) -> (String, String) {
    use std::io::{Read, Write};
    let mut stream = socket(server.admin_addr().unwrap());
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let value = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let status = head.lines().next().unwrap().to_owned();
    // A client can tell a whole body from one that was cut off.
    if request.starts_with("HEAD") {
        return (status, body.to_owned());
    }
    match (value("Content-Length: "), value("Transfer-Encoding: ").as_deref()) {
        (Some(len), None) => assert_eq!(len.parse(), Ok(body.len())),
        (None, Some("chunked")) => return (status, joined(body)),
        neither_or_both => panic!("{neither_or_both:?}: {head}"),
    }
    (status, body.to_owned())
}

/// Joins chunks, of which the last one is empty.
fn joined(chunks: &str) -> String {
    let (len, rest) = chunks.split_once("\r\n").unwrap();
    let (chunk, rest) = rest.split_at(usize::from_str_radix(len, 16).unwrap());
    let rest = rest.strip_prefix("\r\n").unwrap();
    if chunk.is_empty() {
        assert_eq!(rest, "");
        return String::new();
    }
    chunk.to_owned() + &joined(rest)
}

fn get(server: &Server, path: &str) -> (String, String) {
    http(server, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}

fn with_admin() -> lockkeeper_server::Config {
    lockkeeper_server::Config::default()
        .with_admin(([127, 0, 0, 1], 0).into())
        .with_admin_hosts(vec!["ops.example".to_owned()])
}

#[test]
fn http_tells_what_the_words_tell() {
    let server = wait(Server::start(with_admin())).unwrap();
    let mut client = Client::connect(server.addr());
    let session = format!("{:#x}", client.session.id);
    client.create("/e\"", 1).unwrap();
    client.exists("/e\"", true);
    let ask = |path: &str| {
        let (status, body) = get(&server, path);
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}");
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    assert_eq!(ask("/health")["status"], "serving");
    for command in ask("/commands").as_array().unwrap() {
        let (name, word) = (command[0].as_str().unwrap(), command[1].as_str().unwrap());
        for asked in [name, word].into_iter().filter(|_| !matches!(word, "srst" | "crst")) {
            let answer = ask(&format!("/commands/{asked}"));
            assert_eq!((&answer["command"], answer["error"].is_null()), (&serde_json::json!(name), true));
        }
        assert!(word == "ruok" || !four_letters(server.addr(), word).is_empty());
    }
    client.ping();
    assert_eq!(ask("/commands/dump")["session_id_to_ephemeral_paths"][&session][0], "/e\"");
    assert_eq!(ask("/commands/watches")["session_id_to_watched_paths"][&session][0], "/e\"");
    assert_eq!(ask("/commands/watches_by_path")["path_to_session_ids"]["/e\""][0], session.as_str());
    assert_eq!(ask("/commands/connections")["connections"][0]["session_id"], session.as_str());
    assert_eq!(ask("/commands/monitor")["znode_count"], 5);
    assert_eq!(ask("/commands/stats?x=1")["node_count"], 5);
    let (_, metrics) = get(&server, "/metrics");
    for line in ["# TYPE znode_count gauge", "znode_count 5", "requests_total{operation=\"Create\"} 1"] {
        assert!(metrics.lines().any(|have| have == line), "{line} in {metrics}");
    }
}

#[test]
fn http_refuses_what_it_does_not_serve() {
    let server = wait(Server::start(with_admin())).unwrap();
    for (request, status) in [
        ("GET /commands/nothing HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ("GET  HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ("\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        ("GET /commands/srst HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        ("GET /commands/connection_stat_reset HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        ("POST /commands/dump HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        ("POST /commands/srst HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
    ] {
        assert_eq!(http(&server, request).0, status, "{request:?}");
    }
    assert_eq!(http(&server, "HEAD /health HTTP/1.1\r\n\r\n"), ("HTTP/1.1 200 OK".to_owned(), String::new()));
    let headers = |headers: &str| http(&server, &format!("POST /commands/srst HTTP/1.1\r\n{headers}\r\n\r\n")).0;
    for own in [
        "Host: 127.0.0.1:80",
        "host: [::1]:80",
        "Host: LocalHost",
        "Host: ops.example:8080\r\nOrigin: http://ops.example",
    ] {
        assert_eq!(headers(own), "HTTP/1.1 200 OK", "{own}");
    }
    for foreign in [
        "Host: evil.example",
        "HOST:evil.example:80",
        "Host: localhost\r\nOrigin: http://evil.example",
        "Origin: null",
        "Host:",
    ] {
        assert_eq!(headers(foreign), "HTTP/1.1 403 Forbidden", "{foreign}");
    }
    let secret = with_admin().with_secret(lockkeeper_server::Secret::new(*b"x"));
    let guarded = wait(Server::start(secret)).unwrap();
    assert_eq!(get(&guarded, "/commands/dump").0, "HTTP/1.1 403 Forbidden");
    assert_eq!(get(&guarded, "/metrics").0, "HTTP/1.1 403 Forbidden");
    assert_eq!(get(&guarded, "/commands/ruok").0, "HTTP/1.1 200 OK");
    let everywhere = lockkeeper_server::Config::default().with_admin(([0, 0, 0, 0], 0).into());
    assert!(matches!(wait(Server::start(everywhere)), Err(lockkeeper_server::ServerError::NotLoopback { .. })));
}

#[test]
fn a_long_http_report_is_sent_in_chunks_and_is_whole() {
    let server = wait(Server::start(with_admin())).unwrap();
    let mut client = Client::connect(server.addr());
    let paths: Vec<String> = (0..2_000).map(|at| format!("/{}-{at}", "watched".repeat(20))).collect();
    let listed: Vec<&str> = paths.iter().map(String::as_str).collect();
    assert_eq!(client.call(SET_WATCHES, bytes().long(0).texts(&[]).texts(&listed).texts(&[])).error, 0);
    let (status, body) = get(&server, "/commands/watches_by_path");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let report: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(report["path_to_session_ids"].as_object().unwrap().len(), 2_000);
    // HTTP/1.0 has no chunks.
    let mut stream = socket(server.admin_addr().unwrap());
    std::io::Write::write_all(&mut stream, b"GET /commands/watches_by_path HTTP/1.0\r\n\r\n").unwrap();
    let text = std::io::read_to_string(stream).unwrap();
    assert_eq!(text.split_once("\r\n\r\n").unwrap().1, body);
}

/// Silent, endless and incomplete requests do not stop the service for clients.
#[test]
fn endless_http_clients_delay_no_other_client() {
    use std::io::Write;
    let server = wait(Server::start(with_admin())).unwrap();
    let _silent: Vec<_> = (0..10).map(|_| socket(server.admin_addr().unwrap())).collect();
    let mut endless = socket(server.admin_addr().unwrap());
    while endless.write_all(&[b'x'; 4096]).is_ok() {}
    assert_eq!(get(&server, "/health").0, "HTTP/1.1 200 OK");
    Client::connect(server.addr()).ping();
}

/// Times count until the answer: one that waits for the disk takes a moment, and a reset clears it.
#[test]
fn latencies_are_measured_and_reset() {
    let directory = tempfile::tempdir().unwrap();
    let server = wait(Server::start(with_words("all").with_directory(directory.path()))).unwrap();
    let mut client = Client::connect(server.addr());
    client.create("/a", 0).unwrap();
    let stats = server.stats();
    assert!(stats.latency_min <= stats.latency_mean && stats.latency_mean <= stats.latency_max, "{stats:?}");
    assert!(stats.latency_max > Duration::ZERO, "no disk is that fast");
    assert!(four_letters(server.addr(), "srvr").contains("\nLatency min/avg/max: "));
    assert_eq!(four_letters(server.addr(), "srst"), "Server stats reset.\n");
    let stats = server.stats();
    assert_eq!((stats.latency_max, stats.packets_received), (Duration::ZERO, 1), "the word itself is the first packet");
}

/// A liveness probe must get its answer.
#[test]
fn clients_that_send_half_a_head_keep_nobody_from_the_operators_port() {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    let config = lockkeeper_server::Config::default().with_admin("127.0.0.1:0".parse().unwrap());
    let server = wait(Server::start(config)).unwrap();
    let address = server.admin_addr().unwrap();
    let connect = |text: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let mut answer = String::new();
    let silent: Vec<_> = (0..16).map(|_| connect("GET /health HTTP/1.1\r\n")).collect();
    connect("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    // It has not waited for one of them.
    for mut stream in silent {
        stream.set_nonblocking(true).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
    // Of a crowd, the oldest ones go.
    let mut crowd: Vec<_> = (0..100).map(|_| connect("GET ")).collect();
    assert!(matches!(crowd[0].read(&mut [0]), Ok(0) | Err(_)));
    answer.clear();
    connect("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

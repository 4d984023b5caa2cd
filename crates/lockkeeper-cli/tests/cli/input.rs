//! Bad input: one clear line, an exit status of its own, and nothing is left behind.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::harness::{Home, Served, failure, refused};

#[test]
fn every_mistake_on_the_command_line_is_one_line_and_64() {
    let home = Home::new();
    let long = "x".repeat(2000);
    let cases: [(&[&str], &str); 44] = [
        (&["top"], "top needs a terminal"),
        (&[], "the verb is missing"),
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["run"], "required arguments were not provided: <NAME>"),
        (&["run", "a"], "required arguments were not provided"),
        (&["run", "a", "--"], "required"),
        (&["run", "a", "ls"], "required arguments were not provided: <COMMAND>"),
        (&["run", "a", "--bogus", "--", "true"], "unexpected argument '--bogus'"),
        (&["run", "a", "--wait", "5", "--", "true"], "time unit needed"),
        (&["run", "a", "--wait", "soon", "--", "true"], "invalid value 'soon'"),
        (&["run", "a", "--wait", "-1s", "--", "true"], "unexpected argument '-1'"),
        (&["run", "a", "--try", "--wait", "1s", "--", "true"], "cannot be used with"),
        (&["run", "a", "--conflict-exit-code", "300", "--", "true"], "300"),
        (
            &["run", "a", "--session-timeout", "0ms", "--", "true"],
            "--session-timeout: 0ms is out of range; choose one from 1ms",
        ),
        (&["run", "", "--", "touch", "ran"], "must not be empty"),
        (&["run", "/", "--", "touch", "ran"], "is the root of all nodes"),
        (&["run", "a//b", "--", "touch", "ran"], "empty component"),
        (&["run", "a/", "--", "touch", "ran"], "empty component"),
        (&["run", "../a", "--", "touch", "ran"], "relative component"),
        (&["run", "a\x1b[2Jb", "--", "touch", "ran"], "\\u{1b}"),
        (&["run", "/zookeeper/a", "--", "touch", "ran"], "belongs to the server"),
        (&["run", "/lockkeeper/locks/a", "--", "touch", "ran"], "where Lockkeeper keeps its own records"),
        (&["run", "a/lock-0000000000", "--", "touch", "ran"], "is the name of a contender's node"),
        (&["run", "/products/A-0000004711", "--lease", "1m", "--", "touch", "ran"], "write \"%41-0000004711\""),
        (&["run", &long, "--", "touch", "ran"], "longer than"),
        (&["run", "a", "b//c", "--", "touch", "ran"], "empty component"),
        (&["run", "a", "b", "/locks/a", "--", "touch", "ran"], "/locks/a is requested twice"),
        (&["run", "a", "--shared", "--exclusive", "--", "touch", "ran"], "cannot be used with"),
        (&["run", "a", "--shared", "--permits", "2", "--", "touch", "ran"], "cannot be used with"),
        (&["run", "a", "--permits", "2", "--class", "A", "--", "touch", "ran"], "cannot be used with"),
        (&["run", "a", "--foreground", "--background", "--", "touch", "ran"], "cannot be used with"),
        (&["run", "a", "--background", "--class", "C", "--", "touch", "ran"], "cannot be used with"),
        (&["run", "a", "--permits", "2", "--format", "kazoo", "--", "touch", "ran"], "cannot be used with"),
        (&["run", "a", "--background", "--format", "curator", "--", "touch", "ran"], "cannot be used with"),
        (&["run", "a", "--take", "2", "--", "touch", "ran"], "--take needs --permits COUNT"),
        (&["run", "a", "--permits", "0", "--", "touch", "ran"], "0 is not in 1.."),
        (&["run", "a", "--permits", "2", "--take", "0", "--", "touch", "ran"], "0 is not in 1.."),
        (&["run", "a", "--permits", "2", "--take", "3", "--", "touch", "ran"], "--take 3 asks for more than there are"),
        (&["run", "a", "--class", "A-B", "--", "touch", "ran"], "\"A-B\" is not a class"),
        (&["run", "a", "--format", "klingon", "--", "touch", "ran"], "invalid value 'klingon'"),
        (&["run", "a", "--on-revoke", "KILL", "--", "touch", "ran"], "invalid value 'KILL'"),
        (&["revoke"], "required arguments were not provided: <NAME>"),
        (&["revoke", "a", "--wait", "soon"], "invalid value 'soon'"),
        (&["list", "a//b"], "empty component"),
    ];
    for (args, say) in cases {
        let output = home.output(args);
        refused(&output, 64, say);
        assert!(output.stdout.is_empty());
    }
    assert!(!home.file("ran").exists());
    // Detected before anything was created or contacted.
    assert!(!home.state().exists());
}

/// 100 KB would fill the terminal, and the records.
#[test]
fn a_text_that_is_too_long_is_refused_before_anything_is_contacted() {
    let home = Home::new();
    let long = "xy".repeat(50_000);
    for (args, limit) in [
        (&["--slot", &long][..], "256"),
        (&["--lease", "1m", "--id", &long], "1024"),
        (&["--lease", "1m", "--id", "a", "--hand-to", &long], "1024"),
    ] {
        let output = home.output(&[&["run", "a"], args, &["--", "touch", "ran"]].concat());
        let (code, line) = failure(&output);
        assert_eq!(code, Some(64), "{line}");
        let told = line.contains("has 100000 bytes") && line.contains(&format!("limit is {limit}"));
        assert!(told && line.len() < 400, "{line}");
    }
    assert!(!home.file("ran").exists() && !home.state().exists());
}

/// The watchdog of the command could not count it.
#[test]
fn a_lease_beyond_the_clock_is_refused_and_the_longest_one_is_named_and_works() {
    let home = Home::new();
    let run = |lease: &str| home.output(&["run", "a", "--lease", lease, "--", "touch", "ran"]);
    let (code, line) = failure(&run("99999999999s"));
    assert_eq!(code, Some(64), "{line}");
    assert!(line.contains("'99999999999s'"), "{line}");
    let longest = line.rsplit("the longest lease is ").next().unwrap().to_owned();
    assert!(!home.file("ran").exists() && !home.state().exists());
    let held = run(&longest);
    assert!(held.status.success() && home.file("ran").exists(), "{longest}: {held:?}");
}

#[test]
fn bad_servers_are_named_before_anything_is_sent() {
    let home = Home::new();
    for (servers, say) in [
        ("zk1:http", "\"http\""),
        ("zk1:2181;zk2:2181", "has ';' in it: write commas between servers"),
        ("zk1:2181 zk2:2181", "has ' ' in it: write commas between servers"),
        ("zk1|zk2", "has '|' in it: write commas between servers"),
        ("zk://zk1:2181/app", "zk:// is the beginning of a URL: leave it out"),
        ("zk1,,zk2", "is not a server"),
        ("::1", "without brackets"),
        ("zk1:2181//x", "empty component"),
    ] {
        home.refuses(&["run", "a", "--servers", servers, "--", "touch", "ran"], 64, say);
    }
    assert!(!home.file("ran").exists());
}

#[test]
fn servers_that_are_none_are_told_apart() {
    // The first answers something else, the second closes the connection, and nothing listens at the third.
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let web_address = web.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut connection in web.incoming().flatten() {
            _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            _ = connection.shutdown(std::net::Shutdown::Write);
            _ = connection.read_to_end(&mut Vec::new());
        }
    });
    let shut = TcpListener::bind("127.0.0.1:0").unwrap();
    let shut_address = shut.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut connection in shut.incoming().flatten() {
            // Reads everything that was sent, because otherwise the close would reset the connection.
            _ = connection.shutdown(std::net::Shutdown::Write);
            _ = connection.read_to_end(&mut Vec::new());
        }
    });
    let home = Home::new();
    for (servers, say) in [
        (web_address.as_str(), "answers, but not as ZooKeeper does"),
        (&shut_address, "without an answer"),
        ("127.0.0.1:1", "refuses connections"),
    ] {
        let args = ["run", "a", "--servers", servers, "--wait", "1s", "--", "touch", "ran"];
        home.refuses(&args, 69, say);
    }
    assert!(!home.file("ran").exists());
}

#[test]
fn serve_refuses_what_it_cannot_do() {
    let home = Home::new();
    let served = Served::start(&home);
    let file = home.file("file");
    home.secret("file", "x");
    let foreign = home.file("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("notes"), "x").unwrap();
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--listen", "127.0.0.1:0", "--memory", "--tls-cert", "file"], 64, "--tls-key"),
        (&["--listen", "127.0.0.1:0", "--memory", "--tls-cert", "file", "--tls-key", "file"], 70, "key cannot be read"),
        (&["--listen", "127.0.0.1:0", "--memory", "--tls-cert", "file", "--tls-key", "/nowhere"], 64, "/nowhere"),
        (&["--listen", &served.address, "--memory"], 70, "is in use"),
        (&["--listen", "0.0.0.0:0", "--memory"], 64, "is reachable from other machines"),
        (&["--listen", "nowhere", "--memory"], 64, "invalid value 'nowhere'"),
        (&["--listen", "127.0.0.1:0", "--data", file.to_str().unwrap()], 70, "is not a directory"),
        (&["--listen", "127.0.0.1:0", "--data", foreign.to_str().unwrap()], 70, "not a data directory's"),
        (&["--memory", "--data", "/tmp/x"], 64, "cannot be used with"),
    ];
    for (args, expected, say) in cases {
        home.refuses(&[&["serve"], args].concat(), expected, say);
    }
}

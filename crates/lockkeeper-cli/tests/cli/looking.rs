//! docs/guide/look.md: what `lockkeeper` shows of the locks of clients that know nothing of it, and what that costs the servers.

use std::path::Path;

use lockkeeper_testkit::proxy::{Counts, OpCode, Proxy, What};

use crate::harness::{Home, Running, Served, names, text, until};
use crate::incidents::foreign::{Foreign, Nodes};
use crate::plain::Plain;
use crate::terminal::Screen;

fn page() -> String {
    text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/look.md"))
}

/// A server with so many locks of foreign clients, each with a holder and a waiter.
fn foreign_locks(count: usize) -> (Home, Served, Vec<Nodes>) {
    let machine = Home::new();
    let served = Served::start(&machine);
    let mut clients: Vec<_> =
        ["curator", "curator", "kazoo", "kazoo"].map(|format| Nodes::connect(&served.address, format)).into();
    for number in 0..count {
        let pair = if number % 2 == 0 { 0..2 } else { 2..4 };
        let name = if number == 0 { "import".to_owned() } else { format!("other-{number}") };
        clients[pair].iter_mut().for_each(|client| client.join(&name));
    }
    (machine, served, clients)
}

/// Returns the number of requests, and how many of them the servers order as writes.
fn requests(counts: &Counts) -> [u64; 2] {
    let writes =
        [OpCode::CreateSession, OpCode::CloseSession, OpCode::Check, OpCode::SetData, OpCode::Create, OpCode::Create2];
    [counts.requested.total() - counts.requested.of(OpCode::Ping), counts.requested.of_any(&writes)]
}

#[test]
fn looking_at_foreign_locks_changes_no_node_and_costs_what_the_page_says() {
    let page = page();
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let command = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        let numbers: Vec<u64> = cells[2..].iter().map_while(|cell| cell.parse().ok()).collect();
        (numbers.len() == 3).then(|| (command.to_owned(), [numbers[0], numbers[1], numbers[2]]))
    });
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 5, "{rows:?}");
    let mut counted: Vec<_> = rows.iter().map(|(command, _)| (command.clone(), [0; 3])).collect();
    for (at, count) in [3, 100].into_iter().enumerate() {
        let (_machine, served, _clients) = foreign_locks(count);
        let before = Plain::connect(&served.address).tree();
        let proxy = Proxy::start_blocking(served.address.parse().unwrap());
        let home = Home::with_servers(&proxy.connect_string());
        for (command, numbers) in &mut counted {
            let earlier = proxy.counts();
            home.ok(&command.split(' ').skip(1).collect::<Vec<_>>());
            let [all, writes] = requests(&proxy.counts().since(&earlier));
            assert!(at == 0 || writes == numbers[2], "{command}: {writes} writes and {}", numbers[2]);
            (numbers[at], numbers[2]) = (all, writes);
        }
        assert_eq!(Plain::connect(&served.address).tree(), before, "a look has changed a node");
    }
    assert_eq!(counted, rows);
}

#[test]
fn observing_foreign_locks_changes_no_node_and_costs_a_read_for_each_contender() {
    let (machine, served, mut clients) = foreign_locks(3);
    let before = Plain::connect(&served.address).tree();
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let home = Home::with_servers(&proxy.connect_string());
    let mut observer = Running::start(&mut home.command(&["observe", "/", "--listen", "127.0.0.1:0"]));
    names(&observer.told_of("observing /"), &["3 locks in use, 3 waiting"]);
    // No job ever ran here.
    let looks = |what: &What| matches!(what, What::Reply { op: OpCode::Exists, path: Some(path), .. } if path == "/lockkeeper/jobs");
    until("it waits for the first job", || proxy.records().iter().any(|record| looks(&record.what)));
    assert_eq!(Plain::connect(&served.address).tree(), before, "it has changed a node");

    let earlier = proxy.counts();
    clients[3].join("import");
    let since = || proxy.counts().since(&earlier);
    until("it has read the new contender", || since().delivered.of(OpCode::GetData) > 0);
    clients[3].leave();
    until("it has seen the ends of all three", || since().watch_events >= 3);
    assert_eq!(since().requested.of(OpCode::GetData), 1, "{:?}", since());
    drop((observer, machine));
}

#[test]
fn the_commands_of_the_page_show_the_locks_of_foreign_clients() {
    let (_machine, served, _clients) = foreign_locks(3);
    let home = Home::with_servers(&served.address);
    let page = page();
    let block = page.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let mut ran = Vec::new();
    for line in block.lines() {
        let Some(words) = line.split('#').next().unwrap().trim().strip_prefix("lockkeeper ") else { continue };
        let words = shlex::split(words).unwrap();
        let verb = words[0].clone();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match verb.as_str() {
            "observe" => {
                let mut observer =
                    Running::start(&mut home.command(&[&words[..], &["--listen", "127.0.0.1:0"]].concat()));
                assert!(observer.line().starts_with("http://"));
                let journal = home.file("journal/history.jsonl");
                until("the journal has the three locks", || {
                    std::fs::read_to_string(&journal).is_ok_and(|journal| journal.contains("/locks/import"))
                });
            }
            "top" => {
                let line = format!("LOCKKEEPER_SERVERS={} exec \"$lockkeeper\" {}", served.address, words.join(" "));
                let mut screen = Screen::start(&home, "sh", &["-c", &line]);
                screen.expect("import");
                screen.press(b"q");
                screen.rest();
            }
            _ => {
                let shown = home.ok(&words);
                assert!(verb == "deadlocks" || shown.contains("import"), "{line}: {shown}");
            }
        }
        ran.push(verb);
    }
    assert_eq!(ran, ["list", "why", "deadlocks", "top", "observe"]);
}

/// Real clients: two programs with Curator's mutex, and two with Kazoo's lock that wait for each other. Addresses, sessions, times and
/// ages are replaced, because they differ each time. `cargo xtask interop look` runs it.
#[cfg(deep)]
#[test]
fn the_picture_of_foreign_locks_shows_what_a_terminal_shows() {
    use std::time::{SystemTime, UNIX_EPOCH};

    use crate::first_page::{compare, shown};
    use crate::incidents::foreign::Program;

    let servers = std::env::var("LOCKKEEPER_TEST_ZOOKEEPER").expect("run `cargo xtask interop look`");
    let home = Home::with_servers(&servers);
    let mut queue = [(); 2].map(|()| Program::curator(&servers));
    // If the next client comes within a second, the grant is known to a second. The usual case is shown: it comes later.
    let is_old = |lock: &str| {
        let since = home.show(lock)["holders"][0]["since_ms"].as_u64().unwrap();
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() > u128::from(since) + 1500
    };
    for (at, program) in queue.iter_mut().enumerate() {
        program.join("orders");
        until("it is in the queue", || home.count("orders") == (1, at));
        until("the holder is there for longer", || is_old("orders"));
    }
    let mut ring = ["billing", "shipping"].map(|name| Program::kazoo_as(&servers, name));
    for (program, lock) in ring.iter_mut().zip(["stock", "prices"]) {
        program.join(lock);
        until("it holds the lock", || home.count(lock) == (1, 0));
        until("it holds the lock for longer", || is_old(lock));
    }
    for (program, lock) in ring.iter_mut().zip(["prices", "stock"]) {
        program.join(lock);
        until("it waits", || home.count(lock) == (1, 1));
    }
    let (mut lines, mut sessions) = (Vec::new(), Vec::new());
    for typed in ["lockkeeper list /locks", "lockkeeper why orders", "lockkeeper deadlocks /locks"] {
        lines.push(format!("ops$ {typed}"));
        let shown: Vec<_> = shown(&home, &servers, typed).iter().map(|line| steady(line, &mut sessions)).collect();
        lines.extend(if typed.contains(" list ") { steady_table(&shown) } else { shown });
    }
    compare("look", &lines);
}

/// Replaces what differs each time. What replaces it is as long, because the terminal has folded the lines.
#[cfg(deep)]
fn steady(line: &str, sessions: &mut Vec<String>) -> String {
    let address = if line.starts_with("  1. ") { "10.0.3.8" } else { "10.0.3.7" };
    let line = line.replace("127.0.0.1", address);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == ':';
    let mut steady = String::new();
    for part in line.split_inclusive(|c| !is_word(c)) {
        let word = part.trim_end_matches(|c| !is_word(c));
        let is_time = word.len() == 8 && word.bytes().filter(|byte| *byte == b':').count() == 2;
        let is_hex = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        steady += &match word.strip_prefix("0x") {
            _ if is_time => part.replace(word, "14:02:11"),
            Some(session) if is_hex(session) => {
                if !sessions.iter().any(|known| known == session) {
                    sessions.push(session.to_owned());
                }
                let number = sessions.iter().position(|known| known == session).unwrap();
                part.replace(word, &format!("0x10001e4f266{number:04}"))
            }
            _ if word.len() == 32 && is_hex(word) => part.replace(word, "36d81e4ff90c45fda6ab505cf3194176"),
            _ => part.to_owned(),
        };
    }
    let steady = match steady.split_once(" ago") {
        Some((before, after)) if before.contains(", ") => {
            format!("{}, 41 s ago{after}", before.rsplit_once(", ").unwrap().0)
        }
        _ => steady,
    };
    // The holder came ten seconds before the queue last changed.
    let steady = steady.replace("at the latest, queued since 14:02:11", "at the latest, queued since 14:02:01");
    match steady.split_once(" answered ") {
        Some((session, _)) => format!("{session} answered 0.8 s ago, from 10.0.3.7:52010"),
        None => steady,
    }
}

/// The same of the columns with ages. They are as wide as what replaces them.
#[cfg(deep)]
fn steady_table(lines: &[String]) -> Vec<String> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in lines {
        let mut cells: Vec<_> =
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
        if cells.len() > 2 && cells[0] != "LOCK" {
            (cells[2], cells[5]) = ("<51s".to_owned(), "41s".to_owned());
        }
        rows.push(cells);
    }
    let is_row = |row: &&Vec<String>| row.len() > 2;
    let width =
        |at: usize| rows.iter().filter(is_row).filter_map(|row| row.get(at)).map(String::len).max().unwrap_or(0);
    let draw = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(at, cell)| match at {
            _ if row.len() <= 2 => cell.clone(),
            2..7 => format!("{cell:>width$}", width = width(at)),
            _ => format!("{cell:<width$}", width = width(at)),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(draw).collect()
}

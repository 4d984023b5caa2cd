//! `top` and `list --watch`, on a real terminal.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::{Cut, ErrorCode, OpCode, Proxy};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::harness::{Home, Running, Served, failure, names, served, until};
use crate::incidents::foreign::{Foreign, Nodes};
use crate::terminal::Screen;

/// Every change comes by itself; nothing is read again without one.
#[test]
fn top_shows_each_change_and_a_person_ends_a_hold_from_it() {
    let home = Home::new();
    let mut holder = home.starts(
        "nightly",
        &["-m", "index"],
        "trap 'echo told; exit 0' TERM; echo up; until [ -e stop ]; do sleep 0.01; done",
    );
    let mut screen = Screen::with_columns(80, &home, crate::harness::BINARY, &["top"]);
    let mut terminal = vt100::Parser::new(24, 80, 0);
    let mut shows = |screen: &mut Screen, text: &str| screen.until_shown(&mut terminal, text);
    shows(&mut screen, "1 in use, 0 waited for");
    let mut waiter = home.spawn("nightly", &[], "echo in; cat");
    let table = shows(&mut screen, "1 in use, 1 waited for");
    names(&table, &["\nnightly  ", "(index)"]);
    screen.press(b"\r");
    let queue = shows(&mut screen, "1 ahead");
    names(&queue, &["\n/locks/nightly ", "\nholds "]);
    screen.press(b"R");
    shows(&mut screen, "reason to ask ");
    // A request without a reason is not sent.
    screen.press(b"\rdeploying\r");
    shows(&mut screen, "asked ");
    assert_eq!(holder.line(), "told");
    assert_eq!(waiter.line(), "in");
    shows(&mut screen, "1 in use, 0 waited for");
    screen.press(b"qB");
    shows(&mut screen, "reason to break ");
    screen.press(b"gone\r");
    shows(&mut screen, "type yes to break ");
    screen.press(b"no\r");
    shows(&mut screen, "nothing was broken");
    assert_eq!(home.count("nightly"), (1, 0));
    screen.press(b"Bgone\ryes\r");
    shows(&mut screen, "was taken from");
    assert_eq!(waiter.wait().code(), Some(76));
    shows(&mut screen, "0 in use");
    screen.press(b"d");
    shows(&mut screen, "no contenders wait for each other in a ring");
    screen.press(b"qq");
    assert!(screen.end().success());
    holder.wait();
}

/// As in `lockkeeper list --watch | head -1`.
#[test]
fn what_follows_for_ever_ends_when_nobody_reads_it_any_more() {
    let home = Home::new();
    home.ok(&["run", "a", "--", "true"]);
    for verb in [&["list", "--watch"][..], &["history", "a", "--follow"]] {
        let mut command = home.command(verb);
        let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(follower.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let mut status = None;
        until("it ends at the next change", || {
            home.output(&["run", "a", "--", "true"]);
            status = follower.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success() && !first.is_empty(), "{verb:?} {first}");
    }
}

/// The name, the holder, the number of waiters and the contenders per hour in each row of a table: all that does not change with the time.
fn rows(table: &str) -> Vec<[String; 4]> {
    let cells =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect();
    let lines = table.lines().skip_while(|line| !line.starts_with("LOCK ")).skip(1).map(cells);
    let rows = lines.map_while(|cells: Vec<String>| <[String; 7]>::try_from(cells.get(..7)?.to_vec()).ok());
    rows.map(|[lock, holder, _, _, waiting, _, rate]| [lock, holder, waiting, rate]).collect()
}

/// A tree of locks, in each of which the holder releases the lock when the next contender has come.
struct Busy {
    client: Client,
    locks: Vec<VecDeque<String>>,
    changes: usize,
}

impl Busy {
    async fn new(servers: &str, locks: usize) -> Self {
        let client = Client::connect(servers).await.unwrap();
        let mut busy = Busy { client, locks: vec![VecDeque::new(); locks], changes: 0 };
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for path in ["/locks".to_owned()].into_iter().chain((0..locks).map(|lock| format!("/locks/{lock}"))) {
            busy.client.create(&path, b"", &persistent).await.unwrap();
        }
        for lock in 0..locks {
            busy.join(lock).await;
        }
        busy
    }

    async fn join(&mut self, lock: usize) {
        let name = format!("/locks/{lock}/_c_6a58ee75-b8ac-4f38-a22d-2a2b3cf6e4f8-lock-");
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        // Of each contender another address, so that a table shows which one holds the lock.
        let address = format!("10.0.{}.{}", self.changes / 250 % 250, self.changes % 250);
        let (_, number) = self.client.create(&name, address.as_bytes(), &ephemeral).await.unwrap();
        self.locks[lock].push_back(format!("{name}{number}"));
        self.changes += 1;
    }

    async fn hand_over(&mut self) {
        // The locks have no order that a walk has.
        let lock = self.changes * 7919 % self.locks.len();
        self.join(lock).await;
        let holder = self.locks[lock].pop_front().unwrap();
        self.client.delete(&holder, None).await.unwrap();
        self.changes += 1;
    }
}

/// How long a process has run on a core.
fn on_core(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Prints what share of a core each of them took meanwhile.
#[test]
fn what_follows_a_busy_tree_has_missed_nothing_when_the_tree_rests() {
    const WAITED_FOR: usize = 12;
    let (locks, handovers, pause) =
        if is_deep() { (5_000, 3_000, Duration::from_millis(10)) } else { (40, 200, Duration::ZERO) };
    let (served, home) = served();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut busy = runtime.block_on(Busy::new(&served.address, locks));
    let line = |verb: &str| format!("LOCKKEEPER_SERVERS={} exec \"$lockkeeper\" {verb} --sort wait", served.address);
    let mut followers = ["top", "list --watch"].map(|verb| {
        let mut screen = Screen::start(&home, "sh", &["-c", &line(verb)]);
        let mut terminal = vt100::Parser::new(24, 200, 0);
        screen.until_it_shows(&mut terminal, "a table", |shown| !rows(shown).is_empty());
        (verb, screen, terminal)
    });
    let mut observer =
        Running::start(&mut home.command(&["observe", "/locks", "--journal", "j", "--listen", "127.0.0.1:0"]));
    let _said = observer.told_of("observing /locks");
    let pids = [followers[0].1.pid(), followers[1].1.pid(), observer.pid().as_raw_nonzero().get() as u32];
    let (before, begun) = (pids.map(on_core), Instant::now());
    runtime.block_on(async {
        let mut times = tokio::time::interval(pause.max(Duration::from_millis(1)));
        for _ in 0..handovers {
            if !pause.is_zero() {
                times.tick().await;
            }
            busy.hand_over().await;
        }
    });
    let took = begun.elapsed();
    for ((name, pid), before) in ["top", "list --watch", "observe"].into_iter().zip(pids).zip(before) {
        let share = (on_core(pid) - before).as_secs_f64() / took.as_secs_f64() * 100.0;
        println!("{name}: {share:.1} % of a core for {} changes of {locks} locks in {took:.0?}", 2 * handovers);
    }
    for lock in 0..WAITED_FOR {
        runtime.block_on(busy.join(lock));
    }
    let fresh = rows(&home.ok(&["list", "--sort", "wait"]));
    assert!(fresh.len() == locks && fresh[WAITED_FOR - 1][2] == "1" && fresh[WAITED_FOR][2] == "0", "{fresh:?}");
    for (verb, screen, terminal) in &mut followers {
        let same = |shown: &str| {
            let rows = rows(shown);
            rows.len() > WAITED_FOR && rows[..] == fresh[..rows.len()]
        };
        screen.until_it_shows(terminal, &format!("{verb}: {:?}", &fresh[..24.min(locks)]), same);
    }
    let count = |journal: &str, fact: &str| journal.matches(&format!("\"fact\":\"{fact}\"")).count();
    until("the journal has all changes", || {
        let journal: String = ["j/history.1.jsonl", "j/history.jsonl"]
            .map(|file| std::fs::read_to_string(home.file(file)).unwrap_or_default())
            .concat();
        let counts = ["entered", "granted", "ended", "left_waiting", "gap"].map(|fact| count(&journal, fact));
        counts == [locks + handovers + WAITED_FOR, locks + handovers, handovers, 0, 0]
    });
}

/// What it shows while the servers are away is said to be out of date, and afterwards it is not.
#[test]
fn a_watched_list_says_that_its_connection_is_lost_and_goes_on_when_it_is_back() {
    let served = Served::start(&Home::new());
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let mut client = Nodes::connect(&served.address, "curator");
    client.join("before");
    let home = Home::with_servers(&proxy.connect_string());
    let mut list = Running::start(&mut home.command(&["list", "--watch"]));
    while !list.line().starts_with("before ") {}
    proxy.refuse();
    proxy.cut(Cut::Reset);
    let mut line = list.line();
    while !line.starts_with("! ") {
        line = list.line();
    }
    names(&line, &["the connection to ", " is lost: changes of /locks are not seen"]);
    client.leave();
    client.join("after");
    proxy.heal();
    while !list.line().starts_with("after ") {}
    client.leave();
    while list.line() != "LOCK  HOLDER  HELD  USUAL  WAITING  OLDEST  /H  STATE" {}
}

/// Servers before ZooKeeper 3.6 do not know the watch.
#[test]
fn without_a_watch_of_a_tree_top_reads_at_each_key_and_a_watched_list_is_refused() {
    let served = Served::start(&Home::new());
    let proxy = Proxy::start_blocking(served.address.parse().unwrap());
    let _old = proxy.on(OpCode::AddWatch).every().refuse_reply(ErrorCode::Unimplemented);
    let mut client = Nodes::connect(&served.address, "curator");
    client.join("a");
    let home = Home::with_servers(&proxy.connect_string());
    let (code, said) = failure(&home.output(&["list", "--watch"]));
    assert_eq!((code, said.contains("these servers have no watch of a tree")), (Some(77), true), "{said}");
    let line = format!("LOCKKEEPER_SERVERS={} exec \"$lockkeeper\" top", proxy.connect_string());
    let mut screen = Screen::with_columns(100, &home, "sh", &["-c", &line]);
    let mut terminal = vt100::Parser::new(24, 100, 0);
    screen.until_shown(&mut terminal, "1 in use, 0 waited for");
    screen.until_shown(&mut terminal, "any key reads again");
    client.join("b");
    screen.press(b"n");
    let table = screen.until_shown(&mut terminal, "2 in use, 0 waited for");
    names(&table, &["\na  ", "\nb  "]);
}

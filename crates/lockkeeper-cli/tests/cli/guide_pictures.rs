//! The pictures of the guide that show who gets a lock when. Each one is drawn from what real commands and servers did.

use serde_json::Value;

use crate::harness::{Home, Running, Served, names, served, until};
use crate::pictures::{self, Chart, State};
use crate::plain::Plain;

/// A command that says that it runs, and ends with its standard input.
const RUNS: &str = "echo runs; cat";

/// A command that says that it is asked to end, and then ends with its standard input.
const CLEANS_UP: &str = "trap 'echo asked' TERM; echo runs; cat; cat; true";

/// A command that is in the queue of a lock, or was.
struct Contender {
    name: &'static str,
    run: Option<Running>,
    /// What it ended with.
    ended: Option<String>,
}

impl Contender {
    /// Starts `lockkeeper run LOCK`. Its message is its name.
    fn start(home: &Home, name: &'static str, lock: &str, args: &[&str]) -> Self {
        let run = home.spawn(lock, &[&["-m", name], args].concat(), RUNS);
        Contender { name, run: Some(run), ended: None }
    }

    fn absent(name: &'static str) -> Self {
        Contender { name, run: None, ended: None }
    }

    /// Waits until its command runs.
    fn runs(&mut self) {
        assert_eq!(self.run.as_mut().unwrap().line(), "runs", "{}", self.name);
    }

    /// Ends its command, and waits until the lock is released.
    fn release(&mut self) {
        let mut run = self.run.take().unwrap();
        run.close_stdin();
        let status = run.wait();
        assert!(status.success(), "{status}");
        self.ended = Some("released".to_owned());
    }

    /// Its state in what `show --json` says.
    fn state(&self, lock: &Value) -> State {
        let find =
            |list: &str| lock[list].as_array().unwrap().iter().find(|contender| contender["message"] == self.name);
        match (find("holders"), find("waiters"), &self.ended) {
            (Some(holder), None, _) if holder["process_gone"] == true => {
                State::Killed("is killed, and still holds".to_owned())
            }
            (Some(_), None, None) => State::Holds("holds".to_owned()),
            (None, Some(waiter), None) => State::Waits(format!("waits, {} ahead", waiter["ahead"])),
            (None, None, None) => State::Absent,
            (None, None, Some(ended)) => State::Ended(ended.clone()),
            (holder, waiter, ended) => panic!("{}: {holder:?} {waiter:?} {ended:?}", self.name),
        }
    }
}

fn states(lock: &Value, contenders: &[Contender]) -> Vec<State> {
    contenders.iter().map(|contender| contender.state(lock)).collect()
}

fn compare(name: &str, charts: &[Chart]) {
    pictures::compare(name, &pictures::draw(charts), &pictures::text(charts));
}

#[test]
fn the_picture_of_a_queue_shows_who_is_granted_a_lock_after_whom() {
    let home = Home::new();
    let mut chart = Chart::new("Four commands want the lock /locks/orders", &["A", "B", "C", "D"]);
    let mut all = ["A", "B", "C", "D"].map(Contender::absent);
    for at in 0..all.len() {
        let args: &[&str] = if at == 1 { &["--session-timeout", "6s"] } else { &[] };
        all[at] = Contender::start(&home, all[at].name, "orders", args);
        until("it is in the queue", || home.count("orders") == (1, at));
        let event = match at {
            0 => {
                all[at].runs();
                "A comes. The lock is free".to_owned()
            }
            _ => format!("{} comes, and waits behind the others", all[at].name),
        };
        chart.row(&event, states(&home.show("orders"), &all));
    }
    all[0].release();
    all[1].runs();
    chart.row("A releases the lock: the first waiter is granted it", states(&home.show("orders"), &all));
    let killed = all[1].run.as_mut().unwrap();
    killed.kill();
    chart.row("B is killed. The servers wait until its session expires", states(&home.show("orders"), &all));
    all[2].runs();
    all[1].ended = Some("its session has expired".to_owned());
    chart.row(
        "The session of B expires: its node is gone, and the next one is granted",
        states(&home.show("orders"), &all),
    );
    all[2].release();
    all[3].runs();
    chart.row("C releases the lock", states(&home.show("orders"), &all));
    all[3].release();
    until("it is free", || home.count("orders") == (0, 0));
    compare("queue", &[chart]);
}

/// Foreground and background on one object, as in the scenarios of Contentserv's document.
struct Article<'h> {
    home: &'h Home,
    path: &'static str,
    chart: Chart,
    clients: Vec<Contender>,
    plain: Plain,
}

impl<'h> Article<'h> {
    fn new(home: &'h Home, address: &str, path: &'static str, heading: &str, clients: &[(&'static str, &str)]) -> Self {
        let nodes = format!("nodes below\n{path}");
        let lanes: Vec<_> = clients.iter().map(|(name, class)| format!("{name}\n{class}")).chain([nodes]).collect();
        let chart = Chart::new(heading, &lanes.iter().map(String::as_str).collect::<Vec<_>>());
        let clients = clients.iter().map(|(name, _)| Contender::absent(name)).collect();
        Article { home, path, chart, clients, plain: Plain::connect(address) }
    }

    /// A client comes, and gets the lock or waits.
    fn comes(&mut self, client: usize, class: &str, event: &str) {
        let ahead = self.home.count(self.path);
        let name = self.clients[client].name;
        self.clients[client] = Contender::start(self.home, name, self.path, &[class]);
        if ahead == (0, 0) {
            self.clients[client].runs();
        }
        until("it is in the queue", || self.home.count(self.path) == (1, ahead.0 + ahead.1));
        self.row(event);
    }

    /// A client releases the lock, and another one gets it.
    fn releases(&mut self, client: usize, next: Option<usize>, event: &str) {
        self.clients[client].release();
        if let Some(next) = next {
            self.clients[next].runs();
        }
        self.row(event);
    }

    fn row(&mut self, event: &str) {
        let nodes = self.plain.names(self.path);
        let nodes = if nodes.is_empty() { "none".to_owned() } else { nodes.join("\n") };
        let lock = self.home.show(self.path);
        let states = states(&lock, &self.clients).into_iter().chain([State::Read(nodes)]);
        self.chart.row(event, states.collect());
    }
}

#[test]
fn the_picture_of_contentservs_scenarios_shows_foreground_before_background() {
    let (served, home) = served();
    let article = |path, heading: &str, clients: &[(&'static str, &str)]| {
        Article::new(&home, &served.address, path, heading, clients)
    };
    let (foreground, background) = ("--foreground", "--background");

    let both = [("Client1", "foreground"), ("Client2", "foreground")];
    let mut first = article("/P1", "Scenario 1: two people save one article", &both);
    first.comes(0, foreground, "Client1 saves P1. It is first, and creates privateLock");
    first.comes(1, foreground, "Client2 saves P1 too, and waits for Client1");
    first.releases(0, Some(1), "Client1 has saved, and deletes its nodes. Client2 is granted the lock");
    first.releases(1, None, "Client2 has saved");

    let both = [("Client1", "background"), ("Client2", "background")];
    let mut second = article("/P2", "Scenario 2: two bulk propagations change one article", &both);
    second.comes(0, background, "Client1 propagates to P2");
    second.comes(1, background, "Client2 propagates too, and waits for Client1");
    second.releases(0, Some(1), "Client1 has finished. Client2 is granted the lock");
    second.releases(1, None, "Client2 has finished");

    let three = [("Client1", "foreground"), ("Client2", "background"), ("Client3", "foreground")];
    let mut third =
        article("/P3", "Scenario 3: a person is served before a bulk propagation that came earlier", &three);
    third.comes(0, foreground, "Client1 saves P3");
    third.comes(1, background, "Client2 propagates to P3, and waits");
    third.comes(2, foreground, "Client3 saves P3: it waits ahead of Client2, although it came later");
    third.releases(0, Some(2), "Client1 has saved. Client3 is granted the lock");
    third.releases(2, Some(1), "Client3 has saved. No foreground waits, so Client2 is granted the lock");
    third.releases(1, None, "Client2 has finished");
    compare("contentserv", &[first.chart, second.chart, third.chart]);
}

/// Settings with two realms: one name in both of them is two locks.
#[test]
fn the_picture_of_realms_shows_that_each_has_its_own_locks() {
    let (one, two, home) = (Home::new(), Home::new(), Home::new());
    let (first, second) = (Served::start(&one), Served::start(&two));
    let realms = format!("\"/locks/search\" = \"{}\"\n\"/locks/billing\" = \"{}\"\n", first.address, second.address);
    std::fs::write(home.file("realms.toml"), format!("[realms]\n{realms}")).unwrap();
    let config: &[&str] = &["--config", "realms.toml"];
    // Each server is asked itself: a lock is only where it was created.
    let (here, there) = (Home::with_servers(&first.address), Home::with_servers(&second.address));
    let lanes = ["db1\nsearch/nightly", "db2\nsearch/nightly", "db3\nbilling/nightly"];
    let mut chart = Chart::new("The name nightly in the realms /locks/search and /locks/billing", &lanes);
    let mut all = ["db1", "db2", "db3"].map(Contender::absent);
    let mut row = |all: &[Contender], event: &str| {
        let seen = |home: &Home, lock: &str, of: &[Contender]| match home.count(lock) {
            (0, 0) => of.iter().map(|it| it.ended.clone().map_or(State::Absent, State::Ended)).collect(),
            _ => states(&home.show(lock), of),
        };
        assert_eq!((here.count("billing/nightly"), there.count("search/nightly")), ((0, 0), (0, 0)));
        let both = [seen(&here, "search/nightly", &all[..2]), seen(&there, "billing/nightly", &all[2..])];
        chart.row(event, both.concat());
    };
    all[0] = Contender::start(&home, "db1", "search/nightly", config);
    all[0].runs();
    row(&all, "db1 asks the servers of /locks/search");
    all[2] = Contender::start(&home, "db3", "billing/nightly", config);
    all[2].runs();
    row(&all, "db3 asks those of /locks/billing: another lock, so both hold");
    all[1] = Contender::start(&home, "db2", "search/nightly", config);
    until("it waits", || here.count("search/nightly") == (1, 1));
    row(&all, "db2 asks the servers of /locks/search, where db1 holds the lock");
    all[0].release();
    all[1].runs();
    row(&all, "db1 releases the lock: the next one of its realm is granted it");
    all[2].release();
    row(&all, "db3 releases the lock: nobody waits for it in its realm");
    all[1].release();
    compare("realms", &[chart]);
}

/// An owner of a leased lock, and a requestor with a higher priority or after the lease.
struct Lease {
    home: Home,
    chart: Chart,
    owner: Running,
    requestor: Option<Running>,
    states: [State; 2],
}

impl Lease {
    /// The owner `batch` holds the lock.
    fn held(home: Home, heading: &str, requestor: &str, args: &[&str], script: &str, event: &str) -> Self {
        let chart = Chart::new(heading, &["batch, priority 1", requestor]);
        let args = [&["--id", "batch", "--priority", "1"], args].concat();
        let mut owner = home.spawn("db7", &args, script);
        assert_eq!(owner.line(), "runs");
        let states = [State::Holds("holds".to_owned()), State::Absent];
        let mut lease = Lease { home, chart, owner, requestor: None, states };
        assert_eq!(lease.record()["owner"], "batch");
        lease.row(event);
        lease
    }

    fn record(&self) -> Value {
        self.home.show("db7")["lease"].clone()
    }

    fn row(&mut self, event: &str) {
        self.chart.row(event, self.states.to_vec());
    }

    /// Another one asks, the owner is told to clean up, and says so; `limit`: how long the requestor says that it waits.
    fn asks(&mut self, args: &[&str], limit: &str, event: &str) {
        let mut requestor = self.home.spawn("db7", &[&["--lease", "1h"], args].concat(), RUNS);
        assert_eq!(self.owner.line(), "asked");
        names(&requestor.told_of("waiting for "), &["held by batch", limit]);
        self.requestor = Some(requestor);
        self.states =
            [State::Asked("cleans up".to_owned()), State::Waits(format!("waits {limit}").trim_end().to_owned())];
        self.row(event);
    }

    /// The requestor has the lock, and the owner has ended with this status.
    fn passes(&mut self, status: i32, event: &str) -> String {
        let requestor = self.requestor.as_mut().unwrap();
        assert_eq!(requestor.line(), "runs");
        let said = self.owner.ends(status);
        self.states = [State::Ended(format!("ends with status {status}")), State::Holds("holds".to_owned())];
        assert_ne!(self.record()["owner"], "batch");
        self.row(event);
        said
    }
}

/// H-15: the command outlives its lease until another command asks for the lock, whatever its priority.
/// H-16: the other one starts when the first has ended.
#[test]
fn the_picture_of_priorities_shows_what_the_three_timeouts_decide() {
    let (cleanup, urgent) = (["--lease", "1h", "--cleanup", "1h"], "urgent, priority 5");
    let asking = ["--id", "urgent", "--priority", "5"];

    let heading = "Cleaned up in time";
    let event = "batch is granted a lease of 1 h, and may need 1 h to clean up";
    let mut first = Lease::held(Home::new(), heading, urgent, &cleanup, CLEANS_UP, event);
    first.asks(&asking, "for at most 1 h", "urgent asks. batch gets SIGTERM, and has its cleanup timeout");
    first.owner.close_stdin();
    first.passes(76, "batch has cleaned up and ends: the lock passes to urgent");

    let heading = "Cleanup timeout over, with --forceful";
    let event = "batch is granted a lease of 1 h, and may need 3 s to clean up";
    let args = ["--lease", "1h", "--cleanup", "3s"];
    let mut second = Lease::held(Home::new(), heading, urgent, &args, CLEANS_UP, event);
    let force = [&asking[..], &["--forceful"]].concat();
    second.asks(&force, "for at most 3 s", "urgent asks");
    second.passes(76, "The cleanup timeout is over: batch is killed, and urgent takes the lock");

    let heading = "Waiting timeout over, without --forceful";
    let event = "batch is granted a lease of 1 h, and may need 1 h to clean up";
    let mut third = Lease::held(Home::new(), heading, urgent, &cleanup, CLEANS_UP, event);
    let waiting = [&asking[..], &["--waiting", "3s"]].concat();
    third.asks(&waiting, "for at most 3 s", "urgent asks, and has a shorter waiting timeout");
    let (code, said) = third.requestor.as_mut().unwrap().end();
    assert_eq!(code, Some(75), "{said}");
    assert_eq!((&third.record()["owner"], &third.record()["requestor"]), (&"batch".into(), &Value::Null));
    third.states = [State::Holds("holds".to_owned()), State::Ended("ends with status 75".to_owned())];
    third.row("The waiting timeout is over: urgent gives up, and batch keeps the lock");

    let heading = "Lease timeout over";
    let event = "batch is granted a lease of 300 ms";
    let args = ["--lease", "300ms", "--cleanup", "1h"];
    let mut fourth = Lease::held(Home::new(), heading, "report, priority 0", &args, CLEANS_UP, event);
    let over = || fourth.record()["until_ms"].as_i64() < Some(jiff::Timestamp::now().as_millisecond());
    until("the lease is over", over);
    assert_eq!(fourth.record()["owner"], "batch");
    fourth.row("The lease is over, and nobody asks: batch keeps the lock");
    fourth.asks(&["--id", "report"], "", "report asks, with a lower priority");
    fourth.owner.close_stdin();
    let said = fourth.passes(76, "batch ends: the lock passes to report");
    names(&said, &["its lease is over", "SIGTERM"]);
    compare("priorities", &[first.chart, second.chart, third.chart, fourth.chart]);
}

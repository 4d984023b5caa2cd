//! Pastes each printed command into a shell on another terminal, and checks that it does what its label says.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::rc::Rc;

use serde_json::Value;

use crate::harness::{BINARY, Home, Running, Served, names, served, stderr, until};
use crate::incidents::foreign::{Foreign, Nodes};
use crate::terminal::Screen;

/// A name with every character that a shell would interpret.
const ODD: &str = "it's a \"$HOME\" `id`; # & name";

/// The name of a state directory that a shell would misread without quotes.
const ODD_DIR: &str = "a state's $(dir)";

/// Returns a shell that runs a printed command in another terminal: no LOCKKEEPER_ variable, another directory.
fn paste(command: &str) -> Command {
    let mut shell = Command::new("sh");
    let path = format!("{}:{}", Path::new(BINARY).parent().unwrap().display(), std::env::var("PATH").unwrap());
    shell.arg("-c").arg(command).env_clear().env("PATH", path).env("HOME", "/nonexistent").current_dir("/");
    shell
}

fn pasted(command: &str) -> Output {
    paste(command).stdin(Stdio::null()).output().unwrap()
}

/// Runs a printed command, which must succeed; returns its standard output.
fn told(command: &str) -> String {
    let output = pasted(command);
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the printed commands in a text with their labels. A command ends its line.
fn commands(text: &str) -> Vec<(String, String)> {
    let commands = text.lines().filter_map(|line| {
        let at = line.find(" lockkeeper ")?;
        let what = line[..at].trim().trim_start_matches("hint: ").trim_end_matches(':');
        Some((what.to_owned(), line[at + 1..].to_owned()))
    });
    commands.filter(|(what, _)| !what.is_empty()).collect()
}

/// Returns the command with this label.
fn that<'a>(commands: &'a [(String, String)], does: &str) -> &'a str {
    let found = commands.iter().find(|(what, _)| what == does);
    found.map(|(_, command)| command.as_str()).unwrap_or_else(|| panic!("no command {does:?} in {commands:?}"))
}

/// How the commands of one place are started.
struct Site {
    home: Rc<Home>,
    /// Options of every verb.
    options: Vec<String>,
    /// Variables of the terminal.
    variables: Vec<(&'static str, String)>,
}

impl Site {
    /// A place that needs quotes in a shell, named by an option.
    fn odd() -> Self {
        let options = vec!["--state-dir".into(), ODD_DIR.into()];
        Site { home: Rc::new(Home::with_state(ODD_DIR)), options, variables: vec![] }
    }

    /// Servers that an option names.
    fn of(served: &Served) -> Self {
        let options = vec!["--servers".into(), served.address.clone()];
        Site { home: Rc::new(Home::with_servers(&served.address)), options, variables: vec![] }
    }

    fn command(&self, verb: &str, words: &[&str]) -> Command {
        let options: Vec<_> = self.options.iter().map(String::as_str).collect();
        let verbs: Vec<_> = verb.split(' ').collect();
        let mut command = self.home.command(&[&verbs[..], &options[..], words].concat());
        command.env_remove("LOCKKEEPER_STATE_DIR").envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn output(&self, verb: &str, words: &[&str]) -> Output {
        self.command(verb, words).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts a command that holds the lock until a signal, or until its standard input ends.
    fn hold(&self, name: &str, options: &[&str]) -> Running {
        let words = [&[name], options, &["--", "sh", "-c", "echo up; cat"]].concat();
        let mut holder = Running::start(&mut self.command("run", &words));
        assert_eq!(holder.line(), "up");
        holder
    }

    fn wait_behind(&self, name: &str, options: &[&str]) -> Running {
        let words = [&[name], options, &["--", "sh", "-c", "echo in; cat"]].concat();
        Running::start(&mut self.command("run", &words))
    }

    fn why(&self, name: &str) -> Vec<(String, String)> {
        let output = self.output("why", &["--", name]);
        assert!(output.status.success(), "{output:?}");
        commands(&String::from_utf8(output.stdout).unwrap())
    }

    fn shown(&self, name: &str) -> Value {
        let output = self.output("show", &["--json", "--", name]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    fn waiters(&self, name: &str) -> usize {
        self.shown(name)["waiters"].as_array().unwrap().len()
    }
}

/// Runs the two commands that a taken lock prints, for this holder: one shows it, the other ends it.
fn show_and_ask(hints: &[(String, String)], mut holder: Running) {
    let pid = format!("(pid {})", holder.pid().as_raw_nonzero());
    let seen = told(that(hints, "see who is in the way"));
    assert!(seen.contains(&pid), "{seen}");
    told(that(hints, "ask the holder to release it"));
    let (code, text) = holder.end();
    assert!(text.contains("asks for "), "{code:?} {text}");
}

/// The printed commands reach the same locks, whether a flag or a variable named the place.
#[test]
fn printed_commands_are_for_the_same_place() {
    let home = Rc::new(Home::with_state(ODD_DIR));
    let served = Served::start(&home);
    let in_chroot = format!("{}/a b", served.address);
    home.ok(&["run", "first", "--create-chroot", "--servers", &in_chroot, "--", "true"]);
    std::fs::write(home.file("own.toml"), format!("servers = {:?}\n", served.address)).unwrap();
    std::fs::write(home.file("app's.properties"), format!("zookeeper.servers={}\n", served.address)).unwrap();
    let state = home.state().to_str().unwrap().to_owned();
    let options = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let sites = [
        (options(&["--state-dir", &state]), vec![]),
        // Relative to a directory that another terminal is not in.
        (options(&["--state-dir", ODD_DIR]), vec![]),
        (vec![], vec![("LOCKKEEPER_STATE_DIR", state.clone())]),
        (options(&["--servers", &served.address]), vec![]),
        (vec![], vec![("LOCKKEEPER_SERVERS", served.address.clone())]),
        (options(&["--servers", &in_chroot]), vec![]),
        (options(&["--config", "own.toml"]), vec![]),
        (vec![], vec![("LOCKKEEPER_CONFIG", "own.toml".to_owned())]),
        (options(&["--properties", "app's.properties"]), vec![]),
        (vec![], vec![("LOCKKEEPER_PROPERTIES", "app's.properties".to_owned())]),
    ];
    for (options, variables) in sites {
        let site = Site { home: home.clone(), options, variables };
        let holder = site.hold(ODD, &[]);
        let output = site.output("run", &[ODD, "--try", "--", "true"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        show_and_ask(&commands(&stderr(&output)), holder);
        assert_eq!(site.shown(ODD)["holders"], serde_json::json!([]));
    }
}

/// The printed commands name the lock correctly, with every odd name.
#[test]
fn printed_commands_name_the_same_lock() {
    let site = Site::odd();
    for name in ["nightly", "a b", "it's", "$HOME", "/locks/-x", "a;b|c", "näch\u{202e}t", "\"", "\\", "!x!", "~", "*"]
    {
        let holder = site.hold(name, &[]);
        let timed_out = site.output("run", &[name, "--wait", "1s", "--", "true"]);
        assert_eq!(timed_out.status.code(), Some(75), "{timed_out:?}");
        show_and_ask(&commands(&stderr(&timed_out)), holder);
    }
    // A name that looks like an option is printed as a path.
    let mut holder = site.hold("/locks/-x", &[]);
    assert!(told(that(&site.why("-x"), "see all contenders")).contains("held by "));
    holder.finish();
}

/// A plain `revoke` asks all holders.
#[test]
fn a_taken_lock_with_permits_suggests_to_ask_one_holder_and_a_shared_one_says_that_all_are_asked() {
    let site = Site::odd();
    let refused = |name: &str, options: &[&str]| {
        let output = site.output("run", &[&[name], options, &["--try", "--", "true"]].concat());
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        commands(&stderr(&output))
    };
    let permits = ["--permits", "2"];
    for from_why in [false, true] {
        let mut held = [site.hold("permits", &permits), site.hold("permits", &permits)];
        let (what, hints) = match from_why {
            false => ("ask that holder to release it", refused("permits", &permits)),
            true => ("ask one of them", site.why("permits")),
        };
        told(&that(&hints, what).replace(" --wait 1m", ""));
        until("one holder has left", || site.shown("permits")["holders"].as_array().unwrap().len() == 1);
        for holder in &mut held {
            holder.close_stdin();
        }
        let asked =
            held.into_iter().filter_map(|mut holder| holder.end().1.contains("asks for ").then_some(())).count();
        assert_eq!(asked, 1);
    }
    let readers = [site.hold("shared", &["--shared"]), site.hold("shared", &["--shared"])];
    told(that(&refused("shared", &[]), "ask all its holders to release it"));
    for mut reader in readers {
        assert!(reader.end().1.contains("asks for "));
    }
}

/// Every action that `why` prints, on a held lock of every kind: commands that queue wait and run, a request makes the
/// holder end, and a break stops it.
#[test]
fn every_recipe_of_why_does_what_it_says() {
    let site = Site::odd();
    let kinds: [&[&str]; 11] = [
        &[],
        &["--exclusive"],
        &["--shared"],
        &["--permits", "2"],
        &["--foreground"],
        &["--background"],
        &["--class", "K"],
        &["--format", "recipe"],
        &["--format", "numbered"],
        &["--format", "kazoo"],
        &["--format", "kazoo", "--shared"],
    ];
    for kind in kinds {
        let name = format!("{ODD} {}", kind.join(" "));
        // As many holders as the kind allows at once.
        let holders = if matches!(kind.first(), Some(&"--permits")) { 2 } else { 1 };
        let start = || -> Vec<Running> { (0..holders).map(|_| site.hold(&name, kind)).collect() };
        let mut held = start();
        let recipes = site.why(&name);
        let pid = format!("(pid {})", held[0].pid().as_raw_nonzero());
        assert!(told(that(&recipes, "see all contenders")).contains(&pid), "{kind:?}");
        let ran = |what: &str| paste(&that(&recipes, what).replace(" COMMAND", " echo ran"));
        if kind.contains(&"--shared") {
            let shared = ran("share it").output().unwrap();
            assert_eq!(shared.stdout, b"ran\n", "{kind:?}: {shared:?}");
        }
        let mut waiting: Vec<Running> = Vec::new();
        for what in ["wait in the queue", "wait at most 5 min"] {
            waiting.push(Running::start(&mut ran(what)));
            until(what, || site.waiters(&name) == waiting.len());
        }
        let ask = if holders > 1 { "ask all holders to release it" } else { "ask the holder to release it" };
        told(that(&recipes, ask));
        for waiting in &mut waiting {
            assert_eq!(waiting.line(), "ran", "{kind:?}");
            assert!(waiting.wait().success());
        }
        for holder in &mut held {
            assert!(holder.end().1.contains("asks for "), "{kind:?}");
        }
        let mut held = start();
        let recipes = site.why(&name);
        let takes = recipes.iter().filter(|(_, command)| command.starts_with("lockkeeper break "));
        let takes: Vec<_> = takes.map(|(_, command)| command).collect();
        assert_eq!(takes.len(), holders, "{recipes:?}");
        // It needs a confirmation on its terminal, and there is none here.
        assert_eq!(pasted(takes[0]).status.code(), Some(64));
        for take in takes {
            told(&format!("{take} --yes"));
        }
        for holder in &mut held {
            holder.ends(76);
        }
    }
}

/// Returns the commands that `why --at` prints about the last refused request, without the one that shows the history.
fn commands_of_the_past(site: &Site, name: &str) -> Vec<String> {
    let history: Value = serde_json::from_slice(&site.output("history", &["--json", "--", name]).stdout).unwrap();
    let entries = history["entries"].as_array().unwrap();
    let refused = entries.iter().rev().find(|entry| entry["entry"] == "refused").unwrap();
    let at = jiff::Timestamp::from_millisecond(refused["last_ms"].as_i64().unwrap()).unwrap().to_string();
    let output = site.output("why", &["--at", &at, "--", name]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let commands = text.lines().filter_map(|line| Some(line[line.find(" lockkeeper ")? + 1..].to_owned()));
    let commands: Vec<_> = commands.collect();
    let (history, others) = commands.split_last().unwrap();
    told(history);
    others.iter().map(|command| command.split("  # ").next().unwrap().to_owned()).collect()
}

/// A command that would use the lock in another way would hold it beside its contenders.
#[test]
fn every_command_about_a_past_moment_excludes_the_contenders_of_the_lock() {
    let site = Site::odd();
    let kinds: [&[&str]; 11] = [
        &[],
        &["--exclusive"],
        &["--permits", "2"],
        &["--foreground"],
        &["--background"],
        &["--class", "K"],
        &["--format", "numbered"],
        &["--format", "kazoo"],
        &["--format", "kazoo", "--exclusive"],
        &["--format", "leader-latch"],
        &["--lease", "10m"],
    ];
    for kind in kinds {
        let name = format!("{ODD} {}", kind.join(" "));
        let holders = if matches!(kind.first(), Some(&"--permits")) { 2 } else { 1 };
        let mut held: Vec<Running> = (0..holders).map(|_| site.hold(&name, kind)).collect();
        let try_once =
            || site.output("run", &[&[name.as_str()], kind, &["--try", "--", "true"]].concat()).status.code();
        assert_eq!(try_once(), Some(75), "{kind:?}");
        held.iter_mut().for_each(Running::finish);
        let printed = commands_of_the_past(&site, &name);
        assert_eq!(
            printed.len(),
            if kind.is_empty() || kind == ["--exclusive"] { 2 } else { 1 },
            "{kind:?}: {printed:?}"
        );
        // The last one makes the lock a job.
        for command in &printed {
            let started = || Running::start(&mut paste(&command.replace(" COMMAND", " sh -c 'echo up; cat'")));
            let mut holders: Vec<_> = (0..holders).map(|_| started()).collect();
            assert!(holders.iter_mut().all(|holder| holder.line() == "up"), "{command}");
            assert_eq!(try_once(), Some(75), "{kind:?}: {command}");
            holders.iter_mut().for_each(Running::finish);
        }
    }
}

/// Its contenders are known only from the request that did not fit to them.
#[test]
fn a_command_about_a_past_moment_names_the_format_of_a_foreign_client_and_none_is_printed_if_records_disagree() {
    let served = Served::start(&Home::new());
    let site = Site::of(&served);
    let mut kazoo = Nodes::connect(&served.address, "kazoo");
    kazoo.join("etl");
    assert_eq!(site.output("run", &["etl", "--try", "--", "true"]).status.code(), Some(64));
    kazoo.leave();
    let printed = commands_of_the_past(&site, "etl");
    let [run] = &printed[..] else { panic!("{printed:?}") };
    assert!(run.contains(" --format kazoo "), "{run}");
    kazoo.join("etl");
    let mut waiting = Running::start(&mut paste(&run.replace(" COMMAND", " echo ran")));
    until("it waits behind the foreign client", || site.waiters("etl") == 1);
    kazoo.leave();
    waiting.ends_after("ran");

    // Somebody uses the free lock in another way. Nothing shows which is right.
    assert!(site.output("run", &["etl", "--", "true"]).status.success());
    assert_eq!(commands_of_the_past(&site, "etl"), [] as [String; 0]);
}

/// The schedule and the rules are those of the job, so that no second one begins.
#[test]
fn the_commands_about_a_job_repeat_its_schedule_and_decide_what_it_waits_for() {
    let site = Site::odd();
    let schedules: [&[&str]; 3] = [
        &["--every", "90m", "--on-crash", "retry:2"],
        &["--once-per", "day", "--time-zone", "Europe/Berlin"],
        &["--slot", "b17"],
    ];
    for schedule in schedules {
        let name = format!("{ODD} {}", schedule.join(" "));
        let rules = [schedule, &["--on-failure", "keep"]].concat();
        let mut job = site.hold(&name, &rules);
        let mut other = site.hold("other", &[]);
        let same_lock = site.output("run", &[&name, "--try", "--", "true"]);
        assert_eq!(same_lock.status.code(), Some(75), "{same_lock:?}");
        let printed = that(&site.why(&name), "run its slot, if it is due").to_owned();
        assert!(!site.why(&name).iter().any(|(what, _)| what == "wait in the queue"));
        job.signal(rustix::process::Signal::TERM);
        job.wait();
        other.close_stdin();
        other.wait();
        // It has failed, and waits for a person.
        let mut output = site.output("why", &["--", &name]);
        let text = String::from_utf8(std::mem::take(&mut output.stdout)).unwrap();
        names(&text, &[" is free: ", ": needs a person: slot "]);
        assert!(text.contains("it is a job, "), "{text}");
        let kept = site.why(&name);
        told(that(&kept, "see its runs"));
        told(that(&kept, "run the slot again"));
        let printed = printed.replace(" COMMAND", " echo ran").replace(" SLOT", " b17");
        assert_eq!(told(&printed), "ran\n", "{schedule:?}");
        let past = commands_of_the_past(&site, &name);
        assert_eq!(past.len(), 1, "{past:?}");
        assert_eq!(told(&past[0].replace(" COMMAND", " echo ran").replace(" SLOT", " b17")), "", "its slot is done");
        let jobs = site.output("jobs", &["--json"]);
        let jobs: Value = serde_json::from_slice(&jobs.stdout).unwrap();
        let of = jobs["jobs"].as_array().unwrap().iter().find(|job| job["path"] == format!("/locks/{name}")).unwrap();
        assert!(of["runs"].as_array().unwrap().len() == 2, "{of}");
    }
}

#[test]
fn every_recipe_of_why_does_what_it_says_for_a_lease() {
    let site = Site::odd();
    let lease = ["--lease", "10m", "--priority", "3", "--cleanup", "5s"];
    let mut holder = site.hold(ODD, &lease);
    let recipes = site.why(ODD);
    let run = |what: &str| that(&recipes, what).replace(" COMMAND", " echo ran");
    assert!(told(that(&recipes, "see all contenders")).contains("with priority 3"));
    // The lease is not over.
    let refused = pasted(&run("if the lease is over"));
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert!(told(that(&commands(&stderr(&refused)), "see who is in the way")).contains("is held by"));
    told(that(&recipes, "ask the holder to release it"));
    assert!(holder.end().1.contains("asks for "));
    assert_eq!(told(&run("if the lease is over")), "ran\n");
    assert_eq!(told(&run("wait for the owner at most 10 min")), "ran\n");
    let mut holder = site.hold(ODD, &lease);
    assert_eq!(told(&run("preempt the owner")), "ran\n");
    holder.ends(76);
    let mut holder = site.hold(ODD, &lease);
    told(&format!("{} --yes", that(&site.why(ODD), "break the lock")));
    holder.ends(76);
}

/// The advice of a failure, in each situation that has advice.
#[test]
fn the_advice_of_a_failure_can_be_run() {
    let site = Site::odd();
    let advice = |verb: &str, words: &[&str]| {
        let output = site.output(verb, words);
        assert!(!output.status.success(), "{output:?}");
        commands(&stderr(&output))
    };
    let mut holder = site.hold(ODD, &[]);
    let pid = format!("(pid {})", holder.pid().as_raw_nonzero());
    let shows = |advice: &[(String, String)]| told(that(advice, "see its holders and waiters")).contains(&pid);
    assert!(shows(&advice("run", &[ODD, "--class", "K", "--", "true"])), "of another kind");
    assert!(shows(&advice("break", &[ODD, "-r", "x", "-y", "--node", "no-node"])), "no contender");
    assert!(told(that(&advice("show", &["nowhere"]), "see which locks there are")).contains(ODD));
    assert!(told(that(&advice("show", &["--bogus"]), "see all options")).contains("Usage:"));
    // A waiter that was broken.
    let mut waiter = site.wait_behind(ODD, &[]);
    until("it waits", || site.waiters(ODD) == 1);
    let node = site.shown(ODD)["waiters"][0]["node"].as_str().unwrap().to_owned();
    assert!(site.output("break", &[ODD, "-r", "in the way", "-y", "--node", &node]).status.success());
    let text = waiter.ends(75);
    assert!(told(that(&commands(&text), "see who removed it and why")).contains("in the way"));
    holder.finish();
    // Two holders.
    let mut held: Vec<_> = (0..2).map(|_| site.hold("shared", &["--shared"])).collect();
    let nodes = told(that(&advice("break", &["shared", "-r", "x", "-y"]), "see their nodes"));
    for holder in site.shown("shared")["holders"].as_array().unwrap() {
        assert!(nodes.contains(holder["node"].as_str().unwrap()), "{nodes}");
    }
    held.iter_mut().for_each(Running::finish);
    // Leases: no statistics, no open decision.
    let count = advice("show", &["counted", "--stats"]);
    assert_eq!(told(&that(&count, "publish them for a command").replace(" COMMAND", " echo ran")), "ran\n");
    assert!(site.output("show", &["counted", "--stats"]).status.success());
    told(that(&advice("requests approve", &["counted", "-r", "x"]), "see the open decisions"));
}

/// Dead letters are found in their store, from any directory.
#[test]
fn the_advice_about_a_dead_letter_can_be_run() {
    let site = Site::odd();
    let mut holder = site.hold(ODD, &[]);
    for place in ["file", "file:some letters.jsonl"] {
        let output =
            site.output("run", &[ODD, "--try", "--dead-letter", place, "--", "sh", "-c", "echo \"$0\"", "a b"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        let replay = commands(&stderr(&output));
        assert_eq!(pasted(that(&replay, "try it again")).status.code(), Some(75), "it is taken still");
        let words = ["show", "ffffffff", "--dead-letter", place, "--state-dir", ODD_DIR];
        let unknown = site.home.output(&[&["dlq"], &words[..]].concat());
        let listed = told(that(&commands(&stderr(&unknown)), "see which there are"));
        assert!(listed.contains(", not granted in time  "), "{listed}");
        assert!(listed.trim_end().ends_with("  sh -c 'echo \"$0\"' 'a b'  (1 failed replay)"), "{listed}");
        holder.finish();
        assert_eq!(told(that(&replay, "try it again")), "a b\n");
        holder = site.hold(ODD, &[]);
    }
    holder.finish();
}

/// The commands in the listing by which an operator decides. The own server refuses access lists, also those of variables.
#[test]
fn the_commands_of_a_decision_decide_it() {
    let served = Served::start(&Home::new());
    let (of_ensemble, mut own) = (Site::of(&served), Site::odd());
    let state = own.home.state().display().to_string();
    own.variables = vec![("LOCKKEEPER_ACL", "creator-all".to_owned()), ("LOCKKEEPER_STATE_DIR", state)];
    own.options.clear();
    for (site, what, code) in [
        (&of_ensemble, "keep its owner", Some(75)),
        (&own, "keep its owner", Some(75)),
        (&own, "transfer the lock", Some(0)),
    ] {
        let mut owner = site.hold(ODD, &["--lease", "10m", "--cleanup", "200ms"]);
        owner.signal(rustix::process::Signal::STOP);
        let wanted = ["--lease", "10m", "--priority", "5", "--ask", "10m"];
        let words = [&[ODD], &wanted[..], &["--", "true"]].concat();
        let mut wanting = Running::start(&mut site.command("run", &words));
        let mut listed = String::new();
        until("a decision is waited for", || {
            listed = String::from_utf8(site.output("requests", &[]).stdout).unwrap();
            !listed.is_empty()
        });
        let decide = commands(&listed);
        told(&that(&decide, what).replace(" WHY", " 'its host is gone'"));
        let (ended, text) = wanting.end();
        assert_eq!(ended, code, "{text}");
        names(&text, &["transfer the lock: lockkeeper requests approve ", " --id "]);
        owner.kill();
        // The lease outlives its command.
        _ = site.output("break", &[ODD, "-r", "it was killed", "-y"]);
    }
}

/// The operators have other terminals than the command that waits for their decision.
#[test]
fn the_commands_for_operators_name_the_place_also_on_a_terminal_whose_variables_say_it() {
    let (served, home) = served();
    let owner = home.holds("a", &["--lease", "10m", "--cleanup", "200ms"]);
    owner.signal(rustix::process::Signal::STOP);
    let script = format!(
        "LOCKKEEPER_SERVERS={} exec $lockkeeper run a --lease 10m --priority 5 --ask 10m -- true",
        served.address
    );
    let mut screen = Screen::with_columns(400, &home, "sh", &["-c", &script]);
    screen.expect("transfer the lock: ");
    let approve = screen.expect("; keep its owner: ");
    let approve = approve.trim_end_matches("; keep its owner: ");
    let place = format!(" --servers {} ", served.address);
    assert!(approve.starts_with("lockkeeper requests approve /locks/a --id ") && approve.contains(&place), "{approve}");
    // It is printed while the question is still being recorded.
    let requests = || home.ok(&["requests", "--json"]);
    until("the question is recorded", || requests().contains("/locks/a"));
    told(&approve.replace(" WHY", " 'its host is gone'"));
    assert_eq!(screen.end().code(), Some(0));
}

/// An abandoned hold reads no request, so no command asks it. A break ends its lock delay.
#[test]
fn no_advice_asks_the_holder_of_an_abandoned_hold() {
    let site = Site::odd();
    let mut holder = site.hold(ODD, &["--lock-delay", "10m", "--session-timeout", "1s"]);
    holder.kill();
    let mut waiter = site.wait_behind(ODD, &[]);
    until("the hold is abandoned", || site.shown(ODD)["holders"][0]["abandoned"] == true);
    // Its node has the time of its start only.
    let list = String::from_utf8(site.output("list", &[ODD]).stdout).unwrap();
    assert!(list.ends_with("  abandoned\n"), "{list}");
    for verb in ["show", "why"] {
        let text = String::from_utf8(site.output(verb, &[ODD]).stdout).unwrap();
        let told = text.contains(", held since ") && text.contains("; when it was abandoned is not known");
        assert!(told && !text.contains("abandoned (lock delay 10 min) since"), "{verb}: {text}");
        // No session ends what is left of it.
        assert!(!text.contains("0x0\n") && (verb != "show" || text.contains("session  none\n")), "{verb}: {text}");
    }
    let taken = commands(&stderr(&site.output("run", &[ODD, "--try", "--", "true"])));
    let recipes = [taken, site.why(ODD)].concat();
    assert!(recipes.iter().all(|(what, _)| what != "ask the holder to release it"), "{recipes:?}");
    told(that(&recipes, "see who is in the way"));
    let asked = site.output("revoke", &[ODD, "--wait", "100ms"]);
    let text = stderr(&asked);
    assert_eq!(asked.status.code(), Some(75), "{text}");
    assert!(text.contains(": no process holds it") && !text.contains("asked "), "{text}");
    names(&text, &[" cannot release ", "; to remove it: lockkeeper break "]);
    told(&format!("{} --yes", that(&recipes, "break the lock")));
    assert_eq!(waiter.line(), "in");
    waiter.finish();
}

/// A request to a process that has ended is answered by nobody; a break frees the lock before its session ends.
#[test]
fn no_advice_asks_a_holder_whose_process_has_ended() {
    let site = Site::odd();
    let mut holder = site.hold(ODD, &["--session-timeout", "40s"]);
    let hints = || commands(&stderr(&site.output("run", &[ODD, "--try", "--", "true"])));
    that(&hints(), "ask the holder to release it");
    that(&site.why(ODD), "ask the holder to release it");
    holder.kill();
    let (taken, why) = (hints(), site.why(ODD));
    for (what, command) in taken.iter().chain(&why) {
        assert!(!command.contains("lockkeeper revoke"), "{what}: {command}");
    }
    that(&why, "break the lock");
    let asked = stderr(&site.output("revoke", &[ODD]));
    let remove = asked.split("its process has ended; to remove it: ").nth(1).unwrap_or_else(|| panic!("{asked}"));
    assert_eq!(remove.trim_end(), that(&taken, "remove that holder, whose process has ended"));
    assert!(!asked.contains("asked "), "{asked}");
    told(&format!("{} --yes", that(&taken, "remove that holder, whose process has ended")));
    assert_eq!(site.output("run", &[ODD, "--try", "--", "true"]).status.code(), Some(0));
}

/// A command line that was quoted as one word is printed with correct quotes.
#[test]
fn a_quoted_command_line_is_advised_as_a_shell_reads_it() {
    let home = Home::new();
    let output = home.output(&["run", "a", "--", "echo \"it's\" $((1 + 1))"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let text = stderr(&output);
    let script = text.lines().find_map(|line| line.split_once("let a shell run it: -- ")).unwrap().1;
    assert_eq!(told(&format!("lockkeeper run a --state-dir '{}' -- {script}", home.state().display())), "it's 2\n");
}

/// Two options that say where the locks are exclude each other, and servers of a machine refuse access lists.
#[test]
fn printed_commands_name_one_place_and_only_options_that_it_takes() {
    let home = Home::new();
    let with = |variable: &str, value: &str, args: &[&str]| {
        let output = home.command(args).env(variable, value).stdin(Stdio::null()).output().unwrap();
        (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
    };
    let (_, told) = with("LOCKKEEPER_MACHINE", "/var/shared", &["lock", "nightly"]);
    names(&told, &["lockkeeper run nightly ", " --machine=/var/shared -- COMMAND"]);
    let (_, told) = with("LOCKKEEPER_MACHINE", "/var/shared", &["lock", "nightly", "--servers", "zk1:2181"]);
    assert!(told.contains("run nightly --servers zk1:2181 ") && !told.contains("--machine"), "{told}");
    let mut holder = home.starts("a", &[], "echo up; read line");
    for verb in ["why", "show"] {
        for name in ["a", "nowhere"] {
            let (shown, told) = with("LOCKKEEPER_ACL", "creator-all", &[verb, name]);
            assert!(!shown.contains("--acl") && !told.contains("--acl"), "{verb} {name}: {shown}{told}");
        }
    }
    holder.close_stdin();
    holder.end();
}

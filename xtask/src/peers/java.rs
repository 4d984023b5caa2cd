//! ZooKeeper's command line and the tests of its own Java client and of Curator's, on our server.

use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lockkeeper_testkit::apache::{Apache, Options};
use xshell::{Shell, cmd};

use super::apache::{self, RELEASE};
use super::served::{Served, write_accounts};
use crate::maven;
use crate::workspace::target_dir;

/// A session for ZooKeeper's command line, with every command that contacts a server.
const SESSION: &str = include_str!("zkcli.txt");

/// The last event that the session causes.
const LAST_EVENT: &str = "type:NodeChildrenChanged path:/w";

/// Types the same session into ZooKeeper's command line on Apache's server and on ours, and compares what is printed.
pub(super) fn zkcli(sh: &Shell) -> Result<()> {
    let classpath = maven::build(sh, "suites")?;
    let distribution = apache::release()?;
    let theirs = Apache::single(Options::default().tick(Duration::from_secs(2)).distribution(distribution))?;
    let theirs = printed(sh, &classpath, &theirs.connect_string())?;
    let ours = Served::start(&crate::programs::command(sh)?, None)?;
    let ours = printed(sh, &classpath, &ours.address)?;
    let differences = differences(&theirs, &ours);
    if !differences.is_empty() {
        bail!("the command line prints other lines (-: on Apache {RELEASE}, +: here):\n{differences}");
    }
    println!("{} commands print the same {} lines", SESSION.lines().count(), ours.len());
    Ok(())
}

/// The commands that end a session: they come after the last event, for the command line prints none after them.
const ENDING: &str = "printwatches off\n";

/// Returns the output of the command line, without the parts that differ from run to run.
fn printed(sh: &Shell, classpath: &str, server: &str) -> Result<Vec<String>> {
    let class = "org.apache.zookeeper.ZooKeeperMain";
    let mut typed = std::process::Command::from(cmd!(sh, "java -cp {classpath} {class} -server {server}").quiet())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("running ZooKeeper's command line")?;
    let (mut input, output) = (typed.stdin.take().context("no input")?, typed.stdout.take().context("no output")?);
    let mut errors = typed.stderr.take().context("no errors")?;
    let ending = SESSION.find(ENDING).context("the session has no ending")?;
    // Events come in order, on a thread of their own: once the last is printed, all are.
    let (last_event, all_events) = mpsc::channel();
    let typing = thread::spawn(move || -> io::Result<()> {
        input.write_all(&SESSION.as_bytes()[..ending])?;
        // A server that never sends the event is found by the comparison.
        _ = all_events.recv_timeout(Duration::from_secs(30));
        input.write_all(&SESSION.as_bytes()[ending..])
    });
    let complaints = thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).map(|_| text)
    });
    let mut text = String::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("reading what the command line prints")?;
        if line.contains(LAST_EVENT) {
            // The other side no longer waits after half a minute.
            _ = last_event.send(());
        }
        text += &(line + "\n");
    }
    typed.wait().context("waiting for ZooKeeper's command line")?;
    // A command line that ended early has closed its input; its lines are counted below.
    _ = typing.join();
    text += &complaints.join().expect("reading does not panic").context("reading the errors")?;
    // The command line does not wait for the event of its own end.
    let varies = |line: &&str| {
        let starts = ["Connecting to", "ctime = ", "mtime = ", "WATCHER::", "WatchedEvent state:Closed"];
        line.is_empty() || starts.iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<_> = text.lines().filter(|line| !varies(line)).map(str::to_owned).collect();
    // A separate thread prints events, before or after their answer. They are sorted behind all other lines.
    let (events, answers): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.starts_with("WatchedEvent"));
    if answers.len() < SESSION.lines().count() {
        bail!("the command line on {server} ended early:\n{text}");
    }
    let mut lines = [answers, events].concat();
    count_zxids_from_the_first(&mut lines);
    Ok(lines)
}

/// Replaces each zxid by its distance from the first one: our server's zxids follow the clock. A zxid of 0 stays.
fn count_zxids_from_the_first(lines: &mut [String]) {
    let mut first = None;
    for line in lines {
        let Some((text, zxid)) = line.split_once("Zxid = 0x").or_else(|| line.split_once(" zxid: ")) else { continue };
        let base = if text.starts_with("WatchedEvent") { 10 } else { 16 };
        if let Ok(zxid @ 1..) = i64::from_str_radix(zxid, base) {
            *line = format!("{text} zxid +{}", zxid - *first.get_or_insert(zxid));
        }
    }
}

/// Returns the lines that only one of the outputs has, in place.
fn differences(theirs: &[String], ours: &[String]) -> String {
    let mut text = String::new();
    for at in 0..theirs.len().max(ours.len()) {
        let (their, our) = (theirs.get(at), ours.get(at));
        if their != our {
            for (sign, line) in [('-', their), ('+', our)] {
                // Writing to a string never fails.
                _ = writeln!(text, "{sign} {}", line.map_or("", String::as_str));
            }
        }
    }
    text
}

/// The classes of both suites.
const CLASSES: &str = include_str!("classes.txt");

/// A suite whose tests start their own servers, which ours replace.
#[derive(Default)]
struct Suite {
    /// The prefix of the names of classes.
    package: &'static str,
    classes: Vec<&'static str>,
    /// The tests of these classes that cannot run with one server in another process.
    left_out: Vec<&'static str>,
    /// The reasons why other classes of the suite are not run.
    others: Vec<(&'static str, Vec<&'static str>)>,
    /// The archives of the suite's tests, by the beginnings of their names.
    archives: Vec<&'static str>,
    passes: u32,
}

/// Reads a suite from the list of classes.
fn suite(name: &str) -> Suite {
    let mut suite = Suite::default();
    let mut of_suite = false;
    for line in CLASSES.lines() {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = rest.split_whitespace();
        match key {
            "suite" => {
                of_suite = rest.starts_with(name);
                if of_suite {
                    suite.package = words.last().unwrap_or_default();
                }
            }
            _ if !of_suite => {}
            "archives" => suite.archives = words.collect(),
            "passes" => suite.passes = rest.parse().expect("a number in classes.txt"),
            "run" => suite.classes.extend(words),
            "leave-out" => suite.left_out.extend(rest.split(": ").next()),
            "others" => suite.others.push((rest.trim_end_matches(':'), Vec::new())),
            _ => suite.others.last_mut().map(|(_, names)| names.extend(words)).unwrap_or_default(),
        }
    }
    suite
}

/// Runs the classes, each in a process of its own: they leave state behind that disturbs others.
pub(super) fn run(sh: &Shell, name: &str, chosen: &[String]) -> Result<()> {
    let suite = &suite(name);
    let classpath = maven::build(sh, "suites")?;
    let command = crate::programs::command(sh)?;
    let home = target_dir(sh).join("peers").join(name);
    let (accounts, scratch) = (home.join("accounts"), home.join("scratch"));
    sh.remove_path(&scratch)?;
    sh.create_dir(&scratch)?;
    write_accounts(&accounts)?;
    let started = scratch.join("started");
    unjudged(sh, suite, &classpath)?;
    let all: Vec<_> = suite.classes.iter().map(|class| (*class).to_owned()).collect();
    let mut passed = 0;
    let mut failures = String::new();
    for class in if chosen.is_empty() { &all } else { chosen } {
        let select = format!("--select-class={}.{class}", suite.package);
        let left_out = suite.left_out.iter().map(|test| format!("--exclude-methodname=.*[.#]{test}"));
        let left_out: Vec<_> = left_out.collect();
        let quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"];
        let properties = [
            format!("-Dbuild.test.dir={}", scratch.display()),
            format!("-Djava.io.tmpdir={}", scratch.display()),
            "-Dzookeeper.admin.enableServer=false".to_owned(),
        ];
        let console = "org.junit.platform.console.ConsoleLauncher";
        let output = cmd!(
            sh,
            "java {quick...} {properties...} -cp {classpath} {console} execute {select} {left_out...}
             --config=junit.jupiter.execution.timeout.default=120s --details=tree --disable-banner --disable-ansi-colors"
        )
        .env("LOCKKEEPER", &command)
        .env("LOCKKEEPER_ACCOUNTS", &accounts)
        .quiet()
        .ignore_status()
        .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let count = |what: &str| {
            let line = text.lines().find(|line| line.contains(what)).unwrap_or_default();
            line.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap_or_default()
        };
        let (good, bad) = (count("tests successful"), count("tests failed"));
        println!("{class}: {good} passed, {bad} failed");
        passed += good;
        // The replaced server classes write this file when they start a server.
        if !started.exists() {
            _ = writeln!(failures, "{class} has not started our server, so it shows nothing");
        }
        sh.remove_path(&started)?;
        if !output.status.success() {
            _ = writeln!(failures, "{class}:\n{text}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    if !failures.is_empty() {
        bail!("{}'s tests do not all pass:\n{failures}", name);
    }
    if chosen.is_empty() && passed < suite.passes {
        bail!("only {passed} of {} passed: some were left out", suite.passes);
    }
    Ok(())
}

/// Fails if the list has not all classes of the suite; prints how many classes do not run, by reason.
fn unjudged(sh: &Shell, suite: &Suite, classpath: &str) -> Result<()> {
    let is_archive = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.ends_with("-tests.jar") && suite.archives.iter().any(|archive| name.starts_with(archive))
    };
    let mut counts = vec![0; suite.others.len()];
    let mut unknown = Vec::new();
    for archive in classpath.split(':').filter(is_archive) {
        let listed = cmd!(sh, "jar --list --file {archive}").quiet().read().context("reading an archive of tests")?;
        let package = format!("{}.", suite.package);
        let classes =
            listed.lines().filter_map(|line| line.strip_suffix(".class")).map(|class| class.replace('/', "."));
        for class in classes.filter_map(|class| class.strip_prefix(&package).map(str::to_owned)) {
            let name = class.rsplit('.').next().unwrap_or_default();
            let is_test = (name.ends_with("Test") || name.starts_with("Test")) && !name.contains('$');
            if !is_test || suite.classes.contains(&class.as_str()) {
                continue;
            }
            let named = |pattern: &str| match pattern.strip_suffix('*') {
                Some(start) => class.starts_with(start),
                None => class == pattern,
            };
            match suite.others.iter().position(|(_, patterns)| patterns.iter().any(|pattern| named(pattern))) {
                Some(kind) => counts[kind] += 1,
                None => unknown.push(class),
            }
        }
    }
    println!("{} classes are run; of the others", suite.classes.len());
    for (count, (why, _)) in counts.iter().zip(&suite.others) {
        println!("  {count} {why}");
    }
    if !unknown.is_empty() {
        bail!("classes.txt does not list these classes: {}", unknown.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_classes_is_read() {
        let suite = suite("zookeeper");
        assert_eq!((suite.package, suite.archives.len(), suite.passes), ("org.apache.zookeeper", 1, 388));
        assert_eq!((suite.classes.len(), suite.left_out.len(), suite.others.len()), (46, 16, 5));
        assert!(suite.left_out.contains(&"ACLTest#testAcls") && suite.others[0].1.contains(&"cli.*"));
    }
}

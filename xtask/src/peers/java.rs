//! ZooKeeper's command line and the tests of its own Java client and of Curator's, on our server.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lockkeeper_testkit::apache::{Apache, Options};
use xshell::{Shell, cmd};

use super::{ACCOUNTS, APACHE, target_dir};
use crate::interop;

/// A session for ZooKeeper's command line: every command that a server has something to say to.
const SESSION: &str = include_str!("zkcli.txt");

/// A server of ours in memory, stopped with this.
struct Served {
    process: Child,
    address: String,
}

impl Served {
    fn start(sh: &Shell) -> Result<Self> {
        let mut command = Command::new(crate::programs::command(sh)?);
        command.args(["serve", "--memory", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().context("starting our server")?;
        let mut address = String::new();
        let said = process.stdout.take().context("our server has no output")?;
        let read = BufReader::new(said).read_line(&mut address);
        let served = Self { process, address: address.trim().to_owned() };
        read.context("waiting for our server")?;
        if served.address.is_empty() {
            bail!("our server does not start");
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// Types the same session into ZooKeeper's command line on Apache's server and on ours, and compares what is printed.
pub(crate) fn zkcli(sh: &Shell) -> Result<()> {
    let classpath = interop::build(sh, "suites")?;
    let distribution = super::apache_release()?;
    let theirs = Apache::single(Options::default().tick(Duration::from_secs(2)).distribution(distribution))?;
    let theirs = printed(sh, &classpath, &theirs.connect_string())?;
    let ours = Served::start(sh)?;
    let ours = printed(sh, &classpath, &ours.address)?;
    let differences = differences(&theirs, &ours);
    if !differences.is_empty() {
        bail!("the command line prints something else (-: on Apache {APACHE}, +: here):\n{differences}");
    }
    println!("{} commands print the same {} lines", SESSION.lines().count(), ours.len());
    Ok(())
}

/// What the command line prints, without what differs from run to run.
fn printed(sh: &Shell, classpath: &str, server: &str) -> Result<Vec<String>> {
    let output = cmd!(sh, "java -cp {classpath} org.apache.zookeeper.ZooKeeperMain -server {server}")
        .stdin(SESSION)
        .quiet()
        .output()
        .context("running ZooKeeper's command line")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // The last event may be told or not: the command line does not wait for it when it ends.
    let varies = |line: &&str| {
        let starts = ["Connecting to", "ctime = ", "mtime = ", "WATCHER::", "WatchedEvent state:Closed"];
        line.is_empty() || starts.iter().any(|start| line.starts_with(start))
    };
    let lines: Vec<_> = text.lines().filter(|line| !varies(line)).map(str::to_owned).collect();
    // Events are printed by a thread of their own, before or after the answer that they come with: behind all the rest, then.
    let (events, answers): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.starts_with("WatchedEvent"));
    if answers.len() < SESSION.lines().count() {
        bail!("the command line on {server} came to an early end:\n{text}");
    }
    Ok([answers, events].concat())
}

/// Lines that only one of them has, in place.
fn differences(theirs: &[String], ours: &[String]) -> String {
    let mut told = String::new();
    for at in 0..theirs.len().max(ours.len()) {
        let (their, our) = (theirs.get(at), ours.get(at));
        if their != our {
            for (sign, line) in [('-', their), ('+', our)] {
                // Writing to a string never fails.
                _ = writeln!(told, "{sign} {}", line.map_or("", String::as_str));
            }
        }
    }
    told
}

/// A suite of tests that starts servers of its own, which are ours instead.
pub(super) struct Suite {
    name: &'static str,
    /// Before the names of classes.
    package: &'static str,
    classes: &'static [&'static str],
    /// Tests of these classes that say nothing of a server that is not in their process, and why.
    left_out: &'static [(&'static str, &'static str)],
    /// How many pass. Fewer means that something was left out.
    passes: u32,
}

/// The tests of ZooKeeper's own client, which start a server for each.
pub(super) const ZOOKEEPER: Suite = Suite {
    name: "zookeeper",
    package: "org.apache.zookeeper",
    classes: &[
        "test.ACLCountTest",
        "test.ACLRootTest",
        "test.AsyncOpsTest",
        "test.AuthTest",
        "test.ChrootAsyncTest",
        "test.ChrootClientTest",
        "test.ChrootTest",
        "test.ClientRetryTest",
        "test.ClientTest",
        "test.CreateTest",
        "test.DisconnectedWatcherTest",
        "test.EnforceQuotaTest",
        "test.FourLetterWordsTest",
        "test.MultiAsyncTransactionTest",
        "test.MultiOperationTest",
        "test.NullDataTest",
        "test.PersistentRecursiveWatcherTest",
        "test.PersistentWatcherACLTest",
        "test.PersistentWatcherTest",
        "test.SessionTimeoutTest",
        "test.StatTest",
        "test.SyncCallTest",
        "test.WatcherFuncTest",
        "test.WatcherTest",
        "GetAllChildrenNumberTest",
        "GetEphemeralsTest",
        "RemoveWatchesCmdTest",
    ],
    left_out: &[
        ("testNonExistingOpCode", "wants the connection closed; a difference of docs/server.md"),
        ("testPathValidation", "makes the server in its own process fail"),
        ("testWatcherCount", "counts the watches of the server in its own process"),
        ("testFourLetterWords", "wants the version of Java in `envi`"),
        ("testSetTraceMask", "sets trace masks"),
    ],
    passes: 258,
};

/// Curator's tests, which start, stop and restart theirs.
pub(super) const CURATOR: Suite = Suite {
    name: "curator",
    package: "org.apache.curator.framework",
    classes: &[
        "client.TestBackgroundStates",
        "client.TestResetConnectionWithBackgroundFailure",
        "imps.TestBlockUntilConnected",
        "imps.TestCreate",
        "imps.TestCreateReturningStat",
        "imps.TestDelete",
        "imps.TestEnsureContainers",
        "imps.TestExistsBuilder",
        "imps.TestFailedDeleteManager",
        "imps.TestFrameworkBackground",
        "imps.TestMultiClient",
        "imps.TestNamespaceFacade",
        "imps.TestNeverConnected",
        "imps.TestSetData",
        "imps.TestTempFramework",
        "imps.TestTransactionsNew",
        "imps.TestTransactionsOld",
        "imps.TestWatcherIdentity",
        "recipes.atomic.TestCachedAtomicCounter",
        "recipes.barriers.TestDistributedBarrier",
        "recipes.barriers.TestDistributedDoubleBarrier",
        "recipes.cache.TestCuratorCache",
        "recipes.cache.TestCuratorCacheBridge",
        "recipes.cache.TestCuratorCacheEventOrdering",
        "recipes.cache.TestCuratorCacheWrappers",
        "recipes.cache.TestNodeCache",
        "recipes.locks.TestInterProcessMultiMutex",
        "recipes.locks.TestInterProcessMutex",
        "recipes.locks.TestInterProcessReadWriteLock",
        "recipes.locks.TestInterProcessSemaphoreMutex",
        "recipes.locks.TestLockACLs",
        "recipes.nodes.TestGroupMember",
        "recipes.queue.TestSimpleDistributedQueue",
        "recipes.watch.TestPersistentWatcher",
        "state.TestCircuitBreakingConnectionStateListener",
        "state.TestConnectionStateManager",
    ],
    left_out: &[("testContainerCleanup", "sets by a property of Java how soon the server looks for containers")],
    passes: 180,
};

/// Runs the classes, each in a process of its own: they leave behind what others stumble over.
pub(super) fn run(sh: &Shell, suite: &Suite, chosen: &[String]) -> Result<()> {
    let classpath = interop::build(sh, "suites")?;
    let command = crate::programs::command(sh)?;
    let home = target_dir(sh).join("peers").join(suite.name);
    let (accounts, scratch) = (home.join("accounts"), home.join("scratch"));
    sh.remove_path(&scratch)?;
    sh.create_dir(&scratch)?;
    sh.write_file(&accounts, ACCOUNTS)?;
    let all: Vec<_> = suite.classes.iter().map(|class| (*class).to_owned()).collect();
    let mut passed = 0;
    let mut failures = String::new();
    for class in if chosen.is_empty() { &all } else { chosen } {
        let select = format!("--select-class={}.{class}", suite.package);
        let left_out = suite.left_out.iter().map(|(test, _)| format!("--exclude-methodname=.*[.#]{test}"));
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
        let told = String::from_utf8_lossy(&output.stdout);
        let count = |what: &str| {
            let line = told.lines().find(|line| line.contains(what)).unwrap_or_default();
            line.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap_or_default()
        };
        let (good, bad) = (count("tests successful"), count("tests failed"));
        println!("{class}: {good} passed, {bad} failed");
        passed += good;
        if !output.status.success() {
            _ = writeln!(failures, "{class}:\n{told}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    if !failures.is_empty() {
        bail!("{}'s tests do not all pass:\n{failures}", suite.name);
    }
    if chosen.is_empty() && passed < suite.passes {
        bail!("only {passed} of {} passed: some were left out", suite.passes);
    }
    Ok(())
}

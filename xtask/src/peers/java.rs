//! ZooKeeper's command line and the tests of its own Java client and of Curator's, on our server.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lockkeeper_testkit::apache::{Apache, Options};
use xshell::{Shell, cmd};

use super::served::Served;
use super::{ACCOUNTS, APACHE, target_dir};
use crate::interop;

/// A session for ZooKeeper's command line: every command that a server has something to say to.
const SESSION: &str = include_str!("zkcli.txt");

/// Types the same session into ZooKeeper's command line on Apache's server and on ours, and compares what is printed.
pub(super) fn zkcli(sh: &Shell) -> Result<()> {
    let classpath = interop::build(sh, "suites")?;
    let distribution = super::apache_release()?;
    let theirs = Apache::single(Options::default().tick(Duration::from_secs(2)).distribution(distribution))?;
    let theirs = printed(sh, &classpath, &theirs.connect_string())?;
    let ours = Served::start(&crate::programs::command(sh)?, None)?;
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
    /// Tests of these classes that say nothing of a server that is not in their process, and why;
    /// as regular expressions, `CLASS#TEST` where others have the name, too.
    left_out: &'static [(&'static str, &'static str)],
    /// Why the other classes of the suite are not run; a name may end in `*`.
    others: &'static [(&'static str, &'static [&'static str])],
    /// The archives of the suite's tests, by the beginning of their names.
    archives: &'static [&'static str],
    /// How many pass. Fewer means that something was left out.
    passes: u32,
}

const METRICS: &str = "reads the metrics of the server in its own process";

/// The tests of ZooKeeper's own client, which start a server for each.
pub(super) const ZOOKEEPER: Suite = Suite {
    name: "zookeeper",
    package: "org.apache.zookeeper",
    classes: &[
        "test.ACLCountTest",
        "test.ACLRootTest",
        "test.ACLTest",
        "test.AsyncOpsTest",
        "test.AuthTest",
        "test.CheckTest",
        "test.ChrootAsyncTest",
        "test.ChrootClientTest",
        "test.ChrootTest",
        "test.ClientHammerTest",
        "test.ClientRetryTest",
        "test.ClientTest",
        "test.CreateTest",
        "test.DisconnectedWatcherTest",
        "test.EnforceQuotaTest",
        "test.FourLetterWordsTest",
        "test.GetChildren2Test",
        "test.MaxCnxnsTest",
        "test.MultiAsyncTransactionTest",
        "test.MultiOperationTest",
        "test.NullDataTest",
        "test.PersistentRecursiveWatcherTest",
        "test.PersistentWatcherACLTest",
        "test.PersistentWatcherTest",
        "test.RecoveryTest",
        "test.SaslAuthDesignatedClientTest",
        "test.SaslAuthFailDesignatedClientTest",
        "test.SaslAuthFailTest",
        "test.SaslAuthMissingClientConfigTest",
        "test.SaslAuthRequiredMultiClientTest",
        "test.SaslAuthRequiredTest",
        "test.SessionInvalidationTest",
        "test.SessionTest",
        "test.SessionTimeoutTest",
        "test.StandaloneTest",
        "test.StatTest",
        "test.SyncCallTest",
        "test.WatcherFuncTest",
        "test.WatcherTest",
        "test.ZooKeeperQuotaTest",
        "GetAllChildrenNumberTest",
        "GetEphemeralsTest",
        "RemoveWatchesCmdTest",
        "RemoveWatchesTest",
        "SaslAuthTest",
        "ZooKeeperTest",
    ],
    left_out: &[
        ("testNonExistingOpCode", "wants the connection closed; a difference of docs/server.md"),
        ("testPathValidation", "makes the server in its own process fail"),
        ("testWatcherCount", "counts the watches of the server in its own process"),
        ("testFourLetterWords", "wants the version of Java in `envi`"),
        ("testSetTraceMask", "sets trace masks"),
        ("ACLTest#testAcls", "counts the access lists of the server in its own process"),
        ("CheckTest#testCluster.*", "needs an ensemble"),
        ("RemoveWatchesTest#testRemove.*OnAPath(Partially)?", "asks the server in its own process for its watches"),
        ("SaslAuthDesignatedClientTest#testReadAccessUser", "lets anyone read by a property of Java"),
        ("SessionTest#testMinMaxSessionTimeout", "changes the server in its own process while it runs"),
        ("SessionTest#testMaximumCnxnPerIP", "changes the server in its own process while it runs"),
        ("StandaloneTest#testStandaloneReconfigFails", "switches reconfiguration on, which one server has no use for"),
        ("ZooKeeperQuotaTest#testSetQuotaWhen(Exceed.*HardQuota.*|.*ExceedBytesQuota)", METRICS),
        ("ZooKeeperQuotaTest#testSetQuotaWhenSetQuotaLessThanExistCount", METRICS),
        ("ZooKeeperQuotaTest#testDelete(Bytes|Count)Quota", METRICS),
        (
            "ZooKeeperQuotaTest#testSetQuotaWhenSetQuotaLessThanExistBytes",
            "a difference of docs/server.md: data may get smaller",
        ),
    ],
    others: &[
        (
            "ask no server",
            &[
                "ClientCanonicalizeTest",
                "ClientCnxnSocketFragilityTest",
                "ClientCnxnSocketTest",
                "ClientReconnectTest",
                "CustomHostProviderTest",
                "KerberosTicketRenewalTest",
                "MultiOperationRecordTest",
                "MultiResponseTest",
                "PortAssignmentTest",
                "ServerConfigTest",
                "ZKUtilTest",
                "cli.*",
                "client.*",
                "common.*",
                "compat.*",
                "util.*",
                "test.AtomicFileOutputStreamTest",
                "test.ConnectStringParserTest",
                "test.CreateModeTest",
                "test.EventTypeTest",
                "test.KeeperStateTest",
                "test.LogChopperTest",
                "test.OOMTest",
                "test.OSMXBeanTest",
                "test.QuotasTest",
                "test.SaslClientTest",
                "test.SessionTrackerCheckTest",
                "test.StaticHostProviderTest",
                "test.StatsTrackTest",
                "test.StringUtilTest",
                "test.TestByteBufAllocator*",
                "test.TestHammer",
                "test.TestUtils",
                "TestableZooKeeper",
                "test.WatchedEventTest",
            ],
        ),
        (
            "need an ensemble, or a server that is started as one of an ensemble",
            &[
                "ClientRequestTimeoutTest",
                "EnforceAuthenticationTest",
                "test.AsyncHammerTest",
                "test.AsyncTest",
                "test.DuplicateLocalSessionUpgradeTest",
                "test.EnsembleAuthTest",
                "test.FLE*",
                "test.FollowerResyncConcurrencyTest",
                "test.FourLetterWordsQuorumTest",
                "test.HierarchicalQuorumTest",
                "test.LeaderSessionTrackerTest",
                "test.LocalSession*",
                "test.Netty*",
                "test.NioNetty*",
                "test.NonRecoverableErrorTest",
                "test.Observer*",
                "test.Quorum*",
                "test.ReadOnlyMode*",
                "test.Reconfig*",
                "test.RepeatStartupTest",
                "test.RestoreCommittedLogTest",
                "test.SessionUpgradeTest",
                "test.ThrottledOp*",
                "test.TruncateTest",
                "test.WatchEventWhenAutoResetTest",
            ],
        ),
        (
            "look into a server in their own process, or into its files",
            &[
                "audit.*",
                "server.*",
                "test.EmptiedSnapshotRecoveryTest",
                "test.GetProposalFromTxnTest",
                "test.IPAuthTest",
                "test.InvalidSnapshotTest",
                "test.LoadFromLog*",
                "test.NIOConnectionFactoryFdLeakTest",
                "test.UnsupportedAddWatcherTest",
                "test.X509AuthTest",
                "test.ZkDatabaseCorruptionTest",
            ],
        ),
        (
            "want a server that is set by properties of Java as this one cannot be: other digests, no access lists, a plug-in for \
             logins, clients turned away that have not logged in, frames of 100 bytes, other addresses than loopback",
            &[
                "test.AuthSHA*",
                "test.BufferSizeTest",
                "test.ClientPortBindTest",
                "test.ClientSkipACLTest",
                "test.DigestAuthDisabledTest",
                "test.FourLetterWordsWhiteListTest",
                "test.KeyAuthClientTest",
                "test.ResponseCacheTest",
                "test.SaslAuthDesignatedServerTest",
                "test.SaslAuthRequiredFail*",
                "test.SaslSuperUserTest",
                "test.ServerCnxnTest",
            ],
        ),
        (
            "want TLS from Java's key stores, or Kerberos",
            &[
                "test.ClientSSLTest",
                "test.SSLAuthTest",
                "test.SaslDigestAuthOverSSLTest",
                "test.SaslKerberosAuthOverSSLTest",
            ],
        ),
    ],
    archives: &["zookeeper-3"],
    passes: 388,
};

/// Curator's tests, which start, stop and restart theirs.
pub(super) const CURATOR: Suite = Suite {
    name: "curator",
    package: "org.apache.curator.framework",
    classes: &[
        "client.TestBackgroundStates",
        "client.TestResetConnectionWithBackgroundFailure",
        "ensemble.TestEnsembleProvider",
        "imps.TestBlockUntilConnected",
        "imps.TestCompression",
        "imps.TestCompressionInTransactionNew",
        "imps.TestCompressionInTransactionOld",
        "imps.TestCreate",
        "imps.TestCreateReturningStat",
        "imps.TestDelete",
        "imps.TestEnabledSessionExpiredState",
        "imps.TestEnsureContainers",
        "imps.TestExistsBuilder",
        "imps.TestFailedDeleteManager",
        "imps.TestFramework",
        "imps.TestFrameworkBackground",
        "imps.TestFrameworkEdges",
        "imps.TestMultiClient",
        "imps.TestNamespaceFacade",
        "imps.TestSetData",
        "imps.TestTempFramework",
        "imps.TestTransactionsNew",
        "imps.TestTransactionsOld",
        "imps.TestTtlNodes",
        "imps.TestWatcherIdentity",
        "imps.TestWatcherRemovalManager",
        "imps.TestWatchesBuilder",
        "recipes.atomic.TestCachedAtomicCounter",
        "recipes.atomic.TestDistributedAtomicLong",
        "recipes.barriers.TestDistributedBarrier",
        "recipes.barriers.TestDistributedDoubleBarrier",
        "recipes.cache.TestCuratorCache",
        "recipes.cache.TestCuratorCacheBridge",
        "recipes.cache.TestCuratorCacheEdges",
        "recipes.cache.TestCuratorCacheEventOrdering",
        "recipes.cache.TestCuratorCacheWrappers",
        "recipes.cache.TestNodeCache",
        "recipes.cache.TestPathChildrenCache",
        "recipes.cache.TestPathChildrenCacheEventOrdering",
        "recipes.cache.TestTreeCache",
        "recipes.cache.TestTreeCacheEventOrdering",
        "recipes.cache.TestTreeCacheIteratorAndSize",
        "recipes.cache.TestTreeCacheRandomTree",
        "recipes.cache.TestWrappedNodeCache",
        "recipes.leader.TestLeaderAcls",
        "recipes.leader.TestLeaderLatch",
        "recipes.leader.TestLeaderSelector",
        "recipes.leader.TestLeaderSelectorParticipants",
        "recipes.leader.TestLeaderSelectorWithExecutor",
        "recipes.locks.TestInterProcessMultiMutex",
        "recipes.locks.TestInterProcessMutex",
        "recipes.locks.TestInterProcessReadWriteLock",
        "recipes.locks.TestInterProcessSemaphore",
        "recipes.locks.TestInterProcessSemaphoreMutex",
        "recipes.locks.TestLockACLs",
        "recipes.locks.TestLockInternals",
        "recipes.nodes.TestGroupMember",
        "recipes.nodes.TestPersistentEphemeralNode",
        "recipes.nodes.TestPersistentEphemeralNodeListener",
        "recipes.nodes.TestPersistentNode",
        "recipes.nodes.TestPersistentTtlNode",
        "recipes.queue.TestBoundedDistributedQueue",
        "recipes.queue.TestDistributedDelayQueue",
        "recipes.queue.TestDistributedIdQueue",
        "recipes.queue.TestDistributedPriorityQueue",
        "recipes.queue.TestDistributedQueue",
        "recipes.queue.TestLongNetworkPartition",
        "recipes.queue.TestQueueSharder",
        "recipes.queue.TestSimpleDistributedQueue",
        "recipes.shared.TestSharedCount",
        "recipes.watch.TestPersistentWatcher",
        "schema.TestSchema",
        "state.TestConnectionStateManager",
    ],
    left_out: &[
        ("TestCuratorCacheEdges#testServerLoss", "needs an ensemble"),
        ("TestFrameworkEdges#testProtectionWithKilledSession", "needs an ensemble"),
    ],
    others: &[
        (
            "ask no server",
            &[
                "imps.TestCleanState",
                "imps.TestGzipCompressionProvider",
                "imps.TestNeverConnected",
                "recipes.cache.TestEventOrdering",
                "recipes.locks.TestInterProcessMutexBase",
                "recipes.queue.TestQueueItem",
                "state.TestCircuitBreaker",
                "state.TestCircuitBreakingConnectionStateListener",
            ],
        ),
        (
            "need an ensemble",
            &[
                "imps.TestReadOnly",
                "imps.TestReconfiguration",
                "imps.TestWithCluster",
                "recipes.cache.TestCuratorCacheConsistency",
                "recipes.cache.TestPathChildrenCacheInCluster",
                "recipes.leader.TestLeaderLatchCluster",
                "recipes.leader.TestLeaderSelectorCluster",
                "recipes.locks.TestInterProcessSemaphoreCluster",
            ],
        ),
        ("make the server in their own process fail", &["recipes.leader.TestLeaderSelectorEdges"]),
    ],
    archives: &["curator-recipes", "curator-framework"],
    passes: 499,
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
    let started = scratch.join("started");
    unjudged(sh, suite, &classpath)?;
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
        // What the stand-ins write when they start a server.
        if !started.exists() {
            _ = writeln!(failures, "{class} has not started a server of ours: it says nothing");
        }
        sh.remove_path(&started)?;
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

/// Fails if the suite has a class that is neither run nor said to be of no use, and says how many are of which kind.
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
    for (count, (why, _)) in counts.iter().zip(suite.others) {
        println!("  {count} {why}");
    }
    if !unknown.is_empty() {
        bail!("nobody has said whether these can judge a server: {}", unknown.join(", "));
    }
    Ok(())
}

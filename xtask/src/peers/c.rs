//! The tests of ZooKeeper's C client, from Debian's source package.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use super::served::write_accounts;
use crate::maven;
use crate::workspace::target_dir;

/// The source package of Debian bookworm with the tests.
const SOURCE: &str = "zookeeper=3.8.0-11+deb12u2";
/// The source list for apt, if this machine's own list has only binary packages.
const SOURCES: &str = "Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";
/// The port of the tests' server; they have no option for another one.
const PORT: u16 = 22_181;
/// The script that replaces the one that starts Apache's server.
const SCRIPT: &str = include_str!("c_server.sh");

/// The suites that use a server; the other suites simulate the server themselves. Left out: `TestReconfigServer`, which
/// needs three servers; `Zookeeper_readOnly`, which needs two of three to be down; `Zookeeper_SASLAuth`, which needs a
/// server that refuses anonymous clients; the TLS suites, whose certificates are made with Java's tools for Java's
/// server.
const SUITES: [&str; 3] = ["Zookeeper_clientretry", "Zookeeper_multi", "Zookeeper_simpleSystem"];
/// The number of their tests that pass. A smaller number means that tests were left out.
const PASSES: usize = 39;

/// The test that connects by IPv6.
const IPV6: &str = "::testIPV6 ";

/// A change of the tests: one requires an answer within 2 ms, which depends on the machine and not on the server.
const CHANGE: (&str, &str) = (
    "calculate_interval(&started, &completion_timestamp) < 2)",
    "calculate_interval(&started, &completion_timestamp) < 1000)",
);

/// Runs the tests; with names of suites or `SUITE::TEST`, the number of passes is not checked.
pub(crate) fn run(sh: &Shell, chosen: &[String]) -> Result<()> {
    need_tools(sh)?;
    if TcpListener::bind(("127.0.0.1", PORT)).is_err() {
        bail!("the tests of the C client want port {PORT}, which another program uses: stop it and try again");
    }
    let home = target_dir(sh).join("peers/c-client");
    let client = source(sh, &home)?;
    let (script, accounts) = (client.join("tests/zkServer.sh"), home.join("accounts"));
    sh.write_file(&script, SCRIPT)?;
    fs::set_permissions(&script, Permissions::from_mode(0o755)).context("making the script executable")?;
    write_accounts(&accounts)?;
    let command = crate::programs::command(sh)?;
    let ipv4_only = TcpListener::bind(("::1", 0)).is_err();
    let program = compile(sh, &client, &home)?;
    let all: Vec<_> = SUITES.iter().map(|suite| (*suite).to_owned()).collect();
    let mut failures = String::new();
    let mut passed = 0;
    for suite in if chosen.is_empty() { &all } else { chosen } {
        // The tests write logs to the current directory.
        let _aside = sh.push_dir(&home);
        let output = cmd!(sh, "{program} {suite}")
            .env("LOCKKEEPER", &command)
            .env("LOCKKEEPER_ACCOUNTS", &accounts)
            // The directory of the servers for the tests that need three; it must be set even if they do not run.
            .env("ZKROOT", &home)
            .quiet()
            .ignore_status()
            .output()?;
        let told = String::from_utf8_lossy(&output.stdout);
        let verdicts = told.lines().filter(|line| line.contains(" : elapsed "));
        let (good, others): (Vec<_>, Vec<_>) = verdicts.partition(|line| line.ends_with(": OK"));
        let (excused, bad): (Vec<_>, Vec<_>) = others.into_iter().partition(|line| ipv4_only && line.contains(IPV6));
        for line in &excused {
            println!("NOT RUN, because this machine has no IPv6: {line}");
        }
        println!("{suite}: {} passed, {} failed", good.len(), bad.len());
        passed += good.len() + excused.len();
        if good.is_empty() || !bad.is_empty() || (!output.status.success() && excused.is_empty()) {
            // Writing to a string never fails.
            _ = writeln!(failures, "{suite}:\n{told}");
        }
    }
    cmd!(sh, "{script} stop").quiet().run()?;
    if !failures.is_empty() {
        bail!("the C client's tests do not all pass:\n{failures}");
    }
    if chosen.is_empty() && passed < PASSES {
        bail!("only {passed} of {PASSES} passed: some were left out");
    }
    Ok(())
}

/// Installs missing tools as root on Debian; otherwise returns an error that names them.
fn need_tools(sh: &Shell) -> Result<()> {
    let usable = || {
        cmd!(
            sh,
            "sh -c 'cmake --version && c++ --version && dpkg-source --version && test -f /usr/include/cppunit/Test.h'"
        )
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok()
    };
    if usable() {
        return Ok(());
    }
    let packages = ["cmake", "g++", "make", "dpkg-dev", "libcppunit-dev"];
    let installed = rustix::process::geteuid().is_root()
        && cmd!(sh, "apt-get install --yes --quiet --no-install-recommends {packages...}").run().is_ok();
    if !(installed && usable()) {
        bail!("to build the C client's tests, as root on Debian: apt-get install {}", packages.join(" "));
    }
    Ok(())
}

/// Fetches the source package once, and creates the two files for which its own build needs a Java compiler.
fn source(sh: &Shell, home: &Path) -> Result<PathBuf> {
    let (unpacked, complete) = (home.join("source"), home.join("complete"));
    let client = unpacked.join("zookeeper-client/zookeeper-client-c");
    if complete.exists() {
        return Ok(client);
    }
    // An interrupted attempt may have left files.
    sh.remove_path(home)?;
    for part in ["apt/state/lists/partial", "apt/cache/archives/partial"] {
        sh.create_dir(home.join(part))?;
    }
    let apt = fs::canonicalize(home.join("apt")).context("finding the directory for apt")?;
    sh.write_file(apt.join("debian.sources"), SOURCES)?;
    let apt = apt.display();
    // A separate source list: this machine's list does not change, and root is not needed.
    let options = [
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        format!("Dir::Etc::SourceParts={apt}"),
        format!("Dir::State={apt}/state"),
        format!("Dir::Cache={apt}/cache"),
    ];
    let options: &Vec<_> = &options.iter().map(|option| format!("-o={option}")).collect();
    {
        let _aside = sh.push_dir(home);
        cmd!(sh, "apt-get --quiet --quiet {options...} update")
            .run()
            .context("apt cannot read Debian's list of sources")?;
        cmd!(sh, "apt-get --quiet --quiet {options...} --download-only source {SOURCE}")
            .run()
            .with_context(|| format!("apt cannot fetch the source of {SOURCE}"))?;
        let described = sh.read_dir(home)?.into_iter().find(|file| file.extension().is_some_and(|end| end == "dsc"));
        let described = described.context("apt has fetched no source package")?;
        cmd!(sh, "dpkg-source --extract {described} {unpacked}").quiet().ignore_stdout().run()?;
    }
    let classpath = maven::build(sh, "suites")?;
    let generated = client.join("generated");
    sh.create_dir(&generated)?;
    let records = unpacked.join("zookeeper-jute/src/main/resources/zookeeper.jute");
    let _there = sh.push_dir(&generated);
    cmd!(sh, "java -cp {classpath} org.apache.jute.compiler.generated.Rcc -l c {records}")
        .quiet()
        .ignore_stdout()
        .run()?;
    let tests = client.join("tests/TestClient.cc");
    let text = sh.read_file(&tests)?;
    if text.matches(CHANGE.0).count() != 1 {
        bail!("{} has changed: it does not contain {:?} exactly once", tests.display(), CHANGE.0);
    }
    sh.write_file(&tests, text.replace(CHANGE.0, CHANGE.1))?;
    sh.write_file(complete, "")?;
    Ok(client)
}

/// Builds the library and the tests; returns the test program.
fn compile(sh: &Shell, client: &Path, home: &Path) -> Result<PathBuf> {
    let place = home.join("build");
    sh.create_dir(&place)?;
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let log = home.join("build.log");
    let _there = sh.push_dir(&place);
    // A test uses nanosleep without the include that newer libraries of C++ require.
    let flags = ["-DCMAKE_CXX_FLAGS=-include time.h", "-DWITH_OPENSSL=OFF", "-DWITH_CYRUS_SASL=OFF"];
    let built = cmd!(
        sh,
        "sh -c 'log=$1; jobs=$2; shift 2; { cmake \"$@\" && make --jobs $jobs zktest; } >$log 2>&1' sh {log} {jobs} {flags...} {client}"
    );
    built.quiet().run().with_context(|| format!("building the C client's tests: see {}", log.display()))?;
    Ok(place.join("zktest"))
}

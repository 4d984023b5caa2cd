//! The tests of clients in Rust, from their crates, on our server.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

use super::served::{Served, write_accounts};
use crate::workspace::{Package, metadata, target_dir};

/// The script that replaces Java with a cluster of ZooKeeper, for the tests of two clients.
const CLUSTER: &str = include_str!("rust_cluster.sh");

/// A client, and how its tests find a server.
struct Suite {
    name: &'static str,
    version: &'static str,
    arguments: &'static [&'static str],
    way: Way,
    /// Tests that need something else than one current server: several, an old one, or a mandatory login.
    left_out: &'static [&'static str],
    /// The number of tests with a server that pass. A smaller number means that tests were left out.
    passes: u32,
}

enum Way {
    /// The tests start `java`, which starts a cluster and prints its address.
    Cluster,
    /// The tests start containers through a crate that is replaced.
    Containers,
    /// The tests expect a server at ZooKeeper's own port, which is changed.
    Fixed,
}

const SUITES: [Suite; 4] = [
    Suite {
        name: "zookeeper-client",
        version: "0.11.2",
        arguments: &["--features", "tls,sasl-digest-md5", "--test", "zookeeper"],
        way: Way::Containers,
        left_out: &["test_zookeeper_old_server", "test_auth_failed", "test_readonly", "test_update_ensemble"],
        passes: 48,
    },
    Suite {
        name: "zookeeper",
        version: "0.8.0",
        arguments: &["--tests"],
        way: Way::Cluster,
        left_out: &[],
        passes: 22,
    },
    Suite {
        name: "zookeeper-async",
        version: "5.0.0",
        arguments: &["--tests"],
        way: Way::Cluster,
        left_out: &[],
        passes: 23,
    },
    Suite {
        name: "tokio-zookeeper",
        version: "0.4.0",
        arguments: &["--lib"],
        way: Way::Fixed,
        left_out: &[],
        passes: 7,
    },
];

/// Runs the tests; with names of crates, only theirs.
pub(crate) fn run(sh: &Shell, chosen: &[String]) -> Result<()> {
    if let Some(unknown) = chosen.iter().find(|name| SUITES.iter().all(|suite| suite.name != name.as_str())) {
        bail!("no suite of {unknown}; there are {}", SUITES.map(|suite| suite.name).join(", "));
    }
    let command = crate::programs::command(sh)?;
    let home = target_dir(sh).join("peers/rust");
    sh.create_dir(&home)?;
    let home = fs::canonicalize(&home).with_context(|| format!("finding {}", home.display()))?;
    let packages = fetch(sh, &home)?;
    let (java, accounts) = (home.join("bin/java"), home.join("accounts"));
    sh.write_file(&java, CLUSTER)?;
    fs::set_permissions(&java, Permissions::from_mode(0o755)).context("making the replacement of java executable")?;
    write_accounts(&accounts)?;
    let stand_in = home.join("testcontainers");
    sh.remove_path(&stand_in)?;
    cmd!(sh, "cp -r interop/testcontainers {stand_in}").quiet().run()?;
    let mut failures = String::new();
    for suite in SUITES.iter().filter(|suite| chosen.is_empty() || chosen.iter().any(|name| name == suite.name)) {
        let (told, passed, good) = tests_of(sh, suite, &packages, &home, &command)?;
        println!("{} {}: {passed} passed", suite.name, suite.version);
        if !good {
            _ = writeln!(failures, "{}:\n{told}", suite.name);
        } else if passed < suite.passes {
            _ = writeln!(failures, "{}: only {passed} of {} passed: some were left out", suite.name, suite.passes);
        }
    }
    if !failures.is_empty() {
        bail!("the tests of clients in Rust do not all pass:\n{failures}");
    }
    Ok(())
}

/// Lets cargo fetch the crates, as for any user of them.
fn fetch(sh: &Shell, home: &Path) -> Result<Vec<Package>> {
    let user = home.join("fetched");
    let needs: Vec<_> = SUITES.iter().map(|suite| format!("{} = \"={}\"\n", suite.name, suite.version)).collect();
    let head = "[package]\nname = \"fetched\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[workspace]\n[dependencies]\n";
    sh.write_file(user.join("Cargo.toml"), head.to_owned() + &needs.concat())?;
    sh.write_file(user.join("src/lib.rs"), "")?;
    let _there = sh.push_dir(&user);
    Ok(metadata(sh, &[]).context("cargo cannot fetch the clients")?.packages)
}

/// Runs the tests of one crate; returns the output, the number of passes, and whether all passed.
fn tests_of(
    sh: &Shell,
    suite: &Suite,
    packages: &[Package],
    home: &Path,
    command: &Path,
) -> Result<(String, u32, bool)> {
    let place = home.join(suite.name);
    let package = packages.iter().find(|package| package.name == suite.name && package.version == suite.version);
    let source =
        package.and_then(|package| package.manifest_path.parent()).context("cargo has fetched something else")?;
    sh.remove_path(&place)?;
    cmd!(sh, "cp -r {source} {place}").quiet().run()?;
    cmd!(sh, "chmod -R u+w {place}").quiet().run()?;
    let manifest = place.join("Cargo.toml");
    let mut text = sh.read_file(&manifest)? + "\n[workspace]\n";
    let mut served = None;
    match suite.way {
        Way::Containers => text += "\n[dev-dependencies.testcontainers]\npath = \"../testcontainers\"\n",
        // Old code that the current compiler rejects outside of dependencies.
        Way::Cluster => text += "\n[lints.rust]\ndependency_on_unit_never_type_fallback = \"warn\"\n",
        Way::Fixed => {
            let server = Served::start(command, Some(&home.join("accounts")))?;
            let library = place.join("src/lib.rs");
            let changed = sh.read_file(&library)?.replace("\"127.0.0.1:2181\"", &format!("\"{}\"", server.address));
            sh.write_file(&library, changed)?;
            served = Some(server);
        }
    }
    sh.write_file(&manifest, text)?;
    let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let arguments = suite.arguments;
    let left_out: Vec<_> = suite.left_out.iter().flat_map(|test| ["--skip", test]).collect();
    let _there = sh.push_dir(&place);
    // One at a time: some tests count the nodes of the whole tree.
    let output = cmd!(sh, "cargo test --quiet {arguments...} -- --test-threads=1 {left_out...}")
        .env("CARGO_TARGET_DIR", home.join("target"))
        .env("PATH", path)
        .env("LOCKKEEPER", command)
        .env("LOCKKEEPER_ACCOUNTS", home.join("accounts"))
        // Otherwise each test chooses at random.
        .env("ZK_TEST_TLS", "false")
        .env("ZK_TLS_HOSTNAME_VERIFICATION", "true")
        .env("RUST_LOG", "off")
        .quiet()
        .ignore_status()
        .output()?;
    drop(served);
    let said = String::from_utf8_lossy(&output.stdout);
    let counts = said.lines().filter_map(|line| line.split_once(" passed;")?.0.rsplit(' ').next()?.parse::<u32>().ok());
    let passed = counts.sum();
    let told = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok((told, passed, output.status.success()))
}

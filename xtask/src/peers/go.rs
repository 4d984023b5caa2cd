//! The tests of go-zookeeper, unchanged except for the start of a server.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use xshell::{Shell, cmd};

use super::served::write_accounts;
use crate::untested::fetched;
use crate::workspace::target_dir;

/// The release with the tests.
const MODULE: &str = "github.com/go-zookeeper/zk@v1.0.4";
/// The number of tests with a server that pass; as many need more than one server, or a name for reconfiguration.
const PASSES: usize = 21;

/// The script that replaces Apache's start script: the same settings file, another server.
const SCRIPT: &str = r#"#!/bin/sh
of() { sed -n "s/^$1=//p" "$config"; }
config=$2
exec "$LOCKKEEPER" serve --listen "127.0.0.1:$(of clientPort)" --data "$(of dataDir)/lockkeeper" --accounts "$LOCKKEEPER_ACCOUNTS" --words all
"#;

/// The changes of their harness. It checks a server's health by a date in `srvr`, in a format that Apache dropped in
/// 3.6; and it expects three servers, not one.
const CHANGES: [(&str, &str); 2] = [
    (
        "_, ok := FLWSrvr(serverAddrs, time.Second)",
        "ok := true\n\t\tfor _, one := range FLWRuok(serverAddrs, time.Second) {\n\t\t\tok = ok && one\n\t\t}",
    ),
    (
        "\tif testing.Short() {",
        "\tif size > 1 {\n\t\tt.Skip(\"needs more than one server\")\n\t}\n\tif testing.Short() {",
    ),
];

#[derive(Deserialize)]
struct Download {
    #[serde(rename = "Dir")]
    dir: PathBuf,
}

/// Runs the tests; with arguments for `go test`, the number of passes is not checked.
pub(super) fn run(sh: &Shell, arguments: &[String]) -> Result<()> {
    if cmd!(sh, "go version").quiet().ignore_stdout().ignore_stderr().run().is_err() {
        bail!("no Go on this machine: install it (Debian: apt-get install golang-go) and try again");
    }
    let home = target_dir(sh).join("peers/go-zookeeper");
    // Fetched outside the repository, which is not a Go module.
    sh.create_dir(&home)?;
    let text = {
        let _aside = sh.push_dir(&home);
        fetched("go-zookeeper, for go cannot fetch it", cmd!(sh, "go mod download -json {MODULE}").read())?
    };
    let Download { dir } = serde_json::from_str(&text).context("reading what go has fetched")?;
    let suite = home.join("suite");
    sh.remove_path(&suite)?;
    cmd!(sh, "cp -r {dir} {suite}").run()?;
    // Go makes its own copy read-only.
    cmd!(sh, "chmod -R u+w {suite}").run()?;
    let harness = suite.join("server_help_test.go");
    let mut text = sh.read_file(&harness)?;
    for (theirs, ours) in CHANGES {
        if text.matches(theirs).count() != 1 {
            bail!("{} has changed: it does not contain {theirs:?} exactly once", harness.display());
        }
        text = text.replace(theirs, ours);
    }
    sh.write_file(&harness, text)?;
    let (script, accounts) = (home.join("bin/zkServer.sh"), home.join("accounts"));
    sh.write_file(&script, SCRIPT)?;
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).context("making the script executable")?;
    write_accounts(&accounts)?;
    let command = crate::programs::command(sh)?;

    let all = ["-run".to_owned(), "TestIntegration".to_owned()];
    let chosen = if arguments.is_empty() { &all[..] } else { arguments };
    let _suite = sh.push_dir(&suite);
    let output = cmd!(sh, "go test -count=1 -timeout 5m -v {chosen...} .")
        .env("ZOOKEEPER_BIN_PATH", home.join("bin"))
        .env("LOCKKEEPER", command)
        .env("LOCKKEEPER_ACCOUNTS", accounts)
        .ignore_status()
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let verdicts: Vec<_> = text.lines().filter(|line| line.starts_with("--- ")).collect();
    println!("{}", verdicts.join("\n"));
    if !output.status.success() {
        bail!("go-zookeeper's tests do not all pass:\n{text}");
    }
    let passed = verdicts.iter().filter(|line| line.starts_with("--- PASS")).count();
    if arguments.is_empty() && passed < PASSES {
        bail!("only {passed} passed: some were left out");
    }
    Ok(())
}

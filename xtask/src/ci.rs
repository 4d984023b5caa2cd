//! Everything CI checks after `cargo test`, step by step, each with its time.
//!
//! The first step that fails ends the run: what comes after it would only hide it.

use std::time::Instant;

use anyhow::Result;
use lockkeeper_testkit::apache::{Distribution, SlowFsync, WrongClock};
use xshell::cmd;

use crate::{acceptance, chaos, crash, figures, fuzz, interop, neighbours, peers, postgres, simulate, tls, zookeeper};

pub(crate) fn run() -> Result<()> {
    let sh = crate::shell()?;
    let start = Instant::now();
    step("formatting", || Ok(cmd!(sh, "cargo fmt --all --check").run()?))?;
    step("lints", || {
        Ok(cmd!(sh, "cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings").run()?)
    })?;
    step("acceptance", || {
        cmd!(sh, "cargo test --quiet -p xtask").run()?;
        acceptance::run(&crate::root(), &acceptance::Options { gaps: true })
    })?;
    step("documentation", || {
        Ok(cmd!(sh, "cargo doc --quiet --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()?)
    })?;
    step("dependencies", || {
        if cmd!(sh, "cargo deny --version").quiet().ignore_stdout().ignore_stderr().run().is_err() {
            cmd!(sh, "cargo install --quiet --locked cargo-deny").run()?;
        }
        // Not `advisories`: its database is a repository of its own that a build machine may not reach. A person who can
        // runs `cargo deny check`.
        Ok(cmd!(sh, "cargo deny check bans licenses sources").run()?)
    })?;
    step("kill -9 in the middle of writes", || crash::kill(&sh, crash::ROUNDS, None))?;
    step("inputs that nobody would send", || fuzz::run(&sh, &fuzz::Options::of(10)))?;
    step("ten thousand seeded worlds", || simulate::simulate(&sh, &simulate::Options::usual()))?;
    step("Kazoo's suite against the embedded server", || peers::kazoo(&sh, &[]))?;
    step("go-zookeeper's suite against the embedded server", || peers::go(&sh, &[]))?;
    step("Apache ZooKeeper", || {
        let distribution = Distribution::install()?;
        SlowFsync::install()?;
        WrongClock::install()?;
        eprintln!("{}", distribution.origin());
        Ok(())
    })?;
    step("our server beside Apache's", || match Distribution::fetch(peers::APACHE) {
        Ok(_) => peers::apache(&sh, peers::SCRIPTS).and_then(|()| peers::zkcli(&sh)),
        Err(why) => {
            // A build machine may not reach Maven Central; a person runs `cargo xtask peers apache` where that can be.
            eprintln!("NOT COMPARED, for there is no ZooKeeper {}: {why}", peers::APACHE);
            Ok(())
        }
    })?;
    step("tests against one server and an ensemble", || zookeeper::test(&sh, &zookeeper::Tests::default()))?;
    step("locks over TLS", || tls::run(&sh, &tls::Options::default()))?;
    step("figures of docs/guarantees.md, few of each", || figures::run(&figures::Options::few()))?;
    step("chaos", || chaos::run(&chaos::Options::brief()))?;
    step("fencing statements on PostgreSQL", || postgres::test(&sh, &[]))?;
    step("Helix's lock beside ours", || interop::helix(&sh, &[]))?;
    step("Curator's locks beside ours", || interop::curator(&sh, &[]))?;
    step("Kazoo's locks beside ours", || interop::kazoo(&sh, &[]))?;
    step("dead letters in Kafka", || match neighbours::Neighbour::Kafka.jars(&sh) {
        Ok(_) => neighbours::kafka(&sh, &[]),
        Err(why) => {
            eprintln!("NOT TESTED, for there is no broker: {why:#}");
            Ok(())
        }
    })?;
    step("metrics", || Ok(cmd!(sh, "cargo test --quiet -p lockkeeper --lib --features metrics").run()?))?;
    step("the example", || Ok(cmd!(sh, "cargo test --quiet -p catalogue").run()?))?;
    step("the example on a search engine", || match neighbours::Neighbour::Search.jars(&sh) {
        Ok(_) => neighbours::search(&sh, &[]),
        Err(why) => {
            eprintln!("NOT TESTED, for there is no search engine: {why:#}");
            Ok(())
        }
    })?;
    eprintln!("all steps passed in {:.1?}", start.elapsed());
    Ok(())
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("== {name}");
    let start = Instant::now();
    let done = work();
    let (verdict, took) = (if done.is_ok() { "passed" } else { "FAILED" }, start.elapsed());
    eprintln!("== {name}: {verdict} in {took:.1?}\n");
    done
}

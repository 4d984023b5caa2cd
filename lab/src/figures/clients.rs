//! Figures of processes that are stopped, killed, disconnected or too busy.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lockkeeper::{FencingToken, Lockkeeper};
use lockkeeper_fence::TokenGate;
use lockkeeper_testkit::proxy::Proxy;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::bench::{Bench, Figure, Next, most, next_holder, until_waiting};
use super::control::{CONTROLS, Times, clock};
use crate::process::{Process, Role};
use crate::testbed::{SESSION_TIMEOUT, TICK};
use crate::tools::now;

/// A process that holds a lock and prints what it believes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Stand {
    servers: String,
    path: String,
}

impl Stand {
    /// Acquires the lock, prints the token, checks the guard repeatedly, and prints when the hold is lost.
    pub(crate) fn run(self) -> Result<()> {
        let keeper = Lockkeeper::builder().session_timeout(SESSION_TIMEOUT).connect_blocking(&self.servers)?;
        let guard = keeper.mutex(&self.path).acquire().wait()?;
        println!("{}", serde_json::to_string(&guard.token())?);
        let (tell, told) = mpsc::channel();
        let lost = guard.cancelled_when_lost();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("an event loop can be made");
            runtime.block_on(lost.cancelled());
            _ = tell.send(now());
        });
        while guard.is_held() {
            std::thread::sleep(Duration::from_micros(500));
        }
        let seen = now();
        let told = told.recv_timeout(SESSION_TIMEOUT).unwrap_or(Duration::MAX);
        println!("{} {}", seen.as_nanos(), told.as_nanos());
        // Its next step would be a write.
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    }
}

/// A holder and the next waiter.
struct Pair {
    process: Process,
    token: FencingToken,
    next: Next,
}

/// Returns this many pairs, each on a lock of its own. The waiters share a session.
async fn pairs(bench: &Bench, name: &str) -> Result<(Lockkeeper, Vec<Pair>)> {
    let servers = bench.testbed.apache.connect_string();
    let next = bench.keeper(&servers).await?;
    let mut pairs = Vec::new();
    for run in 0..bench.runs {
        let path = format!("/figures/{name}-{run}");
        let mut process = Role::Stand.start(&Stand { servers: servers.clone(), path: path.clone() })?;
        let line = process.line()?;
        let token = serde_json::from_str(&line).with_context(|| format!("it printed {line:?}"))?;
        pairs.push(Pair { process, token, next: next_holder(&next, &path).await? });
    }
    Ok((next, pairs))
}

/// (b) Sends SIGSTOP until another contender has the lock and has written, then SIGCONT.
pub(super) async fn stopped(bench: &Arc<Bench>) -> Result<Figure> {
    let (keeper, mut pairs) = pairs(bench, "stopped").await?;
    let gate = TokenGate::new();
    let controls = || (0..CONTROLS).map(|_| clock()).collect::<Result<Vec<_>>>();
    let mut clocks = pairs.iter().map(|_| controls()).collect::<Result<Vec<_>>>()?;
    for (pair, clocks) in pairs.iter().zip(&clocks) {
        pair.process.signal(Signal::STOP)?;
        clocks.iter().try_for_each(|clock| clock.signal(Signal::STOP))?;
    }
    let mut guards = Vec::new();
    for (run, pair) in pairs.iter_mut().enumerate() {
        let (_, guard) = (&mut pair.next).await?;
        let guard = guard?;
        drop(gate.enter_blocking(&run.to_string(), guard.token())?);
        guards.push(guard);
    }
    let (mut looked, mut heard, mut stale) = (Times::within(Duration::from_millis(5)), Vec::new(), 0);
    for (run, (pair, clocks)) in pairs.iter_mut().zip(&mut clocks).enumerate() {
        let control_since = now();
        clocks.iter().try_for_each(|clock| clock.signal(Signal::CONT))?;
        let since = now();
        pair.process.signal(Signal::CONT)?;
        let line = pair.process.line()?;
        let (seen, told) = line.split_once(' ').ok_or_else(|| anyhow!("it printed {line:?}"))?;
        let mut control = Duration::ZERO;
        for clock in clocks {
            control = control.max(Duration::from_nanos(clock.line()?.parse()?).saturating_sub(control_since));
        }
        looked.add(Duration::from_nanos(seen.parse()?).saturating_sub(since), control);
        heard.push(Duration::from_nanos(told.parse()?).saturating_sub(since));
        stale += usize::from(gate.enter_blocking(&run.to_string(), pair.token).is_ok());
    }
    for guard in guards {
        guard.release().await?;
    }
    keeper.close().await;
    let (saw, told) = (looked.most(), most(&heard));
    let measured = format!(
        "`is_held()` at most {saw:.2?} after SIGCONT, `lost()` at most {told:.2?}, in {} runs; {stale} stale writes taken{}",
        bench.runs,
        looked.words("the last of three processes that read the clock and nothing else")
    );
    let claim =
        "stopped until another holds, a holder says \"not held\" within 5 ms of SIGCONT, and its write is refused";
    Ok(Figure {
        letter: 'b',
        claim: claim.into(),
        measured,
        kept: stale == 0 && looked.kept(),
        void: stale == 0 && looked.void(),
    })
}

pub(super) async fn killed(bench: &Arc<Bench>) -> Result<Figure> {
    let (keeper, mut pairs) = pairs(bench, "killed").await?;
    let watcher = zookeeper_client::Client::connect(&bench.testbed.apache.connect_string()).await?;
    let mut killed = Vec::new();
    for (run, pair) in pairs.iter_mut().enumerate() {
        // A plain client watches the same node: it shows when the servers end the session, without our code.
        let path = format!("/figures/killed-{run}");
        let holder = &keeper.admin().show(&path).await?.holders[0].node;
        let (_, watch) = watcher.check_and_watch_stat(&format!("{path}/{holder}")).await?;
        let gone = tokio::spawn(async move {
            watch.changed().await;
            Instant::now()
        });
        killed.push((Instant::now(), gone));
        pair.process.signal(Signal::KILL)?;
    }
    let mut times = Times::within(SESSION_TIMEOUT + Duration::from_millis(500));
    for (pair, (since, gone)) in pairs.iter_mut().zip(killed) {
        let (granted, guard) = (&mut pair.next).await?;
        let guard = guard?;
        times.add(granted - since, gone.await? - since);
        guard.release().await?;
    }
    keeper.close().await;
    let (least, longest) = (times.least(), times.most());
    let measured = format!(
        "between {least:.2?} and {longest:.2?} in {} runs{}",
        bench.runs,
        times.words("a plain client's watch of the holder's node")
    );
    let claim = format!("a holder is killed: the next holds within the session timeout + 0.5 s (a tick of {TICK:?})");
    Ok(Figure { letter: 'f', claim, measured, kept: times.kept(), void: times.void() })
}

/// (g) Disconnects `lockkeeper run`, whose command has a child and ignores SIGTERM.
pub(super) async fn partitioned_run(bench: &Arc<Bench>) -> Result<Figure> {
    /// Prints the processes from a file of ids that still run; a zombie has ended.
    const NEXT: &str = r#"for p in $(cat "$1"); do
        if grep -q '^State:.[^ZX]' "/proc/$p/status" 2> /dev/null; then echo "alive $p"; fi; done; echo started"#;
    const HELD: &str =
        r#"trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo "$$ $!" > "$1"; while :; do sleep 1; done"#;
    let dir = tempfile::tempdir()?;
    let looker = bench.keeper(&bench.testbed.apache.connect_string()).await?;
    let timeout = format!("{}s", SESSION_TIMEOUT.as_secs());
    let run = |servers: &str, path: &str, script: &str, file: &PathBuf| {
        let mut run = tokio::process::Command::from(bench.testbed.site.command());
        run.args(["run", path, "--servers", servers, "--session-timeout", &timeout, "--", "sh", "-c", script, "sh"]);
        run.arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        run.spawn()
    };
    let mut runs = Vec::new();
    for at in 0..bench.runs {
        let (proxies, servers) = bench.proxies();
        let (path, file) = (format!("/figures/run-{at}"), dir.path().join(at.to_string()));
        let first = run(&servers, &path, HELD, &file)?;
        let patience = Instant::now() + Duration::from_secs(30);
        while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
            if Instant::now() > patience {
                bail!("`lockkeeper run` does not start its command");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let second = run(&bench.testbed.apache.connect_string(), &path, NEXT, &file)?;
        until_waiting(&looker, &path).await?;
        runs.push((proxies, first, second));
    }
    for (proxies, ..) in &runs {
        proxies.iter().for_each(Proxy::black_hole);
    }
    let mut ended = JoinSet::new();
    for (proxies, mut first, second) in runs {
        ended.spawn(async move {
            let said = tokio::time::timeout(Duration::from_secs(60), second.wait_with_output()).await??;
            first.wait().await?;
            drop(proxies);
            Ok::<_, anyhow::Error>(String::from_utf8_lossy(&said.stdout).into_owned())
        });
    }
    let mut gone = 0;
    while let Some(said) = ended.join_next().await {
        gone += usize::from(said?? == "started\n");
    }
    looker.close().await;
    let measured = format!("{gone} of {}", bench.runs);
    let claim = "`lockkeeper run` is cut off: every process of its command is gone before the next one's starts".into();
    Ok(Figure { letter: 'g', claim, measured, kept: gone == bench.runs, void: false })
}

/// (h) Keeps every worker of the user's runtime busy for three session timeouts.
pub(super) async fn saturated(bench: &Arc<Bench>) -> Result<Figure> {
    const WORKERS: usize = 2;
    let (bench, runs) = (bench.clone(), bench.runs);
    let kept = tokio::task::spawn_blocking(move || {
        let user = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
        let keeper = user.block_on(bench.keeper(&bench.testbed.apache.connect_string()))?;
        let mut guards = Vec::new();
        for run in 0..runs {
            guards.push(user.block_on(keeper.mutex(format!("/figures/busy-{run}")).acquire().into_future())?);
        }
        let until = Instant::now() + SESSION_TIMEOUT * 3;
        let busy: Vec<_> = (0..WORKERS)
            .map(|_| {
                user.spawn(async move {
                    // Never yields: no other task of this runtime gets a turn.
                    while Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        let mut held = vec![true; runs];
        while Instant::now() < until {
            for (held, guard) in held.iter_mut().zip(&guards) {
                *held &= guard.is_held();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        for task in busy {
            user.block_on(task)?;
        }
        for (held, guard) in held.iter_mut().zip(guards) {
            *held &= user.block_on(guard.release()).is_ok();
        }
        user.block_on(keeper.close());
        Ok::<_, anyhow::Error>(held.into_iter().filter(|held| *held).count())
    })
    .await??;
    let measured = format!("{kept} of {runs} locks held throughout");
    let claim = "a user's runtime is busy with work that blocks for three session timeouts: no lock is lost".into();
    Ok(Figure { letter: 'h', claim, measured, kept: kept == runs, void: false })
}

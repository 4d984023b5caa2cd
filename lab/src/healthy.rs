//! `cargo xtask healthy`: checks that a healthy job is never stopped.
//!
//! It runs queues of jobs through the command. No job may be stopped while its server answers, however long it waited
//! in any position. It also measures how long an ordinary restart and an election take, which a session timeout must
//! outlast.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use lockkeeper::Lockkeeper;
use lockkeeper_testkit::Stalls;
use lockkeeper_testkit::apache::{Apache, Mode, Options as Servers};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::figures::machine;
use crate::tools::Tools;

#[derive(Debug, Args)]
pub struct Options {
    /// Queues for each kind of lock, server and time
    #[arg(long, value_name = "N", default_value = "24")]
    runs: usize,
    /// Queues that run at a time
    #[arg(long, value_name = "N", default_value = "12")]
    at_once: usize,
    /// The jobs' session timeout.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "4s")]
    session_timeout: Duration,
    /// How often servers are restarted, and leaders ended
    #[arg(long, value_name = "N", default_value = "10")]
    away: usize,
}

/// The kinds of lock: a name, the first job's options, the other jobs' options.
const KINDS: [(&str, &[&str], &[&str]); 6] = [
    ("mutex", &[], &[]),
    ("writers", &["--exclusive"], &["--exclusive"]),
    ("readers behind a writer", &["--exclusive"], &["--shared"]),
    ("permits, two at once", &["--permits", "2", "--take", "2"], &["--permits", "2"]),
    ("foreground", &["--foreground"], &["--foreground"]),
    ("background", &["--background"], &["--background"]),
];

/// How long the first job holds the lock, in hundredths of the session timeout.
const HOLDS: [u32; 8] = [10, 30, 55, 65, 80, 100, 140, 180];

/// The columns of the table: until when a job was granted, in hundredths of the session timeout.
const COLUMNS: [(u32, &str); 5] =
    [(25, "0 to ¼ T"), (50, "¼ to ½ T"), (75, "½ to ¾ T"), (100, "¾ to 1 T"), (200, "1 to 2 T")];

/// The number of waiters behind the first job.
const WAITERS: usize = 4;

/// One job: its position in the queue, the column of its time to the grant, and whether it was stopped.
struct Job {
    place: usize,
    column: usize,
    stopped: bool,
}

/// The numbers of jobs and of stopped jobs, by position: the second, the third, and later ones.
type Cell = [(usize, usize); 3];

pub(crate) fn run(options: &Options, tools: &Tools) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let single = Apache::single(Servers::default())?;
    println!("{}", machine(single.distribution()));
    if options.away > 0 {
        runtime.block_on(away(options.away))?;
    }
    if options.runs > 0 {
        runtime.block_on(queues(options, (tools.command)()?, &single.connect_string()))?;
    }
    Ok(())
}

/// Prints the table.
async fn queues(options: &Options, command: PathBuf, apache: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut serve = Command::new(&command);
    serve.args(["serve", "--listen", "127.0.0.1:0"]).arg("--data").arg(dir.path()).kill_on_drop(true);
    let mut server = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let embedded = first_line(&mut server).await.context("the embedded server")?;
    let (stalls, start) = (Stalls::watch(), Instant::now());
    let turns = Arc::new(Semaphore::new(options.at_once.max(1)));
    let mut table: BTreeMap<(&str, usize), [Cell; COLUMNS.len()]> = BTreeMap::new();
    let mut queues = JoinSet::new();
    for run in 0..options.runs {
        for (kind, (_, first, others)) in KINDS.iter().enumerate() {
            for hold in HOLDS {
                for (site, servers) in [("embedded", embedded.as_str()), ("Apache", apache)] {
                    let queue = Queue {
                        command: command.clone(),
                        servers: servers.to_owned(),
                        path: format!("/healthy/{kind}-{hold}-{run}"),
                        timeout: options.session_timeout,
                    };
                    let turns = turns.clone();
                    queues.spawn(async move {
                        let _turn = turns.acquire().await?;
                        Ok::<_, anyhow::Error>((site, kind, queue.run(first, others, hold).await?))
                    });
                }
            }
        }
    }
    while let Some(queue) = queues.join_next().await {
        let (site, kind, jobs) = queue??;
        for Job { place, column, stopped } in jobs {
            let (all, ended) = &mut table.entry((site, kind)).or_default()[column][place.min(2)];
            *all += 1;
            *ended += usize::from(stopped);
        }
    }
    print(&table);
    let cells = || table.values().flatten().flatten();
    let (jobs, stopped) = (cells().map(|cell| cell.0).sum::<usize>(), cells().map(|cell| cell.1).sum::<usize>());
    let least = cells().map(|cell| cell.0).min().unwrap_or_default();
    println!(
        "\n{stopped} of {jobs} jobs stopped, at least {least} in a cell; T is {:?}; the machine's longest stall {:.2?}; {:.0?}",
        options.session_timeout,
        stalls.longest(),
        start.elapsed()
    );
    if stopped > 0 {
        bail!("{stopped} healthy jobs were stopped");
    }
    Ok(())
}

fn print(table: &BTreeMap<(&str, usize), [Cell; COLUMNS.len()]>) {
    let heads: Vec<_> = COLUMNS.iter().map(|(_, head)| *head).collect();
    println!("\n| server | kind | {} |\n|---|---|{}", heads.join(" | "), "---|".repeat(heads.len()));
    for ((site, kind), columns) in table {
        let told = |cell: &Cell| {
            let told = cell.iter().map(|(all, stopped)| format!("{stopped}/{all}"));
            told.collect::<Vec<_>>().join(" ")
        };
        let cells: Vec<_> = columns.iter().map(told).collect();
        println!("| {site} | {} | {} |", KINDS[*kind].0, cells.join(" | "));
    }
}

/// One queue: a job that holds the lock for a time, and others behind it.
struct Queue {
    command: PathBuf,
    servers: String,
    path: String,
    timeout: Duration,
}

impl Queue {
    fn job(&self, kind: &[&str], script: &str) -> Result<tokio::process::Child> {
        let timeout = humantime::format_duration(self.timeout).to_string();
        let mut job = Command::new(&self.command);
        job.args(["run", &self.path, "--servers", &self.servers, "--session-timeout", &timeout, "--wait", "2m"]);
        job.args(kind).args(["--", "sh", "-c", script]).env("LOCKKEEPER_CONFIG", "/dev/null").kill_on_drop(true);
        Ok(job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    async fn run(self, first: &[&str], others: &[&str], hold: u32) -> Result<Vec<Job>> {
        let mut holder =
            self.job(first, &format!("echo in; exec sleep {}", (self.timeout * hold / 100).as_secs_f64()))?;
        first_line(&mut holder).await.with_context(|| format!("the first job of {}", self.path))?;
        let mut jobs = JoinSet::new();
        for _ in 0..WAITERS {
            let asked = SystemTime::now();
            // Prints the grant's time and the node, and leaves a moment for a decision to stop it.
            let job = self.job(others, "echo $(date +%s%N) $LOCKKEEPER_NODE; exec sleep 0.05")?;
            jobs.spawn(async move { Ok::<_, anyhow::Error>((asked, job.wait_with_output().await?)) });
        }
        let mut ended = Vec::new();
        while let Some(job) = jobs.join_next().await {
            let (asked, output) = job??;
            let (out, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let stopped = !output.status.success() || told.contains("relied on");
            if stopped {
                eprintln!("{}: {}: {}", self.path, output.status, told.trim_end().replace('\n', "; "));
            }
            let (granted, node) = out.trim().split_once(' ').ok_or_else(|| anyhow!("{}: {told}", self.path))?;
            let granted = SystemTime::UNIX_EPOCH + Duration::from_nanos(granted.parse()?);
            let waited = granted.duration_since(asked).unwrap_or_default();
            let number = node.get(node.len().saturating_sub(10)..).unwrap_or_default().to_owned();
            ended.push((number, waited, stopped));
        }
        holder.wait().await?;
        // In the order of their creates.
        ended.sort();
        let column = |waited: Duration| COLUMNS.iter().position(|(until, _)| waited < self.timeout * *until / 100);
        let jobs = ended.iter().enumerate().map(|(place, (_, waited, stopped))| {
            let column = column(*waited).unwrap_or(COLUMNS.len() - 1);
            Job { place, column, stopped: *stopped }
        });
        Ok(jobs.collect())
    }
}

/// The first line that a process prints; its other lines are read later.
async fn first_line(process: &mut tokio::process::Child) -> Result<String> {
    use tokio::io::AsyncReadExt;
    let stdout = process.stdout.as_mut().ok_or_else(|| anyhow!("no standard output"))?;
    let mut line = Vec::new();
    loop {
        match stdout.read_u8().await {
            Ok(b'\n') => return Ok(String::from_utf8(line)?),
            Ok(byte) => line.push(byte),
            Err(_) => bail!("ended with {:?}", process.wait().await?),
        }
    }
}

/// Measures how long a client has no server that orders its writes, with ZooKeeper's sample configuration and a default
/// session.
async fn away(runs: usize) -> Result<()> {
    let sample = || {
        let limits = Servers::default().tick(Duration::from_secs(2)).for_speed(512);
        let limits = limits.session_timeouts(Duration::from_secs(4), Duration::from_secs(40));
        limits.config("initLimit", "10").config("syncLimit", "5")
    };
    let single = Apache::single(sample())?;
    let ensemble = Apache::ensemble(3, sample())?;
    let restarted = |apache: &Apache, _: usize| {
        apache.stop(0);
        Ok(apache.launch(0)?)
    };
    report("a single server is restarted (SIGTERM, then started)", &single, runs, restarted).await?;
    let ended = |apache: &Apache, leader: usize| {
        apache.stop(leader);
        Ok(())
    };
    report("the leader of three ends (SIGTERM)", &ensemble, runs, ended).await?;
    let frozen = |apache: &Apache, leader: usize| {
        apache.pause(leader);
        Ok(())
    };
    report("the leader of three says nothing more (SIGSTOP)", &ensemble, runs.min(5), frozen).await
}

/// Whether all servers serve, and one leads: a leader that was stopped reports briefly that it still leads.
fn settled(apache: &Apache) -> bool {
    let modes: Vec<_> = (0..apache.size()).map(|server| apache.mode(server)).collect();
    let leaders = modes.iter().filter(|mode| matches!(mode, Some(Mode::Leader | Mode::Standalone))).count();
    leaders == 1 && modes.iter().all(Option::is_some)
}

/// Holds a lock, makes a fault of its server or leader, and waits until a write of the hold is confirmed.
async fn report(what: &str, apache: &Apache, runs: usize, befall: impl Fn(&Apache, usize) -> Result<()>) -> Result<()> {
    let keeper = Lockkeeper::connect(&apache.connect_string()).await?;
    let (mut times, mut lost) = (Vec::new(), 0);
    for _ in 0..runs {
        let leader = apache.leader()?;
        let guard = keeper.mutex("/healthy/away").acquire().await?;
        let since = Instant::now();
        // Blocks this thread; the library has its own.
        befall(apache, leader)?;
        match guard.verify().await {
            Ok(()) => times.push(since.elapsed()),
            Err(_) => lost += 1,
        }
        _ = guard.release().await;
        apache.resume(leader);
        if apache.pid(leader).is_none() {
            apache.launch(leader)?;
        }
        while !settled(apache) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    times.sort();
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    println!(
        "{what}: a client's next write is confirmed {:.1?} to {:.1?} later, {:.1?} in the middle; {lost} of {runs} holds lost",
        at(0),
        at(times.len().saturating_sub(1)),
        at(times.len() / 2)
    );
    keeper.close().await;
    Ok(())
}

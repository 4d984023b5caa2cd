//! Figures of a network that fails: a disconnected follower, creates whose answers are lost, silence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use lockkeeper::Lockkeeper;
use lockkeeper::error::{AcquireError, AdminError, ErrorKind};
use lockkeeper_client::wire::{Acl, CreateMode, ErrorCode, Perms};
use lockkeeper_client::{Client, Config, RequestError, Servers};
use lockkeeper_testkit::proxy::{OpCode, Proxy};
use tokio::task::JoinSet;

use super::bench::{Bench, Figure, most, next_holder};
use super::control::{CONTROLS, Times};
use crate::testbed::{SERVERS, SESSION_TIMEOUT};

/// Lets clients only read the root and change its access list, or lets them do all.
async fn protect_root(bench: &Arc<Bench>, protected: bool) -> Result<()> {
    let servers: Servers = bench.testbed.apache.connect_string().parse()?;
    let (client, _states) = Client::open(servers, Config::new(SESSION_TIMEOUT));
    let perms = if protected { Perms::READ | Perms::ADMIN } else { Perms::ALL };
    if protected
        && let Err(error) = client.create("/figures", "", &[Acl::OPEN], CreateMode::Persistent).await
        && error != RequestError::Refused(ErrorCode::NodeExists)
    {
        return Err(error.into());
    }
    client.set_acl("/", &[Acl { perms, ..Acl::OPEN }], None).await?;
    client.close();
    Ok(())
}

/// (a, i) Connects the holder to a follower that still answers it, and is cut from the other servers right behind a heartbeat: what the
/// follower has not told its leader by then stays hidden. The clients may not write to the root, and the follower refuses such a write by
/// itself.
pub(super) async fn follower_cut(letter: char, bench: &Arc<Bench>) -> Result<Figure> {
    let ticks = if letter == 'i' { ", of servers whose tick is half of the session timeout," } else { "" };
    let claim = format!(
        "a follower with `enableEagerACLCheck`{ticks} is cut from its peers: its holder says \"not held\" before another acquires"
    );
    if bench.testbed.net.is_none() {
        let measured = "not measured: namespaces need root".into();
        return Ok(Figure { letter, claim, measured, kept: true, void: false });
    }
    protect_root(bench, true).await?;
    let (mut in_time, mut margins, mut known, mut overlap) = (0, Vec::new(), Vec::new(), Duration::ZERO);
    for run in 0..bench.runs {
        let servers = bench.clone();
        let leader = tokio::task::spawn_blocking(move || servers.testbed.apache.leader()).await??;
        let follower = (leader + 1 + run % (SERVERS - 1)) % SERVERS;
        let others: Vec<String> = (0..SERVERS)
            .filter(|server| *server != follower)
            .map(|server| bench.testbed.apache.addr(server).to_string())
            .collect();
        let path = format!("/figures/follower-{run}");
        let holder = bench.keeper(&bench.testbed.apache.addr(follower).to_string()).await?;
        let next = bench.keeper(&others.join(",")).await?;
        let guard = holder.mutex(&path).acquire().timeout(Duration::from_secs(30)).await?;
        let waiting = next_holder(&next, &path).await?;
        guard.renewed().await;
        bench.testbed.cut_from_peers(follower, true)?;
        let cut = Instant::now();
        // On a thread of its own, like a program that checks before each step of its work.
        let looking = std::thread::spawn(move || {
            while guard.is_held() {
                std::thread::sleep(Duration::from_micros(500));
            }
            (Instant::now(), guard)
        });
        let (granted, other) = waiting.await?;
        let other = other?;
        let (lost, guard) = looking.join().map_err(|_| anyhow!("looking at the guard panicked"))?;
        bench.testbed.cut_from_peers(follower, false)?;
        if lost < granted {
            in_time += 1;
            margins.push(granted - lost);
        }
        overlap = overlap.max(lost.saturating_duration_since(granted));
        known.push(lost - cut);
        drop(guard);
        other.release().await?;
        holder.close().await;
        next.close().await;
        let servers = bench.clone();
        tokio::task::spawn_blocking(move || servers.testbed.site.recover()).await??;
    }
    protect_root(bench, false).await?;
    let least = margins.iter().min().copied().unwrap_or_default();
    let measured = format!(
        "{in_time} of {}; two holders for {} ms; it knew at most {:.2?} after the cut, and at least {least:.2?} before the \
         other was granted",
        bench.runs,
        overlap.as_millis(),
        most(&known)
    );
    Ok(Figure { letter, claim, measured, kept: in_time == bench.runs, void: false })
}

/// Returns the nodes of the contenders of a lock.
async fn left(keeper: &Lockkeeper, path: &str) -> Result<Vec<String>> {
    match keeper.admin().show(path).await {
        Ok(seen) => Ok(seen.holders.into_iter().chain(seen.waiters).map(|contender| contender.node).collect()),
        Err(AdminError::NoSuchLock { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// (d) Cuts the connection when the create is stored or on its way; some callers drop their calls.
pub(super) async fn cut_creates(bench: &Arc<Bench>) -> Result<Figure> {
    const LANES: usize = 20;
    let mut lanes = JoinSet::new();
    for lane in 0..LANES.min(bench.cuts) {
        let bench = bench.clone();
        lanes.spawn(async move {
            let (proxies, servers) = bench.proxies();
            let keeper = bench.keeper(&servers).await?;
            let path = format!("/figures/cuts-{lane}");
            let mutex = keeper.mutex(&path);
            mutex.acquire().timeout(Duration::from_secs(30)).await?.release().await?;
            let mut cut = 0;
            for turn in 0..bench.cuts.div_ceil(LANES) {
                let accepted = || proxies.iter().map(|proxy| proxy.counts().accepted).sum::<u64>();
                let before = accepted();
                for proxy in &proxies {
                    let create = proxy.on_any(OpCode::CREATES).path(&*path);
                    match turn % 3 {
                        0 => create.cut_before_reply(),
                        1 => create.cut_after_request(Duration::from_millis(turn as u64 % 7)),
                        _ => create.cut_inside_reply(1 + turn % 30),
                    };
                }
                let asked = mutex.acquire().timeout(Duration::from_secs(30)).into_future();
                if turn % 4 == 3 {
                    // The caller drops its call at some moment.
                    if let Ok(Ok(guard)) = tokio::time::timeout(Duration::from_millis(turn as u64 % 40), asked).await {
                        guard.release().await?;
                    }
                } else {
                    match asked.await {
                        Ok(guard) => _ = guard.release().await,
                        Err(error) if error.kind().is_retryable() => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                let patience = Instant::now() + Duration::from_secs(2);
                while accepted() == before && Instant::now() < patience {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                cut += usize::from(accepted() > before);
                proxies.iter().for_each(Proxy::heal);
            }
            // The session continues, because its end would delete abandoned nodes.
            Ok::<_, anyhow::Error>((keeper, proxies, path, cut))
        });
    }
    let (mut ended, mut cut) = (Vec::new(), 0);
    while let Some(lane) = lanes.join_next().await {
        let (keeper, proxies, path, its) = lane??;
        cut += its;
        ended.push((keeper, proxies, path));
    }
    let looker = bench.keeper(&bench.testbed.apache.connect_string()).await?;
    let mut orphans = 0;
    for (.., path) in &ended {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let left = left(&looker, path).await?.len();
            if left == 0 || Instant::now() > patience {
                orphans += left;
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for (keeper, ..) in ended {
        keeper.close().await;
    }
    looker.close().await;
    let measured =
        format!("{orphans} nodes left by {cut} creates whose connection ended, while their sessions lived on");
    let claim = "creates cut at any moment leave no node".into();
    Ok(Figure { letter: 'd', claim, measured, kept: orphans == 0 && cut >= bench.cuts * 9 / 10, void: false })
}

/// (e) Drops all packets without an error.
pub(super) async fn black_hole(bench: &Arc<Bench>) -> Result<Figure> {
    const LIMIT: Duration = Duration::from_secs(2);
    let mut runs = JoinSet::new();
    for run in 0..bench.runs {
        let bench = bench.clone();
        runs.spawn(async move {
            let (proxies, servers) = bench.proxies();
            let keeper = bench.keeper(&servers).await?;
            let mutex = keeper.mutex(format!("/figures/silence-{run}"));
            mutex.acquire().timeout(Duration::from_secs(30)).await?.release().await?;
            proxies.iter().for_each(Proxy::black_hole);
            let control = std::thread::spawn(|| {
                let sleep = || {
                    let since = Instant::now();
                    std::thread::sleep(LIMIT);
                    since.elapsed()
                };
                std::thread::scope(|scope| {
                    let all = [(); CONTROLS].map(|()| scope.spawn(sleep));
                    all.map(|one| one.join()).into_iter().collect::<Result<Vec<_>, _>>().map(|all| most(&all))
                })
            });
            let since = Instant::now();
            let asked = mutex.acquire().timeout(LIMIT).await;
            let took = since.elapsed();
            let control = tokio::task::spawn_blocking(|| control.join());
            proxies.iter().for_each(Proxy::heal);
            let in_vain = asked.is_err_and(|error| {
                matches!(error, AcquireError::Timeout { .. }) || error.kind() == ErrorKind::Unavailable
            });
            keeper.close().await;
            let control = control.await?.and_then(|slept| slept).map_err(|_| anyhow!("sleeping panicked"))?;
            Ok::<_, anyhow::Error>((took, control, in_vain))
        });
    }
    let (mut times, mut all) = (Times::within(LIMIT + Duration::from_millis(50)), true);
    while let Some(run) = runs.join_next().await {
        let (took, control, in_vain) = run??;
        times.add(took, control);
        all &= in_vain;
    }
    let longest = times.most();
    let measured = format!(
        "at most {longest:.3?} in {} runs{}",
        bench.runs,
        times.words("the last of three threads that sleep for 2 s")
    );
    let claim = "`acquire` with a deadline of 2 s returns within 2.05 s when the ensemble is a black hole".into();
    Ok(Figure { letter: 'e', claim, measured, kept: all && times.kept(), void: all && times.void() })
}

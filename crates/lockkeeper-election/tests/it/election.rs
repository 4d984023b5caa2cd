//! Elections on the embedded server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select_all;
use lockkeeper::error::{AcquireError, AdminError, Mismatch, SessionError};
use lockkeeper::{CancellationToken, Error, FencingToken, Holding, Lockkeeper, Loss, NodeFormat};
use lockkeeper_election::{Candidacy, Demotion, Election, Event, Leader, Observer};
use lockkeeper_server::Server;
use lockkeeper_testkit::proxy::Proxy;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const ELECTION: &str = "/elections/scheduler";

/// The longest wait for an event that must come.
const PATIENCE: Duration = Duration::from_secs(90);

/// The error type of a user's program: one conversion is enough for every call.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Failure(#[from] Error);

/// Runs a test on a runtime like that of a program.
fn block_on(test: impl Future<Output = Result<(), Failure>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE * 2, test).await.expect("the test hangs").unwrap() });
}

async fn server() -> Server {
    Server::ephemeral().await.unwrap()
}

/// A handle is a session, as of a process.
async fn keeper(server: &Server) -> Lockkeeper {
    Lockkeeper::connect(&server.connect_string()).await.unwrap()
}

async fn election(server: &Server) -> Election {
    Election::new(&keeper(server).await, ELECTION)
}

/// Waits until an election has this many candidates, the leader included.
async fn candidates(keeper: &Lockkeeper, count: usize) {
    let mut follow = keeper.admin().follow(ELECTION).or_absent();
    loop {
        let seen = follow.next().await.unwrap();
        if seen.holders.len() + seen.waiters.len() == count {
            return;
        }
    }
}

async fn promoted(candidacy: &mut Candidacy) -> Result<FencingToken, Failure> {
    match candidacy.next().await? {
        Event::Promoted(token) => Ok(token),
        other => panic!("{other:?}"),
    }
}

fn id(leader: Option<Leader>) -> Option<String> {
    leader.map(|leader| leader.id().to_owned())
}

/// Ends the session of a handle, as if it had expired.
async fn expire(server: &Server, keeper: &Lockkeeper) {
    if let Some(session) = keeper.session_id() {
        server.faults().expire(session.0).await.unwrap();
    }
}

/// The network of each leader fails in turn, and its session expires. Whenever a candidate is promoted, no other one still believes that
/// it leads, by its own clock.
#[test]
fn a_leader_that_is_cut_off_is_demoted_before_the_next_one_is_promoted() {
    block_on(async {
        let server = server().await;
        let mut fleet = Vec::new();
        for name in ["a", "b", "c"] {
            let proxy = Proxy::start(server.connect_string().parse().unwrap()).await;
            let keeper = Lockkeeper::builder()
                .session_timeout(Duration::from_secs(1))
                .connect_lazy(&proxy.connect_string())
                .map_err(Error::from)?;
            fleet.push((proxy, Election::new(&keeper, ELECTION).candidate(name).stand()));
        }
        let (mut last, mut cut) = (None, None);
        for _ in 0..5 {
            let (token, leader) = loop {
                // The old leader is not asked meanwhile: only its clock can demote it.
                let others = fleet.iter_mut().enumerate().filter(|(at, _)| Some(*at) != cut);
                let calls = others.map(|(at, (_, candidacy))| Box::pin(async move { (candidacy.next().await, at) }));
                let ((event, at), ..) = select_all(calls).await;
                match event {
                    Ok(Event::Promoted(token)) => break (token, at),
                    Ok(Event::Demoted(_)) => {}
                    // A candidate behind a network that fails.
                    Err(error) if error.is_retryable() => {}
                    other => panic!("{other:?}"),
                }
            };
            assert!(last < Some(token), "{token} after {last:?}");
            last = Some(token);
            if let Some(cut) = cut {
                let (proxy, old) = &mut fleet[cut];
                assert!(!old.leadership().unwrap().is_leading(), "{cut} leads when {leader} is promoted");
                assert!(matches!(old.next().await?, Event::Demoted(_)));
                proxy.heal();
            }
            fleet[leader].0.stall();
            cut = Some(leader);
        }
        Ok(())
    });
}

/// What the hooks of a fleet report, in the order in which they run.
#[derive(Clone, Debug)]
enum Report {
    Promoted(FencingToken),
    Demoted(Demotion),
}

/// A candidate that reports its terms, and works until it is told to end.
fn reporting(
    keeper: &Lockkeeper,
    name: &'static str,
    stop: &CancellationToken,
) -> (JoinHandle<Result<(), Error>>, mpsc::UnboundedReceiver<Report>) {
    let (report, reports) = mpsc::unbounded_channel();
    let (candidate, stop) = (Election::new(keeper, ELECTION).candidate(name), stop.clone());
    let running = tokio::spawn(async move {
        let running = candidate.run(
            &stop,
            |leadership, demoted| {
                report.send(Report::Promoted(leadership.token())).unwrap();
                Box::pin(async move { demoted.cancelled().await })
            },
            |demotion| {
                report.send(Report::Demoted(demotion.clone())).unwrap();
                Box::pin(async {})
            },
        );
        running.await
    });
    (running, reports)
}

#[test]
fn hooks_run_once_each_term_while_sessions_are_killed() {
    block_on(async {
        let (server, stop) = (server().await, CancellationToken::new());
        let (looker, mut fleet) = (election(&server).await, Vec::new());
        for name in ["a", "b", "c"] {
            let keeper = keeper(&server).await;
            let (running, reports) = reporting(&keeper, name, &stop);
            fleet.push((name, keeper, running, reports));
        }
        let (mut observer, mut seen) = (looker.observe(), Vec::new());
        while seen.len() < 12 {
            let Some(leader) = observer.next().await? else { continue };
            let (_, keeper, ..) = fleet.iter().find(|(name, ..)| *name == leader.id()).unwrap();
            expire(&server, keeper).await;
            seen.push(leader.token.unwrap());
        }
        stop.cancel();
        let mut tokens = Vec::new();
        for (name, _, running, mut reports) in fleet {
            running.await.unwrap()?;
            let mut terms = 0;
            while let Some(begin) = reports.recv().await {
                let Report::Promoted(token) = begin else { panic!("{name}: {begin:?} without a term") };
                let end = reports.recv().await;
                assert!(matches!(end, Some(Report::Demoted(Demotion::Lost(_) | Demotion::Stopped))), "{name}: {end:?}");
                tokens.push(token);
                terms += 1;
            }
            assert!(terms > 0 || tokens.len() < 12, "{name} was never elected");
        }
        tokens.sort_unstable();
        assert!(tokens.is_sorted_by(|one, next| one < next), "two terms have one token: {tokens:?}");
        assert!(seen.is_sorted_by(|one, next| one < next), "a leader was observed after its successor: {seen:?}");
        assert!(looker.leader().await?.is_none());
        Ok(())
    });
}

/// The next leader of an observer.
async fn next(observer: &mut Observer) -> Result<Option<String>, Failure> {
    Ok(id(observer.next().await?))
}

#[test]
fn an_observer_reports_each_change_in_order() {
    block_on(async {
        let server = server().await;
        let (watching, ours) = (election(&server).await, keeper(&server).await);
        let (mut before, election) = (watching.observe(), Election::new(&ours, ELECTION));
        // Nobody has stood for election yet.
        assert_eq!((next(&mut before).await?, id(watching.leader().await?)), (None, None));
        let mut first = election.candidate("first").stand();
        promoted(&mut first).await?;
        assert_eq!(next(&mut before).await?.as_deref(), Some("first"));
        let mut late = watching.observe();
        assert_eq!(next(&mut late).await?.as_deref(), Some("first"));
        let mut second = election.candidate("second").stand();
        let waiting = tokio::spawn(async move { promoted(&mut second).await.map(|token| (second, token)) });
        candidates(&ours, 2).await;
        // A candidate that comes is no change of the leader.
        assert!(tokio::time::timeout(Duration::from_millis(300), next(&mut before)).await.is_err());
        first.resign().await?;
        let (mut second, token) = waiting.await.unwrap()?;
        for observer in [&mut before, &mut late] {
            let leader = observer.next().await?.unwrap();
            assert_eq!((leader.id(), leader.token), ("second", Some(token)));
        }
        second.resign().await?;
        assert_eq!((next(&mut before).await?, next(&mut late).await?), (None, None));
        // A candidate that leads again is reported again.
        promoted(&mut first).await?;
        assert_eq!(next(&mut before).await?.as_deref(), Some("first"));
        first.resign().await?;
        let (again, mut stream) = (promoted(&mut first).await?, late.into_stream().boxed());
        loop {
            let leader = stream.next().await.unwrap()?;
            if leader.is_some_and(|leader| leader.token == Some(again)) {
                return Ok(());
            }
        }
    });
}

/// Terms that are shorter than a look may be left out. The order and the last report are right, also for an observer whose own session
/// ends.
#[test]
fn an_observer_ends_with_the_truth() {
    block_on(async {
        let server = server().await;
        let (watching, ours) = (keeper(&server).await, keeper(&server).await);
        let mut observer = Election::new(&watching, ELECTION).observe();
        let observed = Arc::new(Mutex::new(Vec::new()));
        let seen = observed.clone();
        let observing = tokio::spawn(async move {
            loop {
                match observer.next().await {
                    Ok(Some(leader)) => {
                        seen.lock().unwrap().push(leader.token.unwrap());
                        if leader.id() == "last" {
                            return;
                        }
                    }
                    Ok(None) => {}
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        });
        let mut tokens = Vec::new();
        for term in 0..60 {
            let leadership = Election::new(&ours, ELECTION).candidate("one of many").campaign().await?;
            tokens.push(leadership.token());
            leadership.resign().await?;
            if term % 20 == 10 {
                expire(&server, &watching).await;
            }
        }
        let last = Election::new(&ours, ELECTION).candidate("last").campaign().await?;
        tokens.push(last.token());
        observing.await.unwrap();
        let observed = observed.lock().unwrap();
        assert!(observed.is_sorted_by(|one, next| one < next) && observed.iter().all(|one| tokens.contains(one)));
        assert_eq!(observed.last(), Some(&last.token()));
        Ok(())
    });
}

#[test]
fn a_leader_that_resigns_hands_over_and_stands_again_at_the_end() {
    block_on(async {
        let server = server().await;
        let (ours, looker) = (election(&server).await, keeper(&server).await);
        let mut first = ours.candidate("first").stand();
        promoted(&mut first).await?;
        let waiting = |name: &'static str| {
            let mut candidacy = ours.candidate(name).stand();
            tokio::spawn(async move { promoted(&mut candidacy).await.map(|_| candidacy) })
        };
        let second = waiting("second");
        candidates(&looker, 2).await;
        let third = waiting("third");
        candidates(&looker, 3).await;
        first.resign().await?;
        let mut second = second.await.unwrap()?;
        // A call that is dropped keeps the position in the queue.
        for _ in 0..2 {
            let call = tokio::time::timeout(Duration::from_millis(20), first.next()).await;
            assert!(call.is_err(), "it leads beside the second one");
        }
        candidates(&looker, 3).await;
        let node = || async { looker.admin().show(ELECTION).await.map(|seen| seen.waiters[1].node.clone()) };
        let before = node().await.map_err(Error::from)?;
        assert!(tokio::time::timeout(Duration::from_millis(20), first.next()).await.is_err());
        assert_eq!(node().await.map_err(Error::from)?, before);
        second.resign().await?;
        let mut third = third.await.unwrap()?;
        assert_eq!(id(ours.leader().await?).as_deref(), Some("third"));
        third.resign().await?;
        promoted(&mut first).await?;
        Ok(())
    });
}

#[test]
fn a_candidate_whose_future_is_dropped_leaves_no_node() {
    block_on(async {
        let server = server().await;
        let (ours, looker) = (election(&server).await, keeper(&server).await);
        let leadership = ours.candidate("leader").campaign().await?;
        let campaign = tokio::spawn({
            let candidate = ours.candidate("campaigns");
            async move { candidate.campaign().await.map(drop) }
        });
        let (hooks, _reports) = reporting(&keeper(&server).await, "runs", &CancellationToken::new());
        let mut stands = ours.candidate("stands").stand();
        assert!(tokio::time::timeout(Duration::from_millis(20), stands.next()).await.is_err());
        candidates(&looker, 4).await;
        campaign.abort();
        candidates(&looker, 3).await;
        hooks.abort();
        candidates(&looker, 2).await;
        drop(stands);
        candidates(&looker, 1).await;
        assert_eq!(id(ours.leader().await?).as_deref(), Some("leader"));
        drop(leadership);
        candidates(&looker, 0).await;
        Ok(())
    });
}

/// Its work ends in its own time. Then it is the last in the queue, and the only candidate leads again.
#[test]
fn a_leader_that_is_asked_to_step_down_ends_its_work_first() {
    block_on(async {
        let (server, stop) = (server().await, CancellationToken::new());
        let keeper = keeper(&server).await;
        let election = Election::new(&keeper, ELECTION);
        let (work_ended, terms) = (CancellationToken::new(), Arc::new(Mutex::new(Vec::new())));
        let (ended, stopping, counted) = (work_ended.clone(), stop.clone(), terms.clone());
        let (looks, leads) = (election.clone(), Arc::new(Mutex::new(Vec::new())));
        let demotions = leads.clone();
        let (heard, mut hears) = mpsc::unbounded_channel();
        let candidate = election.candidate("steps down");
        let running = tokio::spawn(async move {
            let running = candidate.run(
                &stopping,
                |leadership, demoted| {
                    let (ended, counted, heard) = (ended.clone(), counted.clone(), heard.clone());
                    Box::pin(async move {
                        demoted.cancelled().await;
                        heard.send(()).unwrap();
                        ended.cancelled().await;
                        assert!(leadership.is_leading());
                        counted.lock().unwrap().push(leadership.token());
                    })
                },
                |demotion| {
                    match demotion {
                        Demotion::Asked(asked) => assert_eq!(asked.reason.as_deref(), Some("update")),
                        other => assert_eq!(*other, Demotion::Stopped),
                    }
                    let (looks, leads) = (looks.clone(), leads.clone());
                    Box::pin(async move {
                        let leader = looks.leader().await;
                        leads.lock().unwrap().push(leader.is_ok_and(|leader| leader.is_some()));
                    })
                },
            );
            running.await
        });
        let mut observer = election.observe();
        while observer.next().await?.is_none() {}
        let asked = keeper.admin().revoke(ELECTION, Some("update")).await.map_err(Error::from)?;
        assert_eq!(asked.len(), 1);
        hears.recv().await.unwrap();
        let still = election.leader().await?.map(|leader| leader.node.clone());
        assert!(still.is_some_and(|node| node == asked[0].contender().node) && terms.lock().unwrap().is_empty());
        work_ended.cancel();
        // It may be seen between its terms.
        while observer.next().await?.is_none() {}
        stop.cancel();
        running.await.unwrap()?;
        assert_eq!(terms.lock().unwrap().len(), 2);
        assert_eq!(*demotions.lock().unwrap(), [true, true], "it resigned before the hook had ended");
        assert!(election.leader().await?.is_none());
        Ok(())
    });
}

#[test]
fn a_request_to_step_down_is_an_event_and_can_be_refused() {
    block_on(async {
        let server = server().await;
        let keeper = keeper(&server).await;
        let mut candidacy = Election::new(&keeper, ELECTION).candidate("stays").stand();
        promoted(&mut candidacy).await?;
        for reason in ["first", "second"] {
            keeper.admin().revoke(ELECTION, Some(reason)).await.map_err(Error::from)?;
            let event = candidacy.next().await?;
            assert!(matches!(&event, Event::AskedToStepDown(asked) if asked.reason.as_deref() == Some(reason)));
        }
        let leadership = candidacy.leadership().unwrap();
        leadership.refuse_revocation("not now").map_err(Error::from)?;
        assert!(leadership.is_leading());
        expire(&server, &keeper).await;
        assert_eq!(candidacy.next().await?, Event::Demoted(Loss::SessionExpired));
        assert!(candidacy.leadership().is_none());
        promoted(&mut candidacy).await?;
        Ok(())
    });
}

/// The hook is dropped, and its token is cancelled for the tasks that it started.
#[test]
fn work_is_dropped_when_the_leadership_is_lost() {
    block_on(async {
        let (server, stop) = (server().await, CancellationToken::new());
        let keeper = keeper(&server).await;
        let (told, mut cancelled) = mpsc::unbounded_channel();
        let (candidate, stopping) = (Election::new(&keeper, ELECTION).candidate("a"), stop.clone());
        let running = tokio::spawn(async move {
            let running = candidate.run(
                &stopping,
                |_, demoted| {
                    let told = told.clone();
                    tokio::spawn(async move {
                        demoted.cancelled().await;
                        told.send(()).unwrap();
                    });
                    Box::pin(std::future::pending())
                },
                |demotion| {
                    assert_eq!(*demotion, Demotion::Lost(Loss::SessionExpired));
                    stopping.cancel();
                    Box::pin(async {})
                },
            );
            running.await
        });
        let mut observer = Election::new(&keeper, ELECTION).observe();
        while observer.next().await?.is_none() {}
        expire(&server, &keeper).await;
        cancelled.recv().await.unwrap();
        running.await.unwrap()?;
        Ok(())
    });
}

/// The work notices nothing of it, because it does not await. It ends by itself, or because the candidate stops.
#[test]
fn a_loss_in_the_last_part_of_the_work_is_reported_as_a_loss() {
    block_on(async {
        let (server, reports) = (server().await, Arc::new(Mutex::new(Vec::new())));
        for stops_first in [false, true] {
            let (keeper, stop) = (keeper(&server).await, CancellationToken::new());
            let candidate = Election::new(&keeper, ELECTION).candidate("a");
            let running = candidate.run(
                &stop,
                |leadership, demoted| {
                    let (operator, stop) = (keeper.clone(), stop.clone());
                    Box::pin(async move {
                        if stops_first {
                            stop.cancel();
                            demoted.cancelled().await;
                        }
                        let lost = leadership.cancelled_when_lost();
                        let breaks = move || {
                            operator.block_on(operator.admin().break_lock(ELECTION, "it hangs")).unwrap();
                            operator.block_on(lost.cancelled());
                        };
                        std::thread::spawn(breaks).join().unwrap();
                    })
                },
                |demotion| {
                    reports.lock().unwrap().push(demotion.clone());
                    stop.cancel();
                    Box::pin(async {})
                },
            );
            running.await?;
        }
        assert_eq!(*reports.lock().unwrap(), [Demotion::Lost(Loss::Removed), Demotion::Lost(Loss::Removed)]);
        Ok(())
    });
}

#[test]
fn leader_latch_names_are_their_own_format() {
    block_on(async {
        let server = server().await;
        let keeper = keeper(&server).await;
        let latch = Election::new(&keeper, ELECTION).node_format(NodeFormat::LeaderLatch);
        let leadership = latch.candidate("latch").campaign().await?;
        assert!(leadership.node().contains("-latch-"));
        assert_eq!(id(latch.leader().await?).as_deref(), Some("latch"));
        // A `LeaderLatch` that waits behind it would not hear of its end after that.
        let refused = keeper.admin().revoke(ELECTION, None).await;
        assert!(matches!(refused, Err(AdminError::CannotAsk { .. })), "{refused:?}");
        let other = Election::new(&keeper, ELECTION).candidate("curator").campaign().await;
        let held: Holding = leadership.into();
        assert!(held.is_held());
        let named = matches!(&other, Err(Error::Acquire(AcquireError::Mismatch(Mismatch::Format { .. }))));
        assert!(named, "{other:?}");
        Ok(())
    });
}

/// Candidates in another format would not see it, so two would lead.
#[test]
fn an_election_has_no_nodes_beside_its_path() {
    block_on(async {
        let server = server().await;
        let beside =
            Election::new(&keeper(&server).await, ELECTION).node_format(NodeFormat::Numbered).candidate("beside");
        let stop = CancellationToken::new();
        let run = beside.run(&stop, |_, _| unreachable!(), |_| unreachable!()).await;
        for refused in [beside.campaign().await.err(), beside.stand().next().await.err(), run.err()] {
            assert!(matches!(&refused, Some(Error::Misuse(_))), "{refused:?}");
        }
        Ok(())
    });
}

#[test]
fn a_closed_handle_ends_a_candidate_and_options_reach_the_request() {
    block_on(async {
        let server = server().await;
        let (ours, theirs) = (election(&server).await, keeper(&server).await);
        let _leader = ours.candidate("leader").campaign().await?;
        let hurried = ours.candidate("hurried").with(|request| request.timeout(Duration::ZERO));
        let late = hurried.campaign().await;
        assert!(matches!(&late, Err(Error::Acquire(AcquireError::Held { .. }))), "{late:?}");
        let (running, _reports) = reporting(&theirs, "closed", &CancellationToken::new());
        candidates(&keeper(&server).await, 2).await;
        theirs.close().await;
        let ended = running.await.unwrap();
        assert!(matches!(ended, Err(Error::Session(SessionError::Closed))), "{ended:?}");
        // Without async, and without a runtime.
        let blocking = ours.candidate("blocking").with(|request| request.timeout(Duration::ZERO));
        let (handle, call) = (keeper(&server).await, blocking.clone());
        let refused = std::thread::spawn(move || handle.block_on(call.campaign())).join().unwrap();
        assert!(matches!(refused, Err(Error::Acquire(AcquireError::Held { .. }))));
        Ok(())
    });
}

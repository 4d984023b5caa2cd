//! Jobs: one run per slot, and the records of the runs.

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::{Error, ErrorKind};
use lockkeeper_jobs::{
    Claim, EndKind, Job, JobError, JobLog, JobState, JobStatus, JobsAdmin, NoRerun, NotRecorded, Ran, Resolve, Rule,
    Run, RunEnd, RunRecord, Schedule, Skipped, Slot,
};
use lockkeeper_server::Server as EmbeddedServer;
use lockkeeper_testkit::proxy::{Cut, Hold, OpCode, Proxy, What};
use zookeeper_client::{Acl, Acls, AuthId, Client, Permission};

use crate::support::{STEADY, World, asked, block_on, config, eventually, for_kinds, watched};

for_kinds!(
    [native Native]
    a_slot_runs_once_and_the_others_learn_who_ran_it,
    the_end_is_recorded_in_the_transaction_of_the_release,
    a_release_with_a_record_grants_no_one_before_it_is_written,
    an_end_whose_reply_is_lost_is_recorded_once,
    a_claim_whose_reply_is_lost_is_claimed_once,
    a_claim_whose_reply_and_lock_are_lost_is_unknown,
    a_dropped_run_counts_as_crashed,
    a_crash_is_at_most_once_or_at_least_once_as_the_rule_says,
    a_failure_is_retried_as_often_as_the_rule_says,
    a_kept_failure_waits_for_a_person,
    a_slot_that_succeeded_runs_again_when_a_person_says_so,
    a_host_that_does_not_wait_learns_who_runs,
    records_of_a_later_version_are_not_overwritten,
    a_job_leaves_nothing_where_locks_are,
    an_invalid_job_is_refused_before_anything_is_sent,
    a_run_whose_lock_is_lost_records_that_itself,
    jobs_that_come_together_run_once,
    an_end_between_two_reads_is_no_crash,
    following_jobs_reads_only_what_changed,
    a_run_says_that_the_one_before_had_another_schedule,
    an_end_whose_request_is_lost_is_recorded,
    an_end_is_recorded_however_many_reads_of_the_records_are_lost,
    work_whose_end_is_not_recorded_is_not_reported_as_done,
    a_late_end_leaves_the_run_of_the_next_host_as_it_is,
    an_end_replaces_no_records_that_someone_has_changed,
    a_claim_is_decided_anew_when_the_records_change,
    a_person_decides_about_the_records_as_they_are_when_the_decision_is_written,
    records_that_may_not_be_read_refuse_the_claim,
    a_program_without_async_runs_a_job,
);

/// A session timeout that a test waits for.
const SHORT: Duration = Duration::from_secs(2);

fn build(world: &World, keeper: &Lockkeeper, slot: &str) -> Job {
    Job::new(keeper, world.lock()).slot(slot)
}

async fn claimed(job: &Job) -> Run {
    match job.claim().await.unwrap() {
        Claim::Run(run) => run,
        Claim::Skipped(skipped) => panic!("{skipped}"),
    }
}

async fn skipped(job: &Job) -> Skipped {
    match job.claim().await.unwrap() {
        Claim::Run(run) => panic!("{run:?}"),
        Claim::Skipped(skipped) => skipped,
    }
}

fn log_node(world: &World) -> String {
    format!("/lockkeeper/jobs/{}", world.lock().trim_start_matches('/').replace('/', "%2F"))
}

async fn a_slot_runs_once_and_the_others_learn_who_ran_it(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let job = build(world, &one, "1").command("make report");
    let ran = job.run(async |run| Ok::<_, Error>(run.slot().name.clone())).await.unwrap();
    assert!(matches!(ran, Ran::Done(slot) if slot == "1"));
    let done = skipped(&build(world, &other, "1")).await;
    assert!(world.queue().await.is_empty(), "it returned before the lock was free");
    assert_eq!(done.to_string(), format!("slot 1 is done by {}: succeeded", one.owner()));
    let Skipped::Done { run, due_ms: None, crash_found: None } = done else { panic!("not done") };
    assert!(run.has_succeeded() && run.by == *one.owner() && run.attempt == 1, "{run:?}");
    assert_eq!(run.command.as_deref(), Some("make report"));
    let now = lockkeeper_jobs::server_now_ms(&other).await.unwrap();
    let (start, end) = (run.start_ms.unwrap(), run.end_ms.unwrap());
    assert!(run.slot.start_ms <= end && start <= end && end <= now, "{run:?} at {now}");
    let status = JobsAdmin::new(&other).job(world.lock()).await.unwrap().unwrap();
    assert_eq!((status.state, status.runs.len()), (JobState::Ok, 1));
    assert_eq!(status.last_success(), Some(&*run));
    let all = JobsAdmin::new(&other).jobs("/").await.unwrap();
    assert!(all.contains(&status), "{all:?}");
    assert_eq!(JobsAdmin::new(&other).jobs(format!("{}/x", world.lock())).await.unwrap(), []);
    assert!(matches!(build(world, &other, "2").run(async |_| Ok::<_, Error>(())).await, Ok(Ran::Done(()))));
    assert!(JobsAdmin::new(&other).forget(world.lock()).await.unwrap());
    assert!(!JobsAdmin::new(&other).forget(world.lock()).await.unwrap());
    assert_eq!(JobsAdmin::new(&other).job(world.lock()).await.unwrap(), None);
}

async fn the_end_is_recorded_in_the_transaction_of_the_release(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    claimed(&build(world, &keeper, "first")).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let job = build(world, &keeper, "1");
    let before = proxy.counts();
    let run = claimed(&job).await;
    let (between, seen) = (proxy.counts(), proxy.records().len());
    // The claim is one transaction; and the lock was granted without another write.
    assert_eq!(between.since(&before).requested.of(OpCode::Multi), 1);
    // A holder reads its own node after a while, sooner or later than the end. That read is no part of the end.
    let own = format!("/{}", world.queue().await[0]);
    watched(&proxy, &format!("{}{own}", world.lock())).await;
    let finished = run.finish(RunEnd::failed("x").with_status(3)).await;
    let after = proxy.counts();
    assert_eq!(after.since(&between).requested.of(OpCode::Multi), 1);
    let others = [OpCode::SetData, OpCode::GetData, OpCode::Create, OpCode::Create2];
    let others: Vec<_> =
        asked(world, &proxy, seen).into_iter().filter(|(op, path)| others.contains(op) && *path != own).collect();
    assert_eq!(others, [], "the end took more than the transaction");
    assert!(
        finished.recorded.is_ok() && finished.loss.is_none() && finished.record.duration().is_some(),
        "{finished:?}"
    );
    let status = JobsAdmin::new(&keeper).job(world.lock()).await.unwrap().unwrap();
    assert_eq!((status.state, status.last()), (JobState::Failed, Some(&finished.record)));
}

/// The next contender of the process would otherwise decide by the records as they were, if the connection is lost before the
/// transaction is sent again.
async fn a_release_with_a_record_grants_no_one_before_it_is_written(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let run = claimed(&build(world, &keeper, "1")).await;
    let waiter = world.enqueue_mutex(&keeper).await;
    let nodes: Vec<_> = world.queue().await.iter().map(|name| format!("{}/{name}", world.lock())).collect();
    // Nothing else delays a grant then.
    for node in &nodes {
        watched(&proxy, node).await;
    }
    let release = proxy.on(OpCode::Multi).hold_request();
    let finished = crate::support::spawn(run.finish(RunEnd::succeeded()));
    release.caught().await;
    assert_eq!(world.queue().await.len(), 2);
    assert!(waiter.waits());
    release.release();
    assert!(finished.await.unwrap().recorded.is_ok());
    waiter.granted().await.release().await.unwrap();
}

async fn an_end_whose_reply_is_lost_is_recorded_once(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let run = claimed(&build(world, &keeper, "1")).await;
    let cut = proxy.on(OpCode::Multi).cut_before_reply();
    let finished = run.finish(RunEnd::succeeded()).await;
    assert!(cut.has_fired());
    assert!(finished.recorded.is_ok() && finished.record.end_ms.is_some(), "{finished:?}");
    let status = JobsAdmin::new(&keeper).job(world.lock()).await.unwrap().unwrap();
    assert_eq!((status.state, status.runs.len()), (JobState::Ok, 1));
}

/// The servers never saw it: the node is deleted, and the end is written, by the next transaction.
async fn an_end_whose_request_is_lost_is_recorded(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let run = claimed(&build(world, &keeper, "1")).await;
    let cut = proxy.on(OpCode::Multi).cut_before_request();
    let finished = run.finish(RunEnd::succeeded()).await;
    assert!(cut.has_fired());
    assert!(finished.recorded.is_ok() && finished.record.end_ms.is_some(), "{finished:?}");
    let status = JobsAdmin::new(&keeper).job(world.lock()).await.unwrap().unwrap();
    assert_eq!((status.state, status.runs.len()), (JobState::Ok, 1));
}

/// A lost read says nothing about the records.
async fn an_end_is_recorded_however_many_reads_of_the_records_are_lost(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let run = claimed(&build(world, &keeper, "1")).await;
    let reply = proxy.on(OpCode::Multi).cut_before_reply();
    let lost = async {
        reply.fired().await;
        for _ in 0..12 {
            proxy.on(OpCode::GetData).path(log_node(world)).cut_before_reply().fired().await;
        }
    };
    let (finished, ()) = tokio::join!(run.finish(RunEnd::succeeded()), lost);
    assert!(finished.recorded.is_ok() && finished.record.end_ms.is_some(), "{finished:?}");
}

/// Another host may run the slot again then.
async fn work_whose_end_is_not_recorded_is_not_reported_as_done(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, SHORT).await, world.keeper().await);
    let unrecorded = |ran: Ran<i32, Error>| match ran {
        Ran::Unrecorded { work: Ok(7), reason } => reason,
        ran => panic!("{ran:?}"),
    };

    let forgotten = async |_: &Run| {
        assert!(JobsAdmin::new(&other).forget(world.lock()).await.unwrap());
        Ok(7)
    };
    let why = unrecorded(build(world, &one, "1").run(forgotten).await.unwrap());
    assert!(matches!(why, NotRecorded::Deleted), "{why:?}");

    let client = Client::connect(&world.servers()).await.unwrap();
    let locked = async |_: &Run| {
        client.set_acl(&log_node(world), &[Acl::new(Permission::READ, AuthId::anyone())], None).await.unwrap();
        Ok(7)
    };
    let why = unrecorded(build(world, &one, "2").run(locked).await.unwrap());
    assert!(matches!(&why, NotRecorded::Refused { reason } if reason.contains("not authorized")), "{why:?}");
    assert!(JobsAdmin::new(&other).forget(world.lock()).await.unwrap());

    // The network fails at the end of the work. The other host finds a crash, and runs the slot again.
    let (ended, retry) = (tokio::sync::Notify::new(), Rule::Retry { most: None });
    let work = async |_: &Run| {
        proxy.black_hole();
        ended.notify_one();
        Ok(7)
    };
    let (job, next) = (build(world, &one, "3").on_crash(retry), build(world, &other, "3").on_crash(retry));
    let again = async {
        ended.notified().await;
        let ran = next.run(async |_| Ok::<_, Error>(8)).await.unwrap();
        assert!(matches!(ran, Ran::Done(8)), "{ran:?}");
        proxy.heal();
    };
    let (ran, ()) = tokio::join!(job.run(work), again);
    let why = unrecorded(ran.unwrap());
    assert!(matches!(why, NotRecorded::Crashed), "{why:?}");
}

/// Between the read and the write of a host whose lock was lost, the next host finds the crash and runs the slot again.
async fn a_late_end_leaves_the_run_of_the_next_host_as_it_is(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    let retry = Rule::Retry { most: None };
    let run = claimed(&build(world, &one, "1").on_crash(retry)).await;
    world.remove(&run.guard().node()).await;
    let loss = run.guard().lost().await;
    let late = proxy.on(OpCode::SetData).path(log_node(world)).hold_request();
    let finished = crate::support::spawn(run.finish(RunEnd::of(EndKind::Lost).with_reason(loss.to_string())));
    late.caught().await;
    let next = claimed(&build(world, &other, "1").on_crash(retry)).await;
    assert_eq!((next.record().attempt, next.crashed_before().is_some()), (2, true));
    late.release();
    let finished = finished.await.unwrap();
    assert!(matches!(finished.recorded, Err(NotRecorded::Crashed)), "{finished:?}");
    let status = JobsAdmin::new(&other).job(world.lock()).await.unwrap().unwrap();
    assert_eq!((status.state, status.last()), (JobState::Running, Some(next.record())));
    assert!(next.finish(RunEnd::succeeded()).await.recorded.is_ok());
}

/// The run still holds the lock then.
async fn an_end_replaces_no_records_that_someone_has_changed(world: &World) {
    let keeper = world.keeper().await;
    let run = claimed(&build(world, &keeper, "1")).await;
    let admin = JobsAdmin::new(&keeper);
    // A pause leaves the run open, so its end is recorded behind the pause.
    let paused = admin.pause(world.lock(), "a move", None).await.unwrap();
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let status = admin.job(world.lock()).await.unwrap().unwrap();
    assert_eq!((status.state, status.pause), (JobState::Ok, Some(paused)));
    admin.resume(world.lock()).await.unwrap();
    let run = claimed(&build(world, &keeper, "2")).await;
    let (data, stat) = world.observer.get_data(&log_node(world)).await.unwrap();
    let mut log = JobLog::read(&data, stat.mtime).unwrap().unwrap();
    assert!(log.close_crashed());
    let data = log.to_bytes();
    world.observer.set_data(&log_node(world), &data, None).await.unwrap();
    let finished = run.finish(RunEnd::succeeded()).await;
    assert!(matches!(finished.recorded, Err(NotRecorded::Crashed)) && finished.loss.is_none(), "{finished:?}");
    let (left, now) = world.observer.get_data(&log_node(world)).await.unwrap();
    assert_eq!((left, now.version), (data, stat.version + 1));
}

/// Hosts of one job should state the same schedule. Names of slots are no schedule that could differ.
async fn a_run_says_that_the_one_before_had_another_schedule(world: &World) {
    let keeper = world.keeper().await;
    let run = claimed(&Job::new(&keeper, world.lock()).every(Duration::from_secs(3600))).await;
    assert_eq!(run.schedule_before(), None);
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let run = claimed(&build(world, &keeper, "1")).await;
    assert_eq!(run.schedule_before(), Some(&Schedule::Every { every_ms: 3_600_000 }));
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let run = claimed(&build(world, &keeper, "2")).await;
    assert_eq!(run.schedule_before(), None);
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
}

async fn a_claim_whose_reply_is_lost_is_claimed_once(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    claimed(&build(world, &keeper, "first")).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let cut = proxy.on(OpCode::Multi).cut_before_reply();
    let run = claimed(&build(world, &keeper, "1")).await;
    assert!(cut.has_fired());
    assert!(run.finish(RunEnd::succeeded()).await.recorded.is_ok());
    let status = JobsAdmin::new(&keeper).job(world.lock()).await.unwrap().unwrap();
    let slots: Vec<_> = status.runs.iter().map(|run| (run.slot.name.as_str(), run.has_succeeded())).collect();
    assert_eq!(slots, [("first", true), ("1", true)]);
}

async fn a_claim_whose_reply_and_lock_are_lost_is_unknown(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, SHORT).await;
    claimed(&build(world, &keeper, "first")).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let (job, reply) = (build(world, &keeper, "1"), proxy.on(OpCode::Multi).hold_reply());
    let (claim, ()) = tokio::join!(job.claim(), async {
        reply.caught().await;
        proxy.refuse();
        proxy.cut(Cut::Reset);
    });
    assert!(matches!(claim, Err(JobError::Unknown { .. })), "{claim:?}");
    proxy.heal();
}

async fn a_dropped_run_counts_as_crashed(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let run = claimed(&build(world, &one, "1")).await;
    assert_eq!(JobsAdmin::new(&other).job(world.lock()).await.unwrap().unwrap().state, JobState::Running);
    drop(run);
    eventually("the lock is free", async || world.queue().await.is_empty()).await;
    assert_eq!(JobsAdmin::new(&other).job(world.lock()).await.unwrap().unwrap().state, JobState::Crashed);
    for is_first in [true, false] {
        let Skipped::Done { crash_found, .. } = skipped(&build(world, &other, "1")).await else { panic!("not done") };
        assert_eq!(crash_found.is_some(), is_first);
    }
    let Skipped::Done { run, .. } = skipped(&build(world, &other, "1")).await else { panic!("not done") };
    assert_eq!(run.end.as_ref().map(|end| end.kind), Some(EndKind::Crashed));
    // The host that found it has recorded it.
    let status = JobsAdmin::new(&other).job(world.lock()).await.unwrap().unwrap();
    assert_eq!(status.last(), Some(&*run));
}

async fn a_crash_is_at_most_once_or_at_least_once_as_the_rule_says(world: &World) {
    for (rule, runs_again) in [(Rule::Next, false), (Rule::Retry { most: None }, true)] {
        let (one, other) = (world.keeper().await, world.keeper().await);
        let slot = rule.to_string();
        let run = claimed(&build(world, &one, &slot)).await;
        let next = build(world, &other, &slot).on_crash(rule);
        let waiting = crate::support::spawn(async move { next.claim().await });
        world.queued(2).await;
        // Its session ends, as after kill -9.
        let node = run.guard().node();
        world.remove(&node).await;
        match waiting.await.unwrap().unwrap() {
            Claim::Run(second) => {
                assert!(runs_again && second.record().attempt == 2 && second.slot().name == slot);
                assert!(second.crashed_before().is_some_and(|crashed| crashed.attempt == 1));
                second.finish(RunEnd::succeeded()).await.recorded.unwrap();
            }
            Claim::Skipped(Skipped::Done { .. }) => assert!(!runs_again),
            Claim::Skipped(skipped) => panic!("{skipped}"),
        }
        drop(run);
    }
}

async fn a_failure_is_retried_as_often_as_the_rule_says(world: &World) {
    let keeper = world.keeper().await;
    let job = build(world, &keeper, "1").on_failure(Rule::Retry { most: Some(2) });
    for attempt in 1..=3 {
        let run = claimed(&job).await;
        assert_eq!(run.record().attempt, attempt);
        run.finish(RunEnd::failed("x")).await.recorded.unwrap();
    }
    assert!(matches!(skipped(&job).await, Skipped::Done { run, .. } if run.attempt == 3 && run.has_failed()));
}

async fn a_kept_failure_waits_for_a_person(world: &World) {
    let keeper = world.keeper().await;
    let admin = JobsAdmin::new(&keeper);
    let job = build(world, &keeper, "1").on_failure(Rule::Keep);
    claimed(&job).await.finish(RunEnd::failed("disk full")).await.recorded.unwrap();
    assert!(matches!(skipped(&job).await, Skipped::Kept { .. }));
    assert_eq!(admin.job(world.lock()).await.unwrap().unwrap().state, JobState::Kept);
    let decided = admin.resolve(world.lock(), Resolve::RunAgain).await.unwrap();
    assert_eq!(decided.resolved.as_ref().map(|resolved| &resolved.by), Some(keeper.owner()));
    let again = admin.resolve(world.lock(), Resolve::Accept).await.unwrap_err();
    assert!(matches!(again, JobError::NothingToDecide { .. }), "{again}");
    claimed(&job).await.finish(RunEnd::failed("disk still full")).await.recorded.unwrap();
    admin.resolve(world.lock(), Resolve::Accept).await.unwrap();
    assert!(matches!(skipped(&job).await, Skipped::Done { run, .. } if run.attempt == 2));
}

async fn a_slot_that_succeeded_runs_again_when_a_person_says_so(world: &World) {
    let keeper = world.keeper().await;
    let admin = JobsAdmin::new(&keeper);
    let rerun = async |slot| match admin.rerun(world.lock(), slot).await {
        Err(JobError::NoRerun { reason, .. }) => Err(reason),
        marked => Ok(marked.unwrap()),
    };
    assert_eq!(rerun(None).await, Err(NoRerun::NeverRan { slot: None }));
    let job = build(world, &keeper, "1");
    let run = claimed(&job).await;
    assert!(matches!(rerun(Some("1")).await, Err(NoRerun::Running { slot, .. }) if slot == "1"));
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
    claimed(&build(world, &keeper, "2")).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    assert!(matches!(skipped(&job).await, Skipped::Done { .. }));
    assert_eq!(rerun(Some("3")).await, Err(NoRerun::NeverRan { slot: Some("3".to_owned()) }));
    let marked = rerun(Some("1")).await.unwrap();
    assert_eq!(marked.resolved.as_ref().map(|resolved| &resolved.by), Some(keeper.owner()));
    assert!(matches!(rerun(Some("1")).await, Err(NoRerun::Waits { .. })));
    // The records say who decided and when, and the other slot is done.
    let status = admin.job(world.lock()).await.unwrap().unwrap();
    let decided = status.runs[0].resolved.as_ref().unwrap();
    assert!(decided.run_again && decided.at_ms >= status.runs[1].end_ms, "{status:?}");
    assert!(matches!(skipped(&build(world, &keeper, "2")).await, Skipped::Done { .. }));
    let run = claimed(&job).await;
    assert_eq!((run.slot().name.as_str(), run.record().attempt), ("1", 2));
    drop(run);
    // The host of the second attempt has crashed; a person lets the slot run again.
    eventually("the crash shows", async || admin.job(world.lock()).await.unwrap().unwrap().state == JobState::Crashed)
        .await;
    assert_eq!(rerun(None).await.unwrap().slot.name, "1");
    claimed(&job).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    assert!(matches!(skipped(&job).await, Skipped::Done { run, .. } if run.attempt == 3));
}

async fn a_host_that_does_not_wait_learns_who_runs(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let run = claimed(&build(world, &one, "1")).await;
    let claim = build(world, &other, "1").claim_with(|acquire| acquire.timeout(Duration::ZERO)).await.unwrap();
    let Claim::Skipped(Skipped::Running { run: seen }) = claim else { panic!("{claim:?}") };
    assert_eq!(&*seen, run.record());
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
    // A lock that is held without a run is no run.
    let guard = one.mutex(world.lock()).acquire().await.unwrap();
    let claim = build(world, &other, "2").claim_with(|acquire| acquire.timeout(Duration::ZERO)).await;
    assert_eq!(claim.unwrap_err().kind(), ErrorKind::Taken);
    guard.release().await.unwrap();
}

async fn records_of_a_later_version_are_not_overwritten(world: &World) {
    let keeper = world.keeper().await;
    let job = build(world, &keeper, "1");
    claimed(&job).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let later = br#"{"lockkeeper":2,"anything":[]}"#;
    world.observer.set_data(&log_node(world), later, None).await.unwrap();
    let error = job.claim().await.unwrap_err();
    assert!(matches!(error, JobError::Unreadable { .. }) && error.to_string().contains("newer version"), "{error}");
    assert_eq!(world.observer.get_data(&log_node(world)).await.unwrap().0, later);
    assert!(world.queue().await.is_empty());
    let status = JobsAdmin::new(&keeper).job(world.lock()).await.unwrap().unwrap();
    assert_eq!(status.state, JobState::Unreadable);
}

async fn a_job_leaves_nothing_where_locks_are(world: &World) {
    let keeper = world.keeper().await;
    let run = claimed(&build(world, &keeper, "1")).await;
    assert_eq!(world.queue().await.len(), 1);
    let listed = keeper.admin().list("/lockkeeper").await.unwrap();
    assert!(listed.is_empty(), "{listed:?}");
    let shown = keeper.admin().show(world.lock()).await.unwrap();
    assert_eq!((shown.holders.len(), shown.unknown.len()), (1, 0));
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
    assert!(world.queue().await.is_empty());
}

async fn an_invalid_job_is_refused_before_anything_is_sent(world: &World) {
    let keeper = world.keeper().await;
    let job = || Job::new(&keeper, world.lock());
    for (job, argument) in [
        (job(), "schedule"),
        (Job::new(&keeper, "nightly").slot("x"), "path"),
        (job().once_per(Slot::Day).time_zone("Mars/Olympus"), "time zone"),
        (job().once_per(Slot::Day).slot("x"), "schedule"),
        (job().every(Duration::from_secs(60)).once_per(Slot::Day), "schedule"),
        (job().every(Duration::from_secs(60)).time_zone("Europe/Berlin"), "time zone"),
        (job().slot("x").time_zone("UTC"), "time zone"),
        (job().every(Duration::from_millis(10)), "every"),
        (job().every(Duration::MAX), "every"),
        (job().slot("x").on_crash(Rule::Retry { most: Some(0) }), "rule"),
        (job().slot("x").on_failure(Rule::Retry { most: Some(0) }), "rule"),
        (job().slot(""), "slot"),
        (job().slot("x".repeat(257)), "slot"),
        (job().slot("x\n"), "slot"),
        (job().slot("x").keep_runs(0), "keep runs"),
        (job().once_per(Slot::Day).catch_up(1000), "catch up"),
    ] {
        let error = Error::from(job.claim().await.unwrap_err());
        assert!(matches!(&error, Error::Misuse(misuse) if misuse.argument == argument), "{argument}: {error:?}");
    }
    let long = job().every(Duration::MAX).claim().await.unwrap_err();
    assert_eq!(long.hint().as_deref(), Some("choose 100 years or less"));
    assert!(world.queue().await.is_empty());
    let long = claimed(&job().slot("x".repeat(256))).await.finish(RunEnd::succeeded()).await;
    assert_eq!(long.record.slot.name.len(), 256);
}

async fn a_run_whose_lock_is_lost_records_that_itself(world: &World) {
    let keeper = world.keeper().await;
    let run = claimed(&build(world, &keeper, "1")).await;
    world.remove(&run.guard().node()).await;
    let loss = run.guard().lost().await;
    let finished = run.finish(RunEnd::of(EndKind::Lost).with_reason(loss.to_string())).await;
    assert!(finished.recorded.is_ok() && finished.loss.is_some(), "{finished:?}");
    let status = JobsAdmin::new(&keeper).job(world.lock()).await.unwrap().unwrap();
    assert_eq!((status.state, status.last()), (JobState::Crashed, Some(&finished.record)));
}

async fn jobs_that_come_together_run_once(world: &World) {
    let mut hosts = Vec::new();
    for _ in 0..12 {
        let keeper = world.keeper().await;
        let job = Job::new(&keeper, world.lock()).once_per(Slot::Month).on_failure(Rule::Retry { most: None });
        hosts.push(crate::support::spawn(async move { job.run(async |run| Ok::<_, Error>(run.slot().clone())).await }));
    }
    let mut slots = Vec::new();
    for host in hosts {
        match host.await.unwrap().unwrap() {
            Ran::Done(slot) => slots.push(slot),
            Ran::Skipped(skipped) => assert!(skipped.run().is_some_and(RunRecord::has_succeeded), "{skipped}"),
            other => panic!("{other:?}"),
        }
    }
    // Two if a month begins at this moment.
    slots.dedup();
    assert!(slots.len() == 1 || slots[0].end_ms == Some(slots[1].start_ms), "{slots:?}");
}

/// The log was read before the transaction of the end, and the node of the run behind it.
async fn an_end_between_two_reads_is_no_crash(world: &World) {
    let proxy = world.proxy().await;
    let (one, other) = (world.keeper().await, world.keeper_through(&proxy, STEADY).await);
    let run = claimed(&build(world, &one, "1")).await;
    let node = format!("{}/{}", world.lock(), run.record().node);
    let held = proxy.on(OpCode::GetData).path(node).hold_request();
    let (admin, lock) = (JobsAdmin::new(&other), world.lock().to_owned());
    let asked = crate::support::spawn(async move { admin.job(lock).await });
    held.caught().await;
    assert!(run.finish(RunEnd::succeeded()).await.recorded.is_ok());
    held.release();
    // A server of an ensemble may not have the end yet.
    let state = asked.await.unwrap().unwrap().unwrap().state;
    assert!(matches!(state, JobState::Ok | JobState::Running), "{state:?}");
    assert_eq!(JobsAdmin::new(&other).job(world.lock()).await.unwrap().unwrap().state, JobState::Ok);
}

/// In a chroot of its own: the other claims on these servers change the list of the jobs, too.
async fn following_jobs_reads_only_what_changed(world: &World) {
    let (proxy, chroot) = (world.proxy().await, world.path("chroot"));
    let one = world.connect(&format!("{}{chroot}", world.servers()), STEADY).await;
    let watcher = world.connect(&format!("{}{chroot}", proxy.connect_string()), STEADY).await;
    let states = |jobs: Vec<JobStatus>| jobs.iter().map(|job| job.state).collect::<Vec<_>>();
    // Before the first job, there is nothing to read, and nothing is created.
    let mut early = JobsAdmin::new(&one).follow("/");
    assert_eq!(states(early.next().await.unwrap()), []);
    assert!(world.observer.check_stat(&format!("{chroot}/lockkeeper/jobs")).await.unwrap().is_none());
    let quiet = Job::new(&one, format!("{}/quiet", world.lock())).slot("1");
    for job in [&quiet, &build(world, &one, "1")] {
        claimed(job).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    }
    while states(early.next().await.unwrap()) != [JobState::Ok, JobState::Ok] {}
    let mut follow = JobsAdmin::new(&watcher).follow(world.lock());
    assert_eq!(states(follow.next().await.unwrap()), [JobState::Ok, JobState::Ok]);
    let before = proxy.counts();
    let run = claimed(&build(world, &one, "2")).await;
    assert_eq!(states(follow.next().await.unwrap()), [JobState::Running, JobState::Ok]);
    run.finish(RunEnd::failed("x")).await.recorded.unwrap();
    assert_eq!(states(follow.next().await.unwrap()), [JobState::Failed, JobState::Ok]);
    let asked = proxy.counts().since(&before).requested;
    // The log and the node of the run, then the log.
    assert_eq!((asked.of(OpCode::GetData), asked.of(OpCode::GetChildren2)), (3, 0));
    // A new job, and the loss of a host.
    let run = claimed(&Job::new(&one, format!("{}/other", world.lock())).slot("1")).await;
    let mut until = async |expected: &[JobState]| while states(follow.next().await.unwrap()) != expected {};
    until(&[JobState::Failed, JobState::Running, JobState::Ok]).await;
    drop(run);
    until(&[JobState::Failed, JobState::Crashed, JobState::Ok]).await;
    assert!(JobsAdmin::new(&one).forget(world.lock()).await.unwrap());
    until(&[JobState::Crashed, JobState::Ok]).await;
}

async fn a_program_without_async_runs_a_job(world: &World) {
    let keeper = world.keeper().await;
    let job = build(world, &keeper, "1");
    let ran = tokio::task::spawn_blocking(move || keeper.block_on(job.run(async |_| Ok::<_, Error>(7))));
    assert!(matches!(ran.await.unwrap().unwrap(), Ran::Done(7)));
}

/// The records belong to everyone: a person resolves a run while a host claims. Someone who never stops is reported.
async fn a_claim_is_decided_anew_when_the_records_change(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    claimed(&build(world, &keeper, "1")).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let (log, job) = (log_node(world), build(world, &keeper, "2"));
    let hold = || proxy.on(OpCode::Multi).hold_request();
    let change = async |held: &Hold| {
        held.caught().await;
        let (data, _) = world.observer.get_data(&log).await.unwrap();
        world.observer.set_data(&log, &data, None).await.unwrap();
    };
    let held = hold();
    let (run, ()) = tokio::join!(claimed(&job), async {
        change(&held).await;
        held.release();
    });
    assert!(run.finish(RunEnd::succeeded()).await.recorded.is_ok());

    let (job, before, mut held) = (build(world, &keeper, "3"), proxy.counts(), hold());
    let tries = || proxy.counts().since(&before).requested.of(OpCode::Multi);
    let outcome = tokio::select! {
        outcome = job.claim() => outcome,
        () = async {
            while tries() < 100 {
                change(&held).await;
                // Before the release: no claim may pass in between.
                held = hold();
            }
        } => panic!("the claim does not end"),
    };
    match outcome {
        Err(JobError::Refused { path, reason }) => {
            assert_eq!((path, reason.as_str(), tries()), (world.lock(), "they change all the time", 16));
        }
        outcome => panic!("{outcome:?}"),
    }
    proxy.heal();
    world.queued(0).await;
}

/// A host has run another slot between the read and the write.
async fn a_person_decides_about_the_records_as_they_are_when_the_decision_is_written(world: &World) {
    let proxy = world.proxy().await;
    let (person, host) = (world.keeper_through(&proxy, STEADY).await, world.keeper().await);
    claimed(&build(world, &host, "1")).await.finish(RunEnd::failed("x")).await.recorded.unwrap();
    let (lock, write) = (world.lock(), proxy.on(OpCode::SetData).path(log_node(world)).hold_request());
    let deciding = crate::support::spawn(async move { JobsAdmin::new(&person).rerun(lock, Some("1")).await });
    write.caught().await;
    claimed(&build(world, &host, "2")).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    write.release();
    assert_eq!(deciding.await.unwrap().unwrap().slot.name, "1");
    let runs = JobsAdmin::new(&host).job(world.lock()).await.unwrap().unwrap().runs;
    let runs: Vec<_> = runs.iter().map(|run| (run.slot.name.as_str(), run.is_to_run_again())).collect();
    assert_eq!(runs, [("1", true), ("2", false)]);
}

async fn records_that_may_not_be_read_refuse_the_claim(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    claimed(&build(world, &keeper, "1")).await.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let client = Client::connect(&world.servers()).await.unwrap();
    let acl = [Acl::new(Permission::ADMIN, AuthId::anyone())];
    client.set_acl(&log_node(world), &acl, None).await.unwrap();
    match tokio::time::timeout(STEADY, build(world, &keeper, "2").claim()).await.expect("the claim does not end") {
        Err(JobError::Refused { path, reason }) => {
            assert_eq!(path, world.lock());
            assert!(reason.contains("not authorized"), "{reason}");
        }
        outcome => panic!("{outcome:?}"),
    }
    world.queued(0).await;
    // Neither that record nor the lock of a run that goes on hides the other jobs.
    let other = format!("{}-other", world.lock());
    let run = claimed(&Job::new(&keeper, &other).slot("1")).await;
    // A holder that may not read its own node gives the lock up: it could not see that somebody deletes it.
    let node = run.guard().node();
    // The claim has read it twice: it found no records, and created them.
    let reads =
        |what: &What| matches!(what, What::Reply { op: OpCode::GetData, path: Some(path), .. } if *path == node);
    let watches = async || proxy.records().iter().filter(|record| reads(&record.what)).count() >= 3;
    eventually("the holder watches its node", watches).await;
    client.set_acl(&node, &acl, None).await.unwrap();
    let states = |jobs: Vec<JobStatus>| jobs.into_iter().map(|job| (job.path, job.state)).collect::<Vec<_>>();
    let expected = [(world.lock().to_owned(), JobState::Unreadable), (other.clone(), JobState::Running)];
    let mut follow = JobsAdmin::new(&keeper).follow("/");
    for jobs in [JobsAdmin::new(&keeper).jobs("/").await.unwrap(), follow.next().await.unwrap()] {
        let found = states(jobs);
        assert!(expected.iter().all(|job| found.contains(job)), "{found:?}");
    }
    run.finish(RunEnd::succeeded()).await.recorded.unwrap();
    let expected = [expected[0].clone(), (other.clone(), JobState::Ok)];
    loop {
        let found = states(follow.next().await.unwrap());
        if expected.iter().all(|job| found.contains(job)) {
            break;
        }
    }
    assert!(JobsAdmin::new(&keeper).forget(&other).await.unwrap());
    client.set_acl(&log_node(world), &Acls::anyone_all(), None).await.unwrap();
}

/// A server closes the connection on a frame beyond its limit. The request is sent three times, and not for ever.
#[test]
fn a_record_that_is_too_large_for_the_servers_ends_few_connections_and_delays_no_release() {
    block_on(async {
        let server = EmbeddedServer::start(config().with_max_frame(10_000)).await.unwrap();
        let proxy = Proxy::start(server.addr()).await;
        let keeper = Lockkeeper::connect(&proxy.connect_string()).await.unwrap();
        let other = Lockkeeper::connect(&server.connect_string()).await.unwrap();
        let job = Job::new(&keeper, "/large").slot("1");
        let run = claimed(&job).await;
        let finished = run.finish(RunEnd::failed("x").with_output("y".repeat(64 * 1024))).await;
        let Err(NotRecorded::Refused { reason }) = &finished.recorded else { panic!("{:?}", finished.recorded) };
        assert!(
            reason.contains("close the connection on a request of ") && reason.contains("jute.maxbuffer"),
            "{reason}"
        );
        assert_eq!(finished.loss, None);
        // The lock is free, without the record.
        other.mutex("/large").try_acquire().await.unwrap().release().await.unwrap();
        let deletes = proxy.counts().operations.of(OpCode::Delete);
        assert!(deletes <= 5, "the release was sent {deletes} times");
        keeper.close().await;
        other.close().await;
        server.shutdown().await.unwrap();
    });
}

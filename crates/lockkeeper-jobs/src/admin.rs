//! Reads of the records of jobs, and a person's decisions about them.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use lockkeeper::Lockkeeper;
use lockkeeper::error::misuse::check_reason;
use lockkeeper::error::{Misuse, SessionError};
use lockkeeper_session::ensemble::{Ensemble, Node, OpError, READS_IN_FLIGHT, Watcher, is_below, linearizable};
use lockkeeper_session::records::server_now_ms;
use serde::Serialize;

use super::error::{JobError, refused};
use super::records::{Expected, JobLog, LeftOut, LogError, NoRerun, Pause, Rule, RunRecord, Schedule};
use super::stored::{self as jobs, ROOT, StoredLog};

/// How often a decision is tried if the records change meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JobState {
    /// No run was claimed yet.
    NeverRan,
    /// A host runs it.
    Running,
    /// The last run succeeded.
    Ok,
    /// The last run failed, took too long or was stopped.
    Failed,
    /// The host of the last run crashed or lost the lock.
    Crashed,
    /// The last run failed or crashed, and a person must decide.
    Kept,
    /// The records cannot be read.
    Unreadable,
}

/// A job and its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobStatus {
    /// The path of its lock.
    pub path: String,
    /// Its state.
    pub state: JobState,
    /// When it is due, as its last host stated; `None` if the records cannot be read or no run was claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// What follows a failure.
    pub on_failure: Rule,
    /// What follows a crash.
    pub on_crash: Rule,
    /// When the next slot begins, in milliseconds since 1970 by the servers' clock, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<i64>,
    /// Since when it is expected to run, if that was said before any host had claimed a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// The last pause, which may be over ([`Pause::is_in_effect`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// The slots that hosts asked for in a pause, the oldest first. As many as runs are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// The runs that are kept, the oldest first. The last one may have no end: it runs, or its host crashed.
    pub runs: Vec<RunRecord>,
    /// Whether the process of a running job has ended on this machine, as far as this process can know: its node goes when its
    /// session ends.
    pub process_gone: bool,
    /// Why the records cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl JobStatus {
    /// Returns the last run.
    pub fn last(&self) -> Option<&RunRecord> {
        self.runs.last()
    }

    /// Returns the last run that succeeded.
    pub fn last_success(&self) -> Option<&RunRecord> {
        self.runs.iter().rev().find(|run| run.has_succeeded())
    }

    /// The status of a job.
    pub(super) fn of(path: String, JobLook { stored, is_running, process_gone }: JobLook) -> JobStatus {
        let (on_failure, on_crash) = (Rule::default(), Rule::default());
        let empty = JobStatus {
            path,
            state: JobState::NeverRan,
            schedule: None,
            on_failure,
            on_crash,
            due_ms: None,
            expected: None,
            pause: None,
            left_out: Vec::new(),
            runs: Vec::new(),
            process_gone,
            unreadable: None,
        };
        match stored.log {
            Err(problem) => JobStatus { state: JobState::Unreadable, unreadable: Some(problem.to_string()), ..empty },
            Ok(None) => empty,
            Ok(Some(log)) => JobStatus {
                state: state_of(&log, is_running),
                due_ms: due(&log),
                schedule: Some(log.schedule),
                on_failure: log.on_failure,
                on_crash: log.on_crash,
                expected: log.expected,
                pause: log.pause,
                left_out: log.left_out,
                runs: log.runs,
                ..empty
            },
        }
    }
}

fn state_of(log: &JobLog, is_running: bool) -> JobState {
    let Some(last) = log.runs.last() else { return JobState::NeverRan };
    let crashed = match &last.end {
        None if is_running => return JobState::Running,
        None => true,
        Some(_) if last.has_succeeded() => return JobState::Ok,
        Some(end) => end.kind.is_crash(),
    };
    let rule = if crashed { log.on_crash } else { log.on_failure };
    match (rule, crashed) {
        (Rule::Keep, _) if last.resolved.is_none() => JobState::Kept,
        (_, true) => JobState::Crashed,
        (_, false) => JobState::Failed,
    }
}

/// When the next slot begins.
fn due(log: &JobLog) -> Option<i64> {
    let Some(last) = log.runs.last() else { return log.expected?.due_ms };
    match &log.schedule {
        Schedule::Every { every_ms } => last.start_ms?.checked_add_unsigned(*every_ms),
        _ => last.slot.end_ms,
    }
}

/// A person's decision about a run that failed or crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resolve {
    /// The slot runs again on the next host that asks.
    RunAgain,
    /// The slot counts as done.
    Accept,
}

/// Reads of the records of jobs, and a person's decisions about them.
#[derive(Clone, Debug)]
pub struct JobsAdmin {
    pub(super) keeper: Lockkeeper,
}

impl JobsAdmin {
    /// Creates the handle. Sends nothing.
    pub fn new(keeper: &Lockkeeper) -> Self {
        JobsAdmin { keeper: keeper.clone() }
    }

    /// Returns this path of a job. Fails if it is not a path, or if the handle is that of a realm that does not have it.
    fn path(&self, path: &str) -> Result<String, JobError> {
        Ok(self.keeper.path(path)?)
    }

    /// Returns the root of a question about jobs; empty for all jobs.
    pub(super) fn root(&self, root: &str) -> Result<String, JobError> {
        Ok(self.keeper.root(root)?)
    }

    /// Returns the jobs at and below `root` that have records, by path. `root` may be `/`. A job whose records the server does
    /// not show to this client is [`JobState::Unreadable`].
    ///
    /// # Cost
    ///
    /// An ordered write and a listing in one round trip, and one read for each job, sent together. A job that runs costs one more
    /// read, and a job whose host crashed three more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn jobs(&self, root: impl AsRef<str>) -> Result<Vec<JobStatus>, JobError> {
        let root = self.root(root.as_ref())?;
        self.keeper
            .sessions()
            .ask(move |ensemble| async move {
                let paths = jobs::paths(&*ensemble).await.map_err(|fault| refused(ROOT, fault))?;
                let looks = paths.into_iter().filter(|path| is_below(path, &root)).map(|path| {
                    let ensemble = &*ensemble;
                    async move {
                        let looked = look(ensemble, &path, None).await.map_err(|fault| refused(&path, fault))?;
                        Ok::<_, JobError>(looked.map(|looked| JobStatus::of(path, looked)))
                    }
                });
                let found: Vec<_> = stream::iter(looks).buffered(READS_IN_FLIGHT).try_collect().await?;
                let mut found: Vec<_> = found.into_iter().flatten().collect();
                found.sort_by(|a, b| a.path.cmp(&b.path));
                Ok(found)
            })
            .await
    }

    /// Returns the job whose lock is at `path`; `None` if it has no records.
    ///
    /// # Cost
    ///
    /// An ordered write and a read in one round trip. A job that runs costs one more read, and a job whose host crashed three more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The server refuses the read or cannot be reached.
    pub async fn job(&self, path: impl AsRef<str>) -> Result<Option<JobStatus>, JobError> {
        let path = self.path(path.as_ref())?;
        self.keeper
            .sessions()
            .ask(move |ensemble| async move {
                let looked = linearizable(&*ensemble, look(&*ensemble, &path, None)).await;
                Ok(looked.map_err(|fault| refused(&path, fault))?.map(|looked| JobStatus::of(path, looked)))
            })
            .await
    }

    /// Decides about the last run of a job, which failed or crashed, and returns its record. Whatever the rule of the job
    /// is, the decision counts.
    ///
    /// # Cost
    ///
    /// An ordered write and a read in one round trip, three reads if the run has no end, and one write.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the decision either made or not made.
    ///
    /// # Errors
    ///
    /// [`JobError::NothingToDecide`] if the job has no records, runs, or its last run succeeded or is decided. Otherwise, the
    /// server refuses or cannot be reached.
    pub async fn resolve(&self, path: impl AsRef<str>, how: Resolve) -> Result<RunRecord, JobError> {
        let by = self.keeper.owner().clone();
        self.decide(path.as_ref(), move |path, log| {
            let nothing = || JobError::NothingToDecide { path: path.to_owned() };
            let log = log.filter(|log| log.open().is_none()).ok_or_else(nothing)?;
            if !log.resolve(how == Resolve::RunAgain, by.clone()) {
                return Err(nothing());
            }
            log.runs.last().cloned().ok_or_else(nothing)
        })
        .await
    }

    /// Lets a slot that has ended run again, or with `None` the slot of the last run, whether that run succeeded or not. Returns the
    /// record of the slot's newest run, with the decision.
    ///
    /// Of a job with a calendar, the next host that claims runs the slot, before that of its own time. Of a job that runs every so
    /// often, the next host runs it, unless another run is due. Of a job with a text, the next host that claims this text does. The
    /// run is one more attempt of the slot, and the job's rules say what follows its failure or crash.
    ///
    /// # Cost
    ///
    /// As [`JobsAdmin::resolve`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the decision either made or not made.
    ///
    /// # Errors
    ///
    /// [`JobError::NoRerun`] if a host runs the job, no run of the slot is recorded, or the slot waits to run again. Otherwise, the
    /// server refuses or cannot be reached.
    pub async fn rerun(&self, path: impl AsRef<str>, slot: Option<&str>) -> Result<RunRecord, JobError> {
        let (by, slot) = (self.keeper.owner().clone(), slot.map(str::to_owned));
        self.decide(path.as_ref(), move |path, log| {
            let no = |reason| JobError::NoRerun { path: path.to_owned(), reason };
            let log = log.ok_or_else(|| no(NoRerun::NeverRan { slot: slot.clone() }))?;
            log.rerun(slot.as_deref(), by.clone()).map_err(no)
        })
        .await
    }

    /// Pauses a job, with this reason of 1 to 1024 bytes: until `until_ms`, in milliseconds since 1970 by the servers' clock
    /// ([`server_now_ms`](crate::server_now_ms)), or without an end until [`JobsAdmin::resume`]. Replaces an earlier pause. Returns the
    /// pause.
    ///
    /// No host begins a run meanwhile; one that goes on is not ended. The claim of a host is [`Skipped::Paused`](crate::Skipped::Paused),
    /// and its slot is recorded in [`JobStatus::left_out`]. It is not caught up later. A host that asks for it after the pause runs it, if it
    /// is not over by then.
    ///
    /// # Cost
    ///
    /// A small write, an ordered write and a read in one round trip, and one write. A job that runs costs one more read, and a job whose host
    /// crashed three more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the job either paused or not paused.
    ///
    /// # Errors
    ///
    /// [`JobError::NoRecords`] if the job has no records. [`JobError::Misuse`] if the reason is empty or too long, or if `until_ms` is not in
    /// the future. Otherwise, the server refuses or cannot be reached.
    pub async fn pause(&self, path: impl AsRef<str>, reason: &str, until_ms: Option<i64>) -> Result<Pause, JobError> {
        let path = self.path(path.as_ref())?;
        let (by, reason) = (self.keeper.owner().clone(), check_reason(&path, reason)?);
        let now_ms = self.now_ms(&path).await?;
        if let Some(until_ms) = until_ms.filter(|until| *until <= now_ms) {
            let problem = format!(
                "{path} cannot be paused until {until_ms} ms since 1970: the servers' time is {now_ms} ms already"
            );
            return Err(Misuse::new("until", problem).remedy("choose a time in the future").into());
        }
        self.change(&path, move |path, log, _| {
            let log = log.ok_or_else(|| JobError::NoRecords { path: path.to_owned() })?;
            Ok(log.pause(by.clone(), reason.clone(), now_ms, until_ms))
        })
        .await
    }

    /// Ends the pause of a job, and returns it. The next host that asks runs its slot.
    ///
    /// # Cost
    ///
    /// As [`JobsAdmin::pause`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the job either paused or not paused.
    ///
    /// # Errors
    ///
    /// [`JobError::NoRecords`] if the job has no records, [`JobError::NotPaused`] if it is not paused. Otherwise, the server refuses or
    /// cannot be reached.
    pub async fn resume(&self, path: impl AsRef<str>) -> Result<Pause, JobError> {
        let path = self.path(path.as_ref())?;
        let now_ms = self.now_ms(&path).await?;
        self.change(&path, move |path, log, _| {
            let log = log.ok_or_else(|| JobError::NoRecords { path: path.to_owned() })?;
            log.resume(now_ms).ok_or_else(|| JobError::NotPaused { path: path.to_owned() })
        })
        .await
    }

    /// The servers' time.
    async fn now_ms(&self, path: &str) -> Result<i64, JobError> {
        let path = path.to_owned();
        self.keeper
            .sessions()
            .ask(move |ensemble| async move {
                let now_ms = server_now_ms(&*ensemble, ROOT).await.map_err(|fault| refused(ROOT, fault))?;
                now_ms.ok_or(JobError::NoRecords { path })
            })
            .await
    }

    /// Writes a person's decision into the log of a job, if it has one. The run of a host that no longer holds the lock has ended.
    async fn decide(
        &self,
        path: &str,
        decision: impl Fn(&str, Option<&mut JobLog>) -> Result<RunRecord, JobError> + Send + Sync + 'static,
    ) -> Result<RunRecord, JobError> {
        let deciding = move |path: &str, mut log: Option<&mut JobLog>, is_running: bool| {
            if let Some(log) = log.as_mut().filter(|_| !is_running) {
                log.close_crashed();
            }
            decision(path, log)
        };
        self.change(path, deciding).await
    }

    /// Changes the log of a job, if it has one, knowing whether the host of its open run still holds the lock.
    async fn change<T: Send + 'static>(
        &self,
        path: &str,
        decision: impl Fn(&str, Option<&mut JobLog>, bool) -> Result<T, JobError> + Send + Sync + 'static,
    ) -> Result<T, JobError> {
        let path = self.path(path)?;
        self.keeper
            .sessions()
            .ask(move |ensemble| async move {
                for _ in 0..MAX_ATTEMPTS {
                    let looked = linearizable(&*ensemble, look(&*ensemble, &path, None)).await;
                    let Some(looked) = looked.map_err(|fault| refused(&path, fault))? else {
                        return decision(&path, None, false);
                    };
                    let JobLook { stored, is_running, .. } = looked;
                    let version = Some(stored.version);
                    let unreadable = |problem: LogError| {
                        JobError::from(SessionError::Refused { path: path.clone(), reason: problem.to_string() })
                    };
                    let Some(mut log) = stored.log.map_err(unreadable)? else { return decision(&path, None, false) };
                    let changed = decision(&path, Some(&mut log), is_running)?;
                    match ensemble.write(&jobs::node(&path), log.to_bytes(), version).await {
                        Ok(_) => return Ok(changed),
                        Err(OpError::BadVersion | OpError::NoNode) => {}
                        Err(fault) => return Err(refused(&path, fault)),
                    }
                }
                Err(SessionError::ConnectionLost { path }.into())
            })
            .await
    }

    /// Deletes the records of a job; `false` if it has none. The next claim is the first one. The end of a run that goes on is
    /// not recorded.
    ///
    /// # Cost
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the deletion either done or not done.
    ///
    /// # Errors
    ///
    /// The server refuses or cannot be reached.
    pub async fn forget(&self, path: impl AsRef<str>) -> Result<bool, JobError> {
        let path = self.path(path.as_ref())?;
        self.keeper
            .sessions()
            .ask(move |ensemble| async move {
                match ensemble.delete(&jobs::node(&path), None).await {
                    Ok(()) => Ok(true),
                    Err(OpError::NoNode) => Ok(false),
                    Err(fault) => Err(refused(&path, fault)),
                }
            })
            .await
    }
}

/// A log, and whether the host of its open run still holds the lock.
pub(super) struct JobLook {
    stored: StoredLog,
    is_running: bool,
    /// Whether that host is this machine, and its process has ended.
    process_gone: bool,
}

/// Reads the log of a job, and the node of its open run. Adds watches of both to `changes`.
pub(super) async fn look(
    ensemble: &dyn Ensemble,
    path: &str,
    mut changes: Option<&mut Vec<Watcher>>,
) -> Result<Option<JobLook>, OpError> {
    let mut without_node = None;
    loop {
        if let Some(changes) = &mut changes {
            changes.clear();
        }
        let stored = match read(ensemble, &jobs::node(path), changes.as_deref_mut()).await {
            Ok(node) => StoredLog::of(&node),
            Err(OpError::NoNode) => return Ok(None),
            // The access list of one job says nothing about the others.
            Err(OpError::Refused(reason)) => StoredLog { log: Err(LogError::Refused(reason)), version: 0 },
            Err(fault) => return Err(fault),
        };
        let Some(run) = stored.log.as_ref().ok().and_then(|log| log.as_ref()?.open()) else {
            return Ok(Some(JobLook { stored, is_running: false, process_gone: false }));
        };
        match read(ensemble, &format!("{path}/{}", run.node), changes.as_deref_mut()).await {
            Ok(node) => {
                let process_gone = lockkeeper::admin::process_has_ended(&node);
                return Ok(Some(JobLook { stored, is_running: true, process_gone }));
            }
            // A server looks for a node before it looks at the access list.
            Err(OpError::Refused(_)) => return Ok(Some(JobLook { stored, is_running: true, process_gone: false })),
            // The end of a run and the deletion of its node are one transaction. It may be between the two reads: only a log that
            // is the same behind the deletion says that the host crashed.
            Err(OpError::NoNode) if without_node == Some(stored.version) => {
                return Ok(Some(JobLook { stored, is_running: false, process_gone: false }));
            }
            Err(OpError::NoNode) => without_node = Some(stored.version),
            Err(fault) => return Err(fault),
        }
    }
}

async fn read(ensemble: &dyn Ensemble, path: &str, changes: Option<&mut Vec<Watcher>>) -> Result<Node, OpError> {
    let Some(changes) = changes else { return ensemble.read(path).await };
    let (node, changed) = ensemble.read_and_watch(path).await?;
    changes.push(changed);
    Ok(node)
}

#[cfg(test)]
mod tests {
    use lockkeeper::admin::this_process;

    use super::*;
    use crate::records::{Begin, RunEnd, RunSlot};

    fn log(schedule: Schedule) -> JobLog {
        let mut log = JobLog::new("/job", schedule);
        (log.on_failure, log.on_crash) = (Rule::Keep, Rule::Retry { most: Some(3) });
        let begin = Begin {
            id: "id".to_owned(),
            slot: RunSlot::new("slot", 10, Some(70)),
            attempt: 1,
            catch_up: false,
            missed_before: 0,
            by: this_process(),
            command: None,
            token: "7".to_owned(),
            node: "node".to_owned(),
        };
        log.begin(begin, 10);
        log.stamp(20);
        log
    }

    fn status(log: Result<Option<JobLog>, LogError>, is_running: bool) -> JobStatus {
        JobStatus::of(
            "/job".to_owned(),
            JobLook { stored: StoredLog { log, version: 1 }, is_running, process_gone: false },
        )
    }

    #[test]
    fn a_status_says_what_the_records_say() {
        for (schedule, due_ms) in
            [(Schedule::Every { every_ms: 100 }, 120), (Schedule::Text { slot: "slot".to_owned() }, 70)]
        {
            let log = log(schedule);
            let told = status(Ok(Some(log.clone())), true);
            let expected = JobStatus {
                path: "/job".to_owned(),
                state: JobState::Running,
                schedule: Some(log.schedule),
                on_failure: Rule::Keep,
                on_crash: Rule::Retry { most: Some(3) },
                due_ms: Some(due_ms),
                expected: None,
                pause: None,
                left_out: Vec::new(),
                runs: log.runs,
                process_gone: false,
                unreadable: None,
            };
            assert_eq!(told, expected);
        }
    }

    #[test]
    fn a_status_without_records_is_empty_and_one_of_damaged_records_says_why() {
        let empty = status(Ok(None), false);
        assert_eq!((empty.state, empty.runs.len(), empty.unreadable), (JobState::NeverRan, 0, None));
        let damaged = status(Err(LogError::Newer(9)), false);
        assert_eq!(damaged.state, JobState::Unreadable);
        assert!(damaged.unreadable.is_some_and(|reason| reason.contains("version 9")));
    }

    #[test]
    fn a_rule_to_keep_waits_for_a_person_after_its_own_kind_of_end_only() {
        let failed = |mut log: JobLog| {
            assert!(log.finish("id", RunEnd::failed("x")));
            status(Ok(Some(log)), false).state
        };
        let log = log(Schedule::Every { every_ms: 100 });
        assert_eq!(status(Ok(Some(log.clone())), false).state, JobState::Crashed);
        assert_eq!(failed(log.clone()), JobState::Kept);
        let mut swapped = log;
        std::mem::swap(&mut swapped.on_failure, &mut swapped.on_crash);
        assert_eq!(status(Ok(Some(swapped.clone())), false).state, JobState::Kept);
        assert_eq!(failed(swapped), JobState::Failed);
    }

    #[test]
    fn a_run_is_kept_until_a_person_has_decided() {
        let mut log = log(Schedule::Every { every_ms: 100 });
        assert!(log.finish("id", RunEnd::failed("x")));
        let state = |log: &JobLog| status(Ok(Some(log.clone())), false).state;
        assert_eq!(state(&log), JobState::Kept);
        assert!(log.resolve(false, this_process()));
        assert_eq!(state(&log), JobState::Failed);
    }
}

//! Reads the jobs of a tree for the page of an observation.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::future::OptionFuture;
use jiff::Timestamp;
use lockkeeper::{Error, Lockkeeper};
use lockkeeper_history::{History, Refusal};
use lockkeeper_jobs::{JobStatus, JobsAdmin};
use lockkeeper_observe::watch::{Jobs, Observation};
use tokio::time::{Instant, sleep, sleep_until};

use crate::jobsview::{JobView, Requests, is_idle, lines};
use crate::settings::Part;

/// The shortest time between two reads of the refused requests, and between two drawings of lines that only time has changed.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Seen {
    jobs: Vec<JobStatus>,
    refusals: Vec<Refusal>,
    problem: Option<String>,
}

/// Hands the jobs of a part to the page, as often as they change.
///
/// The records of the jobs are watched, so they are read when they change. The records of refused requests are not: they are read again
/// 10 s after a change of a lock or of a job. Whether a job is late depends on this machine's clock.
pub(super) async fn show(keeper: &Lockkeeper, part: &Part, observation: &Observation) -> Infallible {
    let (history, late) = (History::new(keeper), part.settings.all.jobs.late.value);
    let mut follow = JobsAdmin::new(keeper).follow(&part.root);
    let mut changes = observation.changes();
    let mut seen = Seen::default();
    let (mut is_first, mut refusals_at, mut follow_at) = (true, None, Instant::now());
    loop {
        let is_seen = changes.has_changed().is_ok_and(|has| !has);
        let changes_in = seen.hand_over(part, late, observation);
        if is_seen {
            // The lines themselves are a change.
            changes.mark_unchanged();
        }
        let passed = OptionFuture::from(changes_in.map(|time| sleep(time.max(PAUSE))));
        let followed = async {
            sleep_until(follow_at).await;
            follow.next().await
        };
        let due = OptionFuture::from(refusals_at.map(sleep_until));
        tokio::select! {
            read = followed => match read {
                Ok(mut jobs) => {
                    jobs.retain(|job| part.has(&job.path));
                    (seen.jobs, seen.problem) = (jobs, None);
                    let pause = if std::mem::take(&mut is_first) { Duration::ZERO } else { PAUSE };
                    refusals_at.get_or_insert(Instant::now() + pause);
                }
                Err(error) => {
                    seen.problem = Some(Error::from(error).to_string());
                    follow_at = Instant::now() + PAUSE;
                }
            },
            Some(()) = due => {
                refusals_at = None;
                let paths: Vec<_> = seen.idle().map(|job| job.path.clone()).collect();
                // An addition: without them, the jobs are shown as they are recorded.
                if let Ok(refusals) = history.refusals(&paths).await {
                    seen.refusals = refusals;
                }
            }
            Some(()) = passed => {}
            changed = changes.changed(), if refusals_at.is_none() && seen.idle().next().is_some() => match changed {
                Ok(()) => refusals_at = Some(Instant::now() + PAUSE),
                Err(_) => pending().await,
            },
        }
    }
}

impl Seen {
    /// The jobs that run on no machine.
    fn idle(&self) -> impl Iterator<Item = &JobStatus> {
        self.jobs.iter().filter(|job| is_idle(job))
    }

    /// Hands the lines to the page. Returns when the passing time changes one of them.
    fn hand_over(&self, part: &Part, late: Option<Duration>, observation: &Observation) -> Option<Duration> {
        let requests = |job: &JobStatus| {
            let refused = self.refusals.iter().filter(|refusal| refusal.path == job.path).cloned().collect();
            Requests { refused, is_in_use: observation.is_in_use(&job.path) }
        };
        let requests: HashMap<_, _> = self.idle().map(|job| (&*job.path, requests(job))).collect();
        let now_ms = Timestamp::now().as_millisecond();
        let view = |job| JobView::of(job, now_ms, late);
        let views = self.jobs.iter().map(|job| view(job).with_requests(requests.get(&*job.path)));
        let mut views: Vec<_> = views.collect();
        let next = views.iter().filter_map(JobView::changes_in).min();
        let jobs = Jobs { lines: lines(&mut views), problem: self.problem.clone() };
        observation.show_jobs(&part.root, jobs);
        next
    }
}

//! The section about jobs.

use lockkeeper_session::text::plain;
use maud::{Markup, html};

use super::parts::{Command, link, more, shown};
use crate::watch::{Glance, JobHealth, JobLine};

/// Maximum jobs on the page. The rest are counted; those that are not in order come first.
const JOBS: usize = 200;

pub(super) fn jobs(glance: &Glance, command: &Command) -> Markup {
    let mut all: Vec<_> = glance.jobs.iter().flat_map(|jobs| &jobs.lines).collect();
    // Stable: the jobs of each tree are in order already.
    all.sort_by_key(|job| rank(job.health));
    html! {
        div data-part="jobs" {
            @if !all.is_empty() || glance.jobs.iter().any(|jobs| jobs.problem.is_some()) {
                h2 id="jobs" { "Jobs" }
                @for problem in glance.jobs.iter().filter_map(|jobs| jobs.problem.as_ref()) {
                    p.warn { "Not up to date: " (plain(problem)) "." }
                }
            }
            @if !all.is_empty() {
                div.scroll #job-list tabindex="0" role="region" aria-label="Jobs" {
                    table.rows {
                        caption { "The jobs, those that are not in order first. Times are in the time zone of the observer." }
                        thead { tr {
                            th scope="col" { "job" } th scope="col" { "state" } th scope="col" { "slot" }
                            th scope="col" { "started" } th.number scope="col" { "took" } th scope="col" { "host" }
                            th scope="col" { "notes" }
                        } }
                        tbody { @for job in all.iter().take(JOBS) { (row(job, command)) } }
                    }
                }
                (more(all.len(), all.len().min(JOBS), "jobs"))
                (shown(command, &["jobs"]))
            }
        }
    }
}

/// How many jobs have failed.
pub(super) fn failed(glance: &Glance) -> usize {
    glance.jobs.iter().flat_map(|jobs| &jobs.lines).filter(|job| job.health == JobHealth::Failed).count()
}

fn rank(health: JobHealth) -> u8 {
    match health {
        JobHealth::Failed => 0,
        JobHealth::Doubtful => 1,
        JobHealth::InOrder => 2,
    }
}

fn row(job: &JobLine, command: &Command) -> Markup {
    let class = match job.health {
        JobHealth::Failed => Some("badge bad"),
        JobHealth::Doubtful => Some("badge warn"),
        JobHealth::InOrder => None,
    };
    html! {
        tr {
            th."who job" scope="row" { (link(&job.path)) }
            td { span class=[class] { (plain(&job.state)) } }
            td { (plain(&job.slot)) }
            td { (plain(&job.started)) }
            td.number { (plain(&job.took)) }
            td.host { (plain(&job.host)) }
            td."who notes" {
                (plain(&job.notes))
                @if class.is_some() { (shown(command, &["jobs", &job.path, "--history"])) }
            }
        }
    }
}

use std::collections::BTreeSet;

use super::*;

fn s(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Returns a job that works from `begin` until `end` under the first lock, with this token.
fn worked(number: usize, begin: f64, end: f64, token: i64) -> Attempt {
    let job = Job { number, status: 3, ..Job::new(vec![0], JobKind::Plain, s(end - begin), s(4.0)) };
    Attempt {
        job,
        pid: 100,
        started: s(begin - 0.1),
        waiting: None,
        lines: vec![
            (s(begin), Word::Begin { pid: 200, node: String::new(), tokens: vec![token] }),
            (s(end), Word::End),
        ],
        second: vec![],
        ended: Some((s(end + 0.1), Status::Code(3))),
        done: vec![],
        said: String::new(),
    }
}

fn found(attempts: Vec<Attempt>) -> Vec<Claim> {
    judged(Storm { attempts, ..Storm::default() })
}

/// Returns the broken promises, each once.
fn judged(storm: Storm) -> Vec<Claim> {
    let claims: BTreeSet<Claim> = judge(&storm, &PROMISES).violations.into_iter().map(|broken| broken.claim).collect();
    claims.into_iter().collect()
}

fn done(mut attempt: Attempt, what: Trouble, from: f64, until: f64) -> Attempt {
    attempt.done.push(Done { what, from: s(from), until: s(until) });
    attempt
}

#[test]
fn what_holds_together_and_which_tokens_it_has_is_judged() {
    assert_eq!(found(vec![worked(0, 1.0, 2.0, 5), worked(1, 2.1, 3.0, 6)]), []);
    assert_eq!(found(vec![worked(0, 1.0, 2.0, 5), worked(1, 2.1, 3.0, 5)]), [Claim::Tokens]);
    let beside = |kind, lock, token| {
        let attempts = (0..4).map(|number| {
            let mut attempt = worked(number, 1.0 + number as f64 / 10.0, 5.0, token * (5 + number as i64));
            (attempt.job.kind, attempt.job.locks) = (kind, vec![lock]);
            attempt
        });
        attempts.collect::<Vec<_>>()
    };
    assert_eq!(found(beside(JobKind::Plain, 0, 1)[..2].to_vec()), [Claim::Exclusion, Claim::OldAfterNew]);
    assert_eq!(found(beside(JobKind::Shared, 1, 1)), []);
    assert_eq!(found(beside(JobKind::Permits(1), 3, 0)[..3].to_vec()), []);
    assert_eq!(found(beside(JobKind::Permits(1), 3, 0)), [Claim::Exclusion]);
}

#[test]
fn a_second_process_that_works_on_is_found() {
    let mut first = worked(0, 1.0, 2.0, 5);
    first.second = vec![(s(2.5), Word::Tick)];
    let orphaned = done(first.clone(), Trouble::Signal(Signal::KILL, Whom::Command), 1.9, 1.9);
    assert_eq!(found(vec![first, worked(1, 2.2, 3.0, 6)]), [Claim::Exclusion, Claim::OldAfterNew]);
    assert_eq!(found(vec![orphaned, worked(1, 2.2, 3.0, 6)]), [], "what a command leaves has no lock");
}

#[test]
fn a_job_that_was_broken_may_overlap_until_its_grace_is_over() {
    let broken = |end| {
        let mut attempt = done(worked(0, 1.0, end, 5), Trouble::Break, 1.5, 1.6);
        attempt.ended = Some((s(end + 0.1), Status::Code(76)));
        attempt
    };
    assert_eq!(found(vec![broken(2.0), worked(1, 1.8, 8.0, 6)]), []);
    assert_eq!(found(vec![broken(5.0), worked(1, 1.8, 8.0, 6)]), [Claim::EndsInTime]);
    assert_eq!(
        found(vec![broken(2.0), worked(1, 1.2, 8.0, 6)]),
        [Claim::Exclusion, Claim::OldAfterNew],
        "it was not broken yet"
    );
}

#[test]
fn a_stopped_job_is_excused_only_together_with_its_lockkeeper_and_for_long() {
    let stopped = |whom, until| {
        let mut attempt = done(worked(0, 1.0, 9.1, 5), Trouble::Stop(whom, s(8.0)), 1.0, until);
        attempt.ended = Some((s(9.2), Status::Code(76)));
        attempt
    };
    let found = |whom, until| found(vec![stopped(whom, until), worked(1, 7.0, 10.0, 6)]);
    assert_eq!(found(Whom::All, 9.0), []);
    assert_eq!(found(Whom::All, 2.9), [Claim::Exclusion, Claim::OldAfterNew], "its session outlives that");
    assert_eq!(found(Whom::Keeper, 9.0), [Claim::Exclusion, Claim::OldAfterNew]);
    assert_eq!(found(Whom::Group, 9.0), [Claim::Exclusion, Claim::OldAfterNew]);
}

#[test]
fn a_lost_update_is_found() {
    let counts = |number, begin: f64, read, token| {
        let mut attempt = worked(number, begin, begin + 1.0, token);
        attempt.lines.insert(1, (s(begin + 0.1), Word::Read(0, read)));
        attempt.lines.insert(2, (s(begin + 0.9), Word::Wrote(0, read + 1)));
        attempt
    };
    assert_eq!(found(vec![counts(0, 1.0, 7, 5), counts(1, 2.1, 8, 6)]), []);
    let lost = found(vec![counts(0, 1.0, 7, 5), counts(1, 2.1, 7, 6)]);
    assert!(!lost.is_empty() && lost.iter().all(|promise| *promise == Claim::NoLostUpdate), "{lost:?}");
}

#[test]
fn whoever_was_seen_waiting_is_served_before_those_who_came_later() {
    let pair = |waiting: f64| {
        let mut first = worked(0, 5.0, 6.0, 6);
        (first.started, first.waiting) = (s(1.0), Some((s(waiting), 0)));
        vec![first, worked(1, 3.0, 4.0, 5)]
    };
    assert_eq!(found(pair(2.0)), [Claim::Order]);
    assert_eq!(found(pair(2.95)), [], "not seen before the other was started");
    let mut again = pair(2.0);
    again[0].said = "the session is lost; joining the queue again".into();
    assert_eq!(found(again), []);
}

#[test]
fn a_healthy_job_that_is_stopped_is_found_and_one_of_a_disturbed_server_is_not() {
    let mut attempt = worked(0, 1.0, 2.0, 5);
    attempt.lines.pop();
    attempt.ended = Some((s(2.0), Status::Code(76)));
    assert_eq!(found(vec![attempt.clone()]), [Claim::Healthy]);
    let disturbed = vec![(s(0.0), s(3.0))];
    assert_eq!(judged(Storm { attempts: vec![attempt.clone()], disturbed, ..Storm::default() }), []);
    let control = vec![(s(1.5), s(1.0))];
    assert_eq!(judged(Storm { attempts: vec![attempt], control, ..Storm::default() }), [], "a busy machine");
}

#[test]
fn an_exit_status_that_does_not_fit_is_found() {
    let killed = |code| {
        let mut attempt = done(worked(0, 1.0, 2.0, 5), Trouble::Signal(Signal::TERM, Whom::Group), 1.5, 1.5);
        attempt.lines.pop();
        attempt.ended = Some((s(2.0), Status::Code(code)));
        found(vec![attempt])
    };
    assert_eq!(killed(143), []);
    assert_eq!(killed(76), [Claim::Status]);
    assert_eq!(killed(3), [Claim::Status], "its own status, though it has not finished");
}

#[test]
fn a_lease_taken_by_force_may_look_removed_only_if_its_taker_is_done() {
    let leased = |number: usize, begin, end, priority| {
        let mut attempt = worked(number, begin, end, number as i64 + 5);
        let lease = s(60.0);
        attempt.job.kind = JobKind::Lease { priority, lease, cleanup: Duration::ZERO, forceful: true, waiting: None };
        attempt
    };
    let lost = |other: Attempt| {
        let mut first = leased(0, 1.0, 4.0, 1);
        first.ended = Some((s(4.1), Status::Code(76)));
        found(vec![first, other])
    };
    assert_eq!(lost(leased(1, 3.8, 3.9, 2)), []);
    assert_eq!(lost(leased(1, 3.8, 9.0, 2)), []);
    assert_eq!(lost(leased(1, 0.1, 0.5, 2)), [Claim::Healthy], "before it");
    // The taker has ended before the first learns of its loss, and leaves the lease to a third that takes nothing by force.
    let third = leased(2, 3.8, 9.0, 1);
    let mut first = leased(0, 1.0, 4.0, 1);
    first.ended = Some((s(4.1), Status::Code(76)));
    assert_eq!(found(vec![first.clone(), leased(1, 3.6, 3.7, 2), third.clone()]), []);
    assert!(found(vec![first.clone(), third.clone()]).contains(&Claim::Exclusion), "nobody took it");
    assert!(found(vec![first, leased(1, 1.6, 1.7, 2), third]).contains(&Claim::EndsInTime), "it has had its time");
}

#[test]
fn a_wait_that_ends_early_or_late_is_found() {
    let waits = |took: f64| {
        let mut attempt = worked(0, 1.0, 2.0, 5);
        attempt.job.wait = Wait::Within(s(2.0));
        attempt.lines.clear();
        (attempt.started, attempt.ended) = (s(1.0), Some((s(1.0 + took), Status::Code(75))));
        // Another job has it.
        found(vec![attempt, worked(1, 0.5, 4.0, 4)])
    };
    assert_eq!(waits(2.1), []);
    assert_eq!(waits(1.5), [Claim::Deadline]);
    assert_eq!(waits(3.0), [Claim::Deadline]);
}

#[test]
fn a_command_that_does_not_end_and_what_is_left_are_found() {
    let mut attempt = worked(0, 1.0, 2.0, 5);
    attempt.ended = None;
    assert_eq!(found(vec![attempt]), [Claim::End]);
    assert_eq!(judged(Storm { left: vec!["a node".into()], ..Storm::default() }), [Claim::NoOrphan]);
}

#[test]
fn a_line_that_was_cut_off_is_none() {
    let said =
        [Word::Begin { pid: 7, node: String::new(), tokens: vec![5, 6] }, Word::Tick, Word::Wrote(0, 12), Word::End];
    let text: String = said.iter().map(|word| serde_json::to_string(&(s(1.0), word)).unwrap() + "\n").collect();
    let words: Vec<_> =
        crate::tools::parse::<(Duration, Word)>(&text[..text.len() - 3]).into_iter().map(|(_, word)| word).collect();
    assert_eq!(words, said[..3]);
}

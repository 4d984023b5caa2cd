//! What the driver does at a certain time.

use std::time::Duration;

use lockkeeper_core::{Ask, Event};
use tokio::time::Instant;

use super::Driver;
use super::attempt::Timer;
use super::state::{LINGER, Pending};

/// How long before its deadline a waiter checks whether the servers answer. It is slightly longer than the silence
/// after which servers are called unreachable, because timers are late.
const PROBE_LEAD: Duration = Duration::from_millis(2_100);

/// How long before its deadline a waiter looks again who holds the lock; a quarter of a wait that is shorter than four times this.
const LAST_LOOK: Duration = Duration::from_millis(200);

impl Driver {
    /// Returns the next thing that has a time. Its time may have passed.
    pub(super) fn next_timer(&self, pending: &Pending) -> Option<(Instant, Timer)> {
        let deadline = self.attempt.deadline.filter(|_| self.caller.is_waiting()).map(|when| (when, Timer::Deadline));
        let probe = pending.probe_at.map(|when| (when, Timer::Probe));
        let linger = (!self.lingered).then(|| (self.linger_at(), Timer::Linger));
        let last_look = pending.last_look_at.filter(|_| self.caller.is_waiting()).map(|when| (when, Timer::LastLook));
        let date = self.times.due.filter(|_| self.contender.holds()).map(|when| (when, Timer::Date));
        let makes_way = self.yield_at.filter(|_| self.contender.holds()).map(|when| (when, Timer::Yield));
        let age = self.attempt.ageing.map(|(when, _)| (when, Timer::Age));
        let delay = self.delays.iter().map(|(when, _)| (*when, Timer::Delay)).min_by_key(|(when, _)| *when);
        let cut_off = self.disconnect.cut_off.map(|when| (when, Timer::CutOff));
        [deadline, probe, linger, last_look, date, makes_way, age, delay, cut_off]
            .into_iter()
            .flatten()
            .min_by_key(|(when, _)| *when)
    }

    /// Returns when the attempt is old enough for the reads that a short one does without. For a waiter with a short timeout, that is
    /// when half of it is over, so that the error at its end can name the holder.
    fn linger_at(&self) -> Instant {
        let started = self.attempt.started;
        let waits_until = self.attempt.deadline.filter(|_| self.caller.is_waiting());
        let half = waits_until.map(|deadline| deadline.saturating_duration_since(started) / 2);
        started + half.map_or(LINGER, |half| half.min(LINGER))
    }

    /// Does what is due.
    pub(super) fn due(&mut self, timer: Timer, pending: &mut Pending) {
        match timer {
            Timer::Deadline => {
                let sent = pending.flight.is_some().then_some(self.sent);
                let probed = pending.probe.is_some().then_some(pending.probed_at);
                let error = self.timed_out(sent.into_iter().chain(probed).min());
                self.give_up(error);
            }
            Timer::Probe => {
                (pending.probe_at, pending.probed_at) = (None, self.session.now());
                pending.probe = self.contender.place().map(|_| self.attempt.ensemble.heartbeat());
            }
            Timer::Linger => {
                self.lingered = true;
                if let Some(place) = self.local.place() {
                    self.contender.handle(Event::PositionKnown(place));
                }
                self.contender.handle(Event::OwnWatchDue);
                if self.attempt.terms.timeout.is_some() {
                    self.contender.handle(Event::LooksDue);
                }
            }
            Timer::LastLook => {
                pending.last_look_at = None;
                self.contender.handle(Event::DeadlineNear);
            }
            Timer::Date => {
                self.times.due = None;
                self.contender.handle(Event::GrantedLate);
            }
            Timer::Yield => {
                self.yield_at = None;
                self.contender.handle(Event::YieldDue);
            }
            Timer::Age => {
                if let Some((_, class)) = self.attempt.ageing.take() {
                    self.contender.handle(Event::Ask(Ask::Reclassify(class)));
                }
            }
            Timer::Delay => {
                if let Some((_, name)) = self.delays.iter().min().cloned() {
                    self.delays.retain(|(_, delayed)| *delayed != name);
                    self.contender.handle(Event::DelayOver(name));
                }
            }
            Timer::CutOff => {
                self.disconnect.cut_off = None;
                self.report_cut_off();
            }
        }
    }

    /// Returns when to check whether the servers answer. So the error at the deadline can distinguish a lock that is
    /// held from servers that are silent.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        self.attempt.deadline?.checked_sub(PROBE_LEAD).filter(|at| *at > self.attempt.started)
    }

    /// Returns when to look again who holds the lock, for the error at the deadline. A try looks at its end.
    pub(super) fn last_look_at(&self) -> Option<Instant> {
        let deadline = self.attempt.deadline.filter(|_| !self.contender.is_once())?;
        let quarter = deadline.saturating_duration_since(self.attempt.started) / 4;
        Some(deadline - quarter.min(LAST_LOOK))
    }
}

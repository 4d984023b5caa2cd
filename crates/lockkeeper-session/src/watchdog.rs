//! Ends holds in time, whatever the rest of the library is doing.
//!
//! A clock decides whether a hold is lost, so checking a hold is always right. But a task that waits for a loss must be
//! woken, and the session's thread may be stuck. The cause may be a user's waker, a log that blocks, or a bug.
//! (Accumulo's servers worked on without their lock because the one thread that should have reported that was stuck:
//! accumulo #1086,
//! #5145.) So a second thread knows nothing but the time.
//!
//! It does not poll. It sleeps until the first of its holds would be lost without a heartbeat, and checks again. By
//! then a living session has a newer heartbeat. So the thread wakes about twice per session timeout, however many holds
//! there are. Without holds it never wakes. Nothing on it can block, not even a log.

mod alarm;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use self::alarm::Alarm;
use crate::clock::Clock;

/// A hold, as the watchdog sees it.
pub trait Expiring: Send + Sync {
    /// Returns when to check it next.
    fn due(&self) -> Duration;
    /// Marks it lost if its clock says so. Returns `None` if it is held, otherwise whether this call marked it lost.
    fn expire_if_due(&self) -> Option<bool>;
    /// Logs the loss and does what the owner chose for a loss. Writing to the log may block.
    fn report_loss(&self);
    /// The part of `report_loss` that cannot wait for a thread.
    fn report_without_blocking(&self);
}

/// The thread. Dropping this ends it.
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
}

struct Shared {
    wards: Mutex<Wards>,
    alarm: Alarm,
}

/// The watched holds, and when each must be checked.
#[derive(Default)]
struct Wards {
    by_due: BTreeSet<(Duration, u64)>,
    holds: HashMap<u64, (Duration, Weak<dyn Expiring>)>,
    next: u64,
    /// When the alarm rings.
    set: Option<Duration>,
    stopped: bool,
}

/// The registration of a watched hold; dropping it ends the watch.
pub struct Registration {
    shared: Arc<Shared>,
    id: u64,
}

impl Watchdog {
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared { wards: Mutex::default(), alarm: Alarm::new()? });
        let watched = shared.clone();
        std::thread::Builder::new().name("lockkeeper-watch".to_owned()).spawn(move || watched.run())?;
        Ok(Watchdog { shared })
    }

    /// Watches a hold: two insertions, and a system call if it is the first to be checked.
    pub(crate) fn watch(&self, hold: Arc<dyn Expiring>) -> Registration {
        let due = hold.due();
        let mut wards = self.shared.wards.lock().expect("held for a change only");
        let id = wards.next;
        wards.next += 1;
        wards.put(id, due, Arc::downgrade(&hold));
        self.shared.set_alarm(&mut wards);
        Registration { shared: self.shared.clone(), id }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let mut wards = self.shared.wards.lock().expect("held for a change only");
        wards.stopped = true;
        self.shared.alarm.set(Duration::ZERO);
    }
}

impl Registration {
    /// Makes sure that the hold is checked by `due`.
    pub fn look_by(&self, due: Duration) {
        let mut wards = self.shared.wards.lock().expect("held for a change only");
        if wards.holds.get(&self.id).is_some_and(|(known, _)| due < *known)
            && let Some((_, hold)) = wards.take(self.id)
        {
            wards.put(self.id, due, hold);
            self.shared.set_alarm(&mut wards);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.wards.lock().expect("held for a change only").take(self.id);
    }
}

impl Wards {
    fn put(&mut self, id: u64, due: Duration, hold: Weak<dyn Expiring>) {
        self.by_due.insert((due, id));
        self.holds.insert(id, (due, hold));
    }

    fn take(&mut self, id: u64) -> Option<(Duration, Weak<dyn Expiring>)> {
        let (due, hold) = self.holds.remove(&id)?;
        self.by_due.remove(&(due, id));
        Some((due, hold))
    }

    /// The holds to be checked by now. They stay registered, and are not due again unless [`Registration::look_by`] says when.
    fn due(&mut self, now: Duration) -> Vec<(u64, Weak<dyn Expiring>)> {
        let ids: Vec<_> = self.by_due.range(..=(now, u64::MAX)).map(|(_, id)| *id).collect();
        let due = ids.into_iter().filter_map(|id| {
            let (_, hold) = self.take(id)?;
            self.put(id, Duration::MAX, hold.clone());
            Some((id, hold))
        });
        due.collect()
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let due = {
                let mut wards = self.wards.lock().expect("held for a change only");
                if wards.stopped {
                    return;
                }
                wards.set = None;
                wards.due(Clock::System.now())
            };
            // Outside the mutex: this may drop the last reference to a hold, which unregisters it.
            let looked: Vec<_> = due.into_iter().map(|(id, hold)| (id, look(&hold))).collect();
            let mut lost = Vec::new();
            let mut wards = self.wards.lock().expect("held for a change only");
            for (id, found) in looked {
                let hold = wards.take(id);
                match (found, hold) {
                    // A task may have asked for a check meanwhile.
                    (WardState::Holds(due), Some((asked, hold))) => wards.put(id, due.min(asked), hold),
                    (WardState::Lost(hold), _) => lost.push(hold),
                    _ => {}
                }
            }
            if !wards.stopped {
                self.set_alarm(&mut wards);
            }
            drop(wards);
            if !lost.is_empty() {
                report(lost);
            }
            // Rings immediately if the watchdog was stopped meanwhile.
            self.alarm.wait();
        }
    }

    /// Sets the alarm for the first hold.
    fn set_alarm(&self, wards: &mut Wards) {
        if let Some((due, _)) = wards.by_due.first()
            && wards.set.is_none_or(|set| *due < set)
        {
            wards.set = Some(*due);
            self.alarm.set(*due);
        }
    }
}

/// The result of a check.
enum WardState {
    /// It is held; check it again then.
    Holds(Duration),
    /// It is lost, and the tasks that wait for that were woken just now.
    Lost(Arc<dyn Expiring>),
    /// Nothing more to do.
    Over,
}

fn look(hold: &Weak<dyn Expiring>) -> WardState {
    let Some(hold) = hold.upgrade() else { return WardState::Over };
    match hold.expire_if_due() {
        Some(true) => WardState::Lost(hold),
        Some(false) => WardState::Over,
        // At least 1 ms later, so that no mistake can make this thread spin.
        None => WardState::Holds(hold.due().max(Clock::System.now() + Duration::from_millis(1))),
    }
}

/// Reports what was lost and runs `on_lost`, on a separate thread, because a log may block.
fn report(lost: Vec<Arc<dyn Expiring>>) {
    let reported = lost.clone();
    let telling = std::thread::Builder::new()
        .name("lockkeeper-lost".to_owned())
        .spawn(move || reported.iter().for_each(|hold| hold.report_loss()));
    if telling.is_err() {
        // The thread could not be created. `OnLost::Abort` still aborts.
        lost.iter().for_each(|hold| hold.report_without_blocking());
    }
}

#[cfg(test)]
mod tests;

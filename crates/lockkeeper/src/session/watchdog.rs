//! Ends holds in time, whatever the rest of the library is doing.
//!
//! A hold is judged by a clock, so looking at a guard is always right. But who waits for a loss has to be told, and the thread
//! of the session may be stuck: in a waker of the user's, in a log that blocks, in a bug. (Accumulo's servers worked on without
//! their lock because the one thread that would have told them was stuck: accumulo #1086, #5145.) So there is a thread beside
//! it that knows nothing but the time.
//!
//! It does not poll: it sleeps until the first of its holds would be lost if nothing came, and looks again. By then a living
//! session was proved anew, so that thread wakes about twice a session timeout, however many holds there are, and not at all
//! where there are none. Nothing that could block runs on it, no log either.

mod alarm;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use self::alarm::Alarm;
use crate::clock::Clock;
use crate::hold::Hold;

/// The thread. Dropping this ends it.
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
}

struct Shared {
    wards: Mutex<Wards>,
    alarm: Alarm,
}

/// The holds under watch, and when each is to be looked at.
#[derive(Default)]
struct Wards {
    by_due: BTreeSet<(Duration, u64)>,
    holds: HashMap<u64, (Duration, Weak<Hold>)>,
    next: u64,
    /// When the alarm rings.
    set: Option<Duration>,
    stopped: bool,
}

/// A hold's place under watch; dropping it takes the hold off.
pub(crate) struct Ward {
    shared: Arc<Shared>,
    id: u64,
}

impl Watchdog {
    /// Starts the thread.
    pub(crate) fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared { wards: Mutex::default(), alarm: Alarm::new()? });
        let watched = shared.clone();
        std::thread::Builder::new().name("lockkeeper-watch".to_owned()).spawn(move || watched.run())?;
        Ok(Watchdog { shared })
    }

    /// Takes a hold under watch: two insertions, and a system call where it is the first to end.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) -> Ward {
        let due = hold.due();
        let mut wards = self.shared.wards.lock().expect("held for a change only");
        let id = wards.next;
        wards.next += 1;
        wards.put(id, due, Arc::downgrade(hold));
        self.shared.set_alarm(&mut wards);
        Ward { shared: self.shared.clone(), id }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let mut wards = self.shared.wards.lock().expect("held for a change only");
        wards.stopped = true;
        self.shared.alarm.set(Duration::ZERO);
    }
}

impl Ward {
    /// Sees to it that the hold is looked at by then.
    pub(crate) fn look_by(&self, due: Duration) {
        let mut wards = self.shared.wards.lock().expect("held for a change only");
        if wards.holds.get(&self.id).is_some_and(|(known, _)| due < *known)
            && let Some(hold) = wards.take(self.id)
        {
            wards.put(self.id, due, hold);
            self.shared.set_alarm(&mut wards);
        }
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        self.shared.wards.lock().expect("held for a change only").take(self.id);
    }
}

impl Wards {
    fn put(&mut self, id: u64, due: Duration, hold: Weak<Hold>) {
        self.by_due.insert((due, id));
        self.holds.insert(id, (due, hold));
    }

    fn take(&mut self, id: u64) -> Option<Weak<Hold>> {
        let (due, hold) = self.holds.remove(&id)?;
        self.by_due.remove(&(due, id));
        Some(hold)
    }

    /// Those to be looked at by now. They stay under watch.
    fn due(&self, now: Duration) -> Vec<(u64, Weak<Hold>)> {
        let due = self.by_due.range(..=(now, u64::MAX));
        due.map(|(_, id)| (*id, self.holds[id].1.clone())).collect()
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
            // Outside the lock: the last handle of a hold may be dropped here, and takes it off.
            let looked: Vec<_> = due.into_iter().map(|(id, hold)| (id, look(&hold))).collect();
            let mut lost = Vec::new();
            let mut wards = self.wards.lock().expect("held for a change only");
            for (id, found) in looked {
                let hold = wards.take(id);
                match (found, hold) {
                    (Found::Holds(due), Some(hold)) => wards.put(id, due, hold),
                    (Found::Lost(hold), _) => lost.push(hold),
                    _ => {}
                }
            }
            if !wards.stopped {
                self.set_alarm(&mut wards);
            }
            drop(wards);
            if !lost.is_empty() {
                tell(lost);
            }
            // Rings at once if it was stopped meanwhile.
            self.alarm.wait();
        }
    }

    /// Sees to it that the alarm rings in time for the first.
    fn set_alarm(&self, wards: &mut Wards) {
        if let Some((due, _)) = wards.by_due.first()
            && wards.set.is_none_or(|set| *due < set)
        {
            wards.set = Some(*due);
            self.alarm.set(*due);
        }
    }
}

/// What a look at a hold shows.
enum Found {
    /// It is held, and to be looked at again then.
    Holds(Duration),
    /// It is lost, and whoever waits for that was woken just now.
    Lost(Arc<Hold>),
    /// Nothing more is to be done about it.
    Over,
}

fn look(hold: &Weak<Hold>) -> Found {
    let Some(hold) = hold.upgrade() else { return Found::Over };
    match hold.lapse() {
        Some(true) => Found::Lost(hold),
        Some(false) => Found::Over,
        // Never at once again, so that no mistake of ours can make this thread spin.
        None => Found::Holds(hold.due().max(Clock::System.now() + Duration::from_millis(1))),
    }
}

/// Says what was lost and does what was asked for, on a thread of its own: a log may block.
fn tell(lost: Vec<Arc<Hold>>) {
    let told = lost.clone();
    let telling = std::thread::Builder::new()
        .name("lockkeeper-lost".to_owned())
        .spawn(move || told.iter().for_each(|hold| hold.tell()));
    if telling.is_err() {
        // No thread is to be had. Whoever wants to be stopped is stopped all the same.
        lost.iter().for_each(|hold| hold.tell_tersely());
    }
}

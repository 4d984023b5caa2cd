//! The watchdog over holds of a simple kind, in real time. A test waits for what the watchdog does, never for a moment.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const NEAR: Duration = Duration::from_millis(20);
const FAR: Duration = Duration::from_secs(3600);
/// Longer than a check takes to come on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the watchdog did with a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Check,
    Report,
}

/// A hold that is due at these times, one after the other, and lost at the last.
struct Fake {
    dues: Vec<Duration>,
    checks: AtomicUsize,
    done: Sender<(Did, Duration)>,
}

impl Expiring for Fake {
    fn due(&self) -> Duration {
        self.dues[self.checks.load(Ordering::SeqCst).min(self.dues.len() - 1)]
    }

    fn expire_if_due(&self) -> Option<bool> {
        let checks = self.checks.fetch_add(1, Ordering::SeqCst) + 1;
        self.done.send((Did::Check, now())).unwrap();
        (checks >= self.dues.len()).then_some(checks == self.dues.len())
    }

    fn report_loss(&self) {
        self.done.send((Did::Report, now())).unwrap();
    }

    fn report_without_blocking(&self) {}
}

/// What was done with a hold, and the hold itself.
struct Log {
    done: Receiver<(Did, Duration)>,
    hold: Arc<dyn Expiring>,
}

impl Log {
    /// Waits for the next event, which must not come before `due`.
    fn next(&self, due: Duration) -> Did {
        let (did, at) = self.done.recv_timeout(PATIENCE).unwrap();
        assert!(at >= due, "{did:?} {:?} early", due - at);
        did
    }

    fn is_empty(&self) -> bool {
        self.done.try_recv().is_err()
    }
}

fn now() -> Duration {
    Clock::System.now()
}

fn watch(watchdog: &Watchdog, dues: &[Duration]) -> (Registration, Log) {
    let (sender, done) = channel();
    let hold: Arc<dyn Expiring> = Arc::new(Fake { dues: dues.to_vec(), checks: AtomicUsize::new(0), done: sender });
    (watchdog.watch(hold.clone()), Log { done, hold })
}

/// Watches a hold that is due a moment from now, and waits until it is reported. What was due before was checked by then.
fn pass_a_moment(watchdog: &Watchdog) {
    let due = now() + NEAR;
    let (_ward, log) = watch(watchdog, &[due]);
    assert_eq!([log.next(due), log.next(due)], [Did::Check, Did::Report]);
}

fn count(watchdog: &Watchdog) -> (usize, usize) {
    let wards = watchdog.shared.wards.lock().unwrap();
    (wards.holds.len(), wards.by_due.len())
}

#[test]
fn a_hold_is_checked_whenever_it_is_due_and_reported_once() {
    let watchdog = Watchdog::start().unwrap();
    let (first, second) = (now() + NEAR, now() + NEAR * 5);
    let (ward, log) = watch(&watchdog, &[first, second]);
    assert_eq!(log.next(first), Did::Check);
    assert_eq!(log.next(second), Did::Check);
    assert_eq!(log.next(second), Did::Report);
    assert_eq!(count(&watchdog), (0, 0), "a lost hold is watched no longer");
    ward.look_by(now());
    pass_a_moment(&watchdog);
    assert!(log.is_empty(), "it was looked at again");
}

#[test]
fn each_of_several_holds_is_checked_in_its_time() {
    let watchdog = Watchdog::start().unwrap();
    let due = now() + NEAR;
    let (_far, far) = watch(&watchdog, &[now() + FAR]);
    let (_near, near) = watch(&watchdog, &[due]);
    let (_farther, farther) = watch(&watchdog, &[now() + FAR * 2]);
    let (_also, also) = watch(&watchdog, &[due]);
    for log in [near, also] {
        assert_eq!([log.next(due), log.next(due)], [Did::Check, Did::Report]);
    }
    assert!(far.is_empty() && farther.is_empty());
    assert_eq!(count(&watchdog), (2, 2));
}

#[test]
fn a_hold_can_be_checked_sooner_but_not_later() {
    let watchdog = Watchdog::start().unwrap();
    let due = now() + NEAR;
    let (sooner, far) = watch(&watchdog, &[now() + FAR]);
    let (later, near) = watch(&watchdog, &[due]);
    sooner.look_by(due);
    later.look_by(now() + FAR);
    for log in [far, near] {
        assert_eq!([log.next(due), log.next(due)], [Did::Check, Did::Report]);
    }
}

/// A hold that a task asks to be checked by a time while the watchdog decides when to check it next.
struct Hurried {
    hold: Fake,
    asked: OnceLock<(Registration, Duration)>,
}

impl Expiring for Hurried {
    fn due(&self) -> Duration {
        let due = self.hold.due();
        if let Some((ward, by)) = self.asked.get() {
            ward.look_by(*by);
        }
        due
    }

    fn expire_if_due(&self) -> Option<bool> {
        self.hold.expire_if_due()
    }

    fn report_loss(&self) {
        self.hold.report_loss();
    }

    fn report_without_blocking(&self) {}
}

#[test]
fn a_hold_can_be_checked_sooner_than_the_check_under_way_decides() {
    let watchdog = Watchdog::start().unwrap();
    let (first, second) = (now() + NEAR * 5, now() + NEAR * 10);
    let (sender, done) = channel();
    let hold = Fake { dues: vec![first, now() + FAR], checks: AtomicUsize::new(0), done: sender };
    let hold = Arc::new(Hurried { hold, asked: OnceLock::new() });
    assert!(hold.asked.set((watchdog.watch(hold.clone()), second)).is_ok());
    let log = Log { done, hold };
    assert_eq!(log.next(first), Did::Check);
    assert_eq!([log.next(second), log.next(second)], [Did::Check, Did::Report]);
}

#[test]
fn a_hold_that_is_over_is_not_checked() {
    let watchdog = Watchdog::start().unwrap();
    let due = now() + NEAR;
    let ((ended, log), (_dropped, over)) = (watch(&watchdog, &[due]), watch(&watchdog, &[due]));
    let Log { done, hold } = over;
    drop((ended, hold));
    pass_a_moment(&watchdog);
    assert!(log.is_empty() && done.try_recv().is_err());
    assert_eq!(count(&watchdog), (0, 0));
    drop(log.hold);
}

/// Another thread has found and reported its loss.
#[test]
fn a_hold_that_was_lost_before_is_not_reported_again() {
    let watchdog = Watchdog::start().unwrap();
    let due = now() + NEAR;
    let (_ward, log) = watch(&watchdog, &[due]);
    assert_eq!(log.hold.expire_if_due(), Some(true));
    assert_eq!([log.next(Duration::ZERO), log.next(due)], [Did::Check, Did::Check]);
    pass_a_moment(&watchdog);
    assert!(log.is_empty());
}

/// No mistake may make the thread spin.
#[test]
fn a_hold_that_is_always_due_is_checked_a_millisecond_later() {
    let (_, log) = watch(&Watchdog::start().unwrap(), &[now() + FAR, Duration::ZERO, Duration::ZERO]);
    let before = now();
    let WardState::Holds(next) = look(&Arc::downgrade(&log.hold)) else { panic!("it is held") };
    assert!(next >= before + Duration::from_millis(1) && next <= now() + Duration::from_millis(1));
}

#[test]
fn the_thread_ends_with_the_watchdog() {
    let watchdog = Watchdog::start().unwrap();
    let (ward, log) = watch(&watchdog, &[now() + FAR]);
    let shared = Arc::downgrade(&watchdog.shared);
    drop(watchdog);
    drop(ward);
    let started = now();
    while shared.strong_count() > 0 {
        assert!(now() < started + PATIENCE, "the thread still runs");
        std::thread::yield_now();
    }
    assert!(log.is_empty());
}

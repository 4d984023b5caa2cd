//! The history of holds, on the embedded server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::error::AdminError;
use lockkeeper::{LockPath, Lockkeeper, Loss};
use lockkeeper_history::{
    Ending, Entry, History, HoldEnd, NewRefusal, PastHold, ROOT, Recorder, Recording, Refusal, RefusalReason, refused,
};
use lockkeeper_server::{OpCode as Op, Server, Stats};
use lockkeeper_session::ensemble::{Ensemble, NodeKind};

const LOCK: &str = "/locks/nightly";
const RECORDS: &str = "/lockkeeper/history/locks%2Fnightly";

/// The longest wait for an event that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on a runtime like that of a program.
fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("the test hangs") });
}

async fn server() -> (Server, Lockkeeper) {
    let server = Server::ephemeral().await.unwrap();
    let keeper = keeper(&server).await;
    (server, keeper)
}

/// A handle is a session, as of a process.
async fn keeper(server: &Server) -> Lockkeeper {
    Lockkeeper::connect(&server.connect_string()).await.unwrap()
}

/// Runs operations on the session of a handle.
async fn on_session<F>(keeper: &Lockkeeper, operations: impl FnOnce(Arc<dyn Ensemble>) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let run = async move |ensemble| {
        operations(ensemble).await;
        Ok::<_, AdminError>(())
    };
    keeper.sessions().ask(run).await.unwrap();
}

async fn entries(keeper: &Lockkeeper) -> Vec<Entry> {
    History::new(keeper).of(LOCK).await.unwrap()
}

async fn holds(keeper: &Lockkeeper) -> Vec<PastHold> {
    entries(keeper).await.iter().filter_map(Entry::hold).cloned().collect()
}

async fn refusals(keeper: &Lockkeeper) -> Vec<Refusal> {
    let refusal = |entry| if let Entry::Refused(refusal) = entry { Some(refusal) } else { None };
    entries(keeper).await.into_iter().filter_map(refusal).collect()
}

/// One recorded hold from its grant to its record.
async fn hold_once(keeper: &Lockkeeper) {
    let guard = keeper.mutex(LOCK).acquire().await.unwrap();
    let recording = Recorder::new(keeper).message("nightly index").begin(&guard);
    guard.release().await.unwrap();
    recording.finish().await.unwrap();
}

/// Returns the requests between two moments, without pings.
fn asked(before: &Stats, after: &Stats) -> BTreeMap<Op, u64> {
    let grown = after.requests.iter().map(|(op, count)| (*op, count - before.requests(*op)));
    grown.filter(|(op, count)| *count > 0 && *op != Op::Ping).collect()
}

#[test]
fn a_hold_is_recorded_with_its_owner_its_times_and_its_end() {
    block_on(async {
        let (_server, keeper) = server().await;
        let guard = keeper.mutex(LOCK).acquire().await.unwrap();
        let token = guard.token();
        let recording = Recorder::new(&keeper).message("nightly index").begin(&guard);
        recording.tell(Ending::default().with_status(3));
        guard.release().await.unwrap();
        recording.finish().await.unwrap();
        let holds = holds(&keeper).await;
        let [hold] = &holds[..] else { panic!("{holds:?}") };
        assert_eq!((hold.end, hold.status, hold.token), (HoldEnd::Released, Some(3), Some(token)));
        assert_eq!(hold.message.as_deref(), Some("nightly index"));
        assert_eq!(hold.owner.as_ref().map(|owner| owner.pid), Some(std::process::id()));
        assert!(hold.queued.unwrap() <= hold.granted && hold.granted <= hold.ended);
    });
}

/// The record travels in the transaction of the release. What it needs is two reads, in the background.
#[test]
fn a_release_with_a_record_is_one_request() {
    block_on(async {
        let (server, keeper) = server().await;
        for _ in 0..16 {
            hold_once(&keeper).await;
        }
        let before = server.stats();
        let guard = keeper.mutex(LOCK).acquire().await.unwrap();
        let granted = server.stats();
        let recording = Recorder::new(&keeper).begin(&guard);
        while server.stats().requests(Op::GetData) < granted.requests(Op::GetData) + 2 {
            tokio::task::yield_now().await;
        }
        // The answer to that read comes before the answer to this one.
        guard.verify().await.unwrap();
        let held = server.stats();
        guard.release().await.unwrap();
        recording.finish().await.unwrap();
        assert_eq!(asked(&held, &server.stats()), BTreeMap::from([(Op::Multi, 1)]));
        let writes = asked(&before, &held);
        assert_eq!(writes[&Op::Create2], 1, "only the contender: {writes:?}");
    });
}

#[test]
fn a_dropped_guard_leaves_a_record_too() {
    block_on(async {
        let (_server, keeper) = server().await;
        let guard = keeper.mutex(LOCK).acquire().await.unwrap();
        let recording = Recorder::new(&keeper).begin(&guard);
        drop(guard);
        recording.finish().await.unwrap();
        assert_eq!(holds(&keeper).await.len(), 1);
    });
}

/// The servers delete the node of a lock that nobody uses. Then its next contender has the number 0 again.
#[test]
fn sixteen_holds_are_kept_also_of_a_lock_that_is_created_again_for_each() {
    block_on(async {
        let (_server, keeper) = server().await;
        for _ in 0..20 {
            hold_once(&keeper).await;
            on_session(&keeper, |ensemble| async move { ensemble.delete(LOCK, None).await.unwrap() }).await;
        }
        let holds = holds(&keeper).await;
        assert_eq!(holds.len(), 16);
        assert!(holds.is_sorted_by_key(|hold| hold.token), "{holds:?}");
        let habits = History::new(&keeper).habits(&[LOCK.to_owned(), "/locks/b".to_owned()], None).await.unwrap();
        assert_eq!(habits.len(), 1, "the other has no records");
        assert_eq!(habits[LOCK].durations.len(), 16);
    });
}

#[test]
fn holders_of_one_moment_have_records_of_their_own() {
    block_on(async {
        let (_server, keeper) = server().await;
        let mut held = Vec::new();
        for _ in 0..5 {
            let permit = keeper.semaphore(LOCK, 5).acquire().await.unwrap();
            held.push((Recorder::new(&keeper).begin(&permit), permit));
        }
        for (recording, permit) in held {
            permit.release().await.unwrap();
            recording.finish().await.unwrap();
        }
        let holds = holds(&keeper).await;
        assert_eq!(holds.len(), 5, "{holds:?}");
        assert!(holds.iter().all(|hold| hold.shared && hold.token.is_none()));
    });
}

#[test]
fn many_processes_that_lose_holds_at_one_moment_all_write_their_records() {
    block_on(async {
        let (server, _) = server().await;
        let mut recordings = Vec::new();
        for _ in 0..32 {
            let keeper = keeper(&server).await;
            let guard = keeper.mutex(LOCK).acquire().await.unwrap();
            recordings.push(Recorder::new(&keeper).begin(&guard));
            server.faults().expire(keeper.session_id().unwrap().0).await.unwrap();
            guard.lost().await;
            keeper.check().await.unwrap();
        }
        for written in join_all(recordings.into_iter().map(Recording::finish)).await {
            written.unwrap();
        }
    });
}

#[test]
fn a_lost_hold_is_recorded_by_its_loser_with_what_it_knows() {
    block_on(async {
        let (server, keeper) = server().await;
        let guard = keeper.mutex(LOCK).acquire().await.unwrap();
        let recording = Recorder::new(&keeper).begin(&guard);
        server.faults().expire(keeper.session_id().unwrap().0).await.unwrap();
        assert_eq!(guard.lost().await, Loss::SessionExpired);
        recording.tell(Ending::default().with_reason("it was asleep").paused());
        recording.finish().await.unwrap();
        let holds = holds(&keeper).await;
        let [hold] = &holds[..] else { panic!("{holds:?}") };
        assert_eq!((hold.end, hold.loss, hold.paused), (HoldEnd::Lost, Some(Loss::SessionExpired), true));
        assert_eq!(hold.reason.as_deref(), Some("it was asleep"));
    });
}

/// It comes back while the next holder holds, whose record is already on its way.
#[test]
fn a_late_record_takes_no_other_holds_place() {
    block_on(async {
        let (server, loser) = server().await;
        let keeper = keeper(&server).await;
        for kept in 1..=40 {
            let lost = loser.mutex(LOCK).acquire().await.unwrap();
            let late = Recorder::new(&loser).begin(&lost);
            server.faults().expire(loser.session_id().unwrap().0).await.unwrap();
            lost.lost().await;
            let next = keeper.mutex(LOCK).acquire().await.unwrap();
            let before = server.stats();
            let recording = Recorder::new(&keeper).begin(&next);
            while server.stats().requests(Op::GetData) < before.requests(Op::GetData) + 2 {
                tokio::task::yield_now().await;
            }
            next.verify().await.unwrap();
            late.finish().await.unwrap();
            next.release().await.unwrap();
            recording.finish().await.unwrap();
            let holds = holds(&keeper).await;
            let [.., one, other] = &holds[..] else { panic!("{holds:?}") };
            assert_eq!((one.end, other.end), (HoldEnd::Lost, HoldEnd::Released), "{kept}: {holds:?}");
            assert!(holds.len() >= (2 * kept).min(16), "{kept}: {}", holds.len());
        }
    });
}

#[test]
fn a_release_after_a_request_names_who_asked() {
    block_on(async {
        let (server, keeper) = server().await;
        let guard = keeper.mutex(LOCK).acquire().await.unwrap();
        let recording = Recorder::new(&keeper).begin(&guard);
        // A hold reads a request once it is 100 ms old.
        let asker = self::keeper(&server).await;
        asker.admin().revoke(LOCK, Some("rebalance")).await.unwrap();
        guard.revocation().await;
        guard.release().await.unwrap();
        recording.finish().await.unwrap();
        let entries = entries(&keeper).await;
        let [Entry::Hold(hold)] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!(hold.end, HoldEnd::Revoked);
        assert!(hold.reason.as_ref().unwrap().ends_with(": rebalance"), "{hold:?}");
    });
}

#[test]
fn a_request_that_a_holder_refuses_is_in_the_history_too() {
    block_on(async {
        let (server, keeper) = server().await;
        let guard = keeper.mutex(LOCK).acquire().await.unwrap();
        let recording = Recorder::new(&keeper).begin(&guard);
        let asker = self::keeper(&server).await;
        let asked = asker.admin().revoke(LOCK, Some("rebalance")).await.unwrap();
        guard.revocation().await;
        guard.refuse_revocation("in the middle of a write").unwrap();
        let answer = asked[0].answer(PATIENCE).await.unwrap();
        assert_eq!(answer, lockkeeper::admin::RevokeAnswer::Refused("in the middle of a write".to_owned()));
        guard.release().await.unwrap();
        recording.finish().await.unwrap();
        let entries = entries(&keeper).await;
        let [Entry::Asked(asked), Entry::Hold(hold)] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((asked.reason.as_deref(), hold.end), (Some("rebalance"), HoldEnd::Released));
        assert_eq!((asked.token, &asked.by), (hold.token, asker.owner()));
    });
}

#[test]
fn a_broken_hold_names_who_broke_it_whether_or_not_its_holder_wrote() {
    block_on(async {
        let (server, keeper) = server().await;
        for records in [true, false] {
            let guard = keeper.mutex(LOCK).acquire().await.unwrap();
            let recording = records.then(|| Recorder::new(&keeper).begin(&guard));
            let admin = self::keeper(&server).await;
            admin.admin().break_lock(LOCK, "its host burns").await.unwrap();
            assert_eq!(guard.lost().await, Loss::Removed);
            if let Some(recording) = recording {
                recording.finish().await.unwrap();
            }
        }
        let entries = entries(&keeper).await;
        let [Entry::Hold(hold), Entry::Broken(broken)] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!(hold.end, HoldEnd::Broken);
        assert!(hold.reason.as_ref().unwrap().ends_with(": its host burns"), "{hold:?}");
        assert_eq!(broken.reason, "its host burns");
    });
}

/// The waiter has seen the holder, whose session ends without a word.
#[test]
fn a_hold_without_a_record_is_known_from_the_next_holder() {
    block_on(async {
        let (server, silent) = server().await;
        let keeper = keeper(&server).await;
        let guard = silent.mutex(LOCK).acquire().await.unwrap();
        let before = server.stats();
        let waiter = tokio::spawn(keeper.mutex(LOCK).acquire().timeout(PATIENCE).into_future());
        // A waiter of 100 ms looks who holds the lock, beside other reads. Then nothing more is asked.
        let mut asked = before.requests(Op::GetData);
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let now = server.stats().requests(Op::GetData);
            if now >= before.requests(Op::GetData) + 4 && now == asked {
                break;
            }
            asked = now;
        }
        server.faults().expire(silent.session_id().unwrap().0).await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        let recording = Recorder::new(&keeper).begin(&next);
        next.release().await.unwrap();
        recording.finish().await.unwrap();
        drop(guard);
        let holds = holds(&keeper).await;
        let [lost, next] = &holds[..] else { panic!("{holds:?}") };
        assert_eq!((lost.end, next.end), (HoldEnd::Unrecorded, HoldEnd::Released));
        assert_eq!(lost.ended, next.granted);
    });
}

#[test]
fn what_is_no_record_is_left_out() {
    block_on(async {
        let (_server, keeper) = server().await;
        hold_once(&keeper).await;
        on_session(&keeper, |ensemble| async move {
            for (name, data) in [("13", &b"\xff\x00"[..]), ("14", b"{}"), ("x0", b"[]"), ("readme", b"hello")] {
                let path = format!("{RECORDS}/{name}");
                ensemble.create(&path, data.to_vec(), NodeKind::Persistent).await.unwrap();
            }
        })
        .await;
        assert_eq!(entries(&keeper).await.len(), 1);
        hold_once(&keeper).await;
        assert_eq!(entries(&keeper).await.len(), 2);
    });
}

#[test]
fn who_follows_a_history_sees_the_next_hold_and_the_next_refusal() {
    block_on(async {
        let (_server, keeper) = server().await;
        let mut follow = History::new(&keeper).follow(LOCK);
        assert!(follow.next().await.unwrap().is_empty());
        for turn in 1..=3 {
            hold_once(&keeper).await;
            let holds = |entries: &[Entry]| entries.iter().filter_map(Entry::hold).count();
            while holds(&follow.next().await.unwrap()) < turn {}
            let refusal = NewRefusal::new(RefusalReason::Withdrawn, Duration::ZERO);
            refused(&keeper, &LockPath::parse(LOCK).unwrap(), refusal).await.unwrap();
            let count = |entries: &[Entry]| {
                entries
                    .iter()
                    .find_map(|entry| if let Entry::Refused(refusal) = entry { Some(refusal.count) } else { None })
            };
            while count(&follow.next().await.unwrap()) != u32::try_from(turn).ok() {}
        }
    });
}

#[test]
fn refused_requests_of_a_machine_are_counted() {
    block_on(async {
        let (_server, keeper) = server().await;
        let path = LockPath::parse(LOCK).unwrap();
        for _ in 0..6 {
            let mut refusal = NewRefusal::new(RefusalReason::Taken, Duration::ZERO);
            refusal.holder = Some("root@db9 (pid 23896)".to_owned());
            refused(&keeper, &path, refusal).await.unwrap();
        }
        let gave_up = NewRefusal::new(RefusalReason::GaveUp, Duration::from_secs(600));
        refused(&keeper, &path, gave_up).await.unwrap();
        let refusals = refusals(&keeper).await;
        let [taken, gave_up] = &refusals[..] else { panic!("{refusals:?}") };
        assert_eq!((taken.count, taken.reason), (6, RefusalReason::Taken));
        assert_eq!(taken.holder.as_deref(), Some("root@db9 (pid 23896)"));
        assert_eq!(gave_up.asked() + Duration::from_secs(600), gave_up.last);
    });
}

/// A node that can have no children, as if this client had no right to create records.
#[test]
fn a_release_does_not_depend_on_its_record() {
    block_on(async {
        let (_server, keeper) = server().await;
        on_session(&keeper, |ensemble| async move {
            ensemble.create("/lockkeeper", Vec::new(), NodeKind::Shared).await.unwrap();
            ensemble.create(ROOT, Vec::new(), NodeKind::Ephemeral).await.unwrap();
        })
        .await;
        let guard = keeper.mutex(LOCK).acquire().await.unwrap();
        let recording = Recorder::new(&keeper).begin(&guard);
        guard.release().await.unwrap();
        assert!(recording.finish().await.is_err());
    });
}

#[test]
fn the_locks_that_were_not_held_for_the_longest_time_are_forgotten_first() {
    async fn names(keeper: &Lockkeeper) -> Vec<String> {
        let list = |ensemble: Arc<dyn Ensemble>| async move {
            ensemble.list(ROOT).await.map_err(|fault| lockkeeper::error::refused(ROOT, fault))
        };
        keeper.sessions().ask(list).await.unwrap().names
    }
    block_on(async {
        let (_server, keeper) = server().await;
        hold_once(&keeper).await;
        on_session(&keeper, |ensemble| async move {
            let path = |number| format!("{ROOT}/locks%2F{number}");
            let made = (0..1023).map(|number| ensemble.create(&path(number), Vec::new(), NodeKind::Persistent));
            join_all(made).await.into_iter().for_each(|made| drop(made.unwrap()));
        })
        .await;
        hold_once(&keeper).await;
        assert_eq!(names(&keeper).await.len(), 1024);
        let guard = keeper.mutex("/locks/one-more").acquire().await.unwrap();
        let recording = Recorder::new(&keeper).begin(&guard);
        guard.release().await.unwrap();
        recording.finish().await.unwrap();
        let left = names(&keeper).await;
        assert_eq!(left.len(), 896);
        for (name, is_left) in [("locks%2Fnightly", true), ("locks%2Fone-more", true), ("locks%2F0", false)] {
            assert_eq!(left.contains(&name.to_owned()), is_left, "{name}");
        }
    });
}

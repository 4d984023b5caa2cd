//! Known failures of other lock libraries with one kind of lock, excluded for every kind in Lockkeeper.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::guard::{Permit, UpgradeableGuard};
use lockkeeper::{DistributedLock, Guard, Holding, Lockkeeper, NodeFormat, WriteGuard};
use lockkeeper_contentserv::MonitorLock;
use lockkeeper_election::{Candidate, Election};
use lockkeeper_helix::HelixLock;
use lockkeeper_jobs::{Job, JobError, Run, RunEnd};
use lockkeeper_letters::retry::Retrying;
use lockkeeper_server::Server;
use lockkeeper_testkit::is_deep;
use lockkeeper_testkit::proxy::OpCode;

use crate::support::{Kind, STEADY, World, block_on, config, eventually, for_every_kind, for_every_kind_embedded};

for_every_kind!(case_24_no_wake_up_is_lost_between_the_watch_and_the_wait);

for_every_kind_embedded!(case_22_waits_of_any_kind_that_timed_out_leave_no_watches);

/// The server has set the watch, and the watched node is deleted before the waiter knows of the watch: the reply and the event
/// arrive together.
async fn case_24_no_wake_up_is_lost_between_the_watch_and_the_wait(world: &World) {
    let (holder, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for _ in 0..3 {
        let guard = world.rival(&holder).acquire().await.unwrap();
        // A semaphore watches with its second listing.
        let watch = match world.kind {
            Kind::Permits => proxy.on_any(OpCode::LISTS).path(world.lock()).nth(2),
            _ => proxy.on(OpCode::GetData).path(world.lock()),
        };
        let reply = watch.hold_reply();
        let waiter = world.enqueue(world.subject(&keeper).acquire()).await;
        reply.caught().await;
        guard.release().await.unwrap();
        assert!(waiter.waits());
        reply.release();
        waiter.granted().await.release().await.unwrap();
    }
}

/// Any number of waiters behind one another may time out.
async fn case_22_waits_of_any_kind_that_timed_out_leave_no_watches(world: &World) {
    let (holder, keeper) = (world.keeper().await, world.keeper().await);
    let guard = world.rival(&holder).acquire().await.unwrap();
    eventually("the holder watches its own nodes, and both sessions watch the epoch", async || {
        world.embedded().stats().watches == 3 + u64::from(world.kind.has_holder_marker())
    })
    .await;
    let before = world.embedded().stats().watches;
    for _ in 0..3 {
        let waits = (0..30).map(|_| world.subject(&keeper).acquire().timeout(Duration::from_millis(50)));
        for waited in futures_util::future::join_all(waits.map(IntoFuture::into_future)).await {
            // On a busy machine, the create may have no answer by then.
            let is_over = |error| matches!(error, AcquireError::Timeout { .. } | AcquireError::Session(_));
            assert!(waited.is_err_and(is_over));
        }
    }
    world.queued(1).await;
    eventually("no watch of a wait that timed out", async || world.embedded().stats().watches <= before).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// The nodes of locks are deleted, too, also those of monitor objects that are containers by choice: after 10 000 paths the server has
/// as many nodes as before.
#[test]
fn case_21_thousands_of_locks_used_once_leave_no_nodes() {
    let locks = if is_deep() { 10_000 } else { 1_000 };
    block_on(async {
        let soon = Duration::from_millis(500);
        let server = Server::start(config().with_container_check(soon).with_container_unused(soon)).await.unwrap();
        let before = server.stats().nodes;
        let next = Arc::new(AtomicUsize::new(0));
        let (mut keepers, mut tasks) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let builder = Lockkeeper::builder().session_timeout(STEADY);
            let keeper = builder.connect(&server.connect_string()).await.unwrap();
            for _ in 0..32 {
                let (keeper, next) = (keeper.clone(), next.clone());
                tasks.push(crate::support::spawn(async move {
                    loop {
                        let number = next.fetch_add(1, SeqCst);
                        if number >= locks {
                            return;
                        }
                        let path = format!("/once/{number}");
                        let kinds = [Kind::Native, Kind::Recipe, Kind::Read, Kind::Permits];
                        match kinds.get(number % 5) {
                            Some(kind) => kind.lock(&keeper, &path).acquire().await.unwrap().release().await.unwrap(),
                            None => {
                                let lock = keeper.priority_lock(&path).container(true);
                                lock.acquire().await.unwrap().release().await.unwrap();
                            }
                        }
                    }
                }));
            }
            keepers.push(keeper);
        }
        for task in tasks {
            task.await.unwrap();
        }
        eventually("as many nodes as before", async || server.stats().nodes == before).await;
        for keeper in keepers {
            keeper.close().await;
        }
    });
}

/// `Is<T>::CLONE` is true for types that implement `Clone`.
struct Is<T>(std::marker::PhantomData<T>);

trait Otherwise {
    const CLONE: bool = false;
}

impl<T> Otherwise for Is<T> {}

impl<T: Clone> Is<T> {
    const CLONE: bool = true;
}

/// A hold has one guard: without a guard there is no access, and releasing consumes it. Examples that must not compile, at the
/// guards themselves, show that a guard cannot be made without acquiring.
#[test]
fn case_30_no_guard_can_be_copied() {
    const { assert!(Is::<String>::CLONE, "the check must see that String is Clone") };
    const { assert!(!Is::<Holding>::CLONE && !Is::<Guard>::CLONE && !Is::<WriteGuard>::CLONE) };
    const { assert!(!Is::<UpgradeableGuard>::CLONE && !Is::<Permit>::CLONE) };
}

/// A guard can move to any thread, so it never has to stay behind on one.
#[test]
fn case_51_every_guard_can_move_to_any_thread() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<Holding>();
    anywhere::<Guard>();
    anywhere::<WriteGuard>();
    anywhere::<UpgradeableGuard>();
    anywhere::<Permit>();
}

/// Each of these lines looks like a call that does something. That this compiles shows that the compiler warns of each.
#[test]
#[deny(unfulfilled_lint_expectations)]
fn a_dropped_option_or_outcome_is_reported_by_the_compiler() {
    macro_rules! warns {
        ($($call:expr;)*) => {$(
            #[expect(unused_must_use, reason = "the claim of this test")]
            {
                $call;
            }
        )*};
    }
    async fn outcomes(job: Job, run: Run) -> Result<(), JobError> {
        warns! {
            job.run(async |_run| Ok::<_, std::io::Error>(())).await?;
            run.finish(RunEnd::succeeded()).await;
        }
        Ok(())
    }
    fn options(keeper: &Lockkeeper, lock: HelixLock, candidate: Candidate) {
        warns! {
            keeper.mutex("/locks/a").node_format(NodeFormat::Kazoo);
            keeper.mutex("/locks/a").keep();
            keeper.rwlock("/locks/a").read();
            keeper.semaphore("/locks/a", 3);
            keeper.priority_lock("/locks/a").background();
            DistributedLock::new(keeper, "/locks", "a").node_format(NodeFormat::Kazoo);
            keeper.admin().follow("/locks/a").or_absent();
            lock.priority(1);
            candidate.with(|request| request.message("x"));
            Election::new(keeper, "/elections/a").node_format(NodeFormat::Kazoo);
            Job::new(keeper, "/jobs/a").slot("1");
            RunEnd::failed("x").with_status(1);
            Retrying::new(keeper, 3).delay(Duration::ZERO);
            MonitorLock::new("a", keeper, "a").background();
        }
    }
    _ = (outcomes, options);
}

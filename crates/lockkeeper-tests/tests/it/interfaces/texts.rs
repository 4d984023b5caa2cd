//! What handles and guards say of themselves in a log.

use std::fmt::Debug;

use lockkeeper::Loss;
use lockkeeper::guard::{HoldState, OnLost};
use lockkeeper_helix::HelixLock;
use lockkeeper_jobs::JobsAdmin;

use crate::support::{STEADY, World, on_the_embedded_server_for};

on_the_embedded_server_for!(
    [native Native]
    handles_name_their_lock_and_guards_their_node,
);

#[track_caller]
fn says(what: impl Debug, words: &[&str]) {
    let text = format!("{what:?}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

async fn handles_name_their_lock_and_guards_their_node(world: &World) {
    let keeper = world.keeper().await;
    let admin = keeper.admin();
    let path = world.lock();
    says(&keeper, &["Lockkeeper", keeper.owner().host.as_str()]);
    says(admin.follow(&path), &["Follow", &path]);
    says(JobsAdmin::new(&keeper).follow(&path), &["FollowJobs", &path]);

    let guard = keeper.mutex(&path).acquire().await.unwrap();
    says(&guard, &[&guard.node(), "Held"]);
    let path = world.path("several");
    let several = keeper.multi_lock([keeper.mutex(&path).acquire()]).await.unwrap();
    says(&several, &[&several.holdings()[0].node(), "Held"]);

    let kept = keeper.mutex(world.path("kept")).keep();
    says(&kept, &["Mutex", "Keep", "is_kept: false"]);
    let used = kept.acquire().await.unwrap();
    says(&used, &["Guard", &used.node()]);

    let path = world.path("read");
    let reads = keeper.rwlock(&path).read().share();
    says(&reads, &["Access", "Share", &path, "is_kept: false"]);
    says(
        keeper.mutex(&path).acquire().requeue(false),
        &[&path, "Requeue { again: false", keeper.owner().host.as_str()],
    );

    says(OnLost::Nothing, &["Nothing"]);
    says(OnLost::Abort, &["Abort"]);
    says(OnLost::call(|_| ()), &["Call"]);

    let path = world.path("leased");
    let lease = HelixLock::new(&keeper, path.as_str(), STEADY);
    says(&lease, &["HelixLock", &path]);
    says(lease.acquire(), &["AcquireLease"]);
    let held = lease.acquire().await.unwrap();
    says(&held, &["HelixGuard", &path, "Held", lease.id()]);
    assert!(!format!("{held:?}").contains("Semaphore"), "it shows how its channels work: {held:?}");
}

#[test]
fn the_state_of_a_hold_is_a_text() {
    let states = [HoldState::Held, HoldState::Suspected, HoldState::Lost(Loss::SessionExpired)];
    assert_eq!(states.map(|state| state.to_string()), ["held", "suspected", "lost: the session expired"]);
}

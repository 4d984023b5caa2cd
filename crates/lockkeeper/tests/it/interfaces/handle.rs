//! The handle itself: how it is asked, and what may be passed to it.

use std::time::Duration;

use lockkeeper::{Error, Guard, Holding, LockPath, Lockkeeper, UpgradeableGuard, WriteGuard};

use super::on_every_server;
use crate::support::{STEADY, World};

on_every_server!(
    a_path_may_be_given_in_every_form,
    a_check_proves_the_session_and_names_it,
    a_check_says_why_no_server_answers,
    a_guard_converts_to_a_weaker_one_and_still_holds,
);

/// Every kind of lock, and every question, takes a path as text or as a checked path. A bad one is an error of the call.
async fn a_path_may_be_given_in_every_form(world: &World) {
    let keeper = world.keeper().await;
    let text = world.lock();
    let path = LockPath::parse(&text).unwrap();
    keeper.mutex(text.as_str()).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(&text).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(text.clone()).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(&path).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(path.clone()).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(keeper.admin().show(&path).await.unwrap().path, text);
    let lease = Duration::from_secs(5);
    let leased = LockPath::parse(&world.path("leased")).unwrap();
    keeper.helix_lock(&leased, lease).acquire().await.unwrap().release().await.unwrap();
    keeper.helix_lock(leased, lease).acquire().await.unwrap().release().await.unwrap();

    let bad = String::from("no/slash");
    let refused = |result: Result<(), Error>| assert!(matches!(result, Err(Error::InvalidPath(_))), "{result:?}");
    refused(keeper.mutex(&bad).acquire().await.map(drop));
    refused(keeper.rwlock(bad.clone()).read().acquire().await.map(drop));
    refused(keeper.semaphore(&bad, 2).acquire().await.map(drop));
    refused(keeper.priority_lock(&bad).background().acquire().await.map(drop));
    refused(keeper.distributed_lock(&bad, "a").lock().await);
    refused(keeper.helix_lock(&bad, lease).acquire().await.map(drop));
    refused(keeper.multi_lock([keeper.mutex(&bad).acquire()]).await.map(drop));
}

/// The id is that of the session which holds the locks.
async fn a_check_proves_the_session_and_names_it(world: &World) {
    let keeper = world.keeper().await;
    let guard = world.mutex(&keeper).acquire().await.unwrap();
    let shown = keeper.admin().show(world.lock()).await.unwrap();
    let session = keeper.check().await.unwrap();
    assert_eq!((session, Some(session)), (shown.holders[0].session, keeper.session_id()));
    guard.release().await.unwrap();
    keeper.close().await;
    assert!(matches!(keeper.check().await, Err(Error::Closed)));
    assert_eq!(keeper.session_id(), None);
}

async fn a_check_says_why_no_server_answers(world: &World) {
    let proxy = world.proxy().await;
    let patience = Duration::from_millis(500);
    let builder = Lockkeeper::builder().connect_timeout(patience).session_timeout(STEADY);
    let keeper = builder.connect(&proxy.connect_string()).await.unwrap();
    world.keep_open(&keeper);
    proxy.black_hole();
    match keeper.check().await {
        Err(Error::Unreachable { waited, .. }) => assert!(waited >= patience, "{waited:?}"),
        other => panic!("a silent server answered: {other:?}"),
    }
    proxy.heal();
    keeper.check().await.unwrap();
}

async fn a_guard_converts_to_a_weaker_one_and_still_holds(world: &World) {
    let keeper = world.keeper().await;
    let lock = keeper.rwlock(world.lock());
    let writer: WriteGuard = lock.write().acquire().await.unwrap();
    let token = writer.token();
    let guard = Guard::from(writer);
    assert!(guard.token() == token && i64::from(token) == token.get());
    assert!(matches!(lock.read().try_acquire().await, Err(Error::Held { .. })), "it still writes alone");
    Holding::from(guard).release().await.unwrap();
    let reader: UpgradeableGuard = lock.upgradeable().acquire().await.unwrap();
    let guard = Guard::from(reader);
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let permit = keeper.semaphore(world.path("permits"), 1).acquire().await.unwrap();
    assert_eq!(Holding::from(permit).fencing_token(), None);
    let leased = keeper.helix_lock(world.path("leased"), Duration::from_secs(5)).acquire().await.unwrap();
    let token = leased.token();
    assert_eq!(Holding::from(Guard::from(leased)).fencing_token(), Some(token));
}

//! Access lists of locks, and the creation of lock paths.

use lockkeeper::error::{AcquireError, AdminError, ConnectError, Misuse, SessionError};
use lockkeeper::{LockAcl, Lockkeeper};
use lockkeeper_testkit::proxy::OpCode;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use super::on_every_server;
use crate::support::{STEADY, World};

on_every_server!(
    nodes_are_open_to_everyone_by_default,
    a_private_lock_needs_the_credential,
    a_node_that_a_transaction_creates_is_private_too,
    a_queue_that_may_not_be_read_is_named_and_left,
    a_visible_lock_can_be_shown_without_the_credential,
    a_list_gives_each_client_what_its_letters_say,
    an_access_list_without_a_credential_is_refused_before_anything_is_sent,
    a_missing_path_is_created_or_reported,
);

async fn keeper(world: &World, user: &str, acl: LockAcl) -> Lockkeeper {
    let builder = Lockkeeper::builder().session_timeout(STEADY).credential("digest", format!("{user}:secret")).acl(acl);
    let keeper = builder.connect(&world.servers()).await.unwrap();
    world.keep_open(&keeper);
    keeper
}

/// A plain client with the credential of `us`, for what the observer may not touch.
async fn us(world: &World) -> Client {
    Client::connector().with_auth("digest", b"us:secret").connect(&world.servers()).await.unwrap()
}

/// N-11, D-24: the defaults work on a fresh server without setup.
async fn nodes_are_open_to_everyone_by_default(world: &World) {
    let guard = world.keeper().await.mutex(world.lock()).acquire().await.unwrap();
    for path in [world.lock(), guard.node()] {
        let (acl, _) = world.observer.get_acl(&path).await.unwrap();
        assert_eq!(acl, *Acls::anyone_all(), "{path}");
    }
}

/// N-11: the access list is an option.
async fn a_private_lock_needs_the_credential(world: &World) {
    let (mine, ours) = (keeper(world, "us", LockAcl::Private).await, keeper(world, "us", LockAcl::Private).await);
    let theirs = keeper(world, "them", LockAcl::Private).await;
    let path = world.path("private");
    let guard = mine.mutex(&path).acquire().await.unwrap();
    assert!(matches!(ours.mutex(&path).try_acquire().await, Err(AcquireError::Held { .. })));
    match theirs.mutex(&path).try_acquire().await {
        Err(error @ AcquireError::Session(SessionError::Refused { .. })) => {
            assert!(error.hint().unwrap().contains("ACL"), "{error}");
            assert!(error.to_string().contains(&format!("(node {path}")), "{error}");
        }
        outcome => panic!("{outcome:?}"),
    }
    // One node that cannot be read does not hide the other locks.
    let open = world.keeper().await.mutex(world.path("open")).acquire().await.unwrap();
    let seen = theirs.admin().survey(path.rsplit_once('/').unwrap().0).await.unwrap();
    assert_eq!((seen.locks.len(), seen.locks[0].path.as_str()), (1, open.path()));
    assert_eq!((seen.unreadable.len(), seen.unreadable[0].path.as_str()), (1, path.as_str()));
    open.release().await.unwrap();
    assert!(matches!(theirs.admin().show(&path).await, Err(AdminError::Session(SessionError::Refused { .. }))));
    assert!(matches!(theirs.admin().survey(&path).await, Err(AdminError::Session(SessionError::Refused { .. }))));
    guard.release().await.unwrap();
    assert_eq!(ours.admin().show(&path).await.unwrap().holders, []);
    // The observer has no credential, so delete the path here.
    let us = us(world).await;
    us.delete(&path, None).await.unwrap();
}

/// N-11: a downgrade creates the reader's node and deletes the writer's.
async fn a_node_that_a_transaction_creates_is_private_too(world: &World) {
    let path = world.path("private");
    let writer = keeper(world, "us", LockAcl::Private).await.rwlock(&path).write().acquire().await.unwrap();
    let us = us(world).await;
    let (before, _) = us.get_acl(&writer.node()).await.unwrap();
    assert!(before.iter().all(|entry| entry.scheme() == "digest"), "{before:?}");
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(us.get_acl(&reader.node()).await.unwrap().0, before);
    reader.release().await.unwrap();
    us.delete(&path, None).await.unwrap();
}

/// The create succeeds, so the attempt has a node when the listing is refused.
async fn a_queue_that_may_not_be_read_is_named_and_left(world: &World) {
    let path = world.lock();
    let client = Client::connect(&world.servers()).await.unwrap();
    let unreadable = Permission::CREATE | Permission::DELETE | Permission::ADMIN;
    let acl = [Acl::new(unreadable, AuthId::anyone())];
    let parent = path.rsplit_once('/').unwrap().0;
    client.mkdir(parent, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    client.create(&path, b"", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for cuts in [false, true] {
        // Also if the attempt loses its connection when it leaves.
        let cut = cuts.then(|| proxy.on(OpCode::Delete).cut_before_reply());
        match keeper.mutex(&path).acquire().await {
            Err(error @ AcquireError::Session(SessionError::Refused { .. })) => {
                assert!(error.to_string().contains(&format!("(node {path}")), "{error}");
            }
            outcome => panic!("{outcome:?}"),
        }
        assert!(cut.is_none_or(|cut| cut.has_fired()));
    }
    client.set_acl(&path, &Acls::anyone_all(), None).await.unwrap();
    world.queued(0).await;
}

async fn a_visible_lock_can_be_shown_without_the_credential(world: &World) {
    let mine = keeper(world, "us", LockAcl::Visible).await;
    let theirs = keeper(world, "them", LockAcl::Visible).await;
    let path = world.path("visible");
    let guard = mine.mutex(&path).acquire().message("nightly").await.unwrap();
    let seen = theirs.admin().show(&path).await.unwrap();
    assert_eq!(seen.holders[0].message.as_deref(), Some("nightly"));
    assert!(matches!(
        theirs.mutex(&path).try_acquire().await,
        Err(AcquireError::Session(SessionError::Refused { .. }))
    ));
    assert!(matches!(theirs.admin().revoke(&path, None).await, Err(AdminError::Session(SessionError::Refused { .. }))));
    guard.release().await.unwrap();
}

/// C for create, D for delete, R for read, W for write, A for administrate. A letter twice counts once.
async fn a_list_gives_each_client_what_its_letters_say(world: &World) {
    let acl: LockAcl = "ip:127.0.0.1:cdrw,ip:127.0.0.2:d,ip:127.0.0.3:aw,world:anyone:rr".parse().unwrap();
    let builder = Lockkeeper::builder().session_timeout(STEADY).acl(acl);
    let keeper = builder.connect(&world.servers()).await.unwrap();
    world.keep_open(&keeper);
    let guard = keeper.mutex(world.lock()).acquire().await.unwrap();
    let ours = Permission::CREATE | Permission::DELETE | Permission::READ | Permission::WRITE;
    let expected = [
        Acl::new(ours, AuthId::new("ip", "127.0.0.1")),
        Acl::new(Permission::DELETE, AuthId::new("ip", "127.0.0.2")),
        Acl::new(Permission::ADMIN | Permission::WRITE, AuthId::new("ip", "127.0.0.3")),
        Acl::new(Permission::READ, AuthId::anyone()),
    ];
    for path in [world.lock(), guard.node()] {
        assert_eq!(world.observer.get_acl(&path).await.unwrap().0, expected, "{path}");
    }
    guard.release().await.unwrap();
}

async fn an_access_list_without_a_credential_is_refused_before_anything_is_sent(_: &World) {
    let outcome = Lockkeeper::builder().acl(LockAcl::Private).connect("127.0.0.1:1").await;
    match outcome {
        Err(error @ ConnectError::Misuse(Misuse { argument: "credential", .. })) => {
            assert!(error.hint().unwrap().contains("credential"), "{error}")
        }
        outcome => panic!("{outcome:?}"),
    }
    let debug = format!("{:?}", Lockkeeper::builder().credential("digest", "user:hush"));
    assert!(debug.contains("digest") && !debug.contains("hush"), "{debug}");
}

/// D-25: a missing path is created by default; with `create_parents(false)` the call fails with `NoSuchLock`.
async fn a_missing_path_is_created_or_reported(world: &World) {
    let keeper = world.keeper().await;
    let path = world.path("deep/below/lock");
    match keeper.mutex(&path).acquire().create_parents(false).await {
        Err(AcquireError::NoSuchLock { path: named }) => assert_eq!(named, path),
        outcome => panic!("{outcome:?}"),
    }
    assert!(!world.exists(&world.path("deep")).await);
    drop(keeper.mutex(&path).acquire().await.unwrap());
    drop(keeper.mutex(&path).acquire().create_parents(false).await.unwrap());
}

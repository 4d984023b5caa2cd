//! Access lists of locks, and the creation of lock paths.

use std::time::Duration;

use lockkeeper::acl::LockAcl;
use lockkeeper::admin::{SetUp, SharedNode};
use lockkeeper::error::{AcquireError, AdminError, ConnectError, Error, Misuse, SessionError};
use lockkeeper::{Lockkeeper, NodeFormat};
use lockkeeper_helix::HelixLock;
use lockkeeper_jobs::{Job, JobError, JobState, JobsAdmin, Ran};
use lockkeeper_session::ensemble::NodeKind;
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
    a_private_lock_keeps_no_one_from_other_locks_and_jobs,
    setting_up_gives_the_shared_nodes_a_list_and_keeps_the_list_of_those_that_exist,
    a_refusal_in_a_shared_node_says_who_may_open_it,
);

async fn keeper(world: &World, user: &str, acl: LockAcl) -> Lockkeeper {
    keeper_below(world, "", user, acl).await
}

/// The same, in a chroot, which is created if it is missing.
async fn keeper_below(world: &World, chroot: &str, user: &str, acl: LockAcl) -> Lockkeeper {
    let builder = Lockkeeper::builder().session_timeout(STEADY).credential("digest", format!("{user}:secret")).acl(acl);
    let servers = format!("{}{chroot}", world.servers());
    let keeper = builder.create_chroot(true).connect(&servers).await.unwrap();
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
    let seen = theirs.admin().listing(path.rsplit_once('/').unwrap().0).await.unwrap();
    assert_eq!((seen.locks.len(), seen.locks[0].path.as_str()), (1, open.path()));
    assert_eq!((seen.unreadable.len(), seen.unreadable[0].path.as_str()), (1, path.as_str()));
    open.release().await.unwrap();
    assert!(matches!(theirs.admin().show(&path).await, Err(AdminError::Session(SessionError::Refused { .. }))));
    assert!(matches!(theirs.admin().listing(&path).await, Err(AdminError::Session(SessionError::Refused { .. }))));
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

/// Whatever the first lock of others creates: the chroot, `/locks`, `/lockkeeper`, the jobs, a directory of locks. Everyone may read
/// these locks, so that the observer can; that gives no right to contend.
async fn a_private_lock_keeps_no_one_from_other_locks_and_jobs(world: &World) {
    for first in ["plain", "numbered", "leased", "job"] {
        let chroot = world.path(first);
        let one = keeper_below(world, &chroot, "us", LockAcl::Visible).await;
        match first {
            "plain" => drop(one.mutex("/locks/team/ours").acquire().await.unwrap()),
            "numbered" => {
                let ours = one.mutex("/locks/ours").node_format(NodeFormat::Numbered);
                ours.acquire().await.unwrap().release().await.unwrap();
            }
            "leased" => {
                let ours = HelixLock::new(&one, "/locks/ours", Duration::from_secs(60));
                ours.acquire().await.unwrap().release().await.unwrap();
            }
            _ => _ = run_job(&one, "/locks/ours").await.unwrap(),
        }
        let two = keeper_below(world, &chroot, "them", LockAcl::Visible).await;
        two.mutex("/locks/theirs").acquire().await.unwrap().release().await.unwrap();
        two.mutex("/locks/team/theirs").acquire().await.unwrap().release().await.unwrap();
        assert!(matches!(run_job(&two, "/locks/daily").await, Ok(Ran::Done(()))));
        assert_eq!(JobsAdmin::new(&two).job("/locks/daily").await.unwrap().unwrap().state, JobState::Ok);
        // Theirs are theirs, too.
        let refused = one.mutex("/locks/theirs").try_acquire().await;
        assert!(matches!(refused, Err(AcquireError::Session(SessionError::Refused { .. }))), "{refused:?}");
    }
}

async fn run_job(keeper: &Lockkeeper, path: &str) -> Result<Ran<(), Error>, JobError> {
    Job::new(keeper, path).slot("1").run(async |_| Ok::<_, Error>(())).await
}

/// Those of the products.
fn registers() -> Vec<(&'static str, NodeKind)> {
    [&lockkeeper_jobs::REGISTERS[..], &lockkeeper_history::REGISTERS, &lockkeeper_helix::REGISTERS].concat()
}

/// A chroot of its own, in which `ops` has set up the shared nodes.
async fn set_up(world: &World, chroot: &str, acl: Option<LockAcl>) -> Vec<SharedNode> {
    let ops = keeper_below(world, chroot, "ops", LockAcl::Open).await;
    ops.admin().set_up(acl, &registers()).await.unwrap()
}

fn lists(nodes: &[SharedNode]) -> Vec<(&str, SetUp, String)> {
    let list = |node: &SharedNode| node.acl.as_ref().map_or_else(|| "not shown".to_owned(), ToString::to_string);
    nodes.iter().map(|node| (node.path.as_str(), node.set_up, list(node))).collect()
}

async fn setting_up_gives_the_shared_nodes_a_list_and_keeps_the_list_of_those_that_exist(world: &World) {
    let chroot = world.path("chroot");
    let made = set_up(world, &chroot, None).await;
    let paths: Vec<_> = made.iter().map(|node| node.path.as_str()).collect();
    let registers =
        ["audit", "history", "jobs", "locks", "requests", "stats"].map(|name| format!("/lockkeeper/{name}"));
    let expected = ["/locks", "/lockkeeper"].into_iter().chain(registers.iter().map(String::as_str));
    // The epoch belongs to all chroots.
    assert_eq!(paths, expected.collect::<Vec<_>>());
    for (path, set_up, list) in lists(&made) {
        let world = if path == "/lockkeeper" { ",world:anyone:cr" } else { ",world:anyone:cdrw" };
        assert!(set_up == SetUp::Created && list.starts_with("digest:ops:") && list.ends_with(world), "{path}: {list}");
    }
    assert!(made.iter().all(|node| node.is_open), "{made:?}");
    let again = set_up(world, &chroot, None).await;
    assert!(lists(&again).iter().zip(lists(&made)).all(|(now, then)| now.1 == SetUp::Unchanged && now.2 == then.2));
    // With a list, they get it, once.
    let list: LockAcl = "auth::cdrwa,world:anyone:cr".parse().unwrap();
    for (done, of_parent) in [(SetUp::Changed, SetUp::Unchanged), (SetUp::Unchanged, SetUp::Unchanged)] {
        let nodes = set_up(world, &chroot, Some(list.clone())).await;
        for (path, set_up, list) in lists(&nodes) {
            let (done, rest) = match path {
                "/lockkeeper" => (of_parent, ",world:anyone:cr"),
                "/lockkeeper/jobs" => (done, ",world:anyone:r"),
                _ => (done, ",world:anyone:cr"),
            };
            assert!(set_up == done && list.ends_with(rest), "{path}: {set_up:?}, {list}");
        }
        assert!(nodes.iter().all(|node| node.is_open == (node.path == "/lockkeeper")), "{nodes:?}");
    }
    // All others may lock, and change nothing of it.
    let other = keeper_below(world, &chroot, "them", LockAcl::Visible).await;
    other.mutex("/locks/theirs").acquire().await.unwrap().release().await.unwrap();
    let refused = other.admin().set_up(Some(LockAcl::Open), &[]).await;
    assert!(matches!(refused, Err(AdminError::Session(SessionError::Refused { .. }))), "{refused:?}");
}

async fn a_refusal_in_a_shared_node_says_who_may_open_it(world: &World) {
    for (list, says) in [(LockAcl::Private, "is not shown"), (LockAcl::Visible, "digest:ops:")] {
        let chroot = world.path(&list.to_string());
        let open = world.connect(&format!("{}{chroot}", world.servers()), STEADY).await;
        open.mutex("/first").acquire().await.unwrap().release().await.unwrap();
        set_up(world, &chroot, Some(list)).await;
        let other = keeper_below(world, &chroot, "them", LockAcl::Visible).await;
        let refused = other.mutex("/locks/theirs").try_acquire().await.unwrap_err();
        let (told, hint) = (refused.to_string(), refused.hint().unwrap());
        assert!(told.contains(&format!("{chroot}/locks is shared by all clients")) && told.contains(says), "{told}");
        assert!(hint.contains("the list auth::cdrwa,world:anyone:cdrw (Admin::set_up)"), "{hint}");
        let refused = run_job(&other, "/locks/daily").await.unwrap_err();
        assert!(refused.to_string().contains("/locks is shared by all clients"), "{refused}");
        // After the remedy, they enter.
        set_up(world, &chroot, Some("auth::cdrwa,world:anyone:cdrw".parse().unwrap())).await;
        other.mutex("/locks/theirs").acquire().await.unwrap().release().await.unwrap();
        assert!(matches!(run_job(&other, "/locks/daily").await, Ok(Ran::Done(()))));
    }
}

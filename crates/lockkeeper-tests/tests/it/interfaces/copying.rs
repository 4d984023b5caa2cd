//! Copying a tree to other servers: what is copied, what is left, and what stops a copy.

use lockkeeper::Lockkeeper;
use lockkeeper::admin::{Admin, Copied, CopyOptions, TokenEpoch};
use lockkeeper::error::{AdminError, SessionError};
use lockkeeper_server::Server;
use lockkeeper_testkit::proxy::OpCode;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use crate::support::{STEADY, World, embedded_server, on_the_embedded_server_for};

on_the_embedded_server_for!(
    [native Native]
    a_copy_takes_what_lasts_with_data_and_access_lists,
    a_copy_of_everything_leaves_out_what_is_the_servers_own,
    other_content_stops_a_copy_unless_it_may_be_replaced,
    a_node_of_a_session_is_never_replaced,
    paths_below_each_other_are_copied_once,
    a_wrong_path_stops_a_copy_before_anything_is_created,
    an_access_list_that_is_not_shown_whole_is_not_copied,
    changes_during_a_copy_are_counted_and_left,
    a_node_that_is_deleted_during_a_copy_is_counted_as_changed,
    nodes_that_another_client_creates_meanwhile_are_compared,
);

/// The servers that are copied to.
struct Target {
    server: Server,
    client: Client,
    admin: Admin,
    _keeper: Lockkeeper,
}

impl Target {
    async fn fresh() -> Target {
        let server = embedded_server().await;
        let servers = server.connect_string();
        let client = Client::connect(&servers).await.unwrap();
        let keeper = Lockkeeper::builder().session_timeout(STEADY).connect(&servers).await.unwrap();
        Target { server, client, admin: keeper.admin(), _keeper: keeper }
    }

    /// Servers whose tokens are greater than those of the source.
    async fn ahead() -> Target {
        let target = Target::fresh().await;
        target.admin.raise_token_epoch(TokenEpoch::new(7).unwrap()).await.unwrap();
        target
    }

    async fn data(&self, path: &str) -> Option<Vec<u8>> {
        self.client.get_data(path).await.ok().map(|(data, _)| data)
    }

    async fn create(&self, path: &str, data: &str, mode: CreateMode) {
        self.client.create(path, data.as_bytes(), &mode.with_acls(Acls::anyone_all())).await.unwrap();
    }
}

async fn create(world: &World, path: &str, data: &str) {
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    world.observer.create(path, data.as_bytes(), &options).await.unwrap();
}

/// Creates `count` nodes below a new node, more than are read at the same time if there are 70, and returns that node.
async fn grow(world: &World, name: &str, count: usize) -> String {
    let path = world.path(name);
    create(world, &path, name).await;
    for n in 0..count {
        create(world, &format!("{path}/{n}"), &format!("{name} {n}")).await;
    }
    path
}

fn paths<const N: usize>(paths: [&str; N]) -> CopyOptions {
    let mut options = CopyOptions::default();
    options.paths = paths.map(str::to_owned).to_vec();
    options
}

fn dry(mut options: CopyOptions) -> CopyOptions {
    options.dry_run = true;
    options
}

fn overwriting(mut options: CopyOptions) -> CopyOptions {
    options.overwrite = true;
    options
}

async fn source(world: &World) -> Admin {
    world.keeper().await.admin()
}

/// The counts that say what was done: created, replaced, same, ephemeral, conflicting.
fn counts(copied: &Copied) -> [u64; 5] {
    [copied.created, copied.replaced, copied.same, copied.ephemeral, copied.conflicting]
}

/// Also the missing parents. A dry run finds the same and changes nothing; a copy whose tokens would fall does nothing either.
async fn a_copy_takes_what_lasts_with_data_and_access_lists(world: &World) {
    let (source, target) = (source(world).await, Target::fresh().await);
    let tree = grow(world, "tree", 70).await;
    let guarded = format!("{tree}/guarded");
    let acl = [Acl::new(Permission::READ | Permission::ADMIN, AuthId::anyone())];
    world.observer.create(&guarded, b"\x00\xff", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    let anyone = Acls::anyone_all();
    world.observer.create(&format!("{tree}/held"), b"", &CreateMode::Ephemeral.with_acls(anyone)).await.unwrap();
    let beside = grow(world, "beside", 1).await;
    let options = paths([&tree]);
    // The parent, the node itself, 70 numbered ones, and the guarded one.
    let expected = [73, 0, 0, 1, 0];

    source.raise_token_epoch(TokenEpoch::new(1).unwrap()).await.unwrap();
    let refused = source.copy_to(&target.admin, &options).await.unwrap();
    assert!(!refused.done && refused.tokens_fall() && counts(&refused) == expected, "{refused:?}");
    assert_eq!(target.data(&tree).await, None);

    target.admin.raise_token_epoch(TokenEpoch::above(refused.source_token.unwrap()).unwrap()).await.unwrap();
    let looked = source.copy_to(&target.admin, &dry(options.clone())).await.unwrap();
    assert!(!looked.done && !looked.tokens_fall() && counts(&looked) == expected, "{looked:?}");
    assert_eq!(target.data(&tree).await, None);

    let copied = source.copy_to(&target.admin, &options).await.unwrap();
    assert!(copied.done && !copied.tokens_fall() && counts(&copied) == expected, "{copied:?}");
    assert_eq!((copied.meanwhile, copied.changed, copied.conflicts.len()), (0, 0, 0), "{copied:?}");
    assert!(copied.source_token > looked.source_token && copied.target_token > looked.target_token, "{copied:?}");
    assert_eq!(target.data(&format!("{tree}/69")).await.as_deref(), Some(&b"tree 69"[..]));
    assert_eq!(target.data(&guarded).await.as_deref(), Some(&b"\x00\xff"[..]));
    assert_eq!(target.client.get_acl(&guarded).await.unwrap().0, acl);
    assert_eq!(target.client.list_children(&tree).await.unwrap().len(), 71);
    assert_eq!(target.data(&beside).await, None);

    // A repeated copy is harmless.
    let again = source.copy_to(&target.admin, &options).await.unwrap();
    assert!(again.done && counts(&again) == [0, 0, 73, 1, 0], "{again:?}");
}

/// Each server has a root and a `/zookeeper`, and the epoch of tokens only grows.
async fn a_copy_of_everything_leaves_out_what_is_the_servers_own(world: &World) {
    let (source, target) = (source(world).await, Target::ahead().await);
    grow(world, "tree", 2).await;
    source.raise_token_epoch(TokenEpoch::new(3).unwrap()).await.unwrap();
    let (all, root) = (CopyOptions::default(), paths(["/"]));
    let looked = source.copy_to(&target.admin, &dry(root)).await.unwrap();
    let copied = source.copy_to(&target.admin, &all).await.unwrap();
    // The claim's own root, `tree` and its two children, and `/lockkeeper` above the epoch.
    assert!(copied.done && counts(&copied) == [4, 0, 1, 0, 0], "{copied:?}");
    assert_eq!(counts(&looked), counts(&copied));
    assert_eq!(target.admin.token_epoch().await.unwrap().get(), 7);
    assert_eq!(target.data(&world.path("tree/1")).await.as_deref(), Some(&b"tree 1"[..]));
}

/// Nothing is copied then, not even what does not conflict. The first twenty are named.
async fn other_content_stops_a_copy_unless_it_may_be_replaced(world: &World) {
    let (source, target) = (source(world).await, Target::ahead().await);
    let tree = grow(world, "tree", 25).await;
    let options = paths([&tree]);
    assert!(source.copy_to(&target.admin, &options).await.unwrap().done);
    for n in 0..22 {
        target.client.set_data(&format!("{tree}/{n}"), b"mine", None).await.unwrap();
    }
    target.client.delete(&format!("{tree}/24"), None).await.unwrap();

    let stopped = source.copy_to(&target.admin, &options).await.unwrap();
    assert!(!stopped.done && counts(&stopped) == [1, 0, 4, 0, 22], "{stopped:?}");
    assert_eq!(stopped.conflicts.len(), 20);
    assert!(stopped.conflicts.iter().all(|path| path.starts_with(&format!("{tree}/"))), "{stopped:?}");
    assert_eq!(target.data(&format!("{tree}/0")).await.as_deref(), Some(&b"mine"[..]));
    assert_eq!(target.data(&format!("{tree}/24")).await, None);

    let options = overwriting(options);
    let looked = source.copy_to(&target.admin, &dry(options.clone())).await.unwrap();
    assert!(!looked.done && counts(&looked) == [1, 22, 4, 0, 0], "{looked:?}");
    assert_eq!(target.data(&format!("{tree}/0")).await.as_deref(), Some(&b"mine"[..]));
    let replaced = source.copy_to(&target.admin, &options).await.unwrap();
    assert!(replaced.done && counts(&replaced) == [1, 22, 4, 0, 0], "{replaced:?}");
    assert_eq!(target.data(&format!("{tree}/0")).await.as_deref(), Some(&b"tree 0"[..]));

    // Another access list is other content too.
    let acl = [Acl::new(Permission::ALL, AuthId::new("ip", "127.0.0.1"))];
    target.client.set_acl(&tree, &acl, None).await.unwrap();
    let replaced = source.copy_to(&target.admin, &options).await.unwrap();
    assert!(replaced.done && counts(&replaced) == [0, 1, 26, 0, 0], "{replaced:?}");
    assert_eq!(target.client.get_acl(&tree).await.unwrap().0, *Acls::anyone_all());
}

async fn a_node_of_a_session_is_never_replaced(world: &World) {
    let (source, target) = (source(world).await, Target::ahead().await);
    let tree = grow(world, "tree", 1).await;
    target.create(tree.rsplit_once('/').unwrap().0, "", CreateMode::Persistent).await;
    target.create(&tree, "tree", CreateMode::Persistent).await;
    let held = format!("{tree}/0");
    target.create(&held, "tree 0", CreateMode::Ephemeral).await;
    let stopped = source.copy_to(&target.admin, &overwriting(paths([&tree]))).await.unwrap();
    assert!(!stopped.done && counts(&stopped) == [0, 0, 2, 0, 1], "{stopped:?}");
    assert_eq!(stopped.conflicts, [held]);
}

async fn paths_below_each_other_are_copied_once(world: &World) {
    let (source, target) = (source(world).await, Target::ahead().await);
    let (tree, twin) = (grow(world, "tree", 3).await, grow(world, "tree-2", 1).await);
    let (below, beside) = (format!("{tree}/1"), format!("{twin}/0"));
    let options = paths([&below, &tree, &beside, &tree]);
    let copied = source.copy_to(&target.admin, &options).await.unwrap();
    // The claim's own root, `tree` and its three children, `tree-2` and its child.
    assert!(copied.done && counts(&copied) == [7, 0, 0, 0, 0], "{copied:?}");
}

/// The given paths and the nodes above them must exist. Dots and relative paths are refused before anything is sent.
async fn a_wrong_path_stops_a_copy_before_anything_is_created(world: &World) {
    let (source, target) = (source(world).await, Target::ahead().await);
    let tree = grow(world, "tree", 1).await;
    for wrong in ["tree", "/a//b", "/a/../b"] {
        let refused = source.copy_to(&target.admin, &paths([&tree, wrong])).await;
        assert!(matches!(refused, Err(AdminError::Misuse(_))), "{refused:?}");
    }
    let (missing, far) = (world.path("missing"), world.path("missing/far"));
    for wrong in [&missing, &far] {
        match source.copy_to(&target.admin, &paths([&tree, wrong])).await {
            Err(AdminError::NoSuchLock { path }) => assert_eq!(path, missing),
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!(target.data(&tree).await, None);
}

/// A server hides the digests of passwords from clients that may not change the list.
async fn an_access_list_that_is_not_shown_whole_is_not_copied(world: &World) {
    let (source, target) = (source(world).await, Target::ahead().await);
    let tree = grow(world, "tree", 0).await;
    let secret = format!("{tree}/secret");
    let digest = Acl::new(Permission::ALL, AuthId::new("digest", "app:F6Y+U5gIoCbNNoLQExmvxRFeatA="));
    let acl = [digest, Acl::new(Permission::READ, AuthId::anyone())];
    world.observer.create(&secret, b"", &CreateMode::Persistent.with_acls(Acls::new(&acl))).await.unwrap();
    match source.copy_to(&target.admin, &paths([&tree])).await {
        Err(AdminError::Session(SessionError::Refused { path, reason })) => {
            assert_eq!(path, secret);
            assert!(reason.contains("ADMIN"), "{reason}");
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(target.data(&tree).await, None);
    let builder = Lockkeeper::builder().session_timeout(STEADY).credential("digest", "app:secret");
    let keeper = builder.connect(&world.servers()).await.unwrap();
    world.keep_open(&keeper);
    let copied = keeper.admin().copy_to(&target.admin, &paths([&tree])).await.unwrap();
    assert!(copied.done && copied.created == 3, "{copied:?}");
}

/// Copy again when they are over: a node that is newer than the copy is left, and one that changes is counted.
async fn changes_during_a_copy_are_counted_and_left(world: &World) {
    let (proxy, target) = (world.proxy().await, Target::ahead().await);
    let source = world.keeper_through(&proxy, STEADY).await.admin();
    let tree = grow(world, "tree", 2).await;
    let options = paths([&tree]);
    // The first pass begins with the node above.
    let held = proxy.on(OpCode::GetChildren2).path(world.path("").trim_end_matches('/')).hold_request();
    let (copied, ()) = tokio::join!(source.copy_to(&target.admin, &options), async {
        held.caught().await;
        create(world, &format!("{tree}/late"), "late").await;
        world.observer.set_data(&format!("{tree}/0"), b"changed", None).await.unwrap();
        held.release();
    });
    let copied = copied.unwrap();
    // `tree` has a new child, `0` has other data, and `late` is new.
    assert!(copied.done && counts(&copied) == [4, 0, 0, 0, 0], "{copied:?}");
    assert_eq!((copied.changed, copied.meanwhile), (3, 2), "{copied:?}");
    assert_eq!(target.data(&format!("{tree}/0")).await.as_deref(), Some(&b"changed"[..]));
    assert_eq!(target.data(&format!("{tree}/late")).await, None);
    let again = source.copy_to(&target.admin, &options).await.unwrap();
    assert!(again.done && counts(&again) == [1, 0, 4, 0, 0] && again.changed == 0, "{again:?}");
}

/// Its parent's listing still had it.
async fn a_node_that_is_deleted_during_a_copy_is_counted_as_changed(world: &World) {
    let (proxy, target) = (world.proxy().await, Target::ahead().await);
    let source = world.keeper_through(&proxy, STEADY).await.admin();
    let tree = grow(world, "tree", 2).await;
    let options = paths([&tree]);
    let gone = format!("{tree}/1");
    // The second pass, which copies, begins with the node above; the listing of `tree` comes after it.
    let held = proxy.on(OpCode::GetData).path(gone.as_str()).nth(2).hold_request();
    let (copied, ()) = tokio::join!(source.copy_to(&target.admin, &options), async {
        held.caught().await;
        world.remove(&gone).await;
        held.release();
    });
    let copied = copied.unwrap();
    // The claim's own root, `tree` and `tree/0`. The listing of `tree` was before the delete.
    assert!(copied.done && counts(&copied) == [3, 0, 0, 0, 0] && copied.changed == 1, "{copied:?}");
    assert_eq!(target.data(&gone).await, None);
}

/// As the copy itself does if the reply to its create is lost: the same content is no conflict, other content is one.
async fn nodes_that_another_client_creates_meanwhile_are_compared(world: &World) {
    let (source, target) = (source(world).await, Target::ahead().await);
    let proxy = lockkeeper_testkit::proxy::Proxy::start(target.server.addr()).await;
    let keeper = Lockkeeper::builder().session_timeout(STEADY).connect(&proxy.connect_string()).await.unwrap();
    let through = keeper.admin();
    let tree = grow(world, "tree", 0).await;
    for (data, expected) in [("tree", [1, 0, 1, 0, 0]), ("other", [0, 0, 1, 0, 1])] {
        let held = proxy.on_any(&[OpCode::Create, OpCode::Create2]).path(tree.as_str()).hold_request();
        let options = paths([&tree]);
        let (copied, ()) = tokio::join!(source.copy_to(&through, &options), async {
            held.caught().await;
            target.create(&tree, data, CreateMode::Persistent).await;
            held.release();
        });
        let copied = copied.unwrap();
        assert_eq!((copied.done, counts(&copied)), (data == "tree", expected), "{copied:?}");
        target.client.delete(&tree, None).await.unwrap();
    }
    // While its servers are still there.
    keeper.close().await;
}

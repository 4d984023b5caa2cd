//! Readers and writers: which of them share, which wait, and what each one watches.

use std::time::Duration;

use lockkeeper::error::{AcquireError, ChangeError, ErrorKind};
use lockkeeper::guard::UpgradeError;
use lockkeeper::{CancellationToken, Lockkeeper, Loss, NodeFormat, RwLock, WriteGuard};
use lockkeeper_testkit::proxy::OpCode;

use crate::support::{PATIENCE, STEADY, Waiter, World, asked, eventually, for_kinds, name, watches_set};

for_kinds!([native Write, recipe RecipeWrite, kazoo KazooWrite] nodes_are_named_as_in_their_node_format);

for_kinds!(
    [native Write, #[cfg(deep)] recipe RecipeWrite, #[cfg(deep)] kazoo KazooWrite]
    readers_ahead_of_a_waiting_writer_share_and_those_behind_it_wait,
    a_reader_watches_only_the_nearest_older_writer,
    a_reader_is_granted_when_its_writer_leaves_before_the_watch,
    a_writer_watches_the_next_older_child_of_either_kind,
    only_the_readers_directly_behind_a_writer_wake_together,
    when_a_waiting_writer_gives_up_the_readers_behind_it_share,
    a_downgrade_keeps_the_position,
    a_reader_that_was_a_writer_finds_who_broke_its_hold,
    a_downgrade_whose_reply_is_lost_is_found,
    an_upgradeable_reader_shares_with_earlier_readers_and_excludes_later_ones,
    an_upgrade_times_out_and_keeps_reading,
    a_change_of_a_hold_ends_with_the_hold_although_no_server_answers,
    an_upgrade_that_no_server_answers_names_no_readers,
    a_cancelled_upgrade_keeps_reading,
    two_upgrades_never_wait_for_each_other,
    case_17_readers_and_writers_never_wait_in_a_circle,
);

/// The requests of a contender that needs more information.
const LOOKS: &[OpCode] = &[OpCode::GetChildren, OpCode::GetChildren2, OpCode::GetData];

fn lock(world: &World, keeper: &Lockkeeper) -> RwLock {
    keeper.rwlock(world.lock()).node_format(world.kind.node_format())
}

async fn reader(world: &World, keeper: &Lockkeeper) -> Waiter {
    world.enqueue(lock(world, keeper).read().acquire()).await
}

async fn writer(world: &World, keeper: &Lockkeeper) -> Waiter<WriteGuard> {
    world.enqueue(lock(world, keeper).write().acquire()).await
}

fn number(name: &str) -> &str {
    &name[name.len() - 10..]
}

/// The part before the number in a reader's and in a writer's name.
fn markers(node_format: NodeFormat) -> [&'static str; 2] {
    match node_format {
        NodeFormat::Curator => ["-__READ__", "-__WRIT__"],
        NodeFormat::Kazoo => ["__rlock__", "__lock__"],
        _ => ["read-", "write-"],
    }
}

/// N-23, N-24, N-25, N-27, T-13, T-14, T-15, T-19: the node is ephemeral, numbered by the server, and named as in its node
/// format. The listing that decides sets no watch, so a holder gets no event about other children.
async fn nodes_are_named_as_in_their_node_format(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let [read, write] = markers(world.kind.node_format());
    let reader = lock(world, &keeper).read().acquire().await.unwrap();
    let session = keeper.admin().show(&world.lock()).await.unwrap().holders[0].session;
    let writer = {
        let guard = reader;
        check_name(world, &name(&guard), read, session.0).await;
        watches_set(&proxy, 2).await;
        let before = proxy.counts();
        let foreign = format!("{}/config", world.lock());
        world.make(&foreign).await;
        world.remove(&foreign).await;
        keeper.admin().show(&world.lock()).await.unwrap();
        assert_eq!(proxy.counts().since(&before).watch_events, 0);
        guard.release().await.unwrap();
        lock(world, &keeper).write().acquire().await.unwrap()
    };
    check_name(world, &name(&writer), write, session.0).await;
    writer.release().await.unwrap();
}

async fn check_name(world: &World, name: &str, marker: &str, session: i64) {
    let (prefix, number) = name.split_at(name.len() - 10);
    assert!(prefix.ends_with(marker) && number.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
    let length = match world.kind.node_format() {
        NodeFormat::Curator => "_c_".len() + 36,
        NodeFormat::Kazoo => 32,
        _ => 0,
    };
    assert_eq!(prefix.len(), length + marker.len(), "{name}");
    let node = format!("{}/{name}", world.lock());
    let stat = world.observer.check_stat(&node).await.unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, session);
}

/// N-25, N-27, N-30, T-15, T-18, T-22: read, read, write, read, read: the first two hold together, then the writer, then the
/// rest.
async fn readers_ahead_of_a_waiting_writer_share_and_those_behind_it_wait(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let first = lock(world, &one).read().acquire().await.unwrap();
    let second = lock(world, &other).read().try_acquire().await.unwrap();
    let alone = writer(world, &other).await;
    let behind = [reader(world, &one).await, reader(world, &other).await];
    assert!(matches!(lock(world, &one).read().try_acquire().await, Err(AcquireError::Held { ahead: Some(5), .. })));
    first.release().await.unwrap();
    // The writer has listed again and waits for the second reader.
    world.queued(4).await;
    assert!(alone.waits() && second.is_held());
    let reads = second.token();
    second.release().await.unwrap();
    let alone = alone.granted().await;
    assert!(behind.iter().all(|reader| reader.waits()));
    assert!(reads < alone.token());
    let writes = alone.token();
    alone.release().await.unwrap();
    let [third, fourth] = behind;
    let together = [third.granted().await, fourth.granted().await];
    assert!(together.iter().all(|reader| reader.is_held() && writes < reader.token()));
    assert_eq!(world.queue().await.len(), 2);
}

/// N-26, T-16, T-17, T-21: of two writers ahead it watches the later one, not the first and no reader. If that writer gives up,
/// it watches the first.
async fn a_reader_watches_only_the_nearest_older_writer(world: &World) {
    let (others, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let first = lock(world, &others).write().acquire().await.unwrap();
    let between = reader(world, &others).await;
    let second = writer(world, &others).await;
    let another = reader(world, &others).await;
    let since = proxy.records().len();
    let last = reader(world, &keeper).await;
    watches_set(&proxy, 2).await;
    let queue = world.queue().await;
    let requests = asked(world, &proxy, since);
    assert_eq!(requests.len(), 4, "{requests:?}");
    assert!(OpCode::CREATES.contains(&requests[0].0) && OpCode::LISTS.contains(&requests[1].0), "{requests:?}");
    assert_eq!(
        requests[2..],
        [(OpCode::GetData, format!("/{}", queue[2])), (OpCode::GetData, format!("/{}", queue[4]))]
    );

    // Another reader leaves: the watching reader gets no event.
    let before = proxy.counts();
    another.abort();
    world.queued(4).await;
    keeper.admin().show(&world.lock()).await.unwrap();
    assert_eq!(proxy.counts().since(&before).watch_events, 0);

    // Its writer gives up: it lists again and waits for the first.
    let (since, reads) = (proxy.records().len(), proxy.counts().delivered.of(OpCode::GetData));
    second.abort();
    watches_set(&proxy, reads + 1).await;
    let requests = asked(world, &proxy, since);
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(OpCode::LISTS.contains(&requests[0].0), "{requests:?}");
    assert_eq!(requests[1], (OpCode::GetData, format!("/{}", queue[0])));

    // The first writer releases: both readers are granted, the last one without another request.
    let before = proxy.counts();
    first.release().await.unwrap();
    let (between, last) = (between.granted().await, last.granted().await);
    let since = proxy.counts().since(&before);
    assert_eq!((since.watch_events, since.requested.of_any(LOOKS)), (1, 0), "{since:?}");
    between.release().await.unwrap();
    last.release().await.unwrap();
}

/// N-26, T-17: deleted between the listing and the watch: the reader is granted immediately, and waits for nothing.
async fn a_reader_is_granted_when_its_writer_leaves_before_the_watch(world: &World) {
    let (others, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let writer = lock(world, &others).write().acquire().await.unwrap();
    let watch = proxy.on(OpCode::GetData).hold_request();
    let waiter = reader(world, &keeper).await;
    watch.caught().await;
    writer.release().await.unwrap();
    assert!(waiter.waits());
    watch.release();
    waiter.granted().await.release().await.unwrap();
}

/// N-28, T-20, T-22: also a reader that holds, if it is the next older child; the release of another reader wakes no waiter.
async fn a_writer_watches_the_next_older_child_of_either_kind(world: &World) {
    let (others, proxy) = (world.keeper().await, world.proxy().await);
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let readers = [
        lock(world, &others).read().acquire().await.unwrap(),
        lock(world, &others).read().acquire().await.unwrap(),
        lock(world, &others).read().acquire().await.unwrap(),
    ];
    let since = proxy.records().len();
    let alone = writer(world, &keeper).await;
    watches_set(&proxy, 2).await;
    let names = readers.each_ref().map(|reader| name(reader));
    assert_eq!(asked(world, &proxy, since)[2], (OpCode::GetData, format!("/{}", names[2])));
    let [first, second, third] = readers;

    let before = proxy.counts();
    first.release().await.unwrap();
    keeper.admin().show(&world.lock()).await.unwrap();
    assert_eq!(proxy.counts().since(&before).watch_events, 0);

    let (since, reads) = (proxy.records().len(), proxy.counts().delivered.of(OpCode::GetData));
    third.release().await.unwrap();
    watches_set(&proxy, reads + 1).await;
    assert_eq!(asked(world, &proxy, since)[1..], [(OpCode::GetData, format!("/{}", names[1]))]);
    assert!(alone.waits());
    second.release().await.unwrap();
    alone.granted().await.release().await.unwrap();
}

/// T-23: five readers behind the releasing writer, then a writer, then three readers: only the first five wake.
async fn only_the_readers_directly_behind_a_writer_wake_together(world: &World) {
    let (holder, near, far) = (world.keeper().await, world.proxy().await, world.proxy().await);
    let (readers, others) = (world.keeper_through(&near, STEADY).await, world.keeper_through(&far, STEADY).await);
    let first = lock(world, &holder).write().acquire().await.unwrap();
    let mut batch = Vec::new();
    for _ in 0..5 {
        batch.push(reader(world, &readers).await);
    }
    let second = writer(world, &others).await;
    let mut later = Vec::new();
    for _ in 0..3 {
        later.push(reader(world, &others).await);
    }
    watches_set(&near, 10).await;
    // These readers wait for a writer of their own session, which they need not watch.
    watches_set(&far, 5).await;
    let before = [near.counts(), far.counts()];
    first.release().await.unwrap();
    let mut inside = Vec::new();
    for reader in batch {
        inside.push(reader.granted().await);
    }
    others.admin().show(&world.lock()).await.unwrap();
    let (here, there) = (near.counts().since(&before[0]), far.counts().since(&before[1]));
    // Five readers wake, but for the watches of one session on one node the server sends one event.
    assert_eq!((here.watch_events, here.requested.of_any(LOOKS)), (1, 0), "{here:?}");
    assert_eq!(there.watch_events, 0, "{there:?}");
    assert!(second.waits() && later.iter().all(|reader| reader.waits()));
    drop(inside);
    let second = second.granted().await;
    assert!(later.iter().all(|reader| reader.waits()));
    second.release().await.unwrap();
    for reader in later {
        drop(reader.granted().await);
    }
}

/// N-30, T-17: no writer is between the readers any more.
async fn when_a_waiting_writer_gives_up_the_readers_behind_it_share(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let inside = lock(world, &one).read().acquire().await.unwrap();
    let leaves = writer(world, &other).await;
    let behind = [reader(world, &one).await, reader(world, &other).await];
    leaves.abort();
    let [first, second] = behind;
    let (first, second) = (first.granted().await, second.granted().await);
    assert!(inside.is_held() && first.is_held() && second.is_held());
    for guard in [inside, first, second] {
        guard.release().await.unwrap();
    }
}

/// The readers directly behind are granted, the writer behind them is not; number and token stay the same.
async fn a_downgrade_keeps_the_position(world: &World) {
    let (proxy, other) = (world.proxy().await, world.keeper().await);
    let one = world.keeper_through(&proxy, STEADY).await;
    let guard = lock(world, &one).write().acquire().await.unwrap();
    // From now on the holder watches its own node, which a downgrade deletes.
    watches_set(&proxy, 1).await;
    let near = reader(world, &other).await;
    let next = writer(world, &other).await;
    let far = reader(world, &one).await;
    let (node, token) = (name(&guard), guard.token());
    let guard = guard.downgrade().await.unwrap();
    let near = near.granted().await;
    let [read, _] = markers(world.kind.node_format());
    assert!(name(&guard).contains(read), "{}", name(&guard));
    assert_eq!((number(&name(&guard)), guard.token()), (number(&node), token));
    assert_eq!(world.queue().await[0], name(&guard));
    assert!(next.waits() && far.waits());
    near.release().await.unwrap();
    world.queued(3).await;
    assert!(next.waits() && guard.is_held());
    guard.release().await.unwrap();
    let next = next.granted().await;
    assert!(token < next.token() && far.waits());
    next.release().await.unwrap();
    far.granted().await.release().await.unwrap();
}

/// Its node is younger than its token.
async fn a_reader_that_was_a_writer_finds_who_broke_its_hold(world: &World) {
    let (keeper, operator) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &keeper).write().acquire().await.unwrap();
    let written = (guard.node(), guard.token());
    let guard = guard.downgrade().await.unwrap();
    operator.admin().break_lock(&world.lock(), "a test").await.unwrap();
    guard.lost().await;
    let broken = operator.admin().broken(&world.lock()).await.unwrap();
    let removed = |node: &str, token| broken.iter().filter(|broken| broken.removed(node, token)).count();
    assert_eq!(removed(&guard.node(), guard.fencing_token()), 1, "{broken:?}");
    assert_eq!(removed(&written.0, Some(written.1)), 0, "{broken:?}");
    let next = lock(world, &keeper).write().acquire().await.unwrap();
    assert_eq!(removed(&next.node(), next.fencing_token()), 0, "{broken:?}");
    next.release().await.unwrap();
}

/// The connection breaks before or after the downgrade takes effect: it reads at the same position, and no other node of it is
/// left.
async fn a_downgrade_whose_reply_is_lost_is_found(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let [read, _] = markers(world.kind.node_format());
    for effect in [false, true] {
        let guard = lock(world, &keeper).write().acquire().await.unwrap();
        let node = name(&guard);
        let multi = proxy.on(OpCode::Multi);
        let lost = if effect { multi.cut_before_reply() } else { multi.cut_before_request() };
        let guard = guard.downgrade().await.unwrap();
        lost.fired().await;
        assert_eq!(world.queue().await, [name(&guard)]);
        assert!(name(&guard).contains(read) && number(&name(&guard)) == number(&node), "{guard:?}");
        let beside = lock(world, &keeper).read().try_acquire().await.unwrap();
        beside.release().await.unwrap();
        guard.release().await.unwrap();
        world.queued(0).await;
    }
}

/// It reads beside earlier readers, blocks all later contenders, and writes when the earlier readers have released. After a
/// downgrade it can continue to read, and the later readers are granted.
async fn an_upgradeable_reader_shares_with_earlier_readers_and_excludes_later_ones(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let before =
        [lock(world, &one).read().acquire().await.unwrap(), lock(world, &other).read().acquire().await.unwrap()];
    let guard = lock(world, &one).upgradeable().try_acquire().await.unwrap();
    let late = reader(world, &other).await;
    assert!(matches!(lock(world, &other).upgradeable().try_acquire().await, Err(AcquireError::Held { .. })));
    assert!(late.waits() && before.iter().all(|reader| reader.is_held()));
    let token = guard.token();
    let upgrading = crate::support::spawn(guard.upgrade().into_future());
    for reader in before {
        assert!(!upgrading.is_finished());
        reader.release().await.unwrap();
    }
    let guard = tokio::time::timeout(PATIENCE, upgrading).await.expect("the upgrade waits for ever").unwrap().unwrap();
    assert!(late.waits() && guard.is_held());
    assert_eq!((guard.token(), world.queue().await.len()), (token, 2));
    let guard = guard.downgrade().await.unwrap();
    late.granted().await.release().await.unwrap();
    guard.release().await.unwrap();
    // An upgradeable reader can downgrade without having been a writer.
    let guard = lock(world, &one).upgradeable().acquire().await.unwrap();
    let late = reader(world, &other).await;
    let guard = guard.downgrade().await.unwrap();
    late.granted().await.release().await.unwrap();
    guard.release().await.unwrap();
}

/// It keeps its hold and can try again, and the readers ahead are not affected.
async fn an_upgrade_times_out_and_keeps_reading(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let before = lock(world, &other).read().acquire().await.unwrap();
    let guard = lock(world, &one).upgradeable().acquire().await.unwrap();
    // Long enough that the servers say who reads.
    let waited = Duration::from_secs(3);
    let error = guard.upgrade().timeout(waited).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Taken);
    assert!(error.to_string().contains(&world.lock()), "{error}");
    let UpgradeError { guard, reason, .. } = error;
    assert_eq!(reason, ChangeError::Timeout { path: world.lock(), waited });
    assert!(guard.is_held() && before.is_held());
    before.release().await.unwrap();
    let guard = guard.upgrade().timeout(PATIENCE).await.unwrap();
    guard.release().await.unwrap();
    // Dropping a waiting upgrade releases the lock.
    let before = lock(world, &other).read().acquire().await.unwrap();
    let guard = lock(world, &one).upgradeable().acquire().await.unwrap();
    let mut upgrade = guard.upgrade().into_future();
    assert!(futures_util::poll!(upgrade.as_mut()).is_pending());
    drop(upgrade);
    world.queued(1).await;
    before.release().await.unwrap();
}

/// Whether the change begins before the loss or after it.
async fn a_change_of_a_hold_ends_with_the_hold_although_no_server_answers(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let lost = ChangeError::Lost(Loss::Unreachable);
    let guard = lock(world, &keeper).upgradeable().acquire().await.unwrap();
    proxy.black_hole();
    let UpgradeError { guard, reason, .. } = guard.upgrade().await.unwrap_err();
    assert_eq!(reason, lost);
    let UpgradeError { guard, reason, .. } = guard.upgrade().timeout(PATIENCE).await.unwrap_err();
    assert_eq!(reason, lost);
    assert_eq!(guard.downgrade().await.unwrap_err(), lost);
    proxy.heal();
    world.queued(0).await;
    let guard = lock(world, &keeper).write().acquire().await.unwrap();
    proxy.black_hole();
    assert_eq!(guard.downgrade().await.unwrap_err(), lost);
    proxy.heal();
    world.queued(0).await;
}

/// There are no readers to wait for.
async fn an_upgrade_that_no_server_answers_names_no_readers(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    let guard = lock(world, &keeper).upgradeable().acquire().await.unwrap();
    proxy.black_hole();
    let waited = Duration::from_millis(50);
    let error = guard.upgrade().timeout(waited).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let UpgradeError { guard, reason, .. } = error;
    assert_eq!(reason, ChangeError::NoAnswer { path: world.lock(), waited });
    proxy.heal();
    guard.upgrade().await.unwrap().release().await.unwrap();
}

/// It keeps its hold, and the reader ahead is not affected.
async fn a_cancelled_upgrade_keeps_reading(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let before = lock(world, &other).read().acquire().await.unwrap();
    let guard = lock(world, &one).upgradeable().acquire().await.unwrap();
    let token = CancellationToken::new();
    let mut upgrade = guard.upgrade().cancel_on(token.clone()).into_future();
    assert!(futures_util::poll!(upgrade.as_mut()).is_pending());
    token.cancel();
    let error = upgrade.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let UpgradeError { guard, reason, .. } = error;
    assert_eq!(reason, ChangeError::Cancelled { path: world.lock() });
    assert!(guard.is_held() && before.is_held());
    before.release().await.unwrap();
    guard.upgrade().cancel_on(CancellationToken::new()).await.unwrap().release().await.unwrap();
}

/// Only one upgradeable reader holds at a time: the second waits without a hold.
async fn two_upgrades_never_wait_for_each_other(world: &World) {
    let keepers = [world.keeper().await, world.keeper().await];
    let mut tasks = Vec::new();
    for keeper in &keepers {
        let upgradeable = lock(world, keeper).upgradeable();
        tasks.push(crate::support::spawn(async move {
            for round in 0..20 {
                let guard = upgradeable.acquire().await.unwrap();
                if round % 4 == 3 {
                    guard.release().await.unwrap();
                    continue;
                }
                let guard = guard.upgrade().await.unwrap();
                guard.release().await.unwrap();
            }
        }));
        let read = lock(world, keeper).read();
        tasks.push(crate::support::spawn(async move {
            for _ in 0..20 {
                read.acquire().await.unwrap().release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.expect("the upgrades wait for each other").unwrap();
    }
    eventually("no contender is left", async || world.queue().await.is_empty()).await;
}

/// All kinds of requests of two sessions in many orders, and some that time out: every other request is granted.
async fn case_17_readers_and_writers_never_wait_in_a_circle(world: &World) {
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let keeper = world.keeper().await;
        for task in 0..6 {
            let lock = lock(world, &keeper);
            tasks.push(crate::support::spawn(async move {
                for round in 0..10 {
                    match (task + round) % 4 {
                        0 => drop(lock.write().acquire().await.unwrap()),
                        1 => match lock.write().acquire().timeout(Duration::from_millis(3)).await {
                            Ok(guard) => drop(guard.downgrade().await.unwrap()),
                            Err(error) => assert!(matches!(error, AcquireError::Timeout { .. }), "{error}"),
                        },
                        2 => drop(lock.upgradeable().acquire().await.unwrap().upgrade().await.unwrap()),
                        _ => lock.read().acquire().await.unwrap().release().await.unwrap(),
                    }
                }
            }));
        }
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.expect("readers and writers wait in a circle").unwrap();
    }
    world.queued(0).await;
}

//! Foreground and background: Contentserv's algorithm and layout, node for node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::error::{AcquireError, SessionError};
use lockkeeper::{Class, Lockkeeper, PriorityLock};
use lockkeeper_server::Server;
use lockkeeper_testkit::proxy::OpCode;
use tokio::time::Instant;
use zookeeper_client as zk;

use super::plain::Plain;
use crate::support::{
    HOLDER_MARKER, PATIENCE, STEADY, Stalls, Waiter, World, block_on, config, eventually, for_kinds, name,
};

for_kinds!(
    [classes Foreground]
    the_first_contender_creates_the_object_and_it_remains,
    requests_and_marker_are_nodes_of_their_contenders_sessions,
    two_foreground_saves_run_in_the_order_of_their_numbers,
    two_background_jobs_run_in_the_order_of_their_numbers,
    the_foreground_runs_before_an_earlier_background_request,
    a_holder_of_a_lower_class_is_ahead,
    each_class_goes_before_the_classes_behind_it,
    a_holder_marker_blocks_every_contender_whatever_made_it,
    a_contender_waits_for_a_marker_that_another_made_first,
    unlock_deletes_request_and_marker_in_one_transaction,
    a_lost_reply_leaves_one_request_and_one_marker,
    tokens_increase_although_the_latest_contender_is_granted_first,
    a_steady_foreground_starves_the_background_until_ageing,
    a_crashed_holder_is_followed_within_its_session_timeout,
    a_crashed_waiter_removes_only_its_own_node,
    a_released_lock_is_passed_on_within_a_tenth_of_a_second,
    plain_clients_and_lockkeeper_exclude_each_other,
    plain_clients_and_lockkeeper_share_one_order,
);

/// It is behind the waiter in the listing. If the holder is the first of the listing, it is counted once.
async fn a_holder_of_a_lower_class_is_ahead(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let ahead = async || {
        let outcome = lock(world, &other).foreground().acquire().timeout(Duration::from_secs(1)).await;
        let Err(AcquireError::Timeout { ahead, .. }) = outcome else { panic!("{outcome:?}") };
        world.queued(2).await;
        ahead
    };
    let guard = lock(world, &one).background().acquire().await.unwrap();
    let first = foreground(world, &one).await;
    assert_eq!(ahead().await, Some(2));
    let behind = background(world, &one).await;
    guard.release().await.unwrap();
    let guard = first.granted().await;
    assert_eq!(ahead().await, Some(1));
    guard.release().await.unwrap();
    behind.granted().await.release().await.unwrap();
}

fn lock(world: &World, keeper: &Lockkeeper) -> PriorityLock {
    keeper.priority_lock(world.lock())
}

async fn foreground(world: &World, keeper: &Lockkeeper) -> Waiter {
    world.enqueue(lock(world, keeper).foreground().acquire()).await
}

async fn background(world: &World, keeper: &Lockkeeper) -> Waiter {
    world.enqueue(lock(world, keeper).background().acquire()).await
}

/// All children including the holder marker, sorted by name.
async fn listing(world: &World) -> Vec<String> {
    let mut names = world.children(&world.lock()).await;
    names.sort();
    names
}

async fn owner(world: &World, node: &str) -> i64 {
    world.observer.check_stat(node).await.unwrap().unwrap().ephemeral_owner
}

/// C-05, C-06: several contenders start together on an object that does not exist: all get the lock. The object remains when
/// all have left, and no session owns it.
async fn the_first_contender_creates_the_object_and_it_remains(world: &World) {
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let keeper = world.keeper().await;
        for lock in [lock(world, &keeper), lock(world, &keeper).background()] {
            tasks.push(crate::support::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(listing(world).await, [""; 0]);
    // Not ephemeral. Whether it is a container, no server says.
    assert_eq!(owner(world, &world.lock()).await, 0);
}

/// C-05, C-06: the object's node is persistent unless a container was chosen: a server that deletes unused containers after a short
/// time deletes only the container, so the other clients of the layout find the object that they have just created.
#[test]
fn the_object_is_persistent_unless_a_container_was_chosen() {
    block_on(async {
        let soon = Duration::from_millis(50);
        let server = Server::start(config().with_container_check(soon).with_container_unused(soon)).await.unwrap();
        let keeper = Lockkeeper::connect(&server.connect_string()).await.unwrap();
        keeper.priority_lock("/P1").acquire().await.unwrap().release().await.unwrap();
        keeper.priority_lock("/P2").container(true).acquire().await.unwrap().release().await.unwrap();
        let client = zk::Client::connect(&server.connect_string()).await.unwrap();
        let exists = async |path| client.check_stat(path).await.unwrap().is_some();
        // The container was used last, so a check that deletes it has seen the other one.
        eventually("the container is deleted", async || !exists("/P2").await).await;
        assert!(exists("/P1").await);
        // Both are usable again, and an existing node stays what it is.
        keeper.priority_lock("/P2").acquire().await.unwrap().release().await.unwrap();
        keeper.priority_lock("/P1").container(true).acquire().await.unwrap().release().await.unwrap();
        keeper.priority_lock("/P3").container(true).acquire().await.unwrap().release().await.unwrap();
        eventually("the next container is deleted", async || !exists("/P3").await).await;
        assert!(exists("/P1").await && exists("/P2").await);
    });
}

/// C-06: also after a restart of the server.
#[test]
fn the_object_remains_after_a_restart() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let durable = || config().with_directory(dir.path());
        let server = Server::start(durable()).await.unwrap();
        let keeper = Lockkeeper::connect(&server.connect_string()).await.unwrap();
        keeper.priority_lock("/P1").acquire().await.unwrap().release().await.unwrap();
        keeper.close().await;
        server.shutdown().await.unwrap();
        let server = Server::start(durable()).await.unwrap();
        let client = zk::Client::connect(&server.connect_string()).await.unwrap();
        assert!(client.check_stat("/P1").await.unwrap().is_some());
        assert_eq!(client.list_children("/P1").await.unwrap(), [""; 0]);
    });
}

/// C-01, C-02, C-07, C-08, C-12, C-13: the prefix, a dash and ten digits; both nodes belong to the session; the marker is not a
/// request.
async fn requests_and_marker_are_nodes_of_their_contenders_sessions(world: &World) {
    let keeper = world.keeper().await;
    let requests = [(lock(world, &keeper), "A-"), (lock(world, &keeper).foreground(), "A-")];
    for (lock, prefix) in requests.into_iter().chain([(lock(world, &keeper).background(), "B-")]) {
        let guard = lock.acquire().await.unwrap();
        let node = name(&guard);
        let number = node.strip_prefix(prefix).unwrap_or_else(|| panic!("{node}"));
        assert!(number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit()), "{node}");
        assert_eq!(listing(world).await, [node.as_str(), HOLDER_MARKER]);
        let seen = keeper.admin().show(&world.lock()).await.unwrap();
        let session = seen.holders[0].session.0;
        assert_ne!(session, 0);
        for node in [node.as_str(), HOLDER_MARKER] {
            assert_eq!(owner(world, &format!("{}/{node}", world.lock())).await, session);
        }
        assert_eq!((seen.holders[0].node.as_str(), seen.waiters.len(), seen.unknown.len()), (node.as_str(), 0, 0));
        assert_eq!(seen.holders[0].token, Some(guard.token()));
        guard.release().await.unwrap();
    }
    // A class that sorts after the marker's name does not turn the marker into a request.
    let last = lock(world, &keeper).class(Class::new("z").unwrap());
    last.acquire().await.unwrap().release().await.unwrap();
}

/// C-50, C-10, C-16, C-18: `A-n` makes the marker and runs. `A-m` waits until the watch reports the unlock, makes the marker,
/// runs and unlocks; no child is left. The numbers are not consecutive, because the marker counts too.
async fn two_foreground_saves_run_in_the_order_of_their_numbers(world: &World) {
    two_of_one_class(world, "A-", |lock| lock.foreground()).await;
}

/// C-51, C-10, C-16, C-19: the same for the background.
async fn two_background_jobs_run_in_the_order_of_their_numbers(world: &World) {
    two_of_one_class(world, "B-", |lock| lock.background()).await;
}

async fn two_of_one_class(world: &World, prefix: &str, class: fn(&PriorityLock) -> PriorityLock) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let first = class(&lock(world, &one)).acquire().await.unwrap();
    let second = world.enqueue(class(&lock(world, &other)).acquire()).await;
    let [n, m] = [format!("{prefix}0000000000"), format!("{prefix}0000000002")];
    assert_eq!(name(&first), n);
    assert_eq!(listing(world).await, [n.as_str(), m.as_str(), HOLDER_MARKER]);
    let sessions = [owner(world, &first.node()).await, owner(world, &format!("{}/{m}", world.lock())).await];
    let mark = format!("{}/{HOLDER_MARKER}", world.lock());
    assert_eq!(owner(world, &mark).await, sessions[0]);
    assert!(second.waits());
    let token = first.token();
    first.release().await.unwrap();
    let second = second.granted().await;
    assert_eq!(name(&second), m);
    assert_eq!(listing(world).await, [m.as_str(), HOLDER_MARKER]);
    assert_eq!(owner(world, &mark).await, sessions[1]);
    assert!(token < second.token());
    second.release().await.unwrap();
    assert_eq!(listing(world).await, [""; 0]);
}

/// C-52, C-09, C-20, C-21, C-22: client 1 runs, client 2 requests the lock in the background, client 3 in the foreground: they
/// run in the order 1, 3, 2. No holder is interrupted.
async fn the_foreground_runs_before_an_earlier_background_request(world: &World) {
    let keepers = [world.keeper().await, world.keeper().await, world.keeper().await];
    for class in [PriorityLock::foreground, PriorityLock::background] {
        let running = class(&lock(world, &keepers[0])).acquire().await.unwrap();
        let second = background(world, &keepers[1]).await;
        let third = foreground(world, &keepers[2]).await;
        assert!(running.is_held() && second.waits() && third.waits());
        running.release().await.unwrap();
        let third = third.granted().await;
        assert!(second.waits());
        // A later foreground request runs before it as well.
        let fourth = foreground(world, &keepers[0]).await;
        third.release().await.unwrap();
        let fourth = fourth.granted().await;
        assert!(second.waits());
        fourth.release().await.unwrap();
        second.granted().await.release().await.unwrap();
    }
}

/// C-09: any number of classes; their letters give the order, whatever the numbers are.
async fn each_class_goes_before_the_classes_behind_it(world: &World) {
    let keeper = world.keeper().await;
    let running = lock(world, &keeper).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for class in ["Z", "M", "B", "AB", "A", "M", "A"] {
        let lock = lock(world, &keeper).class(Class::new(class).unwrap());
        waiters.push((class, Some(world.enqueue(lock.acquire()).await)));
    }
    let mut running = Some(running);
    for class in ["A", "A", "AB", "B", "M", "M", "Z"] {
        running.take().unwrap().release().await.unwrap();
        let next = waiters.iter_mut().find(|(of, waiter)| *of == class && waiter.is_some()).unwrap();
        let guard = next.1.take().unwrap().granted().await;
        assert!(name(&guard).starts_with(&format!("{class}-")), "{guard:?}");
        assert!(waiters.iter().flat_map(|(_, waiter)| waiter).all(|waiter| waiter.waits()));
        running = Some(guard);
    }
    drop(running);
}

/// C-10, C-12, C-14: also a marker without a request; its deletion grants the lock to the first contender.
async fn a_holder_marker_blocks_every_contender_whatever_made_it(world: &World) {
    let keeper = world.keeper().await;
    world.make(&world.lock()).await;
    let mark = format!("{}/{HOLDER_MARKER}", world.lock());
    for _ in 0..3 {
        world.make(&mark).await;
        assert!(matches!(lock(world, &keeper).try_acquire().await, Err(AcquireError::Held { .. })));
        world.queued(0).await;
        let second = background(world, &keeper).await;
        let first = foreground(world, &keeper).await;
        assert!(world.exists(&mark).await && first.waits() && second.waits());
        world.remove(&mark).await;
        let first = first.granted().await;
        assert!(second.waits());
        first.release().await.unwrap();
        second.granted().await.release().await.unwrap();
    }
}

/// C-11: without an error; the watch on the marker reports its deletion.
async fn a_contender_waits_for_a_marker_that_another_made_first(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    lock(world, &keeper).acquire().await.unwrap().release().await.unwrap();
    let mark = format!("{}/{HOLDER_MARKER}", world.lock());
    let taking = proxy.on(OpCode::Multi).hold_request();
    let waiter = foreground(world, &keeper).await;
    taking.caught().await;
    world.make(&mark).await;
    let before = proxy.counts();
    taking.release();
    // The refused contender lists the children and watches the marker.
    proxy.wait_until(|counts| counts.since(&before).delivered.of(OpCode::GetData) >= 1).await;
    assert!(waiter.waits());
    world.remove(&mark).await;
    waiter.granted().await.release().await.unwrap();
}

/// C-15: no client ever sees one without the other, because one request deletes both.
async fn unlock_deletes_request_and_marker_in_one_transaction(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    for _ in 0..3 {
        let guard = lock(world, &keeper).acquire().await.unwrap();
        let before = proxy.counts();
        let unlock = proxy.on(OpCode::Multi).hold_reply();
        let node = name(&guard);
        let releasing = crate::support::spawn(guard.release());
        unlock.caught().await;
        // The transaction is done, and no other delete was sent.
        assert_eq!(listing(world).await, [""; 0], "{node}");
        let sent = proxy.counts().since(&before).forwarded;
        assert_eq!((sent.of(OpCode::Multi), sent.of(OpCode::Delete)), (1, 0), "{sent:?}");
        unlock.release();
        releasing.await.unwrap().unwrap();
    }
}

/// C-11, C-15: the connection breaks before or after the marker's create, or the unlock, takes effect.
async fn a_lost_reply_leaves_one_request_and_one_marker(world: &World) {
    let proxy = world.proxy().await;
    let keeper = world.keeper_through(&proxy, STEADY).await;
    lock(world, &keeper).acquire().await.unwrap().release().await.unwrap();
    for effect in [false, true] {
        let lose = || {
            let multi = proxy.on(OpCode::Multi);
            if effect { multi.cut_before_reply() } else { multi.cut_before_request() }
        };
        let lost = lose();
        let guard = lock(world, &keeper).acquire().timeout(PATIENCE).await.unwrap();
        lost.fired().await;
        assert_eq!(listing(world).await, [name(&guard).as_str(), HOLDER_MARKER]);
        let seen = keeper.admin().show(&world.lock()).await.unwrap();
        assert_eq!(seen.holders[0].token, Some(guard.token()), "the token must come from the marker");
        assert!(guard.is_held());
        let lost = lose();
        guard.release().await.unwrap();
        lost.fired().await;
        assert_eq!(listing(world).await, [""; 0]);
        // The call is dropped while it makes the marker.
        let lost = lose();
        let call = crate::support::spawn(lock(world, &keeper).acquire().into_future());
        lost.fired().await;
        call.abort();
        eventually("no child is left", async || listing(world).await.is_empty()).await;
    }
}

/// The transaction that makes the marker gives the token: no other order increases from grant to grant.
async fn tokens_increase_although_the_latest_contender_is_granted_first(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    let mut guard = lock(world, &one).acquire().await.unwrap();
    let (mut waiters, mut later) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        later.push(background(world, &one).await);
        waiters.push(foreground(world, &other).await);
    }
    waiters.append(&mut later);
    let mut order = Vec::new();
    for waiter in waiters {
        let token = guard.token();
        guard.release().await.unwrap();
        guard = waiter.granted().await;
        assert!(token < guard.token());
        order.push(name(&guard));
    }
    assert!(order.is_sorted(), "{order:?}");
    guard.release().await.unwrap();
}

/// C-23: while another foreground contender always waits, the background does not run, and its wait ends at its own timeout.
/// With ageing it becomes a foreground contender.
async fn a_steady_foreground_starves_the_background_until_ageing(world: &World) {
    let keeper = world.keeper().await;
    let ask = || crate::support::spawn(lock(world, &keeper).acquire().into_future());
    let mut running = lock(world, &keeper).acquire().await.unwrap();
    let mut next = ask();
    let starving = lock(world, &keeper).background().acquire().timeout(Duration::from_secs(2));
    let starving = crate::support::spawn(starving.into_future());
    let ageing = lock(world, &keeper).background().ageing(Duration::from_secs(3), Class::FOREGROUND);
    let mut ageing = crate::support::spawn(ageing.acquire().into_future());
    world.queued(4).await;
    let mut served = 0;
    let aged = loop {
        let stands = ask();
        eventually("another foreground contender waits", async || {
            world.queue().await.iter().filter(|name| name.starts_with("A-")).count() >= 3
        })
        .await;
        running.release().await.unwrap();
        tokio::select! {
            aged = &mut ageing => {
                stands.abort();
                break aged.unwrap().unwrap();
            }
            granted = &mut next => (running, next, served) = (granted.unwrap().unwrap(), stands, served + 1),
        }
    };
    assert!(name(&aged).starts_with("A-") && served > 1, "{aged:?} after {served}");
    assert!(matches!(starving.await.unwrap(), Err(AcquireError::Timeout { .. })));
    aged.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
}

/// C-24: within the session timeout and one tick of the server.
async fn a_crashed_holder_is_followed_within_its_session_timeout(world: &World) {
    let (proxy, next) = (world.proxy().await, world.keeper().await);
    let holder = world.keeper_through(&proxy, Duration::from_secs(2)).await;
    let timeout = holder.session_timeout().unwrap();
    let stalls = Stalls::watch();
    let guard = lock(world, &holder).background().acquire().await.unwrap();
    let second = background(world, &next).await;
    let first = foreground(world, &next).await;
    let crashed = Instant::now();
    proxy.black_hole();
    let first = first.granted().await;
    let took = crashed.elapsed();
    println!("granted {took:?} after a crash (session timeout {timeout:?})");
    let most = stalls.allow(timeout + world.tick());
    assert!(took < most, "{took:?}, at most {most:?}");
    assert!(!guard.is_held() && second.waits() && guard.token() < first.token());
    proxy.heal();
    first.release().await.unwrap();
    second.granted().await.release().await.unwrap();
}

/// C-25: the other waiters keep their order.
async fn a_crashed_waiter_removes_only_its_own_node(world: &World) {
    let (steady, crashing) = (world.keeper().await, world.keeper().await);
    let guard = lock(world, &steady).acquire().await.unwrap();
    let third = background(world, &steady).await;
    let gone = [foreground(world, &crashing).await, background(world, &crashing).await];
    let fourth = background(world, &steady).await;
    let second = foreground(world, &steady).await;
    let before = world.queue().await;
    crashing.close().await;
    for waiter in gone {
        assert!(matches!(waiter.outcome().await, Err(AcquireError::Session(SessionError::Closed))));
    }
    let kept = [&before[0], &before[1], &before[4], &before[5]];
    assert!(world.queue().await.iter().eq(kept));
    guard.release().await.unwrap();
    for waiter in [second, third, fourth] {
        waiter.granted().await.release().await.unwrap();
    }
}

/// C-26: every one of them, beside a control of the machine.
async fn a_released_lock_is_passed_on_within_a_tenth_of_a_second(world: &World) {
    let (one, other) = (world.keeper().await, world.keeper().await);
    for _ in 0..5 {
        let guard = lock(world, &one).acquire().await.unwrap();
        let waiter = background(world, &other).await;
        let (stalls, started) = (Stalls::watch(), Instant::now());
        let releasing = crate::support::spawn(guard.release());
        let guard = waiter.granted().await;
        let (took, most) = (started.elapsed(), stalls.allow(Duration::from_millis(100)));
        assert!(took < most, "{took:?}, at most {most:?}");
        releasing.await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}

/// C-04, C-14, C-17: three clients written from the description, and ours in both classes, count up on one object; no update is
/// lost.
async fn plain_clients_and_lockkeeper_exclude_each_other(world: &World) {
    const ROUNDS: u64 = 15;
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for task in 0..3 {
        let plain = Plain::new(world, if task == 0 { "A" } else { "B" }, task % 2 == 0).await;
        let number = counter.clone();
        tasks.push(crate::support::spawn(async move {
            for _ in 0..ROUNDS {
                let held = plain.lock().await;
                raise(&number).await;
                plain.unlock(held).await;
            }
        }));
        let keeper = world.keeper().await;
        let ours = lock(world, &keeper).class(if task == 0 { Class::BACKGROUND } else { Class::FOREGROUND });
        let number = counter.clone();
        tasks.push(crate::support::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = ours.acquire().await.unwrap();
                raise(&number).await;
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(PATIENCE, task).await.expect("a contender waits for ever").unwrap();
    }
    assert_eq!(counter.load(SeqCst), 6 * ROUNDS, "updates were lost");
    assert_eq!(listing(world).await, [""; 0]);
}

/// Reads, yields and writes: two holders together would lose an update.
async fn raise(counter: &AtomicU64) {
    let seen = counter.load(SeqCst);
    tokio::task::yield_now().await;
    counter.store(seen + 1, SeqCst);
}

/// C-09, C-14, C-21: both clients see the same order, whichever holds.
async fn plain_clients_and_lockkeeper_share_one_order(world: &World) {
    let keeper = world.keeper().await;
    let fore = Arc::new(Plain::new(world, "A", true).await);
    let back = Arc::new(Plain::new(world, "B", false).await);
    #[expect(clippy::async_yields_async, reason = "the handle of the waiting call is the result")]
    let plain = async |client: &Arc<Plain>| {
        let (ahead, client) = (world.queue().await.len(), client.clone());
        let waiting = crate::support::spawn(async move { client.lock().await });
        world.queued(ahead + 1).await;
        waiting
    };
    let held = back.lock().await;
    assert!(matches!(lock(world, &keeper).try_acquire().await, Err(AcquireError::Held { .. })));
    world.queued(1).await;
    let third = background(world, &keeper).await;
    let fourth = plain(&back).await;
    let first = foreground(world, &keeper).await;
    let second = plain(&fore).await;
    back.unlock(held).await;
    let first = first.granted().await;
    assert!(third.waits() && !second.is_finished() && !fourth.is_finished());
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert!(third.waits() && !fourth.is_finished());
    fore.unlock(second).await;
    let third = third.granted().await;
    assert!(!fourth.is_finished());
    third.release().await.unwrap();
    back.unlock(fourth.await.unwrap()).await;
    // A plain holder whose connection ends is followed like any other holder.
    let held = fore.lock().await;
    let next = foreground(world, &keeper).await;
    drop((held, fore, back));
    next.granted().await.release().await.unwrap();
}

//! The same for the kinds that are held together, counted or ranked, with changes of what is held and requests to let go.
//!
//! Judged at each step of work: those who believe at that moment, by their own clocks, must be allowed to hold together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{
    Class, Dialect, Error, FencingToken, Guard, Holding, Lockkeeper, Permit, UpgradeableGuard, WriteGuard,
};
use lockkeeper_testkit::sim::{Settings, Sim};
use tokio::time::Instant;

use super::{LOCK, SESSION_TIMEOUT, afflict, seeds, simulate};

const PERMITS: u32 = 4;

/// Kinds that share one path.
#[derive(Clone, Copy, Debug)]
enum Family {
    /// Readers, writers, and readers that become writers.
    Shared(Dialect),
    /// Requests for one to all of four permits.
    Permits,
    /// Foreground, background, and background that ages.
    Classes,
}

/// What one holds beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Alone,
    Reads,
    Permits(u32),
}

#[derive(Debug)]
enum Held {
    Alone(Guard),
    Reads(Guard),
    Writes(WriteGuard),
    MayWrite(UpgradeableGuard),
    Permits(u32, Permit),
}

impl Held {
    fn share(&self) -> Share {
        match self {
            Held::Alone(_) | Held::Writes(_) => Share::Alone,
            Held::Reads(_) | Held::MayWrite(_) => Share::Reads,
            Held::Permits(take, _) => Share::Permits(*take),
        }
    }

    fn holding(&self) -> &Holding {
        match self {
            Held::Alone(guard) | Held::Reads(guard) => guard,
            Held::Writes(guard) => guard,
            Held::MayWrite(guard) => guard,
            Held::Permits(_, permit) => permit,
        }
    }

    fn token(&self) -> Option<FencingToken> {
        match self {
            Held::Alone(guard) | Held::Reads(guard) => Some(guard.token()),
            Held::Writes(guard) => Some(guard.token()),
            Held::MayWrite(guard) => Some(guard.token()),
            Held::Permits(..) => None,
        }
    }

    async fn release(self) {
        // Lost meanwhile, perhaps; that is no fault of the library's.
        _ = match self {
            Held::Alone(guard) | Held::Reads(guard) => guard.release().await,
            Held::Writes(guard) => guard.release().await,
            Held::MayWrite(guard) => guard.release().await,
            Held::Permits(_, permit) => permit.release().await,
        };
    }
}

/// Those who hold something, and what was done so far.
#[derive(Clone, Default)]
struct Inside(Arc<Mutex<Believers>>);

#[derive(Default)]
struct Believers {
    held: BTreeMap<u64, Held>,
    next: u64,
    grants: usize,
    changes: usize,
    asked: usize,
    /// The newest token under which somebody worked alone, and under which anybody worked.
    alone: Option<FencingToken>,
    any: Option<FencingToken>,
}

impl Inside {
    fn enter(&self, held: Held) -> u64 {
        let mut inside = self.0.lock().unwrap();
        inside.next += 1;
        let key = inside.next;
        inside.held.insert(key, held);
        key
    }

    fn leave(&self, key: u64) -> Held {
        self.0.lock().unwrap().held.remove(&key).unwrap()
    }

    /// A step of work, if its guard says that it may be: `None` if it does not.
    fn work(&self, key: u64) -> Result<Option<bool>, String> {
        let inside = &mut *self.0.lock().unwrap();
        let own = &inside.held[&key];
        if !own.holding().is_held() {
            return Ok(None);
        }
        let believe = inside.held.values().filter(|held| held.holding().is_held());
        let (mut alone, mut reads, mut permits) = (0, 0, 0);
        for held in believe {
            match held.share() {
                Share::Alone => alone += 1,
                Share::Reads => reads += 1,
                Share::Permits(take) => permits += take,
            }
        }
        if alone > 1 || alone == 1 && reads > 0 || permits > PERMITS {
            return Err(format!("at {:?} these believe: {:#?}", Instant::now(), inside.held));
        }
        let older = |newest: Option<FencingToken>| newest.is_some() && own.token() < newest;
        if own.share() == Share::Alone && older(inside.any) || own.share() == Share::Reads && older(inside.alone) {
            return Err(format!("work after one with a newer token: {own:?}, {:?}, {:?}", inside.alone, inside.any));
        }
        inside.any = inside.any.max(own.token());
        if own.share() == Share::Alone {
            inside.alone = inside.alone.max(own.token());
        }
        Ok(Some(own.holding().revocation_requested().is_some()))
    }
}

/// What may come of a request in a world like this.
fn expected(error: &Error) -> bool {
    matches!(
        error,
        Error::Held { .. }
            | Error::Timeout { .. }
            | Error::SessionLost { .. }
            | Error::Unreachable { .. }
            | Error::ConnectionLost { .. }
            | Error::Evicted { .. }
            | Error::Revoked { .. }
    )
}

/// Asks by one of the ways there are, dropped at some moment now and then.
async fn ask<G: lockkeeper::FromHolding>(
    sim: &Sim,
    acquire: impl Fn(bool) -> lockkeeper::Acquire<G>,
) -> Option<Result<G, Error>> {
    match sim.pick(4) {
        0 => Some(acquire(true).await),
        1 => Some(acquire(false).timeout(sim.within(&(Duration::ZERO..Duration::from_secs(3)))).await),
        2 => {
            let patience = sim.within(&(Duration::ZERO..Duration::from_secs(1)));
            tokio::time::timeout(patience, acquire(false)).await.ok()
        }
        _ => Some(acquire(false).await),
    }
}

async fn request(sim: &Sim, keeper: &Lockkeeper, family: Family) -> Option<Result<Held, Error>> {
    match family {
        Family::Shared(dialect) => {
            let lock = keeper.rwlock(LOCK).dialect(dialect);
            match sim.pick(5) {
                0 | 1 => {
                    let read = lock.read();
                    let asked = ask(sim, |once| if once { read.try_acquire() } else { read.acquire() }).await;
                    asked.map(|held| held.map(Held::Reads))
                }
                2 => {
                    let may = lock.upgradeable();
                    let asked = ask(sim, |once| if once { may.try_acquire() } else { may.acquire() }).await;
                    asked.map(|held| held.map(Held::MayWrite))
                }
                _ => {
                    let write = lock.write();
                    let asked = ask(sim, |once| if once { write.try_acquire() } else { write.acquire() }).await;
                    asked.map(|held| held.map(Held::Writes))
                }
            }
        }
        Family::Permits => {
            let (lock, take) = (keeper.semaphore(LOCK, PERMITS), 1 + u32::try_from(sim.pick(4)).unwrap());
            let acquire = |once| if once { lock.try_acquire_many(take) } else { lock.acquire_many(take) };
            ask(sim, acquire).await.map(|held| held.map(|permit| Held::Permits(take, permit)))
        }
        Family::Classes => {
            let lock = keeper.priority_lock(LOCK);
            let lock = match sim.pick(3) {
                0 => lock.foreground(),
                1 => lock.background(),
                _ => lock.background().ageing(sim.within(&(Duration::ZERO..Duration::from_secs(2))), Class::FOREGROUND),
            };
            let asked = ask(sim, |once| if once { lock.try_acquire() } else { lock.acquire() }).await;
            asked.map(|held| held.map(Held::Alone))
        }
    }
}

/// Now and then what is held is changed for something else; `None`: it was lost meanwhile.
async fn change(sim: &Sim, held: Held) -> Option<Held> {
    match held {
        Held::Writes(guard) if sim.pick(2) == 0 => guard.downgrade().await.ok().map(Held::Reads),
        Held::MayWrite(guard) => match sim.pick(4) {
            0 => guard.downgrade().await.ok().map(Held::Reads),
            1 => Some(Held::MayWrite(guard)),
            _ => {
                let patience = sim.within(&(Duration::ZERO..Duration::from_secs(2)));
                match guard.upgrade((sim.pick(3) > 0).then_some(patience)).await {
                    Ok(guard) => Some(Held::Writes(guard)),
                    Err((guard, _)) => Some(Held::MayWrite(guard)),
                }
            }
        },
        held => Some(held),
    }
}

async fn work(sim: &Sim, inside: &Inside, mut held: Held) -> Result<(), String> {
    let short = Duration::from_millis(1)..Duration::from_millis(300);
    for _ in 0..2 {
        let key = inside.enter(held);
        // Now and then longer than a session lives without its server.
        let steps = if sim.pick(10) == 0 { 60 } else { sim.pick(5) };
        for _ in 0..steps {
            match inside.work(key)? {
                None => break,
                Some(true) if sim.pick(2) == 0 => {
                    let inside = inside.0.lock().unwrap();
                    inside.held[&key].holding().refuse_revocation("busy");
                }
                Some(true) => break,
                Some(false) => {}
            }
            tokio::time::sleep(sim.within(&short)).await;
        }
        let before = inside.leave(key);
        let was = before.share();
        match change(sim, before).await {
            Some(changed) => held = changed,
            None => return Ok(()),
        }
        if held.share() == was {
            break;
        }
        inside.0.lock().unwrap().changes += 1;
    }
    if sim.pick(3) == 0 {
        drop(held)
    } else {
        held.release().await
    }
    Ok(())
}

async fn contend(sim: Sim, keeper: Lockkeeper, inside: Inside, family: Family, until: Instant) -> Result<(), String> {
    while Instant::now() < until {
        tokio::time::sleep(sim.within(&(Duration::from_millis(1)..Duration::from_millis(300)))).await;
        match request(&sim, &keeper, family).await {
            Some(Ok(held)) => {
                inside.0.lock().unwrap().grants += 1;
                work(&sim, &inside, held).await?;
            }
            Some(Err(error)) if !expected(&error) => return Err(format!("unexpected: {error}")),
            _ => {}
        }
    }
    Ok(())
}

/// Somebody who asks holders, and now and then everyone, to let go.
async fn interfere(sim: Sim, keeper: Lockkeeper, inside: Inside, until: Instant) -> Result<(), String> {
    let admin = keeper.admin();
    while Instant::now() < until {
        tokio::time::sleep(sim.within(&(Duration::from_millis(100)..Duration::from_secs(4)))).await;
        let outcome = match sim.pick(3) {
            0 => match admin.show(LOCK).await {
                Ok(seen) => match seen.waiters.first() {
                    Some(waiter) => admin.revoke_node(LOCK, &waiter.node, None).await.map(|_| 1),
                    None => Ok(0),
                },
                Err(error) => Err(error),
            },
            _ => admin.revoke(LOCK, Some("because")).await.map(|asked| asked.len()),
        };
        match outcome {
            Ok(asked) => inside.0.lock().unwrap().asked += asked,
            Err(Error::NoSuchLock { .. }) => {}
            Err(error) if expected(&error) => {}
            Err(error) => return Err(format!("unexpected: {error}")),
        }
    }
    Ok(())
}

fn world(seed: u64, family: Family) -> Result<[usize; 3], String> {
    simulate(async {
        let sim = Sim::new(seed, Settings::default());
        let until = Instant::now() + Duration::from_secs(60);
        let inside = Inside::default();
        let (mut lives, mut keepers) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let keeper = Lockkeeper::builder().simulated(sim.network(SESSION_TIMEOUT));
            for _ in 0..2 {
                lives.push(tokio::spawn(contend(sim.clone(), keeper.clone(), inside.clone(), family, until)));
            }
            keepers.push(keeper);
        }
        lives.push(tokio::spawn(interfere(sim.clone(), keepers[0].clone(), inside.clone(), until)));
        afflict(sim.clone(), until).await;
        for life in lives {
            match tokio::time::timeout(SESSION_TIMEOUT * 20, life).await {
                Ok(ended) => ended.map_err(|panic| panic.to_string())??,
                Err(_) => {
                    let held = &inside.0.lock().unwrap().held;
                    return Err(format!("one waits for ever; queue: {:?}; held: {held:?}", sim.children(LOCK)));
                }
            }
        }
        for keeper in keepers {
            keeper.close().await;
        }
        tokio::time::sleep(SESSION_TIMEOUT * 2).await;
        let left = sim.children(LOCK);
        if !left.is_empty() {
            return Err(format!("left behind: {left:?}"));
        }
        let inside = inside.0.lock().unwrap();
        Ok([inside.grants, inside.changes, inside.asked])
    })
}

fn explore(count: u64, family: Family) -> [usize; 3] {
    let mut sums = [0; 3];
    for seed in seeds(count) {
        match world(seed, family) {
            Ok(counts) => sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            Err(problem) => panic!("LOCKKEEPER_SEED={seed} ({family:?}): {problem}"),
        }
    }
    let [grants, changes, asked] = sums;
    println!("{grants} grants, {changes} changes of what was held, {asked} requests to let go");
    assert!(grants > 0 && asked > 0, "nothing happened");
    sums
}

#[test]
fn seeded_worlds_of_readers_and_writers_keep_the_contract() {
    let [_, changes, _] = explore(30, Family::Shared(Dialect::Curator));
    assert!(changes > 0, "nobody changed what was held");
}

#[test]
fn seeded_worlds_of_readers_and_writers_with_unprotected_names_keep_the_contract() {
    explore(20, Family::Shared(Dialect::Recipe));
}

#[test]
fn seeded_worlds_of_readers_and_writers_with_kazoos_names_keep_the_contract() {
    explore(10, Family::Shared(Dialect::Kazoo));
}

#[test]
fn seeded_worlds_of_permits_keep_the_contract() {
    explore(40, Family::Permits);
}

#[test]
fn seeded_worlds_of_classes_keep_the_contract() {
    explore(40, Family::Classes);
}

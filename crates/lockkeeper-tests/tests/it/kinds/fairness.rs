//! Fairness within a class: the order of grants is the order in which the server stored the requests.

use std::sync::{Arc, Mutex};

use lockkeeper_testkit::is_deep;

use crate::support::{Held, Kind, World, grew, on_the_embedded_server_for};

on_the_embedded_server_for!(
    [
        native Native, #[cfg(deep)] recipe Recipe, write Write, upgradeable Upgradeable, permits Permits,
        #[cfg(deep)] foreground Foreground, background Background
    ]
    grants_come_in_the_order_of_their_creates,
);

on_the_embedded_server_for!(
    [classes Background]
    within_each_of_two_classes_grants_come_in_the_order_of_their_creates,
);

const CONTENDERS: usize = 64;

/// The classes and numbers of the granted nodes, in the order of the grants.
#[derive(Clone, Default)]
struct Grants(Arc<Mutex<Vec<(String, u32)>>>);

impl Grants {
    /// Records a grant while it is held: with one holder at a time, this gives the order.
    fn note(&self, guard: &Held) {
        let name = guard.name();
        let (class, number) = name.split_at(name.len() - 10);
        let class = class.split_once('-').map_or("", |(class, _)| class).to_owned();
        self.0.lock().unwrap().push((class, number.parse().unwrap()));
    }
}

/// C-18, N-04: 64 contenders of four sessions. Each number and each token is greater than all before it.
async fn grants_come_in_the_order_of_their_creates(world: &World) {
    let enough = if is_deep() { 10_000 } else { 200 };
    let grants = Grants::default();
    let newest = Arc::new(Mutex::new(None));
    let mut tasks = Vec::new();
    for keeper in [world.keeper().await, world.keeper().await, world.keeper().await, world.keeper().await] {
        for _ in 0..CONTENDERS / 4 {
            let (lock, grants, newest) = (world.subject(&keeper), grants.clone(), newest.clone());
            tasks.push(crate::support::spawn(async move {
                while grants.0.lock().unwrap().len() < enough {
                    let guard = lock.acquire().await.unwrap();
                    grants.note(&guard);
                    let before = newest.lock().unwrap().replace(guard.token());
                    assert!(before.is_none_or(|before| grew(before, guard.token())), "{before:?}, then {guard:?}");
                    drop(guard);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let grants = grants.0.lock().unwrap();
    assert!(grants.len() >= enough);
    let out_of_order = grants.windows(2).find(|pair| pair[0].1 >= pair[1].1);
    assert_eq!(out_of_order, None, "of {} grants", grants.len());
}

/// C-18, C-19, C-21: a contender can overtake one of another class, but never one of its own.
async fn within_each_of_two_classes_grants_come_in_the_order_of_their_creates(world: &World) {
    let rounds = if is_deep() { 20 } else { 3 };
    let grants = Grants::default();
    let mut tasks = Vec::new();
    for keeper in [world.keeper().await, world.keeper().await, world.keeper().await, world.keeper().await] {
        for contender in 0..CONTENDERS / 4 {
            let kind = if contender % 2 == 0 { Kind::Foreground } else { Kind::Background };
            let (lock, grants) = (kind.lock(&keeper, &world.lock()), grants.clone());
            tasks.push(crate::support::spawn(async move {
                for _ in 0..rounds {
                    let guard = lock.acquire().await.unwrap();
                    grants.note(&guard);
                    drop(guard);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let grants = grants.0.lock().unwrap();
    for class in ["A", "B"] {
        let numbers: Vec<_> = grants.iter().filter(|(of, _)| of == class).map(|(_, number)| number).collect();
        assert_eq!(numbers.len(), CONTENDERS / 2 * rounds);
        assert!(numbers.is_sorted(), "{class}: out of order");
    }
    let first_background = grants.iter().position(|(class, _)| class == "B").unwrap();
    println!("{first_background} of {} grants came before the first in the background", grants.len());
}

//! What is said of foreign clients whose nodes are not those of a queue, and what becomes of a foreign holder that is asked to release.
//!
//! In simulated time. The nodes are those that the clients create.

use lockkeeper::Lockkeeper;
use lockkeeper::admin::{Grant, LockInfo};
use lockkeeper_session::ensemble::{Ensemble, NodeKind, above};

use lockkeeper::error::AdminError;

use crate::support::{simulated, simulated_keeper as keeper};

const UUID: &str = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
const HEX: &str = "0a1b2c3d4e5f4a6b8c7d9e0f1a2b3c4";

/// Creates a node in the session of a client; returns its path.
async fn create(client: &Lockkeeper, path: impl Into<String>, data: &str, kind: NodeKind) -> String {
    let (path, data) = (path.into(), data.as_bytes().to_vec());
    let (keeper, parent) = (client, above(&path).to_owned());
    let created = async move |ensemble: std::sync::Arc<dyn Ensemble>| {
        Ok::<_, AdminError>(ensemble.create(&path, data, kind).await.unwrap().0)
    };
    let name = keeper.sessions().ask(created).await.unwrap();
    format!("{parent}/{name}")
}

async fn directories(client: &Lockkeeper, paths: &[&str]) {
    for path in paths {
        create(client, *path, "", NodeKind::Persistent).await;
    }
}

async fn delete(client: &Lockkeeper, path: &str) {
    let (keeper, path) = (client, path.to_owned());
    let deleted = async move |ensemble: std::sync::Arc<dyn Ensemble>| {
        ensemble.delete(&path, None).await.unwrap();
        Ok::<_, AdminError>(())
    };
    keeper.sessions().ask(deleted).await.unwrap();
}

/// The one lock of the tree, as a listing and a question about it show it.
async fn only(keeper: &Lockkeeper, path: &str) -> LockInfo {
    let locks = keeper.admin().list("/").await.unwrap();
    assert_eq!(locks.iter().map(|lock| &*lock.path).collect::<Vec<_>>(), [path], "{locks:#?}");
    let shown = keeper.admin().show(path).await.unwrap();
    assert_eq!((&shown.holders, &shown.waiters), (&locks[0].holders, &locks[0].waiters));
    shown
}

fn paths(lock: &LockInfo) -> (Vec<String>, Vec<String>) {
    let of = |all: &[lockkeeper::admin::ContenderInfo]| all.iter().map(|it| it.node_path(&lock.path)).collect();
    (of(&lock.holders), of(&lock.waiters))
}

#[test]
fn kazoos_semaphore_is_shown_with_its_leases_as_holders_and_those_that_ask_as_waiters() {
    simulated(async |sim| {
        let clients = [keeper(&sim), keeper(&sim), keeper(&sim), keeper(&sim)];
        directories(&clients[0], &["/apps", "/apps/pool-__lock__"]).await;
        create(&clients[0], "/apps/pool", "2", NodeKind::Persistent).await;
        let mut leases = Vec::new();
        for (at, client) in clients.iter().enumerate().take(2) {
            let lease = format!("/apps/pool/{HEX}{at}");
            leases.push(create(client, lease, &format!("worker {at}"), NodeKind::Ephemeral).await);
        }
        let mut asking = Vec::new();
        for (at, client) in clients.iter().enumerate().skip(2) {
            let node = format!("/apps/pool-__lock__/{HEX}{at}__lock__");
            asking.push(create(client, node, &format!("worker {at}"), NodeKind::EphemeralSequential).await);
        }
        let lock = only(&clients[0], "/apps/pool").await;
        assert_eq!((lock.semaphore, lock.permits), (Some("kazoo"), Some(2)));
        assert_eq!(paths(&lock), (leases.clone(), asking));
        assert!(lock.holders.iter().all(|holder| holder.granted == Some(holder.since)), "{lock:#?}");
        assert_eq!([&lock.holders[1].described, &lock.waiters[0].described], ["worker 1", "worker 2"]);
        // The lock of those that ask is held for a moment with each lease. Nothing else is a lock.
        for node in leases {
            delete(&clients[0], &node).await;
        }
        let lock = only(&clients[0], "/apps/pool").await;
        assert_eq!((lock.holders.len(), lock.waiters.len()), (0, 2));
    });
}

#[test]
fn curators_semaphore_is_shown_with_its_leases_as_holders_and_those_that_ask_as_waiters() {
    simulated(async |sim| {
        let clients = [keeper(&sim), keeper(&sim), keeper(&sim)];
        directories(&clients[0], &["/csem", "/csem/leases", "/csem/locks"]).await;
        let lease = format!("/csem/leases/_c_{UUID}-lease-");
        let first = create(&clients[0], lease.clone(), "10.0.0.1", NodeKind::EphemeralSequential).await;
        let lock = only(&clients[0], "/csem").await;
        assert_eq!((lock.semaphore, lock.permits), (Some("curator"), None));
        assert_eq!(lock.holders[0].granted, Some(lock.holders[0].since), "nothing has changed since");
        // The second has created its lease, and waits until the first is given back. The third waits for the second.
        let mut asking = Vec::new();
        for (at, client) in clients.iter().enumerate().skip(1) {
            let node = format!("/csem/locks/_c_{UUID}-lock-");
            asking.push(create(client, node, &format!("10.0.0.{at}"), NodeKind::EphemeralSequential).await);
        }
        let second = create(&clients[1], lease, "10.0.0.1", NodeKind::EphemeralSequential).await;
        let lock = only(&clients[0], "/csem").await;
        assert_eq!(paths(&lock), (vec![first.clone()], asking.clone()));
        let refused = clients[0].admin().revoke("/csem", Some("deploying")).await;
        assert!(matches!(refused, Err(AdminError::CannotAsk { .. })), "it has no answer to a request");
        // The second is granted its lease, and lets the third ask.
        clients[0].admin().break_lock("/csem", "its client hangs").await.unwrap();
        delete(&clients[1], &asking[0]).await;
        let lock = only(&clients[0], "/csem").await;
        assert_eq!(paths(&lock), (vec![second], asking[1..].to_vec()));
        let holder = &lock.holders[0];
        assert_eq!(
            holder.grant(),
            Some(Grant::between(holder.since, None)),
            "it waited, and nobody knows for how long"
        );
    });
}

/// Curator's clients know one word, which takes the place of the address that they wrote.
#[test]
fn a_foreign_holder_that_is_asked_to_release_keeps_its_name_and_shows_who_asked() {
    simulated(async |sim| {
        let (client, admin) = (keeper(&sim), keeper(&sim));
        directories(&client, &["/locks", "/locks/a"]).await;
        let node = format!("/locks/a/_c_{UUID}-lock-");
        create(&client, node, "10.0.0.7", NodeKind::EphemeralSequential).await;
        admin.admin().revoke("/locks/a", Some("deploying")).await.unwrap();
        let lock = admin.admin().show("/locks/a").await.unwrap();
        let holder = &lock.holders[0];
        assert_eq!(holder.described, "10.0.0.7");
        let asked = holder.revocation.as_ref().unwrap();
        assert_eq!((asked.by.is_some(), asked.reason.as_deref()), (true, Some("deploying")));
        let broken = admin.admin().break_lock("/locks/a", "no answer").await.unwrap();
        assert_eq!(broken.described, "10.0.0.7");
    });
}

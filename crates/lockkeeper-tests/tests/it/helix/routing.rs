//! Realms from Helix's routing data.

use lockkeeper::Lockkeeper;
use lockkeeper::error::{AcquireError, ConnectError, Misuse};
use lockkeeper_config::realms::{Realms, Routes};
use lockkeeper_config::settings::{Key, Sources};
use lockkeeper_helix::routing::{ROUTING_DATA, RoutingError};
use lockkeeper_helix::{HelixLock, Scope};
use lockkeeper_server::Server;
use zookeeper_client as zk;

use super::{LONG, on_every_record_server};
use crate::support::{World, config};

on_every_record_server!(
    a_moved_sharding_key_takes_its_paths_to_the_other_realm,
    routing_data_with_a_mistake_is_not_applied_and_the_next_change_is,
    a_lock_without_a_route_is_in_the_realm_that_is_named,
);

/// A metadata store directory: the routing data below a chroot of this world's server.
struct Directory<'w> {
    world: &'w World,
    root: String,
}

impl<'w> Directory<'w> {
    async fn new(world: &'w World) -> Self {
        let root = world.path("directory");
        let directory = Directory { world, root: format!("{root}{ROUTING_DATA}") };
        directory.create(&root, b"").await;
        directory
    }

    async fn create(&self, path: &str, data: &[u8]) {
        let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        self.world.observer.create(path, data, &options).await.unwrap();
    }

    async fn keeper(&self) -> Lockkeeper {
        Lockkeeper::connect(&format!("{}{}", self.world.servers(), self.world.path("directory"))).await.unwrap()
    }

    /// Writes the routing data of a new realm.
    async fn add(&self, realm: &str, keys: &[&str]) {
        self.create(&format!("{}/{realm}", self.root), record(keys).as_bytes()).await;
    }

    /// Replaces the sharding keys of realms, all in one transaction.
    async fn write(&self, realms: &[(&str, &[&str])]) {
        let mut transaction = self.world.observer.new_multi_writer();
        for (realm, keys) in realms {
            transaction.add_set_data(&format!("{}/{realm}", self.root), record(keys).as_bytes(), None).unwrap();
        }
        transaction.commit().await.unwrap();
    }
}

fn record(keys: &[&str]) -> String {
    serde_json::json!({
        "id": "realm", "simpleFields": {}, "mapFields": {}, "listFields": { "ZK_PATH_SHARDING_KEYS": keys }
    })
    .to_string()
}

fn keys(routes: &Routes) -> Vec<(String, String)> {
    routes.realms().map(|(key, realm)| (key.to_owned(), realm.to_owned())).collect()
}

/// The handle of the former realm refuses the path from then on, and a hold goes on.
async fn a_moved_sharding_key_takes_its_paths_to_the_other_realm(world: &World) {
    let second = Server::start(config()).await.unwrap();
    let (one, two) = (world.servers(), second.connect_string());
    let directory = Directory::new(world).await;
    let (here, there) = (world.path("here"), world.path("there"));
    let keeper = directory.keeper().await;
    // Nothing is there yet: it is said, and nothing is guessed.
    let missing = Realms::follow(Lockkeeper::builder(), &keeper).await;
    assert!(matches!(missing, Err(RoutingError::Missing)), "{missing:?}");
    directory.create(&directory.root, b"").await;
    let empty = Realms::follow(Lockkeeper::builder(), &keeper).await;
    assert!(matches!(empty, Err(RoutingError::Empty)), "{empty:?}");
    directory.add(&one, &[&here]).await;
    directory.add(&two, &[&there]).await;
    let realms = Realms::follow(Lockkeeper::builder(), &keeper).await.unwrap();
    let (held, moved) = (format!("{here}/held"), format!("{here}/moved"));
    let old = realms.keeper(&held).await.unwrap();
    let guard = old.mutex(&held).acquire().await.unwrap();
    assert_eq!([&held, &there].map(|path| realms.servers(path).unwrap()), [one.clone(), two.clone()]);
    // The settings of a program name the directory too.
    let named = format!("{}{}", world.servers(), world.path("directory"));
    let settings = Sources::none().flag(Key::RoutingServers, "routing", named).read().unwrap();
    let of_settings = settings.routing().await.unwrap().unwrap();
    assert_eq!(of_settings.servers(&there).unwrap(), two);
    of_settings.close().await;
    let mut routes = realms.routes();
    directory.write(&[(&one, &[]), (&two, &[&there, &here])]).await;
    routes.changed().await.unwrap();
    assert_eq!(keys(&routes.borrow()).len(), 2);
    assert_eq!(realms.servers(&moved).unwrap(), two);
    assert!(guard.is_held(), "a hold is not ended");
    match old.mutex(&moved).acquire().await {
        Err(AcquireError::Misuse(Misuse { argument: "path", problem, .. })) => {
            let expected =
                format!("{moved} is in the realm {here} ({two}), and this handle is that of no realm any more");
            assert!(problem.starts_with(&expected), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    let new = realms.keeper(&moved).await.unwrap();
    new.mutex(&moved).acquire().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    realms.close().await;
    keeper.close().await;
    second.shutdown().await.unwrap();
}

async fn routing_data_with_a_mistake_is_not_applied_and_the_next_change_is(world: &World) {
    let directory = Directory::new(world).await;
    directory.create(&directory.root, b"").await;
    directory.add("127.0.0.1:1", &["/a"]).await;
    directory.add("127.0.0.1:2", &["/b"]).await;
    let keeper = directory.keeper().await;
    let realms = Realms::follow(Lockkeeper::builder(), &keeper).await.unwrap();
    let mut routes = realms.routes();
    let before = keys(&routes.borrow());
    for (bad, said) in [
        // The other key of the same write is good.
        (&["/b", "/c"][..], "two realms have the sharding key /b"),
        (&["/b/x", "/c"], "/b/x of the realm 127.0.0.1:1 is below the sharding key /b of the realm 127.0.0.1:2"),
        (&["c"], "is not a path"),
    ] {
        directory.write(&[("127.0.0.1:1", bad)]).await;
        routes.changed().await.unwrap();
        let now = routes.borrow_and_update().clone();
        assert_eq!(keys(&now), before, "half of a change was applied");
        assert!(now.problem().unwrap().to_string().contains(said), "{:?}", now.problem());
    }
    directory.write(&[("127.0.0.1:1", &["/a", "/d"])]).await;
    routes.changed().await.unwrap();
    let now = routes.borrow_and_update().clone();
    assert!(now.problem().is_none() && keys(&now).len() == 3, "{now:?}");
    // A new realm is a change of the list, and so is one that goes.
    directory.add("no address", &["/e"]).await;
    routes.changed().await.unwrap();
    let problem = routes.borrow_and_update().problem().map(ToString::to_string).unwrap_or_default();
    assert!(problem.contains("the realm no address has no usable address"), "{problem}");
    world.observer.delete(&format!("{}/no address", directory.root), None).await.unwrap();
    routes.changed().await.unwrap();
    assert!(routes.borrow_and_update().problem().is_none());
    // Nothing follows it when its handle is closed.
    keeper.close().await;
    assert!(routes.changed().await.is_ok() && routes.borrow_and_update().problem().is_some());
    assert!(routes.changed().await.is_err());
}

/// As with the sharding key of Helix's builder.
async fn a_lock_without_a_route_is_in_the_realm_that_is_named(world: &World) {
    let second = Server::start(config()).await.unwrap();
    let (here, there) = (world.path("here"), world.path("there"));
    let routes = [(here.clone(), world.servers()), (there.clone(), second.connect_string())];
    let realms = Realms::new(Lockkeeper::builder(), routes).unwrap();
    let scope = || Scope::cluster(world.object("cluster").trim_matches('-').to_owned());
    let path = scope().path().unwrap().to_string();
    assert!(matches!(realms.keeper(&path).await, Err(ConnectError::Misuse(_))), "no realm has it");
    let chosen = realms.realm(&there).await.unwrap();
    let guard = HelixLock::new(&chosen, scope(), LONG).user_id("x").acquire().await.unwrap();
    let elsewhere = Lockkeeper::connect(&second.connect_string()).await.unwrap();
    assert_eq!(HelixLock::new(&elsewhere, scope(), LONG).info().await.unwrap().owner, "x");
    // It takes no path of another realm.
    let other = chosen.mutex(format!("{here}/a")).acquire().await;
    assert!(matches!(other, Err(AcquireError::Misuse(Misuse { argument: "path", .. }))), "{other:?}");
    chosen.mutex(format!("{there}/a")).acquire().await.unwrap().release().await.unwrap();
    match realms.realm(&path).await {
        Err(ConnectError::Misuse(Misuse { argument: "realm", problem, .. })) => {
            assert!(problem.contains(&format!("the realms are {there}, {here}")), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    guard.release().await.unwrap();
    realms.close().await;
    elsewhere.close().await;
    second.shutdown().await.unwrap();
}

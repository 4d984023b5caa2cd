//! Locks on several ensembles.

use lockkeeper::Lockkeeper;
use lockkeeper::error::{AcquireError, AdminError, ConnectError, Misuse, SessionError};
use lockkeeper_config::realms::Realms;
use lockkeeper_helix::{AcquireLeaseError, HelixLock, Scope};
use lockkeeper_server::Server;

use super::{LONG, on_every_record_server};
use crate::support::{World, config};

on_every_record_server!(a_lock_is_in_the_one_realm_that_has_its_path);

/// H-70: a lock is in the realm of its path and nowhere else; a path without a realm is refused.
async fn a_lock_is_in_the_one_realm_that_has_its_path(world: &World) {
    let second = Server::start(config()).await.unwrap();
    let (here, there) = (world.path("here"), world.path("here/there"));
    let routes = [(here.clone(), world.servers()), (there.clone(), second.connect_string())];
    let realms = Realms::new(Lockkeeper::builder(), routes).unwrap();
    let lock = async |path: &str| HelixLock::new(&realms.keeper(path).await.unwrap(), path, LONG);
    let (one, two) = (format!("{here}/a"), format!("{there}/a"));
    let first = lock(&one).await.user_id("x").acquire().await.unwrap();
    let other = lock(&two).await.user_id("y").acquire().await.unwrap();
    assert!(first.is_held() && other.is_held());
    let elsewhere = Lockkeeper::connect(&second.connect_string()).await.unwrap();
    let at = async |keeper: &Lockkeeper, path: &str| HelixLock::new(keeper, path, LONG).info().await.unwrap().owner;
    let home = world.keeper().await;
    assert_eq!((at(&home, &one).await.as_str(), at(&home, &two).await.as_str()), ("x", "NONE"));
    assert_eq!((at(&elsewhere, &one).await.as_str(), at(&elsewhere, &two).await.as_str()), ("NONE", "y"));
    // Queue locks use the same routing.
    let handle = realms.keeper(&two).await.unwrap();
    let guard = handle.mutex(format!("{there}/b")).acquire().await.unwrap();
    assert_eq!(elsewhere.admin().show(&format!("{there}/b")).await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
    // A handle does not lock a path of another realm, not even as one of several.
    let wrong = || handle.mutex(&one).acquire();
    let several = handle.multi_lock([handle.mutex(&two).acquire(), wrong()]).await;
    for refused in [wrong().await.map(drop), several.map(drop)] {
        let Err(AcquireError::Misuse(Misuse { argument: "path", problem, .. })) = refused else {
            panic!("{refused:?}")
        };
        let expected =
            format!("{one} is in the realm {here} ({}), and this handle is that of {there} (", world.servers());
        assert!(problem.starts_with(&expected), "{problem}");
    }
    let nowhere = handle.mutex(world.path("nowhere")).acquire().await;
    assert!(matches!(nowhere, Err(AcquireError::Misuse(Misuse { argument: "path", .. }))), "{nowhere:?}");
    let leased = HelixLock::new(&handle, &one, LONG).acquire().await;
    assert!(matches!(leased, Err(AcquireLeaseError::Misuse(Misuse { argument: "path", .. }))), "{leased:?}");
    let admin = handle.admin();
    let asked = [admin.show(&one).await.map(drop), admin.revoke(&one, None).await.map(drop)];
    let changed = [admin.list(&one).await.map(drop), admin.break_lock(&one, "stuck").await.map(drop)];
    for refused in asked.into_iter().chain(changed) {
        assert!(matches!(refused, Err(AdminError::Misuse(Misuse { argument: "path", .. }))), "{refused:?}");
    }
    for path in [world.path("nowhere"), Scope::cluster("c").path().unwrap().to_string()] {
        match realms.keeper(path).await {
            Err(ConnectError::Misuse(Misuse { argument: "path", problem, .. })) => {
                assert!(problem.ends_with(&format!("the realms are {there}, {here}")), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
    first.release().await.unwrap();
    other.release().await.unwrap();
    realms.close().await;
    assert!(matches!(realms.keeper(&two).await, Err(ConnectError::Session(SessionError::Closed))));
    elsewhere.close().await;
    second.shutdown().await.unwrap();
}

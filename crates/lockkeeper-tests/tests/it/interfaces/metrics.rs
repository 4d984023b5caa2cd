//! What the library reports to an exporter.

use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{DistributedLock, Holding, Lockkeeper};
use lockkeeper_contentserv::MonitorLock;
use lockkeeper_helix::{HelixLock, LockOperations, QueueLock};
use metrics::Unit;

use super::on_every_server;
use crate::support::metrics::{Exporter, exporter, group};
use crate::support::{PATIENCE, STEADY, Waiter, World, eventually, misused};

on_every_server!(
    every_kind_reports_its_calls_and_holds,
    a_loss_of_any_kind_is_counted_by_its_reason,
    a_call_is_a_waiter_until_it_ends_or_is_dropped,
    a_request_for_no_lock_is_not_counted,
    a_handle_has_a_group_for_all_its_locks,
    no_series_names_a_lock,
    every_metric_is_described_and_in_the_guides_table,
);

/// Every request of [`every_kind`] is for one of these.
const MODES: [&str; 6] = ["exclusive", "write", "read", "permits", "class", "lease"];

/// Acquires a lock of each mode, with this group.
async fn every_kind(world: &World, keeper: &Lockkeeper, group: &str) -> Vec<Holding> {
    let path = |name: &str| world.path(name);
    let queues = [
        keeper.mutex(path("exclusive")).acquire().metrics_group(group).any(),
        keeper.rwlock(path("write")).write().acquire().metrics_group(group).any(),
        keeper.rwlock(path("read")).read().acquire().metrics_group(group).any(),
        keeper.semaphore(path("permits"), 2).acquire().metrics_group(group).any(),
        keeper.priority_lock(path("class")).background().acquire().metrics_group(group).any(),
    ];
    let mut holdings = Vec::new();
    for request in queues {
        holdings.push(request.await.unwrap());
    }
    let leased = HelixLock::new(keeper, path("lease"), PATIENCE).metrics_group(group);
    holdings.push(leased.acquire().await.unwrap().into());
    holdings
}

/// The number of values, once it is this; each is a possible duration.
async fn values(exporter: &Exporter, group: &str, metric: &str, labels: &str, count: usize) {
    eventually(&format!("{count} in {metric} {labels}"), async || {
        exporter.reported(group, metric, labels).len() == count
    })
    .await;
    let limit = PATIENCE.as_secs_f64();
    assert!(exporter.reported(group, metric, labels).iter().all(|value| (0.0..limit).contains(value)));
}

async fn every_kind_reports_its_calls_and_holds(world: &World) {
    let (exporter, group) = (exporter(), group());
    let keeper = world.keeper().await;
    let holdings = every_kind(world, &keeper, &group).await;
    for mode in MODES {
        let (mode, granted) = (format!("mode={mode}"), format!("mode={mode} outcome=granted"));
        assert_eq!(exporter.reported(&group, "lockkeeper_acquires_total", &granted), [1.0], "{mode}");
        values(&exporter, &group, "lockkeeper_acquire_wait_seconds", &granted, 1).await;
        assert_eq!(exporter.reported(&group, "lockkeeper_waiters", &mode), [1.0, -1.0], "{mode}");
        values(&exporter, &group, "lockkeeper_hold_seconds", &mode, 0).await;
    }
    for holding in holdings {
        holding.release().await.unwrap();
    }
    for mode in MODES {
        values(&exporter, &group, "lockkeeper_hold_seconds", &format!("mode={mode}"), 1).await;
        assert!(exporter.names().iter().all(|name| !name.contains(&format!("losses_total group={group} "))));
    }

    // Each use is a call, and the time for which the lock is kept or shared is one hold.
    let granted =
        |mode: &str| exporter.reported(&group, "lockkeeper_acquires_total", &format!("mode={mode} outcome=granted"));
    let kept = keeper.mutex(world.lock()).keep();
    for _ in 0..2 {
        kept.acquire().metrics_group(&group).await.unwrap().release().await.unwrap();
    }
    assert_eq!(granted("exclusive").len(), 3);
    kept.release_kept().await.unwrap();
    values(&exporter, &group, "lockkeeper_hold_seconds", "mode=exclusive", 2).await;
    let shared = keeper.rwlock(world.path("shared")).read().share();
    let reader = || shared.acquire().metrics_group(&group);
    let (one, other) = (reader().await.unwrap(), reader().await.unwrap());
    assert_eq!(granted("read").len(), 3);
    drop(one);
    other.release().await.unwrap();
    eventually("the holds of the readers", async || {
        // The second reader may have had a hold of its own.
        (2..=3).contains(&exporter.reported(&group, "lockkeeper_hold_seconds", "mode=read").len())
    })
    .await;
    let both = [keeper.mutex(world.path("a")).acquire().any(), keeper.semaphore(world.path("b"), 1).acquire().any()];
    keeper.multi_lock(both).each(|one| one.metrics_group(&group)).await.unwrap().release().await.unwrap();
    assert_eq!((granted("exclusive").len(), granted("permits").len()), (4, 2));
}

async fn a_loss_of_any_kind_is_counted_by_its_reason(world: &World) {
    let (exporter, group) = (exporter(), group());
    let keeper = world.keeper().await;
    let holdings = every_kind(world, &keeper, &group).await;
    let lost = |mode: &str, reason: &str| {
        exporter.reported(&group, "lockkeeper_losses_total", &format!("mode={mode} reason={reason}"))
    };
    for (holding, mode) in holdings.iter().zip(MODES) {
        keeper.admin().break_lock(holding.path(), "for the test").await.unwrap();
        holding.lost().await;
        eventually("the loss is counted", async || lost(mode, "removed") == [1.0]).await;
        values(&exporter, &group, "lockkeeper_hold_seconds", &format!("mode={mode}"), 1).await;
    }
    drop(holdings);
    // A lost hold is reported once.
    for mode in MODES {
        values(&exporter, &group, "lockkeeper_hold_seconds", &format!("mode={mode}"), 1).await;
    }
    let request = keeper.mutex(world.lock()).acquire().metrics_group(&group).with_liveness(Duration::from_millis(50));
    let unattended = request.await.unwrap();
    unattended.lost().await;
    eventually("the other reason", async || lost("exclusive", "unattended") == [1.0]).await;
}

async fn a_call_is_a_waiter_until_it_ends_or_is_dropped(world: &World) {
    let (exporter, group) = (exporter(), group());
    let keeper = world.keeper().await;
    let holder = keeper.mutex(world.lock()).acquire().await.unwrap();
    let waiters = || exporter.reported(&group, "lockkeeper_waiters", "mode=exclusive").iter().sum::<f64>();
    let outcomes = |outcome: &str| {
        let labels = format!("mode=exclusive outcome={outcome}");
        exporter.reported(&group, "lockkeeper_acquires_total", &labels).len()
    };
    let request = || keeper.mutex(world.lock()).acquire().metrics_group(&group);
    let (first, second) = (Waiter::spawn(request()), Waiter::spawn(request()));
    eventually("two wait", async || waiters() == 2.0).await;
    second.abort();
    eventually("one waits", async || waiters() == 1.0).await;
    assert_eq!((outcomes("dropped"), outcomes("granted")), (1, 0));

    let kept = keeper.mutex(world.lock()).keep();
    let refused = kept.acquire().metrics_group(&group).timeout(Duration::ZERO).await;
    assert!(matches!(refused, Err(AcquireError::Held { .. })), "{refused:?}");
    assert_eq!((outcomes("failed"), waiters()), (1, 1.0));

    holder.release().await.unwrap();
    first.granted().await.release().await.unwrap();
    assert_eq!((outcomes("granted"), waiters()), (1, 0.0));
}

/// Also for the locks whose requests the program never sees.
async fn a_handle_has_a_group_for_all_its_locks(world: &World) {
    let (exporter, group) = (exporter(), group());
    let builder = Lockkeeper::builder().session_timeout(STEADY).connect_timeout(PATIENCE).metrics_group(&group);
    let keeper = builder.connect(&world.servers()).await.unwrap();
    world.keep_open(&keeper);
    let held = |mode: &str| exporter.reported(&group, "lockkeeper_hold_seconds", &format!("mode={mode}")).len();

    let object = DistributedLock::new(&keeper, world.lock(), "a");
    object.lock().await.unwrap();
    object.unlock().await.unwrap();
    assert_eq!(held("exclusive"), 1);
    let monitor = MonitorLock::new("for the test", &keeper, &world.object("monitor"));
    monitor.run(async {}).await.unwrap();
    assert_eq!(held("class"), 1);
    let operations = QueueLock::new(&keeper, world.path("operations"));
    assert!(operations.try_lock().await.unwrap() && operations.unlock().await.unwrap());
    assert_eq!(held("exclusive"), 2);
    HelixLock::new(&keeper, world.path("leased"), PATIENCE).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(held("lease"), 1);

    let other = crate::support::metrics::group();
    keeper.mutex(world.lock()).acquire().metrics_group(&other).await.unwrap().release().await.unwrap();
    assert_eq!(held("exclusive"), 2, "it has a group of its own");
    assert_eq!(exporter.reported(&other, "lockkeeper_hold_seconds", "mode=exclusive").len(), 1);
}

async fn no_series_names_a_lock(world: &World) {
    let exporter = exporter();
    let keeper = world.keeper().await;
    let path = world.path("only-this-test-has-this-lock");
    keeper.mutex(&path).acquire().await.unwrap().release().await.unwrap();
    keeper.mutex(&path).keep().acquire().await.unwrap().release().await.unwrap();
    HelixLock::new(&keeper, &path, PATIENCE).acquire().await.unwrap().release().await.unwrap();
    let names = exporter.names();
    assert!(names.iter().all(|name| !name.contains("only-this-test") && !name.contains("lock=")), "{names:#?}");
    let without_group = "lockkeeper_acquires_total mode=exclusive outcome=granted";
    assert!(names.iter().any(|name| name == without_group), "{names:#?}");
}

/// The table has a row for each: name, kind, unit and labels.
async fn every_metric_is_described_and_in_the_guides_table(world: &World) {
    let (exporter, group) = (exporter(), group());
    let keeper = world.keeper().await;
    for holding in every_kind(world, &keeper, &group).await {
        holding.release().await.unwrap();
    }
    let described = exporter.described();
    let page = include_str!("../../../../../docs/guide/metrics.md");
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `lockkeeper_")).collect();
    assert_eq!(rows.len(), described.len(), "{rows:#?}\n{described:#?}");
    for (name, (kind, unit, what)) in &described {
        let unit = match unit {
            Some(Unit::Seconds) => "seconds",
            Some(Unit::Count) => "count",
            other => panic!("{name}: {other:?}"),
        };
        let begin = format!("| `{name}` | {kind} | {unit} |");
        assert!(rows.iter().any(|row| row.starts_with(&begin)), "no row begins with {begin}");
        assert!(!what.is_empty() && name.ends_with("_seconds") == (unit == "seconds"), "{name}: {what}");
    }
    for name in exporter.names() {
        let (name, labels) = name.split_once(' ').unwrap();
        let row = rows.iter().find(|row| row.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("{name} is not in the table"));
        for label in labels.split(' ').map(|label| label.split_once('=').unwrap().0) {
            assert!(row.contains(&format!("`{label}`")), "{name}: the table does not name the label {label}");
        }
    }
}

/// Its path names no lock, so it has no mode.
async fn a_request_for_no_lock_is_not_counted(world: &World) {
    let (exporter, group) = (exporter(), group());
    let keeper = world.keeper().await;
    assert_eq!(misused(&keeper.mutex("").acquire().metrics_group(&group).await), Some("path"));
    let long = "x".repeat(5_000);
    let refused = keeper.mutex(world.lock()).acquire().metrics_group(&group).message(&long).await;
    assert_eq!(misused(&refused), Some("message"));
    let count = |labels| exporter.reported(&group, "lockkeeper_acquires_total", labels);
    assert_eq!(count("mode= outcome=failed"), [0.0; 0]);
    assert_eq!(count("mode=exclusive outcome=failed"), [1.0]);
}

//! Helix's leased lock: held for a limited time, and preempted by requests with a higher priority.
//!
//! `cargo run -p lockkeeper-helix --example leased`

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper_helix::{AcquireLeaseError, HelixLock, Scope};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let resource = || Scope::resource("cluster", "db_7");
    let lease = Duration::from_secs(3600);

    // Routine work. It gets ten seconds to clean up when a request with a higher priority preempts it.
    let routine = HelixLock::new(&keeper, resource(), lease)
        .user_id("rebalancer")
        .message("moving partitions")
        .cleanup(Duration::from_secs(10))
        .on_cleanup(|preemption| async move { println!("{:?} preempts this owner: cleaning up", preemption.by) });
    let guard = routine.acquire().await?;

    // A request with the same priority fails immediately. The error names the owner.
    match HelixLock::new(&keeper, resource(), lease).user_id("other").acquire().await {
        Err(error @ AcquireLeaseError::Outranked { .. }) => println!("{error}"),
        other => panic!("two owners: {other:?}"),
    }

    // A request with a higher priority waits for the cleanup and is then granted the lock.
    let repair = HelixLock::new(&keeper, resource(), lease).user_id("repair").priority(5).acquire().await?;
    println!("the first owner lost the lock: {}", guard.lost().await);
    assert!(repair.token() > guard.token() && !guard.is_held());
    repair.release().await?;
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

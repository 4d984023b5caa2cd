//! A lock for a time, which the more important may take over: Helix's lock.
//!
//! `cargo run -p lockkeeper --example leased`

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::AcquireError;
use lockkeeper::helix::Scope;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let resource = || Scope::resource("cluster", "db_7");
    let lease = Duration::from_secs(3600);

    // Routine work, with ten seconds to clean up when somebody more important comes.
    let routine = keeper
        .helix_lock(resource(), lease)
        .user_id("rebalancer")
        .message("moving partitions")
        .cleanup(Duration::from_secs(10))
        .on_cleanup(|preemption| async move { println!("{} wants it: putting things back", preemption.by) });
    let guard = routine.acquire().await?;

    // An equal one is refused at once, and told who has it.
    match keeper.helix_lock(resource(), lease).user_id("other").acquire().await {
        Err(error @ AcquireError::Outranked { .. }) => println!("{error}"),
        other => panic!("two owners: {other:?}"),
    }

    // A more important one waits for the cleanup, and has it then.
    let repair = keeper.helix_lock(resource(), lease).user_id("repair").priority(5).acquire().await?;
    println!("the old owner lost it: {}", guard.lost().await);
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

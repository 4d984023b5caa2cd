//! The shared lock: many readers or one writer, with a downgrade and an upgrade.
//!
//! `cargo run -p lockkeeper --example rwlock`

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::AcquireError;
use lockkeeper::guard::UpgradeError;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let catalogue = keeper.rwlock("/locks/catalogue");

    // Readers hold the lock together. A writer is not granted meanwhile.
    let one = catalogue.read().acquire().await?;
    let other = catalogue.read().acquire().await?;
    println!("two read: {} {}", one.node(), other.node());
    match catalogue.write().try_acquire().await {
        Err(AcquireError::Held { ahead, .. }) => println!("no writer: {} before it", ahead.unwrap_or(0)),
        other => panic!("a writer beside readers: {other:?}"),
    }
    one.release().await?;
    other.release().await?;

    // The writer becomes a reader in the same position. No other writer is granted in between, so it reads what it wrote.
    let writer = catalogue.write().acquire().message("new prices").await?;
    let reader = writer.downgrade().await?;
    let beside = catalogue.read().acquire().await?;
    println!("reading what was written under token {}", reader.token());
    beside.release().await?;
    reader.release().await?;

    // Read first, and write only if it is necessary. Only one contender at a time can hold the lock in this way, so two of
    // them never wait for each other.
    let looking = catalogue.upgradeable().acquire().await?;
    let writer = match looking.upgrade().timeout(Duration::from_secs(5)).await {
        Ok(writer) => writer,
        Err(UpgradeError { guard: still_looking, reason, .. }) => {
            still_looking.release().await?;
            return Err(reason.into());
        }
    };
    println!("writing under token {}", writer.token());
    writer.release().await?;
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

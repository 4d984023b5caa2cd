//! Several locks in one call, all or none. No order of their names leads to a deadlock.
//!
//! `cargo run -p lockkeeper --example several`

use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{FencingToken, Lockkeeper};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;

    // Two transfers between the same accounts, in opposite directions.
    let mut transfers = Vec::new();
    for (from, to) in [("/accounts/a", "/accounts/b"), ("/accounts/b", "/accounts/a")] {
        let keeper = keeper.clone();
        transfers.push(tokio::spawn(async move {
            for _ in 0..10 {
                let both = keeper.multi_lock([keeper.mutex(from).acquire(), keeper.mutex(to).acquire()]).await?;
                assert!(both.is_held());
                both.release().await.map_err(|error| error.to_string())?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        }));
    }
    for transfer in transfers {
        transfer.await?.map_err(|error| error.to_string())?;
    }

    // Kinds may be mixed: read the catalogue, and use one of three encoders.
    let parts = [
        keeper.rwlock("/locks/catalogue").read().acquire().any(),
        keeper.semaphore("/locks/encoders", 3).acquire().any(),
    ];
    let parts = keeper.multi_lock(parts).each(|part| part.message("encode all"));
    let mixed = parts.timeout(Duration::from_secs(5)).await?;
    let token = mixed.token("/locks/catalogue").map(FencingToken::get);
    println!("holding {} locks, the catalogue under token {token:?}", mixed.holdings().len());
    mixed.release().await?;

    // All or none: b has another holder, so the call does not keep a either.
    let taken = keeper.mutex("/accounts/b").acquire().await?;
    let both = [keeper.mutex("/accounts/a").acquire(), keeper.mutex("/accounts/b").acquire()];
    match keeper.multi_lock(both).timeout(Duration::from_millis(100)).await {
        Err(error @ AcquireError::Timeout { .. }) => println!("{error}"),
        other => panic!("{other:?}"),
    }
    keeper.mutex("/accounts/a").acquire().timeout(Duration::from_secs(5)).await?.release().await?;
    taken.release().await?;
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

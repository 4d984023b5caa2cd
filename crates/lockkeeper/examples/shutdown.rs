//! A shutdown that leaves nothing behind: calls that wait are cancelled, work ends, locks are released, the session is closed.
//!
//! `cargo run -p lockkeeper --example shutdown`

use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{CancellationToken, Lockkeeper};

/// Handles the tasks of one article until the program stops. Returns how many it has handled.
async fn worker(keeper: Lockkeeper, stop: CancellationToken) -> Result<u32, lockkeeper::Error> {
    let (lock, mut handled) = (keeper.mutex("/articles/4711"), 0);
    loop {
        // A call that waits ends at once.
        let guard = match lock.acquire().cancel_on(stop.clone()).await {
            Ok(guard) => guard,
            Err(AcquireError::Cancelled { .. }) => return Ok(handled),
            Err(error) => return Err(error.into()),
        };
        // A step that has begun is finished, unless the lock is lost.
        match guard.run(step()).await {
            Ok(()) => handled += 1,
            Err(loss) => println!("the step was dropped, because the lock was lost: {loss}"),
        }
        // Shorter than the process manager waits before it kills.
        if let Err(error) = guard.release_within(Duration::from_secs(5)).await {
            println!("{error}");
        }
    }
}

async fn step() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (keeper, stop) = (Lockkeeper::embedded(dir.path()).await?, CancellationToken::new());
    let workers: Vec<_> = (0..3).map(|_| tokio::spawn(worker(keeper.clone(), stop.clone()))).collect();

    // In a service, this waits for SIGTERM: `tokio::signal::unix::signal(SignalKind::terminate())`.
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop.cancel();

    for worker in workers {
        println!("handled {}", worker.await??);
    }
    let left = keeper.admin().show("/articles/4711").await.map(|lock| lock.holders.len() + lock.waiters.len());
    assert!(matches!(left, Ok(0) | Err(_)), "{left:?}");
    // Last: it ends the session, so nothing waits for the session's timeout. The limit is shorter than that of the process manager.
    if !keeper.close_within(Duration::from_secs(5)).await {
        println!("no server has confirmed it; what is left ends with the session's timeout");
    }
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

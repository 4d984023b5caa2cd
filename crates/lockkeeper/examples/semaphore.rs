//! The semaphore: at most three permits in the whole fleet; a large job takes two.
//!
//! `cargo run -p lockkeeper --example semaphore`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::error::{AcquireError, Mismatch};

const PERMITS: u32 = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let encoders = keeper.semaphore("/locks/encoders", PERMITS);
    let (busy, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));

    let mut jobs = Vec::new();
    for job in 0..8 {
        let (encoders, busy, most) = (encoders.clone(), busy.clone(), most.clone());
        jobs.push(tokio::spawn(async move {
            // Every fourth job is large. It waits until two permits are free. No later job overtakes it.
            let take = if job % 4 == 0 { 2 } else { 1 };
            let permit = encoders.acquire_many(take).message(format!("film {job}")).await?;
            most.fetch_max(busy.fetch_add(take, SeqCst) + take, SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            busy.fetch_sub(take, SeqCst);
            permit.release().await.map_err(|error| error.to_string())?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        }));
    }
    for job in jobs {
        job.await?.map_err(|error| error.to_string())?;
    }
    println!("at most {} of {PERMITS} permits were in use", most.load(SeqCst));
    assert!(most.load(SeqCst) <= PERMITS);

    // The number belongs to the path: a client with another number gets an error.
    match keeper.semaphore("/locks/encoders", 5).acquire().await {
        Err(error @ AcquireError::Mismatch(Mismatch::Permits { .. })) => println!("{error}"),
        other => panic!("two numbers for one semaphore: {other:?}"),
    }
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

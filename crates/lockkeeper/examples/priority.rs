//! The priority lock: the foreground, for people, is granted before the background, for batch jobs.
//!
//! `cargo run -p lockkeeper --example priority`

use std::sync::{Arc, Mutex};

use lockkeeper::Lockkeeper;

const PRODUCT: &str = "/products/P1";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let product = keeper.priority_lock(PRODUCT);
    let served = Arc::new(Mutex::new(Vec::new()));

    // One import holds the lock, and another one waits. Then a person presses "save".
    let running = product.background().acquire().message("import 1").await?;
    let mut waiting = Vec::new();
    for (name, lock) in [("import 2", product.background()), ("save", product.foreground())] {
        let served = served.clone();
        waiting.push(tokio::spawn(async move {
            let guard = lock.acquire().message(name).await?;
            served.lock().expect("nobody panics").push(name);
            guard.release().await.map_err(|error| error.to_string())?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        }));
        until_queued(&keeper, waiting.len()).await?;
    }

    // The holder is not interrupted. After the first import, the save is granted before the import that waited longer.
    running.release().await?;
    for task in waiting {
        task.await?.map_err(|error| error.to_string())?;
    }
    let served = served.lock().expect("nobody panics").clone();
    println!("served after import 1: {}", served.join(", then "));
    assert_eq!(served, ["save", "import 2"]);
    keeper.close().await;
    Ok(())
}

/// Waits until this many waiters are in the queue, so that the example always prints the same text.
async fn until_queued(keeper: &Lockkeeper, count: usize) -> Result<(), lockkeeper::Error> {
    let mut follow = keeper.admin().follow(PRODUCT);
    while follow.next().await?.waiters.len() < count {}
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

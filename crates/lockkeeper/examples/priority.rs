//! People before batch jobs: the lock with a foreground and a background.
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

    // An import runs; another waits, and then somebody presses "save".
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
        in_line(&keeper, waiting.len()).await?;
    }

    // Nobody is interrupted. When the first import is done, the save goes before the import that came earlier.
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

/// Waits until so many stand in line, so that this example is always the same.
async fn in_line(keeper: &Lockkeeper, count: usize) -> Result<(), lockkeeper::Error> {
    let mut follow = keeper.admin().follow(PRODUCT);
    while follow.next().await?.waiters.len() < count {}
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

//! A lock as an object with `lock` and `unlock`, for programs without async.
//!
//! `cargo run -p lockkeeper --example object`

use lockkeeper::error::AcquireError;
use lockkeeper::{DistributedLock, Lockkeeper};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    // A server for this example alone; a program has its own: lockkeeper::blocking::connect("zk1:2181,zk2:2181,zk3:2181").
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let keeper = runtime.block_on(Lockkeeper::embedded(dir.path()))?;

    let store_a = DistributedLock::new(&keeper, "/stores", "A");
    let store_b = DistributedLock::new(&keeper, "/stores", "B");
    store_a.lock_blocking()?;
    // Another name below the same base path is another lock.
    store_b.lock_blocking()?;
    println!("holding {:?} and {:?}", store_a.node(), store_b.node());

    // An object holds once; a second lock would wait for itself.
    match store_a.lock_blocking() {
        Err(error @ AcquireError::AlreadyHeld { .. }) => println!("{error}"),
        other => panic!("{other:?}"),
    }
    store_b.unlock_blocking()?;
    store_a.unlock_blocking()?;
    keeper.close_blocking();
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

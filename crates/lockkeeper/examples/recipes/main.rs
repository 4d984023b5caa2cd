//! Two recipes on the session of a `Lockkeeper`: a double barrier, and a work queue with a lock for each item.
//!
//! `cargo run -p lockkeeper --example recipes`

#![allow(unreachable_pub, reason = "the modules are written for a library")]

pub(crate) mod double_barrier;
pub(crate) mod work_queue;

use lockkeeper::Lockkeeper;

use self::double_barrier::DoubleBarrier;
use self::work_queue::WorkQueue;

/// Does three items, and returns when the other worker has done as many.
async fn worker(name: &str, keeper: &Lockkeeper) -> Result<(), Box<dyn std::error::Error>> {
    let (queue, barrier) = (WorkQueue::new(keeper, "/orders"), DoubleBarrier::new(keeper.sessions(), "/rounds/1", 2));
    let entered = barrier.enter().await?;
    for _ in 0..3 {
        let item = queue.take().await?;
        println!("{name} does {}", String::from_utf8_lossy(&item.data));
        item.done().await?;
    }
    entered.leave().await?;
    println!("{name} knows that all is done");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let queue = WorkQueue::new(&keeper, "/orders");
    for order in 0..6 {
        queue.put(format!("order {order}").into()).await?;
    }
    let (one, other) = tokio::join!(worker("one", &keeper), worker("another one", &keeper));
    one?;
    other?;
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

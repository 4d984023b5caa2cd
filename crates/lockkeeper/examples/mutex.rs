//! The exclusive lock, and the fencing token that a resource checks.
//!
//! `cargo run -p lockkeeper --example mutex`

use std::sync::Mutex;
use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{FencingToken, Lockkeeper};

/// The resource. It rejects a token that is older than one it has seen. So a holder that was paused for too long cannot
/// overwrite the work of its successor.
#[derive(Default)]
struct Index(Mutex<(Option<FencingToken>, Vec<String>)>);

impl Index {
    fn write(&self, token: FencingToken, entry: &str) -> Result<(), String> {
        let mut guarded = self.0.lock().expect("no writer panics");
        if guarded.0.is_some_and(|newest| token < newest) {
            return Err(format!("{entry} is rejected: a newer holder has written"));
        }
        guarded.0 = Some(token);
        guarded.1.push(entry.to_owned());
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    // On a fleet: Lockkeeper::connect("zk1:2181,zk2:2181,zk3:2181").
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let index = Index::default();

    let nightly = keeper.mutex("/locks/nightly");
    let guard = nightly.acquire().timeout(Duration::from_secs(5)).message("nightly index").await?;
    index.write(guard.token(), "first")?;

    // Another attempt fails without waiting, and the error names the holder.
    match nightly.try_acquire().await {
        Err(error @ AcquireError::Held { .. }) => println!("{error}"),
        other => panic!("two holders: {other:?}"),
    }

    // Work that stops at its next await when the lock is lost.
    guard.run(async { println!("working under token {}", guard.token()) }).await?;
    let old = guard.token();
    guard.release().await?;

    let guard = nightly.acquire().await?;
    index.write(guard.token(), "second")?;
    match index.write(old, "the first again") {
        Err(refusal) => println!("{refusal}"),
        Ok(()) => panic!("a stale holder has written"),
    }
    guard.release().await?;
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

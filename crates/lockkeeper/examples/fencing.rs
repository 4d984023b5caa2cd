//! When two at once would do damage: what a resource, a file and the ensemble itself do about a holder that comes too late.
//!
//! `cargo run -p lockkeeper --example fencing`

use lockkeeper::Lockkeeper;
use lockkeeper::error::WriteError;
use lockkeeper_fence::{FencedFile, FileError, Refused, TokenGate};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    // On a fleet: Lockkeeper::connect("zk1:2181,zk2:2181,zk3:2181").
    let keeper = Lockkeeper::embedded(dir.path().join("server")).await?;
    let (gate, file) = (TokenGate::new(), FencedFile::new(dir.path().join("report")));
    let lock = keeper.mutex("/locks/report");

    // A holder makes the node that its successors will change, and writes everywhere.
    let paused = lock.acquire().await?;
    paused.fenced_write().create("/report", "draft").await?;
    drop(gate.enter("report", paused.token()).await?);
    file.replace(paused.token(), "draft")?;

    // It is paused for so long that an operator takes the lock from it, and somebody else works.
    keeper.admin().break_lock("/locks/report", "its host does not answer").await?;
    let successor = lock.acquire().await?;
    assert!(successor.token() > paused.token());
    successor.fenced_write().set("/report", "final").await?;
    drop(gate.enter("report", successor.token()).await?);
    file.replace(successor.token(), "final")?;

    // It wakes up and goes on where it stood. Nothing of it gets through.
    match paused.fenced_write().set("/report", "draft, second page").await {
        Err(error @ WriteError::Lost { .. }) => println!("the ensemble: {error}"),
        other => panic!("the past has overwritten the present: {other:?}"),
    }
    match gate.enter("report", paused.token()).await {
        Err(refused @ Refused::Stale { .. }) => println!("a server: {refused}"),
        other => panic!("a stale holder got in: {other:?}"),
    }
    match file.replace(paused.token(), "draft, second page") {
        Err(error @ FileError::Refused { .. }) => println!("a file: {error}"),
        other => panic!("a stale holder replaced the file: {other:?}"),
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("report"))?, "final");
    successor.release().await?;
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

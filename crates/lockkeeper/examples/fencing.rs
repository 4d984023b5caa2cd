//! How a service, a file and the ensemble reject the writes of a stale holder.
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

    // The first holder creates the node that later holders change, and writes to each resource.
    let paused = lock.acquire().await?;
    paused.fenced_write().create("/report", "draft").await?;
    drop(gate.enter("report", paused.token()).await?);
    file.replace(paused.token(), "draft")?;

    // It is paused for so long that an operator breaks the lock. Another contender acquires it and works.
    keeper.admin().break_lock("/locks/report", "its host does not answer").await?;
    let successor = lock.acquire().await?;
    assert!(successor.token() > paused.token());
    successor.fenced_write().set("/report", "final").await?;
    drop(gate.enter("report", successor.token()).await?);
    file.replace(successor.token(), "final")?;

    // The first holder continues. Every resource rejects its writes.
    match paused.fenced_write().set("/report", "draft, second page").await {
        Err(error @ WriteError::Lost { .. }) => println!("the ensemble: {error}"),
        other => panic!("a stale holder has written: {other:?}"),
    }
    match gate.enter("report", paused.token()).await {
        Err(refused @ Refused::Stale { .. }) => println!("a server: {refused}"),
        other => panic!("a stale holder was admitted: {other:?}"),
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

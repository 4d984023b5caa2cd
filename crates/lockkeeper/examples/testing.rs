//! Tests of code that uses locks: a server in memory, and faults of it at an exact moment.
//!
//! `cargo run -p lockkeeper --example testing`

use std::time::Duration;

use lockkeeper::embedded::Server;
use lockkeeper::error::{AcquireError, ErrorKind};
use lockkeeper::{Lockkeeper, Loss};

/// The code under test: writes the price list under a lock, unless another process does.
async fn publish(keeper: &Lockkeeper, write: impl Future<Output = ()>) -> Result<bool, lockkeeper::Error> {
    let guard = match keeper.mutex("/locks/prices").acquire().timeout(Duration::from_millis(500)).await {
        Ok(guard) => guard,
        Err(error) if error.kind() == ErrorKind::Taken => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let written = guard.run(write).await.is_ok();
    if written {
        guard.release().await?;
    }
    Ok(written)
}

/// A handle with a session of its own, as another process has.
async fn process(server: &Server) -> Lockkeeper {
    Lockkeeper::connect(&server.connect_string()).await.expect("the server listens")
}

/// Another process holds the lock.
async fn prices_that_others_write_are_left_alone() {
    let server = Server::ephemeral().await.expect("loopback is there");
    let (ours, theirs) = (process(&server).await, process(&server).await);
    let held = theirs.mutex("/locks/prices").acquire().await.expect("the lock is free");
    let written = publish(&ours, async { panic!("two write at once") }).await;
    assert!(matches!(written, Ok(false)), "{written:?}");
    held.release().await.expect("the server is there");
    assert!(matches!(publish(&ours, async {}).await, Ok(true)));
}

/// The session expires in the middle of the work.
async fn work_ends_with_the_session() {
    let server = Server::ephemeral().await.expect("loopback is there");
    let keeper = process(&server).await;
    let session = keeper.session_id().expect("it is open");
    let write = async {
        server.faults().expire(session.0).await.expect("the server is there");
        // Only a loss ends this.
        std::future::pending().await
    };
    assert!(matches!(publish(&keeper, write).await, Ok(false)));
}

/// The same, seen from a guard.
async fn a_loss_has_a_reason() {
    let server = Server::ephemeral().await.expect("loopback is there");
    let keeper = process(&server).await;
    let guard = keeper.mutex("/locks/prices").acquire().await.expect("the lock is free");
    server.faults().expire(keeper.session_id().expect("it is open").0).await.expect("the server is there");
    assert_eq!(guard.lost().await, Loss::SessionExpired);
}

/// The servers accept connections and do not answer.
async fn silence_is_an_error_and_not_a_wait() {
    let server = Server::ephemeral().await.expect("loopback is there");
    let keeper = process(&server).await;
    server.faults().freeze().await.expect("the server is there");
    let silent = keeper.mutex("/locks/prices").acquire().timeout(Duration::from_millis(500)).await;
    assert!(matches!(&silent, Err(AcquireError::Session(_))), "{silent:?}");
    server.faults().thaw().await.expect("the server is there");
}

#[tokio::main]
async fn main() {
    prices_that_others_write_are_left_alone().await;
    work_ends_with_the_session().await;
    a_loss_has_a_reason().await;
    silence_is_an_error_and_not_a_wait().await;
}

#[cfg(test)]
#[test]
fn runs() {
    main();
}

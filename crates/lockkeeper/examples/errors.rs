//! Errors of the library in a program with `anyhow`, and in a library with an error type of its own.
//!
//! `cargo run -p lockkeeper --example errors`

use std::time::Duration;

use anyhow::Context as _;
use lockkeeper::Lockkeeper;
use lockkeeper::error::{AcquireError, ErrorKind, ReleaseError};

/// The error of a library that uses locks.
#[derive(Debug, thiserror::Error)]
enum PriceError {
    /// The caller can try again later.
    #[error("the price list is being written")]
    Busy(#[source] AcquireError),
    #[error("cannot lock the price list")]
    Lock(#[source] lockkeeper::Error),
}

impl From<AcquireError> for PriceError {
    fn from(error: AcquireError) -> Self {
        match error.kind() {
            ErrorKind::Taken => PriceError::Busy(error),
            _ => PriceError::Lock(error.into()),
        }
    }
}

impl From<ReleaseError> for PriceError {
    fn from(error: ReleaseError) -> Self {
        PriceError::Lock(error.into())
    }
}

async fn publish(keeper: &Lockkeeper) -> Result<(), PriceError> {
    let guard = keeper.mutex("/locks/prices").acquire().timeout(Duration::from_millis(100)).await?;
    guard.release().await?;
    Ok(())
}

/// A program: every error goes up with `?`, and says what was tried.
async fn program(keeper: &Lockkeeper, path: &str) -> anyhow::Result<()> {
    let guard = keeper.mutex(path).acquire().await.with_context(|| format!("publishing under {path}"))?;
    guard.release().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;

    let guard = keeper.mutex("/locks/prices").acquire().message("nightly index").await?;
    match publish(&keeper).await {
        Err(PriceError::Busy(error)) => println!("later: {error}"),
        other => panic!("two holders: {other:?}"),
    }
    guard.release().await?;
    publish(&keeper).await?;

    let error = program(&keeper, "no/slash").await.expect_err("the path is not valid");
    println!("{error:#}");
    // The cause is still there with its type: what to do about it, and a hint for people.
    let cause = error.downcast_ref::<AcquireError>().context("another error")?;
    assert_eq!(cause.kind(), ErrorKind::Misuse);
    println!("hint: {}", cause.hint().unwrap_or_default());
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

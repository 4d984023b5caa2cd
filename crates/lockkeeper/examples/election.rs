//! Leader election: of several processes that could do some work, one does it, and another one takes over.
//!
//! `cargo run -p lockkeeper --example election`

use std::path::Path;
use std::time::Duration;

use lockkeeper::error::AcquireError;
use lockkeeper::{CancellationToken, Guard, Lockkeeper};

const ELECTION: &str = "/elections/scheduler";

/// Stands for election, and leads whenever it is elected, until `stop` is cancelled.
async fn stand(keeper: &Lockkeeper, name: &str, stop: &CancellationToken) -> Result<(), lockkeeper::Error> {
    loop {
        let elected = keeper.mutex(ELECTION).acquire().message(name).cancel_on(stop.clone()).await;
        let leading: Guard = match elected {
            Ok(guard) => guard,
            Err(AcquireError::Cancelled { .. }) => return Ok(()),
            // The servers are away, for example.
            Err(error) if error.kind().is_retryable() => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        println!("{name} leads with token {}", leading.token());
        tokio::select! {
            biased;
            loss = leading.lost() => println!("{name} does not lead any more: {loss}"),
            asked = leading.revocation() => {
                println!("{name} resigns: {:?}", asked.reason.unwrap_or_default());
                // If that cannot be confirmed, the lock ends with the session at the latest.
                _ = leading.release().await;
            }
            () = stop.cancelled() => return Ok(leading.release().await?),
            // The work of a leader; it is dropped at its next await if one of the above comes first.
            () = lead(leading.token().get()) => {}
        }
    }
}

async fn lead(token: i64) {
    // Send the token with everything that changes something outside: see docs/guide/fencing.md.
    println!("work under token {token}");
    std::future::pending().await
}

/// The leader's message, if there is a leader: what any process can ask.
async fn leader(keeper: &Lockkeeper) -> Result<Option<String>, lockkeeper::Error> {
    let election = keeper.admin().show(ELECTION).await?;
    Ok(election.holders.into_iter().next().and_then(|leader| leader.message))
}

/// One process of a fleet; here, all of them are tasks.
async fn process(dir: &Path) -> Result<Lockkeeper, Box<dyn std::error::Error>> {
    Ok(Lockkeeper::embedded(dir).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (stop, observer) = (CancellationToken::new(), process(dir.path()).await?);
    let mut candidates = Vec::new();
    for name in ["a", "b"] {
        let (keeper, stop) = (process(dir.path()).await?, stop.clone());
        candidates.push(tokio::spawn(async move { stand(&keeper, name, &stop).await }));
    }
    let mut election = observer.admin().follow(ELECTION);
    // Until both stand for election, and one of them is elected.
    let first = loop {
        match election.next().await {
            Ok(now) if now.holders.len() == 1 && now.waiters.len() == 1 => break now.holders[0].message.clone(),
            Ok(_) => {}
            // Nobody has stood for election yet.
            Err(lockkeeper::error::AdminError::NoSuchLock { .. }) => tokio::task::yield_now().await,
            Err(error) => return Err(error.into()),
        }
    };
    assert_eq!(leader(&observer).await?, first);
    observer.admin().revoke(ELECTION, Some("the machine is updated")).await?;
    // The other one takes over; the first one stands again, behind it.
    loop {
        let now = election.next().await?;
        if now.holders.first().is_some_and(|leader| leader.message != first) {
            break;
        }
    }
    stop.cancel();
    for candidate in candidates {
        candidate.await??;
    }
    observer.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

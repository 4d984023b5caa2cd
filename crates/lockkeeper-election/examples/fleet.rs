//! Three candidates and an observer; the leader is asked to step down, and another one takes over.
//!
//! `cargo run -p lockkeeper-election --example fleet`

use lockkeeper::{CancellationToken, Lockkeeper};
use lockkeeper_election::Election;

const ELECTION: &str = "/elections/scheduler";

/// One process of the fleet; here, all of them are tasks.
async fn candidate(keeper: Lockkeeper, id: &'static str, stop: CancellationToken) -> Result<(), lockkeeper::Error> {
    let candidate = Election::new(&keeper, ELECTION).candidate(id);
    let running = candidate.run(
        &stop,
        |leadership, demoted| {
            println!("{id} leads with token {}", leadership.token());
            Box::pin(async move {
                // Send the token with everything that changes something outside, and end when this is cancelled.
                demoted.cancelled().await;
            })
        },
        |demotion| {
            println!("{id}: {demotion}");
            Box::pin(async {})
        },
    );
    running.await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let (stop, observing) = (CancellationToken::new(), Lockkeeper::embedded(dir.path()).await?);
    let mut fleet = Vec::new();
    for id in ["a", "b", "c"] {
        let keeper = Lockkeeper::embedded(dir.path()).await?;
        fleet.push(tokio::spawn(candidate(keeper, id, stop.clone())));
    }
    let mut observer = Election::new(&observing, ELECTION).observe();
    let mut terms = 0;
    while terms < 3 {
        let Some(leader) = observer.next().await? else { continue };
        println!("observed: {:?}", leader.id());
        observing.admin().revoke(ELECTION, Some("the machine is updated")).await?;
        terms += 1;
    }
    stop.cancel();
    for candidate in fleet {
        candidate.await??;
    }
    assert!(Election::new(&observing, ELECTION).leader().await?.is_none());
    observing.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

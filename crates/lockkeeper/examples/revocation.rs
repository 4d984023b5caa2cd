//! Revocation: the holder learns who asks for the release and why, and releases or refuses.
//!
//! `cargo run -p lockkeeper --example revocation`

use std::time::Duration;

use lockkeeper::Lockkeeper;
use lockkeeper::admin::RevokeAnswer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let keeper = Lockkeeper::embedded(dir.path()).await?;
    let rebuild = keeper.mutex("/locks/rebuild");
    let soon = Duration::from_secs(10);

    // The holder waits for a request to release.
    let guard = rebuild.acquire().message("full rebuild").await?;
    let holder = tokio::spawn(async move {
        let asked = guard.revocation().await;
        let (who, why) = (asked.by.as_ref().map(ToString::to_string), asked.reason.as_deref());
        // `{:?}` escapes what the other client wrote.
        println!("asked by {}: {:?}", who.as_deref().unwrap_or("an unknown client"), why.unwrap_or("no reason given"));
        // The holder refuses the first request and releases at the second one.
        guard.refuse_revocation("two minutes left").expect("the text is short");
        guard.revocation().await;
        guard.release().await
    });

    for reason in ["release day", "release day, please"] {
        for asked in keeper.admin().revoke("/locks/rebuild", Some(reason)).await? {
            match asked.answer(soon).await? {
                RevokeAnswer::Released => println!("{} released the lock", asked.contender()),
                RevokeAnswer::Refused(why) => println!("{} refuses: {why:?}", asked.contender()),
                other => panic!("no answer within {soon:?}: {other:?}"),
            }
        }
    }
    holder.await??;

    // Nothing was taken by force. Admin::break_lock removes a holder that does not answer.
    rebuild.try_acquire().await?.release().await?;
    keeper.close().await;
    Ok(())
}

#[cfg(test)]
#[test]
fn runs() {
    main().unwrap();
}

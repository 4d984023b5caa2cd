//! What others want of a hold: its release, or that it makes way.

use std::collections::HashMap;
use std::future::pending;

use futures_util::future::{FutureExt, select_all};
use lockkeeper::{Holding, Revocation};

/// Waits for a request to release one of these holds, other than the one that is known of its lock. Without a hold, for ever. Dropping the
/// future loses no request.
pub async fn asked<'a>(holdings: &'a [Holding], known: &HashMap<&str, Revocation>) -> (&'a Holding, Revocation) {
    if holdings.is_empty() {
        return pending().await;
    }
    let requests = holdings.iter().map(|holding| {
        let known = known.get(holding.path());
        async move {
            let request = match known {
                Some(known) => holding.revocation_after(known).await,
                None => holding.revocation().await,
            };
            (holding, request)
        }
        .boxed()
    });
    select_all(requests).await.0
}

/// Waits until a contender of an earlier class waits for one of these holds or, if that is `known`, until none does any more. Returns whether
/// one does. Without a hold, it waits for ever. Dropping the future leaves nothing behind.
pub async fn wanted(holdings: &[Holding], known: bool) -> bool {
    if holdings.is_empty() {
        return pending().await;
    }
    let changes = holdings.iter().map(|holding| {
        async move {
            match known {
                true => holding.yield_withdrawn().await,
                false => holding.yield_requested().await,
            }
        }
        .boxed()
    });
    select_all(changes).await;
    !known
}

//! The holds that a command runs under: those of a guard, the one of a job's run, or none.

use std::future::pending;
use std::time::Duration;

use lockkeeper::guard::HoldState;
use lockkeeper::{Holding, Loss, MultiGuard};
use lockkeeper_hold::{HeldLock, Remote};

/// How long a command without a lock may run. It is never reached, and does not overflow a clock.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Held<'a> {
    /// All holds of a guard.
    All(&'a MultiGuard),
    One(&'a Holding),
    /// The hold of a keeper.
    Kept(&'a Remote),
    /// No hold: nothing is ever lost.
    Nothing,
}

impl<'a> Held<'a> {
    /// Returns each hold, in the order of their paths.
    pub(crate) fn holdings(self) -> &'a [Holding] {
        match self {
            Held::All(guard) => guard.holdings(),
            Held::One(holding) => std::slice::from_ref(holding),
            Held::Kept(_) | Held::Nothing => &[],
        }
    }

    /// Returns what each hold is, in the order of their paths.
    pub(crate) fn locks(self) -> Vec<HeldLock> {
        match self {
            Held::Kept(hold) => hold.seen().locks,
            held => held.holdings().iter().map(HeldLock::from).collect(),
        }
    }

    /// Whether all of them can be relied on now.
    pub(crate) fn is_held(self) -> bool {
        if let Held::Kept(hold) = self {
            return !hold.valid_for().is_zero();
        }
        self.holdings().iter().all(Holding::is_held)
    }

    /// Returns how long all of them can be relied on.
    pub(crate) fn valid_for(self) -> Duration {
        if let Held::Kept(hold) = self {
            return hold.valid_for();
        }
        self.holdings().iter().map(Holding::valid_for).min().unwrap_or(NEVER)
    }

    /// Whether it is being released, by its keeper: then it is not lost.
    pub(crate) fn is_released(self) -> bool {
        matches!(self, Held::Kept(hold) if hold.seen().is_ending)
    }

    /// Returns the worst of their states.
    pub(crate) fn state(self) -> HoldState {
        match self {
            Held::All(guard) => guard.state(),
            Held::One(holding) => holding.state(),
            Held::Kept(hold) => hold.state(),
            Held::Nothing => HoldState::Held,
        }
    }

    /// Waits until one of them is lost, and returns why. Dropping the future leaves nothing behind.
    pub(crate) async fn lost(self) -> Loss {
        match self {
            Held::All(guard) => guard.lost().await,
            Held::One(holding) => holding.lost().await,
            Held::Kept(hold) => hold.lost().await,
            Held::Nothing => pending().await,
        }
    }

    /// Waits until one of them can be trusted for no longer than `margin`, or is lost. Dropping the future leaves nothing
    /// behind.
    pub(crate) async fn nearly_lost(self, margin: Duration) -> HoldState {
        match self {
            Held::All(guard) => guard.nearly_lost(margin).await,
            Held::One(holding) => holding.nearly_lost(margin).await,
            Held::Kept(hold) => hold.nearly_lost(margin).await,
            Held::Nothing => pending().await,
        }
    }

    /// Waits until the first of them can be trusted for longer. Dropping the future loses nothing.
    pub(crate) async fn renewed(self) {
        match (self, self.holdings().first()) {
            (Held::Kept(hold), _) => hold.renewed().await,
            (_, Some(holding)) => holding.renewed().await,
            _ => pending().await,
        }
    }

    /// Waits until the worst of their states differs from `seen`, and returns it. Dropping the future leaves nothing
    /// behind.
    pub(crate) async fn changed(self, seen: HoldState) -> HoldState {
        match self {
            Held::All(guard) => guard.changed(seen).await,
            Held::One(holding) => holding.changed(seen).await,
            Held::Kept(hold) => hold.changed(seen).await,
            Held::Nothing => pending().await,
        }
    }
}

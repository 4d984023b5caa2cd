//! The gate: admits the greatest token so far to a resource, and refuses smaller ones.
//!
//! The comparison and the change must be one step. Otherwise a request could pass the comparison and pause, a newer request could
//! make its change, and the paused one would then undo it. So an admitted request holds a [`Pass`] until its change is done, and a
//! newer request waits until all older passes are dropped. Invariant: passes for one key that exist together have the same token,
//! and no pass has a smaller token than an earlier one.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use lockkeeper_core::FencingToken;

/// Admits the greatest token so far to a resource, and refuses smaller ones.
///
/// Each key has its own mark, so one gate can protect many resources, each with its own lock. A clone is the same gate, and costs
/// little. [`TokenGate::new`] keeps marks in memory: after a restart it admits the first token that comes. `TokenGate::open`
/// (feature `persistent`) keeps them on disk.
///
/// A key takes about 100 bytes and its own length, and stays until [`TokenGate::forget`]. So take keys from the resources that you
/// have, not from what a stranger sends.
#[derive(Clone, Default)]
pub struct TokenGate {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    #[cfg(feature = "persistent")]
    marks: Option<crate::marks::Marks>,
}

/// The state of one key.
#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    /// Threads that wait until older passes are dropped.
    left: Condvar,
}

#[derive(Default)]
struct State {
    /// The greatest token seen.
    highest: Option<FencingToken>,
    /// How many passes exist.
    passes: usize,
    /// The token of these passes. It may be smaller than the greatest one.
    admitted: Option<FencingToken>,
    /// Tasks that wait until older passes are dropped.
    waiting: Vec<Waker>,
}

/// Why the gate refused a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A greater token was seen: the lock has a newer holder.
    #[error("token {offered} is stale: {highest} has been seen")]
    Stale {
        /// The refused token.
        offered: FencingToken,
        /// The greatest token so far.
        highest: FencingToken,
    },
    /// The mark could not be stored, so the token is not admitted.
    #[error("the mark of token {offered} cannot be stored: {problem}")]
    NotStored {
        /// The refused token.
        offered: FencingToken,
        /// Why storing failed.
        problem: String,
    },
}

/// The right to change a resource, until it is dropped.
///
/// Meanwhile the gate admits no other token for the key. It may give further passes for the same token.
#[must_use = "the gate admits newer tokens when the pass is dropped; keep it until the change is done"]
pub struct Pass {
    slot: Arc<Slot>,
    token: FencingToken,
}

/// Waits for a [`Pass`]. See [`TokenGate::enter`].
#[must_use = "the gate checks the token only when this is awaited"]
pub struct Enter {
    gate: Arc<Inner>,
    key: String,
    slot: Arc<Slot>,
    token: FencingToken,
}

impl TokenGate {
    /// Makes a gate that keeps its marks in memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a gate that keeps its marks in the file `path`, and creates the file if it is missing.
    ///
    /// A token that was refused stays refused after a restart. Only one process at a time can open the file.
    ///
    /// # Cost
    /// The first use of each greater token costs one fsync, on the calling thread. Further uses of the same token cost nothing.
    ///
    /// # Errors
    /// The file cannot be opened, another process has it open, or it is not a gate's file.
    #[cfg(feature = "persistent")]
    pub fn open(path: impl AsRef<std::path::Path>) -> std::io::Result<Self> {
        let marks = Some(crate::marks::Marks::open(path.as_ref())?);
        Ok(TokenGate { inner: Arc::new(Inner { slots: Mutex::default(), marks }) })
    }

    /// Waits until no pass for `key` has an older token, and returns a pass for `token`. It needs no runtime.
    ///
    /// # Cancel safety
    /// The first poll raises the mark, and dropping the future does not lower it. From then on older tokens are refused, whether the
    /// new holder makes its change or not, because the lock has a newer holder.
    ///
    /// # Errors
    /// [`Refused::Stale`] if a greater token was seen before or comes meanwhile; [`Refused::NotStored`] if the mark cannot be
    /// stored.
    pub fn enter(&self, key: &str, token: FencingToken) -> Enter {
        Enter { gate: self.inner.clone(), key: key.to_owned(), slot: self.slot(key), token }
    }

    /// Does the same as [`TokenGate::enter`], and blocks this thread.
    ///
    /// # Errors
    /// The same as [`TokenGate::enter`].
    pub fn enter_blocking(&self, key: &str, token: FencingToken) -> Result<Pass, Refused> {
        let slot = self.slot(key);
        let mut state = slot.state();
        loop {
            if self.inner.admit(&mut state, key, token)? {
                drop(state);
                return Ok(Pass { slot, token });
            }
            state = slot.left.wait(state).expect("no code panics while it holds this lock");
        }
    }

    /// Returns the greatest token that was seen for `key`.
    pub fn highest(&self, key: &str) -> Option<FencingToken> {
        let slot = self.slot(key);
        let mut state = slot.state();
        self.inner.recall(&mut state, key).ok()?;
        state.highest
    }

    /// Removes the mark of `key`, in memory and on disk, unless a pass for it exists or is waited for. Returns `false` in that case.
    ///
    /// Use it for a resource that no longer exists, and for a mark that a wrong token has raised. The gate then admits the first
    /// token that comes, so make sure that no older holder is left.
    ///
    /// # Errors
    /// The stored mark cannot be removed.
    pub fn forget(&self, key: &str) -> std::io::Result<bool> {
        let mut slots = self.inner.slots.lock().expect("no code panics while it holds this lock");
        // Slots are cloned under this lock only, so a slot with one reference is not in use.
        if slots.get(key).is_some_and(|slot| Arc::strong_count(slot) > 1) {
            return Ok(false);
        }
        #[cfg(feature = "persistent")]
        if let Some(marks) = &self.inner.marks {
            marks.remove(key).map_err(std::io::Error::other)?;
        }
        slots.remove(key);
        Ok(true)
    }

    fn slot(&self, key: &str) -> Arc<Slot> {
        let mut slots = self.inner.slots.lock().expect("no code panics while it holds this lock");
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        slots.entry(key.to_owned()).or_default().clone()
    }
}

impl Inner {
    /// Returns whether `token` gets a pass now; `false` while passes of another token exist.
    fn admit(&self, state: &mut State, key: &str, token: FencingToken) -> Result<bool, Refused> {
        let not_stored = |problem| Refused::NotStored { offered: token, problem };
        self.recall(state, key).map_err(not_stored)?;
        match state.highest {
            Some(highest) if token < highest => return Err(Refused::Stale { offered: token, highest }),
            Some(highest) if token == highest => {}
            _ => {
                // Store it first: if a crash lost the mark, the gate would admit an older token after a newer one.
                self.store(key, token).map_err(not_stored)?;
                state.highest = Some(token);
            }
        }
        if state.passes > 0 && state.admitted != Some(token) {
            return Ok(false);
        }
        state.admitted = Some(token);
        state.passes += 1;
        Ok(true)
    }

    /// Reads the stored mark of a key that this process has not used yet.
    #[cfg(feature = "persistent")]
    fn recall(&self, state: &mut State, key: &str) -> Result<(), String> {
        if let (None, Some(marks)) = (state.highest, &self.marks) {
            state.highest = marks.read(key)?;
        }
        Ok(())
    }

    #[cfg(not(feature = "persistent"))]
    fn recall(&self, _: &mut State, _: &str) -> Result<(), String> {
        Ok(())
    }

    #[cfg(feature = "persistent")]
    fn store(&self, key: &str, token: FencingToken) -> Result<(), String> {
        self.marks.as_ref().map_or(Ok(()), |marks| marks.write(key, token))
    }

    #[cfg(not(feature = "persistent"))]
    fn store(&self, _: &str, _: FencingToken) -> Result<(), String> {
        Ok(())
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }
}

impl Future for Enter {
    type Output = Result<Pass, Refused>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state();
        match self.gate.admit(&mut state, &self.key, self.token) {
            Ok(true) => Poll::Ready(Ok(Pass { slot: self.slot.clone(), token: self.token })),
            Ok(false) => {
                if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
            Err(refused) => Poll::Ready(Err(refused)),
        }
    }
}

impl Pass {
    /// Returns the token of this pass.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.slot.state();
        state.passes -= 1;
        if state.passes == 0 {
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            self.slot.left.notify_all();
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for TokenGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenGate").finish_non_exhaustive()
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("token", &self.token).finish()
    }
}

impl fmt::Debug for Enter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enter").field("key", &self.key).field("token", &self.token).finish()
    }
}

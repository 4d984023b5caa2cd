//! The gate: who is let in at a resource, and who is told that somebody newer was there.
//!
//! Comparing and acting must not come apart: a request that passed the comparison and then waits while a newer one passes and
//! acts would undo it. So whoever is let in has a [`Pass`] until it has acted, and a newer one waits until all older passes are
//! back. Invariant: no two passes of different tokens for one key at a time, and never one with a smaller token after one
//! with a greater.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use lockkeeper_core::FencingToken;

/// Lets whoever comes with the greatest token so far act on a resource, and refuses older ones. By key: one gate may stand
/// before many resources, each with a lock of its own.
///
/// Cheap to clone; all clones are the same gate. [`TokenGate::new`] forgets with the process: after a restart the first to come
/// is let in, whoever it is. `TokenGate::open` (feature `persistent`) remembers. A key takes some 100 bytes for good.
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

/// What is known of one key.
#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    /// Threads that wait for older passes to come back.
    left: Condvar,
}

#[derive(Default)]
struct State {
    /// The greatest token seen.
    highest: Option<FencingToken>,
    /// How many act now, and by which token. That may be an older one than the greatest.
    acting: usize,
    by: Option<FencingToken>,
    /// Tasks that wait for older passes to come back.
    waiting: Vec<Waker>,
}

/// Why nobody was let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Somebody was here with a greater token: the lock has gone on to another holder.
    #[error("token {offered} is stale: {highest} has been seen")]
    Stale {
        /// What was offered.
        offered: FencingToken,
        /// The greatest so far.
        highest: FencingToken,
    },
    /// The mark could not be kept, so nobody may act by it.
    #[error("the mark of token {offered} cannot be stored: {problem}")]
    NotStored {
        /// What was offered.
        offered: FencingToken,
        /// What went wrong.
        problem: String,
    },
}

/// The right to act on a resource, until it is dropped. Nobody with another token acts meanwhile; others with the same may.
#[must_use = "newer holders are let in when the pass is dropped; keep it until the resource was changed"]
pub struct Pass {
    slot: Arc<Slot>,
    token: FencingToken,
}

/// Waits for the right to act. See [`TokenGate::enter`].
#[must_use = "nobody is let in before it is awaited"]
pub struct Enter {
    gate: Arc<Inner>,
    key: String,
    slot: Arc<Slot>,
    token: FencingToken,
}

impl TokenGate {
    /// A gate that forgets with the process.
    pub fn new() -> Self {
        Self::default()
    }

    /// A gate that remembers in the file `path`, made if it is missing: a token that was refused stays refused after a restart.
    ///
    /// The first use of each greater token costs one fsync, on the thread that asks; of the same again, nothing. One process at a
    /// time has the file.
    ///
    /// # Errors
    /// The file cannot be opened, is another process's, or is no gate's.
    #[cfg(feature = "persistent")]
    pub fn open(path: impl AsRef<std::path::Path>) -> std::io::Result<Self> {
        let marks = Some(crate::marks::Marks::open(path.as_ref())?);
        Ok(TokenGate { inner: Arc::new(Inner { slots: Mutex::default(), marks }) })
    }

    /// Asks to act on `key` by `token`, and waits while older holders are still acting. No runtime is needed.
    ///
    /// Dropping the future leaves the mark where it is: older tokens are refused from the first poll on, for their lock has gone
    /// on, whether or not its new holder acts.
    ///
    /// Awaiting it gives [`Refused::Stale`] if a greater token was seen before or comes meanwhile, [`Refused::NotStored`] if
    /// the mark cannot be kept.
    pub fn enter(&self, key: &str, token: FencingToken) -> Enter {
        Enter { gate: self.inner.clone(), key: key.to_owned(), slot: self.slot(key), token }
    }

    /// [`TokenGate::enter`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn enter_blocking(&self, key: &str, token: FencingToken) -> Result<Pass, Refused> {
        let slot = self.slot(key);
        let mut state = slot.state();
        loop {
            if self.inner.admit(&mut state, key, token)? {
                drop(state);
                return Ok(Pass { slot, token });
            }
            state = slot.left.wait(state).expect("nobody panics with the state in hand");
        }
    }

    /// The greatest token that was seen for `key`.
    pub fn highest(&self, key: &str) -> Option<FencingToken> {
        let slot = self.slot(key);
        let mut state = slot.state();
        self.inner.recall(&mut state, key).ok()?;
        state.highest
    }

    fn slot(&self, key: &str) -> Arc<Slot> {
        let mut slots = self.inner.slots.lock().expect("held for a look only");
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        slots.entry(key.to_owned()).or_default().clone()
    }
}

impl Inner {
    /// Whether `token` may act now; not yet, if older ones still do.
    fn admit(&self, state: &mut State, key: &str, token: FencingToken) -> Result<bool, Refused> {
        let not_stored = |problem| Refused::NotStored { offered: token, problem };
        self.recall(state, key).map_err(not_stored)?;
        match state.highest {
            Some(highest) if token < highest => return Err(Refused::Stale { offered: token, highest }),
            Some(highest) if token == highest => {}
            _ => {
                // On disk first: a mark that a crash forgets would let an older token in after a newer has acted.
                self.store(key, token).map_err(not_stored)?;
                state.highest = Some(token);
            }
        }
        if state.acting > 0 && state.by != Some(token) {
            return Ok(false);
        }
        state.by = Some(token);
        state.acting += 1;
        Ok(true)
    }

    /// Reads the mark of a key that this process has not seen yet.
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
        self.state.lock().expect("nobody panics with the state in hand")
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
    /// The token that it was given for.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.slot.state();
        state.acting -= 1;
        if state.acting == 0 {
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

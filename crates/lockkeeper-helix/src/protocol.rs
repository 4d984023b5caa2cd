//! Helix's lock: one persistent node with one record, changed by compare-and-set; leased, and preemptable by priority.
//!
//! Everything that decides is here and pure. [`transition`] takes the record as it was read, what one client wants and what
//! is known of the server's time. It returns what to write, or why not. It looks at facts alone, and is called again after
//! each change, lost write or deadline. So there is no state of a client's own that could outlive a discarded attempt.
//!
//! The record is Apache Helix's, field for field, so its clients and ours exclude, preempt and free each other on one node.
//! What they leave unsaid is decided so that no request is forgotten and no lease taken early; [`Rules`] has the numbers.

mod clock;
mod histogram;
mod owned;
mod scope;
mod statistics;
mod terms;
mod transition;

pub use clock::{ServerClock, ServerNow};
pub use histogram::Histogram;
pub use owned::{Extent, News, OwnedHold, Preempting, Shown};
pub use scope::{Scope, ScopeError};
pub use statistics::{Measurement, PreemptionOutcome, Statistics, Tally, owner_class};
pub use terms::{EMERGENCY, Terms, TermsError};
pub use transition::{
    Answer, Refusal, Rules, SeenRecord, Transition, Unfinished, Wish, hold_until_ms, request_lapses_ms, transition,
};

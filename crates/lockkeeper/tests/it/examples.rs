//! Runs the examples: each ends without an error, and panics if what it shows is not true.

#[path = "../../examples/errors.rs"]
mod errors;
#[path = "../../examples/fencing.rs"]
mod fencing;
#[path = "../../examples/mutex.rs"]
mod mutex;
#[path = "../../examples/object.rs"]
mod object;
#[path = "../../examples/priority.rs"]
mod priority;
#[path = "../../examples/revocation.rs"]
mod revocation;
#[path = "../../examples/rwlock.rs"]
mod rwlock;
#[path = "../../examples/semaphore.rs"]
mod semaphore;
#[path = "../../examples/several.rs"]
mod several;
#[path = "../../examples/shutdown.rs"]
mod shutdown;
#[path = "../../examples/testing.rs"]
mod testing;

//! Runs the examples: each ends without an error, and panics if what it shows is not true.

#[path = "../../../lockkeeper/examples/errors.rs"]
mod errors;
#[path = "../../../lockkeeper/examples/fencing.rs"]
mod fencing;
#[path = "../../../lockkeeper/examples/mutex.rs"]
mod mutex;
#[path = "../../../lockkeeper/examples/object.rs"]
mod object;
#[path = "../../../lockkeeper/examples/priority.rs"]
mod priority;
#[path = "../../../lockkeeper/examples/recipes/main.rs"]
pub(crate) mod recipes;
#[path = "../../../lockkeeper/examples/revocation.rs"]
mod revocation;
#[path = "../../../lockkeeper/examples/rwlock.rs"]
mod rwlock;
#[path = "../../../lockkeeper/examples/semaphore.rs"]
mod semaphore;
#[path = "../../../lockkeeper/examples/several.rs"]
mod several;
#[path = "../../../lockkeeper/examples/shutdown.rs"]
mod shutdown;
#[path = "../../../lockkeeper/examples/testing.rs"]
mod testing;

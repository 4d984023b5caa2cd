//! A thread that makes requests and writes them itself, without the driver's thread.

use crate::driver::{SharedState, Unwoken};
use crate::helped::HelpedTask;
use crate::session::Session;

/// Runs `make` on this thread. The requests that it makes for the session do not wake the driver: this thread continues the driver
/// afterwards, so that it writes them, or wakes it. Also if `make` panics.
pub(crate) fn flush_after(shared: &SharedState, driver: &HelpedTask, make: impl FnOnce()) {
    // Dropped last.
    let _flush = Flush { shared, driver };
    let _unwoken = Unwoken::begin(shared);
    make();
}

/// Continues the driver when it is dropped.
struct Flush<'a> {
    shared: &'a SharedState,
    driver: &'a HelpedTask,
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        self.shared.send_deletes();
        if !self.driver.help(|| !self.shared.session(Session::has_outgoing)) {
            self.shared.wake_driver();
        }
    }
}

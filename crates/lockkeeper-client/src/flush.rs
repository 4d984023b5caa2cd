//! A thread that makes requests and writes them itself, without the driver's thread.

use crate::driver::{SharedState, Unwoken};
use crate::helped::HelpedTask;
use crate::session::Session;

/// The requests that this thread makes for a session from now on do not wake the driver. Dropping this continues the driver on this
/// thread, so that it writes them, or wakes it.
pub(crate) struct Flush<'a> {
    shared: &'a SharedState,
    driver: &'a HelpedTask,
    unwoken: Option<Unwoken>,
}

impl<'a> Flush<'a> {
    pub(crate) fn begin(shared: &'a SharedState, driver: &'a HelpedTask) -> Self {
        Flush { shared, driver, unwoken: Some(Unwoken::begin(shared)) }
    }
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        self.unwoken = None;
        self.shared.send_deletes();
        if !self.driver.help(|| !self.shared.session(Session::has_outgoing)) {
            self.shared.wake_driver();
        }
    }
}

//! What the service manager is told: systemd, with `Type=notify`.

pub(crate) use sd_notify::NotifyState;

use crate::output::Printer;

/// Tells systemd, if it started this process and wants to know.
pub(crate) fn tell(states: &[NotifyState<'_>], printer: &Printer) {
    if let Err(error) = sd_notify::notify(states) {
        let socket = std::env::var("NOTIFY_SOCKET").unwrap_or_default();
        printer.note(&format!("cannot tell the service manager at NOTIFY_SOCKET={socket}: {error}"));
    }
}

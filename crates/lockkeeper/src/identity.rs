//! The identity of this process in the nodes that it creates.

use lockkeeper_core::Owner;

/// Returns the user, machine, process id and program that the nodes of this process name as their owner.
pub fn this_process() -> Owner {
    let program = std::env::args_os().next().map(|path| {
        let name = std::path::Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| path.to_string_lossy().into_owned())
    });
    Owner {
        // A container may have no name for its user.
        user: whoami::username().unwrap_or_else(|_| format!("uid {}", rustix::process::geteuid().as_raw())),
        host: gethostname::gethostname().to_string_lossy().into_owned(),
        pid: std::process::id(),
        program,
    }
}

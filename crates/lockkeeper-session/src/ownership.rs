//! Whether other users of this machine may have written a file.
//!
//! Secrets and commands are taken only from files that no other user than root can change. The check is of an open file, so that
//! nobody can put another one in its place after it.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::Misuse;

/// The bit of a directory in which users may not rename or remove each other's files.
const STICKY: u32 = 0o1000;

/// Opens a file that this program writes, as the options say. A missing one is created for this user only, if they say so. The mode
/// of an existing one stays.
///
/// # Errors
/// It cannot be opened, or another user may have planted it: it is a link, it has several names, it is not a file, or it belongs to
/// another user.
pub fn open_own(file: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Also of a device or a pipe, which would keep the caller waiting.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(file);
    let opened = opened.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::LOOP) => planted("it is a link, which someone may have planted; remove it".to_owned()),
        _ => error,
    })?;
    let found = opened.metadata()?;
    if !found.is_file() {
        return Err(planted("it is not a file; remove it".to_owned()));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(planted(format!("it belongs to {}; remove it, or run this as that user", user_name(found.uid()))));
    }
    if found.nlink() > 1 {
        return Err(planted("it has several names, one of which someone may have planted; remove this one".to_owned()));
    }
    Ok(opened)
}

fn planted(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Returns how another user could have written a file or a directory: because of its owner or its mode.
pub fn other_writer(metadata: &Metadata) -> Option<String> {
    if ![0, rustix::process::geteuid().as_raw()].contains(&metadata.uid()) {
        return Some(format!("belongs to user {}", metadata.uid()));
    }
    let mode = metadata.mode() & 0o777;
    (mode & 0o022 != 0).then(|| format!("may be written by other users (mode {mode:03o})"))
}

/// Returns how another user could have replaced the files in a directory: through it, or through one above it.
///
/// A sticky directory such as `/tmp` may be writable by all. What is in it must then belong to this user or to root, as
/// [`other_writer`] checks. Below a directory that only its owner may enter, and for a private group, the modes do not matter.
pub fn other_replacer(dir: &Path) -> io::Result<Option<String>> {
    // Resolve links, so that the directories above are the real ones.
    let dir = dir.canonicalize()?;
    let mut is_closed = false;
    for at in dir.ancestors().collect::<Vec<_>>().into_iter().rev() {
        let metadata = at.metadata()?;
        let may_be_shared = metadata.uid() == 0 && metadata.mode() & STICKY != 0;
        let has_right_owner = [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid());
        let mode_is_harmless = may_be_shared || has_right_owner && (is_closed || has_private_group(&metadata));
        if let Some(how) = other_writer(&metadata).filter(|_| !mode_is_harmless) {
            return Ok(Some(format!("{} {how}", at.display())));
        }
        is_closed |= metadata.mode() & 0o011 == 0;
    }
    Ok(None)
}

/// Whether only this user's private group may write besides this user. It has the number of the user. On systems with the umask
/// 002, all of a user's files are of this kind.
pub(crate) fn has_private_group(metadata: &Metadata) -> bool {
    let me = rustix::process::geteuid().as_raw();
    me != 0 && metadata.uid() == me && metadata.gid() == me && metadata.mode() & 0o002 == 0
}

/// Returns the name of a user, or `user 4321` if it has none.
pub fn user_name(uid: u32) -> String {
    name_in("/etc/passwd", uid).unwrap_or_else(|| format!("user {uid}"))
}

/// Returns the name of a group, or its number if it has none.
pub fn group_name(gid: u32) -> String {
    name_in("/etc/group", gid).unwrap_or_else(|| gid.to_string())
}

/// Returns the name of a number in a file with lines such as `root:x:0:`.
fn name_in(file: &str, id: u32) -> Option<String> {
    let lines = std::fs::read_to_string(file).ok()?;
    let id = id.to_string();
    lines.lines().find(|line| line.split(':').nth(2) == Some(&id))?.split(':').next().map(str::to_owned)
}

/// Reads a file with credentials. It must belong to this user or to root, no other user may write it, and not every user may read
/// it.
///
/// # Errors
/// The file cannot be read, or other users could know or choose what is in it. The error names the file and never what is in it.
pub fn read_credentials(argument: &'static str, file: &Path) -> Result<String, Misuse> {
    let name = file.display();
    let unreadable = |error| Misuse::new(argument, format!("cannot read {name}: {error}"));
    let mut open = File::open(file).map_err(unreadable)?;
    let metadata = open.metadata().map_err(unreadable)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o004 != 0 {
        let problem = format!("{name} has credentials, and every user may read it (mode {mode:03o})");
        return Err(Misuse::new(argument, problem).remedy(format!("chmod 600 {name}")));
    }
    // A user who can change it chooses the account of this program, and the address that it believes.
    if let Some(how) = other_writer(&metadata) {
        let remedy = format!("make it a file of the user who runs this, and chmod 600 {name}");
        return Err(Misuse::new(argument, format!("{name} has credentials, and {how}")).remedy(remedy));
    }
    let mut text = String::new();
    open.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// With the umask 002, directories are writable by their group. A home directory that only its owner may enter protects them.
    #[test]
    fn below_a_closed_directory_nobody_else_can_replace_a_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("local/state");
        std::fs::create_dir_all(&dir).unwrap();
        let mode = |dir: &Path, mode| std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
        mode(&dir, 0o775);
        mode(&root.path().join("local"), 0o777);
        mode(root.path(), 0o700);
        assert_eq!(other_replacer(&dir).unwrap(), None);
        mode(root.path(), 0o755);
        let how = other_replacer(&dir).unwrap().unwrap();
        assert!(how.ends_with("local may be written by other users (mode 777)"), "{how}");
    }
}

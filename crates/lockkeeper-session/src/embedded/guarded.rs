//! Directories and files that no other user can replace, write or plant.
//!
//! Whoever may write to a server's directory can put another server's socket there, and whoever may write to a directory
//! above it can put another directory there. Then two holders of one lock are possible. So both are refused.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::ownership::{has_private_group, open_own, user_name};

/// The permissions to write of others than the owner.
const WRITTEN_BY_OTHERS: u32 = 0o022;
/// The permissions to enter of others than the owner.
const ENTERED_BY_OTHERS: u32 = 0o011;
const STICKY: u32 = 0o1000;

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Refuses a directory in which, or in place of which, another user could put files. It may be missing: then the
/// directories above it are checked.
///
/// An own directory belongs to this user. A `shared` one may belong to any user, who is then trusted as its owner. Each
/// directory above belongs to root, to this user or to that owner, and nobody else may write to it. There are three
/// exceptions, which give nobody else the right to rename:
///
/// - A sticky directory such as `/tmp` may be writable by all if the next directory belongs to root or to this user.
/// - Below a directory that only its owner may enter, all is the owner's business: a home directory with mode 0700.
/// - A group with the number of this user is its private group, as systems with the umask 002 create it.
pub(super) fn check(dir: &Path, shared: bool) -> Result<()> {
    let (dir, exists) = existing(dir)?;
    if !dir.is_dir() {
        return Err(Error::new(ErrorKind::NotADirectory, format!("{} is not a directory", dir.display())));
    }
    let owner = match dir.metadata()?.uid() {
        owner if exists && shared => owner,
        _ => me(),
    };
    let mut closed = false;
    let above: Vec<&Path> = dir.ancestors().collect();
    for (depth, at) in above.iter().enumerate().rev() {
        let this = at.metadata()?;
        let refuse = |why: String| Err(Error::new(ErrorKind::PermissionDenied, format!("{} {why}", at.display())));
        let is_itself = exists && depth == 0;
        if is_itself && this.uid() != owner {
            return refuse(format!(
                "belongs to {}: run this as that user, or choose another directory",
                user_name(this.uid())
            ));
        }
        if ![0, me(), owner].contains(&this.uid()) {
            let remedy = "choose a directory of this user (with sudo, use sudo -H)";
            let owner = user_name(this.uid());
            return refuse(format!("belongs to {owner}, who could replace what is in it: {remedy}"));
        }
        if this.mode() & WRITTEN_BY_OTHERS != 0 && !closed && !has_private_group(&this) {
            // The owner of the next directory below, if there is to be one.
            let next = match depth {
                0 if !exists => Some(me()),
                0 => None,
                _ => Some(above[depth - 1].metadata()?.uid()),
            };
            // `chmod` on a sticky directory would take it away from the users for whom it is.
            match next.filter(|_| this.mode() & STICKY != 0) {
                Some(next) if [0, me()].contains(&next) => {}
                Some(next) => {
                    let (below, owner) = (above[depth - 1].display(), user_name(next));
                    let why = format!(
                        "{below} belongs to {owner}, and other users may create directories in {}",
                        at.display()
                    );
                    let remedy = "choose a directory of this user or of root";
                    return Err(Error::new(ErrorKind::PermissionDenied, format!("{why}: {remedy}")));
                }
                None if this.mode() & STICKY != 0 => {
                    return refuse("can be written by others than its owner; choose a directory in it".to_owned());
                }
                None => return refuse("can be written by others than its owner; run chmod go-w on it".to_owned()),
            }
        }
        closed |= this.mode() & ENTERED_BY_OTHERS == 0;
    }
    Ok(())
}

/// The directory with all links resolved, or the deepest directory above it that exists; and whether it exists itself.
fn existing(dir: &Path) -> Result<(PathBuf, bool)> {
    let mut exists = true;
    for at in std::path::absolute(dir)?.ancestors() {
        match at.canonicalize() {
            Err(error) if error.kind() == ErrorKind::NotFound => exists = false,
            found => return Ok((found?, exists)),
        }
    }
    Err(ErrorKind::NotFound.into())
}

/// Opens a file of this user for writing, and creates it if it is missing. Its content stays.
///
/// # Errors
/// It cannot be opened, it is a link, or it is not a file of this user.
pub(super) fn open(file: &Path) -> Result<File> {
    open_own(file, OpenOptions::new().write(true).create(true).truncate(false))
}

/// Refuses a link or a file that another user has made; a missing one is fine.
pub(super) fn check_owner(file: &Path) -> Result<()> {
    match file.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(found) if found.uid() != me() => Err(refused(format!("it belongs to user {}; remove it", found.uid()))),
        found => found.map(|_| ()),
    }
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(dir: &Path, mode: u32) {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_is_its_owners_all_the_way_up() {
        let root = tempfile::tempdir().unwrap();
        // Other users may enter it, as a home directory with mode 0755.
        mode(root.path(), 0o755);
        let (above, dir) = (root.path().join("above"), root.path().join("above/dir"));
        std::fs::create_dir_all(&dir).unwrap();
        mode(&above, 0o755);
        for shared in [false, true] {
            mode(&dir, 0o755);
            check(&dir, shared).unwrap();
            check(&dir.join("missing/too"), shared).unwrap();
            for (wrong, named, remedy) in [
                ((0o777, 0o755), &dir, "run chmod go-w on it"),
                ((0o757, 0o755), &dir, "run chmod go-w on it"),
                ((0o1777, 0o755), &dir, "choose a directory in it"),
                ((0o755, 0o777), &above, "run chmod go-w on it"),
            ] {
                mode(&dir, wrong.0);
                mode(&above, wrong.1);
                let error = check(&dir, shared).unwrap_err().to_string();
                let named = named.canonicalize().unwrap();
                let why = format!("{} can be written by others than its owner; {remedy}", named.display());
                assert_eq!(error, why);
            }
            // As in `/tmp`, with a directory of this user in it, or with none yet.
            mode(&dir, 0o755);
            mode(&above, 0o1777);
            check(&dir, shared).unwrap();
            check(&above.join("missing"), shared).unwrap();
            // A link leads to the directory that is checked.
            let link = root.path().join(format!("link-{shared}"));
            symlink(&dir, &link).unwrap();
            check(&link, shared).unwrap();
            mode(&dir, 0o777);
            check(&link, shared).unwrap_err();
            mode(&above, 0o755);
        }
    }

    /// Other modes would not make a directory of it, and would harm a device.
    #[test]
    fn what_is_no_directory_is_not_to_get_other_modes() {
        let error = check(Path::new("/dev/null"), false).unwrap_err().to_string();
        assert_eq!(error, "/dev/null is not a directory");
    }

    /// A home directory that only its owner may enter protects what is in it, whatever the umask was.
    #[test]
    fn below_a_closed_directory_the_modes_do_not_matter() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("local/state");
        std::fs::create_dir_all(&dir).unwrap();
        mode(&root.path().join("local"), 0o777);
        mode(&dir, 0o777);
        mode(root.path(), 0o700);
        check(&dir, false).unwrap();
        mode(root.path(), 0o701);
        check(&dir, false).unwrap_err();
    }

    /// Only root can make the directories of other users for this test.
    #[test]
    fn a_directory_of_another_user_is_refused_and_so_is_one_in_it() {
        if me() != 0 {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        mode(root.path(), 0o755);
        let dir = root.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        chown(&dir, Some(4321), Some(4321)).unwrap();
        for (at, shared, says) in [
            (dir.clone(), false, "belongs to user 4321: run this as that user"),
            (dir.join("missing"), false, "belongs to user 4321, who could replace"),
            (dir.join("missing"), true, "belongs to user 4321, who could replace"),
        ] {
            let error = check(&at, shared).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        // In a directory such as `/tmp`, the reason is the one below it, and not the modes of `/tmp`.
        mode(root.path(), 0o1777);
        for (at, shared) in [(dir.clone(), true), (dir.join("missing"), false)] {
            let error = check(&at, shared).unwrap_err().to_string();
            let dir = dir.canonicalize().unwrap();
            let why = format!("{} belongs to user 4321, and other users may create directories in", dir.display());
            assert!(error.starts_with(&why) && !error.contains("chmod"), "{error}");
        }
        mode(root.path(), 0o755);
        // The owner of a shared directory is trusted, and nobody else who may write there.
        check(&dir, true).unwrap();
        let below = dir.join("below");
        std::fs::create_dir(&below).unwrap();
        chown(&below, Some(4321), Some(4321)).unwrap();
        check(&below, true).unwrap();
        mode(&below, 0o777);
        assert!(check(&below, true).unwrap_err().to_string().contains("can be written by others"));
        // Root has no private group.
        let own = root.path().join("own");
        std::fs::create_dir(&own).unwrap();
        mode(&own, 0o775);
        assert!(check(&own, false).unwrap_err().to_string().contains("can be written by others"));
    }

    #[test]
    fn a_planted_link_and_what_is_no_file_of_this_user_are_not_opened() {
        let root = tempfile::tempdir().unwrap();
        let (file, kept) = (root.path().join("file"), root.path().join("kept"));
        std::fs::write(&kept, "content").unwrap();
        symlink(&kept, &file).unwrap();
        assert!(open(&file).unwrap_err().to_string().contains("it is a link"));
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        open(&file).unwrap_err();
        std::fs::remove_file(&file).unwrap();
        open(&file).unwrap();
        open(&kept).unwrap();
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "content");
        if me() == 0 {
            chown(&kept, Some(4321), None).unwrap();
            assert!(open(&kept).unwrap_err().to_string().contains("belongs to user 4321"));
        }
    }
}

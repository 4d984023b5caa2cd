//! Whether a server on this machine is the one that its directory's owner started.
//!
//! All users can connect to loopback, and can listen on a port as soon as it is free. So an address is trusted only if
//! no other user could have written it. The process that listens there must also belong to the owner of the directory
//! or to root. A server that ends between this check and the connection leaves a moment in which another program could
//! take its port.

use std::fs::File;
use std::fs::Metadata;
use std::io::{BufRead, BufReader, Error, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The owner of the process that listens at an address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortListener {
    /// The user with this id.
    Of(u32),
    /// No process listens.
    Nobody,
    /// The operating system does not say.
    Unknown,
}

/// The table of sockets and their users on Linux.
const TABLE: &str = "/proc/net/tcp";

/// The state of a listening socket in that table.
const LISTENS: &str = "0A";

/// The bytes of a row. Read one at a time: behind the last listening socket, the kernel looks through its whole table of
/// connections for the next row, which takes longer than all before.
const ROW: usize = 150;

/// Returns the owner of the process that listens at `address`.
pub(super) fn listener(address: SocketAddr) -> PortListener {
    match File::open(TABLE) {
        Ok(table) => find(BufReader::with_capacity(ROW, table), address),
        Err(_) => PortListener::Unknown,
    }
}

/// Finds an address in the kernel's table (Linux, Documentation/networking/proc_net_tcp.rst).
///
/// Listening sockets come first. There may be many others, which are not read.
fn find(table: impl BufRead, address: SocketAddr) -> PortListener {
    let IpAddr::V4(ip) = address.ip() else { return PortListener::Unknown };
    // The kernel prints the address as a number in the machine's byte order.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port());
    // The first line is a heading.
    for line in table.lines().skip(1).map_while(Result::ok) {
        let mut fields = line.split_whitespace().skip(1);
        let (at, state) = (fields.next(), fields.nth(1));
        if state != Some(LISTENS) {
            break;
        }
        if at == Some(&local) {
            // After the state: queues, timer, retransmits, user.
            return fields.nth(3).and_then(|user| user.parse().ok()).map_or(PortListener::Unknown, PortListener::Of);
        }
    }
    PortListener::Nobody
}

/// Refuses a shared directory in which other users than its owner and root could put or replace files.
///
/// The owner is trusted if it had the right to create the directory. For this, each directory above belongs to root, to
/// this user or to the same owner, and only its owner may write to it. A sticky directory such as `/tmp` may be
/// writable by all; then the next directory below must belong to root or to this user.
pub(super) fn check_shared(dir: &Path) -> std::io::Result<()> {
    // Resolve links, so that the directories above are the real ones.
    let dir = dir.canonicalize()?;
    let owner = dir.metadata()?.uid();
    let me = rustix::process::geteuid().as_raw();
    let mut below: Option<Metadata> = None;
    for at in dir.ancestors() {
        let this = at.metadata()?;
        let refuse = |why: String| Err(Error::new(ErrorKind::PermissionDenied, format!("{} {why}", at.display())));
        if ![0, me, owner].contains(&this.uid()) {
            return refuse(format!("belongs to user {}, who could replace it", this.uid()));
        }
        if this.mode() & 0o022 != 0 {
            match &below {
                Some(below) if this.mode() & 0o1000 != 0 && [0, me].contains(&below.uid()) => {}
                _ => return refuse("can be written by others than its owner; run chmod go-w on it".to_owned()),
            }
        }
        below = Some(this);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_listeners_user_is_read_from_the_kernels_table() {
        let number = |octets| format!("{:08X}", u32::from_ne_bytes(octets));
        let (local, any) = (number([127, 0, 0, 1]), number([0, 0, 0, 0]));
        let row = |local: &str, port: &str, state: &str, user: u32| {
            format!(
                "   0: {local}:{port} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {user}        0 9\n"
            )
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let table = [
            head.to_owned(),
            row(&any, "1F90", LISTENS, 8),
            row(&local, "1F90", LISTENS, 1000),
            row(&local, "1F91", "01", 7),
        ]
        .concat();
        assert_eq!(find(table.as_bytes(), "127.0.0.1:8080".parse().unwrap()), PortListener::Of(1000));
        assert_eq!(find(table.as_bytes(), "127.0.0.1:8081".parse().unwrap()), PortListener::Nobody);
        assert_eq!(find(&b"x"[..], "127.0.0.1:8080".parse().unwrap()), PortListener::Nobody);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_listener_of_this_process_is_this_users() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(listener(address), PortListener::Of(rustix::process::geteuid().as_raw()));
        drop(socket);
        assert_eq!(listener(address), PortListener::Nobody);
    }

    #[test]
    fn a_shared_directory_is_its_owners_all_the_way_up() {
        let root = tempfile::tempdir().unwrap();
        let (above, dir) = (root.path().join("above"), root.path().join("above/dir"));
        std::fs::create_dir_all(&dir).unwrap();
        let mode = |dir: &Path, mode| std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)).unwrap();
        mode(&dir, 0o755);
        check_shared(&dir).unwrap();
        for (wrong, named) in
            [((0o777, 0o755), &dir), ((0o775, 0o755), &dir), ((0o1777, 0o755), &dir), ((0o755, 0o777), &above)]
        {
            mode(&dir, wrong.0);
            mode(&above, wrong.1);
            let error = check_shared(&dir).unwrap_err().to_string();
            assert!(error.contains(&format!("{} can be written", named.canonicalize().unwrap().display())), "{error}");
        }
        // As in `/tmp`, with a directory of this user in it.
        mode(&dir, 0o755);
        mode(&above, 0o1777);
        check_shared(&dir).unwrap();
        // A link leads to the directory that is checked.
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        check_shared(&link).unwrap();
        mode(&dir, 0o777);
        check_shared(&link).unwrap_err();
    }
}

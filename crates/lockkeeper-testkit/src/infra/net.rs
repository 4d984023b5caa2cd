//! Machines on one machine: network namespaces joined by a bridge, whose links can be cut one by one.
//!
//! Needs root and iproute2. The host's own network does not change, except for one pair of interfaces that leads in.
//! The names contain this process's id, and everything is removed when the process ends, however it ends.

use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::infra::apache::{install_package, runs};

/// Namespaces with one address each, and one connection to the host.
#[derive(Debug)]
pub struct Net {
    name: String,
    subnet: u8,
    machines: usize,
    /// Removes everything when its standard input ends.
    sweeper: Child,
}

impl Net {
    /// Whether this process can create namespaces: it is root's, and `ip` exists or can be installed.
    pub fn possible() -> bool {
        let root = rustix::process::geteuid().is_root();
        root && (runs("ip", "-V") || install_package("iproute2").unwrap_or(false)) && ip(&["netns", "list"]).is_ok()
    }

    /// Creates this many machines, numbered from 0.
    pub fn new(machines: usize) -> io::Result<Net> {
        let name = format!("lk{:x}", std::process::id());
        // A private network that this machine does not use yet.
        let taken = ip(&["-o", "-4", "addr"])?;
        let start = (std::process::id() % 200) as u8;
        let free = (0..200_u8).map(|turn| 20 + (start + turn) % 200);
        let subnet = free.into_iter().find(|third| !taken.contains(&format!(" 10.213.{third}.")));
        let subnet = subnet.ok_or_else(|| io::Error::other("no network is free below 10.213.0.0/16"))?;
        let mut sweeper = Command::new("sh");
        sweeper.args([
            "-c",
            r#"read -r _; link=$1; shift; ip link del "$link"; for n in "$@"; do ip netns del "$n"; done"#,
        ]);
        sweeper.arg("sweeper").arg(format!("{name}h")).arg(format!("{name}br"));
        sweeper.args((0..machines).map(|machine| format!("{name}m{machine}")));
        sweeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let net = Net { name, subnet, machines, sweeper: sweeper.spawn()? };
        net.build()?;
        Ok(net)
    }

    fn build(&self) -> io::Result<()> {
        let (bridge, outer) = (format!("{}br", self.name), format!("{}h", self.name));
        ip(&["netns", "add", &bridge])?;
        ip(&["-n", &bridge, "link", "set", "lo", "up"])?;
        ip(&["-n", &bridge, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &bridge, "link", "set", "br0", "up"])?;
        ip(&["link", "add", &outer, "type", "veth", "peer", "name", "host", "netns", &bridge])?;
        ip(&["-n", &bridge, "link", "set", "dev", "host", "master", "br0", "up"])?;
        ip(&["addr", "add", &format!("{}/24", self.host()), "dev", &outer])?;
        ip(&["link", "set", &outer, "up"])?;
        for machine in 0..self.machines {
            let (namespace, port) = (self.namespace(machine), format!("p{machine}"));
            ip(&["netns", "add", &namespace])?;
            ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", &namespace, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns", &bridge])?;
            let address = format!("{}/24", self.ip(machine));
            ip(&["-n", &namespace, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &namespace, "link", "set", "eth0", "up"])?;
            ip(&["-n", &bridge, "link", "set", "dev", &port, "master", "br0", "up"])?;
        }
        Ok(())
    }

    pub fn namespace(&self, machine: usize) -> String {
        format!("{}m{machine}", self.name)
    }

    pub fn ip(&self, machine: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.subnet, u8::try_from(machine + 11).unwrap_or(250))
    }

    pub fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.subnet, 254)
    }

    /// Cuts a machine's link, or restores it.
    pub fn plug(&self, machine: usize, plugged: bool) -> io::Result<()> {
        let state = if plugged { "up" } else { "down" };
        ip(&["-n", &format!("{}br", self.name), "link", "set", "dev", &format!("p{machine}"), state]).map(drop)
    }

    /// Drops what one machine sends to another, or delivers it again. The opposite direction does not change.
    pub fn hush(&self, from: usize, to: usize, hushed: bool) -> io::Result<()> {
        let (namespace, to) = (self.namespace(from), self.ip(to).to_string());
        // It is sent to a hardware address that no machine has, so it disappears silently; a route to nowhere would
        // tell the sender.
        let nobody = ["lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", "eth0"];
        let mut words = vec!["-n", &namespace, "neigh", if hushed { "replace" } else { "del" }, &to];
        words.extend(if hushed { &nobody[..] } else { &nobody[4..] });
        ip(&words).map(drop)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.sweeper.stdin.take());
        // It fails only if it was killed; then the namespaces stay, and their names contain the process id.
        drop(self.sweeper.wait());
    }
}

fn ip(words: &[&str]) -> io::Result<String> {
    let output = Command::new("ip").args(words).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("ip {}: {said}", words.join(" "))))
}

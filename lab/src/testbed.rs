//! The testbed of a run: three servers, three machines for contenders, and the network between them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use lockkeeper_testkit::apache::{Apache, Host, Options, WrongClock};
use lockkeeper_testkit::net::Net;
use lockkeeper_testkit::proxy::Proxy;

use crate::site::Site;
use crate::tools::Tools;

/// The number of servers.
pub(crate) const SERVERS: usize = 3;
/// The number of machines that contenders run on.
pub(crate) const MACHINES: usize = 3;

/// The size of each server's disk; far more than an hour of chaos writes.
const DISK: u64 = 512 << 20;

pub(crate) const TICK: Duration = Duration::from_millis(500);

/// The longest tick with which servers grant [`SESSION_TIMEOUT`] by default.
pub(crate) const LONG_TICK: Duration = Duration::from_secs(2);

/// The session timeout of the contenders.
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// Three servers and three machines: in network namespaces if available, otherwise on loopback behind proxies.
pub(crate) struct Testbed {
    // In this order: processes end before the servers, and those before the network that they are in.
    /// The contenders' files, with the servers.
    pub(crate) site: Site,
    pub(crate) apache: Arc<Apache>,
    /// Proxies by machine and server; with a network, only the first machine has some.
    pub(crate) proxies: Vec<Vec<Proxy>>,
    /// The network, if there is one.
    pub(crate) net: Option<Net>,
    /// The clocks of the machines, if they can be moved.
    pub(crate) clocks: Vec<WrongClock>,
    /// The faults that are not available here, with the reasons.
    pub(crate) missing: Vec<String>,
    /// Whether the servers' disks are small enough to be filled.
    pub(crate) small_disks: bool,
}

impl Testbed {
    /// Starts the servers with this tick. `loopback`: without namespaces. `clocks`: with clocks that can be moved. `silence`: how long
    /// servers continue without hearing from each other.
    pub(crate) fn start(
        tools: &Tools,
        tick: Duration,
        loopback: bool,
        clocks: bool,
        silence: Duration,
    ) -> Result<Testbed> {
        let mut missing = Vec::new();
        let root = rustix::process::geteuid().is_root();
        let net = if !loopback && Net::possible() { Some(Net::new(SERVERS + MACHINES)?) } else { None };
        let clocks = clocks && WrongClock::install().is_ok();
        let mut places = Vec::new();
        for server in 0..SERVERS {
            let mut place = Host::loopback();
            if let Some(net) = &net {
                place = Host { ip: net.ip(server), namespace: Some(net.namespace(server)), env: Vec::new() };
            }
            // Without a clock of its own: a Java server never serves under libfaketime.
            places.push(place);
        }
        let mut options = Options::default().tick(tick).session_timeouts(tick * 2, SESSION_TIMEOUT * 10).places(places);
        options = options.distribution((tools.servers)()?);
        options = options.config("syncLimit", silence.div_duration_f64(tick).ceil().to_string());
        // The log is extended by this many KiB at a time; the default is 64 MiB.
        options = options.property("zookeeper.preAllocSize", "256");
        // A server refuses a write for which the client has no right by itself, also if it is cut off from the others.
        options = options.property("zookeeper.enableEagerACLCheck", "true");
        if root {
            options = options.disk(DISK);
        } else {
            missing.push("a full disk: a small file system needs root".to_owned());
        }
        if net.is_none() {
            missing
                .push("a follower cut from its peers, one-way cuts between servers: namespaces need root".to_owned());
        }
        if !clocks {
            missing.push("moved clocks: there is no libfaketime".to_owned());
        }
        let apache = Arc::new(Apache::ensemble(SERVERS, options)?);
        let behind = |machine: usize| net.is_none() || machine == 0;
        let own = net.as_ref().map_or(std::net::Ipv4Addr::LOCALHOST, Net::host);
        let mut proxies = Vec::new();
        for machine in 0..MACHINES {
            let servers = if behind(machine) { 0..SERVERS } else { 0..0 };
            proxies.push(servers.map(|server| Proxy::start_on(own, apache.addr(server))).collect());
        }
        let site = Site::of(apache.clone(), tools)?;
        let machines = if clocks { 0..MACHINES } else { 0..0 };
        let clocks = machines.map(|machine| WrongClock::in_file(clock(&site, machine))).collect::<Result<_, _>>()?;
        Ok(Testbed { site, apache, proxies, net, clocks, missing, small_disks: root })
    }

    /// Returns the connect string for contenders of a machine.
    pub(crate) fn servers(&self, machine: usize) -> String {
        let proxies: Vec<String> = self.proxies[machine].iter().map(Proxy::connect_string).collect();
        if proxies.is_empty() { self.apache.connect_string() } else { proxies.join(",") }
    }

    /// Returns where a process of that machine runs.
    pub(crate) fn place(&self, machine: usize) -> Result<Host> {
        let mut place = Host::loopback();
        if let Some(net) = &self.net {
            place.namespace = Some(net.namespace(SERVERS + machine));
        }
        if let Some(clock) = self.clocks.get(machine) {
            place.env = clock.variables()?;
        }
        Ok(place)
    }

    /// Moves a machine's clock, by this many seconds from the true time.
    pub(crate) fn set_clock(&self, machine: usize, seconds: i64) -> Result<()> {
        Ok(WrongClock::turn(&clock(&self.site, machine), seconds)?)
    }

    /// Cuts a server from the other servers, or heals that; clients still reach it. Needs the network.
    pub(crate) fn cut_from_peers(&self, server: usize, cut: bool) -> Result<()> {
        let Some(net) = &self.net else { return Ok(()) };
        for peer in (0..SERVERS).filter(|peer| *peer != server) {
            net.hush(server, peer, cut)?;
            net.hush(peer, server, cut)?;
        }
        Ok(())
    }

    /// Restarts a server whose disk was full, and returns whether it needed the others' data.
    ///
    /// Apache's server (3.8.0) does not always end when its disk is full. It may write on behind a record that is only
    /// partly on the disk, and then cannot read its log. This call makes it read its log immediately. If it cannot, its
    /// data is removed, as its operator would do: the other two, which are both up, have every acknowledged write.
    pub(crate) fn restart_from_full(&self, server: usize) -> Result<bool> {
        self.apache.kill(server);
        for other in (0..SERVERS).filter(|other| *other != server) {
            self.apache.launch(other)?;
            self.apache.wait_serving(other)?;
        }
        self.apache.launch(server)?;
        let Err(error) = self.apache.wait_serving(server) else { return Ok(false) };
        if !self.apache.log(server).contains("Unable to run quorum server") {
            return Err(error);
        }
        self.apache.kill(server);
        fs::remove_dir_all(self.apache.data(server).join("version-2"))?;
        self.apache.launch(server)?;
        self.apache.wait_serving(server)?;
        Ok(true)
    }
}

/// The file with the difference of a machine's clock.
fn clock(site: &Site, machine: usize) -> PathBuf {
    site.file(&format!("machine{machine}.clock"))
}

//! The faults: how each one is made and undone.

use std::fs;
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use lockkeeper_testkit::proxy::{Cut, Direction, OpCode, Proxy, Rule};

use super::Chaos;
use crate::site::{ServerFault, ServerTrouble};
use crate::testbed::{MACHINES, SERVERS, Testbed};

/// Time limit for the frame that a fault is bound to.
const FRAME: Duration = Duration::from_secs(15);

/// A fault of an ensemble or of the network; those of contenders are [`Trouble`](super::Trouble).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Leader(ServerTrouble),
    Follower(ServerTrouble),
    /// The link of a server or a machine is cut.
    LinkDown,
    /// A follower is cut from the other servers; clients still reach it.
    PeersCut,
    /// Packets in one direction between two machines are dropped; the opposite direction works.
    OneWay,
    Reset,
    /// A connection ends within a request or an answer.
    MidFrame,
    /// A connection ends after a create is stored and before its answer arrives.
    AfterCreate,
    /// The same for a delete.
    AfterDelete,
    /// Each fsync of every server takes 0.8 s longer.
    SlowDisk,
    /// A server's disk is full.
    FullDisk,
    /// The wall clock of a machine's contenders is an hour off, by libfaketime. Servers keep theirs: Java does not run
    /// with libfaketime.
    WallClock,
    /// Every server is restarted, one after the other.
    RollingRestart,
    /// All servers are restarted at once.
    WholeRestart,
}

impl Fault {
    pub(super) const ALL: [Fault; 16] = [
        Fault::Leader(ServerTrouble::Kill),
        Fault::Leader(ServerTrouble::Stop),
        Fault::Follower(ServerTrouble::Kill),
        Fault::Follower(ServerTrouble::Stop),
        Fault::LinkDown,
        Fault::PeersCut,
        Fault::OneWay,
        Fault::Reset,
        Fault::MidFrame,
        Fault::AfterCreate,
        Fault::AfterDelete,
        Fault::SlowDisk,
        Fault::FullDisk,
        Fault::WallClock,
        Fault::RollingRestart,
        Fault::WholeRestart,
    ];

    /// Whether this fault is available on this testbed.
    pub(super) fn can(self, testbed: &Testbed) -> bool {
        match self {
            Fault::PeersCut => testbed.net.is_some(),
            Fault::FullDisk => testbed.small_disks,
            Fault::WallClock => !testbed.clocks.is_empty(),
            _ => true,
        }
    }

    /// Makes the fault, waits a while, and undoes it. Returns the reason if it could not be made.
    pub(super) fn strike(self, chaos: &mut Chaos<'_>, say: &dyn Fn(&str)) -> Result<Option<&'static str>> {
        let length = Duration::from_millis(chaos.rng.u64(500..8_000));
        match self {
            Fault::Leader(what) | Fault::Follower(what) => {
                let behind = if let Fault::Leader(_) = self { 0 } else { chaos.rng.usize(1..SERVERS) };
                say(&format!("for {length:.1?}"));
                chaos.testbed.site.disturb(&ServerFault { at: Duration::ZERO, what, behind, down: length })?;
            }
            Fault::LinkDown => link_down(chaos, length, say)?,
            Fault::PeersCut => {
                let server = (chaos.testbed.apache.leader()? + chaos.rng.usize(1..SERVERS)) % SERVERS;
                say(&format!("server {server} for {length:.1?}"));
                chaos.testbed.cut_from_peers(server, true)?;
                sleep(length);
                chaos.testbed.cut_from_peers(server, false)?;
            }
            Fault::OneWay => one_way(chaos, length, say)?,
            Fault::Reset => {
                let proxies = proxies(chaos);
                say("every connection of a machine");
                proxies.iter().for_each(|proxy| proxy.cut(Cut::Reset));
            }
            Fault::MidFrame => {
                let (bytes, answer) = (chaos.rng.usize(1..40), chaos.rng.bool());
                let ops = [OpCode::CREATES, &[OpCode::Delete, OpCode::GetChildren2]].concat();
                let where_ = if answer { "an answer" } else { "a request" };
                return Ok(frame(chaos, say, &format!("after {bytes} bytes of {where_}"), |proxy| {
                    let frame = proxy.on_any(&ops).path("/locks").by(Cut::Reset);
                    if answer { frame.cut_inside_reply(bytes) } else { frame.cut_inside_request(bytes) }
                }));
            }
            Fault::AfterCreate => {
                return Ok(frame(chaos, say, "of a create's answer", |proxy| {
                    proxy.on_any(OpCode::CREATES).path("/locks").cut_before_reply()
                }));
            }
            Fault::AfterDelete => {
                return Ok(frame(chaos, say, "of a delete's answer", |proxy| {
                    proxy.on(OpCode::Delete).path("/locks").cut_before_reply()
                }));
            }
            Fault::SlowDisk => {
                say(&format!("0.8 s for each fsync, for {length:.1?}"));
                let slow = chaos.testbed.apache.slow_fsync(Duration::from_millis(800))?;
                sleep(length);
                drop(slow);
            }
            Fault::FullDisk => full_disk(chaos, length, say)?,
            Fault::WallClock => {
                let hour = if chaos.rng.bool() { 3_600 } else { -3_600 };
                let machine = chaos.rng.usize(..MACHINES);
                say(&format!("machine {machine} by {hour} s for {length:.1?}"));
                chaos.testbed.set_clock(machine, hour)?;
                // The clock is read once a second.
                sleep(length + Duration::from_secs(1));
                chaos.testbed.set_clock(machine, 0)?;
            }
            Fault::RollingRestart => {
                say("one server after the other");
                for server in 0..SERVERS {
                    chaos.testbed.apache.restart(server)?;
                }
            }
            Fault::WholeRestart => {
                say(&format!("all servers, for {length:.1?}"));
                (0..SERVERS).for_each(|server| chaos.testbed.apache.kill(server));
                sleep(length);
            }
        }
        Ok(None)
    }
}

/// Returns the proxies of a random machine that has proxies.
fn proxies<'a>(chaos: &mut Chaos<'a>) -> &'a [Proxy] {
    let machines: Vec<usize> = (0..MACHINES).filter(|machine| !chaos.testbed.proxies[*machine].is_empty()).collect();
    &chaos.testbed.proxies[machines[chaos.rng.usize(..machines.len())]]
}

fn link_down(chaos: &mut Chaos<'_>, length: Duration, say: &dyn Fn(&str)) -> Result<()> {
    let who = chaos.rng.usize(..SERVERS + MACHINES);
    let name = if who < SERVERS { format!("server {who}") } else { format!("machine {}", who - SERVERS) };
    say(&format!("{name} for {length:.1?}"));
    if let Some(net) = &chaos.testbed.net {
        net.plug(who, false)?;
        sleep(length);
        net.plug(who, true)?;
        return Ok(());
    }
    let cut: Vec<&Proxy> = match who.checked_sub(SERVERS) {
        Some(machine) => chaos.testbed.proxies[machine].iter().collect(),
        None => chaos.testbed.proxies.iter().map(|servers| &servers[who]).collect(),
    };
    cut.iter().for_each(|proxy| proxy.black_hole());
    sleep(length);
    cut.iter().for_each(|proxy| proxy.heal());
    Ok(())
}

fn one_way(chaos: &mut Chaos<'_>, length: Duration, say: &dyn Fn(&str)) -> Result<()> {
    if let Some(net) = &chaos.testbed.net {
        // At least one of them is a server.
        let (one, other) = (chaos.rng.usize(..SERVERS), chaos.rng.usize(..SERVERS + MACHINES - 1));
        let other = if other >= one { other + 1 } else { other };
        let (from, to) = if chaos.rng.bool() { (one, other) } else { (other, one) };
        say(&format!("{from} to {to} (servers are 0 to 2, machines 3 to 5) for {length:.1?}"));
        net.hush(from, to, true)?;
        sleep(length);
        net.hush(from, to, false)?;
        return Ok(());
    }
    let direction = if chaos.rng.bool() { Direction::ToServer } else { Direction::ToClient };
    say(&format!("a machine's, {direction:?}, for {length:.1?}"));
    let proxies = proxies(chaos);
    proxies.iter().for_each(|proxy| proxy.stall_direction(direction));
    sleep(length);
    proxies.iter().for_each(Proxy::heal);
    Ok(())
}

/// Cuts at a frame, on the connection of a machine on which it passes first.
fn frame(
    chaos: &mut Chaos<'_>,
    say: &dyn Fn(&str),
    detail: &str,
    rule: impl Fn(&Proxy) -> Rule,
) -> Option<&'static str> {
    say(detail);
    let runtime = chaos.runtime;
    let proxies = proxies(chaos);
    let rules: Vec<Rule> = proxies.iter().map(rule).collect();
    let fired = runtime.block_on(async {
        let any = futures_util::future::select_all(rules.iter().map(|rule| Box::pin(rule.fired())));
        tokio::time::timeout(FRAME, any).await.is_ok()
    });
    proxies.iter().for_each(Proxy::heal);
    (!fired).then_some("no such frame came along")
}

fn full_disk(chaos: &mut Chaos<'_>, length: Duration, say: &dyn Fn(&str)) -> Result<()> {
    let server = chaos.rng.usize(..SERVERS);
    say(&format!("server {server} for {length:.1?}"));
    let filler = chaos.testbed.apache.data(server).join("filler");
    let mut file = fs::File::create(&filler)?;
    let piece = vec![0; 1 << 16];
    while file.write_all(&piece).is_ok() {}
    sleep(length);
    drop(file);
    fs::remove_file(filler)?;
    // Data that was not written there was never acknowledged.
    if chaos.testbed.restart_from_full(server)? {
        say(&format!("server {server} cannot read its own log any more; it has the others' data now"));
    }
    Ok(())
}

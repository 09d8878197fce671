//! Several network namespaces connected by a switch. Each process can be cut off from each other one, in either
//! direction.
//!
//! A [`NetworkSwitch`] is a bridge in its own namespace with further namespaces connected to it, `10.214.x.1` and up.
//! The test's own network is not involved. A cut is a route in the sender's namespace that drops packets silently;
//! packets in the other direction still arrive.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;

use super::guard::CleanupGuard;
use super::process::{is_root, run};
use super::{Result, RigError, netns, port};

/// Namespaces that reach only each other; removed on drop.
#[derive(Debug)]
pub struct NetworkSwitch {
    name: String,
    third: u8,
    count: usize,
    _guard: CleanupGuard,
}

const END_SWITCH: &str = r#"
for at in $(ip netns list | cut -d' ' -f1 | grep "^$1-"); do
    ip netns pids "$at" | xargs -r kill -KILL
    ip netns del "$at"
done
ip netns del "$1"
"#;

impl NetworkSwitch {
    /// Whether this process may create namespaces, or why a test must skip.
    pub fn available() -> std::result::Result<(), String> {
        if !is_root() {
            return Err("network namespaces need root".to_owned());
        }
        Self::of(2)
            .map(|_| ())
            .map_err(|error| format!("a switch of network namespaces is not available: {error}"))
    }

    /// A switch with this many namespaces.
    pub fn of(count: usize) -> Result<Self> {
        let mut refused = RigError::new("every tried name is in use");
        for _ in 0..64 {
            // Named after its network: the kernel lets only one process create a name.
            let third = u8::try_from(port::random() % 256).unwrap_or(0);
            let name = format!("tenuresw{third}");
            match run(Command::new("ip").args(["netns", "add", &name])) {
                Ok(_) => return Self::plug(name, third, count),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn plug(name: String, third: u8, count: usize) -> Result<Self> {
        let guard = CleanupGuard::new(END_SWITCH, &[&name])?;
        let switch = Self { name, third, count, _guard: guard };
        let hub = switch.name.as_str();
        ip(hub, &["link", "add", "hub", "type", "bridge"])?;
        ip(hub, &["link", "set", "hub", "up"])?;
        for node in 0..count {
            let (inside, outer) = (switch.namespace(node), format!("port{node}"));
            run(Command::new("ip").args(["netns", "add", &inside]))?;
            ip(hub, &["link", "add", &outer, "type", "veth", "peer", "name", "cable0", "netns", &inside])?;
            ip(hub, &["link", "set", &outer, "master", "hub", "up"])?;
            ip(&inside, &["link", "set", "lo", "up"])?;
            ip(&inside, &["addr", "add", &format!("{}/24", switch.address(node)), "dev", "cable0"])?;
            ip(&inside, &["link", "set", "cable0", "up"])?;
        }
        Ok(switch)
    }

    /// Address of one namespace.
    pub fn address(&self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 214, self.third, u8::try_from(node + 1).unwrap_or(u8::MAX))
    }

    /// A command that runs in one namespace, with the files and user of the test.
    pub fn command(&self, node: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(node)]).arg(program);
        command
    }

    /// Moves the calling thread into one namespace permanently, including threads that it starts later.
    pub fn enter(&self, node: usize) -> Result<()> {
        netns::enter(&self.namespace(node))
    }

    /// Drops all packets from one namespace to another from now on. Open connections stay open.
    pub fn cut(&self, from: usize, to: usize) -> Result<()> {
        let address = format!("{}/32", self.address(to));
        ip(&self.namespace(from), &["route", "replace", "blackhole", &address])
    }

    /// Drops everything that one namespace sends; it still receives.
    pub fn mute(&self, node: usize) -> Result<()> {
        self.others(node).try_for_each(|other| self.cut(node, other))
    }

    /// Drops everything sent to one namespace; it can still send.
    pub fn deafen(&self, node: usize) -> Result<()> {
        self.others(node).try_for_each(|other| self.cut(other, node))
    }

    /// Cuts one namespace off in both directions.
    pub fn isolate(&self, node: usize) -> Result<()> {
        self.mute(node)?;
        self.deafen(node)
    }

    /// Restores all links; TCP retransmissions then arrive.
    pub fn heal(&self) -> Result<()> {
        for node in 0..self.count {
            // The command fails if nothing was cut.
            let _ = ip(&self.namespace(node), &["route", "flush", "type", "blackhole"]);
        }
        Ok(())
    }

    fn others(&self, node: usize) -> impl Iterator<Item = usize> {
        (0..self.count).filter(move |other| *other != node)
    }

    fn namespace(&self, node: usize) -> String {
        format!("{}-{node}", self.name)
    }
}

fn ip(namespace: &str, args: &[&str]) -> Result<()> {
    run(Command::new("ip").args(["-n", namespace]).args(args)).map(|_| ())
}

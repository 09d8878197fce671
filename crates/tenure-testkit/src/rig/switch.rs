//! Several networks of their own, joined by a switch: each process can be cut off from each other one, in either direction.
//!
//! Each [`Switch`] is a bridge in a namespace of its own, and further namespaces that are plugged into it, `10.214.x.1` and up. The test's own network has
//! no part in it. A cut is a route that swallows, in the namespace of who sends: what it says is lost without a word, what is said to it still arrives.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;

use super::guard::Guard;
use super::process::{is_root, run};
use super::{Error, Result, netns, port};

/// Namespaces that see each other and nobody else; gone on drop.
#[derive(Debug)]
pub struct Switch {
    name: String,
    third: u8,
    count: usize,
    _guard: Guard,
}

const END_SWITCH: &str = r#"
for at in $(ip netns list | cut -d' ' -f1 | grep "^$1-"); do
    ip netns pids "$at" | xargs -r kill -KILL
    ip netns del "$at"
done
ip netns del "$1"
"#;

impl Switch {
    /// Whether we may make namespaces, or why a test that needs them must skip.
    pub fn available() -> std::result::Result<(), String> {
        if !is_root() {
            return Err("network namespaces need root".to_owned());
        }
        Self::of(2).map(|_| ()).map_err(|error| format!("no switch of network namespaces here: {error}"))
    }

    /// A switch with so many namespaces plugged in.
    pub fn of(count: usize) -> Result<Self> {
        let mut refused = Error::new("every name that was tried is in use");
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
        let guard = Guard::new(END_SWITCH, &[&name])?;
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

    /// The address of one namespace.
    pub fn address(&self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 214, self.third, u8::try_from(node + 1).unwrap_or(u8::MAX))
    }

    /// A command that runs in one of them, with the test's own files and user.
    pub fn command(&self, node: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(node)]).arg(program);
        command
    }

    /// Moves the calling thread into one of them, for good: what it opens from then on, and what threads that it starts open, is there.
    pub fn enter(&self, node: usize) -> Result<()> {
        netns::enter(&self.namespace(node))
    }

    /// What one says to another is lost from now on. Open connections stay open.
    pub fn cut(&self, from: usize, to: usize) -> Result<()> {
        let address = format!("{}/32", self.address(to));
        ip(&self.namespace(from), &["route", "replace", "blackhole", &address])
    }

    /// Nobody hears one of them any more; it still hears the others.
    pub fn mute(&self, node: usize) -> Result<()> {
        self.others(node).try_for_each(|other| self.cut(node, other))
    }

    /// One of them hears nobody any more; the others still hear it.
    pub fn deafen(&self, node: usize) -> Result<()> {
        self.others(node).try_for_each(|other| self.cut(other, node))
    }

    /// Cuts one off, both ways.
    pub fn isolate(&self, node: usize) -> Result<()> {
        self.mute(node)?;
        self.deafen(node)
    }

    /// Mends all that was cut; what TCP sends again then arrives.
    pub fn heal(&self) -> Result<()> {
        for node in 0..self.count {
            // It fails if there is nothing to mend.
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

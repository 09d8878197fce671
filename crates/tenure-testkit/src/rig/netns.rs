//! A network namespace for a process, with a link that can be cut in one direction.
//!
//! A veth pair connects a [`NetworkNamespace`] to the network of the test: `10.213.x.y` outside, the next address
//! inside. A one-way cut is a local route inside that drops what arrives for the inner address. Everything that the
//! inner process sends still arrives, and all responses are lost silently, which is the worst kind of network split.
//! The network of the test gets only one more interface, so tests with several namespaces do not affect each other, and
//! reverse-path filtering does not interfere.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;

use super::guard::CleanupGuard;
use super::process::{is_root, run};
use super::{Context, Result, RigError, port};

/// A network namespace with one link to the network of the test; removed on drop.
///
/// To reach a cluster from inside, let it listen on [`host_address`](Self::host_address): see
/// [`PgClusterBuilder::listen_on`](super::PgClusterBuilder::listen_on).
#[derive(Debug)]
pub struct NetworkNamespace {
    /// Name of the namespace and of the outer interface.
    name: String,
    host_address: Ipv4Addr,
    address: Ipv4Addr,
    _guard: CleanupGuard,
}

/// Name of the inner interface.
const INNER: &str = "cable0";

/// Ends the processes inside and deletes the link. Deleting one end of the link deletes both at once; deleting only the
/// namespace would delete them later.
const END_NAMESPACE: &str = r#"
ip netns pids "$1" | xargs -r kill -KILL
ip link del "$1"
ip netns del "$1"
"#;

impl NetworkNamespace {
    /// Whether this process may create namespaces, or why a test must skip.
    pub fn available() -> std::result::Result<(), String> {
        if !is_root() {
            return Err("network namespaces need root".to_owned());
        }
        Self::new().map(|_| ()).map_err(|error| format!("network namespaces are not available: {error}"))
    }

    /// Creates a namespace with a working link.
    pub fn new() -> Result<Self> {
        let mut refused = RigError::new("every tried network is in use");
        for _ in 0..64 {
            // 16384 networks of four addresses each. The namespace is named after its network, and the kernel lets
            // only one process create a name, so concurrent tests never choose the same network.
            let network = u32::try_from(port::random() % 16_384).unwrap_or(0);
            let base = u32::from(Ipv4Addr::new(10, 213, 0, 0)) + network * 4;
            let route = format!("{}/30", Ipv4Addr::from(base));
            if !run(Command::new("ip").args(["-4", "route", "show", "exact", &route]))?.is_empty() {
                continue;
            }
            let name = format!("tenure{network}");
            match run(Command::new("ip").args(["netns", "add", &name])) {
                Ok(_) => return Self::plug(name, base),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The inner address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The outer address, at which a process inside reaches the servers of the test.
    pub fn host_address(&self) -> Ipv4Addr {
        self.host_address
    }

    /// A command that runs inside, with the files and user of the test.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Moves the calling thread inside permanently, including threads that it starts later.
    pub fn enter(&self) -> Result<()> {
        enter(&self.name)
    }

    /// Drops all responses to the inside from now on; requests from inside still arrive. Open connections stay open.
    pub fn cut_one_way(&self) -> Result<()> {
        let address = format!("{}/32", self.address);
        self.ip_inside(&["route", "replace", "blackhole", &address, "table", "local"])
    }

    /// Drops all traffic in both directions from now on.
    pub fn cut_both_ways(&self) -> Result<()> {
        self.cut_one_way()?;
        self.ip_inside(&["route", "replace", "blackhole", &format!("{}/32", self.host_address)])
    }

    /// Restores the link; TCP retransmissions then arrive.
    pub fn heal(&self) -> Result<()> {
        // The command fails if nothing was cut.
        let _ = self.ip_inside(&["route", "flush", "type", "blackhole"]);
        let address = self.address.to_string();
        let route = ["route", "replace", "local", &address, "dev", INNER, "table", "local"];
        self.ip_inside(&[&route[..], &["proto", "kernel", "scope", "host", "src", &address]].concat())
    }

    fn plug(name: String, base: u32) -> Result<Self> {
        let guard = CleanupGuard::new(END_NAMESPACE, &[&name])?;
        let (host_address, address) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let namespace = Self { name, host_address, address, _guard: guard };
        let name = namespace.name.as_str();
        let outside = |args: &[&str]| run(Command::new("ip").args(args)).map(|_| ());
        outside(&["link", "add", name, "type", "veth", "peer", "name", INNER, "netns", name])?;
        outside(&["addr", "add", &format!("{host_address}/30"), "dev", name])?;
        outside(&["link", "set", name, "up"])?;
        namespace.ip_inside(&["link", "set", "lo", "up"])?;
        namespace.ip_inside(&["addr", "add", &format!("{address}/30"), "dev", INNER])?;
        namespace.ip_inside(&["link", "set", INNER, "up"])?;
        Ok(namespace)
    }

    fn ip_inside(&self, args: &[&str]) -> Result<()> {
        run(Command::new("ip").args(["-n", &self.name]).args(args)).map(|_| ())
    }
}

/// Moves the calling thread into a namespace.
#[allow(unsafe_code)]
pub(super) fn enter(name: &str) -> Result<()> {
    let place =
        File::open(format!("/run/netns/{name}")).context(|| format!("namespace {name} does not exist"))?;
    // SAFETY: setns(2) does not access our memory, and the descriptor is open.
    match unsafe { libc::setns(place.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context(|| format!("cannot enter namespace {name}")),
    }
}

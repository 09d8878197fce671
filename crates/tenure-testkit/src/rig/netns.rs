//! A network of its own for a process, with a cable that can be cut in one direction.
//!
//! A [`Namespace`] is joined to the test's own network by a veth pair: `10.213.x.y` outside, the next address inside.
//! The cut lies inside: the kernel's table of local addresses is told to swallow what arrives for the inner address.
//! So all that the process inside sends still arrives, and every answer is lost without a word, as in the worst kind of
//! netsplit. The test's own network is never changed but for the one interface, so tests with several namespaces do not
//! disturb one another, and the machine's reverse-path filter has no say.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;

use super::guard::Guard;
use super::process::{is_root, run};
use super::{Context, Error, Result, port};

/// A network namespace with one cable to the network that the test runs in; gone on drop.
///
/// To reach a cluster from inside, let it listen on [`host_address`](Self::host_address): see
/// [`PgClusterBuilder::listen_on`](super::PgClusterBuilder::listen_on).
#[derive(Debug)]
pub struct Namespace {
    /// Also the name of the outer end of the cable.
    name: String,
    host_address: Ipv4Addr,
    address: Ipv4Addr,
    _guard: Guard,
}

/// The inner end of the cable.
const INNER: &str = "cable0";

/// Ends what still runs inside. Deleting one end of the cable deletes both, at once, where the end of the namespace
/// would delete it some time later.
const END_NAMESPACE: &str = r#"
ip netns pids "$1" | xargs -r kill -KILL
ip link del "$1"
ip netns del "$1"
"#;

impl Namespace {
    /// Whether we may make namespaces, or why a test that needs one must skip.
    pub fn available() -> std::result::Result<(), String> {
        if !is_root() {
            return Err("network namespaces need root".to_owned());
        }
        Self::new().map(|_| ()).map_err(|error| format!("no network namespaces here: {error}"))
    }

    /// A new namespace, with its cable plugged in.
    pub fn new() -> Result<Self> {
        let mut refused = Error::new("every network that was tried is in use");
        for _ in 0..64 {
            // 16384 networks of four addresses each. The namespace is named after its network, and the kernel lets
            // only one process create a name: that is what makes the choice safe between tests.
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

    /// The address inside.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The test's own address on the cable: where a process inside finds the servers of the test.
    pub fn host_address(&self) -> Ipv4Addr {
        self.host_address
    }

    /// A command that runs inside, with the test's own files and user.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Moves the calling thread inside, for good: what it opens from then on, and what threads that it starts open, is there.
    pub fn enter(&self) -> Result<()> {
        enter(&self.name)
    }

    /// From now on requests from inside arrive, and their answers are lost. Open connections stay open.
    pub fn cut_one_way(&self) -> Result<()> {
        let address = format!("{}/32", self.address);
        self.ip_inside(&["route", "replace", "blackhole", &address, "table", "local"])
    }

    /// From now on nothing gets in or out.
    pub fn cut_both_ways(&self) -> Result<()> {
        self.cut_one_way()?;
        self.ip_inside(&["route", "replace", "blackhole", &format!("{}/32", self.host_address)])
    }

    /// Mends the cable; what TCP sends again then arrives.
    pub fn heal(&self) -> Result<()> {
        // It fails if there is nothing to mend.
        let _ = self.ip_inside(&["route", "flush", "type", "blackhole"]);
        let address = self.address.to_string();
        let route = ["route", "replace", "local", &address, "dev", INNER, "table", "local"];
        self.ip_inside(&[&route[..], &["proto", "kernel", "scope", "host", "src", &address]].concat())
    }

    fn plug(name: String, base: u32) -> Result<Self> {
        let guard = Guard::new(END_NAMESPACE, &[&name])?;
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
        File::open(format!("/run/netns/{name}")).context(|| format!("there is no namespace {name}"))?;
    // SAFETY: setns(2) touches no memory of ours, and the descriptor is open.
    match unsafe { libc::setns(place.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()).context(|| format!("cannot enter the namespace {name}")),
    }
}

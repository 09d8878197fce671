//! Free TCP ports for servers that restart.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpListener;

use super::{Context, Result};

/// A port of 127.0.0.1 without a listener.
///
/// The port is below the range that the kernel uses for outgoing connections. A client that reconnects in a loop to a
/// stopped server on a port *within* that range can connect to itself, and then the server cannot restart. Another
/// process may still take the port before the server binds it, so callers must retry.
pub fn free() -> Result<u16> {
    let below = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse::<u16>().ok())
        .unwrap_or(32_768);
    let first = 15_000;
    if below > first + 1_000 {
        let width = u64::from(below - first);
        for _ in 0..50 {
            let port = first + u16::try_from(random() % width).unwrap_or(0);
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return Ok(port);
            }
        }
    }
    let any = TcpListener::bind(("127.0.0.1", 0)).context(|| "cannot bind a port of 127.0.0.1".to_owned())?;
    Ok(any.local_addr().context(|| "cannot read a bound port".to_owned())?.port())
}

/// A number that differs between calls and processes, for names and ports only.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

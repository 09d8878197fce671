//! Who is at the other end of a connection, as far as the connection itself tells.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use super::hub::Standing;
use crate::limits::Permit;

/// The other end of a connection. In the extensions of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address; `None` on a unix socket.
    pub address: Option<SocketAddr>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// The subject of the certificate that it proved to have, as RFC 4514 writes it.
    pub subject: Option<Arc<str>>,
    /// The principal on whose account this connection goes.
    account: Arc<Mutex<Option<Account>>>,
    standing: Option<Arc<Standing>>,
}

/// A principal, and its permit for this connection.
type Account = (Arc<str>, Permit);

impl Peer {
    pub(crate) fn new(address: Option<SocketAddr>, standing: Option<Arc<Standing>>) -> Peer {
        Peer { address, tls: false, subject: None, account: Arc::default(), standing }
    }

    /// A request of this connection has authenticated.
    pub(crate) fn authenticated(&self) {
        if let Some(standing) = &self.standing {
            standing.authenticated();
        }
    }

    /// Where it is, for the log.
    pub(crate) fn label(&self) -> String {
        self.address.map_or_else(|| "unix".to_owned(), |address| ip_of(address).to_string())
    }

    /// What it counts as where it has no name: its address, or with IPv6 its network, in which one host has as many
    /// addresses as it likes.
    pub(crate) fn network(&self) -> String {
        match self.address.map(ip_of) {
            Some(IpAddr::V6(ip)) => {
                let network = Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX));
                format!("{network}/64")
            }
            _ => self.label(),
        }
    }

    /// Puts the connection on a principal's account, unless it is there already.
    pub(crate) fn charge<E>(
        &self,
        name: &Arc<str>,
        permit: impl FnOnce() -> Result<Permit, E>,
    ) -> Result<(), E> {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        if account.as_ref().is_none_or(|(owner, _)| owner != name) {
            *account = Some((name.clone(), permit()?));
        }
        Ok(())
    }
}

/// An address without its port, and an IPv4 address as one however it came.
pub(crate) fn ip_of(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_told_apart_by_address_and_with_ipv6_by_network() {
        let network = |text: &str| Peer::new(Some(text.parse().expect("an address")), None).network();
        assert_eq!(network("192.0.2.7:1"), "192.0.2.7");
        assert_eq!(network("[::ffff:192.0.2.7]:1"), "192.0.2.7");
        assert_eq!(network("[2001:db8:1:2:aaaa::1]:1"), "2001:db8:1:2::/64");
        assert_eq!(network("[2001:db8:1:2:bbbb::2]:1"), "2001:db8:1:2::/64");
        assert_ne!(network("[2001:db8:1:3::1]:1"), "2001:db8:1:2::/64");
    }
}

//! The client of a connection.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use super::connection_table::ConnectionAuth;
use crate::limits::Permit;

/// Client of a connection. Extension of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address; `None` on a Unix socket.
    pub address: Option<SocketAddr>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Subject of the verified client certificate (RFC 4514).
    pub subject: Option<Arc<str>>,
    /// Principal that the connection is charged to.
    account: Arc<Mutex<Option<Account>>>,
    auth: Option<Arc<ConnectionAuth>>,
}

/// Principal with its permit for this connection.
type Account = (Arc<str>, Permit);

impl Peer {
    pub(crate) fn new(address: Option<SocketAddr>, auth: Option<Arc<ConnectionAuth>>) -> Peer {
        Peer { address, tls: false, subject: None, account: Arc::default(), auth }
    }

    /// Record that a request of this connection has authenticated.
    pub(crate) fn authenticated(&self) {
        if let Some(auth) = &self.auth {
            auth.authenticated();
        }
    }

    /// Address for the log.
    pub(crate) fn label(&self) -> String {
        self.address.map_or_else(|| "unix".to_owned(), |address| ip_of(address).to_string())
    }

    /// Account name of an unauthenticated client: its address, or with IPv6 its network, because one host may
    /// have any number of addresses in it.
    pub(crate) fn network(&self) -> String {
        match self.address.map(ip_of) {
            Some(IpAddr::V6(ip)) => {
                let network = Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX));
                format!("{network}/64")
            }
            _ => self.label(),
        }
    }

    /// Charge the connection to a principal, unless it already is.
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

/// Address without port; IPv4-mapped addresses as IPv4.
pub(crate) fn ip_of(address: SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unauthenticated_clients_are_counted_by_address_or_ipv6_network() {
        let network = |text: &str| Peer::new(Some(text.parse().expect("an address")), None).network();
        assert_eq!(network("192.0.2.7:1"), "192.0.2.7");
        assert_eq!(network("[::ffff:192.0.2.7]:1"), "192.0.2.7");
        assert_eq!(network("[2001:db8:1:2:aaaa::1]:1"), "2001:db8:1:2::/64");
        assert_eq!(network("[2001:db8:1:2:bbbb::2]:1"), "2001:db8:1:2::/64");
        assert_ne!(network("[2001:db8:1:3::1]:1"), "2001:db8:1:2::/64");
    }
}

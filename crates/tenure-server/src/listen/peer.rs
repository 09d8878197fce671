//! Who is at the other end of a connection, as far as the connection itself tells.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

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
}

/// A principal, and its permit for this connection.
type Account = (Arc<str>, Permit);

impl Peer {
    pub(crate) fn new(address: Option<SocketAddr>) -> Peer {
        Peer { address, tls: false, subject: None, account: Arc::default() }
    }

    /// What it counts as where it has no name.
    pub(crate) fn label(&self) -> String {
        self.address.map_or_else(|| "unix".to_owned(), |address| ip_of(address).to_string())
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

//! Address of a server.

use std::net::IpAddr;
use std::path::PathBuf;

use http::uri::Authority;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::store) enum ServerAddress {
    /// TCP.
    Tcp {
        /// Whether it uses `https`.
        tls: bool,
        /// Host and port.
        authority: String,
    },
    /// Unix socket.
    Unix(PathBuf),
}

impl ServerAddress {
    /// Scheme and authority, for requests.
    pub(in crate::store) fn origin(&self) -> String {
        match self {
            ServerAddress::Tcp { tls, authority } => {
                format!("http{}://{authority}", if *tls { "s" } else { "" })
            }
            ServerAddress::Unix(_) => "http://localhost".into(),
        }
    }

    /// Address for error messages.
    pub(in crate::store) fn place(&self) -> String {
        match self {
            ServerAddress::Tcp { .. } => self.origin(),
            ServerAddress::Unix(path) => format!("http+unix:{}", path.display()),
        }
    }

    /// Whether requests travel unencrypted over a network: plain TCP to another machine.
    pub(in crate::store) fn is_open_to_others(&self) -> bool {
        match self {
            ServerAddress::Tcp { tls: false, authority } => !is_loopback(authority),
            ServerAddress::Tcp { tls: true, .. } | ServerAddress::Unix(_) => false,
        }
    }

    /// Whether a client may use `other` because the server at `self` reported it. Rejects an unencrypted address from
    /// an encrypted server, a listen address such as `0.0.0.0`, and a loopback address from another machine, because
    /// on this machine it names another host.
    pub(in crate::store) fn may_lead_to(&self, other: &ServerAddress) -> bool {
        let (
            ServerAddress::Tcp { tls: mine, authority: from },
            ServerAddress::Tcp { tls: theirs, authority: to },
        ) = (self, other)
        else {
            return false;
        };
        let here = |authority: &str| is_loopback(authority);
        theirs >= mine && !is_anywhere(to) && (here(from) || !here(to))
    }
}

fn is_loopback(authority: &str) -> bool {
    let host = host(authority);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether the host is `0.0.0.0` or `[::]`: a server can listen there, but a client cannot connect to it.
fn is_anywhere(authority: &str) -> bool {
    host(authority).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

fn host(authority: &str) -> String {
    let authority = authority.parse::<Authority>();
    authority.map(|authority| authority.host().trim_matches(['[', ']']).to_owned()).unwrap_or_default()
}

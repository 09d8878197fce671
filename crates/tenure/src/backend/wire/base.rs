//! Where a server is.

use std::net::IpAddr;
use std::path::PathBuf;

use http::uri::Authority;

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::backend) enum Base {
    /// On the network.
    Tcp {
        /// Whether it is `https`.
        tls: bool,
        /// Host and port.
        authority: String,
    },
    /// On this machine.
    Unix(PathBuf),
}

impl Base {
    /// For requests: scheme and authority.
    pub(in crate::backend) fn origin(&self) -> String {
        match self {
            Base::Tcp { tls, authority } => format!("http{}://{authority}", if *tls { "s" } else { "" }),
            Base::Unix(_) => "http://localhost".into(),
        }
    }

    /// For people.
    pub(in crate::backend) fn place(&self) -> String {
        match self {
            Base::Tcp { .. } => self.origin(),
            Base::Unix(path) => format!("http+unix:{}", path.display()),
        }
    }

    /// Whether what is said there can be heard by others on the way.
    pub(in crate::backend) fn is_open_to_others(&self) -> bool {
        match self {
            Base::Tcp { tls: false, authority } => !is_loopback(authority),
            Base::Tcp { tls: true, .. } | Base::Unix(_) => false,
        }
    }

    /// Whether a server that was reached at `self` may lead us to `other`: never to where less is kept secret, and never
    /// from elsewhere to this machine, where "localhost" is not the one that was meant.
    pub(in crate::backend) fn may_lead_to(&self, other: &Base) -> bool {
        let (Base::Tcp { tls: mine, authority: from }, Base::Tcp { tls: theirs, authority: to }) =
            (self, other)
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

/// Whether it is `0.0.0.0` or `[::]`: where somebody listens, not where they are.
fn is_anywhere(authority: &str) -> bool {
    host(authority).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

fn host(authority: &str) -> String {
    let authority = authority.parse::<Authority>();
    authority.map(|authority| authority.host().trim_matches(['[', ']']).to_owned()).unwrap_or_default()
}

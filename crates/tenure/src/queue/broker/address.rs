//! The address on which the broker listens, and the address that it advertises.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use tokio::net::TcpListener;

use crate::queue::context::BrokerOptions;

/// Binds a listener. Returns it with the address to advertise: the configured one, or else the local address on
/// the route to the store.
pub(crate) async fn bind(broker: &BrokerOptions) -> io::Result<(TcpListener, String)> {
    let url = broker.store_url.clone();
    let ours = tokio::task::spawn_blocking(move || local_ip(&url)).await.unwrap_or(LOOPBACK);
    let listener = match &broker.listen {
        Some(listen) => TcpListener::bind(with_port(listen, 0)).await?,
        None => TcpListener::bind((ours, 0)).await?,
    };
    let bound = listener.local_addr()?;
    let advertised = match &broker.advertise {
        Some(advertise) => with_port(advertise, bound.port()),
        // Bound to every address: advertise the one on the route to the store.
        None if bound.ip().is_unspecified() => SocketAddr::new(ours, bound.port()).to_string(),
        None => bound.to_string(),
    };
    Ok((listener, advertised))
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Adds a port to `host`; leaves `host:port` unchanged.
fn with_port(address: &str, port: u16) -> String {
    let host_only = match address.rsplit_once(':') {
        // An IPv6 address without brackets or port contains several colons.
        Some((host, _)) if host.contains(':') && !host.ends_with(']') => true,
        Some((_, digits)) => digits.parse::<u16>().is_err(),
        None => true,
    };
    match (host_only, address.contains(':') && !address.starts_with('[')) {
        (false, _) => address.to_owned(),
        (true, true) => format!("[{address}]:{port}"),
        (true, false) => format!("{address}:{port}"),
    }
}

/// The local address on the route to the store; loopback if the store is on this machine or unknown. Sends
/// nothing.
fn local_ip(url: &str) -> IpAddr {
    let Some((host, port)) = host_of(url) else { return LOOPBACK };
    let Some(there) = (host.as_str(), port).to_socket_addrs().ok().and_then(|mut all| all.next()) else {
        return LOOPBACK;
    };
    let any: SocketAddr = if there.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let ours = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(there)?;
        socket.local_addr()
    });
    ours.map_or(LOOPBACK, |ours| ours.ip())
}

/// The first host of a `postgres://` URL; `None` if the store is a file, a socket in a directory, or unknown.
fn host_of(url: &str) -> Option<(String, u16)> {
    let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"))?;
    let authority = rest.split(['/', '?']).next()?;
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let first = hosts.split(',').next().filter(|first| !first.is_empty() && !first.starts_with('%'))?;
    let (host, port) = match first.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port.parse().ok()?),
        _ => (first, 5432),
    };
    Some((host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_host_is_found_in_its_url() {
        let host = |url: &str| host_of(url).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(
            host("postgres://ada:p%40ss@db.example:6432/tenure?x=y").as_deref(),
            Some("db.example 6432")
        );
        assert_eq!(host("postgresql://db").as_deref(), Some("db 5432"));
        assert_eq!(host("postgres://a:1,b:2/x").as_deref(), Some("a 1"));
        assert_eq!(host("postgres://[::1]:5433/x").as_deref(), Some("::1 5433"));
        for local in
            ["sqlite:tenure.db", "memory:", "postgres:///tenure?host=/run/pg", "postgres://%2Frun%2Fpg/x"]
        {
            assert_eq!(host(local), None, "{local}");
            assert_eq!(local_ip(local), LOOPBACK);
        }
    }

    #[test]
    fn a_missing_port_is_added() {
        assert_eq!(with_port("10.0.0.7", 9), "10.0.0.7:9");
        assert_eq!(with_port("10.0.0.7:80", 9), "10.0.0.7:80");
        assert_eq!(with_port("fe80::1", 9), "[fe80::1]:9");
        assert_eq!(with_port("[fe80::1]:80", 9), "[fe80::1]:80");
    }

    #[tokio::test]
    async fn the_default_address_is_loopback_and_a_configured_one_is_advertised() {
        let (listener, advertised) = bind(&BrokerOptions::default()).await.unwrap();
        assert_eq!(listener.local_addr().unwrap().to_string(), advertised);
        let set = BrokerOptions {
            listen: Some("127.0.0.1".into()),
            advertise: Some("broker.example".into()),
            ..BrokerOptions::default()
        };
        let (listener, advertised) = bind(&set).await.unwrap();
        assert_eq!(advertised, format!("broker.example:{}", listener.local_addr().unwrap().port()));
    }
}

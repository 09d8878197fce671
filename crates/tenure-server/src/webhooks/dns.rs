//! DNS resolution for webhooks: private addresses are excluded unless the operator allows them.
//!
//! The administrator of a namespace chooses webhook URLs and sees their results. Servers can reach hosts that
//! clients cannot, so a webhook must not become a way into their network. Names are resolved and checked when
//! the connection is made, and the checked address is the one connected to, so a name cannot change in
//! between.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::Service;

/// Error for a private address.
pub(super) const PRIVATE: &str =
    "the address is private or local: use a public one, or start the servers with --allow-private-webhooks";

/// Whether a URL has a private host that needs no lookup. Other names are checked when they are connected to.
pub fn host_is_private(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches([']', '.']);
    let local = host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost");
    local || host.parse::<IpAddr>().is_ok_and(is_private)
}

/// Whether an address is local, private or reserved.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || a == 0
        || a >= 240
        // Carrier-grade NAT; protocol assignments; benchmarks.
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a == 198 && (b == 18 || b == 19))
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match parts {
        // Addresses that embed IPv4: mapped, compatible (with `::` and `::1`), translated, and 6to4.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => is_private_v4(v4(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_private_v4(v4(high, low)),
        [0x2002, high, low, ..] => is_private_v4(v4(high, low)),
        [0x64, 0xff9b, 1, ..] => true,
        // Unique local, link-local, site-local, multicast.
        [first, ..] => {
            first & 0xfe00 == 0xfc00
                || first & 0xffc0 == 0xfe80
                || first & 0xffc0 == 0xfec0
                || first >= 0xff00
        }
    }
}

/// DNS resolver that excludes private addresses.
#[derive(Clone)]
pub(super) struct PublicDnsResolver {
    system: GaiResolver,
    private: bool,
}

impl PublicDnsResolver {
    pub(super) fn new(private: bool) -> PublicDnsResolver {
        PublicDnsResolver { system: GaiResolver::new(), private }
    }
}

impl Service<Name> for PublicDnsResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (found, private) = (self.system.call(name), self.private);
        Box::pin(async move {
            let mut found: Vec<SocketAddr> = found.await?.collect();
            let any = !found.is_empty();
            found.retain(|address| private || !is_private(address.ip()));
            match any && found.is_empty() {
                true => Err(io::Error::new(io::ErrorKind::PermissionDenied, PRIVATE)),
                false => Ok(found.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_hosts_are_detected_in_any_notation() {
        for private in [
            "http://127.0.0.1/",
            "http://127.9.9.9:8368/v1",
            "http://localhost:1/",
            "http://a.LOCALHOST./",
            "http://10.0.0.5:6379/",
            "http://172.31.0.1/",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest/meta-data",
            "http://100.64.0.1/",
            "http://0.0.0.0/",
            "http://255.255.255.255/",
            "http://224.0.0.1/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[64:ff9b::a00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[fe80::1]/",
            "http://[fd00::1]/",
            "http://[ff02::1]/",
        ] {
            assert!(host_is_private(private), "{private}");
        }
        for public in [
            "https://example.org/hook",
            "http://1.1.1.1/",
            "http://172.32.0.1/",
            "http://100.128.0.1/",
            "http://[2606:4700:4700::1111]/",
            "http://[::ffff:1.1.1.1]/",
            "http://[2002:101:101::]/",
        ] {
            assert!(!host_is_private(public), "{public}");
        }
    }

    #[tokio::test]
    async fn names_of_this_machine_are_resolved_only_if_allowed() {
        let name = || "localhost".parse::<Name>().unwrap();
        let refused = PublicDnsResolver::new(false).call(name()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(
            PublicDnsResolver::new(true)
                .call(name())
                .await
                .unwrap()
                .all(|address| address.ip().is_loopback())
        );
    }
}

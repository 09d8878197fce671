//! Host and port of a cluster member.

use std::net::IpAddr;

/// Check that a text has the form `HOST:PORT`.
pub(super) fn checked(text: &str) -> Result<String, String> {
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .and_then(|(_, port)| port.parse::<u16>().ok());
    port.map(|_| text.to_owned()).ok_or_else(|| format!("{text:?} is not HOST:PORT"))
}

/// Whether an address is on this machine.
pub(super) fn is_here(place: &str) -> bool {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_recognized() {
        assert!(
            is_here("127.0.0.1:1") && is_here("[::1]:1") && is_here("localhost:1") && !is_here("10.0.0.1:1")
        );
    }
}

//! Addresses of servers.

use std::str::FromStr;

use http::uri::Authority;
use tenure_core::port::{ErrorKind, StoreError};

use crate::store::http_client::ServerAddress;

const FORM: &str = "use http://HOST:PORT, https://HOST:PORT, several as http://A:PORT,B:PORT, \
                    or http+unix:/PATH for a socket";

/// One or several servers on one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address(pub(super) Vec<ServerAddress>);

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        if let Some(path) = url.strip_prefix("http+unix:") {
            return unix(path).map(|base| Address(vec![base]));
        }
        let (tls, scheme) = if url.starts_with("https:") { (true, "https://") } else { (false, "http://") };
        let rest = url
            .strip_prefix(scheme)
            .ok_or_else(|| refused(format!("the server address lacks //; {FORM}")))?;
        let mut bases = Vec::new();
        for part in rest.split(',') {
            let part = part.trim();
            let base = tcp(tls, part.strip_prefix(scheme).unwrap_or(part))?;
            if !bases.contains(&base) {
                bases.push(base);
            }
        }
        Ok(Address(bases))
    }
}

fn unix(path: &str) -> Result<ServerAddress, StoreError> {
    let path = path.strip_prefix("//").unwrap_or(path);
    if !path.starts_with('/') {
        return Err(refused(format!("{path:?} is not an absolute path to a socket; {FORM}")));
    }
    Ok(ServerAddress::Unix(path.into()))
}

fn tcp(tls: bool, part: &str) -> Result<ServerAddress, StoreError> {
    if part.contains('@') {
        // The message does not contain the address, which may have a secret.
        return Err(refused(
            "a server address must not contain a user or password; put the access token into \
            $TENURE_ACCESS_TOKEN, or into a file named by $TENURE_ACCESS_TOKEN_FILE",
        ));
    }
    let part = part.strip_suffix('/').unwrap_or(part);
    if part.contains("://") {
        return Err(refused(format!("all servers must use http, or all https; {FORM}")));
    }
    if let Some(found) = part.chars().find(|c| matches!(c, '/' | '?' | '#')) {
        return Err(refused(format!("unexpected {found:?} after host and port of a server; {FORM}")));
    }
    let authority: Authority =
        part.parse().map_err(|error| refused(format!("{part:?} is not a host and port: {error}; {FORM}")))?;
    if authority.host().is_empty()
        || (part.rsplit(']').next().is_some_and(|tail| tail.contains(':')) && authority.port_u16().is_none())
    {
        return Err(refused(format!("{part:?} is not a host and port; {FORM}")));
    }
    Ok(ServerAddress::Tcp { tls, authority: part.to_ascii_lowercase() })
}

fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Address, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(url: &str) -> Vec<String> {
        url.parse::<Address>().unwrap().0.iter().map(ServerAddress::place).collect()
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_addresses_do_not_panic(text in r"https?(\+unix)?:(//)?[ -~é@:/?#,\[\]]{0,60}") {
            match text.parse::<Address>() {
                Ok(address) => proptest::prop_assert!(!address.0.is_empty()),
                Err(error) => proptest::prop_assert_eq!(error.kind, tenure_core::port::ErrorKind::Address),
            }
        }
    }

    #[test]
    fn one_or_several_servers_are_parsed() {
        assert_eq!(places("http://127.0.0.1:8368"), ["http://127.0.0.1:8368"]);
        assert_eq!(places("https://a.example/"), ["https://a.example"]);
        assert_eq!(places("http://a:1,b:2, http://C:3,a:1"), ["http://a:1", "http://b:2", "http://c:3"]);
        assert_eq!(places("http://[::1]:8368"), ["http://[::1]:8368"]);
        assert_eq!(places("http+unix:/run/t.sock"), ["http+unix:/run/t.sock"]);
        assert_eq!(places("http+unix:///run/t.sock"), ["http+unix:/run/t.sock"]);
    }

    #[test]
    fn an_invalid_address_is_rejected_with_the_expected_form() {
        for url in [
            "http:",
            "http://",
            "http:a",
            "http://a,,b",
            "http://a b",
            "http://a:port",
            "http://a:99999",
            "http://a/path",
            "http://a?x=1",
            "http://a#x",
            "http://a,https://b",
            "http+unix:",
            "http+unix:rel",
        ] {
            let error = url.parse::<Address>().expect_err(url);
            assert_eq!(error.kind, ErrorKind::Address, "{url}");
            assert!(error.message.contains("http://HOST:PORT"), "{url}: {error}");
        }
    }

    #[test]
    fn a_secret_in_the_address_is_rejected_and_not_repeated() {
        for url in ["http://canary@a", "https://a,u:canary@b:1"] {
            let error = url.parse::<Address>().expect_err(url);
            assert!(
                error.message.contains("TENURE_ACCESS_TOKEN") && !error.message.contains("canary"),
                "{error}"
            );
        }
    }

    #[test]
    fn only_loopback_is_allowed_without_tls() {
        let open = |url: &str| url.parse::<Address>().unwrap().0[0].is_open_to_others();
        assert!(open("http://a:1") && open("http://10.0.0.1"));
        assert!(
            !open("https://a:1")
                && !open("http://127.0.0.9:1")
                && !open("http://[::1]:1")
                && !open("http://localhost")
        );
    }

    #[test]
    fn discovery_never_leaves_tls() {
        let base = |url: &str| url.parse::<Address>().unwrap().0.remove(0);
        assert!(base("https://a").may_lead_to(&base("https://b")));
        assert!(base("http://a").may_lead_to(&base("https://b")));
        assert!(!base("https://a").may_lead_to(&base("http://b")));
        assert!(!base("http+unix:/s").may_lead_to(&base("http://b")));
    }

    #[test]
    fn discovery_never_leads_from_another_machine_to_this_one() {
        let base = |url: &str| url.parse::<Address>().unwrap().0.remove(0);
        assert!(base("http://127.0.0.1:1").may_lead_to(&base("http://localhost:2")));
        assert!(!base("http://a").may_lead_to(&base("http://localhost:2")));
        assert!(!base("https://a").may_lead_to(&base("https://[::1]:2")));
        assert!(!base("http://127.0.0.1").may_lead_to(&base("http://0.0.0.0:2")));
    }
}

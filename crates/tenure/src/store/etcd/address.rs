//! Parsing of `etcd://` URLs and etcd credentials.

use std::str::FromStr;

use http::uri::Authority;
use tenure_core::port::{ErrorKind, StoreError};

use crate::store::http_client::{ServerAddress, set};

const USAGE: &str =
    "use etcd://HOST:PORT, etcds://HOST:PORT for TLS, several members as etcd://A:2379,B:2379";

/// Default port of an etcd member.
const PORT: u16 = 2379;

/// Addresses of the members of one cluster.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) members: Vec<ServerAddress>,
}

/// etcd user and password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let (tls, rest) = match (url.strip_prefix("etcd://"), url.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(invalid(format!("the etcd URL lacks `//`; {USAGE}"))),
        };
        let members = rest.split(',').map(|part| member(tls, part.trim())).collect::<Result<_, _>>()?;
        Ok(Address { members })
    }
}

fn member(tls: bool, part: &str) -> Result<ServerAddress, StoreError> {
    if part.contains('@') {
        // The text is not repeated in the error: it may contain a password.
        return Err(invalid(
            "the etcd URL must not contain a user or password, because URLs are visible to others; set \
             $TENURE_ETCD_USER to NAME:PASSWORD",
        ));
    }
    let part = part.strip_suffix('/').unwrap_or(part);
    let wrong = || invalid(format!("{part:?} is not HOST:PORT; {USAGE}"));
    let authority: Authority = part.parse().map_err(|_| wrong())?;
    let has_colon = part.rsplit(']').next().is_some_and(|tail| tail.contains(':'));
    let authority = match authority.port_u16() {
        _ if authority.host().is_empty() => return Err(wrong()),
        Some(_) => part.to_ascii_lowercase(),
        None if has_colon => return Err(wrong()),
        None => format!("{}:{PORT}", part.to_ascii_lowercase()),
    };
    Ok(ServerAddress::Tcp { tls, authority })
}

/// Return the user from the options, or else from the environment.
pub(super) fn user(given: Option<&str>) -> Result<Option<User>, StoreError> {
    let Some(text) = given.map(str::to_owned).or_else(|| set("TENURE_ETCD_USER")) else { return Ok(None) };
    let (name, password) = text.split_once(':').ok_or_else(|| {
        StoreError::new(ErrorKind::Denied, "$TENURE_ETCD_USER must have the form NAME:PASSWORD")
    })?;
    Ok(Some(User { name: name.into(), password: password.into() }))
}

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Address, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(url: &str) -> Vec<String> {
        url.parse::<Address>()
            .map_err(|e| e.message)
            .unwrap()
            .members
            .iter()
            .map(ServerAddress::place)
            .collect()
    }

    #[test]
    fn a_url_lists_one_or_several_members() {
        assert_eq!(addresses("etcd://a"), ["http://a:2379"]);
        assert_eq!(addresses("etcds://A:1, b:2/"), ["https://a:1", "https://b:2"]);
        assert_eq!(addresses("etcd://[::1]"), ["http://[::1]:2379"]);
    }

    #[test]
    fn an_invalid_url_is_rejected_with_the_usage() {
        for url in ["etcd:", "etcd:a", "etcd://", "etcd://a:x", "etcd://a/b", "etcd://a,,b", "etcd://a b"] {
            let error = url.parse::<Address>().err().expect(url);
            assert!(
                error.kind == ErrorKind::Address && error.message.contains("etcd://HOST:PORT"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn a_password_in_the_url_is_rejected_and_not_repeated() {
        let error = "etcd://me:canary@a".parse::<Address>().err().unwrap();
        assert!(error.message.contains("TENURE_ETCD_USER") && !error.message.contains("canary"), "{error}");
    }
}

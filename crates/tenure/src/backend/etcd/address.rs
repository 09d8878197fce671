//! Where the members are, and who we are to them.

use std::str::FromStr;

use http::uri::Authority;
use tenure_core::port::{StoreError, Trouble};

use crate::backend::wire::{Base, set};

const FORM: &str =
    "give etcd://HOST:PORT, etcds://HOST:PORT for TLS, several members as etcd://A:2379,B:2379";

/// The port of a member unless it says otherwise.
const PORT: u16 = 2379;

/// One or several members of one cluster.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) members: Vec<Base>,
}

/// Whom etcd knows us as.
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
            (None, None) => return Err(refused(format!("the address of etcd is missing its //; {FORM}"))),
        };
        let members = rest.split(',').map(|part| member(tls, part.trim())).collect::<Result<_, _>>()?;
        Ok(Address { members })
    }
}

fn member(tls: bool, part: &str) -> Result<Base, StoreError> {
    if part.contains('@') {
        // Not repeated: it may be a secret.
        return Err(refused(
            "the address of etcd must not have a user or password in it, where everybody sees it; set \
             $TENURE_ETCD_USER to NAME:PASSWORD",
        ));
    }
    let part = part.strip_suffix('/').unwrap_or(part);
    let wrong = || refused(format!("{part:?} is no host and port; {FORM}"));
    let authority: Authority = part.parse().map_err(|_| wrong())?;
    let has_colon = part.rsplit(']').next().is_some_and(|tail| tail.contains(':'));
    let authority = match authority.port_u16() {
        _ if authority.host().is_empty() => return Err(wrong()),
        Some(_) => part.to_ascii_lowercase(),
        None if has_colon => return Err(wrong()),
        None => format!("{}:{PORT}", part.to_ascii_lowercase()),
    };
    Ok(Base::Tcp { tls, authority })
}

/// Who we are, as it was given, or else as the environment says.
pub(super) fn user(given: Option<&str>) -> Result<Option<User>, StoreError> {
    let Some(text) = given.map(str::to_owned).or_else(|| set("TENURE_ETCD_USER")) else { return Ok(None) };
    let (name, password) = text
        .split_once(':')
        .ok_or_else(|| StoreError::new(Trouble::Denied, "$TENURE_ETCD_USER is not NAME:PASSWORD"))?;
    Ok(Some(User { name: name.into(), password: password.into() }))
}

fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(Trouble::Address, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(url: &str) -> Vec<String> {
        url.parse::<Address>().map_err(|e| e.message).unwrap().members.iter().map(Base::place).collect()
    }

    #[test]
    fn one_or_several_members_are_read() {
        assert_eq!(places("etcd://a"), ["http://a:2379"]);
        assert_eq!(places("etcds://A:1, b:2/"), ["https://a:1", "https://b:2"]);
        assert_eq!(places("etcd://[::1]"), ["http://[::1]:2379"]);
    }

    #[test]
    fn a_bad_address_is_refused_with_the_right_form() {
        for url in ["etcd:", "etcd:a", "etcd://", "etcd://a:x", "etcd://a/b", "etcd://a,,b", "etcd://a b"] {
            let error = url.parse::<Address>().err().expect(url);
            assert!(
                error.kind == Trouble::Address && error.message.contains("etcd://HOST:PORT"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn a_secret_in_the_address_is_refused_and_not_repeated() {
        let error = "etcd://me:canary@a".parse::<Address>().err().unwrap();
        assert!(error.message.contains("TENURE_ETCD_USER") && !error.message.contains("canary"), "{error}");
    }
}

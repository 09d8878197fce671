//! Parsing of `raft:` URLs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use tenure_core::port::{ErrorKind, StoreError};

use super::types::NodeId;
use crate::store::host_port;

const USAGE: &str = "use raft:DIRECTORY for a cluster of one, raft:DIRECTORY?node=1&peers=1@HOST:PORT,2@HOST:PORT,3@HOST:PORT for a \
                    member, or raft:?peers=1@HOST:PORT,2@HOST:PORT,3@HOST:PORT for a client";

/// Environment variable with the secret of the cluster.
pub(super) const SECRET_ENV: &str = "TENURE_RAFT_SECRET";

/// Minimum number of entries between snapshots.
const SNAPSHOT_MIN: u64 = 10;

/// A parsed `raft:` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A member of the cluster.
    Member {
        directory: PathBuf,
        node: NodeId,
        peers: BTreeMap<NodeId, String>,
        /// Listen address, if it differs from the address in `peers`.
        listen: Option<String>,
        /// Number of entries after which the member writes a snapshot and truncates its log.
        snapshot: Option<u64>,
    },
    /// A client of the cluster.
    Client { peers: BTreeMap<NodeId, String> },
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix("raft:").unwrap_or(url);
        let (directory, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut node, mut peers, mut listen, mut snapshot) = (None, BTreeMap::new(), None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("node", number)) => node = Some(id(number)?),
                Some(("peers", list)) => peers = members(list)?,
                Some(("listen", at)) => listen = Some(checked_address(at)?),
                Some(("snapshot", number)) => snapshot = Some(entries(number)?),
                _ => return Err(invalid(format!("unknown parameter {pair:?}"))),
            }
        }
        match (directory.is_empty(), node, peers.is_empty()) {
            (true, None, false) => Ok(Address::Client { peers }),
            (true, ..) => Err(invalid("the data directory is missing")),
            (false, None, true) => {
                Ok(Address::Member { directory: directory.into(), node: 1, peers, listen, snapshot })
            }
            (false, Some(node), false) => match peers.contains_key(&node) {
                true => Ok(Address::Member { directory: directory.into(), node, peers, listen, snapshot }),
                false => Err(invalid(format!("node {node} is not in `peers`"))),
            },
            (false, Some(_), true) => Err(invalid("`node` needs `peers`")),
            (false, None, false) => Err(invalid("`peers` needs `node`")),
        }
    }
}

fn id(text: &str) -> Result<NodeId, StoreError> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| invalid(format!("{text:?} is not a node id; node ids start at 1")))
}

fn entries(text: &str) -> Result<u64, StoreError> {
    let number = text.parse().ok().filter(|number| *number >= SNAPSHOT_MIN);
    number.ok_or_else(|| invalid(format!("{text:?} is not a number of entries of at least {SNAPSHOT_MIN}")))
}

fn members(list: &str) -> Result<BTreeMap<NodeId, String>, StoreError> {
    let mut members = BTreeMap::new();
    for part in list.split(',') {
        let (number, at) = part
            .split_once('@')
            .ok_or_else(|| invalid(format!("{part:?} is not of the form NODE@HOST:PORT")))?;
        if members.insert(id(number)?, checked_address(at)?).is_some() {
            return Err(invalid(format!("node {number} is listed twice in `peers`")));
        }
    }
    Ok(members)
}

fn checked_address(text: &str) -> Result<String, StoreError> {
    host_port::checked(text).map_err(invalid)
}

fn invalid(message: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Address, format!("{message}; {USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_clients_are_distinguished() {
        let one: Address = "raft:/var/lib/tenure".parse().unwrap();
        assert!(matches!(one, Address::Member { node: 1, ref peers, .. } if peers.is_empty()));
        let member: Address = "raft:d?node=2&peers=1@a:1,2@b:2,3@[::1]:3".parse().unwrap();
        assert!(matches!(member, Address::Member { node: 2, ref peers, .. } if peers[&3] == "[::1]:3"));
        let client: Address = "raft:?peers=1@a:1".parse().unwrap();
        assert!(matches!(client, Address::Client { .. }));
    }

    #[test]
    fn an_invalid_url_is_rejected_with_the_usage() {
        for url in [
            "raft:",
            "raft:?node=1",
            "raft:d?node=1",
            "raft:d?peers=1@a:1",
            "raft:d?node=4&peers=1@a:1",
            "raft:d?node=0&peers=0@a:1",
            "raft:d?node=1&peers=1@a",
            "raft:d?node=1&peers=1@a:1,1@b:1",
            "raft:d?nodes=1",
            "raft:d?snapshot=9",
        ] {
            let error = url.parse::<Address>().expect_err(url);
            assert!(
                error.kind == ErrorKind::Address && error.message.contains("raft:DIRECTORY"),
                "{url}: {error}"
            );
        }
    }
}

//! Which member we are, or that we are none, and where the members are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use tenure_core::port::{StoreError, Trouble};

use super::types::NodeId;
use crate::backend::place;

const FORM: &str = "give raft:FOLDER for a cluster of one, raft:FOLDER?node=1&peers=1@HOST:PORT,2@HOST:PORT,3@HOST:PORT for a \
                    member, or raft:?peers=1@HOST:PORT,2@HOST:PORT,3@HOST:PORT to use a cluster without being one of it";

/// What the secret of a cluster is read from.
pub(super) const SECRET_ENV: &str = "TENURE_RAFT_SECRET";

/// More often than after so many entries the state is not written down.
const SNAPSHOT_LEAST: u64 = 10;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// One of the cluster.
    Member {
        folder: PathBuf,
        node: NodeId,
        peers: BTreeMap<NodeId, String>,
        /// Where it listens, if that is not where the others reach it.
        listen: Option<String>,
        /// After how many entries the state is written down and the log cut.
        snapshot: Option<u64>,
    },
    /// Somebody who uses it.
    Client { peers: BTreeMap<NodeId, String> },
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix("raft:").unwrap_or(url);
        let (folder, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut node, mut peers, mut listen, mut snapshot) = (None, BTreeMap::new(), None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("node", number)) => node = Some(id(number)?),
                Some(("peers", list)) => peers = members(list)?,
                Some(("listen", at)) => listen = Some(place(at)?),
                Some(("snapshot", number)) => snapshot = Some(entries(number)?),
                _ => return Err(refused(format!("{pair:?} says nothing about a cluster"))),
            }
        }
        match (folder.is_empty(), node, peers.is_empty()) {
            (true, None, false) => Ok(Address::Client { peers }),
            (true, ..) => Err(refused("there is no folder to keep the log in")),
            (false, None, true) => {
                Ok(Address::Member { folder: folder.into(), node: 1, peers, listen, snapshot })
            }
            (false, Some(node), false) => match peers.contains_key(&node) {
                true => Ok(Address::Member { folder: folder.into(), node, peers, listen, snapshot }),
                false => Err(refused(format!("node {node} is not among the peers"))),
            },
            (false, Some(_), true) => Err(refused("a node has peers")),
            (false, None, false) => Err(refused("it is not said which of the peers this node is")),
        }
    }
}

fn id(text: &str) -> Result<NodeId, StoreError> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| refused(format!("{text:?} is no number of a node; they begin with 1")))
}

fn entries(text: &str) -> Result<u64, StoreError> {
    let number = text.parse().ok().filter(|number| *number >= SNAPSHOT_LEAST);
    number.ok_or_else(|| refused(format!("{text:?} is no number of entries; {SNAPSHOT_LEAST} is the least")))
}

fn members(list: &str) -> Result<BTreeMap<NodeId, String>, StoreError> {
    let mut members = BTreeMap::new();
    for part in list.split(',') {
        let (number, at) = part.split_once('@').ok_or_else(|| refused(format!("{part:?} is no member")))?;
        if members.insert(id(number)?, place(at)?).is_some() {
            return Err(refused(format!("node {number} is there twice")));
        }
    }
    Ok(members)
}

fn place(text: &str) -> Result<String, StoreError> {
    place::checked(text).map_err(refused)
}

fn refused(message: impl std::fmt::Display) -> StoreError {
    StoreError::new(Trouble::Address, format!("{message}; {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_clients_are_told_apart() {
        let one: Address = "raft:/var/lib/tenure".parse().unwrap();
        assert!(matches!(one, Address::Member { node: 1, ref peers, .. } if peers.is_empty()));
        let member: Address = "raft:d?node=2&peers=1@a:1,2@b:2,3@[::1]:3".parse().unwrap();
        assert!(matches!(member, Address::Member { node: 2, ref peers, .. } if peers[&3] == "[::1]:3"));
        let client: Address = "raft:?peers=1@a:1".parse().unwrap();
        assert!(matches!(client, Address::Client { .. }));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_right_form() {
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
                error.kind == Trouble::Address && error.message.contains("raft:FOLDER"),
                "{url}: {error}"
            );
        }
    }
}

//! How a member reaches the others, for raft's own questions.
//!
//! **Later terms** are kept from openraft's replication streams. A stream of openraft 0.9 that is answered with a later vote reports it and ends; if the core has to
//! send a snapshot through it before it reads the report, it takes the stream that is gone for a failed disk ("replication channel closed"), and
//! the member stops for good. So a stream is told that the network failed, and goes on; the core hears of the later vote by itself
//! ([`adopt_later_votes`]), steps down, and ends its streams.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, LogId, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::net::{Lines, Question};
use super::types::{NodeId, Raft, Types};

/// In which term each of the others last said that it has the log, and up to which index, while this process ran.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<Mutex<BTreeMap<NodeId, (u64, u64)>>>);

impl Heard {
    pub(super) fn of(&self, node: NodeId) -> Option<(u64, u64)> {
        self.locked().get(&node).copied()
    }

    fn hear(&self, node: NodeId, reach: (u64, u64)) {
        let mut heard = self.locked();
        let furthest = heard.entry(node).or_default();
        *furthest = reach.max(*furthest);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<NodeId, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An index that no log reaches.
const NOWHERE: u64 = u64::MAX / 2;

/// A later vote that somebody answered with, and the vote of who had asked.
pub(super) type LaterVote = (Vote<NodeId>, Vote<NodeId>);

/// The way to the others.
pub(super) struct Network {
    lines: Lines,
    is_fit: Arc<AtomicBool>,
    heard: Heard,
    later: mpsc::UnboundedSender<LaterVote>,
}

impl Network {
    /// Later votes are sent to `later`.
    pub(super) fn new(
        lines: Lines,
        is_fit: Arc<AtomicBool>,
        heard: Heard,
        later: mpsc::UnboundedSender<LaterVote>,
    ) -> Network {
        Network { lines, is_fit, heard, later }
    }
}

/// Has the core step down for later votes, until it has ended.
///
/// It is told by a request to append to an entry that nobody has: the only message that has it take a later vote over as it is. It refuses the rest of it. The
/// vote is not one of a leader (`committed`), whatever the answer said: who leads says so itself.
pub(super) async fn adopt_later_votes(me: NodeId, raft: Raft, mut later: mpsc::UnboundedReceiver<LaterVote>) {
    while let Some((vote, asked_under)) = later.recv().await {
        // Its own later candidacy, or an answer to what it asked in an earlier term, is no news.
        if vote.leader_id().voted_for() == Some(me) || raft.metrics().borrow().vote != asked_under {
            continue;
        }
        let vote = Vote { committed: false, ..vote };
        let nowhere = LogId { leader_id: *vote.leader_id(), index: NOWHERE };
        let refused = AppendEntriesRequest {
            vote,
            prev_log_id: Some(nowhere),
            entries: Vec::new(),
            leader_commit: None,
        };
        let _ = raft.append_entries(refused).await;
    }
}

/// The way to one of them.
pub(super) struct Peer {
    node: NodeId,
    place: String,
    lines: Lines,
    is_fit: Arc<AtomicBool>,
    heard: Heard,
    later: mpsc::UnboundedSender<LaterVote>,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> Peer {
        let (lines, is_fit, heard) = (self.lines.clone(), self.is_fit.clone(), self.heard.clone());
        Peer { node: target, place: node.addr.clone(), lines, is_fit, heard, later: self.later.clone() }
    }
}

type Missed<E> = RPCError<NodeId, BasicNode, RaftError<NodeId, E>>;

impl Peer {
    async fn ask<T, E>(&self, question: Question) -> Result<T, Missed<E>>
    where
        T: DeserializeOwned,
        E: std::error::Error + Serialize + DeserializeOwned,
    {
        if !self.is_fit.load(Ordering::Acquire) {
            // Who takes no part asks for no votes either: its own would be one of them.
            let error = io::Error::other("this member takes no part yet");
            return Err(RPCError::Unreachable(Unreachable::new(&error)));
        }
        let answer: io::Result<Result<T, RaftError<NodeId, E>>> =
            self.lines.ask(self.node, &self.place, &question).await;
        match answer {
            Ok(answer) => answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.node, error))),
            // There is no hurry to ask again who is not there.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(RPCError::Unreachable(Unreachable::new(&error)))
            }
            Err(error) => Err(RPCError::Network(NetworkError::new(&error))),
        }
    }

    /// Has the core told of a later vote; to the stream, the network failed.
    fn later<E: std::error::Error>(&self, vote: Vote<NodeId>, asked_under: Vote<NodeId>) -> Missed<E> {
        let error = io::Error::other(format!("node {} has voted in a later term: {vote}", self.node));
        // Nobody hears of it when the member ends.
        let _ = self.later.send((vote, asked_under));
        RPCError::Network(NetworkError::new(&error))
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Missed<openraft::error::Infallible>> {
        let (asked_under, term) = (rpc.vote, rpc.vote.leader_id().term);
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let answer = self.ask(Question::Append(Box::new(rpc))).await?;
        let has = match &answer {
            AppendEntriesResponse::Success => last,
            AppendEntriesResponse::PartialSuccess(upto) => *upto,
            AppendEntriesResponse::HigherVote(vote) => return Err(self.later(*vote, asked_under)),
            AppendEntriesResponse::Conflict => None,
        };
        if let Some(has) = has {
            self.heard.hear(self.node, (term, has.index));
        }
        Ok(answer)
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, Missed<InstallSnapshotError>> {
        let asked_under = rpc.vote;
        let answer: InstallSnapshotResponse<NodeId> = self.ask(Question::Snapshot(Box::new(rpc))).await?;
        if answer.vote > asked_under { Err(self.later(answer.vote, asked_under)) } else { Ok(answer) }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeId>, Missed<openraft::error::Infallible>> {
        self.ask(Question::Vote(rpc)).await
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;

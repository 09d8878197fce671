//! Raft RPCs to the other members.
//!
//! **Higher votes** are hidden from openraft's replication streams. In openraft 0.9 a stream that receives a higher
//! vote reports it and ends. If the core must send a snapshot through that stream before it reads the report, it treats
//! the closed stream as a failed disk ("replication channel closed") and the member stops permanently. Here the stream
//! receives a network error instead and continues. [`adopt_later_votes`] passes the higher vote to the core, which
//! steps down and ends its streams.

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

use super::protocol::{RaftClient, RaftRequest};
use super::types::{NodeId, Raft, Types};

/// Term and index of the last log entry that each member acknowledged since this process started.
#[derive(Clone, Default)]
pub(super) struct AckedLogs(Arc<Mutex<BTreeMap<NodeId, (u64, u64)>>>);

impl AckedLogs {
    pub(super) fn of(&self, node: NodeId) -> Option<(u64, u64)> {
        self.locked().get(&node).copied()
    }

    fn record(&self, node: NodeId, position: (u64, u64)) {
        let mut acked = self.locked();
        let furthest = acked.entry(node).or_default();
        *furthest = position.max(*furthest);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<NodeId, (u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A log index beyond every real log.
const BEYOND_EVERY_LOG: u64 = u64::MAX / 2;

/// A higher vote from a reply, and the vote under which the request was sent.
pub(super) type LaterVote = (Vote<NodeId>, Vote<NodeId>);

/// Openraft's network of the other members.
pub(super) struct PeerNetwork {
    client: RaftClient,
    takes_part: Arc<AtomicBool>,
    acked: AckedLogs,
    later: mpsc::UnboundedSender<LaterVote>,
}

impl PeerNetwork {
    /// Create the network. Higher votes are sent to `later`.
    pub(super) fn new(
        client: RaftClient,
        takes_part: Arc<AtomicBool>,
        acked: AckedLogs,
        later: mpsc::UnboundedSender<LaterVote>,
    ) -> PeerNetwork {
        PeerNetwork { client, takes_part, acked, later }
    }
}

/// Make the Raft core step down for higher votes, until the member ends.
///
/// The core receives an append request after an entry that does not exist. This is the only message that makes it adopt
/// the vote unchanged; it rejects the append itself. The vote is marked as not committed, regardless of the reply: a
/// new leader announces itself.
pub(super) async fn adopt_later_votes(me: NodeId, raft: Raft, mut later: mpsc::UnboundedReceiver<LaterVote>) {
    while let Some((vote, sent_under)) = later.recv().await {
        // The member's own later candidacy, or a reply to a request of an earlier term, is not news.
        if vote.leader_id().voted_for() == Some(me) || raft.metrics().borrow().vote != sent_under {
            continue;
        }
        let vote = Vote { committed: false, ..vote };
        let beyond = LogId { leader_id: *vote.leader_id(), index: BEYOND_EVERY_LOG };
        let rejected_append = AppendEntriesRequest {
            vote,
            prev_log_id: Some(beyond),
            entries: Vec::new(),
            leader_commit: None,
        };
        let _ = raft.append_entries(rejected_append).await;
    }
}

/// Connection to one member.
pub(super) struct Peer {
    node: NodeId,
    address: String,
    client: RaftClient,
    takes_part: Arc<AtomicBool>,
    acked: AckedLogs,
    later: mpsc::UnboundedSender<LaterVote>,
}

impl RaftNetworkFactory<Types> for PeerNetwork {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> Peer {
        let (client, takes_part, acked) = (self.client.clone(), self.takes_part.clone(), self.acked.clone());
        Peer {
            node: target,
            address: node.addr.clone(),
            client,
            takes_part,
            acked,
            later: self.later.clone(),
        }
    }
}

type PeerRpcError<E> = RPCError<NodeId, BasicNode, RaftError<NodeId, E>>;

impl Peer {
    async fn call<T, E>(&self, request: RaftRequest) -> Result<T, PeerRpcError<E>>
    where
        T: DeserializeOwned,
        E: std::error::Error + Serialize + DeserializeOwned,
    {
        if !self.takes_part.load(Ordering::Acquire) {
            // A member that does not take part must not request votes: its own vote would count.
            let error = io::Error::other("this member does not take part in the cluster yet");
            return Err(RPCError::Unreachable(Unreachable::new(&error)));
        }
        let answer: io::Result<Result<T, RaftError<NodeId, E>>> =
            self.client.call(self.node, &self.address, &request).await;
        match answer {
            Ok(answer) => answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.node, error))),
            // `Unreachable` makes openraft wait before it retries.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(RPCError::Unreachable(Unreachable::new(&error)))
            }
            Err(error) => Err(RPCError::Network(NetworkError::new(&error))),
        }
    }

    /// Pass a higher vote to the core; return a network error for the stream.
    fn later<E: std::error::Error>(&self, vote: Vote<NodeId>, sent_under: Vote<NodeId>) -> PeerRpcError<E> {
        let error = io::Error::other(format!("node {} has a higher vote: {vote}", self.node));
        // The receiver is gone when the member ends.
        let _ = self.later.send((vote, sent_under));
        RPCError::Network(NetworkError::new(&error))
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, PeerRpcError<openraft::error::Infallible>> {
        let (sent_under, term) = (rpc.vote, rpc.vote.leader_id().term);
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let answer = self.call(RaftRequest::AppendEntries(Box::new(rpc))).await?;
        let has = match &answer {
            AppendEntriesResponse::Success => last,
            AppendEntriesResponse::PartialSuccess(upto) => *upto,
            AppendEntriesResponse::HigherVote(vote) => return Err(self.later(*vote, sent_under)),
            AppendEntriesResponse::Conflict => None,
        };
        if let Some(has) = has {
            self.acked.record(self.node, (term, has.index));
        }
        Ok(answer)
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, PeerRpcError<InstallSnapshotError>> {
        let sent_under = rpc.vote;
        let answer: InstallSnapshotResponse<NodeId> =
            self.call(RaftRequest::InstallSnapshot(Box::new(rpc))).await?;
        if answer.vote > sent_under { Err(self.later(answer.vote, sent_under)) } else { Ok(answer) }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeId>, PeerRpcError<openraft::error::Infallible>> {
        self.call(RaftRequest::Vote(rpc)).await
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;

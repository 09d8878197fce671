//! How a member reaches the others, for raft's own questions.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::BasicNode;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::net::{Lines, Question};
use super::types::{NodeId, Types};

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

/// The way to the others.
pub(super) struct Network {
    lines: Lines,
    is_fit: Arc<AtomicBool>,
    heard: Heard,
}

impl Network {
    pub(super) fn new(lines: Lines, is_fit: Arc<AtomicBool>, heard: Heard) -> Network {
        Network { lines, is_fit, heard }
    }
}

/// The way to one of them.
pub(super) struct Peer {
    node: NodeId,
    place: String,
    lines: Lines,
    is_fit: Arc<AtomicBool>,
    heard: Heard,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: NodeId, node: &BasicNode) -> Peer {
        let (lines, is_fit, heard) = (self.lines.clone(), self.is_fit.clone(), self.heard.clone());
        Peer { node: target, place: node.addr.clone(), lines, is_fit, heard }
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
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, Missed<openraft::error::Infallible>> {
        let term = rpc.vote.leader_id().term;
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let answer = self.ask(Question::Append(Box::new(rpc))).await?;
        let has = match &answer {
            AppendEntriesResponse::Success => last,
            AppendEntriesResponse::PartialSuccess(upto) => *upto,
            _ => None,
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
        self.ask(Question::Snapshot(Box::new(rpc))).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<NodeId>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeId>, Missed<openraft::error::Infallible>> {
        self.ask(Question::Vote(rpc)).await
    }
}

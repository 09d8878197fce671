//! Messages between members, and between clients and members.
//!
//! Each request has one reply. `Hello` names the intended member, so a client notices when an address now belongs to
//! another member.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use openraft::raft::{AppendEntriesRequest, InstallSnapshotRequest, VoteRequest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_core::port::Notification;
use tokio::sync::Semaphore;

use super::env::Network;
use super::types::{LogDirectoryId, NodeId, RaftRead, TimedWrite, Types};
use crate::runtime::Runtime;

/// A request to a member.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RaftRequest {
    /// Asks the member to confirm its node id (first) and to report its knowledge about the sender (second), if the
    /// sender is a member.
    Hello(NodeId, Option<NodeId>),
    AppendEntries(Box<AppendEntriesRequest<Types>>),
    Vote(VoteRequest<NodeId>),
    InstallSnapshot(Box<InstallSnapshotRequest<Types>>),
    /// A write. The receiver forwards it to the Raft leader.
    Write(Box<TimedWrite>),
    /// A read. The receiver forwards it to the Raft leader.
    Read(RaftRead),
    /// A write that only the Raft leader executes; other members reject it.
    LeaderWrite(Box<TimedWrite>),
    /// A read that only the Raft leader executes; other members reject it.
    LeaderRead(RaftRead),
    /// Opens an endless stream of notifications.
    Notifications,
    /// Asks for the Raft leader and the members.
    Status,
    /// Adds a member; executed by the Raft leader.
    AddMember(NodeId, String),
    RemoveMember(NodeId),
    /// Transfers Raft leadership to a member; executed by the Raft leader.
    TransferLeader(NodeId),
    /// Asks the member to start a Raft election now.
    StartElection,
}

/// Reply of a member to `Hello`.
#[derive(Serialize, Deserialize)]
pub(super) struct HelloReply {
    /// Node id of the member.
    pub(super) node: NodeId,
    /// Whether the member never voted and never stored an entry.
    pub(super) is_new: bool,
    /// The sender's log directory as far as the member knows.
    pub(super) your_directory: Option<LogDirectoryId>,
    /// Term and index of the last log entry that the sender acknowledged to the member since the member started.
    pub(super) your_log: Option<(u64, u64)>,
}

impl HelloReply {
    /// Check that the reply comes from the intended member.
    pub(super) fn check(&self, node: NodeId, address: &str) -> io::Result<()> {
        match self.node == node {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{address} is node {}, expected node {node}", self.node),
            )),
        }
    }
}

/// Maximum number of concurrent reads and writes that this process sends to other members. Each one uses a connection,
/// and a member limits the connections per address. Further requests wait.
const FORWARDED_MAX: usize = 64;

/// Sends requests to members.
#[derive(Clone)]
pub(super) struct RaftClient {
    me: Option<NodeId>,
    network: Arc<dyn Network>,
    forwarded: Arc<Semaphore>,
}

impl RaftClient {
    pub(super) fn new(me: Option<NodeId>, network: Arc<dyn Network>) -> RaftClient {
        RaftClient { me, network, forwarded: Arc::new(Semaphore::new(FORWARDED_MAX)) }
    }

    /// Send `Hello` to a member.
    pub(super) async fn hello(&self, node: NodeId, address: &str) -> io::Result<HelloReply> {
        let reply: HelloReply = self.call(node, address, &RaftRequest::Hello(node, self.me)).await?;
        reply.check(node, address).map(|()| reply)
    }

    /// Send one request and return the decoded reply.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        node: NodeId,
        address: &str,
        request: &RaftRequest,
    ) -> io::Result<T> {
        // Raft's own messages and membership requests never wait for a permit.
        let _permit = match request {
            RaftRequest::Write(_)
            | RaftRequest::Read(_)
            | RaftRequest::LeaderWrite(_)
            | RaftRequest::LeaderRead(_) => Some(self.forwarded.acquire().await),
            _ => None,
        };
        let answer = self.network.request(node, address, serde_json::to_vec(request)?).await?;
        serde_json::from_slice(&answer).map_err(io::Error::other)
    }

    /// Open the notification stream of a member.
    pub(super) async fn listen(
        &self,
        node: NodeId,
        address: &str,
    ) -> io::Result<BoxStream<'static, io::Result<Notification>>> {
        let messages =
            self.network.subscribe(node, address, serde_json::to_vec(&RaftRequest::Notifications)?).await?;
        Ok(messages
            .map(|notification| serde_json::from_slice(&notification?).map_err(io::Error::other))
            .boxed())
    }
}

/// Run a future with a time limit.
pub(super) async fn within<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    future: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::select! {
        biased;
        done = future => done,
        () = runtime.sleep_until(runtime.now() + limit) => Err(io::ErrorKind::TimedOut.into()),
    }
}

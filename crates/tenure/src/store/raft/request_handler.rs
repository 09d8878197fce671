//! Request handling of a member.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use futures_core::future::BoxFuture;
use futures_util::StreamExt;
use serde::Serialize;
use tenure_core::port::{Notification, StoreError};
use tokio::sync::broadcast;

use super::env::{RequestHandler, RequestReply};
use super::node::Node;
use super::protocol::{HelloReply, RaftRequest};
use super::types::RaftResponse;

/// Handles requests for a member while it exists.
pub(super) struct NodeRequestHandler(pub(super) Weak<Node>);

impl RequestHandler for NodeRequestHandler {
    fn handle(&self, request: Vec<u8>) -> BoxFuture<'static, RequestReply> {
        let me = self.0.clone();
        Box::pin(async move {
            // A stopped member does not reply: its state is outdated, and it cannot act.
            let Some(node) = me.upgrade().filter(|node| node.stopped().is_none()) else {
                return RequestReply::NoReply;
            };
            match serde_json::from_slice(&request) {
                Ok(request) => handle(&node, request).await,
                Err(error) => {
                    tracing::debug!("raft request dropped: cannot decode it: {error}");
                    RequestReply::NoReply
                }
            }
        })
    }
}

async fn handle(node: &Node, request: RaftRequest) -> RequestReply {
    match request {
        RaftRequest::Hello(_, sender) => {
            // Includes log entries that are not known to be committed: after a restart these are all entries since the
            // last snapshot.
            let your_directory = sender.and_then(|sender| {
                node.log.registered_directory(sender).or_else(|| node.machine.directory_of(sender))
            });
            let your_log = sender.and_then(|sender| node.acked.of(sender));
            let is_new = node.log.is_new();
            encode(&HelloReply { node: node.id, is_new, your_directory, your_log })
        }
        // A member that does not take part stores and votes for nothing, so it does not reply.
        RaftRequest::AppendEntries(_) | RaftRequest::Vote(_) | RaftRequest::InstallSnapshot(_)
            if !node.takes_part.load(Ordering::Acquire) =>
        {
            RequestReply::NoReply
        }
        RaftRequest::AppendEntries(request) => encode(&node.raft.append_entries(*request).await),
        RaftRequest::Vote(request) => encode(&node.raft.vote(request).await),
        RaftRequest::InstallSnapshot(request) => encode(&node.raft.install_snapshot(*request).await),
        RaftRequest::Write(entry) => encode_outcome(node.write(*entry).await),
        RaftRequest::Read(read) => encode_outcome(node.read(read).await),
        RaftRequest::LeaderWrite(entry) => encode_outcome(node.write_as_leader(*entry).await),
        RaftRequest::LeaderRead(read) => encode_outcome(node.read_as_leader(&read).await),
        RaftRequest::Status => encode(&node.status()),
        RaftRequest::StartElection => encode(&node.start_election().await),
        manage @ (RaftRequest::AddMember(..)
        | RaftRequest::RemoveMember(_)
        | RaftRequest::TransferLeader(_)) => encode_outcome(node.manage(manage).await),
        RaftRequest::Notifications => {
            let resync = futures_util::stream::iter([Notification::Resync]);
            let notifications =
                futures_util::stream::unfold(node.notifications.subscribe(), async |mut notifications| {
                    let notification = match notifications.recv().await {
                        Ok(notification) => notification,
                        Err(broadcast::error::RecvError::Lagged(_)) => Notification::Resync,
                        Err(broadcast::error::RecvError::Closed) => return None,
                    };
                    Some((notification, notifications))
                });
            let messages = resync
                .chain(notifications)
                .map(|notification| serde_json::to_vec(&notification).unwrap_or_default());
            RequestReply::Stream(messages.boxed())
        }
    }
}

fn encode(answer: &impl Serialize) -> RequestReply {
    // The types of the port and of openraft are plain data; serialization cannot fail.
    serde_json::to_vec(answer).map_or(RequestReply::NoReply, RequestReply::Message)
}

fn encode_outcome(outcome: Result<RaftResponse, StoreError>) -> RequestReply {
    encode(&outcome.unwrap_or_else(RaftResponse::error))
}

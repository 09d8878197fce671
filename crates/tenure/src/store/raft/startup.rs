//! Startup of a member: it takes part only once it is certain that it has forgotten nothing.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use openraft::BasicNode;

use super::node::Node;
use super::protocol::{HelloReply, within};
use super::types::{LogDirectoryId, NodeId, RaftWrite, TimedWrite};
use crate::runtime::Runtime;

/// Time limit for the `Hello` reply of another member during startup.
const HELLO_LIMIT: Duration = Duration::from_secs(1);

/// Join the cluster once that is safe, then register the log directory.
///
/// A member with an empty directory that had another directory before has lost its disk. A member whose directory was
/// restored from a copy has lost its most recent entries. In both cases it has forgotten votes and acknowledgements and
/// must not take part under its node id. The other members detect this: each member registers its directory and its
/// start count in the replicated state, and a Raft leader remembers which entries each member acknowledged. An empty
/// directory is always detected. An old copy is detected if a reachable member knows of a later start. A copy from the
/// most recent run is detected only if a member that led during that run is still running.
pub(super) async fn start_member(
    me: Weak<Node>,
    runtime: Arc<dyn Runtime>,
    id: NodeId,
    peers: BTreeMap<NodeId, String>,
) {
    let (mut warned, mut silent) = (false, Vec::new());
    loop {
        let Some(node) = me.upgrade() else { return };
        if node.takes_part.load(Ordering::Acquire) {
            break;
        }
        match node.decide(&peers).await {
            StartDecision::TakePart => {
                node.take_part();
                if peers.len() <= 1 {
                    // A cluster of one has no other member to wait for.
                    node.start_election().await;
                }
            }
            StartDecision::CreateCluster => {
                node.take_part();
                node.create_cluster(&peers).await;
            }
            StartDecision::Wait(others) if others == silent => {}
            StartDecision::Wait(others) => {
                tracing::info!(
                    node = id,
                    "raft member waits for a majority of the other members, unreachable: {}",
                    others.join(", ")
                );
                silent = others;
            }
            StartDecision::Lost if warned => {}
            StartDecision::Lost => {
                // Persist the decision: the members that know may be gone at the next start.
                warned = node.log.record_state_lost().await.is_ok();
                tracing::error!(
                    node = id,
                    "raft member has lost its log: its data directory is new or an old copy, so it no longer takes part in the cluster. \
                     Remove it with `tenure raft remove-member` and add it under a new node id"
                );
            }
        }
        drop(node);
        runtime.sleep_until(runtime.now() + Duration::from_millis(100)).await;
    }
    loop {
        let Some(node) = me.upgrade() else { return };
        let directory = LogDirectoryId { id: node.log.directory_id(), started: node.log.started() };
        if node.machine.directory_of(id).is_some_and(|known| known.id != directory.id || known == directory) {
            return;
        }
        let change = RaftWrite::Register(id, directory);
        // Without a leader, or before this member is added, registration fails and is retried.
        let _ = node.write(TimedWrite { change, wall_ms: runtime.wall_ms() }).await;
        drop(node);
        runtime.sleep_until(runtime.now() + Duration::from_millis(200)).await;
    }
}

/// Whether a starting member may take part in the cluster.
enum StartDecision {
    /// Take part: the member remembers all its votes, or it is new and the cluster exists or is created by another
    /// member.
    TakePart,
    /// Create the cluster: a majority of the configured members are new, and no reachable member belongs to a cluster.
    CreateCluster,
    /// Wait: these members have not answered yet.
    Wait(Vec<String>),
    /// Stay passive: the member has forgotten votes or entries.
    Lost,
}

impl Node {
    fn take_part(&self) {
        self.takes_part.store(true, Ordering::Release);
        self.raft.runtime_config().elect(true);
    }

    async fn decide(&self, peers: &BTreeMap<NodeId, String>) -> StartDecision {
        let is_new = self.log.is_new();
        // A former member knows the current voters better than its URL does.
        let voters = if is_new { BTreeMap::new() } else { self.voters() };
        let peers = if voters.is_empty() { peers } else { &voters };
        let others: Vec<_> = peers.iter().filter(|(other, _)| **other != self.id).collect();
        let replies = others.iter().map(|(other, address)| {
            within(self.runtime.as_ref(), HELLO_LIMIT, self.client.hello(**other, address))
        });
        let replies = futures_util::future::join_all(replies).await;
        let silent = others.iter().zip(&replies).filter(|(_, reply)| reply.is_err());
        let silent = silent.map(|((other, address), _)| format!("{other} at {address}")).collect();
        let received: Vec<HelloReply> = replies.into_iter().filter_map(Result::ok).collect();
        // A single member may lag behind, so a majority must answer. A new member does not count itself: it may have
        // lost its disk. Every entry committed while it had another directory is also on the other members of some
        // majority, and at least one of those must answer.
        let enough = match is_new {
            true => others.is_empty() || received.len() * 2 > others.len(),
            false => (received.len() + 1) * 2 > peers.len(),
        };
        match enough {
            _ if self.log.has_lost_state() || received.iter().any(|reply| self.has_lost_state(reply)) => {
                StartDecision::Lost
            }
            false => StartDecision::Wait(silent),
            true if !is_new || received.iter().any(|reply| !reply.is_new) => StartDecision::TakePart,
            // The member with the lowest node id creates the cluster, so that two members do not both do so.
            true if received.iter().any(|reply| reply.node < self.id) => StartDecision::TakePart,
            true => StartDecision::CreateCluster,
        }
    }

    /// Return the voting members that this member knows.
    fn voters(&self) -> BTreeMap<NodeId, String> {
        let members = self.status().members.into_iter().filter(|member| member.voter);
        members.map(|member| (member.node_id, member.address)).collect()
    }

    /// Whether another member knows more about this member than it knows itself.
    fn has_lost_state(&self, reply: &HelloReply) -> bool {
        let (id, started) = (self.log.directory_id(), self.log.started());
        let is_other_directory =
            reply.your_directory.as_ref().is_some_and(|it| it.id != id || it.started >= started);
        // In a later term the member may have received a truncation of its log; within one term never.
        let (term, index) = self.log.last_position();
        let has = (term, index.max(self.machine.applied()));
        is_other_directory
            || reply.your_log.is_some_and(|acked| acked.0 > has.0 || (acked.0 == has.0 && acked.1 > has.1))
    }

    async fn create_cluster(&self, peers: &BTreeMap<NodeId, String>) {
        let members: BTreeMap<NodeId, BasicNode> = match peers.is_empty() {
            true => [(self.id, BasicNode::default())].into(),
            false => peers.iter().map(|(id, address)| (*id, BasicNode::new(address))).collect(),
        };
        match self.raft.initialize(members).await {
            Ok(()) => tracing::info!(node = self.id, "raft cluster created members={}", peers.len().max(1)),
            // Another member was faster.
            Err(error) => tracing::debug!("raft cluster not created here: {error}"),
        }
    }
}

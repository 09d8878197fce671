//! Raft status and membership changes.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::{BasicNode, ChangeMembers};
use tenure_core::port::{ErrorKind, RaftMember, RaftStatus, StoreError};

use super::node::{ANSWER_LIMIT, ELECTION_TIMEOUT_MS, MEMBERS_LIMIT, Node};
use super::protocol::{RaftRequest, within};
use super::types::{NodeId, RaftResponse};

/// Time limit of a leadership transfer.
const TRANSFER_LIMIT: Duration = Duration::from_secs(15);

impl Node {
    /// Return the Raft leader and the members as this member sees them.
    pub(super) fn status(&self) -> RaftStatus {
        let metrics = self.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let voters: Vec<NodeId> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, node)| RaftMember {
            node_id: *id,
            address: node.addr.clone(),
            voter: voters.contains(id),
            lag_entries: metrics.replication.as_ref().and_then(|all| all.get(id)).map(|seen| {
                metrics.last_log_index.unwrap_or(0).saturating_sub(seen.map_or(0, |seen| seen.index))
            }),
        });
        RaftStatus {
            reported_by: self.id,
            // The metrics of a stopped Raft core keep their last values.
            leader: metrics.current_leader.filter(|_| self.stopped().is_none()),
            term: metrics.current_term,
            index: metrics.last_log_index.unwrap_or(0),
            members: members.collect(),
        }
    }

    /// Add a member as a learner; it becomes a voter once it has caught up.
    async fn add_member(&self, id: NodeId, address: &str) -> Result<(), StoreError> {
        let failed =
            |error: String| StoreError::new(ErrorKind::Unavailable, format!("cannot add node {id}: {error}"));
        self.raft
            .add_learner(id, BasicNode::new(address), true)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let voters = ChangeMembers::AddVoterIds([id].into());
        self.raft.change_membership(voters, true).await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Remove a member.
    async fn remove_member(&self, id: NodeId) -> Result<(), StoreError> {
        let failed = |error: String| {
            StoreError::new(ErrorKind::Unavailable, format!("cannot remove node {id}: {error}"))
        };
        let voters = ChangeMembers::RemoveVoters([id].into());
        self.raft.change_membership(voters, false).await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Ask a member to start a Raft election, repeatedly until it leads. Voters reject a candidate while they have
    /// recently heard from a leader, so the first attempt may fail.
    async fn transfer_leader(&self, id: NodeId) -> Result<(), StoreError> {
        let status = self.status();
        let member = status.members.iter().find(|member| member.node_id == id && member.voter);
        let Some(address) = member.map(|member| member.address.clone()) else {
            let voters =
                status.members.iter().filter(|member| member.voter).map(|member| member.node_id.to_string());
            let voters = voters.collect::<Vec<_>>().join(", ");
            return Err(StoreError::new(
                ErrorKind::Request,
                format!("node {id} is not a voting member; choose one of {voters}"),
            ));
        };
        let limit = self.runtime.now() + TRANSFER_LIMIT;
        let mut metrics = self.raft.metrics();
        while metrics.borrow_and_update().current_leader != Some(id) {
            if self.runtime.now() >= limit {
                return Err(StoreError::new(
                    ErrorKind::Request,
                    format!(
                        "node {id} was not elected within {TRANSFER_LIMIT:?}: it is unreachable or lags behind; try again"
                    ),
                ));
            }
            if id != self.id {
                let _: io::Result<RaftResponse> = within(
                    self.runtime.as_ref(),
                    ANSWER_LIMIT,
                    self.client.call(id, &address, &RaftRequest::StartElection),
                )
                .await;
            }
            tokio::select! {
                biased;
                _ = metrics.changed() => {}
                () = self.runtime.sleep_until(self.runtime.now() + Duration::from_millis(ELECTION_TIMEOUT_MS.0 / 2)) => {}
            }
        }
        Ok(())
    }

    /// Execute a membership request on the Raft leader: locally if this member leads, otherwise by forwarding it.
    pub(super) async fn manage(&self, request: RaftRequest) -> Result<RaftResponse, StoreError> {
        let (leader, address) = self.leader().await?;
        if leader != self.id {
            return self.forward(leader, &address, &request).await;
        }
        let future = async {
            match request {
                RaftRequest::AddMember(id, address) => self.add_member(id, &address).await,
                RaftRequest::RemoveMember(id) => self.remove_member(id).await,
                RaftRequest::TransferLeader(id) => self.transfer_leader(id).await,
                _ => Err(StoreError::new(ErrorKind::Request, "not a membership request")),
            }
        };
        // A leader that loses its leadership during a membership change may never learn the result.
        tokio::select! {
            biased;
            done = future => done.map(|()| RaftResponse::empty()),
            () = self.runtime.sleep_until(self.runtime.now() + MEMBERS_LIMIT) => Err(StoreError::new(
                ErrorKind::Unavailable,
                format!("the membership change did not finish within {MEMBERS_LIMIT:?} and may still happen; check `tenure raft status` before retrying"),
            )),
        }
    }

    pub(super) async fn start_election(&self) -> RaftResponse {
        if !self.takes_part.load(Ordering::Acquire) {
            let message = format!("node {} does not take part in the cluster yet", self.id);
            return RaftResponse::error(StoreError::new(ErrorKind::Unavailable, message));
        }
        match self.raft.trigger().elect().await {
            Ok(()) => RaftResponse::empty(),
            Err(error) => RaftResponse::error(StoreError::new(ErrorKind::Unavailable, error.to_string())),
        }
    }
}

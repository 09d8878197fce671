//! Who the members are, and how that changes.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::{BasicNode, ChangeMembers};
use tenure_core::port::{StoreError, Trouble};

use super::net::{Question, within};
use super::node::{ANSWER_LIMIT, MEMBERS_LIMIT, Node, SILENCE_MS};
use super::types::{NodeId, Outcome};

/// How long another member may take to lead.
const TRANSFER_LIMIT: Duration = Duration::from_secs(15);

/// How a cluster stands, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Status {
    /// Who says so.
    pub node: u64,
    /// Who leads.
    pub leader: Option<u64>,
    /// In which term.
    pub term: u64,
    /// The index of the last entry.
    pub index: u64,
    /// All members.
    pub members: Vec<Member>,
}

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Member {
    /// Its number.
    pub node: u64,
    /// Where it is.
    pub place: String,
    /// Whether it votes; if not, it learns.
    pub votes: bool,
    /// How many entries it is behind, if the leader says so.
    pub behind: Option<u64>,
}

impl Node {
    /// Who leads, and who the members are.
    pub(super) fn status(&self) -> Status {
        let metrics = self.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let voters: Vec<NodeId> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, node)| Member {
            node: *id,
            place: node.addr.clone(),
            votes: voters.contains(id),
            behind: metrics.replication.as_ref().and_then(|all| all.get(id)).map(|seen| {
                metrics.last_log_index.unwrap_or(0).saturating_sub(seen.map_or(0, |seen| seen.index))
            }),
        });
        Status {
            node: self.id,
            // One that has stopped says for ever what it said last.
            leader: metrics.current_leader.filter(|_| self.stopped().is_none()),
            term: metrics.current_term,
            index: metrics.last_log_index.unwrap_or(0),
            members: members.collect(),
        }
    }

    /// Takes a member in: it learns first, and votes when it has caught up.
    async fn admit(&self, id: NodeId, place: &str) -> Result<(), StoreError> {
        let failed = |error: String| {
            StoreError::new(Trouble::Unavailable, format!("node {id} could not be taken in: {error}"))
        };
        self.raft
            .add_learner(id, BasicNode::new(place), true)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let voters = ChangeMembers::AddVoterIds([id].into());
        self.raft.change_membership(voters, true).await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Lets a member go.
    async fn dismiss(&self, id: NodeId) -> Result<(), StoreError> {
        let failed = |error: String| {
            StoreError::new(Trouble::Unavailable, format!("node {id} could not be let go: {error}"))
        };
        let voters = ChangeMembers::RemoveVoters([id].into());
        self.raft.change_membership(voters, false).await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Has another member stand, again and again until it leads: the others vote for nobody while they have just heard of a leader, and hear
    /// of none once it stands.
    async fn transfer(&self, id: NodeId) -> Result<(), StoreError> {
        let status = self.status();
        let member = status.members.iter().find(|member| member.node == id && member.votes);
        let Some(place) = member.map(|member| member.place.clone()) else {
            let voters =
                status.members.iter().filter(|member| member.votes).map(|member| member.node.to_string());
            let voters = voters.collect::<Vec<_>>().join(", ");
            return Err(StoreError::new(
                Trouble::Request,
                format!("node {id} is no member that votes; choose among {voters}"),
            ));
        };
        let limit = self.runtime.now() + TRANSFER_LIMIT;
        let mut metrics = self.raft.metrics();
        while metrics.borrow_and_update().current_leader != Some(id) {
            if self.runtime.now() >= limit {
                return Err(StoreError::new(
                    Trouble::Request,
                    format!(
                        "node {id} was not elected within {TRANSFER_LIMIT:?}: it can not be reached, or is behind; try again"
                    ),
                ));
            }
            if id != self.id {
                let _: io::Result<Outcome> =
                    within(self.runtime.as_ref(), ANSWER_LIMIT, self.lines.ask(id, &place, &Question::Elect))
                        .await;
            }
            tokio::select! {
                biased;
                _ = metrics.changed() => {}
                () = self.runtime.sleep_until(self.runtime.now() + Duration::from_millis(SILENCE_MS.0 / 2)) => {}
            }
        }
        Ok(())
    }

    /// Has the leader do something about the members; if that is us, we do.
    pub(super) async fn manage(&self, question: Question) -> Result<Outcome, StoreError> {
        let (leader, place) = self.leader().await?;
        if leader != self.id {
            return self.pass_on(leader, &place, &question).await;
        }
        let doing = async {
            match question {
                Question::Admit(id, place) => self.admit(id, &place).await,
                Question::Dismiss(id) => self.dismiss(id).await,
                Question::Transfer(id) => self.transfer(id).await,
                _ => Err(StoreError::new(Trouble::Request, "that is nothing to do about members")),
            }
        };
        // Who asked for a change and leads no longer when it is made may never be told.
        tokio::select! {
            biased;
            done = doing => done.map(|()| Outcome::nothing()),
            () = self.runtime.sleep_until(self.runtime.now() + MEMBERS_LIMIT) => Err(StoreError::new(
                Trouble::Unavailable,
                format!("that was not done within {MEMBERS_LIMIT:?}, and may be yet: see `tenure raft status`, and ask again"),
            )),
        }
    }

    pub(super) async fn elect(&self) -> Outcome {
        if !self.is_fit.load(Ordering::Acquire) {
            let message = format!("node {} takes no part yet", self.id);
            return Outcome::refused(StoreError::new(Trouble::Unavailable, message));
        }
        match self.raft.trigger().elect().await {
            Ok(()) => Outcome::nothing(),
            Err(error) => Outcome::refused(StoreError::new(Trouble::Unavailable, error.to_string())),
        }
    }
}

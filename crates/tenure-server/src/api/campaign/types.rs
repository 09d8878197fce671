//! Request and response of a campaign.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure::port::{Candidacy, LeaderRequest};
use tenure::{ElectionKey, Name, SessionId, Timing, Token};
use utoipa::ToSchema;

use super::CountedHeartbeat;
use super::wait::{CampaignOutcome, CandidateStatus};
use crate::api::election_types::{LeaderView, leaders, millis};

/// Campaign request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "web-1", "lease_ms": 30000, "priority": 50, "wait_ms": 3000}))]
pub(crate) struct CampaignRequest {
    /// Name of the candidate. Names need not be unique.
    #[schema(max_length = 1024, example = "web-1")]
    pub(super) name: String,
    /// Session from an earlier response. If omitted, the server opens one.
    pub(super) session: Option<SessionId>,
    /// Token of the lease that the client holds, if it leads.
    pub(super) token: Option<Token>,
    /// Lease duration: how long the session keeps its leases without a heartbeat, 200 ms to one day. For an
    /// existing session it must equal the duration it was opened with.
    #[schema(minimum = 200, maximum = 86400000, default = 30000)]
    pub(super) lease_ms: Option<u64>,
    /// Priority. The candidate with the highest priority leads; it preempts a leader with a lower one.
    #[serde(default)]
    priority: i32,
    /// Maximum wait for the lease; limited to a third of the lease and to 45 s.
    #[schema(default = 0)]
    pub(super) wait_ms: Option<u64>,
    /// Whether the candidate only observes and never leads.
    #[serde(default)]
    observer: bool,
    /// Number of slots of the election.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100, default = 1)]
    slots: u32,
    /// Capabilities of this candidate.
    #[serde(default)]
    capabilities: Vec<String>,
    /// Capabilities that the leader of this election must have.
    #[serde(default)]
    required_capabilities: Vec<String>,
    /// Metadata shown to operators, such as version, zone and address.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

impl CampaignRequest {
    pub(super) fn candidacy(&self, session: SessionId, election: ElectionKey) -> Candidacy {
        Candidacy {
            session,
            election,
            name: self.name.clone(),
            priority: self.priority,
            observer: self.observer,
            capabilities: self.capabilities.clone(),
            required_capabilities: self.required_capabilities.clone(),
            slots: self.slots,
            metadata: self.metadata.clone(),
        }
    }
}

/// Campaign response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CampaignResponse {
    /// Whether the candidate leads. Valid for `lease_remaining_ms`, counted from before the request was sent.
    leading: bool,
    /// Status of the candidate.
    status: CandidateStatus,
    /// Session of the candidate: send it with every later request.
    session: SessionId,
    /// Namespace.
    namespace: Name,
    /// Election.
    election: Name,
    /// Slot that the candidate leads.
    slot: Option<u32>,
    /// Fencing token of the term: send it with every write.
    token: Option<Token>,
    /// Token as text, `epoch.number`.
    #[schema(example = "7")]
    token_text: Option<String>,
    /// How long a leader may act, counted from before it *sent* this request.
    #[schema(example = 6666)]
    lease_remaining_ms: u64,
    /// Interval between heartbeats.
    #[schema(example = 2000)]
    heartbeat_interval_ms: u64,
    /// How long the session keeps its leases without a heartbeat.
    #[schema(example = 10000)]
    lease_ms: u64,
    /// Lease that the session holds and the request did not name: the response to an earlier campaign was
    /// lost. Other work may run under it, so do not act on it: resign it by this token and campaign again.
    unreported_lease: Option<UnreportedLease>,
    /// Epoch of the store. It grows when a standby is promoted; grants of an older epoch may be lost.
    epoch: u32,
    /// The leader, if another candidate leads.
    leader: Option<LeaderView>,
    /// Requests to the leader: finish the work and resign.
    leader_requests: Vec<LeaderRequest>,
}

/// Lease that the request did not name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UnreportedLease {
    /// Slot.
    slot: u32,
    /// Fencing token.
    token: Token,
}

impl CampaignResponse {
    pub(super) fn new(
        candidacy: &Candidacy,
        timing: &Timing,
        outcome: CampaignOutcome,
        heartbeat: CountedHeartbeat,
    ) -> Self {
        let CountedHeartbeat { epoch, leader_requests } = heartbeat;
        let held = outcome.held;
        let others = outcome.view.as_deref().map(|view| leaders(view)).unwrap_or_default();
        CampaignResponse {
            leading: held.is_some(),
            status: outcome.status,
            session: candidacy.session.clone(),
            namespace: candidacy.election.namespace.clone(),
            election: candidacy.election.name.clone(),
            slot: held.map(|(slot, _)| slot),
            token: held.map(|(_, token)| token),
            token_text: held.map(|(_, token)| token.to_string()),
            lease_remaining_ms: millis(timing.trust()),
            heartbeat_interval_ms: millis(timing.heartbeat_interval()),
            lease_ms: millis(timing.lease()),
            unreported_lease: outcome.unnamed.map(|(slot, token)| UnreportedLease { slot, token }),
            epoch,
            leader: others.into_iter().find(|leader| leader.session != candidacy.session),
            // Requests for a term that the client does not know would confuse it.
            leader_requests: leader_requests
                .into_iter()
                .filter(|leader_request| {
                    held == Some((leader_request.slot, leader_request.token))
                        || leader_request.election != candidacy.election
                })
                .collect(),
        }
    }
}

//! Waiting for a lease within a request.

use std::sync::Arc;

use serde::Serialize;
use tenure::port::Candidacy;
use tenure::{BootInstant, SessionId, Token};
use tenure_core::rules::lease::{CandidateDecision, Ineligibility};
use utoipa::ToSchema;

use crate::App;
use crate::access::RequestPermitHandle;
use crate::problem::Problem;
use crate::snapshot::elections::CachedElection;

/// Candidate that waits within a request.
pub(super) struct CampaignWait<'a> {
    pub(super) app: &'a App,
    /// Permit of the request, which it returns while it waits.
    pub(super) permit: &'a RequestPermitHandle,
    pub(super) candidacy: &'a Candidacy,
    /// Token under which the client says it leads.
    pub(super) named: Option<Token>,
    /// End of the wait.
    pub(super) deadline: BootInstant,
    /// Instant after which a granted lease would reach the client too late.
    pub(super) pointless: BootInstant,
}

/// Result of the wait.
pub(super) struct CampaignOutcome {
    /// Slot and token, if the candidate leads.
    pub(super) held: Option<(u32, Token)>,
    /// Slot and token of a lease that the session holds and the request did not name.
    pub(super) unnamed: Option<(u32, Token)>,
    pub(super) status: CandidateStatus,
    /// The election as last observed.
    pub(super) view: Option<Arc<CachedElection>>,
}

/// Status of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CandidateStatus {
    /// The candidate leads.
    Leading,
    /// The session holds a lease that the request did not name; see `unreported_lease`.
    LeaseHeld,
    /// The candidate waits.
    Waiting,
    /// The election is paused.
    Paused,
    /// The candidate is an observer.
    Observing,
    /// The candidate lacks a capability that the leader must have.
    NotCapable,
}

impl CampaignWait<'_> {
    /// Wait until the candidate leads, cannot lead, or the deadline passes.
    pub(super) async fn outcome(&self) -> Result<CampaignOutcome, Problem> {
        let runtime = self.app.runtime.as_ref();
        let (election, session) = (&self.candidacy.election, &self.candidacy.session);
        let mut changes = self.app.elections.changes();
        let mut joined_again = false;
        // Refresh: the cached snapshot does not contain this candidate yet.
        let mut snapshot = self.app.elections.refresh(election).await?;
        loop {
            let entry = snapshot.elections.get(election).cloned();
            let decision = entry.as_ref().map(|entry| self.app.elections.decide(entry, session, runtime));
            let waits =
                |held, status| Ok(CampaignOutcome { unnamed: None, held, status, view: entry.clone() });
            let (status, until) =
                match decision.unwrap_or(CandidateDecision::Ineligible(Ineligibility::NotCandidate)) {
                    CandidateDecision::Holds { slot, token } if self.is_named(token, snapshot.epoch) => {
                        return waits(Some((slot, token)), CandidateStatus::Leading);
                    }
                    // The lease is from an earlier request whose response was lost, or from a later one that
                    // overtook this request. The server cannot tell which, so it neither reports the lease as led
                    // nor releases it.
                    CandidateDecision::Holds { slot, token } => {
                        let unnamed = Some((slot, token));
                        return Ok(CampaignOutcome {
                            unnamed,
                            held: None,
                            status: CandidateStatus::LeaseHeld,
                            view: entry,
                        });
                    }
                    CandidateDecision::Take(take) => {
                        if runtime.now() >= self.pointless {
                            return waits(None, CandidateStatus::Waiting);
                        }
                        if let Some(token) = self.app.store.take_lease(&take).await? {
                            return waits(Some((take.slot, token)), CandidateStatus::Leading);
                        }
                        if runtime.now() >= self.deadline {
                            return waits(None, CandidateStatus::Waiting);
                        }
                        snapshot = self.app.elections.refresh(election).await?;
                        continue;
                    }
                    CandidateDecision::Wait { until, ask: leader_request } => {
                        if let Some(leader_request) = leader_request {
                            self.app.store.request_leader(&leader_request).await?;
                        }
                        let holders = entry.iter().flat_map(|entry| entry.holders());
                        let holders: Vec<SessionId> = holders.map(|(_, holder)| holder.id.clone()).collect();
                        self.app.store.watch_sessions(&holders);
                        (CandidateStatus::Waiting, until)
                    }
                    CandidateDecision::Ineligible(Ineligibility::Paused) => (CandidateStatus::Paused, None),
                    CandidateDecision::Ineligible(Ineligibility::Observer) => {
                        return waits(None, CandidateStatus::Observing);
                    }
                    CandidateDecision::Ineligible(Ineligibility::NotCapable) => {
                        return waits(None, CandidateStatus::NotCapable);
                    }
                    // The snapshot was outdated, or the session has just expired. Join once more to find out.
                    CandidateDecision::Ineligible(_) if !joined_again => {
                        joined_again = true;
                        super::join(self.app, self.candidacy).await?;
                        snapshot = self.app.elections.refresh(election).await?;
                        continue;
                    }
                    CandidateDecision::Ineligible(_) => {
                        return Err(super::session_ended(session).field("session"));
                    }
                };
            if runtime.now() >= self.deadline {
                return waits(None, status);
            }
            self.permit.mark_as_stream()?;
            let silence = until.unwrap_or(self.deadline).min(self.deadline);
            tokio::select! {
                changed = changes.changed() => {
                    snapshot = self.app.elections.snapshot();
                    if changed.is_err() || self.app.elections.is_closed() {
                        return waits(None, status);
                    }
                }
                // Only a read that is sent after the heartbeat was due can show that a session is silent.
                () = runtime.sleep_until(silence) => snapshot = self.app.elections.refresh(election).await?,
            }
        }
    }

    /// Whether the client named this lease. A lease of another epoch may have been granted to another session
    /// since.
    fn is_named(&self, token: Token, epoch: u32) -> bool {
        self.named == Some(token) && token.epoch() == epoch
    }
}

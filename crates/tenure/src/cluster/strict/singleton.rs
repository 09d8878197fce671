//! One singleton of one process on a store: it campaigns, runs while it leads, stops on request, and hands its
//! state over.
//!
//! The store decides which process runs it. The priority of a candidate is its weight: the one with the highest
//! weight leads, and a new one with a higher weight preempts. The lease is released only when the run has
//! ended, so there are never two.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::port::{CandidateView, ElectionView, LeaderRequest, LeaderRequestKind};
use tenure_core::rules::cluster::{Handoff, acknowledge_handoff, incoming_handoff, priority};
use tenure_core::rules::election::{by_rank, is_eligible};
use tenure_core::{ElectionKey, Name, SessionId, Token};
use tokio::sync::watch;

use super::StrictBackend;
use crate::cluster::restarts::Restarts;
use crate::cluster::singleton::{SingletonFn, SingletonRun};
use crate::cluster::supervisor::{Settings, left};
use crate::{Elector, Error, Leadership, Tenure, metrics};

/// How long a state waits for the next run: half a lease, but at least this long.
const HANDOFF_WAIT: Duration = Duration::from_secs(3);

/// How long a member on which the singleton keeps failing lets others run it.
const RESTART_COOLDOWN: Duration = Duration::from_secs(60);

const GUARANTEE: &str = "fenced";

pub(crate) struct StrictSingleton {
    tenure: Tenure,
    key: ElectionKey,
    program: SingletonFn<StrictBackend>,
    settings: Settings,
    leave: watch::Receiver<bool>,
    elector: Elector,
    priority: i32,
    restarts: Restarts,
    /// The time until which other members should run the singleton.
    cooldown_until: Option<tenure_core::BootInstant>,
}

/// How a term ended.
enum SingletonTermEnd {
    /// Leadership was lost; the run was dropped.
    Lost,
    /// The run stopped on request.
    Finished(Option<Vec<u8>>),
}

impl StrictSingleton {
    /// Joins the election of the singleton.
    pub(crate) async fn begin(
        backend: &StrictBackend,
        name: Name,
        program: SingletonFn<StrictBackend>,
        settings: Settings,
        leave: watch::Receiver<bool>,
    ) -> Result<StrictSingleton, Error> {
        let tenure = backend.tenure.clone();
        let priority = priority(tenure.name(), settings.capacity, name.as_str());
        let elector = tenure
            .elector(name.as_str())
            .namespace(backend.namespace.as_str())
            .priority(priority)
            .grace(settings.grace)
            .start()
            .await?;
        let key = elector.election().clone();
        let restarts = Restarts::default();
        Ok(StrictSingleton {
            tenure,
            key,
            program,
            settings,
            leave,
            elector,
            priority,
            restarts,
            cooldown_until: None,
        })
    }

    pub(crate) async fn run(mut self) {
        let ended = self.run_terms().await;
        if let Err(error) = ended {
            tracing::warn!(singleton = %self.key.name, "singleton stopped on this member: {error}");
        }
        // A closed session has left all elections.
        let _ = self.elector.stop().await;
    }

    async fn run_terms(&mut self) -> Result<(), Error> {
        loop {
            let leadership = tokio::select! {
                biased;
                () = left(&mut self.leave) => return Ok(()),
                leadership = self.elector.elected() => leadership?,
                () = until(&self.tenure, self.cooldown_until) => {
                    self.cooldown_until = None;
                    let priority = self.priority;
                    self.log_failure(self.elector.change_options(|options| options.priority = priority).await);
                    continue;
                }
            };
            let state = tokio::select! {
                biased;
                _ = leadership.lost() => continue,
                state = self.receive(&leadership) => state,
            };
            match self.run_term(&leadership, state).await {
                SingletonTermEnd::Lost => drop(leadership),
                SingletonTermEnd::Finished(state) => self.hand_over(leadership, state).await,
            }
        }
    }

    /// Runs the singleton, again if it ends by itself, until it must stop or leadership is lost.
    async fn run_term(&mut self, leadership: &Leadership, mut state: Option<Vec<u8>>) -> SingletonTermEnd {
        let _counted = metrics::ActiveMetric::singleton(GUARANTEE);
        loop {
            let began = self.tenure.runtime().now();
            let name = self.key.name.clone();
            let mut run = SingletonRun::begin(&self.program, name, leadership.clone(), state.take());
            let end = self.wait_run(leadership, &mut run).await;
            let reason = match &end {
                Some(true) if self.stop_requested(leadership) => "stopped",
                Some(true) => "returned",
                Some(false) => "panicked",
                None => "lost",
            };
            metrics::singleton_ended(GUARANTEE, reason);
            match end {
                None => return SingletonTermEnd::Lost,
                Some(_) if self.stop_requested(leadership) => {
                    return SingletonTermEnd::Finished(run.into_state());
                }
                Some(_) => state = run.into_state(),
            }
            let pause = self.restarts.ended(began, self.tenure.runtime().now());
            tracing::warn!(singleton = %self.key.name, reason, "singleton ended; restarting in {pause:?}");
            self.yield_if_failing().await;
            tokio::select! {
                biased;
                _ = leadership.lost() => return SingletonTermEnd::Lost,
                _ = leadership.leader_request() => return SingletonTermEnd::Finished(state),
                () = left(&mut self.leave) => return SingletonTermEnd::Finished(state),
                () = until(&self.tenure, Some(self.tenure.runtime().now() + pause)) => {}
            }
        }
    }

    /// Waits for the end of a run. Returns whether it ended without a panic; `None` if it was dropped.
    async fn wait_run(&mut self, leadership: &Leadership, run: &mut SingletonRun) -> Option<bool> {
        let mut limit = None;
        loop {
            tokio::select! {
                biased;
                _ = leadership.lost() => return None,
                well = run.ended() => return Some(well),
                _ = leadership.leader_request(), if limit.is_none() => {}
                () = left(&mut self.leave), if limit.is_none() => {}
                () = until(&self.tenure, limit) => return None,
            }
            // The driver ends the term after the grace. A member that leaves without a leader request enforces
            // the grace itself.
            limit = Some(self.tenure.runtime().now() + self.settings.grace);
            run.finish();
        }
    }

    fn stop_requested(&self, leadership: &Leadership) -> bool {
        *self.leave.borrow() || leadership.has_leader_request()
    }

    /// Lowers the priority below all others for a while if the singleton failed too often: the next candidate
    /// preempts.
    async fn yield_if_failing(&mut self) {
        if self.restarts.give_up() {
            self.cooldown_until = Some(self.tenure.runtime().now() + RESTART_COOLDOWN);
            self.log_failure(self.elector.change_options(|options| options.priority = -1).await);
        }
    }

    // ---- handoff

    /// Reads the state that the previous term handed over, and acknowledges it.
    async fn receive(&self, leadership: &Leadership) -> Option<Vec<u8>> {
        let admin = self.tenure.election_admin();
        let read = async {
            let election = admin.election(&self.key).await?;
            Ok::<_, Error>((election, admin.term_history(&self.key, 4).await?))
        };
        let limit = Some(self.tenure.runtime().now() + self.handoff_wait());
        let observed = tokio::select! {
            observed = read => observed,
            () = until(&self.tenure, limit) => return None,
        };
        let (election, terms) = match observed {
            Ok((election, terms)) => (election?, terms),
            Err(error) => {
                tracing::warn!(singleton = %self.key.name, "reading handoff state failed, starting without: {error}");
                return None;
            }
        };
        let handoff = incoming_handoff(&election, &terms, leadership.token())?;
        metrics::handoff(GUARANTEE, "received");
        self.log_failure(
            self.elector
                .change_options(|options| {
                    options.metadata = BTreeMap::from([acknowledge_handoff(handoff.of)])
                })
                .await,
        );
        Some(handoff.state)
    }

    /// Publishes the state for the next leader, releases the lease, and waits until the next leader has taken the
    /// state.
    async fn hand_over(&mut self, leadership: Leadership, state: Option<Vec<u8>>) {
        let (is_leaving, of) = (*self.leave.borrow(), leadership.token());
        let Some(state) = state else { return };
        let next = match self.tenure.election_admin().election(&self.key).await {
            Ok(election) => election.as_ref().and_then(|election| successor(election, leadership.session())),
            Err(_) => None,
        };
        let Some(next) = next else { return metrics::handoff(GUARANTEE, "unclaimed") };
        let handoff = Handoff { of, state };
        let change = self.elector.change_options(|options| {
            // A leaving member stays as observer until the state is taken.
            options.observer |= is_leaving;
            // The size was checked when the state was set.
            let _ = handoff.write_to(&mut options.metadata);
        });
        if !self.log_failure(change.await) {
            return metrics::handoff(GUARANTEE, "failed");
        }
        if !leadership.has_leader_request() && !self.request_preemption(&leadership, next).await {
            return metrics::handoff(GUARANTEE, "failed");
        }
        drop(leadership);
        let result = if self.wait_acknowledged(of).await { "sent" } else { "unclaimed" };
        metrics::handoff(GUARANTEE, result);
        if !is_leaving {
            self.log_failure(self.elector.change_options(|options| options.metadata.clear()).await);
        }
    }

    /// Requests preemption of this process's own lease on behalf of the successor, and waits until the request
    /// arrives. Returns whether it did. The next term is then an ordinary one, which a member with a higher weight
    /// may preempt.
    async fn request_preemption(&self, leadership: &Leadership, next: SessionId) -> bool {
        let request = LeaderRequest {
            election: self.key.clone(),
            slot: leadership.slot(),
            token: leadership.token(),
            kind: LeaderRequestKind::Preempt(next),
            requested_by: self.tenure.name().to_owned(),
        };
        let delivered = self.tenure.store().request_leader(&request).await.unwrap_or(false);
        let limit = Some(self.tenure.runtime().now() + self.tenure.timing().heartbeat_interval() * 2);
        delivered
            && tokio::select! {
                _ = leadership.leader_request() => true,
                () = until(&self.tenure, limit) => false,
            }
    }

    /// Waits until the next run acknowledges the state of term `of`.
    async fn wait_acknowledged(&self, of: Token) -> bool {
        let (key, value) = acknowledge_handoff(of);
        let acknowledges = |candidate: &CandidateView| candidate.metadata.get(&key) == Some(&value);
        let mut views = self.elector.views();
        let observed =
            views.wait_for(|view| view.as_ref().is_some_and(|view| view.candidates.iter().any(acknowledges)));
        tokio::select! {
            observed = observed => observed.is_ok(),
            () = until(&self.tenure, Some(self.tenure.runtime().now() + self.handoff_wait())) => false,
        }
    }

    fn handoff_wait(&self) -> Duration {
        HANDOFF_WAIT.max(self.tenure.timing().lease() / 2)
    }

    /// Logs a failed change of the candidate options. Returns whether it succeeded.
    fn log_failure(&self, outcome: Result<(), Error>) -> bool {
        if let Err(error) = &outcome {
            tracing::warn!(singleton = %self.key.name, "{error}");
        }
        outcome.is_ok()
    }
}

/// Returns the live, eligible candidate that would lead next, other than `me`.
fn successor(election: &ElectionView, me: &SessionId) -> Option<SessionId> {
    let others = election.candidates.iter().filter(|candidate| {
        candidate.session.id != *me
            && candidate.session.live
            && is_eligible(candidate, &election.required_capabilities)
    });
    others.min_by(|a, b| by_rank(a, b)).map(|candidate| candidate.session.id.clone())
}

/// Completes at the given time; never for `None`.
async fn until(tenure: &Tenure, at: Option<tenure_core::BootInstant>) {
    match at {
        Some(at) => tenure.runtime().sleep_until(at).await,
        None => std::future::pending().await,
    }
}

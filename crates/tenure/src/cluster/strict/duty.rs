//! One singleton of one process: it stands, runs while it leads, finishes when it is asked, and hands its state on.
//!
//! The store decides who runs it: the candidate with the greatest weight, which is its priority, leads, and one that comes takes
//! over by asking. The lease is given back only when nothing of a run is left; so there are never two.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::cluster::{Handoff, priority, received, took};
use tenure_core::election::{by_rank, may_lead};
use tenure_core::port::{Ask, AskKind, CandidateView, ElectionView};
use tenure_core::{ElectionKey, Name, SessionId, Token};
use tokio::sync::watch;

use super::Strict;
use crate::cluster::restarts::Restarts;
use crate::cluster::singleton::{Program, Run};
use crate::cluster::supervisor::{Settings, left};
use crate::{Elector, Error, Leadership, Tenure, metrics};

/// For how long a state waits for who runs the singleton next: half a lease, but no less than this.
const HANDOFF_WAIT: Duration = Duration::from_secs(3);

/// For how long a member at which a singleton ends again and again lets others try.
const PENANCE: Duration = Duration::from_secs(60);

const FOOTING: &str = "strict";

pub(crate) struct Duty {
    tenure: Tenure,
    key: ElectionKey,
    program: Program<Strict>,
    settings: Settings,
    left: watch::Receiver<bool>,
    elector: Elector,
    priority: i32,
    restarts: Restarts,
    /// Until when others are to try.
    penance: Option<tenure_core::Moment>,
}

/// How a time in office ended.
enum End {
    /// It is not ours any more; what ran was dropped.
    Lost,
    /// It was to finish, and has.
    Finished(Option<Vec<u8>>),
}

impl Duty {
    /// Stands.
    pub(crate) async fn begin(
        on: &Strict,
        name: Name,
        program: Program<Strict>,
        settings: Settings,
        left: watch::Receiver<bool>,
    ) -> Result<Duty, Error> {
        let tenure = on.tenure.clone();
        let priority = priority(tenure.name(), settings.capacity, name.as_str());
        let elector = tenure
            .elector(name.as_str())
            .namespace(on.namespace.as_str())
            .priority(priority)
            .grace(settings.grace)
            .start()
            .await?;
        let key = elector.election().clone();
        let restarts = Restarts::default();
        Ok(Duty { tenure, key, program, settings, left, elector, priority, restarts, penance: None })
    }

    pub(crate) async fn run(mut self) {
        let ended = self.serve().await;
        if let Err(error) = ended {
            tracing::warn!(singleton = %self.key.name, "does not run here any more: {error}");
        }
        // A session that is closed has left everything.
        let _ = self.elector.stop().await;
    }

    async fn serve(&mut self) -> Result<(), Error> {
        loop {
            let leadership = tokio::select! {
                biased;
                () = left(&mut self.left) => return Ok(()),
                leadership = self.elector.elected() => leadership?,
                () = until(&self.tenure, self.penance) => {
                    self.penance = None;
                    let priority = self.priority;
                    self.said(self.elector.restand(|stand| stand.priority = priority).await);
                    continue;
                }
            };
            let state = tokio::select! {
                biased;
                _ = leadership.lost() => continue,
                state = self.receive(&leadership) => state,
            };
            match self.hold(&leadership, state).await {
                End::Lost => drop(leadership),
                End::Finished(state) => self.hand_over(leadership, state).await,
            }
        }
    }

    /// Runs the singleton, again if it ends by itself, until it is to finish or not ours any more.
    async fn hold(&mut self, leadership: &Leadership, mut state: Option<Vec<u8>>) -> End {
        let _counted = metrics::Counted::singleton(FOOTING);
        loop {
            let began = self.tenure.runtime().now();
            let name = self.key.name.clone();
            let mut run = Run::begin(&self.program, name, leadership.clone(), state.take());
            let end = self.attend(leadership, &mut run).await;
            let word = match &end {
                Some(true) if self.is_over(leadership) => "asked",
                Some(true) => "returned",
                Some(false) => "panicked",
                None => "lost",
            };
            metrics::singleton_ended(FOOTING, word);
            match end {
                None => return End::Lost,
                Some(_) if self.is_over(leadership) => return End::Finished(run.into_state()),
                Some(_) => state = run.into_state(),
            }
            let pause = self.restarts.ended(began, self.tenure.runtime().now());
            tracing::warn!(singleton = %self.key.name, how = word, "ended by itself; again in {pause:?}");
            self.let_others_try().await;
            tokio::select! {
                biased;
                _ = leadership.lost() => return End::Lost,
                _ = leadership.asked() => return End::Finished(state),
                () = left(&mut self.left) => return End::Finished(state),
                () = until(&self.tenure, Some(self.tenure.runtime().now() + pause)) => {}
            }
        }
    }

    /// Waits for the end of a run. Whether it ended well; `None` if it was dropped.
    async fn attend(&mut self, leadership: &Leadership, run: &mut Run) -> Option<bool> {
        let mut limit = None;
        loop {
            tokio::select! {
                biased;
                _ = leadership.lost() => return None,
                well = run.ended() => return Some(well),
                _ = leadership.asked(), if limit.is_none() => {}
                () = left(&mut self.left), if limit.is_none() => {}
                () = until(&self.tenure, limit) => return None,
            }
            // The driver ends the term when the grace is over; who leaves without being asked counts by itself.
            limit = Some(self.tenure.runtime().now() + self.settings.grace);
            run.finish();
        }
    }

    fn is_over(&self, leadership: &Leadership) -> bool {
        *self.left.borrow() || leadership.is_asked()
    }

    /// Stands behind all others for a while, if the singleton ended too often: whoever comes next asks for it.
    async fn let_others_try(&mut self) {
        if self.restarts.give_up() {
            self.penance = Some(self.tenure.runtime().now() + PENANCE);
            self.said(self.elector.restand(|stand| stand.priority = -1).await);
        }
    }

    // ---- the state

    /// What the holder of the term before ours handed on. Says so, if there is something.
    async fn receive(&self, leadership: &Leadership) -> Option<Vec<u8>> {
        let directory = self.tenure.directory();
        let look = async {
            let election = directory.election(&self.key).await?;
            Ok::<_, Error>((election, directory.history(&self.key, 4).await?))
        };
        let limit = Some(self.tenure.runtime().now() + self.handoff_wait());
        let seen = tokio::select! {
            seen = look => seen,
            () = until(&self.tenure, limit) => return None,
        };
        let (election, terms) = match seen {
            Ok((election, terms)) => (election?, terms),
            Err(error) => {
                tracing::warn!(singleton = %self.key.name, "begins without a state: {error}");
                return None;
            }
        };
        let handoff = received(&election, &terms, leadership.token())?;
        metrics::handoff(FOOTING, "received");
        self.said(self.elector.restand(|stand| stand.metadata = BTreeMap::from([took(handoff.of)])).await);
        Some(handoff.state)
    }

    /// Gives the lease back, and the state to whoever has it next.
    async fn hand_over(&mut self, leadership: Leadership, state: Option<Vec<u8>>) {
        let (leaves, of) = (*self.left.borrow(), leadership.token());
        let Some(state) = state else { return };
        let next = match self.tenure.directory().election(&self.key).await {
            Ok(election) => election.as_ref().and_then(|election| successor(election, leadership.session())),
            Err(_) => None,
        };
        let Some(next) = next else { return metrics::handoff(FOOTING, "unclaimed") };
        let handoff = Handoff { of, state };
        let said = self.elector.restand(|stand| {
            // Who leaves stays until it is taken, and is not to lead again.
            stand.observer |= leaves;
            // Checked when it was left.
            let _ = handoff.say(&mut stand.metadata);
        });
        if !self.said(said.await) {
            return metrics::handoff(FOOTING, "failed");
        }
        if !leadership.is_asked() && !self.ask(&leadership, next).await {
            return metrics::handoff(FOOTING, "failed");
        }
        drop(leadership);
        let result = if self.taken(of).await { "given" } else { "unclaimed" };
        metrics::handoff(FOOTING, result);
        if !leaves {
            self.said(self.elector.restand(|stand| stand.metadata.clear()).await);
        }
    }

    /// Asks for our own lease on behalf of the next one, as it would itself: so that the term after ours is an ordinary one, which
    /// a heavier member may ask for again.
    async fn ask(&self, leadership: &Leadership, next: SessionId) -> bool {
        let ask = Ask {
            election: self.key.clone(),
            slot: leadership.slot(),
            token: leadership.token(),
            kind: AskKind::Preempt(next),
            by: self.tenure.name().to_owned(),
        };
        let asked = self.tenure.store().ask(&ask).await.unwrap_or(false);
        let limit = Some(self.tenure.runtime().now() + self.tenure.timing().beat() * 2);
        asked
            && tokio::select! {
                _ = leadership.asked() => true,
                () = until(&self.tenure, limit) => false,
            }
    }

    /// Waits until whoever runs it next says that it has what the term `of` left.
    async fn taken(&self, of: Token) -> bool {
        let (key, value) = took(of);
        let says = |candidate: &CandidateView| candidate.metadata.get(&key) == Some(&value);
        let mut views = self.elector.views();
        let seen = views.wait_for(|view| view.as_ref().is_some_and(|view| view.candidates.iter().any(says)));
        tokio::select! {
            seen = seen => seen.is_ok(),
            () = until(&self.tenure, Some(self.tenure.runtime().now() + self.handoff_wait())) => false,
        }
    }

    fn handoff_wait(&self) -> Duration {
        HANDOFF_WAIT.max(self.tenure.timing().lease() / 2)
    }

    /// Whether something was said; if not, why.
    fn said(&self, outcome: Result<(), Error>) -> bool {
        if let Err(error) = &outcome {
            tracing::warn!(singleton = %self.key.name, "{error}");
        }
        outcome.is_ok()
    }
}

/// The best of the others.
fn successor(election: &ElectionView, me: &SessionId) -> Option<SessionId> {
    let others = election.candidates.iter().filter(|candidate| {
        candidate.session.id != *me && candidate.session.live && may_lead(candidate, &election.requires)
    });
    others.min_by(|a, b| by_rank(a, b)).map(|candidate| candidate.session.id.clone())
}

/// Completes then; never without a moment.
async fn until(tenure: &Tenure, at: Option<tenure_core::Moment>) {
    match at {
        Some(at) => tenure.runtime().sleep_until(at).await,
        None => std::future::pending().await,
    }
}

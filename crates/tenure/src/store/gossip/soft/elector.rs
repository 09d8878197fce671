//! Candidates of soft elections.

use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::{Arc, PoisonError};

use futures_core::Stream;
use futures_util::StreamExt;
use tenure_core::rules::soft::{Rank, SoftCandidate, SoftCandidateState};
use tenure_core::{BootInstant, ElectionKey, Name};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::WatchStream;

use super::leadership::{SoftLeadership, SoftTerm, SoftTermEnd};
use super::view::{self, SoftCandidacy, SoftElectionView};
use crate::store::gossip::{Gossip, Shared};
use crate::{Error, metrics, runtime};

/// Settings of a soft candidate. See [`Gossip::elector`].
#[must_use = "the candidate takes part only after `start`"]
pub struct SoftElectorBuilder {
    gossip: Gossip,
    namespace: String,
    name: String,
    priority: i32,
}

/// A candidate of a soft election. It takes part until it is dropped.
///
/// ```
/// # use tenure::store::gossip::{Gossip, GossipOptions};
/// # use tenure_core::rules::soft::GossipTiming; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let ms = Duration::from_millis;
/// # let options = GossipOptions::new("127.0.0.1:0").timing(GossipTiming::new(ms(10), ms(500), ms(50)).unwrap());
/// let gossip = Gossip::join(options).await?;
/// let done = gossip
///     .elector("cache-warmer")
///     .priority(10)
///     .start()
///     .await?
///     .run_while_leader(|soft| async move { format!("warmed for {}", soft.election()) })
///     .await?;
/// assert_eq!(done, "warmed for cache-warmer");
/// # gossip.leave().await;
/// # Ok(()) }
/// ```
pub struct SoftElector {
    gossip: Gossip,
    handle: Arc<SoftCandidateHandle>,
}

/// Message to the task of a candidate.
pub(super) enum SoftElectorMessage {
    Resign,
    WorkEnded,
    Withdraw,
}

/// Withdraws a candidate.
pub(in crate::store::gossip) struct SoftWithdrawHandle(mpsc::UnboundedSender<SoftElectorMessage>);

impl SoftWithdrawHandle {
    pub(in crate::store::gossip) fn withdraw(&self) {
        // The send fails only if the candidate has ended already.
        let _ = self.0.send(SoftElectorMessage::Withdraw);
    }
}

struct SoftCandidateHandle {
    key: ElectionKey,
    /// The current term while this process leads. Closed when the candidate has withdrawn.
    term: watch::Sender<Option<Arc<SoftTerm>>>,
    state: watch::Sender<SoftCandidateState>,
    messages: mpsc::UnboundedSender<SoftElectorMessage>,
}

impl SoftElectorBuilder {
    pub(in crate::store::gossip) fn new(gossip: Gossip, name: String) -> Self {
        let namespace = Name::default_namespace().to_string();
        SoftElectorBuilder { gossip, namespace, name, priority: 0 }
    }

    /// Set the namespace; default `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Set the priority; default 0. The live candidate with the highest priority leads. Among equal priorities the
    /// longest-standing candidate leads.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Start to take part in the election.
    pub async fn start(self) -> Result<SoftElector, Error> {
        let key = ElectionKey::new(self.namespace.parse()?, self.name.parse()?);
        let shared = self.gossip.shared().clone();
        let (messages, received) = mpsc::unbounded_channel();
        match shared.candidacies.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()) {
            Entry::Occupied(_) => return Err(Error::AlreadyCandidate(key)),
            Entry::Vacant(slot) => slot.insert(SoftWithdrawHandle(messages.clone())),
        };
        let handle = Arc::new(SoftCandidateHandle {
            key: key.clone(),
            term: watch::Sender::new(None),
            state: watch::Sender::new(SoftCandidateState::Candidate),
            messages,
        });
        let mut task = SoftElectorTask::new(shared, handle.clone(), self.priority);
        // From here on, dropping the elector withdraws the candidate.
        let elector = SoftElector { gossip: self.gossip, handle };
        if let Err(error) = task.publish(SoftCandidateState::Candidate).await {
            task.remove_candidacy();
            return Err(error);
        }
        tokio::spawn(task.run(received));
        Ok(elector)
    }
}

impl SoftElector {
    /// Key of the election.
    pub fn election(&self) -> &ElectionKey {
        &self.handle.key
    }

    /// Whether this process leads now, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.handle.term.borrow().as_ref().is_some_and(|term| term.is_leader())
    }

    /// State of this candidate.
    pub fn state(&self) -> SoftCandidateState {
        *self.handle.state.borrow()
    }

    /// The leadership of this process, if it leads now. Work counts as running while the handle exists.
    pub fn leadership(&self) -> Option<SoftLeadership> {
        self.handle.term.borrow().as_ref().and_then(SoftTerm::lead)
    }

    /// Wait until this process leads.
    pub async fn elected(&self) -> Result<SoftLeadership, Error> {
        let mut term = self.handle.term.subscribe();
        let mut updates = self.gossip.shared().updates.subscribe();
        loop {
            if let Some(leadership) = term.borrow_and_update().as_ref().and_then(SoftTerm::lead) {
                return Ok(leadership);
            }
            if updates.borrow_and_update().is_none() {
                return Err(Error::Closed);
            }
            tokio::select! {
                changed = term.changed() => changed.map_err(|_| Error::Closed)?,
                changed = updates.changed() => changed.map_err(|_| Error::Closed)?,
            }
        }
    }

    /// The election as this process sees it.
    pub fn view(&self) -> SoftElectionView {
        view::election(&self.gossip.roster(), &self.handle.key)
    }

    /// Stream of views of the election: the current one, then one after each change.
    pub fn watch(&self) -> impl Stream<Item = SoftElectionView> + Send + Unpin + use<> {
        let (key, mut last) = (self.handle.key.clone(), None);
        let views = self.gossip.watch().map(move |roster| view::election(&roster, &key));
        Box::pin(views.filter_map(move |view| {
            let changed = last.as_ref() != Some(&view);
            last = Some(view.clone());
            std::future::ready(changed.then_some(view))
        }))
    }

    /// Stream of states of this candidate: the current one, then one after each change.
    pub fn states(&self) -> impl Stream<Item = SoftCandidateState> + Send + Unpin + use<> {
        WatchStream::new(self.handle.state.subscribe())
    }

    /// Run `work` whenever this process leads, until it returns. The future is dropped when leadership is lost and
    /// started again in the next term.
    pub async fn run_while_leader<F, T>(self, mut work: impl FnMut(SoftLeadership) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        loop {
            let leadership = self.elected().await?;
            let outcome = tokio::select! {
                biased;
                _ = leadership.lost() => None,
                outcome = work(leadership.clone()) => Some(outcome),
            };
            drop(leadership);
            if let Some(outcome) = outcome {
                self.stop().await;
                return Ok(outcome);
            }
        }
    }

    /// Withdraw. Completes when the withdrawal is published and no work is running.
    pub async fn stop(self) {
        let _ = self.handle.messages.send(SoftElectorMessage::Withdraw);
        self.handle.messages.closed().await;
    }
}

impl Drop for SoftElector {
    fn drop(&mut self) {
        // The send fails only if the candidate has ended already.
        let _ = self.handle.messages.send(SoftElectorMessage::Withdraw);
    }
}

/// The task of a candidate.
struct SoftElectorTask {
    shared: Arc<Shared>,
    handle: Arc<SoftCandidateHandle>,
    candidate: SoftCandidate,
    /// The last term, until its work has ended.
    term: Option<Arc<SoftTerm>>,
    published: Option<SoftCandidateState>,
    /// Rejoin as the newest candidate once the work has ended.
    rejoins: bool,
    evaluated_at: BootInstant,
}

impl SoftElectorTask {
    fn new(shared: Arc<Shared>, handle: Arc<SoftCandidateHandle>, priority: i32) -> Self {
        let rank = Rank { priority, generation: shared.generation, id: shared.id.clone() };
        let now = runtime::now();
        let candidate = SoftCandidate::new(rank, shared.timing, now);
        SoftElectorTask {
            shared,
            handle,
            candidate,
            term: None,
            published: None,
            rejoins: false,
            evaluated_at: now,
        }
    }

    async fn run(mut self, mut received: mpsc::UnboundedReceiver<SoftElectorMessage>) {
        let mut updates = self.shared.updates.subscribe();
        loop {
            tokio::select! {
                message = received.recv() => match message {
                    Some(SoftElectorMessage::Resign) => self.resign(),
                    Some(SoftElectorMessage::WorkEnded) => {}
                    Some(SoftElectorMessage::Withdraw) | None => break,
                },
                changed = updates.changed() => if changed.is_err() { break },
            }
            let Some(now) = *updates.borrow_and_update() else { break };
            self.evaluate(now).await;
        }
        self.end(SoftTermEnd::Resigned);
        while self.term.as_ref().is_some_and(|term| term.has_workers()) {
            received.recv().await;
        }
        let _ = self.shared.remove(&view::entry_key(&self.handle.key)).await;
        self.remove_candidacy();
    }

    /// Evaluate the roster as of `now`.
    async fn evaluate(&mut self, now: BootInstant) {
        let roster = self.shared.roster.borrow().clone();
        let observation = view::observation(&roster, &self.shared.id, &view::entry_key(&self.handle.key));
        let contested = observation.rivals.values().any(|rival| rival.state == SoftCandidateState::Leading);
        let led = self.candidate.state() == SoftCandidateState::Leading;
        let state = self.candidate.observe(now, observation);
        if led && contested {
            metrics::soft_conflict(&self.handle.key, now.since(self.evaluated_at));
        }
        if led && state != SoftCandidateState::Leading {
            self.end(if state == SoftCandidateState::Ready {
                SoftTermEnd::Outranked
            } else {
                SoftTermEnd::TrustExpired
            });
        }
        self.evaluated_at = now;
        let working = self.term.as_ref().is_some_and(|term| term.has_workers());
        if self.rejoins && !working {
            self.rejoin(now);
        }
        match self.candidate.trusted_until() {
            Some(until) if self.is_leading() => self.term.iter().for_each(|term| term.trust(until)),
            // Work of the last term must end before a new term starts.
            Some(until) if !working && !self.rejoins => self.begin(until).await,
            _ => {}
        }
        // While work is running, other members must see this process as leader.
        let published_state = match self.candidate.state() {
            _ if working || self.is_leading() => SoftCandidateState::Leading,
            // The candidate would lead, but its state could not be published.
            SoftCandidateState::Leading => SoftCandidateState::Ready,
            state => state,
        };
        if let Err(error) = self.publish(published_state).await {
            tracing::debug!(%error, election = %self.handle.key, "soft candidate state not published");
        }
    }

    fn is_leading(&self) -> bool {
        self.handle.term.borrow().is_some()
    }

    async fn begin(&mut self, until: BootInstant) {
        // Published before any work starts.
        if self.publish(SoftCandidateState::Leading).await.is_err() {
            return;
        }
        let term = SoftTerm::new(self.handle.key.clone(), until, self.handle.messages.clone());
        self.term = Some(term.clone());
        self.handle.term.send_replace(Some(term));
        metrics::soft_leads(&self.handle.key, true);
    }

    fn end(&mut self, why: SoftTermEnd) {
        if let Some(term) = self.handle.term.send_replace(None) {
            term.end(why);
            metrics::soft_leads(&self.handle.key, false);
        }
    }

    fn resign(&mut self) {
        if self.is_leading() {
            self.end(SoftTermEnd::Resigned);
            self.rejoins = true;
        }
    }

    /// Rejoin behind all candidates of the same priority.
    fn rejoin(&mut self, now: BootInstant) {
        self.rejoins = false;
        let generation =
            u64::try_from(runtime::wall_ms()).unwrap_or(0).max(self.candidate.rank().generation + 1);
        let rank = Rank { generation, ..self.candidate.rank().clone() };
        self.candidate = SoftCandidate::new(rank, self.shared.timing, now);
    }

    async fn publish(&mut self, state: SoftCandidateState) -> Result<(), Error> {
        if self.published == Some(state) {
            return Ok(());
        }
        let rank = self.candidate.rank();
        let candidacy = SoftCandidacy {
            priority: rank.priority,
            generation: rank.generation,
            state,
            since_ms: runtime::wall_ms(),
        };
        let value = serde_json::to_string(&candidacy).unwrap_or_default();
        self.shared.put(&view::entry_key(&self.handle.key), &value).await?;
        self.published = Some(state);
        self.handle.state.send_replace(state);
        Ok(())
    }

    fn remove_candidacy(&self) {
        self.shared.candidacies.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.handle.key);
    }
}

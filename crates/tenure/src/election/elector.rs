//! Candidates of elections.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use tenure_core::port::{CandidateView, ElectionView, LeaderRequestKind};
use tenure_core::rules::lease::{CandidateOptions, LossReason};
use tenure_core::{ElectionKey, Name, Token};
use tokio::sync::{broadcast, oneshot, watch};
use tokio_stream::wrappers::BroadcastStream;

use crate::callback::contained;
use crate::election::leadership::{ActiveTerm, Leadership, TermEnd};
use crate::session::driver::DriverMessage;
use crate::{Error, Tenure};

/// Changes buffered for a slow watcher before some are dropped.
const CHANGES_BUFFERED: usize = 256;

type OnElected = Box<dyn Fn(&Leadership) + Send + Sync>;
type OnLost = Box<dyn Fn(TermEnd) + Send + Sync>;

/// The maximum number of slots of an election.
pub const SLOTS_MAX: u32 = 1000;

/// A candidate of one election. It campaigns by itself until it is stopped or dropped.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
///
/// let done = tenure
///     .elector("nightly")
///     .priority(100)
///     .start()
///     .await?
///     .run_while_leader(|leadership| async move {
///         // At most one process runs this at any moment. Dropped if leadership is lost.
///         format!("ran under token {}", leadership.token())
///     })
///     .await?;
/// assert_eq!(done, "ran under token 1");
/// # tenure.close().await }
/// ```
pub struct Elector {
    tenure: Tenure,
    handle: Arc<CandidateHandle>,
    /// Current options of the candidate.
    options: tokio::sync::Mutex<CandidateOptions>,
    /// Whether dropping this handle withdraws the candidate.
    withdraw_on_drop: bool,
}

/// Settings of a candidate before it campaigns. See [`Tenure::elector`].
#[must_use = "the candidate campaigns only after `start`"]
pub struct ElectorBuilder {
    tenure: Tenure,
    namespace: String,
    name: String,
    candidate_name: Option<String>,
    priority: i32,
    observer: bool,
    capabilities: Vec<String>,
    required_capabilities: Vec<String>,
    slots: u32,
    metadata: BTreeMap<String, String>,
    grace: Duration,
    on_elected: Option<OnElected>,
    on_lost: Option<OnLost>,
}

/// State of this candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElectorStatus {
    /// This process leads.
    Leader,
    /// Another candidate leads.
    Follower,
    /// No leader is known, and this candidate may lead.
    Candidate,
    /// This candidate watches and never leads.
    Observer,
    /// The election is paused: it has no leader until it is resumed.
    Paused,
}

/// A leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderInfo {
    /// Name of the candidate.
    pub name: String,
    /// Token of its lease.
    pub token: Token,
    /// Slot that it holds.
    pub slot: u32,
}

/// A change of an election.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ElectionChange {
    /// This process became the leader.
    Elected {
        /// The token.
        token: Token,
        /// The slot.
        slot: u32,
    },
    /// This process received a leader request.
    LeaderRequest(LeaderRequestKind),
    /// This process lost leadership.
    Lost {
        /// The token.
        token: Token,
        /// The reason.
        why: LossReason,
    },
    /// This process released the lease.
    Released {
        /// The token.
        token: Token,
    },
    /// The leaders, the candidates or the pause of the election changed.
    Updated(Arc<ElectionView>),
}

/// State that the driver and an elector share about one election.
pub(crate) struct CandidateHandle {
    pub(crate) key: ElectionKey,
    pub(crate) grace: Duration,
    observer: bool,
    term: watch::Sender<Option<Arc<ActiveTerm>>>,
    view: watch::Sender<Option<Arc<ElectionView>>>,
    changes: broadcast::Sender<ElectionChange>,
    /// Why this candidate cannot continue, if so.
    failure: Mutex<Option<Error>>,
}

impl CandidateHandle {
    /// Records that the candidate cannot continue, and wakes callers that wait to be elected.
    pub(crate) fn fail(&self, error: Error) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.term.send_modify(|_| {});
    }

    fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn publish_term(&self, term: Option<Arc<ActiveTerm>>) {
        self.term.send_replace(term);
    }

    pub(crate) fn terms(&self) -> watch::Receiver<Option<Arc<ActiveTerm>>> {
        self.term.subscribe()
    }

    pub(crate) fn views(&self) -> watch::Receiver<Option<Arc<ElectionView>>> {
        self.view.subscribe()
    }

    pub(crate) fn observed(&self, view: ElectionView) {
        let view = Arc::new(view);
        self.view.send_replace(Some(view.clone()));
        self.changed(ElectionChange::Updated(view));
    }

    pub(crate) fn changed(&self, change: ElectionChange) {
        // Without a watcher, the send fails; that is fine.
        let _ = self.changes.send(change);
    }
}

impl ElectorBuilder {
    pub(crate) fn new(tenure: Tenure, name: String) -> Self {
        ElectorBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            name,
            candidate_name: None,
            priority: 0,
            observer: false,
            capabilities: Vec::new(),
            required_capabilities: Vec::new(),
            slots: 1,
            metadata: BTreeMap::new(),
            grace: Duration::from_secs(5),
            on_elected: None,
            on_lost: None,
        }
    }

    /// Namespace of the election; `default` unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Name of this candidate for operators; the name of the process unless set. Need not be unique.
    pub fn candidate_name(mut self, name: impl Into<String>) -> Self {
        self.candidate_name = Some(name.into());
        self
    }

    /// Priority; 0 unless set. The live candidate with the highest priority leads. A later one of higher
    /// priority preempts the leader.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Watch only, and never lead.
    pub fn observer(mut self, observer: bool) -> Self {
        self.observer = observer;
        self
    }

    /// Capabilities of this candidate.
    pub fn capabilities<S: Into<String>>(mut self, capabilities: impl IntoIterator<Item = S>) -> Self {
        self.capabilities = capabilities.into_iter().map(Into::into).collect();
        self
    }

    /// Capabilities that the leader of this election must have. A candidate without them never leads.
    pub fn required_capabilities<S: Into<String>>(mut self, required: impl IntoIterator<Item = S>) -> Self {
        self.required_capabilities = required.into_iter().map(Into::into).collect();
        self
    }

    /// Number of concurrent leaders (a semaphore). All candidates must use the same number.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Adds information about this candidate for operators.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// How long a leader may continue after a leader request; five seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets a callback for when this process becomes the leader. If it panics, the panic is logged and counted,
    /// `on_lost` is called, and this process resigns. The callback is called again in the next term, after a
    /// backoff if it keeps panicking.
    pub fn on_elected(mut self, callback: impl Fn(&Leadership) + Send + Sync + 'static) -> Self {
        self.on_elected = Some(Box::new(callback));
        self
    }

    /// Sets a callback for when this process must stop leading: it lost leadership, or received a leader
    /// request. The lease is released only after the callback has returned. A panic in it is logged and
    /// counted.
    pub fn on_lost(mut self, callback: impl Fn(TermEnd) + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Box::new(callback));
        self
    }

    /// Joins the election. Completes when the store has the candidate.
    ///
    /// Fails with [`Error::AlreadyCandidate`] if this process is already a candidate of the election, and with
    /// [`Error::Slots`] if the election has a different number of slots. If the future is dropped, the candidate is
    /// withdrawn.
    pub async fn start(self) -> Result<Elector, Error> {
        let key = ElectionKey::new(self.namespace.parse()?, self.name.parse()?);
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return Err(Error::SlotCount(self.slots));
        }
        let options = CandidateOptions {
            election: key.clone(),
            name: self.candidate_name.unwrap_or_else(|| self.tenure.name().to_owned()),
            priority: self.priority,
            observer: self.observer,
            capabilities: self.capabilities,
            required_capabilities: self.required_capabilities,
            slots: self.slots,
            metadata: self.metadata,
        };
        let handle = Arc::new(CandidateHandle {
            key,
            grace: self.grace,
            observer: self.observer,
            term: watch::Sender::new(None),
            view: watch::Sender::new(None),
            changes: broadcast::Sender::new(CHANGES_BUFFERED),
            failure: Mutex::new(None),
        });
        let (reply, joined) = oneshot::channel();
        let shared_options = tokio::sync::Mutex::new(options.clone());
        self.tenure.send(DriverMessage::Campaign { options, handle: handle.clone(), reply })?;
        // Only a candidate that has joined is withdrawn when its elector is dropped. If this future is dropped
        // earlier, the driver cannot deliver its reply and withdraws the candidate.
        joined.await.map_err(|_| Error::Closed)??;
        let elector =
            Elector { tenure: self.tenure, handle, options: shared_options, withdraw_on_drop: true };
        if self.on_elected.is_some() || self.on_lost.is_some() {
            elector.spawn_callbacks(self.on_elected, self.on_lost);
        }
        Ok(elector)
    }
}

impl Elector {
    /// The election.
    pub fn election(&self) -> &ElectionKey {
        &self.handle.key
    }

    pub(crate) fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Whether this process leads *now*. Every call compares the clock.
    pub fn is_leader(&self) -> bool {
        self.handle.term.borrow().as_ref().is_some_and(|term| term.is_leader())
    }

    /// State of this candidate.
    pub fn status(&self) -> ElectorStatus {
        if self.is_leader() {
            return ElectorStatus::Leader;
        }
        match self.view() {
            Some(view) if view.paused.is_some() => ElectorStatus::Paused,
            _ if self.handle.observer => ElectorStatus::Observer,
            Some(view) if view.holders().next().is_some() => ElectorStatus::Follower,
            _ => ElectorStatus::Candidate,
        }
    }

    /// The leadership of this process, if it leads now. Holding it counts as work in progress.
    pub fn leadership(&self) -> Option<Leadership> {
        self.handle.term.borrow().as_ref().and_then(ActiveTerm::lead)
    }

    /// Waits until this process leads. Skips a term that is about to finish and waits for the next one.
    ///
    /// Fails with [`Error::Closed`] if the session is closed, or with the error that ended the candidacy.
    pub async fn elected(&self) -> Result<Leadership, Error> {
        let mut term = self.handle.term.subscribe();
        loop {
            if let Some(leadership) = term.borrow_and_update().as_ref().and_then(ActiveTerm::begin) {
                return Ok(leadership);
            }
            if let Some(error) = self.handle.failure() {
                return Err(error);
            }
            if self.tenure.is_closed() {
                return Err(Error::Closed);
            }
            tokio::select! {
                changed = term.changed() => changed.map_err(|_| Error::Closed)?,
                () = self.tenure.closed() => return Err(Error::Closed),
            }
        }
    }

    /// The election as this process last observed it.
    pub fn view(&self) -> Option<Arc<ElectionView>> {
        self.handle.view.borrow().clone()
    }

    /// Reads the leaders from the store. An election with several slots can have several.
    pub async fn leaders(&self) -> Result<Vec<LeaderInfo>, Error> {
        let view = self.tenure.election_admin().election(&self.handle.key).await?;
        Ok(view.as_ref().map(leaders).unwrap_or_default())
    }

    /// Reads the leader of the lowest slot from the store.
    pub async fn leader(&self) -> Result<Option<LeaderInfo>, Error> {
        Ok(self.leaders().await?.into_iter().next())
    }

    /// Reads all candidates from the store, in the order in which they would lead.
    pub async fn candidates(&self) -> Result<Vec<CandidateView>, Error> {
        let view = self.tenure.election_admin().election(&self.handle.key).await?;
        let mut candidates = view.map(|view| view.candidates).unwrap_or_default();
        candidates.sort_by(tenure_core::rules::election::by_rank);
        Ok(candidates)
    }

    /// Stream of changes from now on. A watcher that falls far behind misses some.
    pub fn watch(&self) -> impl Stream<Item = ElectionChange> + Send + Unpin + use<> {
        let changes = BroadcastStream::new(self.handle.changes.subscribe());
        Box::pin(changes.filter_map(|change| async move { change.ok() }))
    }

    /// Runs `work` whenever this process leads, until it returns.
    ///
    /// The future of `work` is dropped when leadership is lost, or when the grace after a leader request is
    /// over; then the process campaigns again. The lease is released only after the future has returned or been
    /// dropped. When it returns, the candidate leaves the election. When it panics, the candidate leaves as
    /// well, and the panic continues to the caller. Work that blocks its thread cannot be dropped: it keeps the
    /// lease, but not the leadership, until it yields.
    pub async fn run_while_leader<F, T>(self, mut work: impl FnMut(Leadership) -> F) -> Result<T, Error>
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
                self.stop().await?;
                return Ok(outcome);
            }
        }
    }

    /// Resigns if this process leads, and remains a candidate. Returns at once: the lease is released when the work
    /// under it has ended.
    pub fn resign(&self) -> Result<(), Error> {
        self.tenure.send(DriverMessage::Resign(self.handle.key.clone(), None))
    }

    /// Replaces the metadata of this candidate. Completes when the store has it. If the store rejects it, the
    /// previous metadata remains. Does not affect leadership.
    pub async fn set_metadata(&self, metadata: BTreeMap<String, String>) -> Result<(), Error> {
        self.change_options(|options| options.metadata = metadata).await
    }

    /// Changes the options of the candidate.
    pub(crate) async fn change_options(
        &self,
        change: impl FnOnce(&mut CandidateOptions),
    ) -> Result<(), Error> {
        // One change at a time: a reply belongs to the last change that was sent.
        let mut options = self.options.lock().await;
        let before = options.clone();
        change(&mut options);
        let outcome = self.send_options(options.clone()).await;
        if matches!(outcome, Err(Error::Store(_))) {
            *options = before.clone();
            let (reply, _) = oneshot::channel();
            self.tenure.send(DriverMessage::ChangeOptions {
                options: before,
                handle: self.handle.clone(),
                reply,
            })?;
        }
        outcome
    }

    async fn send_options(&self, options: CandidateOptions) -> Result<(), Error> {
        let (reply, confirmed) = oneshot::channel();
        self.tenure.send(DriverMessage::ChangeOptions { options, handle: self.handle.clone(), reply })?;
        let limit = self.tenure.timing().lease();
        let runtime = self.tenure.runtime();
        tokio::select! {
            confirmed = confirmed => confirmed.map_err(|_| Error::Closed)?,
            () = runtime.sleep_until(runtime.now() + limit) => Err(Error::OptionsUnconfirmed(limit, self.handle.key.clone())),
        }
    }

    /// Receives the election as last observed and as observed from now on.
    pub(crate) fn views(&self) -> watch::Receiver<Option<Arc<ElectionView>>> {
        self.handle.views()
    }

    /// Finishes running work, releases the lease and leaves the election. Fails with [`Error::LeaveUnconfirmed`] if
    /// the store does not confirm in time.
    pub async fn stop(self) -> Result<(), Error> {
        let (reply, stopped) = oneshot::channel();
        let election = self.handle.key.clone();
        self.tenure.send(DriverMessage::Withdraw { handle: self.handle.clone(), reply: Some(reply) })?;
        let limit = self.handle.grace + self.tenure.timing().lease() * 2;
        let runtime = self.tenure.runtime();
        tokio::select! {
            // A driver that has ended has ended the session.
            _ = stopped => Ok(()),
            () = runtime.sleep_until(runtime.now() + limit) => Err(Error::LeaveUnconfirmed(limit, election)),
        }
    }

    /// Keeps the candidate for as long as the session, without a handle that keeps the session open.
    pub(crate) fn detach(mut self) -> Arc<CandidateHandle> {
        self.withdraw_on_drop = false;
        self.handle.clone()
    }

    fn spawn_callbacks(&self, on_elected: Option<OnElected>, on_lost: Option<OnLost>) {
        let mut term = self.handle.term.subscribe();
        tokio::spawn(async move {
            let mut panics = 0;
            loop {
                let leadership = term.borrow_and_update().as_ref().and_then(ActiveTerm::begin);
                if let Some(leadership) = leadership {
                    let outcome = run_callbacks(&leadership, panics, on_elected.as_ref()).await;
                    panics = if outcome.is_ok() { 0 } else { panics + 1 };
                    if let Some(callback) = &on_lost {
                        contained("on_lost", || callback(outcome.unwrap_or(TermEnd::Released)));
                    }
                    if outcome.is_err() {
                        // A leader whose work has not started must not block other candidates.
                        let _ = leadership.resign().await;
                    }
                }
                if term.changed().await.is_err() {
                    return;
                }
            }
        });
    }
}

/// `on_elected` panicked.
#[derive(Clone, Copy)]
struct Panicked;

/// Runs one term of a candidate with callbacks: calls `on_elected` and waits for the end of the term. `panics`
/// counts the directly preceding terms in which `on_elected` panicked.
async fn run_callbacks(
    leadership: &Leadership,
    panics: u32,
    on_elected: Option<&OnElected>,
) -> Result<TermEnd, Panicked> {
    let ended = async {
        tokio::select! {
            end = leadership.lost() => end,
            _ = leadership.leader_request() => TermEnd::Released,
        }
    };
    tokio::pin!(ended);
    if panics > 0 {
        // A candidate without rivals is elected again at once. The backoff limits the rate of terms while the
        // callback keeps panicking.
        let runtime = &leadership.term.trust.runtime;
        let pause = (Duration::from_millis(50) * 2u32.saturating_pow(panics)).min(Duration::from_secs(10));
        tokio::select! {
            end = &mut ended => return Ok(end),
            () = runtime.sleep_until(runtime.now() + pause) => {}
        }
    }
    if let Some(callback) = on_elected {
        contained("on_elected", || callback(leadership)).ok_or(Panicked)?;
    }
    Ok(ended.await)
}

impl Drop for Elector {
    fn drop(&mut self) {
        if !self.withdraw_on_drop {
            return;
        }
        // A driver that has ended has withdrawn all candidates.
        let _ = self.tenure.send(DriverMessage::Withdraw { handle: self.handle.clone(), reply: None });
    }
}

/// Leaders of an election, ordered by slot.
pub fn leaders(view: &ElectionView) -> Vec<LeaderInfo> {
    view.holders()
        .map(|(lease, holder)| LeaderInfo {
            name: view
                .candidate(&holder.id)
                .map_or_else(|| holder.name.clone(), |candidate| candidate.name.clone()),
            token: lease.token,
            slot: lease.slot,
        })
        .collect()
}

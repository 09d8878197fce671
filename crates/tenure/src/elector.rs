//! Standing for an election.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use tenure_core::lease::{Loss, Stand};
use tenure_core::port::{AskKind, CandidateView, ElectionView};
use tenure_core::{ElectionKey, Name, Token};
use tokio::sync::{broadcast, oneshot, watch};
use tokio_stream::wrappers::BroadcastStream;

use crate::callback::contained;
use crate::driver::Message;
use crate::leadership::{Leadership, Over, Term};
use crate::{Error, Tenure};

/// How many changes a slow watcher may fall behind before some are dropped.
const CHANGES_KEPT: usize = 256;

type OnElected = Box<dyn Fn(&Leadership) + Send + Sync>;
type OnLost = Box<dyn Fn(Over) + Send + Sync>;

/// The most places an election can have.
pub const SLOTS_MAX: u32 = 1000;

/// A candidate of one election: it campaigns by itself for as long as it lives.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
///
/// let done = tenure
///     .elector("nightly")
///     .priority(100)
///     .start()
///     .await?
///     .run_while_leader(|leadership| async move {
///         // Only one process of all is here at any moment. Dropped if leadership is lost.
///         format!("ran under token {}", leadership.token())
///     })
///     .await?;
/// assert_eq!(done, "ran under token 1");
/// # tenure.close().await }
/// ```
pub struct Elector {
    tenure: Tenure,
    seat: Arc<Seat>,
    /// How it stands.
    stand: tokio::sync::Mutex<Stand>,
    /// Whether it stands no longer than this handle lives.
    attended: bool,
}

/// Settings of a candidate, before it stands. See [`Tenure::elector`].
#[must_use = "a candidate stands only after `start`"]
pub struct ElectorBuilder {
    tenure: Tenure,
    namespace: String,
    name: String,
    id: Option<String>,
    priority: i32,
    observer: bool,
    capabilities: Vec<String>,
    requires: Vec<String>,
    slots: u32,
    metadata: BTreeMap<String, String>,
    grace: Duration,
    on_elected: Option<OnElected>,
    on_lost: Option<OnLost>,
}

/// What this candidate is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It leads.
    Leader,
    /// Somebody else leads.
    Follower,
    /// Nobody is known to lead, and it would.
    Candidate,
    /// It watches and never leads.
    Observer,
    /// Nobody may lead until the election is resumed.
    Paused,
}

/// Who leads, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// What people call it.
    pub id: String,
    /// Under which token.
    pub token: Token,
    /// In which slot.
    pub slot: u32,
}

/// Something changed in an election.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// This process leads.
    Elected {
        /// The token.
        token: Token,
        /// The slot.
        slot: u32,
    },
    /// This process is asked to finish.
    Asked(AskKind),
    /// This process leads no longer.
    Lost {
        /// The token.
        token: Token,
        /// Why.
        why: Loss,
    },
    /// This process gave the lease back.
    Released {
        /// The token.
        token: Token,
    },
    /// The election looks different: leaders, candidates or a pause.
    Seen(Arc<ElectionView>),
}

/// What the driver and the elector share about one election.
pub(crate) struct Seat {
    pub(crate) key: ElectionKey,
    pub(crate) grace: Duration,
    observer: bool,
    term: watch::Sender<Option<Arc<Term>>>,
    view: watch::Sender<Option<Arc<ElectionView>>>,
    changes: broadcast::Sender<Change>,
    /// Why this candidate can not go on, if so.
    failure: Mutex<Option<Error>>,
}

impl Seat {
    /// The candidate can not go on: whoever waits to be elected is told.
    pub(crate) fn fail(&self, error: Error) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.term.send_modify(|_| {});
    }

    fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn publish_term(&self, term: Option<Arc<Term>>) {
        self.term.send_replace(term);
    }

    pub(crate) fn terms(&self) -> watch::Receiver<Option<Arc<Term>>> {
        self.term.subscribe()
    }

    pub(crate) fn views(&self) -> watch::Receiver<Option<Arc<ElectionView>>> {
        self.view.subscribe()
    }

    pub(crate) fn seen(&self, view: ElectionView) {
        let view = Arc::new(view);
        self.view.send_replace(Some(view.clone()));
        self.changed(Change::Seen(view));
    }

    pub(crate) fn changed(&self, change: Change) {
        // Nobody watching is no trouble.
        let _ = self.changes.send(change);
    }
}

impl ElectorBuilder {
    pub(crate) fn new(tenure: Tenure, name: String) -> Self {
        ElectorBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            name,
            id: None,
            priority: 0,
            observer: false,
            capabilities: Vec::new(),
            requires: Vec::new(),
            slots: 1,
            metadata: BTreeMap::new(),
            grace: Duration::from_secs(5),
            on_elected: None,
            on_lost: None,
        }
    }

    /// The tenant; `default` unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// What people call this candidate; the process's name unless set. Need not be unique.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The highest priority alive leads; 0 unless set. One that appears later takes over by asking.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Only watch, never lead.
    pub fn observer(mut self, observer: bool) -> Self {
        self.observer = observer;
        self
    }

    /// What this candidate can do.
    pub fn capabilities<S: Into<String>>(mut self, capabilities: impl IntoIterator<Item = S>) -> Self {
        self.capabilities = capabilities.into_iter().map(Into::into).collect();
        self
    }

    /// What a leader of this election must be able to do. An incapable candidate never leads.
    pub fn requires<S: Into<String>>(mut self, requires: impl IntoIterator<Item = S>) -> Self {
        self.requires = requires.into_iter().map(Into::into).collect();
        self
    }

    /// How many may lead at once: a semaphore. All candidates must agree.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Something that people want to know about this candidate.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// How long a leader that is asked to finish may go on; five seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Called when this process becomes the leader. If it panics, the panic is logged and counted, `on_lost` is called, and this
    /// process resigns; with its next term the callback is called again, after a back-off if it keeps panicking.
    pub fn on_elected(mut self, callback: impl Fn(&Leadership) + Send + Sync + 'static) -> Self {
        self.on_elected = Some(Box::new(callback));
        self
    }

    /// Called when this process is to stop leading: it lost leadership, or is asked to finish. The lease is given back
    /// only after the callback has returned. A panic in it is logged and counted.
    pub fn on_lost(mut self, callback: impl Fn(Over) + Send + Sync + 'static) -> Self {
        self.on_lost = Some(Box::new(callback));
        self
    }

    /// Stands. Completes when the store has the candidate.
    pub async fn start(self) -> Result<Elector, Error> {
        let key = ElectionKey::new(self.namespace.parse()?, self.name.parse()?);
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return Err(Error::SlotCount(self.slots));
        }
        let stand = Stand {
            election: key.clone(),
            id: self.id.unwrap_or_else(|| self.tenure.name().to_owned()),
            priority: self.priority,
            observer: self.observer,
            capabilities: self.capabilities,
            requires: self.requires,
            slots: self.slots,
            metadata: self.metadata,
        };
        let seat = Arc::new(Seat {
            key,
            grace: self.grace,
            observer: self.observer,
            term: watch::Sender::new(None),
            view: watch::Sender::new(None),
            changes: broadcast::Sender::new(CHANGES_KEPT),
            failure: Mutex::new(None),
        });
        let (reply, standing) = oneshot::channel();
        let stands = tokio::sync::Mutex::new(stand.clone());
        self.tenure.send(Message::Campaign { stand, seat: seat.clone(), reply })?;
        // Only a candidate that stands is withdrawn when its elector is dropped. If this future is dropped before, the
        // driver finds nobody to reply to, and withdraws it.
        standing.await.map_err(|_| Error::Closed)??;
        let elector = Elector { tenure: self.tenure, seat, stand: stands, attended: true };
        if self.on_elected.is_some() || self.on_lost.is_some() {
            elector.spawn_callbacks(self.on_elected, self.on_lost);
        }
        Ok(elector)
    }
}

impl Elector {
    /// Which election.
    pub fn election(&self) -> &ElectionKey {
        &self.seat.key
    }

    pub(crate) fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Whether this process leads *now*. The clock is compared at every call.
    pub fn is_leader(&self) -> bool {
        self.seat.term.borrow().as_ref().is_some_and(|term| term.is_leader())
    }

    /// What this candidate is at the moment.
    pub fn status(&self) -> Status {
        if self.is_leader() {
            return Status::Leader;
        }
        match self.view() {
            Some(view) if view.paused.is_some() => Status::Paused,
            _ if self.seat.observer => Status::Observer,
            Some(view) if view.holders().next().is_some() => Status::Follower,
            _ => Status::Candidate,
        }
    }

    /// The leadership of this process, if it leads now. Holding it counts as working.
    pub fn leadership(&self) -> Option<Leadership> {
        self.seat.term.borrow().as_ref().and_then(Term::lead)
    }

    /// Waits until this process leads. A term that is to finish is not begun anew: this waits for the next one.
    pub async fn elected(&self) -> Result<Leadership, Error> {
        let mut term = self.seat.term.subscribe();
        loop {
            if let Some(leadership) = term.borrow_and_update().as_ref().and_then(Term::begin) {
                return Ok(leadership);
            }
            if let Some(error) = self.seat.failure() {
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

    /// The election as this process last saw it.
    pub fn view(&self) -> Option<Arc<ElectionView>> {
        self.seat.view.borrow().clone()
    }

    /// Who leads, asked of the store. Several if the election has slots.
    pub async fn leaders(&self) -> Result<Vec<Leader>, Error> {
        let view = self.tenure.directory().election(&self.seat.key).await?;
        Ok(view.as_ref().map(leaders).unwrap_or_default())
    }

    /// Who leads, asked of the store.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(self.leaders().await?.into_iter().next())
    }

    /// All who stand, best first, asked of the store.
    pub async fn candidates(&self) -> Result<Vec<CandidateView>, Error> {
        let view = self.tenure.directory().election(&self.seat.key).await?;
        let mut candidates = view.map(|view| view.candidates).unwrap_or_default();
        candidates.sort_by(tenure_core::election::by_rank);
        Ok(candidates)
    }

    /// Everything that changes from now on. A watcher that falls far behind misses some.
    pub fn watch(&self) -> impl Stream<Item = Change> + Send + Unpin + use<> {
        let changes = BroadcastStream::new(self.seat.changes.subscribe());
        Box::pin(changes.filter_map(|change| async move { change.ok() }))
    }

    /// Runs `work` whenever this process leads, until it returns.
    ///
    /// The work's future is dropped when leadership is lost, or when the leader was asked to finish and the grace is
    /// over; then the process campaigns again. The lease is given back only after the future has returned or been
    /// dropped. When it returns, the candidate leaves the election; so it does when the work panics, and the panic goes on to
    /// the caller. Work that blocks its thread can not be dropped: it keeps the lease, though not the leadership, until it
    /// yields.
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

    /// Steps down if it leads, and goes on standing.
    pub fn resign(&self) -> Result<(), Error> {
        self.tenure.send(Message::Resign(self.seat.key.clone(), None))
    }

    /// Says something else about this candidate from now on, in place of all that it said. Completes when the store has it; where
    /// the store refuses it, what was said before stands. Doesn't affect leadership.
    pub async fn set_metadata(&self, metadata: BTreeMap<String, String>) -> Result<(), Error> {
        self.restand(|stand| stand.metadata = metadata).await
    }

    /// Stands otherwise from now on.
    pub(crate) async fn restand(&self, change: impl FnOnce(&mut Stand)) -> Result<(), Error> {
        // One at a time: an answer belongs to the last one that was asked for.
        let mut stand = self.stand.lock().await;
        let before = stand.clone();
        change(&mut stand);
        let outcome = self.say(stand.clone()).await;
        if matches!(outcome, Err(Error::Store(_))) {
            *stand = before.clone();
            let (reply, _) = oneshot::channel();
            self.tenure.send(Message::Restand { stand: before, seat: self.seat.clone(), reply })?;
        }
        outcome
    }

    async fn say(&self, stand: Stand) -> Result<(), Error> {
        let (reply, said) = oneshot::channel();
        self.tenure.send(Message::Restand { stand, seat: self.seat.clone(), reply })?;
        let limit = self.tenure.timing().lease();
        let runtime = self.tenure.runtime();
        tokio::select! {
            said = said => said.map_err(|_| Error::Closed)?,
            () = runtime.sleep_until(runtime.now() + limit) => Err(Error::Unsaid(limit, self.seat.key.clone())),
        }
    }

    /// The election as it was last seen, and as it is seen from now on.
    pub(crate) fn views(&self) -> watch::Receiver<Option<Arc<ElectionView>>> {
        self.seat.views()
    }

    /// Finishes, gives the lease back, and stands no longer.
    pub async fn stop(self) -> Result<(), Error> {
        let (reply, left) = oneshot::channel();
        let election = self.seat.key.clone();
        self.tenure.send(Message::Withdraw { seat: self.seat.clone(), reply: Some(reply) })?;
        let limit = self.seat.grace + self.tenure.timing().lease() * 2;
        let runtime = self.tenure.runtime();
        tokio::select! {
            // A driver that has gone has ended the session.
            _ = left => Ok(()),
            () = runtime.sleep_until(runtime.now() + limit) => Err(Error::Unconfirmed(limit, election)),
        }
    }

    /// Goes on standing for as long as the session, without a handle that would keep the session open.
    pub(crate) fn unattended(mut self) -> Arc<Seat> {
        self.attended = false;
        self.seat.clone()
    }

    fn spawn_callbacks(&self, on_elected: Option<OnElected>, on_lost: Option<OnLost>) {
        let mut term = self.seat.term.subscribe();
        tokio::spawn(async move {
            let mut panics = 0;
            loop {
                let leadership = term.borrow_and_update().as_ref().and_then(Term::begin);
                if let Some(leadership) = leadership {
                    let served = serve(&leadership, panics, on_elected.as_ref()).await;
                    panics = if served.is_ok() { 0 } else { panics + 1 };
                    if let Some(callback) = &on_lost {
                        contained("on_lost", || callback(served.unwrap_or(Over::GivenUp)));
                    }
                    if served.is_err() {
                        // A leader whose work has not begun must not keep the others from leading.
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

/// One term of a candidate with callbacks, the one after this many terms in a row in which `on_elected` panicked: calls it, and waits for
/// the end of the term.
async fn serve(
    leadership: &Leadership,
    panics: u32,
    on_elected: Option<&OnElected>,
) -> Result<Over, Panicked> {
    let ended = async {
        tokio::select! {
            over = leadership.lost() => over,
            _ = leadership.asked() => Over::GivenUp,
        }
    };
    tokio::pin!(ended);
    if panics > 0 {
        // A candidate without rivals is elected again at once. The pause keeps a callback that always panics from making terms as
        // fast as the store can.
        let runtime = &leadership.term.trust.runtime;
        let pause = (Duration::from_millis(50) * 2u32.saturating_pow(panics)).min(Duration::from_secs(10));
        tokio::select! {
            over = &mut ended => return Ok(over),
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
        if !self.attended {
            return;
        }
        // A driver that is gone has left everything.
        let _ = self.tenure.send(Message::Withdraw { seat: self.seat.clone(), reply: None });
    }
}

/// The leaders of an election, by slot.
pub fn leaders(view: &ElectionView) -> Vec<Leader> {
    view.holders()
        .map(|(lease, holder)| Leader {
            id: view
                .candidate(&holder.id)
                .map_or_else(|| holder.name.clone(), |candidate| candidate.id.clone()),
            token: lease.token,
            slot: lease.slot,
        })
        .collect()
}

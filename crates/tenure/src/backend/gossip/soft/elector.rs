//! Standing for a soft election.

use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::{Arc, PoisonError};

use futures_core::Stream;
use futures_util::StreamExt;
use tenure_core::soft::{Rank, SoftCandidate, Stance};
use tenure_core::{ElectionKey, Moment, Name};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::WatchStream;

use super::leadership::{SoftLeadership, SoftOver, SoftTerm};
use super::view::{self, Candidacy, SoftElectionView};
use crate::backend::gossip::{Gossip, Shared};
use crate::{Error, metrics, runtime};

/// Settings of a candidate, before it stands. See [`Gossip::elector`].
#[must_use = "a candidate stands only after `start`"]
pub struct SoftElectorBuilder {
    gossip: Gossip,
    namespace: String,
    name: String,
    priority: i32,
}

/// A candidate of a soft election: it stands for as long as it lives.
///
/// ```
/// # use tenure::backend::gossip::{Gossip, GossipOptions};
/// # use tenure_core::soft::Pace; use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let ms = Duration::from_millis;
/// # let options = GossipOptions::new("127.0.0.1:0").pace(Pace::new(ms(10), ms(500), ms(50)).unwrap());
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
    seat: Arc<Seat>,
}

/// What is asked of a candidate's task.
pub(super) enum Wish {
    Resign,
    WorkEnded,
    Withdraw,
}

/// Makes a candidate stand no longer.
pub(in crate::backend::gossip) struct Withdraw(mpsc::UnboundedSender<Wish>);

impl Withdraw {
    pub(in crate::backend::gossip) fn ask(&self) {
        // A candidate that is gone needs no telling.
        let _ = self.0.send(Wish::Withdraw);
    }
}

struct Seat {
    key: ElectionKey,
    /// The term, while it leads. Closed when it stands no longer.
    term: watch::Sender<Option<Arc<SoftTerm>>>,
    stance: watch::Sender<Stance>,
    wishes: mpsc::UnboundedSender<Wish>,
}

impl SoftElectorBuilder {
    pub(in crate::backend::gossip) fn new(gossip: Gossip, name: String) -> Self {
        let namespace = Name::default_namespace().to_string();
        SoftElectorBuilder { gossip, namespace, name, priority: 0 }
    }

    /// The tenant; `default` unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The highest priority alive leads; 0 unless set. Among equals, the one that stands for longest.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Stands.
    pub async fn start(self) -> Result<SoftElector, Error> {
        let key = ElectionKey::new(self.namespace.parse()?, self.name.parse()?);
        let shared = self.gossip.shared().clone();
        let (wishes, asked) = mpsc::unbounded_channel();
        match shared.standing.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()) {
            Entry::Occupied(_) => return Err(Error::AlreadyStanding(key)),
            Entry::Vacant(place) => place.insert(Withdraw(wishes.clone())),
        };
        let seat = Arc::new(Seat {
            key: key.clone(),
            term: watch::Sender::new(None),
            stance: watch::Sender::new(Stance::Standing),
            wishes,
        });
        let mut standing = Standing::new(shared, seat.clone(), self.priority);
        // From here on it withdraws, whatever comes.
        let elector = SoftElector { gossip: self.gossip, seat };
        if let Err(error) = standing.tell(Stance::Standing).await {
            standing.forget();
            return Err(error);
        }
        tokio::spawn(standing.run(asked));
        Ok(elector)
    }
}

impl SoftElector {
    /// Which election.
    pub fn election(&self) -> &ElectionKey {
        &self.seat.key
    }

    /// Whether this process leads *now*, as far as it has heard.
    pub fn is_leader(&self) -> bool {
        self.seat.term.borrow().as_ref().is_some_and(|term| term.is_leader())
    }

    /// What this candidate is.
    pub fn stance(&self) -> Stance {
        *self.seat.stance.borrow()
    }

    /// The leadership of this process, if it leads now. Holding it counts as working.
    pub fn leadership(&self) -> Option<SoftLeadership> {
        self.seat.term.borrow().as_ref().and_then(SoftTerm::lead)
    }

    /// Waits until this process leads.
    pub async fn elected(&self) -> Result<SoftLeadership, Error> {
        let mut term = self.seat.term.subscribe();
        let mut looks = self.gossip.shared().looks.subscribe();
        loop {
            if let Some(leadership) = term.borrow_and_update().as_ref().and_then(SoftTerm::lead) {
                return Ok(leadership);
            }
            if looks.borrow_and_update().is_none() {
                return Err(Error::Closed);
            }
            tokio::select! {
                changed = term.changed() => changed.map_err(|_| Error::Closed)?,
                changed = looks.changed() => changed.map_err(|_| Error::Closed)?,
            }
        }
    }

    /// The election as it is seen from here.
    pub fn view(&self) -> SoftElectionView {
        view::election(&self.gossip.roster(), &self.seat.key)
    }

    /// The election, now and after each change.
    pub fn watch(&self) -> impl Stream<Item = SoftElectionView> + Send + Unpin + use<> {
        let (key, mut last) = (self.seat.key.clone(), None);
        let views = self.gossip.watch().map(move |roster| view::election(&roster, &key));
        Box::pin(views.filter_map(move |view| {
            let changed = last.as_ref() != Some(&view);
            last = Some(view.clone());
            std::future::ready(changed.then_some(view))
        }))
    }

    /// What this candidate is, now and after each change.
    pub fn stances(&self) -> impl Stream<Item = Stance> + Send + Unpin + use<> {
        WatchStream::new(self.seat.stance.subscribe())
    }

    /// Runs `work` whenever this process leads, until it returns. Dropped when leadership is lost, and begun anew with the next.
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

    /// Stands no longer. Completes when that is told, and no work goes on.
    pub async fn stop(self) {
        let _ = self.seat.wishes.send(Wish::Withdraw);
        self.seat.wishes.closed().await;
    }
}

impl Drop for SoftElector {
    fn drop(&mut self) {
        // A candidate that is gone needs no telling.
        let _ = self.seat.wishes.send(Wish::Withdraw);
    }
}

/// The task of a candidate.
struct Standing {
    shared: Arc<Shared>,
    seat: Arc<Seat>,
    candidate: SoftCandidate,
    /// The last term, until its work has ended.
    term: Option<Arc<SoftTerm>>,
    told: Option<Stance>,
    /// It is to queue up anew, once its work has ended.
    resigns: bool,
    looked: Moment,
}

impl Standing {
    fn new(shared: Arc<Shared>, seat: Arc<Seat>, priority: i32) -> Self {
        let rank = Rank { priority, generation: shared.generation, id: shared.id.clone() };
        let now = runtime::now();
        let candidate = SoftCandidate::new(rank, shared.pace, now);
        Standing { shared, seat, candidate, term: None, told: None, resigns: false, looked: now }
    }

    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Wish>) {
        let mut looks = self.shared.looks.subscribe();
        loop {
            tokio::select! {
                wish = asked.recv() => match wish {
                    Some(Wish::Resign) => self.resign(),
                    Some(Wish::WorkEnded) => {}
                    Some(Wish::Withdraw) | None => break,
                },
                changed = looks.changed() => if changed.is_err() { break },
            }
            let Some(now) = *looks.borrow_and_update() else { break };
            self.look(now).await;
        }
        self.end(SoftOver::GivenUp);
        while self.term.as_ref().is_some_and(|term| term.has_workers()) {
            asked.recv().await;
        }
        let _ = self.shared.remove(&view::entry_key(&self.seat.key)).await;
        self.forget();
    }

    /// Looks at what was seen then.
    async fn look(&mut self, now: Moment) {
        let roster = self.shared.roster.borrow().clone();
        let sight = view::sight(&roster, &self.shared.id, &view::entry_key(&self.seat.key));
        let contested = sight.rivals.values().any(|rival| rival.stance == Stance::Leading);
        let led = self.candidate.stance() == Stance::Leading;
        let stance = self.candidate.observe(now, sight);
        if led && contested {
            metrics::soft_dual(&self.seat.key, now.since(self.looked));
        }
        if led && stance != Stance::Leading {
            self.end(if stance == Stance::Ready { SoftOver::Outranked } else { SoftOver::Doubt });
        }
        self.looked = now;
        let working = self.term.as_ref().is_some_and(|term| term.has_workers());
        if self.resigns && !working {
            self.queue_up(now);
        }
        match self.candidate.trusted_until() {
            Some(until) if self.is_leading() => self.term.iter().for_each(|term| term.trust(until)),
            // What was begun under the last term ends first.
            Some(until) if !working && !self.resigns => self.begin(until).await,
            _ => {}
        }
        // Whoever works still leads, as far as others are concerned.
        let telling = match self.candidate.stance() {
            _ if working || self.is_leading() => Stance::Leading,
            // It would lead, and could not say so.
            Stance::Leading => Stance::Ready,
            stance => stance,
        };
        if let Err(error) = self.tell(telling).await {
            tracing::debug!(%error, election = %self.seat.key, "a stance is not told");
        }
    }

    fn is_leading(&self) -> bool {
        self.seat.term.borrow().is_some()
    }

    async fn begin(&mut self, until: Moment) {
        // Told before anything is done.
        if self.tell(Stance::Leading).await.is_err() {
            return;
        }
        let term = SoftTerm::new(self.seat.key.clone(), until, self.seat.wishes.clone());
        self.term = Some(term.clone());
        self.seat.term.send_replace(Some(term));
        metrics::soft_leads(&self.seat.key, true);
    }

    fn end(&mut self, why: SoftOver) {
        if let Some(term) = self.seat.term.send_replace(None) {
            term.end(why);
            metrics::soft_leads(&self.seat.key, false);
        }
    }

    fn resign(&mut self) {
        if self.is_leading() {
            self.end(SoftOver::GivenUp);
            self.resigns = true;
        }
    }

    /// Stands as one that has just come.
    fn queue_up(&mut self, now: Moment) {
        self.resigns = false;
        let generation =
            u64::try_from(runtime::wall_ms()).unwrap_or(0).max(self.candidate.rank().generation + 1);
        let rank = Rank { generation, ..self.candidate.rank().clone() };
        self.candidate = SoftCandidate::new(rank, self.shared.pace, now);
    }

    async fn tell(&mut self, stance: Stance) -> Result<(), Error> {
        if self.told == Some(stance) {
            return Ok(());
        }
        let rank = self.candidate.rank();
        let candidacy = Candidacy {
            priority: rank.priority,
            generation: rank.generation,
            stance,
            since_ms: runtime::wall_ms(),
        };
        let value = serde_json::to_string(&candidacy).unwrap_or_default();
        self.shared.put(&view::entry_key(&self.seat.key), &value).await?;
        self.told = Some(stance);
        self.seat.stance.send_replace(stance);
        Ok(())
    }

    fn forget(&self) {
        self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.seat.key);
    }
}

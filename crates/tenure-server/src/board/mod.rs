//! What the store looks like, watched and kept in memory.
//!
//! Reads are answered from here, so that ten thousand readers cost the store what one does. One task looks: at once at
//! the elections that a hint names, now and then at everything, once a second at the beats; one request at a time, and
//! less often the longer the store takes. What is shown is as old as the last look at everything at most
//! ([`Seen::age`]); whoever needs to know for certain asks the store (`?consistent=true`), and whoever writes does so under
//! a token. While the store is away, the last that was seen is shown, with its age and the trouble.

mod entry;
mod looking;
mod rooms;
mod terms;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{
    Backend, ElectionView, Finding, Observation, SessionView, StoreError, Term, Trouble, Wake,
};
use tenure::runtime::{Draw, Runtime};
use tenure::{ElectionKey, Moment, Name, SessionId};
use tenure_core::lease::{Onlooker, Turn};
use tokio::sync::{Notify, broadcast, watch};
use tokio::task::AbortHandle;

pub use self::entry::Entry;
use self::rooms::Rooms;
pub use self::rooms::{Ear, News, Update};
pub(crate) use self::terms::Mark;
use self::wanted::Wanted;

/// How long a request waits for the first look of a server that has just begun.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// How many hints wait for a slow listener before it is told to look at everything instead.
const HINTS_KEPT: usize = 1024;

/// How often the store is examined at most.
const EXAMINED_EVERY: Duration = Duration::from_secs(30);
/// How many terms of an election are shown at most: stores keep no more.
pub const TERMS_MAX: u32 = 100;

/// Everything that the server knows of the store.
pub struct Board {
    desk: Arc<Desk>,
    tasks: [AbortHandle; 2],
}

/// What the board shares with the tasks that keep it.
struct Desk {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    seen: RwLock<Arc<Seen>>,
    changes: watch::Sender<u64>,
    closed: AtomicBool,
    /// The store's hints, for any number of listeners. The store hears of one.
    hints: broadcast::Sender<Hint>,
    /// What is to be looked at next.
    wanted: Mutex<Wanted>,
    nudge: Notify,
    /// The last round of looks that is over.
    round: watch::Sender<u64>,
    /// Who decides for candidates that cannot watch for themselves. It sees all that is seen here.
    onlooker: Mutex<Onlooker>,
    findings: tokio::sync::Mutex<Option<(Moment, Findings)>>,
    /// Who watches; `None` once the server is about to end.
    rooms: Mutex<Option<Rooms>>,
    /// The latest time at which a term is known to have begun or ended, by the store's wall clock.
    mark_ms: AtomicI64,
}

/// A hint of the store's, as it was heard.
#[derive(Clone, Debug)]
pub(crate) struct Hint {
    pub(crate) wake: Wake,
    /// Where the session that has ended was last seen to stand or lead.
    pub(crate) places: Arc<BTreeSet<Name>>,
}

/// What an examination of the store found.
pub type Findings = Arc<[Finding]>;

/// What was seen, all in all.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The elections.
    pub elections: BTreeMap<ElectionKey, Arc<Entry>>,
    /// The sessions that live, and when each was last seen to beat.
    pub sessions: Arc<HashMap<SessionId, Sight>>,
    /// How many sessions that live each owner has.
    pub owned: Arc<HashMap<String, usize>>,
    /// In how many elections each session stands.
    pub standing: Arc<HashMap<SessionId, usize>>,
    /// When the last look at everything that succeeded was *sent*: all that is shown is at least as new. Zero before the
    /// first one.
    pub at: Moment,
    /// How long the last look took, whatever came of it.
    pub latency: Duration,
    /// Why the last look failed, if it did.
    pub trouble: Option<StoreError>,
    /// The store's epoch.
    pub epoch: u32,
    /// How many times something was seen before.
    pub number: u64,
}

/// When a session was last seen to beat.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The session, as it was seen last.
    pub session: SessionView,
    /// When the server saw that its beat had moved, or first saw it.
    pub moved: Moment,
}

impl Seen {
    /// How old the oldest of what is shown may be.
    pub fn age(&self, now: Moment) -> Duration {
        now.since(self.at)
    }

    /// For how long a session may still trust in what it holds, as far as the server can tell: two thirds of its lease
    /// from when it was seen to beat. The session itself counts from before it sent that beat, so it has a little less.
    /// `None` if it was not seen.
    pub fn trust_left(&self, session: &SessionId, now: Moment) -> Option<Duration> {
        let sight = self.sessions.get(session)?;
        let trust = sight.session.lease() * 2 / 3;
        Some(trust.saturating_sub(now.since(sight.moved)))
    }

    /// Whether anything was ever seen.
    pub fn is_known(&self) -> bool {
        self.at != Moment::ZERO
    }
}

impl Board {
    /// A board that is kept up to date until it is dropped.
    pub fn watching(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Arc<Board> {
        let wakes = store.wakes();
        let desk = Arc::new(Desk {
            store,
            runtime,
            seen: RwLock::default(),
            changes: watch::Sender::new(0),
            closed: AtomicBool::new(false),
            hints: broadcast::Sender::new(HINTS_KEPT),
            wanted: Mutex::new(Wanted::everything()),
            nudge: Notify::new(),
            round: watch::Sender::new(0),
            onlooker: Mutex::default(),
            findings: tokio::sync::Mutex::default(),
            rooms: Mutex::new(Some(Rooms::default())),
            mark_ms: AtomicI64::new(0),
        });
        let ear = tokio::spawn(looking::listen(desk.clone(), wakes));
        let eye = tokio::spawn(looking::look_on(desk.clone()));
        Arc::new(Board { desk, tasks: [ear.abort_handle(), eye.abort_handle()] })
    }

    /// What was seen last.
    pub fn seen(&self) -> Arc<Seen> {
        self.desk.seen()
    }

    /// What the store says from now on.
    pub(crate) fn hints(&self) -> broadcast::Receiver<Hint> {
        self.desk.hints.subscribe()
    }

    /// Changes whenever something is seen.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.desk.changes.subscribe()
    }

    /// The server is about to end: whoever waits for a change or watches is let go.
    pub fn close(&self) {
        self.desk.closed.store(true, Ordering::Release);
        *self.desk.rooms() = None;
        self.desk.changes.send_modify(|n| *n += 1);
    }

    /// Whether the server is about to end.
    pub fn is_closed(&self) -> bool {
        self.desk.closed.load(Ordering::Acquire)
    }

    /// Hears of an election from now on; `None` if the server is about to end.
    pub fn watch(&self, election: &ElectionKey) -> Option<Ear> {
        self.desk.rooms().as_mut().map(|rooms| rooms.election(election))
    }

    /// Hears of all elections of a namespace, or of all, from now on; `None` if the server is about to end.
    pub fn watch_all(&self, namespace: Option<&Name>) -> Option<Ear> {
        self.desk.rooms().as_mut().map(|rooms| rooms.namespace(namespace))
    }

    /// The latest time at which a term is known to have begun or ended, by the store's wall clock.
    pub(crate) fn mark_ms(&self) -> i64 {
        self.desk.mark_ms.load(Ordering::Relaxed)
    }

    /// What was seen last; of a server that has just begun, what it sees first.
    pub async fn known(&self) -> Result<Arc<Seen>, StoreError> {
        let seen = self.seen();
        if seen.is_known() {
            return Ok(seen);
        }
        let mut changes = self.changes();
        let first = async {
            loop {
                let seen = self.seen();
                if seen.is_known() || seen.trouble.is_some() || changes.changed().await.is_err() {
                    return seen;
                }
            }
        };
        let seen = tokio::time::timeout(FIRST_LOOK, first).await.unwrap_or_else(|_| self.seen());
        if seen.is_known() {
            return Ok(seen);
        }
        let slow = || StoreError::new(Trouble::Timeout, "the store has not answered this server yet");
        Err(seen.trouble.clone().unwrap_or_else(slow))
    }

    /// Looks at an election now, together with whatever else is to be looked at. What comes back was asked of the
    /// store after this was called.
    pub async fn look(&self, election: &ElectionKey) -> Result<Arc<Seen>, StoreError> {
        self.looked(|wanted| {
            wanted.elections.insert(election.clone());
        })
        .await
    }

    /// Looks at everything now.
    pub async fn look_at_all(&self) -> Result<Arc<Seen>, StoreError> {
        self.looked(|wanted| wanted.all = true).await
    }

    /// The last terms of an election, newest first, at most [`TERMS_MAX`]. Read once after each change, however many ask.
    pub async fn terms(&self, election: &Entry) -> Result<Arc<[Term]>, StoreError> {
        election.terms(self.desk.store.as_ref()).await
    }

    /// What there is to know about the store as it is set up; examined at most every [`EXAMINED_EVERY`].
    pub async fn findings(&self) -> Result<Findings, StoreError> {
        // Whoever comes while it is examined waits for what comes of it.
        let mut last = self.desk.findings.lock().await;
        let now = self.desk.runtime.now();
        if let Some((_, findings)) = last.as_ref().filter(|(at, _)| now.since(*at) < EXAMINED_EVERY) {
            return Ok(findings.clone());
        }
        let findings: Findings = self.desk.store.examine().await?.into();
        *last = Some((now, findings.clone()));
        Ok(findings)
    }

    /// What the candidate of this session is to do about an election as it was seen last.
    pub(crate) fn turn(&self, view: &ElectionView, session: &SessionId, runtime: &dyn Runtime) -> Turn {
        self.desk.onlooker().turn(view, session, runtime.now(), &mut Draw(runtime))
    }

    /// Takes in what somebody asked the store to see, just now.
    pub(crate) fn glimpsed(&self, observation: &Observation) {
        self.desk.onlooker().glimpsed(observation, self.desk.runtime.now());
    }

    /// Whether this server itself has seen a session silent for its lease. The session was just read, in this epoch.
    pub(crate) fn is_silent(&self, session: &SessionView, epoch: u32) -> bool {
        self.desk.onlooker().is_silent(session, epoch, self.desk.runtime.now())
    }

    async fn looked(&self, want: impl FnOnce(&mut Wanted)) -> Result<Arc<Seen>, StoreError> {
        let mut round = self.desk.round.subscribe();
        let mine = self.desk.want(want);
        let gone = |_| StoreError::new(Trouble::Unavailable, "this server is shutting down");
        round.wait_for(|done| *done >= mine).await.map_err(gone)?;
        let seen = self.seen();
        seen.trouble.clone().map_or(Ok(seen), Err)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Desk {
    fn seen(&self) -> Arc<Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn rooms(&self) -> MutexGuard<'_, Option<Rooms>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn onlooker(&self) -> MutexGuard<'_, Onlooker> {
        self.onlooker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wants something to be looked at; in the round that is returned, it will be.
    fn want(&self, want: impl FnOnce(&mut Wanted)) -> u64 {
        let mut wanted = self.wanted();
        want(&mut wanted);
        let round = wanted.round;
        drop(wanted);
        self.nudge.notify_one();
        round
    }

    /// Waits until something is wanted.
    async fn nudged(&self) {
        while self.wanted().is_empty() {
            self.nudge.notified().await;
        }
    }

    /// Shows this from now on.
    fn publish(&self, mut seen: Seen) -> Arc<Seen> {
        let mut place = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.number = place.number + 1;
        let number = seen.number;
        let seen = Arc::new(seen);
        *place = seen.clone();
        drop(place);
        self.changes.send_replace(number);
        seen
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").field("seen", &self.seen()).finish_non_exhaustive()
    }
}

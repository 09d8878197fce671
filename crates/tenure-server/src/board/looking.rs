//! The task that looks, and the task that listens for hints of where to look.

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::port::{Backend, Scope, SessionView, StoreError, Trouble, Wake, Wakes};
use tenure::runtime::Runtime;
use tenure::{ElectionKey, Moment, SessionId};

use super::wanted::Wanted;
use super::{Desk, Entry, Hint, Mark, Seen, Sight, Update};

/// How often everything is looked at, hints or no hints.
const ALL_EVERY: Duration = Duration::from_secs(2);
/// How often the beats are looked at.
const BEATS_EVERY: Duration = Duration::from_secs(1);
/// A look that took long is not repeated before this many times as long has passed.
const LEISURE: u32 = 20;
/// With more elections than this to look at, all are looked at.
const ONLY_MAX: usize = 200;
/// How long one request to the store may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it waits after a first failure, and how long at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Listens to hints until there are no more.
pub(super) async fn listen(desk: Arc<Desk>, mut wakes: Wakes) {
    while let Some(wake) = wakes.next().await {
        let seen = desk.seen();
        // What this process alone knows of its own connections and kernel is never passed on.
        if !matches!(wake, Wake::Died(_) | Wake::Severed(_)) {
            let places = match &wake {
                Wake::Ended(session) => seen.where_stands(session).map(|key| key.namespace).collect(),
                _ => BTreeSet::new(),
            };
            // Nobody listening is no trouble.
            let _ = desk.hints.send(Hint { wake: wake.clone(), places: Arc::new(places) });
        }
        desk.want(|wanted| wanted.hear(wake, &seen));
    }
}

/// Looks, for ever.
pub(super) async fn look_on(desk: Arc<Desk>) {
    let (store, runtime) = (desk.store.clone(), desk.runtime.clone());
    let mut eye = Eye {
        desk,
        store,
        runtime,
        all_at: Moment::ZERO,
        beats_at: Moment::ZERO,
        rest: Moment::ZERO,
        failures: 0,
    };
    loop {
        let wanted = eye.desk.wanted().take();
        let round = wanted.round;
        eye.look(wanted).await;
        eye.desk.round.send_replace(round);
        eye.wait().await;
    }
}

/// The one that looks.
struct Eye {
    desk: Arc<Desk>,
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    /// When everything is due again.
    all_at: Moment,
    /// When the beats are due again.
    beats_at: Moment,
    /// Until when the store is left alone.
    rest: Moment,
    failures: u32,
}

impl Eye {
    /// One round: at most one request for elections, and one for beats.
    async fn look(&mut self, mut wanted: Wanted) {
        let begun = self.runtime.now();
        let heard_ms = self.desk.mark_ms.load(Ordering::Relaxed);
        for session in std::mem::take(&mut wanted.died) {
            self.desk.onlooker().died(session);
        }
        let looked = self.elections(&mut wanted, begun).await;
        let looked = match looked {
            Ok(seen) => self.beats(seen).await,
            Err(error) => Err(error),
        };
        let latency = self.runtime.now().since(begun);
        let seen = match looked {
            Ok(Some(seen)) => {
                (self.failures, self.rest) = (0, Moment::ZERO);
                Seen { latency, trouble: None, ..seen }
            }
            Ok(None) => return,
            Err(error) => {
                self.back_off();
                tracing::warn!(%error, "the store can not be looked at");
                Seen { latency, trouble: Some(error), ..(*self.desk.seen()).clone() }
            }
        };
        let before = self.desk.seen();
        let now = self.desk.publish(seen);
        self.announce(&before, &now, heard_ms).await;
    }

    /// Tells those who watch what is different. Terms are read once for each change, if anybody wants to hear of it.
    async fn announce(&self, before: &Seen, now: &Seen, heard_ms: i64) {
        let different = |(key, entry): &(&ElectionKey, &Arc<Entry>)| {
            before.elections.get(*key).is_none_or(|old| old.version() != entry.version())
        };
        let listens = |key: &ElectionKey| self.desk.rooms().as_ref().is_some_and(|rooms| rooms.listens(key));
        let heard = now.elections.iter().filter(different).filter(|(key, _)| listens(key));
        for (key, entry) in heard {
            let mark = match before.elections.get(key) {
                Some(old) => Mark::of(old, heard_ms),
                // Nothing at all was known before: nothing that began before is news.
                None if !before.is_known() => Mark::of(entry, i64::MAX),
                None => Mark::Tokens(Vec::new()),
            };
            let terms = within(entry.terms(self.store.as_ref())).await;
            if let Some(rooms) = self.desk.rooms().as_mut() {
                match terms {
                    Ok(terms) => {
                        let news = mark.news(&terms);
                        let ended = news.iter().filter_map(|news| news.term().ended_at_ms).max();
                        self.desk.mark_ms.fetch_max(ended.unwrap_or(0), Ordering::Relaxed);
                        let mark_ms = self.desk.mark_ms.load(Ordering::Relaxed);
                        rooms.tell(&Arc::new(Update::new(now.number, entry.clone(), news, mark_ms)));
                    }
                    Err(_) => rooms.dismiss(key),
                }
            }
        }
        if let Some(rooms) = self.desk.rooms().as_mut() {
            rooms.tidy();
        }
    }

    /// Looks at the elections that are wanted or due; `None` if none are.
    async fn elections(&mut self, wanted: &mut Wanted, now: Moment) -> Result<Option<Seen>, StoreError> {
        wanted.all |= now >= self.all_at || wanted.elections.len() > ONLY_MAX;
        if !wanted.all && wanted.elections.is_empty() {
            return Ok(None);
        }
        let scope = match wanted.all {
            true => Scope::All,
            false => Scope::Only(wanted.elections.iter().cloned().collect()),
        };
        let observation = within(self.store.observe(&nobody(), &scope)).await?;
        let returned = self.runtime.now();
        self.desk.onlooker().saw(&observation, returned, wanted.all);
        let mut seen = (*self.desk.seen()).clone();
        seen.epoch = observation.epoch;
        if wanted.all {
            seen.at = now;
            self.all_at = returned + ALL_EVERY.max(returned.since(now) * LEISURE);
        }
        if wanted.all {
            let candidates = observation.elections.iter().flat_map(|view| &view.candidates);
            seen.standing = counted(candidates.map(|candidate| candidate.session.id.clone()));
        }
        let old = std::mem::take(&mut seen.elections);
        if !wanted.all {
            seen.elections =
                old.iter().filter(|(key, _)| !wanted.elections.contains(key)).map(share).collect();
        }
        for view in observation.elections {
            let granted = view.leases.iter().filter_map(|lease| lease.granted_at_ms);
            self.desk.mark_ms.fetch_max(granted.max().unwrap_or(0), Ordering::Relaxed);
            let key = view.key.clone();
            let entry = Entry::new(view, old.get(&key).map(Arc::as_ref));
            // What has not changed has been rendered already.
            let known = old.get(&key).filter(|known| known.is_same(&entry)).cloned();
            seen.elections.insert(key, known.unwrap_or_else(|| Arc::new(entry)));
        }
        Ok(Some(seen))
    }

    /// Looks at the beats, if they are due.
    async fn beats(&mut self, seen: Option<Seen>) -> Result<Option<Seen>, StoreError> {
        let begun = self.runtime.now();
        if begun < self.beats_at {
            return Ok(seen);
        }
        let sessions = within(self.store.sessions(None)).await?;
        let now = self.runtime.now();
        self.beats_at = now + BEATS_EVERY.max(now.since(begun) * LEISURE);
        let mut seen = seen.unwrap_or_else(|| (*self.desk.seen()).clone());
        seen.owned = counted(sessions.iter().filter_map(|session| session.owner.clone()));
        let sight = |session: SessionView| {
            let known = seen.sessions.get(&session.id).filter(|known| known.session.beat == session.beat);
            let moved = known.map_or(now, |known| known.moved);
            (session.id.clone(), Sight { session, moved })
        };
        let sessions: HashMap<SessionId, Sight> = sessions.into_iter().map(sight).collect();
        seen.sessions = Arc::new(sessions);
        Ok(Some(seen))
    }

    /// Leaves the store alone for a while, longer each time; then everything is looked at.
    fn back_off(&mut self) {
        let (first, most) = BACK_OFF;
        let pause = (first * 2u32.saturating_pow(self.failures.min(10))).min(most);
        let spread = self.runtime.random() % 1000;
        self.failures = self.failures.saturating_add(1);
        self.rest = self.runtime.now() + pause * (750 + u32::try_from(spread / 2).unwrap_or(0)) / 1000;
        self.all_at = self.rest;
    }

    /// Waits for something to look at.
    async fn wait(&self) {
        if self.failures > 0 {
            return self.runtime.sleep_until(self.rest).await;
        }
        tokio::select! {
            () = self.desk.nudged() => {}
            () = self.runtime.sleep_until(self.all_at.min(self.beats_at)) => {}
        }
    }
}

/// How often each occurs.
fn counted<T: Eq + Hash>(all: impl Iterator<Item = T>) -> Arc<HashMap<T, usize>> {
    let mut counts = HashMap::new();
    all.for_each(|one| *counts.entry(one).or_insert(0) += 1);
    Arc::new(counts)
}

fn share((key, entry): (&ElectionKey, &Arc<Entry>)) -> (ElectionKey, Arc<Entry>) {
    (key.clone(), entry.clone())
}

/// The session of one who only looks.
fn nobody() -> SessionId {
    SessionId::from_stored("")
}

/// A request to the store, bounded: one that hangs must not stop all others.
async fn within<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || StoreError::new(Trouble::Timeout, format!("the store did not answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, request).await.unwrap_or_else(|_| Err(late()))
}

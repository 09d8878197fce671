//! One time in office: look at what is due, decide, fire, and sleep until the next is due.
//!
//! Nothing that is known here is needed by the next leader. What fires is decided from what the *store* says is next, and the store
//! takes it only under our lease, and only if that is still next ([`Scheduling::fire`](tenure_core::port::Scheduling::fire)): all of
//! it in one transaction. So between any two calls the lease may be lost, the answer may be late or never come, or this process may
//! die; the next look, ours or another's, tells what happened, and no tick is lost or doubled by it. A call whose outcome is not
//! known is never repeated as it was: what is due is looked at anew.
//!
//! The clock that decides is the store's. Ours only measures for how long to sleep, from the moment the store's answer came, and
//! never for longer than a beat: however the store's clock is set, that is how soon it is noticed.
//!
//! One schedule must not hold up the others. What the store refuses by name is put off alone. What makes it refuse a whole parcel is
//! found by halving. What makes it fall silent is found by smaller and smaller parcels, and then put off as well; and what can not even
//! be put off, as somebody holds its row, say, comes last from then on.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::Moment;
use tenure_core::port::{DueSchedule, Fire, Fired, ScheduleKey, StoreError, Trouble};
use tokio::sync::watch;

use super::parcel::{Measure, Parcel};
use crate::claims::hub::Hub;
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::{Leadership, metrics};

/// The least time between two looks when nothing is known to be due: what rings, may ring a thousand times.
const BREATH: Duration = Duration::from_millis(5);

/// How many calls of one round may fail for what is in them, before the store is given a rest.
const REFUSALS_MAX: usize = 64;

/// How many calls in a row may go unanswered, before the store is given a rest.
const SILENCES_MAX: usize = 4;

/// How many schedules are remembered that come last.
const SHUNNED_MAX: usize = 1_000;

/// How many ticks are forgotten in one bite.
const PRUNE_MAX: u32 = 1_000;

/// How often old ticks are looked for, in beats.
const PRUNE_EVERY: u32 = 30;

/// Who fires, for one time in office.
pub(super) struct Duty<'a> {
    hub: &'a Hub,
    leadership: &'a Leadership,
    halt: watch::Receiver<bool>,
    measure: Measure,
    /// Those that could neither fire nor be put off.
    shunned: HashSet<ScheduleKey>,
}

/// What came of a round.
#[derive(Debug)]
struct Round {
    /// When the store's answer came, and what its clock showed.
    seen_at: Moment,
    store_ms: i64,
    /// When the next one is due, by that clock.
    next_ms: Option<i64>,
    /// There is more to do at once.
    more: bool,
    /// How many firings counted, and how many did not, as the schedule had changed.
    counted: usize,
    stale: usize,
    /// How many calls failed for what was in them.
    refusals: usize,
    /// How many of the last calls went unanswered.
    silences: usize,
}

/// A parcel on its way: how long it took, and what came of it.
struct Sent {
    parcel: Parcel,
    took: Duration,
    came: Result<Vec<Fired>, Broken>,
}

/// Why a round did not come to its end.
enum Broken {
    /// The store does not know, or no longer, that we lead.
    NotLeading,
    Store(StoreError),
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Broken {
        Broken::Store(error)
    }
}

impl<'a> Duty<'a> {
    pub(super) fn new(hub: &'a Hub, leadership: &'a Leadership, halt: watch::Receiver<bool>) -> Duty<'a> {
        Duty { hub, leadership, halt, measure: Measure::new(), shunned: HashSet::new() }
    }

    /// Fires what falls due, until somebody asks us to finish. A call that is under way then is waited for.
    pub(super) async fn fire(&mut self) {
        let mut bell = self.hub.shared.bells.schedules.subscribe();
        let mut outages = OutageLog::default();
        while !self.is_over() {
            // Before the look: what rings from here on may be what it does not see.
            bell.mark_unchanged();
            let began = self.hub.runtime.now();
            let until = match self.round().await {
                Ok(round) => {
                    log_recovery!(outages, self.hub.runtime.now(), "schedules: firing works again");
                    self.until(&round)
                }
                Err(Broken::NotLeading) => {
                    tracing::debug!("schedules: the store does not know yet, or no longer, that we lead");
                    self.hub.runtime.now() + self.hub.jittered(self.hub.timing.retry())
                }
                Err(Broken::Store(error)) => {
                    log_failure!(outages, self.hub.runtime.now(), "schedules: firing failed: {error}");
                    metrics::trouble(&error);
                    self.hub.runtime.now() + self.hub.jittered(self.hub.timing.retry())
                }
            };
            let runtime = &self.hub.runtime;
            let rung = async {
                // A sender that is gone is a process that ends.
                if bell.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                runtime.sleep_until(began + BREATH).await;
            };
            tokio::select! {
                biased;
                () = over(self.leadership, &mut self.halt) => return,
                () = runtime.sleep_until(until) => {}
                () = rung => {}
            }
        }
    }

    /// When to look again.
    fn until(&self, round: &Round) -> Moment {
        let now = self.hub.runtime.now();
        match round {
            Round { more: true, counted: 1.., .. } => now,
            // Something is due, and nothing of it counted: not at once.
            Round { more: true, .. } => now + self.hub.jittered(self.hub.timing.retry()),
            Round { stale: 1.., .. } => now + BREATH,
            Round { next_ms: None, .. } => now + self.hub.timing.beat(),
            Round { next_ms: Some(next_ms), store_ms, seen_at, .. } => {
                let wait_ms = u64::try_from(next_ms.saturating_sub(*store_ms)).unwrap_or(0);
                let wait = Duration::from_millis(wait_ms).min(self.hub.timing.beat());
                if wait.is_zero() { now + BREATH } else { *seen_at + wait }
            }
        }
    }

    async fn round(&mut self) -> Result<Round, Broken> {
        let look = self.hub.bounded(self.hub.store.due(self.measure.sight())).await?;
        let seen_at = self.hub.runtime.now();
        metrics::scheduler_looked(look.schedules.len());
        self.measure.looked(&look);
        let mut round = Round {
            seen_at,
            store_ms: look.store_ms,
            next_ms: look.next_due_ms,
            more: look.more,
            counted: 0,
            stale: 0,
            refusals: 0,
            silences: 0,
        };
        let (last, due): (VecDeque<_>, VecDeque<_>) =
            look.schedules.into_iter().partition(|due| self.shunned.contains(&due.key));
        self.fire_all(due, last, &mut round).await?;
        Ok(round)
    }

    /// Has the store take all of these, `last` one by one after the others: several parcels are under way at once, as many as are good
    /// for the store, so that the next ones are planned while it works. Whatever becomes of one, those under way are waited for: what
    /// has fired is counted.
    async fn fire_all(
        &mut self,
        mut due: VecDeque<DueSchedule>,
        mut last: VecDeque<DueSchedule>,
        round: &mut Round,
    ) -> Result<(), Broken> {
        let abreast = self.hub.store.fires_abreast().max(1);
        let (count, token, now_ms) = (due.len(), self.leadership.token(), round.store_ms);
        let mut under_way = FuturesUnordered::new();
        let mut came = Ok(());
        loop {
            while came.is_ok()
                && under_way.len() < abreast
                && !self.is_over()
                && round.refusals < REFUSALS_MAX
            {
                let parcel = match (due.is_empty(), last.is_empty()) {
                    (false, _) => self.measure.share(count, abreast).pack(&mut due, token, now_ms),
                    (true, false) if under_way.is_empty() => Measure::least().pack(&mut last, token, now_ms),
                    _ => break,
                };
                under_way.push(send(self.hub, self.leadership, parcel));
            }
            let Some(sent) = under_way.next().await else { break };
            let settled = self.settle(sent, round).await;
            came = came.and(settled);
        }
        // Those that were put off are out of the way of the next round.
        round.more |= round.refusals >= REFUSALS_MAX;
        came
    }

    /// Heeds what came of a parcel; what is left of it is delivered part by part.
    async fn settle(&mut self, sent: Sent, round: &mut Round) -> Result<(), Broken> {
        let (mut next, mut parcels) = (Some(sent), Vec::new());
        loop {
            let sent = match (next.take(), parcels.pop()) {
                (Some(sent), _) => sent,
                (None, None) => return Ok(()),
                (None, Some(_)) if self.is_over() || round.refusals >= REFUSALS_MAX => return Ok(()),
                (None, Some(parcel)) => send(self.hub, self.leadership, parcel).await,
            };
            self.note(&sent, round);
            let Sent { parcel, came, .. } = sent;
            let error = match came {
                Ok(fired) => {
                    round.silences = 0;
                    for due in &parcel.due {
                        self.shunned.remove(&due.key);
                    }
                    let refused = heed(parcel, fired, round, self.late_since(round));
                    if !refused.is_empty() {
                        parcels.push(Parcel::put_off(refused, round.store_ms));
                    }
                    continue;
                }
                Err(Broken::Store(error)) if is_about_the_parcel(&error) || may_be_its_size(&error) => error,
                Err(broken) => return Err(broken),
            };
            round.silences += usize::from(may_be_its_size(&error));
            match parcel.len() {
                2.. if parcel.puts_off || is_about_the_parcel(&error) => {
                    let [first, second] = parcel.halves();
                    parcels.extend([second, first]);
                }
                1 if parcel.puts_off => self.shun(&parcel.due[0].key, &error),
                _ if may_be_its_size(&error) && parcel.ticks() > 1 => {
                    self.measure.was_too_large(&parcel);
                    return Err(error.into());
                }
                _ => {
                    let why = error.to_string();
                    let refused = parcel.due.into_iter().map(|due| (due, why.clone())).collect();
                    parcels.push(Parcel::put_off(refused, round.store_ms));
                }
            }
            if round.silences >= SILENCES_MAX {
                return Err(error.into());
            }
            round.refusals += 1;
        }
    }

    /// It stays due, and does not stand in the way of the others.
    fn shun(&mut self, key: &ScheduleKey, error: &StoreError) {
        tracing::error!(schedule = %key, "can neither fire nor be put off: {error}");
        if self.shunned.len() >= SHUNNED_MAX {
            self.shunned.clear();
        }
        self.shunned.insert(key.clone());
    }

    /// Notes down what a call that arrived says about the next ones.
    fn note(&mut self, Sent { parcel, took, came }: &Sent, round: &mut Round) {
        if came.is_err() {
            return;
        }
        if !parcel.puts_off {
            self.measure.arrived(parcel, *took, self.hub.timing.beat());
        }
        for due_ms in parcel.firings.iter().filter_map(|firing| firing.due_ms) {
            round.next_ms = Some(round.next_ms.map_or(due_ms, |next| next.min(due_ms)));
            round.more |= due_ms <= round.store_ms;
        }
    }

    /// The store's clock by now, as far as we know.
    fn late_since(&self, round: &Round) -> i64 {
        let passed = self.hub.runtime.now().since(round.seen_at).as_millis();
        round.store_ms.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }

    /// Whether nothing new is to be begun.
    fn is_over(&self) -> bool {
        *self.halt.borrow() || self.leadership.is_asked() || !self.leadership.is_leader()
    }
}

/// One call.
async fn send(hub: &Hub, leadership: &Leadership, mut parcel: Parcel) -> Sent {
    if !leadership.is_leader() {
        return Sent { parcel, took: Duration::ZERO, came: Err(Broken::NotLeading) };
    }
    // Lent, not copied: they may be large.
    let firings = std::mem::take(&mut parcel.firings);
    let (session, token) = (leadership.session().clone(), leadership.token());
    let fire = Fire { session, token, firings };
    let began = hub.runtime.now();
    let fired = hub.bounded(hub.store.fire(&fire)).await;
    let took = hub.runtime.now().since(began);
    metrics::scheduler_called(took);
    parcel.firings = fire.firings;
    let came = match fired {
        Ok(Some(fired)) if fired.len() == parcel.len() => Ok(fired),
        Ok(Some(fired)) => {
            let (told, asked) = (fired.len(), parcel.len());
            let message = format!("the store told of {told} firings, and was asked for {asked}");
            Err(StoreError::new(Trouble::Unavailable, message).into())
        }
        Ok(None) => Err(Broken::NotLeading),
        Err(error) => Err(error.into()),
    };
    Sent { parcel, took, came }
}

/// Counts what came of a parcel, and tells what was refused, and why.
fn heed(parcel: Parcel, fired: Vec<Fired>, round: &mut Round, now_ms: i64) -> Vec<(DueSchedule, String)> {
    let mut refused = Vec::new();
    for ((due, firing), fired) in parcel.due.into_iter().zip(&parcel.firings).zip(fired) {
        match fired {
            Fired::Yes => {
                round.counted += 1;
                if !parcel.puts_off {
                    metrics::fired(firing, now_ms);
                }
            }
            Fired::Stale => {
                round.stale += 1;
                metrics::firing_over("stale");
            }
            Fired::Refused(why) if parcel.puts_off => {
                tracing::error!(schedule = %due.key, "the store does not even put it off: {why}");
            }
            Fired::Refused(why) => {
                tracing::warn!(schedule = %due.key, "can not fire: {why}");
                metrics::firing_over("refused");
                refused.push((due, why));
            }
        }
    }
    refused
}

/// Whether a smaller parcel may do better: the store did nothing, for what it was given.
fn is_about_the_parcel(error: &StoreError) -> bool {
    matches!(error.kind, Trouble::Request | Trouble::Other)
}

/// Whether a smaller one may, although what became of this one is not known.
fn may_be_its_size(error: &StoreError) -> bool {
    matches!(error.kind, Trouble::Timeout | Trouble::Unavailable)
}

/// Completes when the leader is to finish.
pub(super) async fn over(leadership: &Leadership, halt: &mut watch::Receiver<bool>) {
    tokio::select! {
        _ = leadership.asked() => {}
        // A handle that is gone has told us before.
        _ = halt.wait_for(|halt| *halt) => {}
    }
}

/// Has the store forget ticks that are old, in small bites.
pub(super) async fn prune(hub: &Hub, leadership: &Leadership) {
    loop {
        hub.pause(hub.timing.beat() * PRUNE_EVERY).await;
        loop {
            let (session, token) = (leadership.session(), leadership.token());
            match hub.bounded(hub.store.prune_ticks(session, token, PRUNE_MAX)).await {
                Ok((count, more)) => {
                    metrics::ticks_pruned(count);
                    if !more {
                        break;
                    }
                }
                Err(error) => {
                    tracing::debug!("can not forget old ticks: {error}");
                    break;
                }
            }
            hub.pause(BREATH).await;
        }
    }
}

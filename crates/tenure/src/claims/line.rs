//! Those who wait for tasks of one queue, in the order in which they came.
//!
//! A claim takes a *ticket*. A look is one call to the store with the seats of all tickets, in order; who gets something leaves
//! the line, and the others stay until their time is over. The first ticket is looked after at once; what comes while looks are
//! under way waits for the next one. That is the coalescing; in the leader's lane, with one look at a time, it is the broker:
//! tickets of other processes stand in the same line ([`Asker::There`]), strictly in order of arrival.
//!
//! **Sleeping.** When a look finds nothing for somebody who waits, the session says that it dozes ([`Tasks::doze`]), and *then*
//! looks once more: what was submitted before was seen by that look, what is submitted later rings. A submission whose
//! transaction was open meanwhile does neither, so there are looks after 10 ms and 100 ms; then every second or so, saying again
//! that it dozes, since a ring takes that word back and may itself be lost. After a ring it looks at once, and says that it dozes
//! only if there is nothing.
//!
//! **The store is away**: everybody in the batch gets the error, and whether something was claimed for them is found out
//! afterwards ([`Hub::doubt`]).
//!
//! [`Tasks::doze`]: tenure_core::port::Tasks::doze

use std::collections::{BTreeMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::port::{
    Authority, CLAIM_MAX, ClaimAnswer, ClaimAsk, ClaimRefusal, QueueKey, Seat, StoreError, Trouble,
};
use tenure_core::{Moment, SessionId};
use tokio::sync::{Notify, oneshot, watch};

use super::batch::CROWD;
use super::holdings::Handed;
use super::hub::{Hub, Reign};
use super::link;
use crate::metrics;

/// How many looks of one queue are under way at once where order is approximate anyhow.
const LOOKS_AT_ONCE: usize = 2;

/// The most tickets in one look.
const TICKETS_MAX: usize = CLAIM_MAX as usize;

/// How often one look asks, each time without those for whom the store refused the others.
const ROUNDS_MAX: usize = 4;

/// When to look again after a look that found nothing, counted from that look; then the last, for ever, give or take a fifth.
const NAPS: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// In whose name a line asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    Direct,
    Leader,
    Fallback,
}

/// What comes of a ticket.
pub(crate) enum Outcome {
    Tasks(Handed),
    Refused(ClaimRefusal),
    Failed(StoreError),
}

/// Who holds a ticket.
pub(crate) enum Asker {
    /// Somebody in this process.
    Here(oneshot::Sender<Outcome>),
    /// Somebody at the other end of a connection.
    There(link::Remote),
}

impl Asker {
    fn is_gone(&self) -> bool {
        match self {
            Asker::Here(sender) => sender.is_closed(),
            Asker::There(remote) => remote.is_gone(),
        }
    }

    fn answer(self, outcome: Outcome) {
        match self {
            // Tasks for somebody who has left go back by themselves.
            Asker::Here(sender) => drop(sender.send(outcome)),
            Asker::There(remote) => remote.answer(outcome),
        }
    }
}

struct Ticket {
    seat: Seat,
    until: Moment,
    asker: Asker,
    /// Whether there was a look for it already.
    looked: bool,
    /// What the last look said instead of looking.
    refused: Option<ClaimRefusal>,
}

/// The line before one queue, in one lane.
pub(crate) struct Line {
    key: QueueKey,
    lane: Lane,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    tickets: BTreeMap<u64, Ticket>,
    next: u64,
    /// Whether a task looks after this line.
    tended: bool,
}

impl Line {
    pub(crate) fn new(key: QueueKey, lane: Lane) -> Line {
        Line { key, lane, state: Mutex::default(), news: Notify::new() }
    }

    /// Takes a place in the line and waits for what comes of it. Dropped, it leaves the line.
    pub(crate) async fn ask(self: &Arc<Self>, hub: &Arc<Hub>, seat: Seat, until: Moment) -> Outcome {
        let (sender, receiver) = oneshot::channel();
        let leaving = Leaving(self);
        self.join(hub, seat, until, Asker::Here(sender));
        let outcome = receiver.await;
        std::mem::forget(leaving);
        outcome.unwrap_or_else(|_| {
            Outcome::Failed(StoreError::new(Trouble::Other, "a claim was given up; ask again"))
        })
    }

    /// Takes a place in the line.
    pub(crate) fn join(self: &Arc<Self>, hub: &Arc<Hub>, seat: Seat, until: Moment, asker: Asker) {
        let seat = Seat { limit: seat.limit.min(CLAIM_MAX), ..seat };
        let mut state = self.locked();
        let number = state.next;
        state.next += 1;
        state.tickets.insert(number, Ticket { seat, until, asker, looked: false, refused: None });
        if std::mem::replace(&mut state.tended, true) {
            drop(state);
            self.news.notify_one();
        } else {
            drop(state);
            hub.handle.spawn(Tender::new(self.clone(), hub.clone()).run());
        }
    }

    /// Somebody has left: the line may be empty now.
    pub(crate) fn somebody_left(&self) {
        self.news.notify_one();
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.locked().tended
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the line when somebody who asked is dropped.
struct Leaving<'a>(&'a Line);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.somebody_left();
    }
}

/// How it sleeps.
struct Sleep {
    /// The store knows that we sleep, as far as we know, and a look came after.
    dozes: bool,
    /// How many looks there were since.
    naps: usize,
    /// When to look again.
    next: Moment,
    /// Something rang: the next look need not say first that we sleep.
    rung: bool,
}

impl Sleep {
    /// Awake, and about to look.
    fn none(rung: bool) -> Sleep {
        Sleep { dozes: false, naps: 0, next: Moment::ZERO, rung }
    }
}

/// What one look brought back.
struct Looked {
    tickets: Vec<(u64, Ticket)>,
    dozed: bool,
    /// When it began, on our own clock.
    began: Moment,
    result: Result<ClaimAnswer, StoreError>,
}

/// Looks after a line for as long as somebody stands in it.
struct Tender {
    line: Arc<Line>,
    hub: Arc<Hub>,
    bell: watch::Receiver<()>,
    _bell: Arc<super::bells::Bell>,
    sleep: Sleep,
    looks: FuturesUnordered<BoxFuture<'static, Looked>>,
}

impl Tender {
    fn new(line: Arc<Line>, hub: Arc<Hub>) -> Tender {
        let bell = hub.shared.bells.queue(&line.key);
        let sleep = Sleep::none(false);
        Tender { bell: bell.subscribe(), _bell: bell, line, hub, sleep, looks: FuturesUnordered::new() }
    }

    async fn run(mut self) {
        let mut reign = self.hub.reign.subscribe();
        loop {
            if self.line.lane == Lane::Leader && self.hub.reign().is_none() {
                self.refuse_all(&ClaimRefusal::NotLeader);
            }
            // Those who were woken together ask together: let them.
            tokio::task::yield_now().await;
            self.see_off();
            self.look_if_due();
            if self.looks.is_empty() && self.leave_if_empty() {
                return;
            }
            let due = self.due();
            let (hub, line) = (self.hub.clone(), self.line.clone());
            tokio::select! {
                biased;
                Some(looked) = self.looks.next() => self.back(looked),
                () = line.news.notified() => {}
                // The bell outlives its listeners.
                _ = self.bell.changed() => self.rung(),
                _ = reign.changed() => {}
                () = hub.runtime.sleep_until(due) => {}
                () = hub.closed() => return self.close(),
            }
        }
    }

    fn looks_at_once(&self) -> usize {
        if self.line.lane == Lane::Leader { 1 } else { LOOKS_AT_ONCE }
    }

    /// Those who left, and those whose time is over.
    fn see_off(&self) {
        let now = self.hub.runtime.now();
        let over: Vec<Ticket> = {
            let tickets = &mut self.line.locked().tickets;
            tickets.retain(|_, ticket| !ticket.asker.is_gone());
            // A first look comes even when there is no time to wait; but not for ever, if the line is that long.
            let late = self.hub.call_limit();
            let over =
                |ticket: &Ticket| now >= if ticket.looked { ticket.until } else { ticket.until + late };
            let over = tickets.iter().filter(|(_, ticket)| over(ticket));
            let over: Vec<u64> = over.map(|(number, _)| *number).collect();
            over.iter().filter_map(|number| tickets.remove(number)).collect()
        };
        over.into_iter().for_each(|ticket| self.over(ticket));
    }

    fn look_if_due(&mut self) {
        let now = self.hub.runtime.now();
        let (fresh, crowd) = {
            let state = self.line.locked();
            let fresh = state.tickets.values().take(TICKETS_MAX).filter(|ticket| !ticket.looked);
            let (mut any, mut wanted) = (false, 0);
            for ticket in fresh {
                any = true;
                wanted += ticket.seat.limit as usize;
            }
            (any, wanted >= CROWD)
        };
        let at_once = if crowd { self.looks_at_once() } else { 1 };
        if (fresh && self.looks.len() < at_once) || (self.looks.is_empty() && self.sleep.next <= now) {
            // The last nap says it again: a ring takes the word back, and may itself be lost.
            let rung = std::mem::take(&mut self.sleep.rung);
            let doze = !fresh && !rung && (!self.sleep.dozes || self.sleep.naps >= NAPS.len() - 1);
            self.look(doze);
        }
    }

    fn look(&mut self, doze: bool) {
        let tickets = self.batch();
        if tickets.is_empty() {
            return;
        }
        let (hub, key) = (self.hub.clone(), self.line.key.clone());
        let reign = self.hub.reign();
        let authority = match (self.line.lane, &reign) {
            (Lane::Direct, _) => Authority::Direct,
            (Lane::Fallback, _) => Authority::Fallback,
            (Lane::Leader, Some(reign)) => {
                Authority::Leader { session: reign.session.clone(), token: reign.token }
            }
            (Lane::Leader, None) => {
                tickets.into_iter().for_each(|(_, ticket)| refuse(ticket, ClaimRefusal::NotLeader));
                return;
            }
        };
        let seats = seats(tickets.iter().map(|(_, ticket)| &ticket.seat));
        let ask = ClaimAsk { queue: key, authority, seats };
        self.looks.push(look(hub, ask, tickets, doze, reign, self.line.lane).boxed());
    }

    /// As many as fit into one call, in order. Who wants much leaves room for one task for each of the others: a look serves
    /// all that it can, and nobody's turn waits for somebody else's work to come.
    fn batch(&self) -> Vec<(u64, Ticket)> {
        let mut state = self.line.locked();
        let count = state.tickets.len().min(TICKETS_MAX);
        (0..count).filter_map(|_| state.tickets.pop_first()).collect()
    }

    /// A look is back.
    fn back(&mut self, looked: Looked) {
        let Looked { tickets, dozed, began, result } = looked;
        let now = self.hub.runtime.now();
        let mut next_in = None;
        let (mut waiting, namespace) = (Vec::new(), &self.line.key.namespace);
        match result {
            Ok(ClaimAnswer::Served { tasks, next_in: soon }) => {
                next_in = soon;
                let mut tasks = tasks.into_iter();
                for (number, mut ticket) in tickets {
                    let tasks = Handed::new(&self.hub, namespace, tasks.next().unwrap_or_default(), began);
                    ticket.refused = None;
                    if tasks.tasks().is_empty() {
                        waiting.push((number, ticket));
                    } else {
                        ticket.asker.answer(Outcome::Tasks(tasks));
                    }
                }
            }
            Ok(ClaimAnswer::Refused(refusal)) => {
                for (number, mut ticket) in tickets {
                    match concerns(&refusal, &ticket.seat) {
                        Concern::Now => refuse(ticket, refusal.clone()),
                        Concern::Later => {
                            ticket.refused = Some(refusal.clone());
                            waiting.push((number, ticket));
                        }
                        // Refused because of another one: it was not looked at.
                        Concern::No => drop(self.line.locked().tickets.insert(number, ticket)),
                    }
                }
            }
            Err(error) => {
                tickets
                    .into_iter()
                    .for_each(|(_, ticket)| ticket.asker.answer(Outcome::Failed(error.clone())));
            }
        }
        self.wait_on(waiting, now);
        self.lie_down(dozed, next_in, now);
    }

    /// Who got nothing stays, if there is time.
    fn wait_on(&self, waiting: Vec<(u64, Ticket)>, now: Moment) {
        for (number, mut ticket) in waiting {
            if ticket.until > now {
                ticket.looked = true;
                self.line.locked().tickets.insert(number, ticket);
            } else {
                self.over(ticket);
            }
        }
    }

    fn over(&self, ticket: Ticket) {
        let nothing = Handed::new(&self.hub, &self.line.key.namespace, Vec::new(), Moment::ZERO);
        ticket.asker.answer(match ticket.refused {
            Some(refusal) => Outcome::Refused(refusal),
            None => Outcome::Tasks(nothing),
        });
    }

    /// After a look: when to look again.
    fn lie_down(&mut self, dozed: bool, next_in: Option<Duration>, now: Moment) {
        if dozed && !self.bell.has_changed().unwrap_or(false) {
            self.sleep.naps = if self.sleep.dozes { self.sleep.naps } else { 0 };
            self.sleep.dozes = true;
        } else if !self.sleep.dozes {
            // Not before the store knows that we sleep.
            self.sleep.next = now;
            return;
        }
        let nap = NAPS[self.sleep.naps.min(NAPS.len() - 1)];
        let nap = if self.sleep.naps + 1 < NAPS.len() { nap } else { self.hub.jittered(nap) };
        self.sleep.naps += 1;
        let soon = next_in.map(|soon| soon.max(Duration::from_millis(1)));
        self.sleep.next = now + soon.map_or(nap, |soon| soon.min(nap));
    }

    fn rung(&mut self) {
        self.sleep = Sleep::none(true);
    }

    fn refuse_all(&self, refusal: &ClaimRefusal) {
        let tickets = std::mem::take(&mut self.line.locked().tickets);
        tickets.into_values().for_each(|ticket| refuse(ticket, refusal.clone()));
    }

    fn close(&self) {
        let tickets = {
            let mut state = self.line.locked();
            state.tended = false;
            std::mem::take(&mut state.tickets)
        };
        let closed = StoreError::new(Trouble::Unavailable, "this Tenure was closed");
        tickets.into_values().for_each(|ticket| ticket.asker.answer(Outcome::Failed(closed.clone())));
    }

    /// Under the lock, so that who comes next finds the line either tended or not.
    fn leave_if_empty(&self) -> bool {
        let mut state = self.line.locked();
        let empty = state.tickets.is_empty();
        state.tended = !empty;
        empty
    }

    /// The next moment at which there is something to do without anything happening.
    fn due(&self) -> Moment {
        let state = self.line.locked();
        let first = state.tickets.values().filter(|ticket| ticket.looked).map(|ticket| ticket.until).min();
        let look = (self.looks.is_empty() && !state.tickets.is_empty()).then_some(self.sleep.next);
        let far = self.hub.runtime.now() + Duration::from_secs(3600);
        first.into_iter().chain(look).chain([far]).min().unwrap_or(far)
    }
}

/// The seats of one call: together no more than one call hands out, and at least one task for each.
fn seats<'a>(wishes: impl ExactSizeIterator<Item = &'a Seat>) -> Vec<Seat> {
    let (mut room, mut others) = (CLAIM_MAX, u32::try_from(wishes.len()).unwrap_or(CLAIM_MAX));
    let seat = |wish: &Seat| {
        others = others.saturating_sub(1);
        let limit = wish.limit.min(room.saturating_sub(others));
        room -= limit;
        Seat { limit, ..wish.clone() }
    };
    wishes.map(seat).collect()
}

fn refuse(ticket: Ticket, refusal: ClaimRefusal) {
    ticket.asker.answer(Outcome::Refused(refusal));
}

/// Whom a refusal of a whole batch concerns.
enum Concern {
    Now,
    /// It may pass while one waits.
    Later,
    No,
}

fn concerns(refusal: &ClaimRefusal, seat: &Seat) -> Concern {
    match refusal {
        ClaimRefusal::Mode(_) | ClaimRefusal::NotLeader => Concern::Now,
        ClaimRefusal::Paused => Concern::Later,
        ClaimRefusal::NotApproved(worker) if *worker == seat.worker.name => Concern::Now,
        ClaimRefusal::Gone(session) if Some(session) == seat.session.as_ref() => Concern::Now,
        ClaimRefusal::NotApproved(_) | ClaimRefusal::Gone(_) => Concern::No,
    }
}

/// One call to the store; and again at once without those that it does not want to see, so that nobody's turn waits for
/// another's approval. The leader's lease is not given back while its look is under way: `reign` sees to that.
async fn look(
    hub: Arc<Hub>,
    mut ask: ClaimAsk,
    mut tickets: Vec<(u64, Ticket)>,
    doze: bool,
    reign: Option<Arc<Reign>>,
    lane: Lane,
) -> Looked {
    let dozed = doze && doze_at(&hub, &ask.queue).await;
    let mut rounds = 0;
    let (began, result) = loop {
        let began = hub.runtime.now();
        let result = call(&hub, &ask).await;
        metrics::looked(&ask.queue, lane, &result, hub.runtime.now().since(began));
        rounds += 1;
        let Ok(ClaimAnswer::Refused(refusal)) = &result else { break (began, result) };
        let Some(unwelcome) = unwelcome(&hub, &ask, refusal).await else { break (began, result) };
        for (number, ticket) in std::mem::take(&mut tickets) {
            match unwelcome.refusal(&ticket.seat) {
                Some(refusal) => refuse(ticket, refusal),
                None => tickets.push((number, ticket)),
            }
        }
        if tickets.is_empty() || rounds >= ROUNDS_MAX {
            break (began, result);
        }
        ask.seats = seats(tickets.iter().map(|(_, ticket)| &ticket.seat));
    };
    drop(reign);
    Looked { tickets, dozed, began, result }
}

async fn call(hub: &Arc<Hub>, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
    let call = AssertUnwindSafe(hub.bounded(hub.store.claim(ask)));
    let result = call
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(StoreError::new(Trouble::Other, "a call to the store panicked")));
    let result = result.and_then(|answer| answers_all(answer, ask.seats.len()));
    if result.is_err() {
        hub.doubt(&ask.queue.namespace);
    }
    result
}

/// Those for whom the store does not serve the others.
#[derive(Default)]
struct Unwelcome {
    workers: HashSet<String>,
    sessions: HashSet<SessionId>,
}

impl Unwelcome {
    fn refusal(&self, seat: &Seat) -> Option<ClaimRefusal> {
        let gone = seat.session.as_ref().filter(|session| self.sessions.contains(session));
        match gone {
            Some(session) => Some(ClaimRefusal::Gone(session.clone())),
            None if self.workers.contains(&seat.worker.name) => {
                Some(ClaimRefusal::NotApproved(seat.worker.name.clone()))
            }
            None => None,
        }
    }
}

/// A refusal names one of those whom it concerns. Who the others are is asked once, not found one by one. `None` if it concerns
/// everybody.
async fn unwelcome(hub: &Hub, ask: &ClaimAsk, refusal: &ClaimRefusal) -> Option<Unwelcome> {
    let mut unwelcome = Unwelcome::default();
    match refusal {
        ClaimRefusal::Mode(_) | ClaimRefusal::NotLeader | ClaimRefusal::Paused => return None,
        ClaimRefusal::NotApproved(named) => {
            let names: HashSet<String> = ask.seats.iter().map(|seat| seat.worker.name.clone()).collect();
            if names.len() > 1 {
                let known = hub.bounded(hub.store.workers(Some(&ask.queue.namespace))).await;
                unwelcome.workers =
                    without(names, known, |view| view.approved_by.is_some().then_some(view.worker.name));
            }
            unwelcome.workers.insert(named.clone());
        }
        ClaimRefusal::Gone(named) => {
            let ids: HashSet<SessionId> = ask.seats.iter().filter_map(|seat| seat.session.clone()).collect();
            if ids.len() > 1 {
                let asked: Vec<SessionId> = ids.iter().cloned().collect();
                let known = hub.bounded(hub.store.sessions(Some(&asked))).await;
                unwelcome.sessions = without(ids, known, |view| view.live.then_some(view.id));
            }
            unwelcome.sessions.insert(named.clone());
        }
    }
    Some(unwelcome)
}

/// All without those that are good; none, if the store does not say.
fn without<T: Eq + std::hash::Hash, V>(
    mut all: HashSet<T>,
    known: Result<Vec<V>, StoreError>,
    good: impl Fn(V) -> Option<T>,
) -> HashSet<T> {
    match known {
        Ok(known) => {
            let good: HashSet<T> = known.into_iter().filter_map(good).collect();
            all.retain(|one| !good.contains(one));
        }
        Err(error) => {
            tracing::debug!("can not see who may claim: {error}");
            all.clear();
        }
    }
    all
}

async fn doze_at(hub: &Hub, queue: &QueueKey) -> bool {
    let Some(session) = hub.session() else { return true };
    if let Err(error) = hub.bounded(hub.store.doze(&session, std::slice::from_ref(queue))).await {
        tracing::debug!(%queue, "can not say that we sleep, polling instead: {error}");
    }
    true
}

fn answers_all(answer: ClaimAnswer, seats: usize) -> Result<ClaimAnswer, StoreError> {
    match &answer {
        ClaimAnswer::Served { tasks, .. } if tasks.len() != seats => Err(StoreError::new(
            Trouble::Other,
            format!("the store served {} of {seats} seats; this is a bug", tasks.len()),
        )),
        _ => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(limits: &[u32]) -> Vec<u32> {
        let wishes: Vec<Seat> = limits
            .iter()
            .map(|limit| Seat { worker: Default::default(), limit: *limit, session: None, hold_ms: None })
            .collect();
        seats(wishes.iter()).iter().map(|seat| seat.limit).collect()
    }

    #[test]
    fn who_wants_much_leaves_one_for_each_of_the_others() {
        assert_eq!(shares(&[5, 3]), [5, 3]);
        assert_eq!(shares(&[1000, 1000, 7]), [998, 1, 1]);
        assert_eq!(shares(&[500, 300, 1000]), [500, 300, 200]);
        assert_eq!(shares(&vec![1000; 1000]), vec![1; 1000]);
    }
}

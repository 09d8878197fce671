//! Whoever looks after a line: when it looks, when it sleeps, and what becomes of those who wait.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::Moment;
use tenure_core::port::{
    Authority, CLAIM_MAX, ClaimAnswer, ClaimAsk, ClaimRefusal, Seat, StoreError, Trouble,
};
use tokio::sync::watch;

use super::look::{Looked, look, seats};
use super::{Lane, Line, Outcome, Ticket, UnderWay, refuse};
use crate::claims::batch::CROWD;
use crate::claims::bells::Bell;
use crate::claims::holdings::Handed;
use crate::claims::hub::Hub;

/// How many looks of one queue are under way at once where order is approximate anyhow.
const LOOKS_AT_ONCE: usize = 2;

/// The most tickets in one look.
const TICKETS_MAX: usize = CLAIM_MAX as usize;

/// When to look again after a look that found nothing, counted from that look; then the last, for ever, give or take a fifth.
const NAPS: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

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

/// Looks after a line for as long as somebody stands in it.
pub(super) struct Tender {
    line: Arc<Line>,
    hub: Arc<Hub>,
    bell: watch::Receiver<()>,
    _bell: Arc<Bell>,
    sleep: Sleep,
    looks: FuturesUnordered<BoxFuture<'static, (Looked, UnderWay)>>,
}

impl Tender {
    pub(super) fn new(line: Arc<Line>, hub: Arc<Hub>) -> Tender {
        let bell = hub.shared.bells.queue(&line.key);
        let sleep = Sleep::none(false);
        Tender { bell: bell.subscribe(), _bell: bell, line, hub, sleep, looks: FuturesUnordered::new() }
    }

    pub(super) async fn run(mut self) {
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
                Some((looked, _under_way)) = self.looks.next() => self.back(looked),
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
        let Some((tickets, under_way)) = self.batch() else { return };
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
        let looked = look(hub, ask, tickets, doze, reign, self.line.lane);
        self.looks.push(looked.map(|looked| (looked, under_way)).boxed());
    }

    /// As many as fit into one call, in order. Who wants much leaves room for one task for each of the others: a look serves
    /// all that it can, and nobody's turn waits for somebody else's work to come.
    ///
    /// Nobody is looked for who has left: who has, and then asks which looks are under way, knows all that may find something for it.
    fn batch(&self) -> Option<(Vec<(u64, Ticket)>, UnderWay)> {
        let mut state = self.line.locked();
        let count = state.tickets.len().min(TICKETS_MAX);
        let tickets = (0..count).filter_map(|_| state.tickets.pop_first());
        let tickets: Vec<_> = tickets.filter(|(_, ticket)| !ticket.asker.is_gone()).collect();
        if tickets.is_empty() {
            return None;
        }
        let number = state.next_look;
        state.next_look += 1;
        state.looks.insert(number);
        Some((tickets, UnderWay { line: self.line.clone(), number }))
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

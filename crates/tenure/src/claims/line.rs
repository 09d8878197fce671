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

mod look;
mod tender;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::Moment;
use tenure_core::port::{CLAIM_MAX, ClaimRefusal, QueueKey, Seat, StoreError, Trouble};
use tokio::sync::{Notify, oneshot};

use self::tender::Tender;
use super::holdings::Handed;
use super::hub::Hub;
use super::link;

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
    /// A look is over.
    looked: Notify,
}

#[derive(Default)]
struct State {
    tickets: BTreeMap<u64, Ticket>,
    next: u64,
    /// The looks that are under way, and the number of the next.
    looks: BTreeSet<u64>,
    next_look: u64,
    /// Whether a task looks after this line.
    tended: bool,
}

impl Line {
    pub(crate) fn new(key: QueueKey, lane: Lane) -> Line {
        Line { key, lane, state: Mutex::default(), news: Notify::new(), looked: Notify::new() }
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

    /// Until every look that is under way now is over: what it finds for who has left is on its way back then.
    pub(crate) async fn looks_over(&self) {
        let next = self.locked().next_look;
        loop {
            let looked = self.looked.notified();
            tokio::pin!(looked);
            looked.as_mut().enable();
            if self.locked().looks.first().is_none_or(|first| *first >= next) {
                return;
            }
            looked.await;
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

/// A look that is under way, until what it found was handed over.
struct UnderWay {
    line: Arc<Line>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.line.locked().looks.remove(&self.number);
        self.line.looked.notify_waiters();
    }
}

fn refuse(ticket: Ticket, refusal: ClaimRefusal) {
    ticket.asker.answer(Outcome::Refused(refusal));
}

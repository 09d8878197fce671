//! One look: a call to the store for all who wait.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tenure_core::port::{
    CLAIM_MAX, ClaimAnswer, ClaimAsk, ClaimRefusal, QueueKey, Seat, StoreError, Trouble,
};
use tenure_core::{Moment, SessionId};

use super::{Lane, Ticket, refuse};
use crate::claims::hub::{Hub, Reign};
use crate::metrics;

/// How often one look asks, each time without those for whom the store refused the others.
const ROUNDS_MAX: usize = 4;

/// What one look brought back.
pub(super) struct Looked {
    pub(super) tickets: Vec<(u64, Ticket)>,
    pub(super) dozed: bool,
    /// When it began, on our own clock.
    pub(super) began: Moment,
    pub(super) result: Result<ClaimAnswer, StoreError>,
}

/// The seats of one call: together no more than one call hands out, and at least one task for each.
pub(super) fn seats<'a>(wishes: impl ExactSizeIterator<Item = &'a Seat>) -> Vec<Seat> {
    let (mut room, mut others) = (CLAIM_MAX, u32::try_from(wishes.len()).unwrap_or(CLAIM_MAX));
    let seat = |wish: &Seat| {
        others = others.saturating_sub(1);
        let limit = wish.limit.min(room.saturating_sub(others));
        room -= limit;
        Seat { limit, ..wish.clone() }
    };
    wishes.map(seat).collect()
}

/// One call to the store; and again at once without those that it does not want to see, so that nobody's turn waits for
/// another's approval. The leader's lease is not given back while its look is under way: `reign` sees to that.
pub(super) async fn look(
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

//! Which way a claim goes.
//!
//! A process remembers the mode of each queue as the store last said it, and asks in that mode; when the store says that it is
//! another, it asks in that one. In exclusive mode: if this process leads, here; if the leader can be reached, there; else as
//! the queue's fallback allows, which the store decides. Whatever a process believes, nothing is handed out twice: mode, lease
//! and task are checked in the transaction that hands out.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Moment;
use tenure_core::port::{
    Authority, ClaimRefusal, Mode, PoolKey, PoolMatch, QueueKey, RequestId, Seat, StoreError, Trouble,
};

use super::batch::{Batcher, Measure};
use super::holdings::Handed;
use super::hub::{Hub, locked};
use super::line::{Lane, Outcome};
use super::link::{Connection, Told};
use crate::metrics;

/// How long one asks in the fallback's way before it looks for the leader again.
const FALLBACK_FOR: Duration = Duration::from_secs(1);

/// How often one looks for a leader while there is none.
const SEEK_EVERY: Duration = Duration::from_millis(100);

/// What came of handing out what is free of a pool.
pub(crate) type Matched = Result<(), ClaimRefusal>;

/// What came of asking for tasks.
pub(crate) enum Got {
    Tasks(Handed),
    Refused(ClaimRefusal),
    NotNow,
}

/// Where the leader is.
enum Leader {
    Here,
    There(Arc<Connection>),
    Nowhere,
}

/// What to do next.
enum Step {
    Done(Outcome),
    /// The mode was another, or the leader.
    Again,
    /// Nobody leads, and the queue wants order.
    NotNow,
}

impl Hub {
    /// Claims, whichever way it goes.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        queue: &QueueKey,
        seat: Seat,
        wait: Duration,
    ) -> Result<Got, StoreError> {
        let _gauge = metrics::in_flight(queue);
        let until = self.runtime.now() + wait;
        let mut turns = 0;
        loop {
            let step = match self.mode(queue) {
                Mode::Exclusive if !self.store.routes_claims() => self.exclusive(queue, &seat, until).await,
                _ => {
                    let outcome = self.line(queue, Lane::Direct).ask(self, seat.clone(), until).await;
                    self.heed(queue, outcome)
                }
            };
            match step {
                Step::Done(outcome) => return self.claimed(queue, &seat, outcome),
                Step::NotNow if self.runtime.now() >= until => return Ok(Got::NotNow),
                Step::NotNow => self.await_leader(until).await,
                // Modes that change under our hands, or leaders: not for ever, and not without a breath.
                Step::Again if turns > 100 && self.runtime.now() >= until => return Ok(Got::NotNow),
                Step::Again if turns > 3 => self.pause(Duration::from_millis(20)).await,
                Step::Again => {}
            }
            turns += 1;
        }
    }

    fn claimed(&self, queue: &QueueKey, seat: &Seat, outcome: Outcome) -> Result<Got, StoreError> {
        match outcome {
            Outcome::Tasks(mut handed) => {
                if let Some(session) =
                    seat.session.as_ref().filter(|session| Some(*session) == self.session().as_ref())
                {
                    self.holdings.add(session, &mut handed);
                }
                metrics::waited(queue, handed.tasks(), self.runtime.wall_ms());
                Ok(Got::Tasks(handed))
            }
            Outcome::Refused(refusal) => Ok(Got::Refused(refusal)),
            Outcome::Failed(error) => Err(error),
        }
    }

    /// Remembers what the store says about the mode.
    fn heed(&self, queue: &QueueKey, outcome: Outcome) -> Step {
        match outcome {
            Outcome::Refused(ClaimRefusal::Mode(mode)) if !self.store.routes_claims() => {
                self.set_mode(queue, mode);
                Step::Again
            }
            // A server has looked for the leader already.
            Outcome::Refused(ClaimRefusal::NotLeader) if self.store.routes_claims() => Step::NotNow,
            Outcome::Refused(ClaimRefusal::NotLeader) => Step::Again,
            outcome => Step::Done(outcome),
        }
    }

    async fn exclusive(self: &Arc<Self>, queue: &QueueKey, seat: &Seat, until: Moment) -> Step {
        match self.leader().await {
            Leader::Here => {
                tracing::debug!(%queue, worker = seat.worker.name, "processing claim as leader");
                let outcome = self.line(queue, Lane::Leader).ask(self, seat.clone(), until).await;
                self.heed(queue, outcome)
            }
            Leader::There(connection) => {
                tracing::debug!(%queue, worker = seat.worker.name, "delegating claim to leader");
                self.delegate(&connection, queue, seat, until).await
            }
            Leader::Nowhere => {
                tracing::debug!(%queue, worker = seat.worker.name, "the broker cannot be reached; the queue's fallback decides");
                let soon = until.min(self.runtime.now() + FALLBACK_FOR);
                match self.line(queue, Lane::Fallback).ask(self, seat.clone(), soon).await {
                    Outcome::Refused(ClaimRefusal::Mode(Mode::Exclusive)) => Step::NotNow,
                    // Nothing there, and there is time: the leader may be back.
                    Outcome::Tasks(handed) if handed.tasks().is_empty() && self.runtime.now() < until => {
                        Step::Again
                    }
                    outcome => self.heed(queue, outcome),
                }
            }
        }
    }

    async fn delegate(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        queue: &QueueKey,
        seat: &Seat,
        until: Moment,
    ) -> Step {
        let began = self.runtime.now();
        let told = connection.claim(queue, seat.clone(), until.since(began)).await;
        metrics::delegated(queue, &told, self.runtime.now().since(began));
        match told {
            Told::Tasks(handed) => Step::Done(Outcome::Tasks(handed)),
            Told::Refused(ClaimRefusal::NotLeader) => {
                self.link.leave(connection);
                Step::Again
            }
            Told::Refused(refusal) => self.heed(queue, Outcome::Refused(refusal)),
            Told::Failed(error) => {
                self.doubt(&queue.namespace);
                let may_pass =
                    matches!(error.kind, Trouble::Unreachable | Trouble::Timeout | Trouble::Unavailable);
                // It is the leader that can not reach the store; another may lead soon.
                if may_pass && self.looks_after(seat) && self.runtime.now() < until {
                    Step::NotNow
                } else {
                    Step::Done(Outcome::Failed(error))
                }
            }
            // It may have been served; what was is found later. The wish is still there.
            Told::Lost | Told::Matched => {
                self.link.leave(connection);
                self.doubt(&queue.namespace);
                if self.looks_after(seat) { Step::Again } else { Step::Done(Outcome::Failed(in_doubt())) }
            }
        }
    }

    /// Whether claims in doubt are found by us: on our own session we look for them, and without one they have a deadline. On
    /// somebody else's only its owner can tell what is lost, so it has to hear of the doubt.
    fn looks_after(&self, seat: &Seat) -> bool {
        seat.session.is_none() || seat.session == self.session()
    }

    async fn leader(self: &Arc<Self>) -> Leader {
        if self.reign().is_some() {
            return Leader::Here;
        }
        match self.link.leader(self).await {
            Some(connection) => Leader::There(connection),
            None if self.reign().is_some() => Leader::Here,
            None => Leader::Nowhere,
        }
    }

    /// Until it is worth another look for the leader.
    async fn await_leader(&self, until: Moment) {
        let (mut election, mut reign) = (self.shared.bells.election.subscribe(), self.reign.subscribe());
        let next = until.min(self.runtime.now() + self.jittered(SEEK_EVERY));
        tokio::select! {
            _ = election.changed() => {}
            _ = reign.changed() => {}
            () = self.runtime.sleep_until(next) => {}
            () = self.closed() => {}
        }
    }

    /// Hands out what is free of a pool to who waits for it, whichever way that goes; `request` is who asks.
    pub(crate) async fn match_pool(
        self: &Arc<Self>,
        pool: &PoolKey,
        request: RequestId,
    ) -> Result<Matched, StoreError> {
        for _ in 0..8 {
            let exclusive = self.pool_mode(pool) == Mode::Exclusive && !self.store.routes_claims();
            let matched = if exclusive {
                match self.leader().await {
                    Leader::Here => self.match_here(pool).await?,
                    Leader::There(connection) => match connection.match_pool(pool).await {
                        Told::Matched => Ok(()),
                        Told::Refused(refusal) => Err(refusal),
                        Told::Failed(error) => return Err(error),
                        Told::Tasks(_) | Told::Lost => Err(ClaimRefusal::NotLeader),
                    },
                    Leader::Nowhere => {
                        tracing::debug!(%pool, "the broker cannot be reached; the pool's fallback decides");
                        // Refused as exclusive: it waits for the leader.
                        return self.match_as(pool, Authority::Fallback, Some(request)).await;
                    }
                }
            } else {
                self.match_as(pool, Authority::Direct, Some(request)).await?
            };
            match matched {
                Err(ClaimRefusal::Mode(mode)) if !self.store.routes_claims() => {
                    self.set_pool_mode(pool, mode)
                }
                Err(ClaimRefusal::NotLeader) => self.pause(Duration::from_millis(20)).await,
                matched => return Ok(matched),
            }
        }
        Ok(Err(ClaimRefusal::NotLeader))
    }

    /// As the leader, together with those who ask at the same time: one look serves all that wait.
    pub(crate) async fn match_here(self: &Arc<Self>, pool: &PoolKey) -> Result<Matched, StoreError> {
        let matcher = {
            let mut matchers = locked(&self.matchers);
            if matchers.len() >= 1_024 {
                matchers.retain(|_, matcher| !matcher.is_idle());
            }
            matchers.entry(pool.clone()).or_insert_with(|| matcher(self, pool)).clone()
        };
        matcher.call(()).await
    }

    pub(crate) async fn match_as(
        &self,
        pool: &PoolKey,
        authority: Authority,
        request: Option<RequestId>,
    ) -> Result<Matched, StoreError> {
        let ask = PoolMatch { pool: pool.clone(), authority, request };
        Ok(self.bounded(self.store.match_pool(&ask)).await?.map(|_| ()))
    }
}

fn in_doubt() -> StoreError {
    StoreError::new(
        Trouble::Unavailable,
        "the connection to the leader of claims broke; whether tasks were handed out is not known; ask again, and compare what \
         the session holds with what you know of",
    )
}

fn matcher(hub: &Arc<Hub>, pool: &PoolKey) -> Batcher<(), Matched> {
    let measure = Measure {
        parts: 10_000,
        weight: usize::MAX,
        under_way: 1,
        weigh: |()| 1,
        identity: None,
        halve: |_| false,
    };
    let (hub, pool) = (Arc::downgrade(hub), pool.clone());
    Batcher::new(tokio::runtime::Handle::current(), measure, move |batch: Vec<()>| {
        let (hub, pool) = (hub.clone(), pool.clone());
        async move {
            let Some(hub) = hub.upgrade() else {
                return Err(StoreError::new(Trouble::Unavailable, "this Tenure was closed"));
            };
            let Some(reign) = hub.reign() else {
                return Ok(vec![Err(ClaimRefusal::NotLeader); batch.len()]);
            };
            let authority = Authority::Leader { session: reign.session.clone(), token: reign.token };
            let matched = hub.match_as(&pool, authority, None).await?;
            drop(reign);
            Ok(vec![matched; batch.len()])
        }
    })
}

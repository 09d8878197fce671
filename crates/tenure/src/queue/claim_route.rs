//! The route of a claim: direct, through the broker, or by the fallback.
//!
//! A process caches the mode that the store last reported for a queue and claims in that mode; if the store
//! reports another mode, it switches. In exclusive mode, a claim is handled in this process if it is the
//! broker, or sent to the broker if it can be reached; otherwise the store applies the fallback of the queue.
//! No task is assigned twice, even if the cached mode or broker is outdated: the transaction that assigns a task
//! checks the mode of the queue, the lease of the broker and the state of the task.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::BootInstant;
use tenure_core::port::{
    AssignmentMode, ClaimAuthority, ClaimRefusal, ClaimRequest, ErrorKind, PoolKey, PoolMatchRequest,
    PoolRequestId, QueueKey, StoreError,
};

use super::batcher::{BatchLimits, Batcher};
use super::broker::{BrokerConnection, BrokerReply};
use super::context::{ClientContext, locked};
use super::held_claims::ClaimedBatch;
use super::wait_queue::{ClaimRoute, WaitingClaimOutcome};
use crate::metrics;

/// How long a claim uses the fallback before the process looks for the broker again.
const FALLBACK_PERIOD: Duration = Duration::from_secs(1);

/// Interval of looking for a broker while there is none.
const LOCATE_INTERVAL: Duration = Duration::from_millis(100);

/// Result of matching a pool.
pub(crate) type MatchResult = Result<(), ClaimRefusal>;

/// Result of a claim before conversion for the caller.
pub(crate) enum RoutedClaim {
    Tasks(ClaimedBatch),
    Refused(ClaimRefusal),
    NoBroker,
}

/// Where the broker is.
enum BrokerLocation {
    Local,
    Remote(Arc<BrokerConnection>),
    Unknown,
}

/// Next step while routing a claim.
enum RouteStep {
    Done(WaitingClaimOutcome),
    /// The mode or the broker changed: route again.
    Again,
    /// There is no broker, and the queue has no fallback.
    NoBroker,
}

impl ClientContext {
    /// Claims tasks by the route that the queue requires.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        queue: &QueueKey,
        request: ClaimRequest,
        wait: Duration,
    ) -> Result<RoutedClaim, StoreError> {
        let _gauge = metrics::waiting_claim(queue);
        let until = self.runtime.now() + wait;
        let mut attempts = 0;
        loop {
            let step = match self.mode(queue) {
                AssignmentMode::Exclusive if !self.store.routes_to_broker() => {
                    self.exclusive(queue, &request, until).await
                }
                _ => {
                    let outcome =
                        self.wait_queue(queue, ClaimRoute::Direct).claim(self, request.clone(), until).await;
                    self.apply_mode(queue, outcome)
                }
            };
            match step {
                RouteStep::Done(outcome) => return self.finish_claim(queue, &request, outcome),
                RouteStep::NoBroker if self.runtime.now() >= until => return Ok(RoutedClaim::NoBroker),
                RouteStep::NoBroker => self.wait_for_broker(until).await,
                // If modes or brokers keep changing, pause between attempts and give up in the end.
                RouteStep::Again if attempts > 100 && self.runtime.now() >= until => {
                    return Ok(RoutedClaim::NoBroker);
                }
                RouteStep::Again if attempts > 3 => self.pause(Duration::from_millis(20)).await,
                RouteStep::Again => {}
            }
            attempts += 1;
        }
    }

    fn finish_claim(
        &self,
        queue: &QueueKey,
        request: &ClaimRequest,
        outcome: WaitingClaimOutcome,
    ) -> Result<RoutedClaim, StoreError> {
        match outcome {
            WaitingClaimOutcome::Tasks(mut claimed) => {
                if let Some(session) =
                    request.session.as_ref().filter(|session| Some(*session) == self.session().as_ref())
                {
                    self.held_claims.add(session, &mut claimed);
                }
                metrics::tasks_waited(queue, claimed.tasks(), self.runtime.wall_ms());
                Ok(RoutedClaim::Tasks(claimed))
            }
            WaitingClaimOutcome::Refused(refusal) => Ok(RoutedClaim::Refused(refusal)),
            WaitingClaimOutcome::Failed(error) => Err(error),
        }
    }

    /// Handles a refusal because of the mode or the broker: caches a reported mode, and selects the next step.
    fn apply_mode(&self, queue: &QueueKey, outcome: WaitingClaimOutcome) -> RouteStep {
        match outcome {
            WaitingClaimOutcome::Refused(ClaimRefusal::Mode(mode)) if !self.store.routes_to_broker() => {
                self.set_mode(queue, mode);
                RouteStep::Again
            }
            // The store is a Tenure server, which has already looked for the broker.
            WaitingClaimOutcome::Refused(ClaimRefusal::NotLeader) if self.store.routes_to_broker() => {
                RouteStep::NoBroker
            }
            WaitingClaimOutcome::Refused(ClaimRefusal::NotLeader) => RouteStep::Again,
            outcome => RouteStep::Done(outcome),
        }
    }

    async fn exclusive(
        self: &Arc<Self>,
        queue: &QueueKey,
        request: &ClaimRequest,
        until: BootInstant,
    ) -> RouteStep {
        match self.locate_broker().await {
            BrokerLocation::Local => {
                tracing::debug!(%queue, worker = request.worker.name, "processing claim as broker");
                let outcome =
                    self.wait_queue(queue, ClaimRoute::Broker).claim(self, request.clone(), until).await;
                self.apply_mode(queue, outcome)
            }
            BrokerLocation::Remote(connection) => {
                tracing::debug!(%queue, worker = request.worker.name, "sending claim to broker");
                self.send_to_broker(&connection, queue, request, until).await
            }
            BrokerLocation::Unknown => {
                tracing::debug!(%queue, worker = request.worker.name, "broker unreachable, using fallback of the queue");
                let soon = until.min(self.runtime.now() + FALLBACK_PERIOD);
                match self.wait_queue(queue, ClaimRoute::Fallback).claim(self, request.clone(), soon).await {
                    WaitingClaimOutcome::Refused(ClaimRefusal::Mode(AssignmentMode::Exclusive)) => {
                        RouteStep::NoBroker
                    }
                    // Nothing found and time left: the broker may be back.
                    WaitingClaimOutcome::Tasks(claimed)
                        if claimed.tasks().is_empty() && self.runtime.now() < until =>
                    {
                        RouteStep::Again
                    }
                    outcome => self.apply_mode(queue, outcome),
                }
            }
        }
    }

    async fn send_to_broker(
        self: &Arc<Self>,
        connection: &Arc<BrokerConnection>,
        queue: &QueueKey,
        request: &ClaimRequest,
        until: BootInstant,
    ) -> RouteStep {
        let began = self.runtime.now();
        let reply = connection.claim(queue, request.clone(), until.since(began)).await;
        metrics::sent_to_broker(queue, &reply, self.runtime.now().since(began));
        match reply {
            BrokerReply::Tasks(claimed) => RouteStep::Done(WaitingClaimOutcome::Tasks(claimed)),
            BrokerReply::Refused(ClaimRefusal::NotLeader) => {
                self.broker_client.disconnect(connection);
                RouteStep::Again
            }
            BrokerReply::Refused(refusal) => self.apply_mode(queue, WaitingClaimOutcome::Refused(refusal)),
            BrokerReply::Failed(error) => {
                self.mark_uncertain(&queue.namespace);
                let is_transient = matches!(
                    error.kind,
                    ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Unavailable
                );
                // The broker cannot reach the store; another one may lead soon.
                if is_transient && self.reconciles(request) && self.runtime.now() < until {
                    RouteStep::NoBroker
                } else {
                    RouteStep::Done(WaitingClaimOutcome::Failed(error))
                }
            }
            // The claim may have been served; reconciliation finds lost tasks later. The request is repeated.
            BrokerReply::Lost | BrokerReply::Matched => {
                self.broker_client.disconnect(connection);
                self.mark_uncertain(&queue.namespace);
                if self.reconciles(request) {
                    RouteStep::Again
                } else {
                    RouteStep::Done(WaitingClaimOutcome::Failed(outcome_unknown()))
                }
            }
        }
    }

    /// Whether this process finds claims of unknown outcome: it reconciles its own session, and claims without
    /// a session time out. For another session only its owner can tell which claims are lost, so the caller
    /// must get the error.
    fn reconciles(&self, request: &ClaimRequest) -> bool {
        request.session.is_none() || request.session == self.session()
    }

    async fn locate_broker(self: &Arc<Self>) -> BrokerLocation {
        if self.broker_term().is_some() {
            return BrokerLocation::Local;
        }
        match self.broker_client.connection(self).await {
            Some(connection) => BrokerLocation::Remote(connection),
            None if self.broker_term().is_some() => BrokerLocation::Local,
            None => BrokerLocation::Unknown,
        }
    }

    /// Waits until another attempt to find the broker makes sense.
    async fn wait_for_broker(&self, until: BootInstant) {
        let (mut election, mut broker_term) =
            (self.shared.notifier.election.subscribe(), self.broker_term.subscribe());
        let next = until.min(self.runtime.now() + self.jittered(LOCATE_INTERVAL));
        tokio::select! {
            _ = election.changed() => {}
            _ = broker_term.changed() => {}
            () = self.runtime.sleep_until(next) => {}
            () = self.closed() => {}
        }
    }

    /// Assigns free resources of a pool to waiting requests by the route that the pool requires. `request` is
    /// the caller's request.
    pub(crate) async fn match_pool(
        self: &Arc<Self>,
        pool: &PoolKey,
        request: PoolRequestId,
    ) -> Result<MatchResult, StoreError> {
        for _ in 0..8 {
            let exclusive =
                self.pool_mode(pool) == AssignmentMode::Exclusive && !self.store.routes_to_broker();
            let matched = if exclusive {
                match self.locate_broker().await {
                    BrokerLocation::Local => self.match_as_broker(pool).await?,
                    BrokerLocation::Remote(connection) => match connection.match_pool(pool).await {
                        BrokerReply::Matched => Ok(()),
                        BrokerReply::Refused(refusal) => Err(refusal),
                        BrokerReply::Failed(error) => return Err(error),
                        BrokerReply::Tasks(_) | BrokerReply::Lost => Err(ClaimRefusal::NotLeader),
                    },
                    BrokerLocation::Unknown => {
                        tracing::debug!(%pool, "broker unreachable, using fallback of the pool");
                        // If refused as exclusive, the request waits for the broker.
                        return self.match_as(pool, ClaimAuthority::Fallback, Some(request)).await;
                    }
                }
            } else {
                self.match_as(pool, ClaimAuthority::Direct, Some(request)).await?
            };
            match matched {
                Err(ClaimRefusal::Mode(mode)) if !self.store.routes_to_broker() => {
                    self.set_pool_mode(pool, mode)
                }
                Err(ClaimRefusal::NotLeader) => self.pause(Duration::from_millis(20)).await,
                matched => return Ok(matched),
            }
        }
        Ok(Err(ClaimRefusal::NotLeader))
    }

    /// Matches as broker. Concurrent calls share one match, which serves all waiting requests.
    pub(crate) async fn match_as_broker(self: &Arc<Self>, pool: &PoolKey) -> Result<MatchResult, StoreError> {
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
        authority: ClaimAuthority,
        request: Option<PoolRequestId>,
    ) -> Result<MatchResult, StoreError> {
        let ask = PoolMatchRequest { pool: pool.clone(), authority, request };
        Ok(self.bounded(self.store.match_pool(&ask)).await?.map(|_| ()))
    }
}

fn outcome_unknown() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "the connection to the broker broke; it is unknown whether tasks were claimed; retry, and compare the claims of \
         the session with those you know",
    )
}

fn matcher(ctx: &Arc<ClientContext>, pool: &PoolKey) -> Batcher<(), MatchResult> {
    let limits = BatchLimits {
        parts: 10_000,
        weight: usize::MAX,
        concurrent: 1,
        weigh: |()| 1,
        identity: None,
        halve: |_| false,
    };
    let (ctx, pool) = (Arc::downgrade(ctx), pool.clone());
    Batcher::new(tokio::runtime::Handle::current(), limits, move |batch: Vec<()>| {
        let (ctx, pool) = (ctx.clone(), pool.clone());
        async move {
            let Some(ctx) = ctx.upgrade() else {
                return Err(StoreError::new(ErrorKind::Unavailable, "the session is closed"));
            };
            let Some(broker_term) = ctx.broker_term() else {
                return Ok(vec![Err(ClaimRefusal::NotLeader); batch.len()]);
            };
            let authority =
                ClaimAuthority::Leader { session: broker_term.session.clone(), token: broker_term.token };
            let matched = ctx.match_as(&pool, authority, None).await?;
            drop(broker_term);
            Ok(vec![matched; batch.len()])
        }
    })
}

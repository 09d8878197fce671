//! Maintenance and the broker: recovery of lost claims, pruning of old rows, and assignment for exclusive
//! queues and pools.
//!
//! The store has one election for this, `tenure/broker`. Processes with a worker, and servers, campaign for it
//! ([`campaign`]). The lease fences every maintenance call in the same transaction. Each call is safe to repeat
//! or to interrupt, so a crash only delays maintenance.
//!
//! The leader runs five loops, and no error ends one. It serves as broker ([`super::broker`]), runs maintenance
//! calls ([`TaskStore::maintain`](tenure_core::port::TaskStore::maintain)), matches pool requests that have no
//! waiting caller ([`match_pools`]), prunes old events that all groups have read ([`prune_events`]), and
//! monitors the sessions that hold claims and partitions: they need not be candidates of any election, so no
//! other process would detect their death. When the leader is asked to step down or loses the lease, all
//! waiting claims fail over to the next broker.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::port::{
    AssignmentMode, BrokerEndpoint, ClaimAuthority, MaintenanceRequest, Notification, ObserveScope, PoolView,
    StoreError, broker_election,
};
use tenure_core::rules::work::{SessionMonitor, StoreClockEstimate};
use tenure_core::{SessionId, Token};
use tokio::sync::Notify;

use super::broker;
use super::context::{BrokerTerm, ClientContext, locked};
use crate::election::elector::CandidateHandle;
use crate::election::leadership::ActiveTerm;
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::{Error, Leadership, Tenure, metrics};

/// Rows of each kind per maintenance call.
const MAINTENANCE_MAX: u32 = 1_000;

/// Shortest time between two maintenance calls: the store clock and the local clock may differ.
const MAINTENANCE_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Interval for matching pool requests without a notification.
const POOLS_INTERVAL: Duration = Duration::from_secs(2);

/// Interval for pruning events.
const PRUNE_INTERVAL: Duration = Duration::from_secs(10);

/// Pool requests tried per poll of a distributed pool.
const REQUESTS_PER_POLL: usize = 100;

/// Whether this process campaigns for maintenance.
#[derive(Default)]
pub(crate) struct MaintenanceCandidacy(tokio::sync::Mutex<bool>);

/// Campaigns for maintenance for as long as the session, unless this process already does.
pub(crate) async fn campaign(tenure: &Tenure, priority: i32) -> Result<(), Error> {
    let ctx = tenure.ctx();
    if ctx.store.routes_to_broker() || !ctx.store.supports_work() {
        // The server campaigns itself, or the store holds no tasks.
        return Ok(());
    }
    let mut campaigning = ctx.maintenance_candidacy.0.lock().await;
    if *campaigning {
        return Ok(());
    }
    let election = broker_election();
    let elector = tenure.elector(election.name.as_str()).namespace(election.namespace.as_str());
    let elector = elector.priority(priority).start().await?;
    *campaigning = true;
    let candidate = elector.detach();
    ctx.handle.spawn(announce(ctx.clone(), candidate.clone()));
    ctx.handle.spawn(run_terms(ctx.clone(), candidate));
    Ok(())
}

/// Leads whenever it is elected, until the session ends.
async fn run_terms(ctx: Arc<ClientContext>, candidate: Arc<CandidateHandle>) {
    let mut terms = candidate.terms();
    loop {
        let leadership = terms.borrow_and_update().as_ref().and_then(ActiveTerm::begin);
        if let Some(leadership) = leadership {
            run_term(&ctx, leadership).await;
        }
        tokio::select! {
            changed = terms.changed() => if changed.is_err() { return },
            () = ctx.closed() => return,
        }
    }
}

/// Logs each new broker.
async fn announce(ctx: Arc<ClientContext>, candidate: Arc<CandidateHandle>) {
    let (mut views, mut last) = (candidate.views(), Token::ZERO);
    loop {
        let leader =
            views.borrow_and_update().as_ref().and_then(|view| crate::leaders(view).into_iter().next());
        if let Some(leader) = leader.filter(|leader| leader.token > last) {
            last = leader.token;
            tracing::info!(broker = leader.name, token = %leader.token, "broker changed");
            metrics::broker_transition("changed");
        }
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            () = ctx.closed() => return,
        }
    }
}

async fn run_term(ctx: &Arc<ClientContext>, leadership: Leadership) {
    let (session, token) = (leadership.session().clone(), leadership.token());
    tracing::info!(%token, "became broker");
    metrics::broker_transition("started");
    ctx.broker_term.send_replace(Some(Arc::new(BrokerTerm {
        session: session.clone(),
        token,
        leadership: leadership.clone(),
    })));
    let (wakeup, clock) = (Notify::new(), Mutex::new(StoreClockEstimate::default()));
    tokio::select! {
        biased;
        _ = leadership.lost() => {}
        // Another candidate waits: finish running polls and start no new ones.
        _ = leadership.leader_request() => {}
        () = ctx.closed() => {}
        () = serve(ctx, &session, token) => {}
        () = maintain(ctx, &session, token, &wakeup, &clock) => {}
        () = watch(ctx, &session, &wakeup) => {}
        () = match_pools(ctx) => {}
        () = prune_events(ctx, &session, token, &clock) => {}
    }
    // Running polls keep the term alive; the lease is released after them.
    ctx.broker_term.send_replace(None);
    tracing::info!(%token, "stopped being broker");
    metrics::broker_transition("stopped");
}

/// Listens for claim requests and publishes the address.
async fn serve(ctx: &Arc<ClientContext>, session: &SessionId, token: Token) {
    loop {
        match broker::bind(&ctx.broker).await {
            Ok((listener, address)) => {
                let secret = broker::random_bytes(ctx.runtime.as_ref());
                let endpoint =
                    BrokerEndpoint { token, session: session.clone(), address, secret: secret.to_vec() };
                publish_endpoint(ctx, &endpoint).await;
                broker::serve(ctx.clone(), listener, secret, token).await;
            }
            Err(error) => tracing::error!(
                "broker cannot listen for claim requests: {error}; set $TENURE_BROKER_LISTEN to \
                 an address of this machine"
            ),
        }
        ctx.pause(Duration::from_secs(1)).await;
    }
}

async fn publish_endpoint(ctx: &ClientContext, endpoint: &BrokerEndpoint) {
    let mut outages = OutageLog::default();
    loop {
        match ctx.bounded(ctx.store.publish_broker_endpoint(endpoint)).await {
            Ok(true) => {
                tracing::debug!(address = endpoint.address, "broker listening");
                return;
            }
            Ok(false) => {
                tracing::debug!("broker endpoint not published: the store has no lease of this process")
            }
            Err(error) => {
                log_failure!(outages, ctx.runtime.now(), "publishing the broker endpoint failed: {error}");
            }
        }
        ctx.pause(ctx.timing.retry()).await;
    }
}

/// Runs maintenance at least once per heartbeat interval, and whenever something falls due.
async fn maintain(
    ctx: &ClientContext,
    session: &SessionId,
    token: Token,
    wakeup: &Notify,
    clock: &Mutex<StoreClockEstimate>,
) {
    let mut outages = OutageLog::default();
    loop {
        let sent = ctx.runtime.now();
        let clock_ms = locked(clock).now_ms(sent);
        let request =
            MaintenanceRequest { session: session.clone(), token, clock_ms, limit: MAINTENANCE_MAX };
        let wait = match ctx.bounded(ctx.store.maintain(&request)).await {
            Ok(response) if response.is_leader => {
                log_recovery!(outages, ctx.runtime.now(), "maintenance recovered");
                locked(clock).observe(sent, ctx.runtime.now(), response.store_now_at_ms);
                metrics::tasks_recovered(response.recovered);
                if response.recovered + response.dead + response.released > 0 {
                    let (recovered, dead, released) = (response.recovered, response.dead, response.released);
                    tracing::info!(recovered, dead, released, "lost claims recovered");
                }
                let wait = response.next_in.unwrap_or(ctx.timing.heartbeat_interval()).clamp(
                    MAINTENANCE_INTERVAL_MIN,
                    ctx.timing.heartbeat_interval().max(MAINTENANCE_INTERVAL_MIN),
                );
                // The first call has no estimate of the store clock, so nothing expires by the clock. Repeat it soon.
                if response.has_more {
                    Duration::ZERO
                } else if clock_ms.is_none() {
                    MAINTENANCE_INTERVAL_MIN
                } else {
                    wait
                }
            }
            Ok(_) => ctx.timing.heartbeat_interval(),
            Err(error) => {
                log_failure!(outages, ctx.runtime.now(), "maintenance failed: {error}");
                ctx.timing.retry()
            }
        };
        tokio::select! {
            () = ctx.runtime.sleep_until(ctx.runtime.now() + wait) => {}
            () = wakeup.notified() => {}
        }
    }
}

/// Matches pool requests without a waiting caller. A waiting caller matches its own request; a request whose
/// owner only polls its state needs this loop.
async fn match_pools(ctx: &Arc<ClientContext>) {
    let mut changed = ctx.shared.notifier.any_pool.subscribe();
    loop {
        tokio::select! {
            // The sender lives in the client context.
            _ = changed.changed() => ctx.pause(MAINTENANCE_INTERVAL_MIN).await,
            () = ctx.pause(POOLS_INTERVAL) => {}
        }
        // Later changes belong to the next poll.
        changed.mark_unchanged();
        let pools = match ctx.bounded(ctx.store.pools(None)).await {
            Ok(pools) => pools,
            Err(error) => {
                tracing::debug!("reading pools failed: {error}");
                continue;
            }
        };
        for pool in pools.iter().filter(|pool| can_match(pool)) {
            if let Err(error) = match_pool(ctx, pool).await {
                tracing::debug!(pool = %pool.key, "matching pool requests failed: {error}");
            }
        }
    }
}

/// Prunes old events that every group has read.
async fn prune_events(
    ctx: &ClientContext,
    session: &SessionId,
    token: Token,
    clock: &Mutex<StoreClockEstimate>,
) {
    loop {
        ctx.pause(PRUNE_INTERVAL).await;
        // Uses the clock estimate of the maintenance loop; without one, no event is old.
        let clock_ms = locked(clock).now_ms(ctx.runtime.now());
        let request =
            MaintenanceRequest { session: session.clone(), token, clock_ms, limit: MAINTENANCE_MAX };
        loop {
            match ctx.bounded(ctx.store.prune_events(&request)).await {
                Ok((count, more)) => {
                    metrics::events_pruned(count);
                    if !more {
                        break;
                    }
                }
                // A store without events returns an error, too.
                Err(error) => {
                    tracing::debug!("pruning events failed: {error}");
                    break;
                }
            }
            ctx.pause(MAINTENANCE_INTERVAL_MIN).await;
        }
    }
}

fn can_match(pool: &PoolView) -> bool {
    let mut resources = pool.resources.iter();
    pool.paused.is_none()
        && !pool.waiting_requests.is_empty()
        && resources.any(|one| one.resource.enabled && one.held_by.is_none())
}

async fn match_pool(ctx: &Arc<ClientContext>, pool: &PoolView) -> Result<(), StoreError> {
    // A changed mode is noticed at the next poll.
    if pool.settings.mode == AssignmentMode::Exclusive {
        return ctx.match_as_broker(&pool.key).await.map(drop);
    }
    for request in pool.waiting_requests.iter().take(REQUESTS_PER_POLL) {
        if ctx.match_as(&pool.key, ClaimAuthority::Direct, Some(request.id)).await?.is_err() {
            break;
        }
    }
    Ok(())
}

/// Expires sessions whose heartbeat stopped, and sessions that the store reports as dead.
async fn watch(ctx: &ClientContext, session: &SessionId, wakeup: &Notify) {
    let mut ended = ctx.shared.notifier.ended_sessions.subscribe();
    let (mut monitor, mut watched) = (SessionMonitor::default(), HashSet::new());
    loop {
        match expire_silent(ctx, session, &mut monitor, &mut watched).await {
            Ok(0) => {}
            Ok(expired) => {
                tracing::info!(sessions = expired, "silent sessions expired");
                wakeup.notify_one();
            }
            Err(error) => tracing::warn!("reading sessions failed: {error}"),
        }
        let next = ctx.runtime.now() + ctx.timing.heartbeat_interval();
        loop {
            tokio::select! {
                () = ctx.runtime.sleep_until(next) => break,
                notification = ended.recv() => match notification {
                    Ok(Notification::SessionExpired(session)) => {
                        monitor.died(session);
                        break;
                    }
                    // The session released its leases, but its tasks have not returned to their queues yet.
                    Ok(_) => wakeup.notify_one(),
                    Err(_) => break,
                },
            }
        }
    }
}

async fn expire_silent(
    ctx: &ClientContext,
    session: &SessionId,
    monitor: &mut SessionMonitor,
    watched: &mut HashSet<SessionId>,
) -> Result<usize, StoreError> {
    // Read the epoch first: after a promotion in between, the store rejects the expiry.
    let scope = ObserveScope::Listed(vec![broker_election()]);
    let epoch = ctx.bounded(ctx.store.observe(session, &scope)).await?.epoch;
    let sessions = ctx.bounded(ctx.store.sessions(None)).await?;
    let silent = monitor.observe(&sessions, epoch, ctx.runtime.now());
    let mut expired = 0;
    for expire in silent.iter().filter(|expire| expire.session != *session) {
        ctx.bounded(ctx.store.expire_session(expire)).await?;
        expired += 1;
    }
    let live: HashSet<_> = sessions.into_iter().filter(|view| view.live).map(|view| view.id).collect();
    watched.retain(|id| live.contains(id));
    let new: Vec<_> = live.into_iter().filter(|id| id != session && watched.insert(id.clone())).collect();
    if !new.is_empty() {
        ctx.store.watch_sessions(&new);
    }
    Ok(expired)
}

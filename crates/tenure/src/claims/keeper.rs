//! Who keeps: recovers what was lost, forgets what is old, and hands out what is exclusive.
//!
//! One election for the whole store, `tenure/claims`. Its leader is the keeper and the broker; processes with a worker, and
//! servers, stand for it ([`stand`]). All that the keeper does is fenced by its lease in the same transaction, and safe to repeat
//! or to leave half done, so its death costs time and nothing else.
//!
//! While it leads, five things go on, none of which ends by an error: it *serves* ([`super::link`]), it *tends*
//! ([`Tasks::tend`](tenure_core::port::Tasks::tend)), it hands out what is free of pools to requests that nobody waits on
//! ([`match_pools`]), it has the store forget events that are old and read ([`prune_events`]), and it *watches* the sessions on which claims and slots hang: nobody stands for an
//! election in their name, so nobody else would find that they are dead. When it is asked to finish, or loses the lease, all who
//! wait for it are told, and look for the next.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::claim::{Deathwatch, SteadyClock};
use tenure_core::port::{Authority, Mode, PoolView, Post, Scope, StoreError, Tend, Wake, claims_election};
use tenure_core::{SessionId, Token};
use tokio::sync::Notify;

use super::hub::{Hub, Reign, locked};
use super::link;
use crate::elector::Seat;
use crate::leadership::Term;
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::{Error, Leadership, Tenure, metrics};

/// How many rows of each kind one call tends.
const TEND_MAX: u32 = 1_000;

/// The least time between two calls: what is due by the store's clock may not be by ours.
const BREATH: Duration = Duration::from_millis(10);

/// How often pools are looked at for requests that nobody waits on, though no notification says that one changed.
const POOLS_EVERY: Duration = Duration::from_secs(2);

/// How often events are looked at that may be forgotten.
const PRUNE_EVERY: Duration = Duration::from_secs(10);

/// How many requests of a pool that is not exclusive one look tries.
const REQUESTS_TRIED: usize = 100;

/// Whether this process stands.
#[derive(Default)]
pub(crate) struct Standing(tokio::sync::Mutex<bool>);

/// Stands, if this process does not yet, for as long as its session.
pub(crate) async fn stand(tenure: &Tenure, priority: i32) -> Result<(), Error> {
    let hub = tenure.hub();
    if hub.store.routes_claims() || !hub.store.keeps_work() {
        // The server does, or there is nothing to keep.
        return Ok(());
    }
    let mut stands = hub.standing.0.lock().await;
    if *stands {
        return Ok(());
    }
    let election = claims_election();
    let elector = tenure.elector(election.name.as_str()).namespace(election.namespace.as_str());
    let elector = elector.priority(priority).start().await?;
    *stands = true;
    let seat = elector.unattended();
    hub.handle.spawn(announce(hub.clone(), seat.clone()));
    hub.handle.spawn(keep(hub.clone(), seat));
    Ok(())
}

/// Leads whenever it is elected, until the session ends.
async fn keep(hub: Arc<Hub>, seat: Arc<Seat>) {
    let mut terms = seat.terms();
    loop {
        let leadership = terms.borrow_and_update().as_ref().and_then(Term::begin);
        if let Some(leadership) = leadership {
            lead(&hub, leadership).await;
        }
        tokio::select! {
            changed = terms.changed() => if changed.is_err() { return },
            () = hub.closed() => return,
        }
    }
}

/// Says who leads whenever that is another.
async fn announce(hub: Arc<Hub>, seat: Arc<Seat>) {
    let (mut views, mut last) = (seat.views(), Token::ZERO);
    loop {
        let leader =
            views.borrow_and_update().as_ref().and_then(|view| crate::leaders(view).into_iter().next());
        if let Some(leader) = leader.filter(|leader| leader.token > last) {
            last = leader.token;
            tracing::info!(leader = leader.id, token = %leader.token, "new leader elected for claim coordination");
            metrics::claim_leader("new_leader");
        }
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            () = hub.closed() => return,
        }
    }
}

async fn lead(hub: &Arc<Hub>, leadership: Leadership) {
    let (session, token) = (leadership.session().clone(), leadership.token());
    tracing::info!(%token, "became leader for claim coordination");
    metrics::claim_leader("started_leading");
    hub.reign.send_replace(Some(Arc::new(Reign {
        session: session.clone(),
        token,
        leadership: leadership.clone(),
    })));
    let (news, clock) = (Notify::new(), Mutex::new(SteadyClock::default()));
    tokio::select! {
        biased;
        _ = leadership.lost() => {}
        // Others wait: what is begun is finished by those who began it, and nothing new is.
        _ = leadership.asked() => {}
        () = hub.closed() => {}
        () = serve(hub, &session, token) => {}
        () = tend(hub, &session, token, &news, &clock) => {}
        () = watch(hub, &session, &news) => {}
        () = match_pools(hub) => {}
        () = prune_events(hub, &session, token, &clock) => {}
    }
    // Looks that are under way hold on to the term; the lease is given back after them.
    hub.reign.send_replace(None);
    tracing::info!(%token, "lost leadership for claim coordination");
    metrics::claim_leader("stopped_leading");
}

/// Listens, and says where.
async fn serve(hub: &Arc<Hub>, session: &SessionId, token: Token) {
    loop {
        match link::bind(&hub.broker).await {
            Ok((listener, address)) => {
                let secret = link::draw(hub.runtime.as_ref());
                let post = Post { token, session: session.clone(), address, secret: secret.to_vec() };
                put_post(hub, &post).await;
                link::serve(hub.clone(), listener, secret, token).await;
            }
            Err(error) => tracing::error!(
                "claims: can not listen for those who want exclusive tasks: {error}; set $TENURE_BROKER_LISTEN to \
                 an address of this machine"
            ),
        }
        hub.pause(Duration::from_secs(1)).await;
    }
}

async fn put_post(hub: &Hub, post: &Post) {
    let mut outages = OutageLog::default();
    loop {
        match hub.bounded(hub.store.put_post(post)).await {
            Ok(true) => {
                tracing::debug!(address = post.address, "claims: listening");
                return;
            }
            Ok(false) => tracing::debug!("claims: the store does not know yet, or no longer, that we lead"),
            Err(error) => {
                log_failure!(
                    outages,
                    hub.runtime.now(),
                    "claims: publishing the broker's address failed: {error}"
                );
            }
        }
        hub.pause(hub.timing.retry()).await;
    }
}

/// Has the store recover and forget, at least once a beat, and when something falls due.
async fn tend(hub: &Hub, session: &SessionId, token: Token, news: &Notify, clock: &Mutex<SteadyClock>) {
    let mut outages = OutageLog::default();
    loop {
        let sent = hub.runtime.now();
        let clock_ms = locked(clock).now_ms(sent);
        let tend = Tend { session: session.clone(), token, clock_ms, limit: TEND_MAX };
        let wait = match hub.bounded(hub.store.tend(&tend)).await {
            Ok(tended) if tended.leads => {
                log_recovery!(outages, hub.runtime.now(), "claims: maintenance works again");
                locked(clock).read(sent, hub.runtime.now(), tended.store_ms);
                metrics::recovered(tended.returned);
                if tended.returned + tended.dead + tended.freed > 0 {
                    let (returned, dead, freed) = (tended.returned, tended.dead, tended.freed);
                    tracing::info!(returned, dead, freed, "recovered claims");
                }
                let wait =
                    tended.next_in.unwrap_or(hub.timing.beat()).clamp(BREATH, hub.timing.beat().max(BREATH));
                // The first time there is no reckoning of the clock, and only little is done.
                if tended.more {
                    Duration::ZERO
                } else if clock_ms.is_none() {
                    BREATH
                } else {
                    wait
                }
            }
            Ok(_) => hub.timing.beat(),
            Err(error) => {
                log_failure!(outages, hub.runtime.now(), "claims: maintenance failed: {error}");
                hub.timing.retry()
            }
        };
        tokio::select! {
            () = hub.runtime.sleep_until(hub.runtime.now() + wait) => {}
            () = news.notified() => {}
        }
    }
}

/// Who asks has what is free handed out, and looks again while it waits. A request whose owner only asks now and then how it stands
/// has nobody who does.
async fn match_pools(hub: &Arc<Hub>) {
    let mut changed = hub.shared.bells.any_pool.subscribe();
    loop {
        tokio::select! {
            // The sender lives in the hub.
            _ = changed.changed() => hub.pause(BREATH).await,
            () = hub.pause(POOLS_EVERY) => {}
        }
        // Changes from here on are for the next look.
        changed.mark_unchanged();
        let pools = match hub.bounded(hub.store.pools(None)).await {
            Ok(pools) => pools,
            Err(error) => {
                tracing::debug!("claims: can not see the pools: {error}");
                continue;
            }
        };
        for pool in pools.iter().filter(|pool| may_hand_out(pool)) {
            if let Err(error) = match_pool(hub, pool).await {
                tracing::debug!(pool = %pool.key, "claims: can not hand out: {error}");
            }
        }
    }
}

/// Has the store forget events that are old and that every group has read.
async fn prune_events(hub: &Hub, session: &SessionId, token: Token, clock: &Mutex<SteadyClock>) {
    loop {
        hub.pause(PRUNE_EVERY).await;
        // By the reckoning of who tends: without one, nothing is old.
        let clock_ms = locked(clock).now_ms(hub.runtime.now());
        let tend = Tend { session: session.clone(), token, clock_ms, limit: TEND_MAX };
        loop {
            match hub.bounded(hub.store.prune_events(&tend)).await {
                Ok((count, more)) => {
                    metrics::pruned(count);
                    if !more {
                        break;
                    }
                }
                // A store without events says so, too.
                Err(error) => {
                    tracing::debug!("can not forget old events: {error}");
                    break;
                }
            }
            hub.pause(BREATH).await;
        }
    }
}

fn may_hand_out(pool: &PoolView) -> bool {
    let mut resources = pool.resources.iter();
    pool.paused.is_none()
        && !pool.waiting.is_empty()
        && resources.any(|one| one.resource.enabled && one.holder.is_none())
}

async fn match_pool(hub: &Arc<Hub>, pool: &PoolView) -> Result<(), StoreError> {
    // A mode that has changed is found at the next look.
    if pool.settings.mode == Mode::Exclusive {
        return hub.match_here(&pool.key).await.map(drop);
    }
    for request in pool.waiting.iter().take(REQUESTS_TRIED) {
        if hub.match_as(&pool.key, Authority::Direct, Some(request.id)).await?.is_err() {
            break;
        }
    }
    Ok(())
}

/// Expires sessions whose beat stands still, and those of which the store knows that they are gone.
async fn watch(hub: &Hub, session: &SessionId, news: &Notify) {
    let mut gone = hub.shared.bells.gone.subscribe();
    let (mut deaths, mut watched) = (Deathwatch::default(), HashSet::new());
    loop {
        match look(hub, session, &mut deaths, &mut watched).await {
            Ok(0) => {}
            Ok(expired) => {
                tracing::info!(sessions = expired, "expired sessions that fell silent");
                news.notify_one();
            }
            Err(error) => tracing::warn!("claims: can not see who lives: {error}"),
        }
        let next = hub.runtime.now() + hub.timing.beat();
        loop {
            tokio::select! {
                () = hub.runtime.sleep_until(next) => break,
                wake = gone.recv() => match wake {
                    Ok(Wake::Died(session)) => {
                        deaths.died(session);
                        break;
                    }
                    // All that it held is free, but its tasks are not returned yet.
                    Ok(_) => news.notify_one(),
                    Err(_) => break,
                },
            }
        }
    }
}

async fn look(
    hub: &Hub,
    session: &SessionId,
    deaths: &mut Deathwatch,
    watched: &mut HashSet<SessionId>,
) -> Result<usize, StoreError> {
    // The timeline first: a promotion in between shows as an expiry that the store refuses.
    let scope = Scope::Only(vec![claims_election()]);
    let timeline = hub.bounded(hub.store.observe(session, &scope)).await?.timeline;
    let sessions = hub.bounded(hub.store.sessions(None)).await?;
    let silent = deaths.saw(&sessions, timeline, hub.runtime.now());
    let mut expired = 0;
    for expire in silent.iter().filter(|expire| expire.session != *session) {
        hub.bounded(hub.store.expire(expire)).await?;
        expired += 1;
    }
    let live: HashSet<_> = sessions.into_iter().filter(|view| view.live).map(|view| view.id).collect();
    watched.retain(|id| live.contains(id));
    let new: Vec<_> = live.into_iter().filter(|id| id != session && watched.insert(id.clone())).collect();
    if !new.is_empty() {
        hub.store.watch(&new);
    }
    Ok(expired)
}

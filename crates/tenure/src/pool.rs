//! Resources of a pool, asked for and given back.
//!
//! A request *waits* until a resource fits, is *granted*, and ends: given back, called off, or expired. The store owns the truth;
//! a grant lives on the beat of our session, for as long as it was asked for, or both, and carries a token that grows with every
//! grant of that resource. Who asks has what is free handed out (in exclusive mode the leader does, to all that wait, in strict
//! order of priority), sleeps until something changes in the pool ([`Wake::Pool`](tenure_core::port::Wake)), and looks
//! again now and then in any case. When the store is away, who asks gets its error; the request, if it was made, is given back as
//! soon as the store can be told.
//!
//! **Giving back.** Several callers of one process may ask under one key, one after the other or at once, and share a request. So
//! it is given back with the [`Interest`] of the last of them, and who asks anew and who gives back take turns.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::claim;
use tenure_core::port::{
    BASE_PRIORITY, Handle, NewRequest, NewResource, PoolKey, PoolSettings, PoolView, RequestId, RequestState,
    RequestView, StoreError, Trouble,
};
use tenure_core::{Moment, Name, Token};

use crate::claims::Stop;
use crate::claims::hub::{Hub, locked};
use crate::{Error, Tenure};

/// When to look again after a look that found nothing; then the last, for ever, give or take a fifth.
const NAPS: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// How often a grant is compared with what the store has, without a hint.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// How long to wait before trying once more to give back, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A pool of resources. See [`Tenure::pool`].
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let hosts = tenure.pool("hosts")?;
/// hosts.add("h1", ["gpu", "ssd"]).await?;
/// hosts.add("h2", ["gpu"]).await?;
///
/// let grant = hosts.request().require("gpu").prefer("ssd").wait(Duration::from_secs(30)).await?;
/// let grant = grant.expect("one is free");
/// println!("{} is ours under token {}", grant.resource(), grant.token());
/// assert_eq!(grant.resource().as_str(), "h1");
/// grant.release().await?;
/// # tenure.close().await }
/// ```
#[derive(Clone)]
pub struct Pool {
    tenure: Tenure,
    key: PoolKey,
}

impl Pool {
    pub(crate) fn new(tenure: Tenure, key: PoolKey) -> Pool {
        Pool { tenure, key }
    }

    /// The pool of this name in another namespace.
    pub fn namespace(mut self, namespace: &str) -> Result<Pool, Error> {
        self.key.namespace = namespace.parse()?;
        Ok(self)
    }

    /// Which pool.
    pub fn key(&self) -> &PoolKey {
        &self.key
    }

    /// Puts a resource with these tags into the pool, or changes one that is there.
    pub async fn add<S: Into<String>>(
        &self,
        name: &str,
        tags: impl IntoIterator<Item = S>,
    ) -> Result<(), Error> {
        let tags = tags.into_iter().map(Into::into).collect();
        let resource = NewResource { name: name.parse()?, tags, enabled: true };
        claim::check_resources(std::slice::from_ref(&resource)).map_err(StoreError::from)?;
        let hub = self.tenure.hub();
        Ok(hub.bounded(hub.store.add_resources(&self.key, &[resource])).await?)
    }

    /// Makes the pool, or sets it anew.
    pub async fn set(&self, settings: &PoolSettings) -> Result<(), Error> {
        claim::check_pool(settings).map_err(StoreError::from)?;
        let hub = self.tenure.hub();
        Ok(hub.bounded(hub.store.set_pool(&self.key, settings)).await?)
    }

    /// The pool, its resources, and who waits; `None` if it was never made.
    pub async fn view(&self) -> Result<Option<PoolView>, Error> {
        let hub = self.tenure.hub();
        Ok(hub.bounded(hub.store.pool(&self.key)).await?)
    }

    /// A request for one of its resources.
    pub fn request(&self) -> PoolRequest {
        PoolRequest {
            pool: self.clone(),
            key: None,
            owner: None,
            requires: Vec::new(),
            prefers: Vec::new(),
            base: BASE_PRIORITY,
            hold: None,
        }
    }
}

/// A request, before it is made. See [`Pool::request`].
#[must_use = "nothing is asked for before `wait`"]
pub struct PoolRequest {
    pool: Pool,
    key: Option<String>,
    owner: Option<String>,
    requires: Vec<String>,
    prefers: Vec<String>,
    base: i32,
    hold: Option<Duration>,
}

impl PoolRequest {
    /// A tag that the resource must have.
    pub fn require(mut self, tag: impl Into<String>) -> Self {
        self.requires.push(tag.into());
        self
    }

    /// A tag that it had better have.
    pub fn prefer(mut self, tag: impl Into<String>) -> Self {
        self.prefers.push(tag.into());
        self
    }

    /// Asked again under the same key, while the first waits or has its resource: the same grant, which is given back with the last
    /// [`Grant`] of it. A key is one process's at a time. One of its own unless set.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Who asks: only the owner gives back or extends. The process's name unless set.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The base of its priority; 100 unless set.
    pub fn base(mut self, base: i32) -> Self {
        self.base = base;
        self
    }

    /// The grant ends after this long unless it is extended, even while the session lives.
    pub fn hold(mut self, hold: Duration) -> Self {
        self.hold = Some(hold);
        self
    }

    /// Asks, and waits for up to `wait`. `None` if nothing fitting was free in time: the request is called off then, and when
    /// this future is dropped.
    pub async fn wait(self, wait: Duration) -> Result<Option<Grant>, Error> {
        let (tenure, pool) = (self.pool.tenure, self.pool.key);
        let hub = tenure.hub().clone();
        let random = || format!("{:016x}{:016x}", hub.runtime.random(), hub.runtime.random());
        let request = NewRequest {
            key: self.key.unwrap_or_else(random),
            owner: self.owner.unwrap_or_else(|| tenure.name().to_owned()),
            requires: self.requires,
            prefers: self.prefers,
            base: self.base,
            session: Some(tenure.session().ok_or(Error::Closed)?),
            hold_ms: self.hold.map(millis),
            // Should we not get to call it off: the store does, a little later.
            max_wait_ms: Some(millis(wait + hub.call_limit() * 2)),
        };
        let asked = Asked::make(&hub, &pool, request).await?;
        let granted = hub.wait_for_grant(&pool, asked.view.clone(), wait).await?;
        asked.end(tenure, granted).await
    }
}

/// Those of this process who want what was asked for under one key.
#[derive(Default)]
pub(crate) struct Wish {
    /// How many. Changed under the lock of the hub's wishes.
    wanted: AtomicUsize,
    /// Who asks, calls off or gives back, one at a time.
    turn: tokio::sync::Mutex<()>,
}

/// Somebody's interest in a request, from before it is made. With the last one of this process it is given back, whatever became
/// of it.
struct Interest {
    hub: Arc<Hub>,
    pool: PoolKey,
    request: NewRequest,
    /// Once it is known that it was made.
    id: Option<RequestId>,
    wish: Arc<Wish>,
    /// There is nothing to be given back.
    over: bool,
}

impl Interest {
    fn new(hub: &Arc<Hub>, pool: &PoolKey, request: NewRequest) -> Interest {
        let mut wishes = locked(&hub.wishes);
        let wish = wishes.entry((pool.clone(), request.key.clone())).or_default().clone();
        wish.wanted.fetch_add(1, Ordering::AcqRel);
        drop(wishes);
        Interest { hub: hub.clone(), pool: pool.clone(), request, id: None, wish, over: false }
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let wishes = locked(&self.hub.wishes);
        let last = self.wish.wanted.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(wishes);
        let (hub, pool, request, id) = (self.hub.clone(), self.pool.clone(), self.request.clone(), self.id);
        if last && !self.over {
            self.hub.handle.spawn(give_back(hub, pool, request, id, self.wish.clone()));
        } else {
            forget(&hub, pool, request.key, &self.wish);
        }
    }
}

/// Forgets a wish that nobody has any more: in the map, and in the caller's hand.
fn forget(hub: &Hub, pool: PoolKey, key: String, wish: &Arc<Wish>) {
    let mut wishes = locked(&hub.wishes);
    if wish.wanted.load(Ordering::Acquire) == 0 && Arc::strong_count(wish) <= 2 {
        wishes.remove(&(pool, key));
    }
}

/// Gives back whatever became of a request, unless somebody here wants it by now. It is tried until the store has heard it: the
/// session on whose beat it lives goes on.
async fn give_back(
    hub: Arc<Hub>,
    pool: PoolKey,
    request: NewRequest,
    id: Option<RequestId>,
    wish: Arc<Wish>,
) {
    let mut wait = AGAIN.0;
    loop {
        let turn = wish.turn.lock().await;
        if wish.wanted.load(Ordering::Acquire) > 0 {
            break;
        }
        match hub.bounded(give_back_now(&hub, &pool, &request, id)).await {
            Ok(true) => break,
            // Granted at this very moment.
            Ok(false) => {}
            Err(error) if error.kind == Trouble::Request => break,
            Err(error) => {
                tracing::debug!(%pool, key = request.key, "a resource is not given back yet: {error}");
            }
        }
        drop(turn);
        tokio::select! {
            () = hub.pause(wait) => {}
            () = hub.closed() => break,
        }
        wait = (wait * 2).min(AGAIN.1);
    }
    forget(&hub, pool, request.key, &wish);
}

/// Whether it is over.
async fn give_back_now(
    hub: &Hub,
    pool: &PoolKey,
    request: &NewRequest,
    id: Option<RequestId>,
) -> Result<bool, StoreError> {
    let view = match id {
        Some(id) => hub.store.pool_request(&pool.namespace, id).await?,
        // Whether it was made is not known. The same again is the same request.
        None => Some(hub.store.request(pool, request).await?),
    };
    match view {
        Some(view) if matches!(view.state, RequestState::Waiting | RequestState::Granted) => {
            let release = Handle::Release;
            hub.store.handle_request(&pool.namespace, view.id, &request.owner, view.token, release).await
        }
        _ => Ok(true),
    }
}

/// A request that is called off if nobody waits for it any more.
struct Asked {
    interest: Interest,
    view: RequestView,
    /// On our own clock, before it was made.
    sent: Moment,
}

impl Asked {
    async fn make(hub: &Arc<Hub>, pool: &PoolKey, request: NewRequest) -> Result<Asked, Error> {
        claim::check_request(&request).map_err(StoreError::from)?;
        let mut interest = Interest::new(hub, pool, request);
        let wish = interest.wish.clone();
        let turn = wish.turn.lock().await;
        let sent = hub.runtime.now();
        let made = hub.bounded(hub.store.request(pool, &interest.request)).await;
        drop(turn);
        match made {
            Ok(view) => {
                interest.id = Some(view.id);
                Ok(Asked { interest, view, sent })
            }
            Err(error) => {
                interest.over = error.kind == Trouble::Request;
                Err(error.into())
            }
        }
    }

    /// The grant; or else the request is called off, unless it is granted at this very moment, or somebody else here waits for it.
    async fn end(mut self, tenure: Tenure, mut view: RequestView) -> Result<Option<Grant>, Error> {
        let Interest { hub, pool, wish, .. } = &self.interest;
        let turn = wish.turn.lock().await;
        if view.state == RequestState::Waiting && wish.wanted.load(Ordering::Acquire) == 1 {
            let (namespace, owner) = (&pool.namespace, &view.request.owner);
            let call = hub.store.handle_request(namespace, view.id, owner, None, Handle::Release);
            if hub.bounded(call).await? {
                view.state = RequestState::Cancelled;
            } else if let Some(now) = hub.bounded(hub.store.pool_request(namespace, view.id)).await? {
                view = now;
            }
        }
        drop(turn);
        self.interest.over = !matches!(view.state, RequestState::Waiting | RequestState::Granted);
        Ok(Grant::new(tenure, self.interest, view, self.sent))
    }
}

impl Hub {
    /// Waits until the request is granted, or over, or the time is. Dropped, the request stays as it is.
    pub(crate) async fn wait_for_grant(
        self: &Arc<Self>,
        pool: &PoolKey,
        mut view: RequestView,
        wait: Duration,
    ) -> Result<RequestView, StoreError> {
        let until = self.runtime.now() + wait;
        let bell = self.shared.bells.pool(pool);
        let mut rung = bell.subscribe();
        for naps in 0.. {
            if view.state != RequestState::Waiting {
                return Ok(view);
            }
            // Before the look: what happens from here on rings.
            rung.mark_unchanged();
            let refused = self.match_pool(pool, view.id).await?.err();
            if let Some(now) = self.bounded(self.store.pool_request(&pool.namespace, view.id)).await? {
                view = now;
            }
            let now = self.runtime.now();
            if view.state != RequestState::Waiting || now >= until {
                return Ok(view);
            }
            tracing::trace!(%pool, request = %view.id, ?refused, "waits for a resource");
            let nap = NAPS[naps.min(NAPS.len() - 1)];
            let nap = if naps + 1 < NAPS.len() { nap } else { self.jittered(nap) };
            tokio::select! {
                _ = rung.changed() => {}
                () = self.runtime.sleep_until(until.min(now + nap)) => {}
                () = self.closed() => return Ok(view),
            }
        }
        Ok(view)
    }
}

/// A resource that is ours. It lives on the session's beat. Dropped, it is given back.
pub struct Grant {
    tenure: Tenure,
    pool: PoolKey,
    interest: Interest,
    view: RequestView,
    resource: Name,
    token: Token,
    /// Until when it is ours on our own clock, if it was asked for a while.
    until: std::sync::Mutex<Option<Moment>>,
}

impl Grant {
    fn new(tenure: Tenure, interest: Interest, view: RequestView, sent: Moment) -> Option<Grant> {
        let (resource, token) = view.resource.clone().zip(view.token)?;
        if view.state != RequestState::Granted {
            return None;
        }
        // Not earlier than it was asked for. It may have been granted later: too short is safe, and `extend` makes it longer.
        let until = view.request.hold_ms.map(|hold| sent + Duration::from_millis(hold));
        let until = std::sync::Mutex::new(until);
        let pool = interest.pool.clone();
        Some(Grant { tenure, pool, interest, view, resource, token, until })
    }

    /// Which resource.
    pub fn resource(&self) -> &Name {
        &self.resource
    }

    /// The fencing token: pass it along with every use of the resource.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The request that was granted.
    pub fn request(&self) -> &RequestView {
        &self.view
    }

    /// When it ends unless it is extended, by the store's wall clock, in milliseconds since 1970; for people.
    pub fn deadline_ms(&self) -> Option<i64> {
        self.view.deadline_ms
    }

    /// Whether it is ours *now*, as far as this process knows: the clock is compared at every call.
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Completes when it is ours no longer: the session is lost, the time is over, or somebody called it off.
    pub async fn lost(&self) -> Stop {
        let hub = self.tenure.hub();
        let bell = hub.shared.bells.pool(&self.pool);
        let (mut rung, mut sessions) = (bell.subscribe(), hub.shared.session.subscribe());
        loop {
            rung.mark_unchanged();
            if let Some(stop) = self.loss() {
                return stop;
            }
            match hub.bounded(hub.store.pool_request(&self.pool.namespace, self.view.id)).await {
                Ok(Some(view)) if view.state == RequestState::Granted && view.token == Some(self.token) => {}
                Ok(_) => return Stop::CalledOff,
                Err(error) => tracing::debug!("can not see whether {} is still ours: {error}", self.resource),
            }
            let trusted = hub.shared.trust.until();
            let check = hub.runtime.now() + hub.jittered(CHECK_EVERY);
            let next = self.until().map_or(trusted, |until| until.min(trusted)).min(check);
            tokio::select! {
                _ = rung.changed() => {}
                _ = sessions.changed() => {}
                () = hub.runtime.sleep_until(next) => {}
            }
        }
    }

    /// Keeps it for this long from now.
    pub async fn extend(&self, hold: Duration) -> Result<(), Error> {
        // Before sending: the answer's delay must not lengthen it.
        let sent = self.tenure.hub().runtime.now();
        self.handle(Handle::Extend(millis(hold))).await?;
        *self.until.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(sent + hold);
        Ok(())
    }

    /// Gives it back.
    pub async fn release(mut self) -> Result<(), Error> {
        let released = self.handle(Handle::Release).await;
        // One that could not be given back is tried again on the way out.
        self.interest.over = matches!(released, Ok(()) | Err(Error::GrantLost(_)));
        released
    }

    async fn handle(&self, handle: Handle) -> Result<(), Error> {
        let hub = self.tenure.hub();
        let (namespace, owner) = (&self.pool.namespace, &self.view.request.owner);
        let call = hub.store.handle_request(namespace, self.view.id, owner, Some(self.token), handle);
        if hub.bounded(call).await? { Ok(()) } else { Err(Error::GrantLost(self.resource.clone())) }
    }

    fn until(&self) -> Option<Moment> {
        *self.until.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn loss(&self) -> Option<Stop> {
        let hub = self.tenure.hub();
        let (session, trusted, now) = (hub.session(), hub.shared.trust.until(), hub.runtime.now());
        if now >= trusted || session != self.view.request.session {
            return Some(Stop::SessionLost);
        }
        self.until().filter(|until| now >= *until).map(|_| Stop::RunOver)
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("resource", &self.resource)
            .field("token", &self.token)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// For [`Claims`](crate::Claims).
pub(crate) async fn request(
    hub: &Arc<Hub>,
    pool: &PoolKey,
    request: &NewRequest,
    wait: Duration,
) -> Result<RequestView, Error> {
    claim::check_request(request).map_err(StoreError::from)?;
    let view = hub.bounded(hub.store.request(pool, request)).await?;
    Ok(hub.wait_for_grant(pool, view, wait).await?)
}

/// For [`Claims`](crate::Claims): a request that was made before.
pub(crate) async fn wait_on(
    hub: &Arc<Hub>,
    pool: &PoolKey,
    id: RequestId,
    wait: Duration,
) -> Result<Option<RequestView>, Error> {
    match hub.bounded(hub.store.pool_request(&pool.namespace, id)).await? {
        Some(view) => Ok(Some(hub.wait_for_grant(pool, view, wait).await?)),
        None => Ok(None),
    }
}

//! Resources of a pool, asked for and given back.
//!
//! A request *waits* until a resource fits, is *granted*, and ends: given back, called off, or expired. The store owns the truth;
//! a grant lives on the beat of our session, for as long as it was asked for, or both, and carries a token that grows with every
//! grant of that resource. Who asks has what is free handed out (in exclusive mode the leader does, to all that wait, in strict
//! order of priority), sleeps until something changes in the pool ([`Wake::Pool`](tenure_core::port::Wake)), and looks
//! again now and then in any case. When the store is away, who asks gets its error; the request, if it was made, expires with the
//! session or with its longest wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::claim;
use tenure_core::port::{
    BASE_PRIORITY, Handle, NewRequest, NewResource, PoolKey, PoolSettings, PoolView, RequestId, RequestState,
    RequestView, StoreError,
};
use tenure_core::{Moment, Name, Token};

use crate::claims::Stop;
use crate::claims::hub::Hub;
use crate::{Error, Tenure};

/// When to look again after a look that found nothing; then the last, for ever, give or take a fifth.
const NAPS: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// How often a grant is compared with what the store has, without a hint.
const CHECK_EVERY: Duration = Duration::from_secs(5);

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

    /// Asked again under the same key, while the first waits or has its resource: the same grant. One of its own unless set.
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
        let asked = Asked::make(&hub, &pool, &request).await?;
        let granted = hub.wait_for_grant(&pool, asked.view.clone(), wait).await?;
        asked.end(tenure, granted).await
    }
}

/// A request that is called off if nobody waits for it any more.
struct Asked {
    hub: Arc<Hub>,
    pool: PoolKey,
    view: RequestView,
    /// On our own clock, before it was made.
    sent: Moment,
    over: bool,
}

impl Asked {
    async fn make(hub: &Arc<Hub>, pool: &PoolKey, request: &NewRequest) -> Result<Asked, Error> {
        claim::check_request(request).map_err(StoreError::from)?;
        let sent = hub.runtime.now();
        let view = hub.bounded(hub.store.request(pool, request)).await?;
        Ok(Asked { hub: hub.clone(), pool: pool.clone(), view, sent, over: false })
    }

    /// The grant; or else the request is called off, unless it is granted at this very moment.
    async fn end(mut self, tenure: Tenure, mut view: RequestView) -> Result<Option<Grant>, Error> {
        if view.state == RequestState::Waiting {
            let hub = self.hub.clone();
            let (namespace, owner) = (&self.pool.namespace, view.request.owner.clone());
            let call = hub.store.handle_request(namespace, view.id, &owner, None, Handle::Release);
            if !hub.bounded(call).await?
                && let Some(now) = hub.bounded(hub.store.pool_request(namespace, view.id)).await?
            {
                view = now;
            }
        }
        self.over = true;
        Ok(Grant::new(tenure, self.pool.clone(), view, self.sent))
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.over {
            give_back(&self.hub, &self.pool.namespace, &self.view);
        }
    }
}

/// Gives back whatever became of a request: nobody here wants it.
fn give_back(hub: &Arc<Hub>, namespace: &Name, view: &RequestView) {
    let (hub, namespace, id, owner) = (hub.clone(), namespace.clone(), view.id, view.request.owner.clone());
    let handle = hub.handle.clone();
    handle.spawn(async move {
        let given_back = async {
            let Some(view) = hub.store.pool_request(&namespace, id).await? else { return Ok(false) };
            hub.store.handle_request(&namespace, id, &owner, view.token, Handle::Release).await
        };
        if let Err(error) = hub.bounded(given_back).await {
            tracing::warn!(request = %id, "a resource is not given back, it expires with the session: {error}");
        }
    });
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
    view: RequestView,
    resource: Name,
    token: Token,
    /// Until when it is ours on our own clock, if it was asked for a while.
    until: std::sync::Mutex<Option<Moment>>,
    given_back: bool,
}

impl Grant {
    fn new(tenure: Tenure, pool: PoolKey, view: RequestView, sent: Moment) -> Option<Grant> {
        let (resource, token) = view.resource.clone().zip(view.token)?;
        if view.state != RequestState::Granted {
            return None;
        }
        // Not earlier than it was asked for. It may have been granted later: too short is safe, and `extend` makes it longer.
        let until = view.request.hold_ms.map(|hold| sent + Duration::from_millis(hold));
        let until = std::sync::Mutex::new(until);
        Some(Grant { tenure, pool, view, resource, token, until, given_back: false })
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
        // One that could not be given back is tried once more on the way out.
        self.given_back = matches!(released, Ok(()) | Err(Error::GrantLost(_)));
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

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.given_back {
            give_back(self.tenure.hub(), &self.pool.namespace, &self.view);
        }
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

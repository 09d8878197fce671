//! Resources of a pool: requests and leases.
//!
//! A request *waits* until a resource matches, is *granted*, and ends: released, cancelled or expired. The
//! store is the authority. The lease on a granted resource ends with the session, or at the claim timeout if one
//! is set. It carries a token that grows with every grant of that resource.
//!
//! In a distributed pool, each waiting caller asks the store to match its request. In an exclusive pool, the
//! broker matches all waiting requests in strict order of priority. A caller tries again when the pool changes
//! ([`Notification::PoolChanged`](tenure_core::port::Notification)), and polls in case a notification is lost.
//! When the store fails, the caller gets the error; a request that was created is released as soon as the store
//! responds.
//!
//! **Release.** Several callers of one process may use the same idempotency key, in sequence or concurrently,
//! and share one request. The last [`PoolRequestInterest`] releases it. A mutex serializes creating and releasing
//! a shared request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::port::{
    BASE_PRIORITY, ErrorKind, NewResource, PoolKey, PoolRequest, PoolRequestAction, PoolRequestId,
    PoolRequestState, PoolRequestView, PoolSettings, PoolView, StoreError,
};
use tenure_core::rules::work;
use tenure_core::{BootInstant, Name, Token};

use crate::queue::ClaimLossReason;
use crate::queue::context::{ClientContext, locked};
use crate::{Error, Tenure};

/// Delays between polls that found nothing. The last one repeats, with jitter.
const POLL_BACKOFF: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// Interval of comparing a lease with the store without a notification.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// First and longest delay between attempts to release.
const RELEASE_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A pool of resources. See [`Tenure::pool`].
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let hosts = tenure.pool("hosts")?;
/// hosts.add("h1", ["gpu", "ssd"]).await?;
/// hosts.add("h2", ["gpu"]).await?;
///
/// let lease = hosts.request().required_tag("gpu").preferred_tag("ssd").wait(Duration::from_secs(30)).await?;
/// let lease = lease.expect("one is free");
/// println!("{} is leased under token {}", lease.resource(), lease.token());
/// assert_eq!(lease.resource().as_str(), "h1");
/// lease.release().await?;
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

    /// Key of the pool.
    pub fn key(&self) -> &PoolKey {
        &self.key
    }

    /// Adds a resource with these tags to the pool, or updates it.
    pub async fn add<S: Into<String>>(
        &self,
        name: &str,
        tags: impl IntoIterator<Item = S>,
    ) -> Result<(), Error> {
        let tags = tags.into_iter().map(Into::into).collect();
        let resource = NewResource { name: name.parse()?, tags, enabled: true };
        work::validate_resources(std::slice::from_ref(&resource)).map_err(StoreError::from)?;
        let ctx = self.tenure.ctx();
        Ok(ctx.bounded(ctx.store.add_resources(&self.key, &[resource])).await?)
    }

    /// Creates the pool, or changes its settings.
    pub async fn set(&self, settings: &PoolSettings) -> Result<(), Error> {
        work::validate_pool(settings).map_err(StoreError::from)?;
        let ctx = self.tenure.ctx();
        Ok(ctx.bounded(ctx.store.set_pool(&self.key, settings)).await?)
    }

    /// Reads the pool with its resources and waiting requests; `None` if it does not exist.
    pub async fn view(&self) -> Result<Option<PoolView>, Error> {
        let ctx = self.tenure.ctx();
        Ok(ctx.bounded(ctx.store.pool(&self.key)).await?)
    }

    /// Returns a builder for a request for one resource of this pool.
    pub fn request(&self) -> PoolRequestBuilder {
        PoolRequestBuilder {
            pool: self.clone(),
            idempotency_key: None,
            owner: None,
            required_tags: Vec::new(),
            preferred_tags: Vec::new(),
            base_priority: BASE_PRIORITY,
            claim_timeout: None,
        }
    }
}

/// Settings of a pool request before it is created. See [`Pool::request`].
#[must_use = "the request is created by `wait`"]
pub struct PoolRequestBuilder {
    pool: Pool,
    idempotency_key: Option<String>,
    owner: Option<String>,
    required_tags: Vec<String>,
    preferred_tags: Vec<String>,
    base_priority: i32,
    claim_timeout: Option<Duration>,
}

impl PoolRequestBuilder {
    /// Adds a tag that the resource must have.
    pub fn required_tag(mut self, tag: impl Into<String>) -> Self {
        self.required_tags.push(tag.into());
        self
    }

    /// Adds a tag that the resource should have.
    pub fn preferred_tag(mut self, tag: impl Into<String>) -> Self {
        self.preferred_tags.push(tag.into());
        self
    }

    /// Sets the idempotency key; random unless set. While a request with the same key waits or is granted,
    /// callers share it, and the last [`ResourceLease`] releases it. Only one process may use a key at a time.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Sets the owner; the name of the process unless set. Only the owner can release or extend the request.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the base of the priority formula; 100 unless set.
    pub fn base_priority(mut self, base: i32) -> Self {
        self.base_priority = base;
        self
    }

    /// Sets the claim timeout: the lease ends after this time without a heartbeat of the request, even while
    /// the session lives.
    pub fn claim_timeout(mut self, timeout: Duration) -> Self {
        self.claim_timeout = Some(timeout);
        self
    }

    /// Creates the request and waits up to `wait`. Returns `None` if no matching resource became free in time;
    /// then, and when this future is dropped, the request is cancelled.
    pub async fn wait(self, wait: Duration) -> Result<Option<ResourceLease>, Error> {
        let (tenure, pool) = (self.pool.tenure, self.pool.key);
        let ctx = tenure.ctx().clone();
        let random = || format!("{:016x}{:016x}", ctx.runtime.random(), ctx.runtime.random());
        let request = PoolRequest {
            idempotency_key: self.idempotency_key.unwrap_or_else(random),
            owner: self.owner.unwrap_or_else(|| tenure.name().to_owned()),
            required_tags: self.required_tags,
            preferred_tags: self.preferred_tags,
            base_priority: self.base_priority,
            session: Some(tenure.session().ok_or(Error::Closed)?),
            claim_timeout_ms: self.claim_timeout.map(millis),
            // The store cancels the request a little later, in case this process cannot.
            max_wait_ms: Some(millis(wait + ctx.call_limit() * 2)),
        };
        let pending = PendingPoolRequest::make(&ctx, &pool, request).await?;
        let granted = ctx.wait_for_grant(&pool, pending.view.clone(), wait).await?;
        pending.end(tenure, granted).await
    }
}

/// Callers of this process that share one pool request.
#[derive(Default)]
pub(crate) struct SharedPoolRequest {
    /// Number of callers. Changed under the lock of the map.
    callers: AtomicUsize,
    /// Serializes creating, cancelling and releasing the request.
    turn: tokio::sync::Mutex<()>,
}

/// One caller's interest in a shared pool request, from before it is created. The last interest of this process
/// releases the request, whatever its state.
struct PoolRequestInterest {
    ctx: Arc<ClientContext>,
    pool: PoolKey,
    request: PoolRequest,
    /// Set once the request is known to exist.
    id: Option<PoolRequestId>,
    shared: Arc<SharedPoolRequest>,
    /// Whether there is nothing to release.
    ended: bool,
}

impl PoolRequestInterest {
    fn new(ctx: &Arc<ClientContext>, pool: &PoolKey, request: PoolRequest) -> PoolRequestInterest {
        let mut shared_requests = locked(&ctx.shared_requests);
        let shared =
            shared_requests.entry((pool.clone(), request.idempotency_key.clone())).or_default().clone();
        shared.callers.fetch_add(1, Ordering::AcqRel);
        drop(shared_requests);
        PoolRequestInterest { ctx: ctx.clone(), pool: pool.clone(), request, id: None, shared, ended: false }
    }
}

impl Drop for PoolRequestInterest {
    fn drop(&mut self) {
        let shared_requests = locked(&self.ctx.shared_requests);
        let last = self.shared.callers.fetch_sub(1, Ordering::AcqRel) == 1;
        drop(shared_requests);
        let (ctx, pool, request, id) = (self.ctx.clone(), self.pool.clone(), self.request.clone(), self.id);
        if last && !self.ended {
            self.ctx.handle.spawn(release_request(ctx, pool, request, id, self.shared.clone()));
        } else {
            forget(&ctx, pool, request.idempotency_key, &self.shared);
        }
    }
}

/// Removes a shared request from the map if it has no callers and no other task refers to it.
fn forget(ctx: &ClientContext, pool: PoolKey, key: String, shared: &Arc<SharedPoolRequest>) {
    let mut shared_requests = locked(&ctx.shared_requests);
    if shared.callers.load(Ordering::Acquire) == 0 && Arc::strong_count(shared) <= 2 {
        shared_requests.remove(&(pool, key));
    }
}

/// Releases a waiting or granted request, unless a new caller has joined. Retries until the store confirms,
/// because the request would otherwise live as long as the session.
async fn release_request(
    ctx: Arc<ClientContext>,
    pool: PoolKey,
    request: PoolRequest,
    id: Option<PoolRequestId>,
    shared: Arc<SharedPoolRequest>,
) {
    let mut wait = RELEASE_BACKOFF.0;
    loop {
        let turn = shared.turn.lock().await;
        if shared.callers.load(Ordering::Acquire) > 0 {
            break;
        }
        match ctx.bounded(try_release(&ctx, &pool, &request, id)).await {
            Ok(true) => break,
            // The store granted the request after it was read, so the token did not match: try again.
            Ok(false) => {}
            Err(error) if error.kind == ErrorKind::Request => break,
            Err(error) => {
                tracing::debug!(%pool, key = request.idempotency_key, "releasing the pool request failed: {error}");
            }
        }
        drop(turn);
        tokio::select! {
            () = ctx.pause(wait) => {}
            () = ctx.closed() => break,
        }
        wait = (wait * 2).min(RELEASE_BACKOFF.1);
    }
    forget(&ctx, pool, request.idempotency_key, &shared);
}

/// Tries once to release the request. Returns whether the request has ended.
async fn try_release(
    ctx: &ClientContext,
    pool: &PoolKey,
    request: &PoolRequest,
    id: Option<PoolRequestId>,
) -> Result<bool, StoreError> {
    let view = match id {
        Some(id) => ctx.store.pool_request(&pool.namespace, id).await?,
        // It is unknown whether the request exists. Creating it again with the same key returns the existing one.
        None => Some(ctx.store.create_pool_request(pool, request).await?),
    };
    match view {
        Some(view) if matches!(view.state, PoolRequestState::Waiting | PoolRequestState::Granted) => {
            let release = PoolRequestAction::Release;
            ctx.store.update_pool_request(&pool.namespace, view.id, &request.owner, view.token, release).await
        }
        _ => Ok(true),
    }
}

/// A created request that is cancelled when its last caller leaves.
struct PendingPoolRequest {
    interest: PoolRequestInterest,
    view: PoolRequestView,
    /// Local clock before the request was sent.
    sent: BootInstant,
}

impl PendingPoolRequest {
    async fn make(
        ctx: &Arc<ClientContext>,
        pool: &PoolKey,
        request: PoolRequest,
    ) -> Result<PendingPoolRequest, Error> {
        work::validate_pool_request(&request).map_err(StoreError::from)?;
        let mut interest = PoolRequestInterest::new(ctx, pool, request);
        let shared = interest.shared.clone();
        let turn = shared.turn.lock().await;
        let sent = ctx.runtime.now();
        let made = ctx.bounded(ctx.store.create_pool_request(pool, &interest.request)).await;
        drop(turn);
        match made {
            Ok(view) => {
                interest.id = Some(view.id);
                Ok(PendingPoolRequest { interest, view, sent })
            }
            Err(error) => {
                interest.ended = error.kind == ErrorKind::Request;
                Err(error.into())
            }
        }
    }

    /// Returns the lease if the request is granted. Otherwise cancels the request, unless another caller of this
    /// process waits for it, and returns `None`. A grant that happens before the cancellation wins.
    async fn end(
        mut self,
        tenure: Tenure,
        mut view: PoolRequestView,
    ) -> Result<Option<ResourceLease>, Error> {
        let PoolRequestInterest { ctx, pool, shared, .. } = &self.interest;
        let turn = shared.turn.lock().await;
        if view.state == PoolRequestState::Waiting && shared.callers.load(Ordering::Acquire) == 1 {
            let (namespace, owner) = (&pool.namespace, &view.request.owner);
            let call =
                ctx.store.update_pool_request(namespace, view.id, owner, None, PoolRequestAction::Release);
            if ctx.bounded(call).await? {
                view.state = PoolRequestState::Cancelled;
            } else if let Some(now) = ctx.bounded(ctx.store.pool_request(namespace, view.id)).await? {
                view = now;
            }
        }
        drop(turn);
        self.interest.ended = !matches!(view.state, PoolRequestState::Waiting | PoolRequestState::Granted);
        Ok(ResourceLease::new(tenure, self.interest, view, self.sent))
    }
}

impl ClientContext {
    /// Waits until the request is granted or has ended, or the time is over. If the future is dropped, the
    /// request stays as it is.
    pub(crate) async fn wait_for_grant(
        self: &Arc<Self>,
        pool: &PoolKey,
        mut view: PoolRequestView,
        wait: Duration,
    ) -> Result<PoolRequestView, StoreError> {
        let until = self.runtime.now() + wait;
        let channel = self.shared.notifier.pool(pool);
        let mut changes = channel.subscribe();
        for attempts in 0.. {
            if view.state != PoolRequestState::Waiting {
                return Ok(view);
            }
            // Before the poll: later changes are notified.
            changes.mark_unchanged();
            let refused = self.match_pool(pool, view.id).await?.err();
            if let Some(now) = self.bounded(self.store.pool_request(&pool.namespace, view.id)).await? {
                view = now;
            }
            let now = self.runtime.now();
            if view.state != PoolRequestState::Waiting || now >= until {
                return Ok(view);
            }
            tracing::trace!(%pool, request = %view.id, ?refused, "waiting for a resource");
            let delay = POLL_BACKOFF[attempts.min(POLL_BACKOFF.len() - 1)];
            let delay = if attempts + 1 < POLL_BACKOFF.len() { delay } else { self.jittered(delay) };
            tokio::select! {
                _ = changes.changed() => {}
                () = self.runtime.sleep_until(until.min(now + delay)) => {}
                () = self.closed() => return Ok(view),
            }
        }
        Ok(view)
    }
}

/// A leased resource. It depends on the heartbeats of the session. Dropping it releases the resource.
pub struct ResourceLease {
    tenure: Tenure,
    pool: PoolKey,
    interest: PoolRequestInterest,
    view: PoolRequestView,
    resource: Name,
    token: Token,
    /// End of the lease on the local clock, if a claim timeout is set.
    until: std::sync::Mutex<Option<BootInstant>>,
}

impl ResourceLease {
    fn new(
        tenure: Tenure,
        interest: PoolRequestInterest,
        view: PoolRequestView,
        sent: BootInstant,
    ) -> Option<ResourceLease> {
        let (resource, token) = view.resource.clone().zip(view.token)?;
        if view.state != PoolRequestState::Granted {
            return None;
        }
        // Counted from sending the request. It may have been granted later: a short lease is safe, and
        // `heartbeat` extends it.
        let until = view.request.claim_timeout_ms.map(|timeout| sent + Duration::from_millis(timeout));
        let until = std::sync::Mutex::new(until);
        let pool = interest.pool.clone();
        Some(ResourceLease { tenure, pool, interest, view, resource, token, until })
    }

    /// Name of the resource.
    pub fn resource(&self) -> &Name {
        &self.resource
    }

    /// The fencing token. Pass it with every use of the resource.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The granted request.
    pub fn request(&self) -> &PoolRequestView {
        &self.view
    }

    /// When the lease ends without a heartbeat, by the store's wall clock, in milliseconds since 1970. For
    /// display.
    pub fn expires_at_ms(&self) -> Option<i64> {
        self.view.expires_at_ms
    }

    /// Whether the resource is held *now*, as far as this process knows. Every call compares the clock.
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Completes when the resource is no longer held: the session is lost, the time is over, or the request was
    /// cancelled.
    pub async fn lost(&self) -> ClaimLossReason {
        let ctx = self.tenure.ctx();
        let channel = ctx.shared.notifier.pool(&self.pool);
        let (mut changes, mut sessions) = (channel.subscribe(), ctx.shared.session.subscribe());
        loop {
            changes.mark_unchanged();
            if let Some(stop) = self.loss() {
                return stop;
            }
            match ctx.bounded(ctx.store.pool_request(&self.pool.namespace, self.view.id)).await {
                Ok(Some(view))
                    if view.state == PoolRequestState::Granted && view.token == Some(self.token) => {}
                Ok(_) => return ClaimLossReason::Cancelled,
                Err(error) => {
                    tracing::debug!("reading the request of resource {} failed: {error}", self.resource)
                }
            }
            let trusted = ctx.shared.trust.until();
            let check = ctx.runtime.now() + ctx.jittered(CHECK_INTERVAL);
            let next = self.until().map_or(trusted, |until| until.min(trusted)).min(check);
            tokio::select! {
                _ = changes.changed() => {}
                _ = sessions.changed() => {}
                () = ctx.runtime.sleep_until(next) => {}
            }
        }
    }

    /// Restarts the claim timeout with this duration from now. Fails with [`Error::ResourceLeaseLost`] if the resource
    /// is no longer held under this token.
    pub async fn heartbeat(&self, claim_timeout: Duration) -> Result<(), Error> {
        // Read the clock before sending: the delay of the response must not extend the lease.
        let sent = self.tenure.ctx().runtime.now();
        self.handle(PoolRequestAction::Heartbeat(millis(claim_timeout))).await?;
        *self.until.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(sent + claim_timeout);
        Ok(())
    }

    /// Releases the resource, and completes when the store has confirmed. If the store fails, returns its error and
    /// retries the release in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let released = self.handle(PoolRequestAction::Release).await;
        // A failed release is retried when the lease is dropped.
        self.interest.ended = matches!(released, Ok(()) | Err(Error::ResourceLeaseLost(_)));
        released
    }

    async fn handle(&self, handle: PoolRequestAction) -> Result<(), Error> {
        let ctx = self.tenure.ctx();
        let (namespace, owner) = (&self.pool.namespace, &self.view.request.owner);
        let call = ctx.store.update_pool_request(namespace, self.view.id, owner, Some(self.token), handle);
        if ctx.bounded(call).await? { Ok(()) } else { Err(Error::ResourceLeaseLost(self.resource.clone())) }
    }

    fn until(&self) -> Option<BootInstant> {
        *self.until.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn loss(&self) -> Option<ClaimLossReason> {
        let ctx = self.tenure.ctx();
        let (trusted, now) = (ctx.shared.trust.until(), ctx.runtime.now());
        // Last, as for claims: the old session must not be combined with the deadline of a new one.
        let session = ctx.session();
        if now >= trusted || session != self.view.request.session {
            return Some(ClaimLossReason::SessionLost);
        }
        self.until().filter(|until| now >= *until).map(|_| ClaimLossReason::RunTimeExceeded)
    }
}

impl fmt::Debug for ResourceLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceLease")
            .field("resource", &self.resource)
            .field("token", &self.token)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Creates a request and waits for it, for [`TaskClient`](crate::TaskClient).
pub(crate) async fn request(
    ctx: &Arc<ClientContext>,
    pool: &PoolKey,
    request: &PoolRequest,
    wait: Duration,
) -> Result<PoolRequestView, Error> {
    work::validate_pool_request(request).map_err(StoreError::from)?;
    let view = ctx.bounded(ctx.store.create_pool_request(pool, request)).await?;
    Ok(ctx.wait_for_grant(pool, view, wait).await?)
}

/// Waits for an existing request, for [`TaskClient`](crate::TaskClient).
pub(crate) async fn wait_for_existing(
    ctx: &Arc<ClientContext>,
    pool: &PoolKey,
    id: PoolRequestId,
    wait: Duration,
) -> Result<Option<PoolRequestView>, Error> {
    match ctx.bounded(ctx.store.pool_request(&pool.namespace, id)).await? {
        Some(view) => Ok(Some(ctx.wait_for_grant(pool, view, wait).await?)),
        None => Ok(None),
    }
}

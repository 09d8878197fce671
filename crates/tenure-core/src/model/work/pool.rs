//! Pools: resources and waiting requests.

use std::collections::BTreeMap;

use super::Work;
use crate::port::{
    ErrorKind, NewResource, Notification, PoolKey, PoolRequest, PoolRequestId, PoolRequestState,
    PoolRequestView, PoolSettings, PoolView, ResourceView, StoreError,
};
use crate::rules::work::{Formula, PriorityInputs, validate_pool, validate_pool_request, validate_resources};
use crate::{Name, Token};

/// A pool.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolRecord {
    pub(super) settings: PoolSettings,
    pub(super) resources: BTreeMap<Name, ResourceRecord>,
    /// Removed resources. A resource that is added again continues with its token.
    pub(super) removed: BTreeMap<Name, ResourceRecord>,
}

/// A resource.
#[derive(Clone, Debug)]
pub(super) struct ResourceRecord {
    pub(super) new: NewResource,
    pub(super) token: Token,
    pub(super) holder: Option<PoolRequestId>,
    pub(super) cooling_until: Option<i64>,
}

/// A pool request.
#[derive(Clone, Debug)]
pub(super) struct PoolRequestRecord {
    pub(super) pool: PoolKey,
    pub(super) view: PoolRequestView,
}

impl PoolRecord {
    /// The current priority of a request. The formula was validated when it was stored.
    pub(super) fn priority(&self, request: &PoolRequestView, now_ms: i64) -> i64 {
        let facts = PriorityInputs::of(&request.request, request.created_at_ms, now_ms);
        self.settings.priority_formula.parse::<Formula>().map_or(0, |formula| formula.value(&facts))
    }
}

impl Work {
    /// See [`PoolStore::pools`](crate::port::PoolStore::pools).
    pub fn pools(&self, namespace: Option<&Name>, now_ms: i64) -> Vec<PoolView> {
        let matches_filter = |key: &&PoolKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.pools.keys().filter(matches_filter).filter_map(|key| self.pool(key, now_ms)).collect()
    }

    /// See [`PoolStore::pool`](crate::port::PoolStore::pool).
    pub fn pool(&self, key: &PoolKey, now_ms: i64) -> Option<PoolView> {
        let pool = self.pools.get(key)?;
        let resource = |it: &ResourceRecord| ResourceView {
            resource: it.new.clone(),
            token: it.token,
            held_by: it.holder.and_then(|id| self.request_view(id, now_ms)),
            cooldown_until_at_ms: it.cooling_until.filter(|until| *until > now_ms),
        };
        let waiting = self.waiting(key).filter_map(|it| self.request_view(it.view.id, now_ms));
        let mut waiting: Vec<PoolRequestView> = waiting.collect();
        waiting.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.id));
        Some(PoolView {
            key: key.clone(),
            settings: pool.settings.clone(),
            paused: self.paused.get(&key.namespace).cloned(),
            resources: pool.resources.values().map(resource).collect(),
            waiting_requests: waiting,
        })
    }

    /// See [`PoolStore::set_pool`](crate::port::PoolStore::set_pool).
    pub fn set_pool(&mut self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        validate_pool(settings)?;
        self.pools.entry(key.clone()).or_default().settings = settings.clone();
        self.notifications.push(Notification::PoolChanged(key.clone()));
        Ok(())
    }

    /// See [`PoolStore::add_resources`](crate::port::PoolStore::add_resources).
    pub fn add_resources(&mut self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        validate_resources(resources)?;
        let pool = self.pools.entry(key.clone()).or_default();
        for new in resources {
            let fresh =
                ResourceRecord { new: new.clone(), token: Token::ZERO, holder: None, cooling_until: None };
            let before = pool.removed.remove(&new.name);
            pool.resources.entry(new.name.clone()).or_insert(before.unwrap_or(fresh)).new = new.clone();
        }
        self.notifications.push(Notification::PoolChanged(key.clone()));
        Ok(())
    }

    /// See [`PoolStore::remove_resource`](crate::port::PoolStore::remove_resource).
    pub fn remove_resource(&mut self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        let Some(pool) = self.pools.get_mut(key) else { return Ok(false) };
        match pool.resources.get(name).map(|resource| resource.holder) {
            None => Ok(false),
            Some(Some(holder)) => Err(resource_in_use(key, name, holder)),
            Some(None) => {
                let removed = pool.resources.remove(name);
                pool.removed.extend(removed.map(|resource| (name.clone(), resource)));
                Ok(true)
            }
        }
    }

    /// See [`PoolStore::create_pool_request`](crate::port::PoolStore::create_pool_request).
    pub fn create_pool_request(
        &mut self,
        key: &PoolKey,
        new: &PoolRequest,
        now_ms: i64,
    ) -> Result<PoolRequestView, StoreError> {
        validate_pool_request(new)?;
        if !self.pools.contains_key(key) {
            return Err(no_such_pool(key));
        }
        let open = |it: &&PoolRequestRecord| {
            matches!(it.view.state, PoolRequestState::Waiting | PoolRequestState::Granted)
                && it.pool == *key
                && it.view.request.idempotency_key == new.idempotency_key
        };
        let id = match self.requests.values().find(open) {
            Some(known) if known.view.request.owner == new.owner => known.view.id,
            Some(known) => return Err(owner_mismatch(key, &new.idempotency_key, known.view.id)),
            None => self.add_request(key, new, now_ms),
        };
        self.request_view(id, now_ms).ok_or_else(|| no_such_pool(key))
    }

    /// See [`PoolStore::pool_request`](crate::port::PoolStore::pool_request).
    pub fn pool_request(&self, namespace: &Name, id: PoolRequestId, now_ms: i64) -> Option<PoolRequestView> {
        self.requests.get(&id).filter(|it| it.pool.namespace == *namespace)?;
        self.request_view(id, now_ms)
    }

    fn add_request(&mut self, key: &PoolKey, new: &PoolRequest, now_ms: i64) -> PoolRequestId {
        self.last_request += 1;
        let id = PoolRequestId(self.last_request);
        let view = PoolRequestView {
            id,
            request: new.clone(),
            state: PoolRequestState::Waiting,
            resource: None,
            token: None,
            priority: None,
            created_at_ms: now_ms,
            granted_at_ms: None,
            expires_at_ms: None,
            ended_at_ms: None,
        };
        self.requests.insert(id, PoolRequestRecord { pool: key.clone(), view });
        id
    }

    /// Waiting requests of a pool.
    pub(super) fn waiting(&self, key: &PoolKey) -> impl Iterator<Item = &PoolRequestRecord> {
        self.requests.values().filter(move |it| it.pool == *key && it.view.state == PoolRequestState::Waiting)
    }

    /// The current view of a request.
    pub(super) fn request_view(&self, id: PoolRequestId, now_ms: i64) -> Option<PoolRequestView> {
        let PoolRequestRecord { pool, view } = self.requests.get(&id)?;
        let pool = self.pools.get(pool).filter(|_| view.state == PoolRequestState::Waiting);
        Some(PoolRequestView { priority: pool.map(|pool| pool.priority(view, now_ms)), ..view.clone() })
    }
}

/// The error for a pool that does not exist.
pub fn no_such_pool(key: &PoolKey) -> StoreError {
    let message = format!(
        "pool {key} does not exist; add a resource to create it (`tenure pools add-resource \
         {key} …`)"
    );
    StoreError::new(ErrorKind::Request, message)
}

/// The error for removing a resource that a request holds.
pub fn resource_in_use(key: &PoolKey, name: &Name, holder: PoolRequestId) -> StoreError {
    let message = format!(
        "resource {name} of pool {key} is held by request {holder}; disable it now and remove it after its \
         release"
    );
    StoreError::new(ErrorKind::Request, message)
}

/// The error for an idempotency key of another owner.
pub fn owner_mismatch(key: &PoolKey, request_key: &str, id: PoolRequestId) -> StoreError {
    let message = format!(
        "pool {key}: idempotency key {request_key:?} belongs to request {id} of another owner; use another key"
    );
    StoreError::new(ErrorKind::Request, message)
}

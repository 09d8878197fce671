//! Pools: their resources, and the requests that wait for them.

use std::collections::BTreeMap;

use super::Ledger;
use crate::claim::{Facts, Formula, check_pool, check_request, check_resources};
use crate::port::{
    NewRequest, NewResource, PoolKey, PoolSettings, PoolView, RequestId, RequestState, RequestView,
    ResourceView, StoreError, Trouble, Wake,
};
use crate::{Name, Token};

/// A pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    pub(super) settings: PoolSettings,
    pub(super) resources: BTreeMap<Name, Resource>,
    /// Those that were taken out: one that is put in again goes on with its token.
    pub(super) removed: BTreeMap<Name, Resource>,
}

/// A resource.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) new: NewResource,
    pub(super) token: Token,
    pub(super) holder: Option<RequestId>,
    pub(super) cooling_until: Option<i64>,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) pool: PoolKey,
    pub(super) view: RequestView,
}

impl Pool {
    /// The priority of a request now. A formula that makes no sense never got here.
    pub(super) fn priority(&self, request: &RequestView, now_ms: i64) -> i64 {
        let facts = Facts::of(&request.request, request.created_at_ms, now_ms);
        self.settings.priority.parse::<Formula>().map_or(0, |formula| formula.value(&facts))
    }
}

impl Ledger {
    /// See [`Pools::pools`](crate::port::Pools::pools).
    pub fn pools(&self, namespace: Option<&Name>, now_ms: i64) -> Vec<PoolView> {
        let wanted = |key: &&PoolKey| namespace.is_none_or(|namespace| key.namespace == *namespace);
        self.pools.keys().filter(wanted).filter_map(|key| self.pool(key, now_ms)).collect()
    }

    /// See [`Pools::pool`](crate::port::Pools::pool).
    pub fn pool(&self, key: &PoolKey, now_ms: i64) -> Option<PoolView> {
        let pool = self.pools.get(key)?;
        let resource = |it: &Resource| ResourceView {
            resource: it.new.clone(),
            token: it.token,
            holder: it.holder.and_then(|id| self.seen_request(id, now_ms)),
            cooling_until_ms: it.cooling_until.filter(|until| *until > now_ms),
        };
        let waiting = self.waiting(key).filter_map(|it| self.seen_request(it.view.id, now_ms));
        let mut waiting: Vec<RequestView> = waiting.collect();
        waiting.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.id));
        Some(PoolView {
            key: key.clone(),
            settings: pool.settings.clone(),
            paused: self.paused.get(&key.namespace).cloned(),
            resources: pool.resources.values().map(resource).collect(),
            waiting,
        })
    }

    /// See [`Pools::set_pool`](crate::port::Pools::set_pool).
    pub fn set_pool(&mut self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        check_pool(settings)?;
        self.pools.entry(key.clone()).or_default().settings = settings.clone();
        self.wakes.push(Wake::Pool(key.clone()));
        Ok(())
    }

    /// See [`Pools::add_resources`](crate::port::Pools::add_resources).
    pub fn add_resources(&mut self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        check_resources(resources)?;
        let pool = self.pools.entry(key.clone()).or_default();
        for new in resources {
            let fresh = Resource { new: new.clone(), token: Token::ZERO, holder: None, cooling_until: None };
            let before = pool.removed.remove(&new.name);
            pool.resources.entry(new.name.clone()).or_insert(before.unwrap_or(fresh)).new = new.clone();
        }
        self.wakes.push(Wake::Pool(key.clone()));
        Ok(())
    }

    /// See [`Pools::remove_resource`](crate::port::Pools::remove_resource).
    pub fn remove_resource(&mut self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        let Some(pool) = self.pools.get_mut(key) else { return Ok(false) };
        match pool.resources.get(name).map(|resource| resource.holder) {
            None => Ok(false),
            Some(Some(holder)) => Err(held_resource(key, name, holder)),
            Some(None) => {
                let removed = pool.resources.remove(name);
                pool.removed.extend(removed.map(|resource| (name.clone(), resource)));
                Ok(true)
            }
        }
    }

    /// See [`Pools::request`](crate::port::Pools::request).
    pub fn request(
        &mut self,
        key: &PoolKey,
        new: &NewRequest,
        now_ms: i64,
    ) -> Result<RequestView, StoreError> {
        check_request(new)?;
        if !self.pools.contains_key(key) {
            return Err(no_such_pool(key));
        }
        let open = |it: &&Request| {
            matches!(it.view.state, RequestState::Waiting | RequestState::Granted)
                && it.pool == *key
                && it.view.request.key == new.key
        };
        let id = match self.requests.values().find(open) {
            Some(known) if known.view.request.owner == new.owner => known.view.id,
            Some(known) => return Err(another_owner(key, &new.key, known.view.id)),
            None => self.add_request(key, new, now_ms),
        };
        self.seen_request(id, now_ms).ok_or_else(|| no_such_pool(key))
    }

    /// See [`Pools::pool_request`](crate::port::Pools::pool_request).
    pub fn pool_request(&self, namespace: &Name, id: RequestId, now_ms: i64) -> Option<RequestView> {
        self.requests.get(&id).filter(|it| it.pool.namespace == *namespace)?;
        self.seen_request(id, now_ms)
    }

    fn add_request(&mut self, key: &PoolKey, new: &NewRequest, now_ms: i64) -> RequestId {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let view = RequestView {
            id,
            request: new.clone(),
            state: RequestState::Waiting,
            resource: None,
            token: None,
            priority: None,
            created_at_ms: now_ms,
            granted_at_ms: None,
            deadline_ms: None,
            ended_at_ms: None,
        };
        self.requests.insert(id, Request { pool: key.clone(), view });
        id
    }

    /// The requests that wait for a pool.
    pub(super) fn waiting(&self, key: &PoolKey) -> impl Iterator<Item = &Request> {
        self.requests.values().filter(move |it| it.pool == *key && it.view.state == RequestState::Waiting)
    }

    /// A request as it is now.
    pub(super) fn seen_request(&self, id: RequestId, now_ms: i64) -> Option<RequestView> {
        let Request { pool, view } = self.requests.get(&id)?;
        let pool = self.pools.get(pool).filter(|_| view.state == RequestState::Waiting);
        Some(RequestView { priority: pool.map(|pool| pool.priority(view, now_ms)), ..view.clone() })
    }
}

/// The error for a pool that nobody made.
pub fn no_such_pool(key: &PoolKey) -> StoreError {
    let message = format!("there is no pool {key}; put a resource into it first (`tenure pool add {key} …`)");
    StoreError::new(Trouble::Request, message)
}

/// The error for a resource that somebody has.
pub fn held_resource(key: &PoolKey, name: &Name, holder: RequestId) -> StoreError {
    let message = format!(
        "resource {name} of pool {key} is held by request {holder}; disable it, and take it out once it is given back"
    );
    StoreError::new(Trouble::Request, message)
}

/// The error for somebody else's request.
pub fn another_owner(key: &PoolKey, request_key: &str, id: RequestId) -> StoreError {
    let message = format!(
        "pool {key}: the key {request_key:?} is that of request {id}, which is somebody else's; use another key"
    );
    StoreError::new(Trouble::Request, message)
}

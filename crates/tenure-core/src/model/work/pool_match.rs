//! Granting and release of resources.

use super::pool::{PoolRequestRecord, ResourceRecord};
use super::queue::may_assign;
use super::{LeaseObservation, Work};
use crate::port::{
    ClaimAuthority, ClaimRefusal, MaintenanceResponse, Notification, PoolKey, PoolMatchRequest,
    PoolRequestAction, PoolRequestId, PoolRequestState, PoolRequestView,
};
use crate::rules::work::{FreeResource, WaitingPoolRequest, match_pool_requests};
use crate::{Name, Token};

impl Work {
    /// See [`PoolStore::match_pool`](crate::port::PoolStore::match_pool).
    pub fn match_pool(
        &mut self,
        request: &PoolMatchRequest,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Result<Vec<PoolRequestView>, ClaimRefusal> {
        let Some(pool) = self.pools.get(&request.pool) else { return Ok(Vec::new()) };
        may_assign(pool.settings.mode, pool.settings.fallback, &request.authority, observation)?;
        if self.paused.contains_key(&request.pool.namespace) {
            return Err(ClaimRefusal::Paused);
        }
        let all = matches!(request.authority, ClaimAuthority::Leader { .. });
        let matches_filter = |it: &&PoolRequestRecord| {
            let lives = it.view.request.session.as_ref().is_none_or(|session| observation.is_live(session));
            (all || request.request == Some(it.view.id)) && lives
        };
        let waiting_request = |it| {
            let PoolRequestRecord { view, .. }: &PoolRequestRecord = it;
            let (requires, prefers) = (&view.request.required_tags, &view.request.preferred_tags);
            WaitingPoolRequest {
                id: view.id,
                priority: pool.priority(view, now_ms),
                required_tags: requires,
                preferred_tags: prefers,
            }
        };
        let free = |it: &&ResourceRecord| {
            it.new.enabled && it.holder.is_none() && it.cooling_until.is_none_or(|until| until <= now_ms)
        };
        let waiting_requests: Vec<WaitingPoolRequest<'_>> =
            self.waiting(&request.pool).filter(matches_filter).map(waiting_request).collect();
        let free = pool.resources.values().filter(free);
        let free: Vec<FreeResource<'_>> =
            free.map(|it| FreeResource { name: &it.new.name, tags: &it.new.tags }).collect();
        let granted = match_pool_requests(&waiting_requests, &free);
        for (id, name) in &granted {
            self.grant(&request.pool, *id, name, observation.epoch(), now_ms);
        }
        if !granted.is_empty() {
            self.notifications.push(Notification::PoolChanged(request.pool.clone()));
        }
        Ok(granted.iter().filter_map(|(id, _)| self.request_view(*id, now_ms)).collect())
    }

    fn grant(&mut self, key: &PoolKey, id: PoolRequestId, name: &Name, epoch: u32, now_ms: i64) {
        let resource = self.pools.get_mut(key).and_then(|pool| pool.resources.get_mut(name));
        let (Some(resource), Some(request)) = (resource, self.requests.get_mut(&id)) else { return };
        resource.token = resource.token.next(epoch);
        (resource.holder, resource.cooling_until) = (Some(id), None);
        let view = &mut request.view;
        (view.state, view.resource, view.token) =
            (PoolRequestState::Granted, Some(name.clone()), Some(resource.token));
        view.granted_at_ms = Some(now_ms);
        view.expires_at_ms = view.request.claim_timeout_ms.map(|hold| now_ms.saturating_add_unsigned(hold));
    }

    /// See [`PoolStore::update_pool_request`](crate::port::PoolStore::update_pool_request).
    pub fn update_pool_request(
        &mut self,
        namespace: &Name,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        handle: PoolRequestAction,
        now_ms: i64,
    ) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        let view = &mut request.view;
        if request.pool.namespace != *namespace || view.request.owner != owner || view.token != token {
            return false;
        }
        match (view.state, handle) {
            (PoolRequestState::Waiting, PoolRequestAction::Release) => {
                self.end(id, PoolRequestState::Cancelled, now_ms)
            }
            (PoolRequestState::Granted, PoolRequestAction::Release) => {
                self.end(id, PoolRequestState::Released, now_ms)
            }
            (PoolRequestState::Granted, PoolRequestAction::Heartbeat(ms)) => {
                view.expires_at_ms = Some(now_ms.saturating_add_unsigned(ms));
            }
            _ => return false,
        }
        true
    }

    /// Ends a request and starts the cooldown of its resource.
    fn end(&mut self, id: PoolRequestId, state: PoolRequestState, now_ms: i64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        (request.view.state, request.view.ended_at_ms) = (state, Some(now_ms));
        let Some(pool) = self.pools.get_mut(&request.pool) else { return };
        let rest = Some(pool.settings.cooldown_ms).filter(|ms| *ms > 0);
        for resource in pool.resources.values_mut().filter(|it| it.holder == Some(id)) {
            resource.holder = None;
            resource.cooling_until = rest.map(|ms| now_ms.saturating_add_unsigned(ms));
        }
        self.notifications.push(Notification::PoolChanged(request.pool.clone()));
    }

    /// Ends requests whose session has ended or whose time is over, notifies waiting requests when a cooldown ends, and
    /// prunes old requests.
    pub(super) fn maintain_pools(
        &mut self,
        response: &mut MaintenanceResponse,
        observation: &dyn LeaseObservation,
        clock_ms: i64,
        now_ms: i64,
        limit: usize,
    ) {
        let over = |it: &&PoolRequestRecord| {
            let open = matches!(it.view.state, PoolRequestState::Waiting | PoolRequestState::Granted);
            let session = it.view.request.session.as_ref();
            let late = ends_at(&it.view).is_some_and(|at| at < clock_ms);
            open && (late || session.is_some_and(|session| !observation.is_live(session)))
        };
        let found: Vec<(PoolRequestId, PoolRequestState)> = self
            .requests
            .values()
            .filter(over)
            .map(|it| (it.view.id, it.view.state))
            .take(limit + 1)
            .collect();
        response.has_more |= found.len() > limit;
        for (id, state) in found.into_iter().take(limit) {
            self.end(id, PoolRequestState::Expired, now_ms);
            response.released += u64::from(state == PoolRequestState::Granted);
        }
        for (key, pool) in &mut self.pools {
            for resource in pool.resources.values_mut() {
                if resource.cooling_until.is_some_and(|until| until <= now_ms) {
                    resource.cooling_until = None;
                    self.notifications.push(Notification::PoolChanged(key.clone()));
                }
            }
        }
        let old = |it: &PoolRequestRecord| {
            let keep = self.pools.get(&it.pool).map_or(0, |pool| pool.settings.request_retention_ms);
            it.view.ended_at_ms.is_some_and(|at| at.saturating_add_unsigned(keep) < clock_ms)
        };
        self.requests.retain(|_, it| !old(it));
    }

    /// The times at which requests end without further calls.
    pub(super) fn pool_deadlines(&self) -> impl Iterator<Item = i64> {
        self.requests.values().filter_map(|it| ends_at(&it.view))
    }

    /// The times at which cooldowns end.
    pub(super) fn rested(&self) -> impl Iterator<Item = i64> {
        self.pools.values().flat_map(|pool| pool.resources.values()).filter_map(|it| it.cooling_until)
    }
}

/// The time at which a request ends without further calls.
fn ends_at(view: &PoolRequestView) -> Option<i64> {
    match view.state {
        PoolRequestState::Waiting => {
            view.request.max_wait_ms.map(|most| view.created_at_ms.saturating_add_unsigned(most))
        }
        PoolRequestState::Granted => view.expires_at_ms,
        _ => None,
    }
}

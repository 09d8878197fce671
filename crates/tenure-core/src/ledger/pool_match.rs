//! How resources are handed out, and given back.

use super::pool::{Request, Resource};
use super::queue::may_hand_out;
use super::{Ledger, Witness};
use crate::claim::{Free, Wish, assign};
use crate::port::{
    Authority, ClaimRefusal, Handle, PoolKey, PoolMatch, RequestId, RequestState, RequestView, Tended, Wake,
};
use crate::{Name, Token};

impl Ledger {
    /// See [`Pools::match_pool`](crate::port::Pools::match_pool).
    pub fn match_pool(
        &mut self,
        ask: &PoolMatch,
        witness: &dyn Witness,
        now_ms: i64,
    ) -> Result<Vec<RequestView>, ClaimRefusal> {
        let Some(pool) = self.pools.get(&ask.pool) else { return Ok(Vec::new()) };
        may_hand_out(pool.settings.mode, pool.settings.fallback, &ask.authority, witness)?;
        if self.paused.contains_key(&ask.pool.namespace) {
            return Err(ClaimRefusal::Paused);
        }
        let all = matches!(ask.authority, Authority::Leader { .. });
        let wanted = |it: &&Request| {
            let lives = it.view.request.session.as_ref().is_none_or(|session| witness.is_live(session));
            (all || ask.request == Some(it.view.id)) && lives
        };
        let wish = |it| {
            let Request { view, .. }: &Request = it;
            let (requires, prefers) = (&view.request.requires, &view.request.prefers);
            Wish { id: view.id, priority: pool.priority(view, now_ms), requires, prefers }
        };
        let free = |it: &&Resource| {
            it.new.enabled && it.holder.is_none() && it.cooling_until.is_none_or(|until| until <= now_ms)
        };
        let wishes: Vec<Wish<'_>> = self.waiting(&ask.pool).filter(wanted).map(wish).collect();
        let free = pool.resources.values().filter(free);
        let free: Vec<Free<'_>> = free.map(|it| Free { name: &it.new.name, tags: &it.new.tags }).collect();
        let given = assign(&wishes, &free);
        for (id, name) in &given {
            self.grant(&ask.pool, *id, name, witness.epoch(), now_ms);
        }
        if !given.is_empty() {
            self.wakes.push(Wake::Pool(ask.pool.clone()));
        }
        Ok(given.iter().filter_map(|(id, _)| self.seen_request(*id, now_ms)).collect())
    }

    fn grant(&mut self, key: &PoolKey, id: RequestId, name: &Name, epoch: u32, now_ms: i64) {
        let resource = self.pools.get_mut(key).and_then(|pool| pool.resources.get_mut(name));
        let (Some(resource), Some(request)) = (resource, self.requests.get_mut(&id)) else { return };
        resource.token = resource.token.next(epoch);
        (resource.holder, resource.cooling_until) = (Some(id), None);
        let view = &mut request.view;
        (view.state, view.resource, view.token) =
            (RequestState::Granted, Some(name.clone()), Some(resource.token));
        view.granted_at_ms = Some(now_ms);
        view.deadline_ms = view.request.hold_ms.map(|hold| now_ms.saturating_add_unsigned(hold));
    }

    /// See [`Pools::handle_request`](crate::port::Pools::handle_request).
    pub fn handle_request(
        &mut self,
        namespace: &Name,
        id: RequestId,
        owner: &str,
        token: Option<Token>,
        handle: Handle,
        now_ms: i64,
    ) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        let view = &mut request.view;
        if request.pool.namespace != *namespace || view.request.owner != owner || view.token != token {
            return false;
        }
        match (view.state, handle) {
            (RequestState::Waiting, Handle::Release) => self.end(id, RequestState::Cancelled, now_ms),
            (RequestState::Granted, Handle::Release) => self.end(id, RequestState::Released, now_ms),
            (RequestState::Granted, Handle::Extend(ms)) => {
                view.deadline_ms = Some(now_ms.saturating_add_unsigned(ms));
            }
            _ => return false,
        }
        true
    }

    /// Ends a request, and lets its resource rest.
    fn end(&mut self, id: RequestId, state: RequestState, now_ms: i64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        (request.view.state, request.view.ended_at_ms) = (state, Some(now_ms));
        let Some(pool) = self.pools.get_mut(&request.pool) else { return };
        let rest = Some(pool.settings.cool_down_ms).filter(|ms| *ms > 0);
        for resource in pool.resources.values_mut().filter(|it| it.holder == Some(id)) {
            resource.holder = None;
            resource.cooling_until = rest.map(|ms| now_ms.saturating_add_unsigned(ms));
        }
        self.wakes.push(Wake::Pool(request.pool.clone()));
    }

    /// Ends requests whose session or time is over, wakes who waits for what has rested, forgets what is old.
    pub(super) fn tend_pools(
        &mut self,
        tended: &mut Tended,
        witness: &dyn Witness,
        clock_ms: i64,
        now_ms: i64,
        limit: usize,
    ) {
        let over = |it: &&Request| {
            let open = matches!(it.view.state, RequestState::Waiting | RequestState::Granted);
            let session = it.view.request.session.as_ref();
            let late = ends_at(&it.view).is_some_and(|at| at < clock_ms);
            open && (late || session.is_some_and(|session| !witness.is_live(session)))
        };
        let found: Vec<(RequestId, RequestState)> = self
            .requests
            .values()
            .filter(over)
            .map(|it| (it.view.id, it.view.state))
            .take(limit + 1)
            .collect();
        tended.more |= found.len() > limit;
        for (id, state) in found.into_iter().take(limit) {
            self.end(id, RequestState::Expired, now_ms);
            tended.freed += u64::from(state == RequestState::Granted);
        }
        for (key, pool) in &mut self.pools {
            for resource in pool.resources.values_mut() {
                if resource.cooling_until.is_some_and(|until| until <= now_ms) {
                    resource.cooling_until = None;
                    self.wakes.push(Wake::Pool(key.clone()));
                }
            }
        }
        let old = |it: &Request| {
            let keep = self.pools.get(&it.pool).map_or(0, |pool| pool.settings.keep_ms);
            it.view.ended_at_ms.is_some_and(|at| at.saturating_add_unsigned(keep) < clock_ms)
        };
        self.requests.retain(|_, it| !old(it));
    }

    /// When requests are over.
    pub(super) fn pool_deadlines(&self) -> impl Iterator<Item = i64> {
        self.requests.values().filter_map(|it| ends_at(&it.view))
    }

    /// When resources have rested.
    pub(super) fn rested(&self) -> impl Iterator<Item = i64> {
        self.pools.values().flat_map(|pool| pool.resources.values()).filter_map(|it| it.cooling_until)
    }
}

/// When a request is over, if nothing happens before.
fn ends_at(view: &RequestView) -> Option<i64> {
    match view.state {
        RequestState::Waiting => {
            view.request.max_wait_ms.map(|most| view.created_at_ms.saturating_add_unsigned(most))
        }
        RequestState::Granted => view.deadline_ms,
        _ => None,
    }
}

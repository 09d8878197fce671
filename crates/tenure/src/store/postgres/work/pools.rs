//! Pools: resources and requests.
//!
//! The library matches requests with resources ([`match_pool_requests`]) from what it has read. The grant that follows compares and
//! swaps each pair with the row of the pool locked. If something changed meanwhile, the match is repeated.

use async_trait::async_trait;
use tenure_core::model::work::{no_such_pool, owner_mismatch, resource_in_use};
use tenure_core::port::{
    ClaimAuthority, ClaimRefusal, NewResource, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestAction,
    PoolRequestId, PoolRequestState, PoolRequestView, PoolSettings, PoolStore, PoolView, StoreError,
};
use tenure_core::rules::work::{
    Formula, FreeResource, PriorityInputs, WaitingPoolRequest, match_pool_requests, validate_pool,
    validate_pool_request, validate_resources,
};
use tenure_core::{Name, Token};

use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::{int, json, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{PostgresStore, from_json, get, get_json};
use super::claim::refusal;

/// Maximum number of passes of a match while the pool changes concurrently.
const MAX_PASSES: u32 = 5;

#[async_trait]
impl PoolStore for PostgresStore {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        let rows = self.call("pool_list", &[namespace.map(Name::as_str).into(), Value::Null]).await?;
        rows.iter().map(pool_view).collect()
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        let rows = self.call("pool_list", &pool(key)).await?;
        rows.first().map(pool_view).transpose()
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        validate_pool(settings)?;
        let [namespace, name] = pool(key);
        let message = Message::fresh(&self.queries)
            .then("pool_create", &pool(key))?
            .then("pool_set", &[namespace, name, json(settings)?])?;
        self.shared.calls.run(message).await.map(drop)
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        validate_resources(resources)?;
        let [namespace, name] = pool(key);
        let message = Message::fresh(&self.queries)
            .then("pool_create", &pool(key))?
            .then("resource_put", &[namespace, name, json(resources)?])?;
        self.shared.calls.run(message).await.map(drop)
    }

    async fn remove_resource(&self, key: &PoolKey, resource: &Name) -> Result<bool, StoreError> {
        let [namespace, name] = pool(key);
        let message = Message::fresh(&self.queries)
            .then("pool_lock", &pool(key))?
            .then("resource_remove", &[namespace, name, resource.as_str().into()])?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        match get::<Option<i64>>(row, "holder")? {
            Some(holder) => {
                Err(resource_in_use(key, resource, PoolRequestId(number(holder, "a request id")?)))
            }
            None => Ok(true),
        }
    }

    async fn create_pool_request(
        &self,
        key: &PoolKey,
        request: &PoolRequest,
    ) -> Result<PoolRequestView, StoreError> {
        validate_pool_request(request)?;
        let [namespace, name] = pool(key);
        let message = Message::fresh(&self.queries)
            .plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication)
            .then("pool_lock", &pool(key))?
            .then("pool_request_put", &[namespace, name, json(request)?])?;
        let rows = self.shared.calls.run(message).await?;
        let view = request_view(rows.first().ok_or_else(|| no_such_pool(key))?)?;
        if view.request.owner == request.owner {
            Ok(view)
        } else {
            Err(owner_mismatch(key, &request.idempotency_key, view.id))
        }
    }

    async fn match_pool(
        &self,
        pool_match: &PoolMatchRequest,
    ) -> Result<Result<Vec<PoolRequestView>, ClaimRefusal>, StoreError> {
        let mut granted = Vec::new();
        for _ in 0..MAX_PASSES {
            match self.match_once(pool_match).await? {
                Err(refusal) if granted.is_empty() => return Ok(Err(refusal)),
                Err(_) => break,
                Ok(pass) => {
                    let complete = pass.granted.len() == pass.wanted;
                    granted.extend(pass.granted);
                    if complete {
                        break;
                    }
                }
            }
        }
        let order = |view: &PoolRequestView| granted.iter().position(|id| *id == view.id);
        let mut views = self.requests(&pool_match.pool.namespace, &granted).await?;
        views.sort_by_key(order);
        Ok(Ok(views))
    }

    async fn pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
    ) -> Result<Option<PoolRequestView>, StoreError> {
        Ok(self.requests(namespace, &[id]).await?.pop())
    }

    async fn update_pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        action: PoolRequestAction,
    ) -> Result<bool, StoreError> {
        let lock = [namespace.as_str().into(), int(id.0)];
        let token = token.map_or(Value::Null, |token| int(token.as_u64()));
        let mut values = vec![namespace.as_str().into(), int(id.0), owner.into(), token];
        let query = match action {
            PoolRequestAction::Release => "pool_request_release",
            PoolRequestAction::Heartbeat(ms) => {
                values.push(int(ms));
                "pool_request_heartbeat"
            }
        };
        let message = Message::fresh(&self.queries).then("pool_request_lock", &lock)?.then(query, &values)?;
        Ok(!self.shared.calls.run(message).await?.is_empty())
    }
}

/// The result of one read-and-grant pass over a pool.
struct MatchPass {
    granted: Vec<PoolRequestId>,
    wanted: usize,
}

impl PostgresStore {
    async fn match_once(
        &self,
        pool_match: &PoolMatchRequest,
    ) -> Result<Result<MatchPass, ClaimRefusal>, StoreError> {
        let [namespace, name] = pool(&pool_match.pool);
        let (authority, leader, one) = match &pool_match.authority {
            ClaimAuthority::Leader { session, token } => ("leader", Some((session, *token)), None),
            ClaimAuthority::Direct => ("direct", None, Some(pool_match.request)),
            ClaimAuthority::Fallback => ("fallback", None, Some(pool_match.request)),
        };
        // -1 matches no request: only a leader may match all requests.
        let one = one.map_or(Value::Null, |one| one.map_or(Value::Int(-1), |id| int(id.0)));
        let rows = self.call("pool_match_input", &[namespace, name, one]).await?;
        let Some(row) = rows.first() else { return Ok(Ok(MatchPass { granted: Vec::new(), wanted: 0 })) };
        let matches = match_requests(row)?;
        let pairs: Vec<_> = matches.iter().map(|(id, name)| (id.0, name.as_str())).collect();
        let values = [
            Value::Int(get::<i32>(row, "id")?.into()),
            authority.into(),
            leader.map(|(session, _)| session.as_str()).into(),
            leader.map_or(Value::Null, |(_, token)| int(token.as_u64())),
            json(&pairs)?,
        ];
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let rows = self.shared.calls.run(message.then("pool_grant", &values)?).await?;
        let mut granted = Vec::new();
        for row in &rows {
            if let Some(text) = get::<Option<&str>>(row, "refusal")? {
                return Ok(Err(refusal(text)?));
            }
            granted.push(PoolRequestId(number(get::<i64>(row, "request_id")?, "a request id")?));
        }
        Ok(Ok(MatchPass { granted, wanted: matches.len() }))
    }

    async fn requests(
        &self,
        namespace: &Name,
        ids: &[PoolRequestId],
    ) -> Result<Vec<PoolRequestView>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.call("pool_request_get", &[namespace.as_str().into(), json(ids)?]).await?;
        rows.iter().map(request_view).collect()
    }
}

fn match_requests(row: &PgRow) -> Result<Vec<(PoolRequestId, Name)>, StoreError> {
    let (formula, now_at_ms): (String, i64) = (get(row, "priority_formula")?, get(row, "now_at_ms")?);
    let mut waiting: Vec<PoolRequestView> = get_json(row, "waiting")?;
    waiting.iter_mut().for_each(|view| set_priority(view, &formula, now_at_ms));
    let free: Vec<NewResource> = get_json(row, "free")?;
    let waiting_request = |view| {
        let PoolRequestView { id, request, priority, .. }: &PoolRequestView = view;
        let (required_tags, preferred_tags) =
            (request.required_tags.as_slice(), request.preferred_tags.as_slice());
        WaitingPoolRequest { id: *id, priority: priority.unwrap_or(0), required_tags, preferred_tags }
    };
    let waiting: Vec<WaitingPoolRequest<'_>> = waiting.iter().map(waiting_request).collect();
    let free: Vec<FreeResource<'_>> =
        free.iter().map(|it| FreeResource { name: &it.name, tags: &it.tags }).collect();
    Ok(match_pool_requests(&waiting, &free))
}

/// Namespace and name.
fn pool(key: &PoolKey) -> [Value<'_>; 2] {
    [key.namespace.as_str().into(), key.name.as_str().into()]
}

/// Compute the current priority of a waiting request.
fn set_priority(view: &mut PoolRequestView, formula: &str, now_at_ms: i64) {
    if view.state == PoolRequestState::Waiting {
        let inputs = PriorityInputs::of(&view.request, view.created_at_ms, now_at_ms);
        view.priority = Some(formula.parse::<Formula>().map_or(0, |formula| formula.value(&inputs)));
    }
}

fn request_view(row: &PgRow) -> Result<PoolRequestView, StoreError> {
    let mut view: PoolRequestView = from_json(row, "request")?;
    set_priority(&mut view, get(row, "priority_formula")?, get(row, "now_at_ms")?);
    Ok(view)
}

fn pool_view(row: &PgRow) -> Result<PoolView, StoreError> {
    let (mut view, now_at_ms): (PoolView, i64) = (from_json(row, "pool")?, get(row, "now_at_ms")?);
    view.waiting_requests
        .iter_mut()
        .for_each(|it| set_priority(it, &view.settings.priority_formula, now_at_ms));
    view.waiting_requests.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.id));
    Ok(view)
}

//! Pools, their resources and requests.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::model::work::{no_such_pool, owner_mismatch, resource_in_use};
use tenure_core::port::{
    ClaimAuthority, ClaimRefusal, NewResource, Notification, PoolKey, PoolMatchRequest, PoolRequest,
    PoolRequestAction, PoolRequestId, PoolRequestState, PoolRequestView, PoolSettings, PoolView,
    ResourceView,
};
use tenure_core::rules::work::{
    Formula, FreeResource, PriorityInputs, WaitingPoolRequest, match_pool_requests, validate_pool,
    validate_pool_request, validate_resources,
};
use tenure_core::{Name, SessionId, Token};

use super::super::SqliteStore;
use super::super::connection::{Transaction, parsed, query};
use super::super::election_admin;
use super::super::write_transaction::{WriteTransaction, number as token_number};
use super::claim::mode_refusal;
use super::views::{fallback, mode, pause, pool_request_view, pool_settings, token};
use super::{CallError, json, ms, number};
use crate::runtime;

impl SqliteStore {
    pub(super) async fn pool_views(
        &self,
        namespace: Option<&Name>,
        name: Option<&Name>,
    ) -> Result<Vec<PoolView>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("pool_list"));
        let select = select.bind(namespace.map(Name::as_str)).bind(name.map(Name::as_str));
        let rows = transaction.all(select).await?;
        let (mut views, now) = (Vec::with_capacity(rows.len()), runtime::wall_ms());
        for row in &rows {
            let id: i64 = row.try_get("id")?;
            let settings = pool_settings(row)?;
            let requests = self.open_requests(&mut transaction, id, &settings.priority_formula, now).await?;
            let resources = self.resources(&mut transaction, id).await?;
            let mut granted: HashMap<u64, PoolRequestView> = HashMap::new();
            let mut waiting = Vec::new();
            for (request, _) in requests {
                match request.state {
                    PoolRequestState::Waiting => waiting.push(request),
                    _ => drop(granted.insert(request.id.0, request)),
                }
            }
            waiting.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.id));
            let view = |it: ResourceRow| ResourceView {
                held_by: it.request.and_then(|id| granted.remove(&id)),
                resource: it.resource,
                token: it.token,
                cooldown_until_at_ms: it.cooldown_until.filter(|until| *until > now),
            };
            views.push(PoolView {
                key: PoolKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
                settings,
                paused: pause(row, "paused_by", "paused_reason", "paused_at_ms")?,
                resources: resources.into_iter().map(view).collect(),
                waiting_requests: waiting,
            });
        }
        transaction.commit().await?;
        Ok(views)
    }

    pub(super) async fn put_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), CallError> {
        validate_pool(settings)?;
        let mut tx = self.begin_write().await?;
        self.write_pool(&mut tx, key, settings, "pool_set").await?;
        // Processes that were refused because of the mode may retry.
        tx.notifications.push(Notification::PoolChanged(key.clone()));
        Ok(tx.commit().await?)
    }

    async fn write_pool(
        &self,
        tx: &mut WriteTransaction<'_>,
        key: &PoolKey,
        settings: &PoolSettings,
        name: &str,
    ) -> Result<(), CallError> {
        let write = query(self.queries.get(name))
            .bind(key.namespace.as_str())
            .bind(key.name.as_str())
            .bind(settings.mode.as_str())
            .bind(settings.fallback.as_str())
            .bind(ms(settings.cooldown_ms))
            .bind(&settings.priority_formula)
            .bind(ms(settings.request_retention_ms))
            .bind(tx.wall_ms);
        tx.transaction.execute(write).await?;
        Ok(())
    }

    pub(super) async fn put_resources(
        &self,
        key: &PoolKey,
        resources: &[NewResource],
    ) -> Result<(), CallError> {
        validate_resources(resources)?;
        let mut list = Vec::with_capacity(resources.len());
        for resource in resources {
            list.push((resource.name.as_str(), json(&resource.tags)?, u8::from(resource.enabled)));
        }
        let mut tx = self.begin_write().await?;
        self.write_pool(&mut tx, key, &PoolSettings::default(), "pool_create").await?;
        if let Some(row) = self.find_pool(&mut tx, key).await? {
            let put = query(self.queries.get("resource_put"));
            let put = put.bind(row.try_get::<i64, _>("id")?).bind(json(&list)?);
            tx.transaction.execute(put).await?;
        }
        tx.notifications.push(Notification::PoolChanged(key.clone()));
        Ok(tx.commit().await?)
    }

    pub(super) async fn delete_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let Some(row) = self.find_pool(&mut tx, key).await? else {
            tx.commit().await?;
            return Ok(false);
        };
        let pool: i64 = row.try_get("id")?;
        let holder = query(self.queries.get("resource_holder")).bind(pool).bind(name.as_str());
        if let Some(row) = tx.transaction.one(holder).await? {
            let holder = PoolRequestId(row.try_get::<i64, _>("id")?.cast_unsigned());
            return Err(resource_in_use(key, name, holder).into());
        }
        let remove = query(self.queries.get("resource_remove")).bind(pool).bind(name.as_str());
        let removed = tx.transaction.execute(remove).await?.rows_affected() > 0;
        tx.commit().await?;
        Ok(removed)
    }

    pub(super) async fn put_pool_request(
        &self,
        key: &PoolKey,
        request: &PoolRequest,
    ) -> Result<PoolRequestView, CallError> {
        validate_pool_request(request)?;
        let mut tx = self.begin_write().await?;
        let Some(row) = self.find_pool(&mut tx, key).await? else {
            return Err(no_such_pool(key).into());
        };
        let (pool, priority): (i64, String) = (row.try_get("id")?, row.try_get("priority_formula")?);
        let put = query(self.queries.get("pool_request_put"))
            .bind(pool)
            .bind(&request.idempotency_key)
            .bind(&request.owner)
            .bind(json(&request.required_tags)?)
            .bind(json(&request.preferred_tags)?)
            .bind(request.base_priority)
            .bind(request.session.as_ref().map(SessionId::as_str))
            .bind(request.claim_timeout_ms.map(ms))
            .bind(request.max_wait_ms.map(ms))
            .bind(tx.wall_ms);
        tx.transaction.execute(put).await?;
        let find =
            query(self.queries.get("pool_request_get_by_key")).bind(pool).bind(&request.idempotency_key);
        let row = tx.transaction.one(find).await?.ok_or(sqlx::Error::RowNotFound)?;
        let view = with_priority(pool_request_view(&row)?, &priority, tx.wall_ms);
        if view.request.owner != request.owner {
            return Err(owner_mismatch(key, &request.idempotency_key, view.id).into());
        }
        tx.commit().await?;
        Ok(view)
    }

    pub(super) async fn match_pool_requests(
        &self,
        request: &PoolMatchRequest,
    ) -> Result<Result<Vec<PoolRequestView>, ClaimRefusal>, CallError> {
        let mut tx = self.begin_write().await?;
        let now = tx.wall_ms;
        let Some(row) = self.find_pool(&mut tx, &request.pool).await? else {
            tx.commit().await?;
            return Ok(Ok(Vec::new()));
        };
        if let Some(refusal) = self.match_refusal(&mut tx, &row, &request.authority).await? {
            tx.commit().await?;
            return Ok(Err(refusal));
        }
        let (pool, priority): (i64, String) = (row.try_get("id")?, row.try_get("priority_formula")?);
        let mut requests = self.open_requests(&mut tx.transaction, pool, &priority, now).await?;
        requests.retain(|(it, _)| it.state == PoolRequestState::Waiting);
        if !matches!(request.authority, ClaimAuthority::Leader { .. }) {
            requests.retain(|(it, _)| Some(it.id) == request.request);
        }
        requests.retain(|(_, live)| *live);
        let mut resources = self.resources(&mut tx.transaction, pool).await?;
        resources.retain(|it| it.is_free(now));
        let available: Vec<FreeResource<'_>> = resources
            .iter()
            .map(|it| FreeResource { name: &it.resource.name, tags: &it.resource.tags })
            .collect();
        let candidates: Vec<WaitingPoolRequest<'_>> = requests.iter().map(|(it, _)| candidate(it)).collect();
        let mut granted = Vec::new();
        for (request, resource) in match_pool_requests(&candidates, &available) {
            granted.extend(self.grant(&mut tx, pool, request, &resource).await?);
        }
        if !granted.is_empty() {
            tx.notifications.push(Notification::PoolChanged(request.pool.clone()));
        }
        tx.commit().await?;
        Ok(Ok(granted))
    }

    async fn match_refusal(
        &self,
        tx: &mut WriteTransaction<'_>,
        row: &SqliteRow,
        authority: &ClaimAuthority,
    ) -> Result<Option<ClaimRefusal>, CallError> {
        let is_leader = match authority {
            ClaimAuthority::Leader { session, token } => {
                let is_leader = query(self.queries.get("broker_is_leader"));
                let is_leader = is_leader.bind(session.as_str()).bind(token_number(*token));
                tx.transaction.one(is_leader).await?.is_some()
            }
            _ => false,
        };
        if let Some(refusal) = mode_refusal(authority, mode(row)?, fallback(row)?, is_leader) {
            return Ok(Some(refusal));
        }
        let paused = row.try_get::<Option<i64>, _>("paused_at_ms")?.is_some();
        Ok(paused.then_some(ClaimRefusal::Paused))
    }

    async fn grant(
        &self,
        tx: &mut WriteTransaction<'_>,
        pool: i64,
        request: PoolRequestId,
        resource: &Name,
    ) -> Result<Option<PoolRequestView>, CallError> {
        let take = query(self.queries.get("resource_grant"));
        let take = take.bind(pool).bind(resource.as_str()).bind(number(request.0));
        let Some(row) = tx.transaction.one(take).await? else { return Ok(None) };
        let grant = query(self.queries.get("pool_request_grant"))
            .bind(number(request.0))
            .bind(resource.as_str())
            .bind(row.try_get::<i64, _>("token")?)
            .bind(tx.wall_ms);
        let row = tx.transaction.one(grant).await?;
        Ok(row.as_ref().map(pool_request_view).transpose()?)
    }

    pub(super) async fn get_pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
    ) -> Result<Option<PoolRequestView>, CallError> {
        let select = query(self.queries.get("pool_request_get")).bind(namespace.as_str()).bind(number(id.0));
        let row = select.fetch_optional(&self.inner.pools.reads).await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(with_priority(
            pool_request_view(&row)?,
            row.try_get("priority_formula")?,
            runtime::wall_ms(),
        )))
    }

    pub(super) async fn update_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        action: PoolRequestAction,
    ) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let select = query(self.queries.get("pool_request_get")).bind(namespace.as_str()).bind(number(id.0));
        let row = tx.transaction.one(select).await?;
        let view = row.as_ref().map(pool_request_view).transpose()?;
        let owned = view.filter(|it| it.request.owner == owner && it.token == token);
        let state = owned.map(|it| it.state);
        let updated = match (state, action) {
            (Some(PoolRequestState::Granted), PoolRequestAction::Release) => {
                tx.end_requests(&[number(id.0)], "released").await?;
                true
            }
            (Some(PoolRequestState::Waiting), PoolRequestAction::Release) => {
                tx.end_requests(&[number(id.0)], "cancelled").await?;
                true
            }
            (Some(PoolRequestState::Granted), PoolRequestAction::Heartbeat(claim_timeout_ms)) => {
                let heartbeat = query(self.queries.get("pool_request_heartbeat"));
                let heartbeat = heartbeat.bind(number(id.0)).bind(tx.wall_ms + ms(claim_timeout_ms));
                tx.transaction.execute(heartbeat).await?;
                true
            }
            _ => false,
        };
        if let (Some(row), true, PoolRequestAction::Release) = (&row, updated, action) {
            let key = PoolKey::new(namespace.clone(), parsed(row, "pool_name")?);
            tx.notifications.push(Notification::PoolChanged(key));
        }
        tx.commit().await?;
        Ok(updated)
    }

    async fn find_pool(
        &self,
        tx: &mut WriteTransaction<'_>,
        key: &PoolKey,
    ) -> Result<Option<SqliteRow>, CallError> {
        let find = query(self.queries.get("pool_list")).bind(key.namespace.as_str()).bind(key.name.as_str());
        Ok(tx.transaction.one(find).await?)
    }

    /// The waiting and granted requests of a pool, each with whether its session is live.
    async fn open_requests(
        &self,
        transaction: &mut Transaction,
        pool: i64,
        priority: &str,
        now: i64,
    ) -> Result<Vec<(PoolRequestView, bool)>, CallError> {
        let rows = transaction.all(query(self.queries.get("pool_request_list")).bind(pool)).await?;
        let formula = priority.parse::<Formula>().ok();
        let view = |row: &SqliteRow| {
            let view = pool_request_view(row)?;
            Ok((with_formula(view, formula.as_ref(), now), row.try_get("live")?))
        };
        Ok(rows.iter().map(view).collect::<sqlx::Result<_>>()?)
    }

    async fn resources(
        &self,
        transaction: &mut Transaction,
        pool: i64,
    ) -> Result<Vec<ResourceRow>, CallError> {
        let rows = transaction.all(query(self.queries.get("resource_list")).bind(pool)).await?;
        let resource = |row: &SqliteRow| {
            Ok(ResourceRow {
                resource: NewResource {
                    name: parsed(row, "name")?,
                    tags: election_admin::json(row, "tags")?,
                    enabled: row.try_get("enabled")?,
                },
                token: token(row, "token")?,
                request: row.try_get::<Option<i64>, _>("request_id")?.map(i64::cast_unsigned),
                cooldown_until: row.try_get("cooldown_until_at_ms")?,
            })
        };
        Ok(rows.iter().map(resource).collect::<sqlx::Result<_>>()?)
    }
}

impl WriteTransaction<'_> {
    /// End requests and release their resources.
    pub(super) async fn end_requests(&mut self, ids: &[i64], state: &str) -> Result<(), CallError> {
        let (ids, now) = (json(&ids)?, self.wall_ms);
        let release = query(self.store.queries.get("resource_release")).bind(&ids).bind(now);
        self.transaction.execute(release).await?;
        let end = query(self.store.queries.get("pool_request_end")).bind(&ids).bind(state).bind(now);
        self.transaction.execute(end).await?;
        Ok(())
    }
}

/// A row of tenure_resources.
struct ResourceRow {
    resource: NewResource,
    token: Token,
    request: Option<u64>,
    cooldown_until: Option<i64>,
}

impl ResourceRow {
    fn is_free(&self, now: i64) -> bool {
        self.request.is_none()
            && self.resource.enabled
            && self.cooldown_until.is_none_or(|until| until <= now)
    }
}

fn candidate(view: &PoolRequestView) -> WaitingPoolRequest<'_> {
    WaitingPoolRequest {
        id: view.id,
        priority: view.priority.unwrap_or_default(),
        required_tags: &view.request.required_tags,
        preferred_tags: &view.request.preferred_tags,
    }
}

/// Add the priority to a waiting request.
fn with_priority(view: PoolRequestView, priority: &str, now: i64) -> PoolRequestView {
    with_formula(view, priority.parse::<Formula>().ok().as_ref(), now)
}

fn with_formula(mut view: PoolRequestView, formula: Option<&Formula>, now: i64) -> PoolRequestView {
    if view.state == PoolRequestState::Waiting {
        // The pool settings were validated, so the formula parses.
        let variables = PriorityInputs::of(&view.request, view.created_at_ms, now);
        view.priority = Some(formula.map_or(0, |formula| formula.value(&variables)));
    }
    view
}

//! Pools: resources that requests wait for.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::claim::{Facts, Formula, Free, Wish, assign, check_pool, check_request, check_resources};
use tenure_core::ledger::{another_owner, held_resource, no_such_pool};
use tenure_core::port::{
    Authority, ClaimRefusal, Handle, NewRequest, NewResource, PoolKey, PoolMatch, PoolSettings, PoolView,
    RequestId, RequestState, RequestView, ResourceView, Wake,
};
use tenure_core::{Name, SessionId, Token};

use super::super::Sqlite;
use super::super::change::{Change, number as token_number};
use super::super::connection::{Transaction, parsed, query};
use super::super::directory;
use super::claim::refused;
use super::views::{fallback, mode, pause, pool_settings, request_view, token};
use super::{Failed, json, ms, number};
use crate::runtime;

impl Sqlite {
    pub(super) async fn pool_views(
        &self,
        namespace: Option<&Name>,
        name: Option<&Name>,
    ) -> Result<Vec<PoolView>, Failed> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("pool_list"));
        let select = select.bind(namespace.map(Name::as_str)).bind(name.map(Name::as_str));
        let rows = transaction.all(select).await?;
        let (mut views, now) = (Vec::with_capacity(rows.len()), runtime::wall_ms());
        for row in &rows {
            let id: i64 = row.try_get("id")?;
            let settings = pool_settings(row)?;
            let requests = self.open_requests(&mut transaction, id, &settings.priority, now).await?;
            let resources = self.resources(&mut transaction, id).await?;
            let mut held: HashMap<u64, RequestView> = HashMap::new();
            let mut waiting = Vec::new();
            for (request, _) in requests {
                match request.state {
                    RequestState::Waiting => waiting.push(request),
                    _ => drop(held.insert(request.id.0, request)),
                }
            }
            waiting.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.id));
            let view = |it: Resource| ResourceView {
                holder: it.request.and_then(|id| held.remove(&id)),
                resource: it.resource,
                token: it.token,
                cooling_until_ms: it.cooling_until.filter(|until| *until > now),
            };
            views.push(PoolView {
                key: PoolKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
                settings,
                paused: pause(row, "paused_by", "paused_reason", "paused_at")?,
                resources: resources.into_iter().map(view).collect(),
                waiting,
            });
        }
        transaction.commit().await?;
        Ok(views)
    }

    pub(super) async fn keep_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), Failed> {
        check_pool(settings)?;
        let mut change = self.change().await?;
        self.make_pool(&mut change, key, settings, "pool_set").await?;
        // Who was refused for its mode may ask again.
        change.wakes.push(Wake::Pool(key.clone()));
        Ok(change.commit().await?)
    }

    async fn make_pool(
        &self,
        change: &mut Change<'_>,
        key: &PoolKey,
        settings: &PoolSettings,
        name: &str,
    ) -> Result<(), Failed> {
        let make = query(self.queries.get(name))
            .bind(key.namespace.as_str())
            .bind(key.name.as_str())
            .bind(settings.mode.as_str())
            .bind(settings.fallback.as_str())
            .bind(ms(settings.cool_down_ms))
            .bind(&settings.priority)
            .bind(ms(settings.keep_ms))
            .bind(change.wall_ms);
        change.transaction.execute(make).await?;
        Ok(())
    }

    pub(super) async fn put_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), Failed> {
        check_resources(resources)?;
        let mut list = Vec::with_capacity(resources.len());
        for resource in resources {
            list.push((resource.name.as_str(), json(&resource.tags)?, u8::from(resource.enabled)));
        }
        let mut change = self.change().await?;
        self.make_pool(&mut change, key, &PoolSettings::default(), "pool_make").await?;
        if let Some(row) = self.find_pool(&mut change, key).await? {
            let put = query(self.queries.get("resource_put"));
            let put = put.bind(row.try_get::<i64, _>("id")?).bind(json(&list)?);
            change.transaction.execute(put).await?;
        }
        change.wakes.push(Wake::Pool(key.clone()));
        Ok(change.commit().await?)
    }

    pub(super) async fn take_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, Failed> {
        let mut change = self.change().await?;
        let Some(row) = self.find_pool(&mut change, key).await? else {
            change.commit().await?;
            return Ok(false);
        };
        let pool: i64 = row.try_get("id")?;
        let holder = query(self.queries.get("resource_holder")).bind(pool).bind(name.as_str());
        if let Some(row) = change.transaction.one(holder).await? {
            let holder = RequestId(row.try_get::<i64, _>("id")?.cast_unsigned());
            return Err(held_resource(key, name, holder).into());
        }
        let remove = query(self.queries.get("resource_remove")).bind(pool).bind(name.as_str());
        let removed = change.transaction.execute(remove).await?.rows_affected() > 0;
        change.commit().await?;
        Ok(removed)
    }

    pub(super) async fn put_request(
        &self,
        key: &PoolKey,
        request: &NewRequest,
    ) -> Result<RequestView, Failed> {
        check_request(request)?;
        let mut change = self.change().await?;
        let Some(row) = self.find_pool(&mut change, key).await? else {
            return Err(no_such_pool(key).into());
        };
        let (pool, priority): (i64, String) = (row.try_get("id")?, row.try_get("priority")?);
        let put = query(self.queries.get("pool_request_put"))
            .bind(pool)
            .bind(&request.key)
            .bind(&request.owner)
            .bind(json(&request.requires)?)
            .bind(json(&request.prefers)?)
            .bind(request.base)
            .bind(request.session.as_ref().map(SessionId::as_str))
            .bind(request.hold_ms.map(ms))
            .bind(request.max_wait_ms.map(ms))
            .bind(change.wall_ms);
        change.transaction.execute(put).await?;
        let find = query(self.queries.get("pool_request_open")).bind(pool).bind(&request.key);
        let row = change.transaction.one(find).await?.ok_or(sqlx::Error::RowNotFound)?;
        let view = ranked(request_view(&row)?, &priority, change.wall_ms);
        if view.request.owner != request.owner {
            return Err(another_owner(key, &request.key, view.id).into());
        }
        change.commit().await?;
        Ok(view)
    }

    pub(super) async fn match_requests(
        &self,
        ask: &PoolMatch,
    ) -> Result<Result<Vec<RequestView>, ClaimRefusal>, Failed> {
        let mut change = self.change().await?;
        let now = change.wall_ms;
        let Some(row) = self.find_pool(&mut change, &ask.pool).await? else {
            change.commit().await?;
            return Ok(Ok(Vec::new()));
        };
        if let Some(refusal) = self.pool_refusal(&mut change, &row, &ask.authority).await? {
            change.commit().await?;
            return Ok(Err(refusal));
        }
        let (pool, priority): (i64, String) = (row.try_get("id")?, row.try_get("priority")?);
        let mut requests = self.open_requests(&mut change.transaction, pool, &priority, now).await?;
        requests.retain(|(it, _)| it.state == RequestState::Waiting);
        if !matches!(ask.authority, Authority::Leader { .. }) {
            requests.retain(|(it, _)| Some(it.id) == ask.request);
        }
        requests.retain(|(_, live)| *live);
        let mut resources = self.resources(&mut change.transaction, pool).await?;
        resources.retain(|it| it.is_free(now));
        let free: Vec<Free<'_>> =
            resources.iter().map(|it| Free { name: &it.resource.name, tags: &it.resource.tags }).collect();
        let wishes: Vec<Wish<'_>> = requests.iter().map(|(it, _)| wish(it)).collect();
        let mut granted = Vec::new();
        for (request, resource) in assign(&wishes, &free) {
            granted.extend(self.grant(&mut change, pool, request, &resource).await?);
        }
        if !granted.is_empty() {
            change.wakes.push(Wake::Pool(ask.pool.clone()));
        }
        change.commit().await?;
        Ok(Ok(granted))
    }

    async fn pool_refusal(
        &self,
        change: &mut Change<'_>,
        row: &SqliteRow,
        authority: &Authority,
    ) -> Result<Option<ClaimRefusal>, Failed> {
        let leads = match authority {
            Authority::Leader { session, token } => {
                let leads = query(self.queries.get("claims_leader"));
                let leads = leads.bind(session.as_str()).bind(token_number(*token));
                change.transaction.one(leads).await?.is_some()
            }
            _ => false,
        };
        if let Some(refusal) = refused(authority, mode(row)?, fallback(row)?, leads) {
            return Ok(Some(refusal));
        }
        let paused = row.try_get::<Option<i64>, _>("paused_at")?.is_some();
        Ok(paused.then_some(ClaimRefusal::Paused))
    }

    async fn grant(
        &self,
        change: &mut Change<'_>,
        pool: i64,
        request: RequestId,
        resource: &Name,
    ) -> Result<Option<RequestView>, Failed> {
        let take = query(self.queries.get("resource_grant"));
        let take = take.bind(pool).bind(resource.as_str()).bind(number(request.0));
        let Some(row) = change.transaction.one(take).await? else { return Ok(None) };
        let grant = query(self.queries.get("pool_request_grant"))
            .bind(number(request.0))
            .bind(resource.as_str())
            .bind(row.try_get::<i64, _>("token")?)
            .bind(change.wall_ms);
        let row = change.transaction.one(grant).await?;
        Ok(row.as_ref().map(request_view).transpose()?)
    }

    pub(super) async fn request_view(
        &self,
        namespace: &Name,
        id: RequestId,
    ) -> Result<Option<RequestView>, Failed> {
        let show = query(self.queries.get("pool_request_show")).bind(namespace.as_str()).bind(number(id.0));
        let row = show.fetch_optional(&self.inner.pools.reads).await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(ranked(request_view(&row)?, row.try_get("priority")?, runtime::wall_ms())))
    }

    pub(super) async fn handle(
        &self,
        namespace: &Name,
        id: RequestId,
        owner: &str,
        token: Option<Token>,
        handle: Handle,
    ) -> Result<bool, Failed> {
        let mut change = self.change().await?;
        let show = query(self.queries.get("pool_request_show")).bind(namespace.as_str()).bind(number(id.0));
        let row = change.transaction.one(show).await?;
        let view = row.as_ref().map(request_view).transpose()?;
        let mine = view.filter(|it| it.request.owner == owner && it.token == token);
        let state = mine.map(|it| it.state);
        let done = match (state, handle) {
            (Some(RequestState::Granted), Handle::Release) => {
                change.end_requests(&[number(id.0)], "released").await?;
                true
            }
            (Some(RequestState::Waiting), Handle::Release) => {
                change.end_requests(&[number(id.0)], "cancelled").await?;
                true
            }
            (Some(RequestState::Granted), Handle::Extend(more)) => {
                let extend = query(self.queries.get("pool_request_extend"));
                let extend = extend.bind(number(id.0)).bind(change.wall_ms + ms(more));
                change.transaction.execute(extend).await?;
                true
            }
            _ => false,
        };
        if let (Some(row), true, Handle::Release) = (&row, done, handle) {
            let key = PoolKey::new(namespace.clone(), parsed(row, "pool_name")?);
            change.wakes.push(Wake::Pool(key));
        }
        change.commit().await?;
        Ok(done)
    }

    async fn find_pool(&self, change: &mut Change<'_>, key: &PoolKey) -> Result<Option<SqliteRow>, Failed> {
        let find = query(self.queries.get("pool_list")).bind(key.namespace.as_str()).bind(key.name.as_str());
        Ok(change.transaction.one(find).await?)
    }

    /// The requests of a pool that are not over, each with whether its session lives.
    async fn open_requests(
        &self,
        transaction: &mut Transaction,
        pool: i64,
        priority: &str,
        now: i64,
    ) -> Result<Vec<(RequestView, bool)>, Failed> {
        let rows = transaction.all(query(self.queries.get("pool_request_list")).bind(pool)).await?;
        let formula = priority.parse::<Formula>().ok();
        let view = |row: &SqliteRow| {
            let view = request_view(row)?;
            Ok((by_formula(view, formula.as_ref(), now), row.try_get("live")?))
        };
        Ok(rows.iter().map(view).collect::<sqlx::Result<_>>()?)
    }

    async fn resources(&self, transaction: &mut Transaction, pool: i64) -> Result<Vec<Resource>, Failed> {
        let rows = transaction.all(query(self.queries.get("resource_list")).bind(pool)).await?;
        let resource = |row: &SqliteRow| {
            Ok(Resource {
                resource: NewResource {
                    name: parsed(row, "name")?,
                    tags: directory::json(row, "tags")?,
                    enabled: row.try_get("enabled")?,
                },
                token: token(row, "token")?,
                request: row.try_get::<Option<i64>, _>("request")?.map(i64::cast_unsigned),
                cooling_until: row.try_get("cooling_until")?,
            })
        };
        Ok(rows.iter().map(resource).collect::<sqlx::Result<_>>()?)
    }
}

impl Change<'_> {
    /// Ends requests, and frees what they have.
    pub(super) async fn end_requests(&mut self, ids: &[i64], state: &str) -> Result<(), Failed> {
        let (ids, now) = (json(&ids)?, self.wall_ms);
        let free = query(self.store.queries.get("resource_free")).bind(&ids).bind(now);
        self.transaction.execute(free).await?;
        let end = query(self.store.queries.get("pool_request_end")).bind(&ids).bind(state).bind(now);
        self.transaction.execute(end).await?;
        Ok(())
    }
}

/// A resource's row.
struct Resource {
    resource: NewResource,
    token: Token,
    request: Option<u64>,
    cooling_until: Option<i64>,
}

impl Resource {
    fn is_free(&self, now: i64) -> bool {
        self.request.is_none() && self.resource.enabled && self.cooling_until.is_none_or(|until| until <= now)
    }
}

fn wish(view: &RequestView) -> Wish<'_> {
    Wish {
        id: view.id,
        priority: view.priority.unwrap_or_default(),
        requires: &view.request.requires,
        prefers: &view.request.prefers,
    }
}

/// The request, with its priority while it waits.
fn ranked(view: RequestView, priority: &str, now: i64) -> RequestView {
    by_formula(view, priority.parse::<Formula>().ok().as_ref(), now)
}

fn by_formula(mut view: RequestView, formula: Option<&Formula>, now: i64) -> RequestView {
    if view.state == RequestState::Waiting {
        // One that makes no sense never got here.
        let facts = Facts::of(&view.request, view.created_at_ms, now);
        view.priority = Some(formula.map_or(0, |formula| formula.value(&facts)));
    }
    view
}

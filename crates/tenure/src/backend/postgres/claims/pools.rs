//! Resources and who waits for them.
//!
//! Which request gets which resource is decided here, by [`assign`], on what was looked at; the grant that follows compares
//! and swaps, pair by pair, with the pool's row locked. What changed in between is looked at again.

use async_trait::async_trait;
use tenure_core::claim::{Facts, Formula, Free, Wish, assign, check_pool, check_request, check_resources};
use tenure_core::ledger::{another_owner, held_resource, no_such_pool};
use tenure_core::port::{
    Authority, ClaimRefusal, Handle, NewRequest, NewResource, PoolKey, PoolMatch, PoolSettings, PoolView,
    Pools, RequestId, RequestState, RequestView, StoreError,
};
use tenure_core::{Name, Token};

use super::super::message::{Message, STRICT};
use super::super::store::{int, json, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, from_json, get, get_json};
use super::take::refusal;

/// How often a match is tried anew because something changed under it, before what was got is enough.
const TRIES: u32 = 5;

#[async_trait]
impl Pools for Postgres {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        let rows = self.call("pool_list", &[namespace.map(Name::as_str).into(), Value::Null]).await?;
        rows.iter().map(pool_view).collect()
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        let rows = self.call("pool_list", &pool(key)).await?;
        rows.first().map(pool_view).transpose()
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        check_pool(settings)?;
        let [namespace, name] = pool(key);
        let message = Message::fresh(&self.queries)
            .then("pool_make", &pool(key))?
            .then("pool_set", &[namespace, name, json(settings)?])?;
        self.shared.calls.run(message).await.map(drop)
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        check_resources(resources)?;
        let [namespace, name] = pool(key);
        let message = Message::fresh(&self.queries)
            .then("pool_make", &pool(key))?
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
            Some(holder) => Err(held_resource(key, resource, RequestId(number(holder, "a request")?))),
            None => Ok(true),
        }
    }

    async fn request(&self, key: &PoolKey, request: &NewRequest) -> Result<RequestView, StoreError> {
        check_request(request)?;
        let [namespace, name] = pool(key);
        let message = Message::fresh(&self.queries)
            .plain(STRICT, self.shared.strict)
            .then("pool_lock", &pool(key))?
            .then("pool_request", &[namespace, name, json(request)?])?;
        let rows = self.shared.calls.run(message).await?;
        let view = request_view(rows.first().ok_or_else(|| no_such_pool(key))?)?;
        if view.request.owner == request.owner {
            Ok(view)
        } else {
            Err(another_owner(key, &request.key, view.id))
        }
    }

    async fn match_pool(
        &self,
        ask: &PoolMatch,
    ) -> Result<Result<Vec<RequestView>, ClaimRefusal>, StoreError> {
        let mut granted = Vec::new();
        for _ in 0..TRIES {
            match self.match_once(ask).await? {
                Err(refusal) if granted.is_empty() => return Ok(Err(refusal)),
                Err(_) => break,
                Ok(Round { given, wanted }) => {
                    let all = given.len() == wanted;
                    granted.extend(given);
                    if all {
                        break;
                    }
                }
            }
        }
        let order = |view: &RequestView| granted.iter().position(|id| *id == view.id);
        let mut views = self.requests(&ask.pool.namespace, &granted).await?;
        views.sort_by_key(order);
        Ok(Ok(views))
    }

    async fn pool_request(&self, namespace: &Name, id: RequestId) -> Result<Option<RequestView>, StoreError> {
        Ok(self.requests(namespace, &[id]).await?.pop())
    }

    async fn handle_request(
        &self,
        namespace: &Name,
        id: RequestId,
        owner: &str,
        token: Option<Token>,
        handle: Handle,
    ) -> Result<bool, StoreError> {
        let lock = [namespace.as_str().into(), int(id.0)];
        let token = token.map_or(Value::Null, |token| int(token.as_u64()));
        let mut values = vec![namespace.as_str().into(), int(id.0), owner.into(), token];
        let query = match handle {
            Handle::Release => "request_release",
            Handle::Extend(ms) => {
                values.push(int(ms));
                "request_extend"
            }
        };
        let message = Message::fresh(&self.queries).then("request_lock", &lock)?.then(query, &values)?;
        Ok(!self.shared.calls.run(message).await?.is_empty())
    }
}

/// What came of one look and the grant after it.
struct Round {
    given: Vec<RequestId>,
    wanted: usize,
}

impl Postgres {
    async fn match_once(&self, ask: &PoolMatch) -> Result<Result<Round, ClaimRefusal>, StoreError> {
        let [namespace, name] = pool(&ask.pool);
        let (authority, leader, one) = match &ask.authority {
            Authority::Leader { session, token } => ("leader", Some((session, *token)), None),
            Authority::Direct => ("direct", None, Some(ask.request)),
            Authority::Fallback => ("fallback", None, Some(ask.request)),
        };
        // Not the leader, and no request: nobody is looked at.
        let one = one.map_or(Value::Null, |one| one.map_or(Value::Int(-1), |id| int(id.0)));
        let rows = self.call("pool_look", &[namespace, name, one]).await?;
        let Some(row) = rows.first() else { return Ok(Ok(Round { given: Vec::new(), wanted: 0 })) };
        let given = matched(row)?;
        let pairs: Vec<_> = given.iter().map(|(id, name)| (id.0, name.as_str())).collect();
        let values = [
            Value::Int(get::<i32>(row, "id")?.into()),
            authority.into(),
            leader.map(|(session, _)| session.as_str()).into(),
            leader.map_or(Value::Null, |(_, token)| int(token.as_u64())),
            json(&pairs)?,
        ];
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let rows = self.shared.calls.run(message.then("pool_grant", &values)?).await?;
        let mut got = Vec::new();
        for row in &rows {
            if let Some(note) = get::<Option<&str>>(row, "note")? {
                return Ok(Err(refusal(note)?));
            }
            got.push(RequestId(number(get::<i64>(row, "request")?, "a request")?));
        }
        Ok(Ok(Round { given: got, wanted: given.len() }))
    }

    async fn requests(&self, namespace: &Name, ids: &[RequestId]) -> Result<Vec<RequestView>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.call("request_show", &[namespace.as_str().into(), json(ids)?]).await?;
        rows.iter().map(request_view).collect()
    }
}

fn matched(row: &PgRow) -> Result<Vec<(RequestId, Name)>, StoreError> {
    let (formula, now_ms): (String, i64) = (get(row, "priority")?, get(row, "now_ms")?);
    let mut waiting: Vec<RequestView> = get_json(row, "waiting")?;
    waiting.iter_mut().for_each(|view| rate(view, &formula, now_ms));
    let free: Vec<NewResource> = get_json(row, "free")?;
    let wish = |view| {
        let RequestView { id, request, priority, .. }: &RequestView = view;
        let (requires, prefers) = (request.requires.as_slice(), request.prefers.as_slice());
        Wish { id: *id, priority: priority.unwrap_or(0), requires, prefers }
    };
    let wishes: Vec<Wish<'_>> = waiting.iter().map(wish).collect();
    let free: Vec<Free<'_>> = free.iter().map(|it| Free { name: &it.name, tags: &it.tags }).collect();
    Ok(assign(&wishes, &free))
}

/// Namespace and name.
fn pool(key: &PoolKey) -> [Value<'_>; 2] {
    [key.namespace.as_str().into(), key.name.as_str().into()]
}

/// The priority of a request that waits, at this moment.
fn rate(view: &mut RequestView, formula: &str, now_ms: i64) {
    if view.state == RequestState::Waiting {
        let facts = Facts::of(&view.request, view.created_at_ms, now_ms);
        view.priority = Some(formula.parse::<Formula>().map_or(0, |formula| formula.value(&facts)));
    }
}

fn request_view(row: &PgRow) -> Result<RequestView, StoreError> {
    let mut view: RequestView = from_json(row, "request")?;
    rate(&mut view, get(row, "priority")?, get(row, "now_ms")?);
    Ok(view)
}

fn pool_view(row: &PgRow) -> Result<PoolView, StoreError> {
    let (mut view, now_ms): (PoolView, i64) = (from_json(row, "pool")?, get(row, "now_ms")?);
    view.waiting.iter_mut().for_each(|it| rate(it, &view.settings.priority, now_ms));
    view.waiting.sort_by_key(|it| (std::cmp::Reverse(it.priority), it.id));
    Ok(view)
}

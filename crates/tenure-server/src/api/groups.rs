//! Groups: who reads a topic, how far, and what failed.

mod aside;
mod members;
mod pull;
mod push;

pub(crate) use self::aside::ordered as order_dead;
pub(crate) use self::push::{PushWish, address as push_address, set_push};
pub(super) use self::push::{check_secret, new_secret};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    Backoff, Begin, GroupKey, GroupSettings, GroupView, Moved, SLOTS_MAX, StoreError, TopicKey, Trouble, Verb,
};
use tenure_core::event::{check_begin, check_group};
use tenure_core::schedule::in_utc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::deeds::{By, record_of};
use super::elections::number;
use super::events::of_topic;
use super::given::{At, Given, In, MaybeGiven};
use super::operate::Nothing;
use super::queues::{Changed, PauseWork};
use super::sense::of_group as sense;
use super::sessions::{Within, unfit};
use super::topics::looked_at;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{Need, Routes};

/// How many groups are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (50, 200);
/// Those who look, and those who consume.
const MEMBERS: Need = Need::InAny(&[Verb::Read, Verb::Claim]);

pub(crate) fn routes() -> Routes {
    let admin = Need::In(Verb::Admin);
    Routes::new()
        .api(Need::Known, routes!(list))
        .api(MEMBERS, routes!(show))
        .api(admin, routes!(set))
        .api(admin, routes!(delete))
        .api(admin, routes!(pause))
        .api(admin, routes!(resume))
        .api(admin, routes!(reset))
        .merge(aside::routes())
        .merge(push::routes())
        .merge(members::routes())
        .merge(pull::routes())
}

/// Which groups, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// The tenant; without one, all that you may read.
    namespace: Option<Name>,
    /// Only those of this topic.
    topic: Option<Name>,
    /// How many at most.
    #[param(default = 50, minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// Go on after this one: `next` of the page before.
    #[param(example = "default/orders/mailer")]
    after: Option<String>,
}

/// A page of groups.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Groups {
    /// The groups, by namespace, topic and name.
    groups: Vec<GroupView>,
    /// What to give as `after` to get the next page; `null` if this is the last one.
    #[schema(example = "default/orders/mailer")]
    next: Option<String>,
}

/// How a group is to be set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"max_attempts": 10, "backoff": {"first_ms": 500, "most_ms": 60000}, "from": "earliest"}))]
pub(crate) struct GroupWish {
    /// How often an event is tried before it is dead and its key parked.
    #[schema(minimum = 1, default = 10)]
    max_attempts: u32,
    /// How long to wait before the next attempt.
    backoff: Backoff,
    /// Where it begins, if it is new. A group that is there stays where it is: `reset` moves it.
    from: Begin,
}

impl Default for GroupWish {
    fn default() -> Self {
        let GroupSettings { max_attempts, backoff } = GroupSettings::default();
        GroupWish { max_attempts, backoff, from: Begin::default() }
    }
}

/// Where a group is to go on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "earliest", "dry_run": true}))]
pub(crate) struct Reset {
    /// `"earliest"`, `"latest"`, `{"position": N}` (after it), `{"time": N}` (milliseconds since 1970).
    to: Begin,
    /// Only this slot.
    slot: Option<u32>,
    /// Whether nothing is to be changed, and only told what would be.
    #[serde(default)]
    dry_run: bool,
}

/// What a reset did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResetDone {
    /// The slots, by number.
    slots: Vec<Moved>,
}

/// List groups
///
/// By namespace, topic and name; with members, slots, lag, and what is aside and dead.
#[utoipa::path(get, path = "/v1/groups", tag = "groups", params(Which), responses((status = 200, body = Groups)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(which): In<Which>,
) -> Result<Json<Groups>, Problem> {
    let limit = number("limit", which.limit, PAGE)? as usize;
    let from = which.after.as_deref().map(place).transpose()?;
    if let Some(namespace) = &which.namespace {
        principal.must(Verb::Read, Some(namespace))?;
    }
    let mut names = app.store.group_names(which.namespace.as_ref()).await?;
    names.retain(|key| {
        principal.may(Verb::Read, Some(&key.topic.namespace))
            && which.topic.as_ref().is_none_or(|name| *name == key.topic.name)
            && from.as_ref().is_none_or(|from| key > from)
    });
    names.sort_unstable();
    let more = names.len() > limit;
    names.truncate(limit);
    let next = names
        .last()
        .filter(|_| more)
        .map(|GroupKey { topic, name }| format!("{}/{}/{name}", topic.namespace, topic.name));
    let store = &app.store;
    let groups = looked_at(names, |key| async move { store.group(&key).await }).await?;
    Ok(Json(Groups { groups: groups.into_iter().map(GroupView::shown).collect(), next }))
}

/// Show a group
///
/// Its members, and for each slot who has it, how far it is read, where it ends, and how many events and milliseconds lie between.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within),
    responses((status = 200, body = GroupView), (status = 404, body = Problem, description = "There is no such group.")))]
pub(crate) async fn show(
    State(app): State<App>,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
) -> Result<Json<GroupView>, Problem> {
    find(&app, &key(within, topic, group)).await.map(GroupView::shown).map(Json)
}

/// Set a group
///
/// Makes it, where it is to begin, or sets it anew: what is left out is as usual.
#[utoipa::path(put, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Option<GroupWish>,
    responses((status = 200, body = GroupView), (status = 201, body = GroupView, description = "It is new.")))]
pub(crate) async fn set(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    MaybeGiven(wish): MaybeGiven<GroupWish>,
) -> Result<Response, Problem> {
    let key = key(within, topic, group);
    let settings = GroupSettings { max_attempts: wish.max_attempts, backoff: wish.backoff };
    check_group(&settings).map_err(|error| sense(&error, "max_attempts"))?;
    check_begin(&wish.from).map_err(|error| sense(&error, "from"))?;
    quota::check(&app, Object::Group(&key)).await?;
    let new = match app.store.set_group(&key, &settings, wish.from).await {
        Ok(new) => new,
        Err(error) => return Err(of_topic(&app, &key.topic, error).await),
    };
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record(&app, &by, "group.set", &key, detail).await;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(find(&app, &key).await?.shown())).into_response())
}

/// Delete a group
///
/// With how far it has read, and what is aside in it. Not while it has members that live.
#[utoipa::path(delete, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within),
    responses((status = 204), (status = 404, body = Problem, description = "There is no such group."),
        (status = 409, body = Problem, description = "It has members.")))]
pub(crate) async fn delete(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
) -> Result<StatusCode, Problem> {
    let key = key(within, topic, group);
    let deleted = app.store.delete_group(&key).await.map_err(|error| match error.kind {
        // The one thing that a store has against it.
        Trouble::Request => {
            Problem::told(StatusCode::CONFLICT, "group-in-use", &error.message).field("group")
        }
        _ => Problem::from(error),
    });
    if !deleted? {
        return Err(none(&key));
    }
    record(&app, &by, "group.delete", &key, String::new()).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a group
///
/// Nothing more is read until it is resumed. Its members stay, and finish what they have.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/pause", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Option<PauseWork>,
    responses((status = 200, body = Changed), (status = 404, body = Problem, description = "There is no such group.")))]
pub(crate) async fn pause(
    State(app): State<App>,
    principal: Principal,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    MaybeGiven(pause): MaybeGiven<PauseWork>,
) -> Result<Json<Changed>, Problem> {
    let key = key(within, topic, group);
    let pause = pause.pause(&app, &principal)?;
    let changed = match app.store.set_group_paused(&key, Some(&pause)).await {
        Ok(changed) => changed,
        Err(error) => return Err(of_group(&app, &key, error).await),
    };
    paused(&app, &by, &key, changed, "group.pause", pause.reason).await
}

/// Resume a group
///
/// It is read again, from where it was.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/resume", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Option<Nothing>,
    responses((status = 200, body = Changed), (status = 404, body = Problem, description = "There is no such group.")))]
pub(crate) async fn resume(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Changed>, Problem> {
    let key = key(within, topic, group);
    let changed = match app.store.set_group_paused(&key, None).await {
        Ok(changed) => changed,
        Err(error) => return Err(of_group(&app, &key, error).await),
    };
    paused(&app, &by, &key, changed, "group.resume", String::new()).await
}

async fn paused(
    app: &App,
    by: &By,
    key: &GroupKey,
    changed: bool,
    action: &str,
    detail: String,
) -> Result<Json<Changed>, Problem> {
    if changed {
        record(app, by, action, key, detail).await;
    } else {
        // Of one that is not there nothing can be changed, either.
        find(app, key).await?;
    }
    Ok(Json(Changed { changed }))
}

/// Reset a group
///
/// Moves it to the beginning, the end, a position or a time: of all slots, or of one. Whoever has a slot has lost it, and takes it anew;
/// what they had not committed is refused. What is aside after the new position is forgotten, for it is read again. With `dry_run`
/// nothing is changed.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/reset", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Reset,
    responses((status = 200, body = ResetDone), (status = 404, body = Problem, description = "There is no such group.")))]
pub(crate) async fn reset(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(reset): Given<Reset>,
) -> Result<Json<ResetDone>, Problem> {
    let key = key(within, topic, group);
    let to = reset.to;
    reset.slot.map_or(Ok(()), |slot| plausible_slot("slot", slot))?;
    check_begin(&to).map_err(|error| sense(&error, "to"))?;
    let slots = match app.store.reset_group(&key, to, reset.slot, reset.dry_run).await {
        Ok(slots) => slots,
        Err(error) => {
            let problem = of_group(&app, &key, error).await;
            return Err(if reset.slot.is_some() && problem.field.is_none() {
                problem.field("slot")
            } else {
                problem
            });
        }
    };
    if slots.is_empty() {
        find(&app, &key).await?;
    } else if !reset.dry_run {
        record(&app, &by, "group.reset", &key, reset_detail(&to, reset.slot)).await;
    }
    Ok(Json(ResetDone { slots }))
}

/// Where a group was moved to, for the audit.
pub(crate) fn reset_detail(to: &Begin, slot: Option<u32>) -> String {
    let to = match to {
        Begin::Earliest => "the earliest event".to_owned(),
        Begin::Latest => "the latest event".to_owned(),
        Begin::Position(position) => format!("position {position}"),
        Begin::Time(at_ms) => in_utc(*at_ms),
    };
    let which = slot.map_or_else(String::new, |slot| format!(", slot {slot}"));
    format!("to {to}{which}")
}

/// The group of a request.
fn key(within: Within, topic: Name, group: Name) -> GroupKey {
    GroupKey::new(TopicKey::new(within.namespace, topic), group)
}

/// A group, as the store has it.
async fn find(app: &App, key: &GroupKey) -> Result<GroupView, Problem> {
    app.store.group(key).await?.ok_or_else(|| none(key))
}

/// There is no such group.
pub(crate) fn none(key: &GroupKey) -> Problem {
    let detail = format!("there is no group {} of the topic {}", key.name, key.topic);
    Problem::new(StatusCode::NOT_FOUND, "no-such-group", detail)
        .field("group")
        .remedy("GET /v1/groups lists those that there are; the first member makes one, and so does a PUT")
}

/// What a store has against something about a group: there is none, if that is so.
async fn of_group(app: &App, key: &GroupKey, error: StoreError) -> Problem {
    let problem = Problem::from(error);
    if problem.code != "refused-by-store" {
        return problem;
    }
    match app.store.look_group(key).await {
        Ok(None) => none(key),
        _ => problem,
    }
}

/// Refuses what can be no slot.
fn plausible_slot(field: &str, slot: u32) -> Result<(), Problem> {
    if slot < SLOTS_MAX {
        return Ok(());
    }
    Err(unfit(field, format!("there is no slot {slot}; a topic has {SLOTS_MAX} at most, counted from 0")))
}

/// Records a deed that was done to a group.
async fn record(app: &App, by: &By, action: &str, key: &GroupKey, detail: String) {
    let target = format!("{}/{}", key.topic.name, key.name);
    record_of(app, by, action, &key.topic.namespace, &target, detail).await;
}

/// Where a page goes on.
fn place(text: &str) -> Result<GroupKey, Problem> {
    let malformed = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
            .field("after")
            .remedy("give `next` of the page before, as it was")
    };
    let mut names = Vec::new();
    for part in text.split('/') {
        names.push(part.parse::<Name>().map_err(|error| malformed(error.to_string()))?);
    }
    match <[Name; 3]>::try_from(names) {
        Ok([namespace, topic, name]) => Ok(GroupKey::new(TopicKey::new(namespace, topic), name)),
        Err(_) => Err(malformed(format!("{text:?} is not NAMESPACE/TOPIC/GROUP"))),
    }
}

//! Topics: how they are set, and what is in them.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{SLOTS, SlotEnds, StoreError, TopicKey, TopicSettings, TopicView, Trouble, Verb};
use tenure_core::event::check_topic;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::deeds::{By, record_of};
use super::elections::{number, place};
use super::given::{At, In, MaybeGiven};
use super::sense::of_group;
use super::sessions::Within;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{Need, Routes};

/// How many topics are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (100, 1000);
/// How many of them are looked at at once.
const AT_ONCE: usize = 8;
/// Those who publish and those who consume have to know a topic as much as those who look.
pub(super) const ANYBODY: Need = Need::InAny(&[Verb::Read, Verb::Publish, Verb::Claim]);

pub(crate) fn routes() -> Routes {
    let admin = Need::In(Verb::Admin);
    Routes::new()
        .api(Need::Known, routes!(list))
        .api(ANYBODY, routes!(show))
        .api(admin, routes!(set))
        .api(admin, routes!(delete))
        .api(ANYBODY, routes!(ends))
}

/// Which topics, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// The tenant; without one, all that you may read.
    namespace: Option<Name>,
    /// How many at most.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Go on after this one: `next` of the page before.
    #[param(example = "default/orders")]
    after: Option<String>,
}

/// A page of topics.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Topics {
    /// The topics, by namespace and name.
    topics: Vec<TopicView>,
    /// What to give as `after` to get the next page; `null` if this is the last one.
    #[schema(example = "default/orders")]
    next: Option<String>,
}

/// How a topic is to be set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"slots": 64, "keep_ms": 604800000}))]
pub(crate) struct TopicWish {
    /// Into how many slots its keys are spread: at most so many members share a group's work. Left out, 64, or what it has.
    #[schema(minimum = 1, maximum = 1024)]
    slots: Option<u32>,
    /// For how long events are kept, at least, whoever has read them.
    #[schema(default = 604800000)]
    keep_ms: u64,
    /// For how long an event is kept that some group has not read. Left out, until it has.
    keep_unread_ms: Option<u64>,
    /// The longest payload, in bytes.
    #[schema(minimum = 1, maximum = 1048576, default = 1048576)]
    max_bytes: u64,
}

impl Default for TopicWish {
    fn default() -> Self {
        let TopicSettings { keep_ms, keep_unread_ms, max_bytes, .. } = TopicSettings::default();
        TopicWish { slots: None, keep_ms, keep_unread_ms, max_bytes }
    }
}

impl TopicWish {
    async fn settings(self, app: &App, key: &TopicKey) -> Result<TopicSettings, Problem> {
        let slots = match self.slots {
            Some(slots) => slots,
            None => match app.store.slot_ends(key).await? {
                Some(ends) => u32::try_from(ends.len()).unwrap_or(SLOTS),
                None => SLOTS,
            },
        };
        let TopicWish { keep_ms, keep_unread_ms, max_bytes, .. } = self;
        Ok(TopicSettings { slots, keep_ms, keep_unread_ms, max_bytes })
    }
}

/// The ends of a topic's slots.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ends {
    /// The slots, by number.
    slots: Vec<SlotEnds>,
}

/// List topics
///
/// By namespace and name, with about how many events each has, who reads them, and which transactions keep others from committing.
#[utoipa::path(get, path = "/v1/topics", tag = "topics", params(Which), responses((status = 200, body = Topics)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(which): In<Which>,
) -> Result<Json<Topics>, Problem> {
    let limit = number("limit", which.limit, PAGE)? as usize;
    let after = which.after.as_deref().map(place).transpose()?;
    principal.must_list(which.namespace.as_ref())?;
    let from = after.map(|key| TopicKey::new(key.namespace, key.name));
    let mut names = app.store.topic_names(which.namespace.as_ref()).await?;
    names.retain(|key| {
        principal.may(Verb::Read, Some(&key.namespace)) && from.as_ref().is_none_or(|from| key > from)
    });
    names.sort_unstable();
    let more = names.len() > limit;
    names.truncate(limit);
    let last = names.last().filter(|_| more);
    let next = last.map(|last| format!("{}/{}", last.namespace, last.name));
    let store = &app.store;
    let topics = looked_at(names, |key| async move { store.topic(&key).await }).await?;
    Ok(Json(Topics { topics, next }))
}

/// Looks at those of a page, a few at once. What is gone since it was named is not among them.
pub(super) async fn looked_at<K, V, F>(names: Vec<K>, look: impl Fn(K) -> F) -> Result<Vec<V>, StoreError>
where
    F: Future<Output = Result<Option<V>, StoreError>>,
{
    let found: Vec<Option<V>> = stream::iter(names).map(look).buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Show a topic
///
/// How it is set, what is in it, who reads it, and which transactions keep others from committing to it.
#[utoipa::path(get, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = Name, Path), Within),
    responses((status = 200, body = TopicView), (status = 404, body = Problem, description = "It was never made.")))]
pub(crate) async fn show(
    State(app): State<App>,
    At(topic): At<Name>,
    In(within): In<Within>,
) -> Result<Json<TopicView>, Problem> {
    find(&app, &TopicKey::new(within.namespace, topic)).await.map(Json)
}

/// Set a topic
///
/// Makes it, or sets it anew: what is left out is as usual. How many slots it has is fixed when it is made: another number would move
/// keys to other slots, past what is in them. Left out, it stays.
#[utoipa::path(put, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = Name, Path), Within),
    request_body = Option<TopicWish>,
    responses((status = 200, body = TopicView), (status = 201, body = TopicView, description = "It is new."),
        (status = 409, body = Problem, description = "It has another number of slots.")))]
pub(crate) async fn set(
    State(app): State<App>,
    by: By,
    At(topic): At<Name>,
    In(within): In<Within>,
    MaybeGiven(wish): MaybeGiven<TopicWish>,
) -> Result<Response, Problem> {
    let key = TopicKey::new(within.namespace, topic);
    let settings = wish.settings(&app, &key).await?;
    check_topic(&settings).map_err(|error| of_group(&error, "slots"))?;
    quota::check(&app, Object::Topic(&key)).await?;
    let new = match app.store.set_topic(&key, &settings).await {
        Ok(new) => new,
        Err(error) if error.kind == Trouble::Request => {
            let known = app.store.topic(&key).await?;
            return Err(match known.filter(|known| known.settings.slots != settings.slots) {
                Some(known) => other_slots(&known, settings.slots),
                None => error.into(),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record_of(&app, &by, "topic.set", &key.namespace, key.name.as_str(), detail).await;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(find(&app, &key).await?)).into_response())
}

/// Delete a topic
///
/// With its events, its groups and what is aside in them. Not while a group has members that live.
#[utoipa::path(delete, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = Name, Path), Within),
    responses((status = 204), (status = 404, body = Problem, description = "It is not there."),
        (status = 409, body = Problem, description = "A group has members.")))]
pub(crate) async fn delete(
    State(app): State<App>,
    by: By,
    At(topic): At<Name>,
    In(within): In<Within>,
) -> Result<StatusCode, Problem> {
    let key = TopicKey::new(within.namespace, topic);
    let deleted = app.store.delete_topic(&key).await.map_err(|error| match error.kind {
        // The one thing that a store has against it.
        Trouble::Request => {
            Problem::told(StatusCode::CONFLICT, "topic-in-use", &error.message).field("topic")
        }
        _ => Problem::from(error),
    });
    if !deleted? {
        return Err(none(&key));
    }
    record_of(&app, &by, "topic.delete", &key.namespace, key.name.as_str(), String::new()).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Show where a topic begins and ends
///
/// For each slot the position before the first event that is kept, and that of the last.
#[utoipa::path(get, path = "/v1/topics/{topic}/ends", tag = "topics", params(("topic" = Name, Path), Within),
    responses((status = 200, body = Ends), (status = 404, body = Problem, description = "It was never made.")))]
pub(crate) async fn ends(
    State(app): State<App>,
    At(topic): At<Name>,
    In(within): In<Within>,
) -> Result<Json<Ends>, Problem> {
    let key = TopicKey::new(within.namespace, topic);
    let slots = app.store.slot_ends(&key).await?.ok_or_else(|| none(&key))?;
    Ok(Json(Ends { slots }))
}

/// A topic, as the store has it.
pub(super) async fn find(app: &App, key: &TopicKey) -> Result<TopicView, Problem> {
    app.store.topic(key).await?.ok_or_else(|| none(key))
}

/// There is no such topic.
pub(crate) fn none(key: &TopicKey) -> Problem {
    let detail = format!("there is no topic {key}");
    let remedy =
        format!("make it: `tenure events topics create {}`, or PUT /v1/topics/{}", key.name, key.name);
    Problem::new(StatusCode::NOT_FOUND, "no-such-topic", detail).field("topic").remedy(remedy)
}

fn other_slots(known: &TopicView, wanted: u32) -> Problem {
    let detail = format!("{} has {} slots, and can not have {wanted}", known.key, known.settings.slots);
    Problem::new(StatusCode::CONFLICT, "slots-fixed", detail)
        .field("slots")
        .remedy("say the number that it has; or make another topic, and let its groups read both")
}

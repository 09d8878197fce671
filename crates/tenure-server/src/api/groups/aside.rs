//! Events that failed: tried again, waiting behind one that is, or dead.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    AsideFilter, AsideKey, AsideView, DeadOrder, EventId, GroupKey, StoreError, Trouble, Verb,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::{MEMBERS, find, key, none, of_group, plausible_slot, record};
use crate::App;
use crate::api::deeds::By;
use crate::api::elections::number;
use crate::api::events::plausible_event;
use crate::api::given::{At, Given, In};
use crate::api::sessions::{Within, fits, unfit};
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// How many events are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (50, 1000);
/// How large a page is at most, unless its first event alone is larger.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// How many are read at first, and how much at once, about: a payload is up to 1 MiB.
const PART: u32 = 16;
const PART_BYTES: usize = 4 * 1024 * 1024;
/// The most events that one request names.
const IDS_MAX: usize = 1000;
/// How many pages of events one request replays or drops, where it means all.
const PAGES_MAX: usize = 25;

pub(super) fn routes() -> Routes {
    let admin = Need::In(Verb::Admin);
    Routes::new()
        .api(MEMBERS, routes!(list))
        .api(MEMBERS, routes!(show))
        .api(MEMBERS, routes!(keys))
        .api(admin, routes!(replay))
        .api(admin, routes!(forget))
}

/// Which events that are aside.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Only the dead.
    #[serde(default)]
    dead: bool,
    /// Only of this slot.
    slot: Option<u32>,
    /// Only of this key.
    key: Option<String>,
    /// Go on after this one: `next` of the page before.
    after: Option<u64>,
    /// How many at most.
    #[param(default = 50, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// A page of events that are aside.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Asides {
    /// In the order of their numbers.
    events: Vec<AsideView>,
    /// What to give as `after` to get the next page; `null` if this is the last one.
    next: Option<EventId>,
}

/// Keys that are aside in a slot.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AsideKeys {
    /// Each by the first of its events.
    keys: Vec<AsideKey>,
}

/// Which dead events are meant: by their numbers, or all.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"events": [17]}))]
#[schema(as = TheseEvents)]
pub(super) struct Those {
    /// Their numbers, at most 1000.
    #[schema(value_type = Option<Vec<u64>>)]
    events: Option<Vec<u64>>,
    /// Whether all are meant.
    all: bool,
    /// Of all, only those of this slot.
    slot: Option<u32>,
    /// Of all, only those of this key.
    key: Option<String>,
    /// Of all, go on after this one: `next` of the answer before.
    after: Option<u64>,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OrderedEvents)]
pub(super) struct Ordered {
    /// Events on which it had an effect.
    events: Vec<EventId>,
    /// Whether there may be more: send the same again, with `next` as `after`.
    more: bool,
    /// Where to go on, if there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<EventId>,
}

/// List what is aside
///
/// Events of the group that failed and are tried again, those of the same key that wait behind them, and the dead; in the order of their
/// numbers. A page may have fewer than `limit`, if they are large: go on while there is a `next`.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/aside", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Which), responses((status = 200, body = Asides)))]
pub(super) async fn list(
    State(app): State<App>,
    At((topic, group)): At<(Name, Name)>,
    In(which): In<Which>,
) -> Result<Json<Asides>, Problem> {
    let limit = number("limit", which.limit, PAGE)?;
    let group = key(Within { namespace: which.namespace }, topic, group);
    which.key.as_deref().map_or(Ok(()), |key| fits("key", key))?;
    which.slot.map_or(Ok(()), |slot| plausible_slot("slot", slot))?;
    let after = which.after.map(|after| EventId(after.min(i64::MAX as u64)));
    let mut filter = AsideFilter { group, dead: which.dead, slot: which.slot, key: which.key, after, limit };
    // Those of one key are in the order of their positions: of them, all are taken that a page may have.
    let mut part = if filter.key.is_some() { limit } else { PART };
    let (mut events, mut more) = (Vec::new(), true);
    while more && events.len() < limit as usize && size(&events) < PAGE_BYTES {
        filter.limit = part.min(limit.saturating_sub(u32::try_from(events.len()).unwrap_or(limit)));
        let mut read = asides(&app, &filter).await?;
        more = read.len() >= filter.limit as usize;
        // Pages go by numbers.
        read.sort_by_key(|aside| aside.event.id);
        filter.after = read.last().map(|last| last.event.id).or(filter.after);
        part = next_part(part, &read);
        events.extend(read);
    }
    if events.is_empty() && after.is_none() {
        find(&app, &filter.group).await?;
    }
    let mut bytes = 0;
    let fit = events.iter().take(limit as usize).take_while(|aside| {
        bytes += aside.event.payload.len() + aside.error.len();
        bytes <= PAGE_BYTES
    });
    let count = fit.count().max(1);
    more |= count < events.len();
    events.truncate(count);
    let next = events.last().filter(|_| more).map(|last| last.event.id);
    Ok(Json(Asides { events, next }))
}

/// Show an event that is aside
///
/// The event, how often it was tried, what went wrong last, and how many of its key wait behind it.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/aside/{event}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), ("event" = u64, Path), Within),
    responses((status = 200, body = AsideView), (status = 404, body = Problem, description = "It is not aside.")))]
pub(super) async fn show(
    State(app): State<App>,
    At((topic, group, event)): At<(Name, Name, u64)>,
    In(within): In<Within>,
) -> Result<Json<AsideView>, Problem> {
    let group = key(within, topic, group);
    let id = plausible_event(event)?;
    let filter = AsideFilter::from(group, id);
    let found = asides(&app, &filter).await?.into_iter().find(|aside| aside.event.id == id);
    match found {
        Some(aside) => Ok(Json(aside)),
        None => {
            find(&app, &filter.group).await?;
            let detail = format!("event {event} is not aside in {}", filter.group);
            Err(Problem::new(StatusCode::NOT_FOUND, "not-aside", detail)
                .field("event")
                .remedy("it is done, dropped, or was never tried; GET …/aside lists those that are"))
        }
    }
}

/// The keys that are aside in a slot, each by the first of its events: what the slot's holder has to know.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/slots/{slot}/aside", tag = "members",
    params(("topic" = Name, Path), ("group" = Name, Path), ("slot" = u32, Path), Within),
    responses((status = 200, body = AsideKeys)))]
pub(super) async fn keys(
    State(app): State<App>,
    At((topic, group, slot)): At<(Name, Name, u32)>,
    In(within): In<Within>,
) -> Result<Json<AsideKeys>, Problem> {
    plausible_slot("slot", slot)?;
    let group = key(within, topic, group);
    match app.store.aside_keys(&group, slot).await {
        Ok(keys) => Ok(Json(AsideKeys { keys })),
        Err(error) => Err(of_group(&app, &group, error).await),
    }
}

/// Replay dead events
///
/// Each is tried again, as often as at first; those of its key that wait behind it follow in order. By their numbers, or all:
/// `{"all": true}`. While `more`, send it again with `next` as `after`. If the request breaks off, what was done until then was done,
/// and is in the audit.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/dead/replay", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Those,
    responses((status = 200, body = Ordered)))]
pub(super) async fn replay(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(those): Given<Those>,
) -> Result<Json<Ordered>, Problem> {
    order(&app, &by, &key(within, topic, group), those, DeadOrder::Replay).await
}

/// Drop dead events
///
/// Each is forgotten; those of its key that wait behind it follow in order. By their numbers, or all, as with a replay.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/dead/drop", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Those,
    responses((status = 200, body = Ordered)))]
pub(super) async fn forget(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(those): Given<Those>,
) -> Result<Json<Ordered>, Problem> {
    order(&app, &by, &key(within, topic, group), those, DeadOrder::Drop).await
}

fn size(events: &[AsideView]) -> usize {
    events.iter().map(|aside| aside.event.payload.len() + aside.error.len()).sum()
}

/// How many to read next, so that what is read at once is about as much as it may be.
fn next_part(part: u32, read: &[AsideView]) -> u32 {
    match size(read) {
        bytes if bytes > PART_BYTES => (part / 2).max(1),
        bytes if bytes <= PART_BYTES / 4 => part.saturating_mul(2).min(PAGE.1),
        _ => part,
    }
}

async fn asides(app: &App, filter: &AsideFilter) -> Result<Vec<AsideView>, Problem> {
    match app.store.aside(filter).await {
        Ok(events) => Ok(events),
        Err(error) => Err(of_group(app, &filter.group, error).await),
    }
}

async fn order(
    app: &App,
    by: &By,
    group: &GroupKey,
    those: Those,
    order: DeadOrder,
) -> Result<Json<Ordered>, Problem> {
    let filtered = those.slot.is_some() || those.key.is_some() || those.after.is_some();
    let ordered = match those.events {
        Some(ids) if !those.all && !filtered => {
            if ids.is_empty() || ids.len() > IDS_MAX {
                return Err(unfit("events", format!("{} events are named", ids.len()))
                    .remedy(format!("name 1 to {IDS_MAX}, or say {{\"all\": true}}")));
            }
            let ids = ids.into_iter().map(plausible_event).collect::<Result<Vec<_>, _>>()?;
            Ordered { events: ordered(app, by, group, ids, order).await?, more: false, next: None }
        }
        None if those.all => {
            those.key.as_deref().map_or(Ok(()), |key| fits("key", key))?;
            those.slot.map_or(Ok(()), |slot| plausible_slot("slot", slot))?;
            let after = those.after.map(|after| EventId(after.min(i64::MAX as u64)));
            let filter = AsideFilter {
                group: group.clone(),
                dead: true,
                slot: those.slot,
                key: those.key,
                after,
                limit: PAGE.1,
            };
            order_found(app, by, filter, order).await?
        }
        _ => {
            return Err(unfit("events", "dead events are meant by their numbers, or all of them").remedy(
                "send {\"events\": [17]} or {\"all\": true}, the latter with a key or a slot if you like",
            ));
        }
    };
    if ordered.events.is_empty() && app.store.look_group(group).await?.is_none() {
        return Err(none(group));
    }
    Ok(Json(ordered))
}

/// Page by page, so that no statement takes long.
async fn order_found(
    app: &App,
    by: &By,
    mut filter: AsideFilter,
    order: DeadOrder,
) -> Result<Ordered, Problem> {
    let (mut events, mut named) = (Vec::new(), HashSet::new());
    // Those of one key are in the order of their positions, and not of their numbers.
    let by_number = filter.key.is_none();
    filter.limit = if by_number { PART } else { PAGE.1 };
    for _ in 0..PAGES_MAX {
        let read = asides(app, &filter).await?;
        if by_number {
            filter.limit = next_part(filter.limit, &read);
        }
        let mut page: Vec<_> = read.into_iter().map(|aside| aside.event.id).collect();
        // What is replayed may die again meanwhile.
        page.retain(|id| named.insert(*id));
        let Some(last) = page.last().copied() else {
            return Ok(Ordered { events, more: false, next: None });
        };
        // Of one key, what is dead no more is not read again.
        filter.after = by_number.then_some(last).or(filter.after);
        events.extend(ordered(app, by, &filter.group, page, order).await?);
    }
    Ok(Ordered { events, more: true, next: filter.after })
}

/// Gives an order to some, and writes it down: also if nobody waits for the answer any more.
pub(crate) async fn ordered(
    app: &App,
    by: &By,
    group: &GroupKey,
    ids: Vec<EventId>,
    order: DeadOrder,
) -> Result<Vec<EventId>, Problem> {
    let action = match order {
        DeadOrder::Replay => "dead.replay",
        DeadOrder::Drop => "dead.drop",
    };
    let (app_too, by, group_too) = (app.clone(), by.clone(), group.clone());
    let deed = tokio::spawn(async move {
        let done = app_too.store.order_dead(&group_too, &ids, order).await;
        let written = match &done {
            Ok(events) if events.is_empty() => None,
            Ok(events) => Some(named(events)),
            Err(error) if error.kind == Trouble::Request => None,
            Err(_) => Some(format!("{}: whether it was done is not known", named(&ids))),
        };
        if let Some(detail) = written {
            record(&app_too, &by, action, &group_too, detail).await;
        }
        done
    });
    match deed.await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(of_group(app, group, error).await),
        Err(_) => Err(StoreError::new(Trouble::Other, "an order to dead events broke off").into()),
    }
}

/// Some events, for people.
fn named(events: &[EventId]) -> String {
    let first: Vec<_> = events.iter().take(10).map(ToString::to_string).collect();
    match events.len().saturating_sub(first.len()) {
        0 => format!("events {}", first.join(" ")),
        more => format!("events {} and {more} more", first.join(" ")),
    }
}

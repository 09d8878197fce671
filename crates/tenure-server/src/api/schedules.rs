//! Schedules: what fires when, what has, and what operators do about it.
//!
//! Nothing is decided here. The servers fire what is due by themselves, so there is no route for that: whoever fired through a
//! server would have to lead `tenure/scheduler`, and in that namespace only the servers stand.

mod acts;
mod check;
mod expect;
mod ticks;
mod wish;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::ETAG;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{Realm, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats, ScheduleView, Verb};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

pub(crate) use self::acts::{Range, backfill_range, trigger_now};
pub(crate) use self::check::checked;
use self::expect::{expected, tag};
pub(crate) use self::wish::{ScheduleWish, set_schedule};
use super::deeds::{By, record_of};
use super::elections::{number, place};
use super::given::{At, Given, In};
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// How many schedules are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (100, 1000);
/// How many of the next ticks are shown, unless asked otherwise, and at most.
const NEXT: (u32, u32) = (10, 1000);

pub(crate) fn routes() -> Routes {
    let (read, admin) = (Need::In(Verb::Read), Need::In(Verb::Admin));
    Routes::new()
        .api(Need::Known, routes!(list))
        .api(Need::Known, routes!(stats))
        .api(read, routes!(show))
        .api_large(admin, routes!(set))
        .api(admin, routes!(delete))
        .api_large(read, routes!(check::check))
        .api(admin, routes!(acts::pause))
        .api(admin, routes!(acts::resume))
        .api_large(admin, routes!(acts::trigger))
        .api_large(admin, routes!(acts::backfill))
        .api(read, routes!(ticks::list))
}

/// Which schedules, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// The tenant; without one, all that you may read.
    namespace: Option<Name>,
    /// Only those from this file or program.
    source: Option<String>,
    /// How many at most.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Go on after this one: `next` of the page before.
    #[param(example = "default/nightly")]
    after: Option<String>,
}

/// A page of schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Schedules {
    /// The schedules, by namespace and name.
    schedules: Vec<ScheduleView>,
    /// What to give as `after` to get the next page; `null` if this is the last one.
    #[schema(example = "default/nightly")]
    next: Option<String>,
}

/// How it stands with schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Calendars {
    /// By namespace.
    namespaces: Vec<ScheduleStats>,
}

/// One schedule, and how many of its next ticks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ahead {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// How many of its next ticks are shown.
    #[param(default = 10, minimum = 1, maximum = 1000)]
    next: Option<u32>,
}

/// A schedule and what it must be for something to happen to it.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// What must be there: `new` for nothing, a number for that version, `any` for whatever; as `If-None-Match: *` and `If-Match` say it.
    #[param(example = "any")]
    expect: Option<String>,
}

/// A tick that is to come.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Upcoming {
    /// The tick, in milliseconds since 1970.
    pub(crate) at_ms: i64,
    /// What a clock on the wall of the schedule's zone shows then.
    #[schema(example = "2026-03-29T03:30:00+02:00")]
    pub(crate) at: String,
    /// When it is due: later by its jitter.
    pub(crate) due_ms: i64,
}

/// A schedule, and what is to come of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Schedule {
    #[serde(flatten)]
    view: ScheduleView,
    /// Its next ticks, what was missed and is not decided yet included. A schedule that is paused does not fire them.
    upcoming: Vec<Upcoming>,
}

/// What became of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SetOutcome {
    /// The schedule is new.
    Created,
    /// It is another now.
    Changed,
    /// It was so already.
    Same,
}

/// A schedule as it is set from now on.
#[derive(Serialize, ToSchema)]
pub(crate) struct Defined {
    /// What became of the definition.
    outcome: SetOutcome,
    /// The secret that was made. It is never shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(flatten)]
    schedule: Schedule,
}

/// List schedules
///
/// By namespace and name, with when each fires next, and what has become of its ticks so far.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", params(Which), responses((status = 200, body = Schedules)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(which): In<Which>,
) -> Result<Json<Schedules>, Problem> {
    let limit = number("limit", which.limit, PAGE)?;
    let after = which.after.as_deref().map(place).transpose()?;
    let after = after.map(|key| ScheduleKey::new(key.namespace, key.name));
    let mut schedules = Vec::new();
    for namespace in readable(&principal, which.namespace)? {
        let rest = limit as usize + 1 - schedules.len();
        // What is before the last one of the page before is passed over without a look.
        let passed = |after: &ScheduleKey| namespace.as_ref().is_some_and(|name| *name < after.namespace);
        if rest == 0 || after.as_ref().is_some_and(passed) {
            continue;
        }
        let filter = ScheduleFilter {
            namespace,
            source: which.source.clone(),
            after: after.clone(),
            limit: u32::try_from(rest).unwrap_or(limit),
        };
        schedules.extend(app.store.schedules(&filter).await?);
    }
    let more = schedules.len() > limit as usize;
    schedules.truncate(limit as usize);
    let last = schedules.last().filter(|_| more).map(ScheduleView::key);
    let next = last.map(|last| format!("{}/{}", last.namespace, last.name));
    Ok(Json(Schedules { schedules, next }))
}

/// Show how it stands with schedules
///
/// By namespace: how many there are, are paused, could not fire, or are overdue, and when any fired last.
#[utoipa::path(get, path = "/v1/calendar", tag = "schedules", responses((status = 200, body = Calendars)))]
pub(crate) async fn stats(State(app): State<App>, principal: Principal) -> Result<Json<Calendars>, Problem> {
    let mut namespaces = app.store.schedule_stats().await?;
    namespaces.retain(|stats| principal.may(Verb::Read, Some(&stats.namespace)));
    Ok(Json(Calendars { namespaces }))
}

/// Show a schedule
///
/// What it is, how far it is, what has become of its ticks so far, and its next ones, in its zone. `ETag` is its version.
#[utoipa::path(get, path = "/v1/schedules/{schedule}", tag = "schedules", params(("schedule" = Name, Path), Ahead),
    responses((status = 200, body = Schedule, headers(("etag" = String))),
        (status = 404, body = Problem, description = "There is no such schedule.")))]
pub(crate) async fn show(
    State(app): State<App>,
    At(schedule): At<Name>,
    In(ahead): In<Ahead>,
) -> Result<Response, Problem> {
    let next = number("next", ahead.next, NEXT)?;
    let view = find(&app, &ScheduleKey::new(ahead.namespace, schedule)).await?;
    let tag = tag(view.version);
    Ok(([(ETAG, tag)], Json(Schedule::of(view, next as usize))).into_response())
}

/// Set a schedule
///
/// Makes it, or defines it anew: what is left out is as usual. Times that are as they were go on from where they are; other times
/// begin with their first tick from now on. With `If-Match` or `If-None-Match: *` (or `expect`) it happens only if the schedule is
/// still what you have seen, so that two who edit it do not overwrite each other.
///
/// Calls are signed: give a `secret`, or one is made and shown in the answer to this request only.
#[utoipa::path(put, path = "/v1/schedules/{schedule}", tag = "schedules",
    params(("schedule" = Name, Path), Wanted,
        ("if-match" = Option<String>, Header, description = "The `ETag` of what you have seen; `*` for whatever is there"),
        ("if-none-match" = Option<String>, Header, description = "`*`: only if it is not there")),
    request_body = ScheduleWish,
    responses((status = 200, body = Defined, headers(("etag" = String))),
        (status = 201, body = Defined, description = "It is new.", headers(("etag" = String))),
        (status = 412, body = Problem, description = "It is not what was expected; `ETag` says what it is.")))]
pub(crate) async fn set(
    State(app): State<App>,
    principal: Principal,
    by: By,
    headers: HeaderMap,
    At(schedule): At<Name>,
    In(wanted): In<Wanted>,
    Given(wish): Given<ScheduleWish>,
) -> Result<Response, Problem> {
    let key = ScheduleKey::new(wanted.namespace, schedule);
    let expect = expected(&app, &key, &headers, wanted.expect.as_deref()).await?;
    let (set, secret) = set_schedule(&app, &principal, &by, &key, wish, expect).await?;
    let (status, outcome) = match set {
        ScheduleSet::Created(_) => (StatusCode::CREATED, SetOutcome::Created),
        ScheduleSet::Changed(_) => (StatusCode::OK, SetOutcome::Changed),
        ScheduleSet::Same(_) => (StatusCode::OK, SetOutcome::Same),
        ScheduleSet::Conflict(version) => return Ok(conflict(&key, version)),
    };
    let view = find(&app, &key).await?;
    let tag = tag(view.version);
    let defined = Defined { outcome, secret, schedule: Schedule::of(view, NEXT.0 as usize) };
    Ok((status, [(ETAG, tag)], Json(defined)).into_response())
}

/// Delete a schedule
///
/// With its history. What it has published or submitted stays; calls that were not made yet are not made any more.
#[utoipa::path(delete, path = "/v1/schedules/{schedule}", tag = "schedules",
    params(("schedule" = Name, Path), Wanted,
        ("if-match" = Option<String>, Header, description = "The `ETag` of what you have seen; `*` for whatever is there")),
    responses((status = 204), (status = 404, body = Problem, description = "There is no such schedule."),
        (status = 412, body = Problem, description = "It is not what was expected; `ETag` says what it is.")))]
pub(crate) async fn delete(
    State(app): State<App>,
    by: By,
    headers: HeaderMap,
    At(schedule): At<Name>,
    In(wanted): In<Wanted>,
) -> Result<Response, Problem> {
    let key = ScheduleKey::new(wanted.namespace, schedule);
    let version = expected(&app, &key, &headers, wanted.expect.as_deref()).await?;
    let version = expect::version(version)?;
    match app.store.delete_schedule(&key, version).await? {
        None => Err(none(&key)),
        Some(false) => {
            let now = app.store.schedule(&key).await?;
            Ok(conflict(&key, now.map(|view| view.version)))
        }
        Some(true) => {
            record(&app, &by, "schedule.delete", &key, String::new()).await;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    }
}

impl Schedule {
    fn of(view: ScheduleView, next: usize) -> Schedule {
        let upcoming = upcoming(&view, next);
        Schedule { view, upcoming }
    }
}

/// The next ticks of a schedule, as it stands.
fn upcoming(view: &ScheduleView, most: usize) -> Vec<Upcoming> {
    let timetable = view.definition.timetable(&view.namespace);
    let shown = |at_ms: i64| Upcoming {
        at_ms,
        at: view.definition.zone.shown(at_ms),
        due_ms: timetable.due_at(at_ms),
    };
    view.upcoming(most).into_iter().map(shown).collect()
}

/// A schedule, as the store has it.
pub(crate) async fn find(app: &App, key: &ScheduleKey) -> Result<ScheduleView, Problem> {
    app.store.schedule(key).await?.ok_or_else(|| none(key))
}

/// There is no such schedule.
pub(crate) fn none(key: &ScheduleKey) -> Problem {
    let remedy =
        format!("GET /v1/schedules lists those that there are; PUT /v1/schedules/{} makes it", key.name);
    Problem::new(StatusCode::NOT_FOUND, "no-such-schedule", format!("there is no schedule {key}"))
        .field("schedule")
        .remedy(remedy)
}

/// It is not what was expected.
pub(crate) fn changed_meanwhile(key: &ScheduleKey, version: Option<u64>) -> Problem {
    let (detail, remedy) = match version {
        Some(version) => (
            format!("{key} is of version {version}, which is not what was expected; nothing was changed"),
            "look at it again, and send what you want with its `ETag` as `If-Match`",
        ),
        None => (
            format!("there is no schedule {key}, and one was expected; nothing was changed"),
            "leave `If-Match` out to make it",
        ),
    };
    Problem::new(StatusCode::PRECONDITION_FAILED, "schedule-changed", detail).field("expect").remedy(remedy)
}

fn conflict(key: &ScheduleKey, version: Option<u64>) -> Response {
    let mut response = changed_meanwhile(key, version).into_response();
    if let Some(version) = version {
        response.headers_mut().insert(ETAG, tag(version));
    }
    response
}

/// The namespaces of which somebody may see the schedules, in order; `None` is all of them.
fn readable(principal: &Principal, only: Option<Name>) -> Result<Vec<Option<Name>>, Problem> {
    if let Some(namespace) = only {
        principal.must(Verb::Read, Some(&namespace))?;
        return Ok(vec![Some(namespace)]);
    }
    if principal.may(Verb::Read, None) {
        return Ok(vec![None]);
    }
    let granted = principal.grants.iter().filter_map(|grant| match &grant.realm {
        Realm::Namespace(name) => Some(name.clone()),
        Realm::Everywhere => None,
    });
    let mut granted: Vec<Name> = granted.filter(|name| principal.may(Verb::Read, Some(name))).collect();
    granted.sort();
    granted.dedup();
    Ok(granted.into_iter().map(Some).collect())
}

/// Records a deed that was done to a schedule.
async fn record(app: &App, by: &By, action: &str, key: &ScheduleKey, detail: String) {
    record_of(app, by, action, &key.namespace, key.name.as_str(), detail).await;
}

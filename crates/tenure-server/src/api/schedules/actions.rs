//! Actions on schedules: pause, resume, trigger and backfill.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{DUE_MAX, ManualFire, ManualFireResult, RawJson as Payload, ScheduleKey};
use tenure_core::rules::schedule::to_rfc3339;
use utoipa::ToSchema;

use super::{find, no_such_schedule, record};
use crate::App;
use crate::access::Principal;
use crate::api::audit_writer::AuditActor;
use crate::api::election_actions::EmptyRequest;
use crate::api::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams};
use crate::api::queues::{ChangeResponse, PauseRequest};
use crate::api::sessions::{NamespaceQuery, actor, invalid_value};
use crate::problem::Problem;

/// Maximum number of ticks of a range that one request fires.
const BACKFILL_MAX: usize = 1_000;

/// Trigger request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerRequest {
    /// Payload instead of the schedule's own.
    payload: Option<Payload>,
    /// Report the result without firing.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
    /// Principal that the client acts for; the caller if omitted.
    #[schema(max_length = 1024)]
    on_behalf_of: Option<String>,
}

/// Ticks to backfill: a range or a list.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"from_at_ms": 1_767_225_600_000_i64, "to_at_ms": 1_767_312_000_000_i64, "dry_run": true}))]
pub(crate) struct BackfillRequest {
    /// Start of the range, inclusive, in milliseconds since 1970.
    from_at_ms: Option<i64>,
    /// End of the range, exclusive.
    to_at_ms: Option<i64>,
    /// Ticks, instead of a range.
    #[schema(max_items = 10000)]
    ticks: Option<Vec<i64>>,
    /// Payload instead of the schedule's own.
    payload: Option<Payload>,
    /// Report the result without firing.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
    /// Principal that the client acts for; the caller if omitted.
    #[schema(max_length = 1024)]
    on_behalf_of: Option<String>,
}

/// Result of a backfill.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BackfillResponse {
    /// Ticks, oldest first.
    pub(crate) ticks: Vec<ManualFireResult>,
    /// Value of `from_at_ms` to continue the range; `null` at its end.
    pub(crate) next_from_at_ms: Option<i64>,
    /// Number of ticks of the range that remain.
    pub(crate) remaining_count: u64,
}

/// Range of past ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickRange {
    /// Start, inclusive.
    pub(crate) from_ms: i64,
    /// End, exclusive.
    pub(crate) to_ms: i64,
}

/// Pause a schedule
///
/// The schedule does not fire until it is resumed. Ticks that are due meanwhile are handled by the misfire
/// policy.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/pause", tag = "schedules", params(("schedule" = Name, Path), NamespaceQuery),
    request_body = Option<PauseRequest>,
    responses((status = 200, body = ChangeResponse), (status = 404, body = Problem, description = "The schedule does not exist.")))]
pub(crate) async fn pause_schedule(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(schedule): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(pause): OptionalJsonBody<PauseRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let pause = pause.pause(&app, &principal)?;
    let changed =
        app.store.set_schedule_paused(&key, Some(&pause)).await?.ok_or_else(|| no_such_schedule(&key))?;
    if changed {
        record(&app, &by, "schedule.pause", &key, pause.reason).await;
    }
    Ok(Json(ChangeResponse { changed }))
}

/// Resume a schedule
///
/// The schedule fires again. Ticks that were due meanwhile are handled by the misfire policy.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/resume", tag = "schedules", params(("schedule" = Name, Path), NamespaceQuery),
    request_body = Option<EmptyRequest>,
    responses((status = 200, body = ChangeResponse), (status = 404, body = Problem, description = "The schedule does not exist.")))]
pub(crate) async fn resume_schedule(
    State(app): State<App>,
    by: AuditActor,
    PathParams(schedule): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let changed = app.store.set_schedule_paused(&key, None).await?.ok_or_else(|| no_such_schedule(&key))?;
    if changed {
        record(&app, &by, "schedule.resume", &key, String::new()).await;
    }
    Ok(Json(ChangeResponse { changed }))
}

/// Trigger a schedule
///
/// Fires one extra tick now, even if the schedule is paused. The regular ticks are not affected.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/trigger", tag = "schedules", params(("schedule" = Name, Path), NamespaceQuery),
    request_body = Option<TriggerRequest>,
    responses((status = 200, body = ManualFireResult), (status = 404, body = Problem, description = "The schedule does not exist.")))]
pub(crate) async fn trigger_schedule(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(schedule): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(body): OptionalJsonBody<TriggerRequest>,
) -> Result<Json<ManualFireResult>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let who = actor(&principal, body.on_behalf_of)?;
    let manual_fire =
        ManualFire { key, ticks: None, payload: body.payload, requested_by: who, dry_run: body.dry_run };
    trigger_now(&app, &by, &manual_fire).await.map(Json)
}

/// Trigger a schedule, for the API and the pages.
pub(crate) async fn trigger_now(
    app: &App,
    by: &AuditActor,
    manual_fire: &ManualFire,
) -> Result<ManualFireResult, Problem> {
    let fired =
        app.store.fire_manually(manual_fire).await?.ok_or_else(|| no_such_schedule(&manual_fire.key))?;
    let Some(fired) = fired.into_iter().next() else { return Err(no_such_schedule(&manual_fire.key)) };
    if !manual_fire.dry_run {
        record(app, by, "schedule.trigger", &manual_fire.key, String::new()).await;
    }
    Ok(fired)
}

/// Backfill a schedule
///
/// Fires the past ticks of a range (`from_at_ms`, `to_at_ms`) that have not fired, oldest first, at most 1000
/// per request: continue with `next_from_at_ms`. Future ticks are not included; they fire on their own. With
/// `dry_run` nothing fires.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/backfill", tag = "schedules", params(("schedule" = Name, Path), NamespaceQuery),
    request_body = BackfillRequest,
    responses((status = 200, body = BackfillResponse), (status = 404, body = Problem, description = "The schedule does not exist.")))]
pub(crate) async fn backfill_schedule(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(schedule): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(body): JsonBody<BackfillRequest>,
) -> Result<Json<BackfillResponse>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let who = actor(&principal, body.on_behalf_of)?;
    let mut manual_fire =
        ManualFire { key, ticks: None, payload: body.payload, requested_by: who, dry_run: body.dry_run };
    match (body.from_at_ms, body.to_at_ms, body.ticks) {
        (Some(from_ms), Some(to_ms), None) => {
            backfill_range(&app, &by, manual_fire, TickRange { from_ms, to_ms }).await.map(Json)
        }
        (None, None, Some(ticks)) => {
            if ticks.len() > DUE_MAX as usize {
                let detail = format!("{} ticks exceed the maximum", ticks.len());
                return Err(
                    invalid_value("ticks", detail).remedy(format!("send at most {DUE_MAX} per request"))
                );
            }
            manual_fire.ticks = Some(ticks);
            Ok(Json(BackfillResponse {
                ticks: fire(&app, &by, &manual_fire).await?,
                next_from_at_ms: None,
                remaining_count: 0,
            }))
        }
        _ => Err(invalid_value("from_at_ms", "the request needs both ends of a range, or a list of ticks")
            .remedy("send `from_at_ms` and `to_at_ms`, or `ticks`")),
    }
}

/// Fire the first ticks of a range, for the API and the pages. This function sets the ticks of `manual_fire`; the
/// caller sets its other fields.
pub(crate) async fn backfill_range(
    app: &App,
    by: &AuditActor,
    manual_fire: ManualFire,
    range: TickRange,
) -> Result<BackfillResponse, Problem> {
    let TickRange { from_ms, to_ms } = range;
    if to_ms <= from_ms {
        return Err(invalid_value("to_at_ms", format!("{to_ms} is not after `from_at_ms`, {from_ms}"))
            .remedy("send a later `to_at_ms`"));
    }
    let view = find(app, &manual_fire.key).await?;
    // Future ticks fire on their own. A finished schedule has only past ticks.
    let passed_ms = view.tick_state.map_or(to_ms, |progress| progress.next_tick_at_ms.min(to_ms));
    let timetable = view.definition.timetable(&view.namespace);
    let ticks: Vec<i64> = timetable.ticks_between(from_ms, passed_ms).take(BACKFILL_MAX).collect();
    let rest = ticks.last().map_or(passed_ms, |last| last.saturating_add(1));
    let left = timetable.count(rest, passed_ms);
    let next_ms = (left > 0).then_some(rest);
    let fired = match ticks.is_empty() {
        true => Vec::new(),
        false => fire(app, by, &ManualFire { ticks: Some(ticks), ..manual_fire }).await?,
    };
    Ok(BackfillResponse { ticks: fired, next_from_at_ms: next_ms, remaining_count: left })
}

async fn fire(
    app: &App,
    by: &AuditActor,
    manual_fire: &ManualFire,
) -> Result<Vec<ManualFireResult>, Problem> {
    let fired =
        app.store.fire_manually(manual_fire).await?.ok_or_else(|| no_such_schedule(&manual_fire.key))?;
    if let (false, Some(first), Some(last)) = (manual_fire.dry_run, fired.first(), fired.last()) {
        let detail = format!(
            "{} ticks from {} to {}",
            fired.len(),
            to_rfc3339(first.tick_at_ms),
            to_rfc3339(last.tick_at_ms)
        );
        record(app, by, "schedule.backfill", &manual_fire.key, detail).await;
    }
    Ok(fired)
}

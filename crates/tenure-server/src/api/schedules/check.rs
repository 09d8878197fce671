//! Preview of a schedule definition; nothing is stored.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tenure::Name;
use tenure::port::{ScheduleKey, ScheduleView, TopicKey};
use tenure_core::rules::schedule::{
    DstGapPolicy, DstOverlapPolicy, ScheduleDefinition, ScheduleTarget, revise, tzdb_version,
};
use utoipa::ToSchema;

use super::params::{PutScheduleRequest, validate_definition};
use super::{NEXT, PutOutcome, ScheduleQuery, UpcomingTick};
use crate::App;
use crate::api::elections::validate_number;
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::api::no_such_topic;
use crate::problem::Problem;

/// Preview of a definition.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulePreview {
    /// Definition as it would be stored.
    pub(crate) definition: ScheduleDefinition,
    /// Outcome that setting it would have.
    pub(crate) outcome: PutOutcome,
    /// Version of the existing schedule.
    pub(crate) version: Option<u64>,
    /// Upcoming ticks.
    pub(crate) upcoming: Vec<UpcomingTick>,
    /// Policy for local times that a DST change skips.
    pub(crate) dst_gap: DstGapPolicy,
    /// Policy for local times that occur twice.
    pub(crate) dst_overlap: DstOverlapPolicy,
    /// Release of the IANA time zone database.
    #[schema(example = "2026a")]
    pub(crate) tzdb_version: &'static str,
}

/// Preview a schedule
///
/// Validates a definition and returns its outcome and upcoming ticks if it were set now. Nothing is stored.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/preview", tag = "schedules", params(("schedule" = Name, Path), ScheduleQuery),
    request_body = PutScheduleRequest, responses((status = 200, body = SchedulePreview)))]
pub(crate) async fn preview_schedule(
    State(app): State<App>,
    PathParams(schedule): PathParams<Name>,
    QueryParams(ahead): QueryParams<ScheduleQuery>,
    JsonBody(body): JsonBody<PutScheduleRequest>,
) -> Result<Json<SchedulePreview>, Problem> {
    let next = validate_number("upcoming", ahead.upcoming, NEXT)?;
    let key = ScheduleKey::new(ahead.namespace, schedule);
    preview(&app, &key, &body, next as usize).await.map(Json)
}

/// Preview a definition, for the API and the pages.
pub(crate) async fn preview(
    app: &App,
    key: &ScheduleKey,
    body: &PutScheduleRequest,
    next: usize,
) -> Result<SchedulePreview, Problem> {
    let definition = body.definition(&key.name)?;
    validate_definition(app, &definition)?;
    if let ScheduleTarget::Event { topic, .. } = &definition.target {
        let topic = TopicKey::new(key.namespace.clone(), topic.clone());
        if app.store.topic(&topic).await?.is_none() {
            let mut missing = no_such_topic(&topic).field("target.event.topic");
            missing.status = http::StatusCode::UNPROCESSABLE_ENTITY;
            return Err(missing);
        }
    }
    let stored = app.store.schedule(key).await?;
    let before = stored.as_ref().map(|view| (&view.definition, view.tick_state));
    // By this server's clock; when the schedule is set, the store's clock decides.
    let now_ms = app.runtime.wall_ms();
    let revised = revise(&key.namespace, &definition, before, false, now_ms)
        .map_err(|error| Problem::from(tenure::port::StoreError::from(error)))?;
    let timetable = revised.definition.timetable(&key.namespace);
    let shown = |at_ms: i64| UpcomingTick {
        tick_at_ms: at_ms,
        local_time: revised.definition.time_zone.format_local(at_ms),
        due_at_ms: timetable.due_at(at_ms),
    };
    let from = revised.tick_state.map(|progress| progress.next_tick_at_ms);
    let ticks = from.into_iter().flat_map(|from| timetable.ticks_from(from).take(next));
    let upcoming = ticks.map(shown).collect();
    let (gap, fold) = timetable.policies();
    Ok(SchedulePreview {
        outcome: outcome(stored.as_ref(), &revised.definition, body),
        version: stored.map(|view| view.version),
        upcoming,
        dst_gap: gap,
        dst_overlap: fold,
        tzdb_version: tzdb_version(),
        definition: revised.definition,
    })
}

fn outcome(
    stored: Option<&ScheduleView>,
    definition: &ScheduleDefinition,
    body: &PutScheduleRequest,
) -> PutOutcome {
    let Some(view) = stored else { return PutOutcome::Created };
    let is_call = matches!(definition.target, ScheduleTarget::Webhook { .. });
    let signs_anew = body.secret.is_some()
        || body.rotate_secret
        || (is_call && !view.webhook_signed && !body.webhook_unsigned);
    match view.definition == *definition && view.source == body.source && !signs_anew {
        true => PutOutcome::Unchanged,
        false => PutOutcome::Updated,
    }
}

//! What a definition would mean: checked, and shown, and not stored.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tenure::Name;
use tenure::port::{ScheduleKey, ScheduleView, TopicKey};
use tenure_core::schedule::{Definition, Fold, Gap, Target, revise, tzdb_version};
use utoipa::ToSchema;

use super::wish::{ScheduleWish, sensible};
use super::{Ahead, NEXT, SetOutcome, Upcoming};
use crate::App;
use crate::api::elections::number;
use crate::api::given::{At, Given, In};
use crate::api::no_such_topic;
use crate::problem::Problem;

/// What a definition would mean.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Checked {
    /// As it would be stored.
    pub(crate) definition: Definition,
    /// What would become of it.
    pub(crate) outcome: SetOutcome,
    /// The version of the schedule that there is.
    pub(crate) version: Option<u64>,
    /// The ticks that would be next.
    pub(crate) upcoming: Vec<Upcoming>,
    /// What would become of a time that the wall clock jumps over.
    pub(crate) gap: Gap,
    /// What would become of a time that it shows twice.
    pub(crate) fold: Fold,
    /// Which release of the IANA time zone database this is by.
    #[schema(example = "2026a")]
    pub(crate) tzdb: &'static str,
}

/// Check a schedule
///
/// What a definition would mean if it were set now: whether it makes sense, what would become of the schedule that there is, and
/// the ticks that would be next. Nothing is stored.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/check", tag = "schedules", params(("schedule" = Name, Path), Ahead),
    request_body = ScheduleWish, responses((status = 200, body = Checked)))]
pub(crate) async fn check(
    State(app): State<App>,
    At(schedule): At<Name>,
    In(ahead): In<Ahead>,
    Given(wish): Given<ScheduleWish>,
) -> Result<Json<Checked>, Problem> {
    let next = number("next", ahead.next, NEXT)?;
    let key = ScheduleKey::new(ahead.namespace, schedule);
    checked(&app, &key, &wish, next as usize).await.map(Json)
}

/// What a definition would mean, for the API and for the pages.
pub(crate) async fn checked(
    app: &App,
    key: &ScheduleKey,
    wish: &ScheduleWish,
    next: usize,
) -> Result<Checked, Problem> {
    let definition = wish.definition(&key.name)?;
    sensible(app, &definition)?;
    if let Target::Event { topic, .. } = &definition.target {
        let topic = TopicKey::new(key.namespace.clone(), topic.clone());
        if app.store.topic(&topic).await?.is_none() {
            let mut missing = no_such_topic(&topic).field("target.event.topic");
            missing.status = http::StatusCode::UNPROCESSABLE_ENTITY;
            return Err(missing);
        }
    }
    let stored = app.store.schedule(key).await?;
    let before = stored.as_ref().map(|view| (&view.definition, view.progress));
    // By this server's clock: the store's own decides when it is set.
    let now_ms = app.runtime.wall_ms();
    let revised = revise(&key.namespace, &definition, before, false, now_ms)
        .map_err(|error| Problem::from(tenure::port::StoreError::from(error)))?;
    let timetable = revised.definition.timetable(&key.namespace);
    let shown = |at_ms: i64| Upcoming {
        at_ms,
        at: revised.definition.zone.shown(at_ms),
        due_ms: timetable.due_at(at_ms),
    };
    let from = revised.progress.map(|progress| progress.next_at_ms);
    let ticks = from.into_iter().flat_map(|from| timetable.ticks_from(from).take(next));
    let upcoming = ticks.map(shown).collect();
    let (gap, fold) = timetable.policies();
    Ok(Checked {
        outcome: outcome(stored.as_ref(), &revised.definition, wish),
        version: stored.map(|view| view.version),
        upcoming,
        gap,
        fold,
        tzdb: tzdb_version(),
        definition: revised.definition,
    })
}

fn outcome(stored: Option<&ScheduleView>, definition: &Definition, wish: &ScheduleWish) -> SetOutcome {
    let Some(view) = stored else { return SetOutcome::Created };
    let is_call = matches!(definition.target, Target::Call { .. });
    let signs_anew = wish.secret.is_some() || wish.rotate || (is_call && !view.signed && !wish.unsigned);
    match view.definition == *definition && view.source == wish.source && !signs_anew {
        true => SetOutcome::Same,
        false => SetOutcome::Changed,
    }
}

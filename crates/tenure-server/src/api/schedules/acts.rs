//! What operators do: pause, resume, fire now, fire again what did not.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{DUE_MAX, Hand, HandFired, Json as Payload, ScheduleKey};
use tenure_core::schedule::in_utc;
use utoipa::ToSchema;

use super::{find, none, record};
use crate::App;
use crate::access::Principal;
use crate::api::deeds::By;
use crate::api::given::{At, Given, In, MaybeGiven};
use crate::api::operate::Nothing;
use crate::api::queues::{Changed, PauseWork};
use crate::api::sessions::{Within, doer, unfit};
use crate::problem::Problem;

/// How many ticks of a range one request fires at most.
const BACKFILL_MAX: usize = 1_000;

/// What is to fire now.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TriggerWish {
    /// Instead of the schedule's payload.
    payload: Option<Payload>,
    /// Only say what would be.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
    /// Who says so, if it is another than who asks.
    #[schema(max_length = 1024)]
    by: Option<String>,
}

/// Which past ticks are to fire: a range, or these.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"from_ms": 1_767_225_600_000_i64, "to_ms": 1_767_312_000_000_i64, "dry_run": true}))]
pub(crate) struct BackfillWish {
    /// From this instant on, in milliseconds since 1970.
    from_ms: Option<i64>,
    /// Before this one.
    to_ms: Option<i64>,
    /// These and no others.
    #[schema(max_items = 10000)]
    ticks: Option<Vec<i64>>,
    /// Instead of the schedule's payload.
    payload: Option<Payload>,
    /// Only say what would be.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
    /// Who says so, if it is another than who asks.
    #[schema(max_length = 1024)]
    by: Option<String>,
}

/// What came of ticks that were to fire by hand.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Backfilled {
    /// The ticks, oldest first.
    pub(crate) ticks: Vec<HandFired>,
    /// What to give as `from_ms` to go on with the range; `null` if this was all of it.
    pub(crate) next_ms: Option<i64>,
    /// How many ticks of the range are left from there on.
    pub(crate) left: u64,
}

/// A range of past ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// From this instant on.
    pub(crate) from_ms: i64,
    /// Before this one.
    pub(crate) to_ms: i64,
}

/// Pause a schedule
///
/// It does not fire until it is resumed. What falls due meanwhile is missed, and its policy says what becomes of that.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/pause", tag = "schedules", params(("schedule" = Name, Path), Within),
    request_body = Option<PauseWork>,
    responses((status = 200, body = Changed), (status = 404, body = Problem, description = "There is no such schedule.")))]
pub(crate) async fn pause(
    State(app): State<App>,
    principal: Principal,
    by: By,
    At(schedule): At<Name>,
    In(within): In<Within>,
    MaybeGiven(pause): MaybeGiven<PauseWork>,
) -> Result<Json<Changed>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let pause = pause.pause(&app, &principal)?;
    let changed = app.store.set_schedule_paused(&key, Some(&pause)).await?.ok_or_else(|| none(&key))?;
    if changed {
        record(&app, &by, "schedule.pause", &key, pause.reason).await;
    }
    Ok(Json(Changed { changed }))
}

/// Resume a schedule
///
/// It fires again. What fell due meanwhile was missed, and its policy says what becomes of that.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/resume", tag = "schedules", params(("schedule" = Name, Path), Within),
    request_body = Option<Nothing>,
    responses((status = 200, body = Changed), (status = 404, body = Problem, description = "There is no such schedule.")))]
pub(crate) async fn resume(
    State(app): State<App>,
    by: By,
    At(schedule): At<Name>,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Changed>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let changed = app.store.set_schedule_paused(&key, None).await?.ok_or_else(|| none(&key))?;
    if changed {
        record(&app, &by, "schedule.resume", &key, String::new()).await;
    }
    Ok(Json(Changed { changed }))
}

/// Fire a schedule now
///
/// One tick at this instant, whatever its timetable says, paused or not. The ticks to come are as they were.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/trigger", tag = "schedules", params(("schedule" = Name, Path), Within),
    request_body = Option<TriggerWish>,
    responses((status = 200, body = HandFired), (status = 404, body = Problem, description = "There is no such schedule.")))]
pub(crate) async fn trigger(
    State(app): State<App>,
    principal: Principal,
    by: By,
    At(schedule): At<Name>,
    In(within): In<Within>,
    MaybeGiven(wish): MaybeGiven<TriggerWish>,
) -> Result<Json<HandFired>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let who = doer(&principal, wish.by)?;
    let hand = Hand { key, ticks: None, payload: wish.payload, by: who, dry_run: wish.dry_run };
    trigger_now(&app, &by, &hand).await.map(Json)
}

/// Fires a schedule now, for the API and for the pages.
pub(crate) async fn trigger_now(app: &App, by: &By, hand: &Hand) -> Result<HandFired, Problem> {
    let fired = app.store.fire_by_hand(hand).await?.ok_or_else(|| none(&hand.key))?;
    let Some(fired) = fired.into_iter().next() else { return Err(none(&hand.key)) };
    if !hand.dry_run {
        record(app, by, "schedule.trigger", &hand.key, String::new()).await;
    }
    Ok(fired)
}

/// Fire past ticks after all
///
/// Those of a range (`from_ms`, `to_ms`) that have not fired, the oldest first and a thousand at most: go on from `next_ms`. Ticks that are
/// yet to come are none of it; they fire by themselves. With `dry_run`, what would be.
#[utoipa::path(post, path = "/v1/schedules/{schedule}/backfill", tag = "schedules", params(("schedule" = Name, Path), Within),
    request_body = BackfillWish,
    responses((status = 200, body = Backfilled), (status = 404, body = Problem, description = "There is no such schedule.")))]
pub(crate) async fn backfill(
    State(app): State<App>,
    principal: Principal,
    by: By,
    At(schedule): At<Name>,
    In(within): In<Within>,
    Given(wish): Given<BackfillWish>,
) -> Result<Json<Backfilled>, Problem> {
    let key = ScheduleKey::new(within.namespace, schedule);
    let who = doer(&principal, wish.by)?;
    let mut hand = Hand { key, ticks: None, payload: wish.payload, by: who, dry_run: wish.dry_run };
    match (wish.from_ms, wish.to_ms, wish.ticks) {
        (Some(from_ms), Some(to_ms), None) => {
            backfill_range(&app, &by, hand, Range { from_ms, to_ms }).await.map(Json)
        }
        (None, None, Some(ticks)) => {
            if ticks.len() > DUE_MAX as usize {
                let detail = format!("{} ticks are too many for one request", ticks.len());
                return Err(unfit("ticks", detail).remedy(format!("send {DUE_MAX} at a time")));
            }
            hand.ticks = Some(ticks);
            Ok(Json(Backfilled { ticks: fire(&app, &by, &hand).await?, next_ms: None, left: 0 }))
        }
        _ => Err(unfit("from_ms", "either a range is given, with both its ends, or a list of ticks")
            .remedy("give `from_ms` and `to_ms`, or `ticks`")),
    }
}

/// Fires the first ticks of a range, for the API and for the pages. `hand` says how; its ticks are filled in.
pub(crate) async fn backfill_range(
    app: &App,
    by: &By,
    hand: Hand,
    range: Range,
) -> Result<Backfilled, Problem> {
    let Range { from_ms, to_ms } = range;
    if to_ms <= from_ms {
        return Err(unfit("to_ms", format!("{to_ms} is not after `from_ms`, {from_ms}"))
            .remedy("exchange them, or choose another"));
    }
    let view = find(app, &hand.key).await?;
    // What is yet to come fires by itself; of what is over, all of it has passed.
    let passed_ms = view.progress.map_or(to_ms, |progress| progress.next_at_ms.min(to_ms));
    let timetable = view.definition.timetable(&view.namespace);
    let ticks: Vec<i64> = timetable.ticks_between(from_ms, passed_ms).take(BACKFILL_MAX).collect();
    let rest = ticks.last().map_or(passed_ms, |last| last.saturating_add(1));
    let left = timetable.count(rest, passed_ms);
    let next_ms = (left > 0).then_some(rest);
    let fired = match ticks.is_empty() {
        true => Vec::new(),
        false => fire(app, by, &Hand { ticks: Some(ticks), ..hand }).await?,
    };
    Ok(Backfilled { ticks: fired, next_ms, left })
}

async fn fire(app: &App, by: &By, hand: &Hand) -> Result<Vec<HandFired>, Problem> {
    let fired = app.store.fire_by_hand(hand).await?.ok_or_else(|| none(&hand.key))?;
    if let (false, Some(first), Some(last)) = (hand.dry_run, fired.first(), fired.last()) {
        let detail = format!("{} ticks from {} to {}", fired.len(), in_utc(first.at_ms), in_utc(last.at_ms));
        record(app, by, "schedule.backfill", &hand.key, detail).await;
    }
    Ok(fired)
}

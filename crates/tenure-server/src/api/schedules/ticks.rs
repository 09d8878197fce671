//! Ticks of a schedule.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{ScheduleKey, TickFilter, TickView};
use utoipa::{IntoParams, ToSchema};

use super::find;
use crate::App;
use crate::api::elections::validate_number;
use crate::api::extract::{PathParams, QueryParams};
use crate::problem::Problem;

/// Default and maximum page size.
const PAGE: (u32, u32) = (100, 1000);
/// Maximum number of ticks at one instant: one scheduled, one triggered, and one skipped range that ends
/// there.
const TICKS_PER_INSTANT_MAX: u32 = 3;

/// Query of ticks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListTicksQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Maximum number of items; up to two more if they have the same instant as the last.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Cursor: `next_cursor` of the previous page. Only ticks before this instant are returned.
    cursor: Option<i64>,
}

/// Page of ticks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TickList {
    /// Ticks, newest first. A range of skipped ticks is one item.
    ticks: Vec<TickView>,
    /// Cursor of the next page; `null` on the last page.
    next_cursor: Option<i64>,
}

/// List the ticks of a schedule
///
/// Newest first: outcome, lateness, the scheduler's token, and the published event or submitted task.
#[utoipa::path(get, path = "/v1/schedules/{schedule}/ticks", tag = "schedules", params(("schedule" = Name, Path), ListTicksQuery),
    responses((status = 200, body = TickList), (status = 404, body = Problem, description = "The schedule does not exist.")))]
pub(crate) async fn list_ticks(
    State(app): State<App>,
    PathParams(schedule): PathParams<Name>,
    QueryParams(past): QueryParams<ListTicksQuery>,
) -> Result<Json<TickList>, Problem> {
    let limit = validate_number("limit", past.limit, PAGE)?;
    let key = ScheduleKey::new(past.namespace, schedule);
    let filter = TickFilter { key, before_ms: past.cursor, limit: limit + TICKS_PER_INSTANT_MAX };
    let mut ticks = app.store.ticks(&filter).await?;
    if ticks.is_empty() {
        find(&app, &filter.key).await?;
    }
    let next_cursor = cut(&mut ticks, limit as usize);
    Ok(Json(TickList { ticks, next_cursor }))
}

/// Cut a page and return its cursor. The cursor is an instant, so ticks of one instant stay on one page.
fn cut(ticks: &mut Vec<TickView>, limit: usize) -> Option<i64> {
    let last = ticks.get(limit.checked_sub(1)?)?.tick_at_ms;
    let alike = ticks[limit..].iter().take_while(|tick| tick.tick_at_ms == last).count();
    let more = ticks.len() > limit + alike;
    ticks.truncate(limit + alike);
    more.then_some(last)
}

#[cfg(test)]
mod tests {
    use tenure::port::{TickCause, TickOutcome};

    use super::*;

    fn tick(at_ms: i64, cause: TickCause) -> TickView {
        TickView {
            tick_at_ms: at_ms,
            state: TickOutcome::Fired,
            cause,
            tick_count: 1,
            first_tick_at_ms: None,
            decided_at_ms: at_ms,
            lateness_ms: 0,
            token: None,
            decided_by: String::new(),
            event_id: None,
            task_id: None,
        }
    }

    #[test]
    fn ticks_of_one_instant_stay_on_one_page() {
        let (clock, manual) = (TickCause::Schedule, TickCause::Trigger);
        let all = [(9, clock), (8, manual), (8, clock), (7, clock), (6, clock)];
        let page = |limit: usize| {
            let mut ticks: Vec<TickView> = all.iter().map(|(at_ms, cause)| tick(*at_ms, *cause)).collect();
            let next = cut(&mut ticks, limit);
            (ticks.len(), next)
        };
        assert_eq!(page(1), (1, Some(9)));
        assert_eq!(page(2), (3, Some(8)), "before 8 comes 7: the other one of 8 would be on no page");
        assert_eq!(page(3), (3, Some(8)));
        assert_eq!((page(5), page(9)), ((5, None), (5, None)));
    }
}

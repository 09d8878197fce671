//! What has become of a schedule's ticks.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{ScheduleKey, TickFilter, TickView};
use utoipa::{IntoParams, ToSchema};

use super::find;
use crate::App;
use crate::api::elections::number;
use crate::api::given::{At, In};
use crate::problem::Problem;

/// How many ticks are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (100, 1000);
/// How many may be at one instant: the clock's, one by hand, and a range that ends with it.
const ALIKE: u32 = 3;

/// Which ticks, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Past {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// How many at most; up to two more, if they are at the same instant as the last.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only those before this instant: `next` of the page before.
    before: Option<i64>,
}

/// A page of ticks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ticks {
    /// The ticks, the newest first. Of those that were missed, a range is one.
    ticks: Vec<TickView>,
    /// What to give as `before` to get the next page; `null` if this is the last one.
    next: Option<i64>,
}

/// Show the last ticks of a schedule
///
/// The newest first: what became of each, how late it was, under which leader's token, and what it published or submitted.
#[utoipa::path(get, path = "/v1/schedules/{schedule}/ticks", tag = "schedules", params(("schedule" = Name, Path), Past),
    responses((status = 200, body = Ticks), (status = 404, body = Problem, description = "There is no such schedule.")))]
pub(crate) async fn list(
    State(app): State<App>,
    At(schedule): At<Name>,
    In(past): In<Past>,
) -> Result<Json<Ticks>, Problem> {
    let limit = number("limit", past.limit, PAGE)?;
    let key = ScheduleKey::new(past.namespace, schedule);
    let filter = TickFilter { key, before_ms: past.before, limit: limit + ALIKE };
    let mut ticks = app.store.ticks(&filter).await?;
    if ticks.is_empty() {
        find(&app, &filter.key).await?;
    }
    let next = cut(&mut ticks, limit as usize);
    Ok(Json(Ticks { ticks, next }))
}

/// Leaves a page of these; where the next one begins. That is before an instant, so what shares one is not parted.
fn cut(ticks: &mut Vec<TickView>, limit: usize) -> Option<i64> {
    let last = ticks.get(limit.checked_sub(1)?)?.at_ms;
    let alike = ticks[limit..].iter().take_while(|tick| tick.at_ms == last).count();
    let more = ticks.len() > limit + alike;
    ticks.truncate(limit + alike);
    more.then_some(last)
}

#[cfg(test)]
mod tests {
    use tenure::port::{Cause, TickState};

    use super::*;

    fn tick(at_ms: i64, cause: Cause) -> TickView {
        TickView {
            at_ms,
            state: TickState::Fired,
            cause,
            count: 1,
            first_ms: None,
            decided_ms: at_ms,
            late_ms: 0,
            token: None,
            by: String::new(),
            event: None,
            task: None,
        }
    }

    #[test]
    fn what_is_at_one_instant_is_on_one_page() {
        let (clock, hand) = (Cause::Clock, Cause::Trigger);
        let all = [(9, clock), (8, hand), (8, clock), (7, clock), (6, clock)];
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

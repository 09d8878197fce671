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

/// Which ticks, and how many.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Past {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// How many at most.
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
    let filter = TickFilter { key, before_ms: past.before, limit: limit + 1 };
    let mut ticks = app.store.ticks(&filter).await?;
    if ticks.is_empty() {
        find(&app, &filter.key).await?;
    }
    let more = ticks.len() > limit as usize;
    ticks.truncate(limit as usize);
    let next = ticks.last().filter(|_| more).map(|tick| tick.at_ms);
    Ok(Json(Ticks { ticks, next }))
}

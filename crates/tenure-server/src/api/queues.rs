//! Queues: how they are set, what stands in them, and how fast it moves.

mod watch;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{Finished, KindStats, Pause, QueueKey, QueueSettings, QueueView, TaskState, Verb};
use tenure_core::claim::{check_queue, stats};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::deeds::{By, record_of};
use super::elections::{number, place};
use super::given::{At, Given, In, MaybeGiven};
use super::operate::Nothing;
use super::sense::of_ask;
use super::sessions::{Within, doer, short, unfit};
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{Need, Routes};

/// How many queues are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (100, 1000);
/// Of how many finished tasks statistics are made, unless asked otherwise, and at most.
const FINISHED: (u32, u32) = (1000, 10_000);
/// The longest time in a setting: ten years.
const LONGEST_MS: u64 = 10 * 366 * 24 * 3_600_000;
/// The end of the year 9999, in milliseconds since 1970.
const LATEST_MS: i64 = 253_402_300_799_000;

pub(crate) fn routes() -> Routes {
    let (read, admin) = (Need::In(Verb::Read), Need::In(Verb::Admin));
    Routes::new()
        .api(Need::Known, routes!(list))
        .api(read, routes!(show))
        .api(admin, routes!(set))
        .api(admin, routes!(pause))
        .api(admin, routes!(resume))
        .api(admin, routes!(pause_all))
        .api(admin, routes!(resume_all))
        .api(read, routes!(statistics))
        .api(read, routes!(finished))
        .api(read, routes!(watch::watch))
}

/// Which queues, and how many.
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
    #[param(example = "default/mail")]
    after: Option<String>,
    /// Ask the store, instead of answering with what was seen within the last second.
    #[serde(default)]
    consistent: bool,
}

/// A page of queues.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Queues {
    /// The queues, by namespace and name.
    queues: Vec<QueueView>,
    /// What to give as `after` to get the next page; `null` if this is the last one.
    #[schema(example = "default/mail")]
    next: Option<String>,
}

/// How many finished tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HowMany {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// How many of the last finished tasks are looked at.
    #[param(default = 1000, minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// A queue, and how fast it moves.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueStats {
    /// The queue.
    queue: QueueView,
    /// The tasks that wait for a worker, a time or each other.
    #[schema(example = 12)]
    waiting: u64,
    /// How long tasks of each kind waited and ran, of the last that finished.
    kinds: Vec<KindStats>,
}

/// Finished tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FinishedTasks {
    /// The last ones.
    #[schema(value_type = Vec<Object>)]
    finished: Vec<Finished>,
}

/// Why nothing is to be handed out.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "the mail server is down"}))]
pub(crate) struct PauseWork {
    /// For others to read.
    #[serde(default)]
    #[schema(max_length = 1024)]
    reason: String,
    /// Who says so, if it is another than who asks.
    by: Option<String>,
    /// Since when, in milliseconds since 1970, if it is not now.
    at_ms: Option<i64>,
}

/// Whether something was changed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Changed {
    /// Not if it was so already.
    pub(super) changed: bool,
}

/// List queues
///
/// By namespace and name, with how many tasks stand where; those of one namespace, or all that you may read.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", params(Which), responses((status = 200, body = Queues)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(which): In<Which>,
) -> Result<Json<Queues>, Problem> {
    let limit = number("limit", which.limit, PAGE)? as usize;
    let after = which.after.as_deref().map(place).transpose()?;
    principal.must_list(which.namespace.as_ref())?;
    let all: Vec<QueueView> = match which.consistent {
        true => app.store.queues(which.namespace.as_ref()).await?,
        false => app.floor.queues().await?.queues.values().map(|track| track.view.clone()).collect(),
    };
    let from = after.map(|key| QueueKey::new(key.namespace, key.name));
    let wanted = |view: &QueueView| {
        let here = match &which.namespace {
            Some(namespace) => view.key.namespace == *namespace,
            None => principal.may(Verb::Read, Some(&view.key.namespace)),
        };
        here && from.as_ref().is_none_or(|from| view.key > *from)
    };
    let mut rest: Vec<_> = all.into_iter().filter(wanted).collect();
    rest.sort_by(|a, b| a.key.cmp(&b.key));
    let mut rest = rest.into_iter();
    let queues: Vec<_> = rest.by_ref().take(limit).collect();
    let last = queues.last().filter(|_| rest.next().is_some());
    let next = last.map(|last| format!("{}/{}", last.key.namespace, last.key.name));
    Ok(Json(Queues { queues, next }))
}

/// Show a queue
///
/// How it is set, how many tasks stand where, and whether it is paused.
#[utoipa::path(get, path = "/v1/queues/{queue}", tag = "queues", params(("queue" = Name, Path), Within),
    responses((status = 200, body = QueueView), (status = 404, body = Problem, description = "It was never used.")))]
pub(crate) async fn show(
    State(app): State<App>,
    At(queue): At<Name>,
    In(within): In<Within>,
) -> Result<Json<QueueView>, Problem> {
    find(&app, &QueueKey::new(within.namespace, queue)).await.map(Json)
}

/// Set a queue
///
/// Makes it, or sets it anew: what is left out is as usual. Its mode may change at any time; nothing is lost or doubled.
#[utoipa::path(put, path = "/v1/queues/{queue}", tag = "queues", params(("queue" = Name, Path), Within),
    request_body = QueueSettings, responses((status = 200, body = QueueView)))]
pub(crate) async fn set(
    State(app): State<App>,
    by: By,
    At(queue): At<Name>,
    In(within): In<Within>,
    Given(settings): Given<QueueSettings>,
) -> Result<Json<QueueView>, Problem> {
    check_queue(&settings).map_err(of_ask)?;
    let key = QueueKey::new(within.namespace, queue);
    quota::check(&app, Object::Queue(&key)).await?;
    app.store.set_queue(&key, &settings).await?;
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record_of(&app, &by, "queue.set", &key.namespace, key.name.as_str(), detail).await;
    find(&app, &key).await.map(Json)
}

/// Pause a queue
///
/// Nothing of it is handed out until it is resumed. What is claimed goes on, and may be finished.
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", tag = "queues", params(("queue" = Name, Path), Within),
    request_body = Option<PauseWork>, responses((status = 200, body = Changed)))]
pub(crate) async fn pause(
    State(app): State<App>,
    principal: Principal,
    by: By,
    At(queue): At<Name>,
    In(within): In<Within>,
    MaybeGiven(pause): MaybeGiven<PauseWork>,
) -> Result<Json<Changed>, Problem> {
    paused(&app, &principal, &by, &within.namespace, Some(&queue), Some(pause)).await
}

/// Resume a queue
///
/// Its tasks are handed out again.
#[utoipa::path(post, path = "/v1/queues/{queue}/resume", tag = "queues", params(("queue" = Name, Path), Within),
    request_body = Option<Nothing>, responses((status = 200, body = Changed)))]
pub(crate) async fn resume(
    State(app): State<App>,
    principal: Principal,
    by: By,
    At(queue): At<Name>,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Changed>, Problem> {
    paused(&app, &principal, &by, &within.namespace, Some(&queue), None).await
}

/// Pause a namespace
///
/// Nothing is handed out in it, neither tasks nor resources, until it is resumed.
#[utoipa::path(post, path = "/v1/namespace/pause", tag = "queues", params(Within),
    request_body = Option<PauseWork>, responses((status = 200, body = Changed)))]
pub(crate) async fn pause_all(
    State(app): State<App>,
    principal: Principal,
    by: By,
    In(within): In<Within>,
    MaybeGiven(pause): MaybeGiven<PauseWork>,
) -> Result<Json<Changed>, Problem> {
    paused(&app, &principal, &by, &within.namespace, None, Some(pause)).await
}

/// Resume a namespace
///
/// Queues that were paused for themselves stay so.
#[utoipa::path(post, path = "/v1/namespace/resume", tag = "queues", params(Within),
    request_body = Option<Nothing>, responses((status = 200, body = Changed)))]
pub(crate) async fn resume_all(
    State(app): State<App>,
    principal: Principal,
    by: By,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Changed>, Problem> {
    paused(&app, &principal, &by, &within.namespace, None, None).await
}

/// Show how fast a queue moves
///
/// How long tasks of each kind waited and ran, of the last that finished.
#[utoipa::path(get, path = "/v1/queues/{queue}/stats", tag = "queues", params(("queue" = Name, Path), HowMany),
    responses((status = 200, body = QueueStats), (status = 404, body = Problem, description = "It was never used.")))]
pub(crate) async fn statistics(
    State(app): State<App>,
    At(queue): At<Name>,
    In(how): In<HowMany>,
) -> Result<Json<QueueStats>, Problem> {
    let limit = number("limit", how.limit, FINISHED)?;
    let key = QueueKey::new(how.namespace, queue);
    let queue = find(&app, &key).await?;
    let kinds = stats(&app.store.finished(&key, limit).await?);
    let states = [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready, TaskState::Held];
    let waiting = states.into_iter().map(|state| queue.count(state)).sum();
    Ok(Json(QueueStats { queue, waiting, kinds }))
}

/// The last finished tasks of a queue, for programs that make their own statistics.
#[utoipa::path(get, path = "/v1/queues/{queue}/finished", tag = "claims", params(("queue" = Name, Path), HowMany),
    responses((status = 200, body = FinishedTasks)))]
pub(crate) async fn finished(
    State(app): State<App>,
    At(queue): At<Name>,
    In(how): In<HowMany>,
) -> Result<Json<FinishedTasks>, Problem> {
    let limit = number("limit", how.limit, FINISHED)?;
    let finished = app.store.finished(&QueueKey::new(how.namespace, queue), limit).await?;
    Ok(Json(FinishedTasks { finished }))
}

/// A queue, as the store has it.
async fn find(app: &App, key: &QueueKey) -> Result<QueueView, Problem> {
    app.store.queue(key).await?.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-queue", format!("nothing was ever submitted to {key}"))
            .field("queue")
            .remedy("GET /v1/queues lists those that there are; a submission or a PUT makes one")
    })
}

async fn paused(
    app: &App,
    principal: &Principal,
    by: &By,
    namespace: &Name,
    queue: Option<&Name>,
    pause: Option<PauseWork>,
) -> Result<Json<Changed>, Problem> {
    let pause = pause.map(|pause| pause.pause(app, principal)).transpose()?;
    let changed = app.store.set_queue_paused(namespace, queue, pause.as_ref()).await?;
    if changed {
        let (what, target) = queue.map_or(("namespace", namespace), |queue| ("queue", queue));
        let (verb, reason) = pause.map_or(("resume", String::new()), |pause| ("pause", pause.reason));
        record_of(app, by, &format!("{what}.{verb}"), namespace, target.as_str(), reason).await;
    }
    Ok(Json(Changed { changed }))
}

impl PauseWork {
    /// The pause, by whoever asks for it.
    pub(super) fn pause(self, app: &App, principal: &Principal) -> Result<Pause, Problem> {
        short("reason", &self.reason)?;
        let by = doer(principal, self.by)?;
        // Between 1970 and the year 9999: what no calendar has can not be shown.
        let at_ms = self.at_ms.map_or_else(|| app.runtime.wall_ms(), |at| at.clamp(0, LATEST_MS));
        Ok(Pause { by, reason: self.reason, at_ms })
    }
}

/// Refuses times that no clock of a store can add up.
pub(super) fn lasting(field: &str, ms: u64) -> Result<(), Problem> {
    if ms <= LONGEST_MS {
        return Ok(());
    }
    Err(unfit(field, format!("{ms} ms are too long"))
        .remedy(format!("ten years are the longest, {LONGEST_MS} ms")))
}

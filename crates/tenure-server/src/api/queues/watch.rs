//! A queue, watched: server-sent events with what stands in it, as it changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_core::Stream;
use futures_util::stream;
use tenure::Name;
use tenure::port::{QueueKey, QueueView};

use crate::App;
use crate::api::given::{At, In};
use crate::api::sessions::Within;
use crate::api::watch::closing;
use crate::floor::Track;
use crate::problem::Problem;

/// How long nothing is said at most.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How often it is looked whether something is different: at what all who watch share ([`floor`](crate::floor)).
const EVERY: Duration = Duration::from_millis(500);

/// Watch a queue
///
/// Server-sent events: `queue` with the whole queue, now and whenever what stands in it changes, about once a second at most. A
/// comment comes every 15 s. A queue that nothing was submitted to yet may be watched, too.
#[utoipa::path(get, path = "/v1/queues/{queue}/watch", tag = "queues", params(("queue" = Name, Path), Within),
    responses((status = 200, body = String, content_type = "text/event-stream",
            example = "event: queue\ndata: {\"namespace\":\"default\",\"name\":\"mail\",\"counts\":{\"ready\":3}}\n\n")))]
pub(crate) async fn watch(
    State(app): State<App>,
    At(queue): At<Name>,
    In(within): In<Within>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    if app.board.is_closed() {
        return Err(closing());
    }
    let key = QueueKey::new(within.namespace, queue);
    // Told now if it can not be seen; later, whoever watches waits until it can.
    app.floor.queues().await?;
    let told = None::<Arc<Track>>;
    let events = stream::unfold((app, key, told), async |(app, key, told)| {
        loop {
            let seen = app.floor.queues().await.ok();
            let now = seen.and_then(|seen| seen.queues.get(&key).cloned());
            if let Some(now) = now
                && told.as_ref().is_none_or(|told| !is_same(&told.view, &now.view))
            {
                let data = serde_json::to_string(&now.view).unwrap_or_default();
                let event = Event::default().event("queue").data(data);
                return Some((Ok(event), (app, key, Some(now))));
            }
            app.runtime.sleep_until(app.runtime.now() + EVERY).await;
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Whether nothing that people watch is different. How long the oldest task waits is different all the time.
fn is_same(a: &QueueView, b: &QueueView) -> bool {
    (&a.settings, &a.paused, &a.counts) == (&b.settings, &b.paused, &b.counts)
}

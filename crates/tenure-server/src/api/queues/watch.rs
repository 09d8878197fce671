//! Watch of a queue: server-sent events with its task counts.

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
use crate::api::extract::{PathParams, QueryParams};
use crate::api::sessions::NamespaceQuery;
use crate::api::watch::closing;
use crate::problem::Problem;
use crate::snapshot::queues::QueueHistory;

/// Maximum time between two messages.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Interval at which the shared snapshot ([`snapshot`](crate::snapshot)) is compared.
const INTERVAL: Duration = Duration::from_millis(500);

/// Watch a queue
///
/// Server-sent events: `queue_changed` with the whole queue, now and whenever its counts change, about once a
/// second at most. A comment is sent every 15 s. A queue that does not exist yet can be watched too.
#[utoipa::path(get, path = "/v1/queues/{queue}/watch", tag = "queues", params(("queue" = Name, Path), NamespaceQuery),
    responses((status = 200, body = String, content_type = "text/event-stream",
            example = "event: queue_changed\ndata: {\"namespace\":\"default\",\"name\":\"mail\",\"counts\":{\"ready\":3}}\n\n")))]
pub(crate) async fn watch_queue(
    State(app): State<App>,
    PathParams(queue): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    if app.elections.is_closed() {
        return Err(closing());
    }
    let key = QueueKey::new(within.namespace, queue);
    // Fail now if the store cannot be read; a running stream waits until it can.
    app.queues.queues().await?;
    let sent = None::<Arc<QueueHistory>>;
    let events = stream::unfold((app, key, sent), async |(app, key, sent)| {
        loop {
            let seen = app.queues.queues().await.ok();
            let now = seen.and_then(|seen| seen.queues.get(&key).cloned());
            if let Some(now) = now
                && sent.as_ref().is_none_or(|sent| !is_same(&sent.view, &now.view))
            {
                let data = serde_json::to_string(&now.view).unwrap_or_default();
                let event = Event::default().event("queue_changed").data(data);
                return Some((Ok(event), (app, key, Some(now))));
            }
            app.runtime.sleep_until(app.runtime.now() + INTERVAL).await;
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Compare without the age of the oldest task, which changes all the time.
fn is_same(a: &QueueView, b: &QueueView) -> bool {
    (&a.settings, &a.paused, &a.counts) == (&b.settings, &b.paused, &b.counts)
}

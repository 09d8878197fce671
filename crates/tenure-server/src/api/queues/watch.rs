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
use crate::board::is_same_queue;
use crate::problem::Problem;

/// How long nothing is said at most.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How old what is said first may be.
const FIRST_AGE: Duration = Duration::from_millis(250);

/// Watch a queue
///
/// Server-sent events: `queue` with the whole queue, now and whenever what stands in it changes, up to four times a second. A
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
    // First an ear, then a look: nothing falls between the two.
    let changes = app.queues.watch();
    app.queues.seen(FIRST_AGE).await?;
    let told = None::<Arc<QueueView>>;
    let events = stream::unfold((app, key, changes, told), async |(app, key, mut changes, told)| {
        loop {
            changes.mark_unchanged();
            let now = app.queues.last().queues.get(&key).cloned();
            if let Some(now) = now
                && told.as_ref().is_none_or(|told| !is_same_queue(told, &now))
            {
                let data = serde_json::to_string(&*now).unwrap_or_default();
                let event = Event::default().event("queue").data(data);
                return Some((Ok(event), (app, key, changes, Some(now))));
            }
            changes.changed().await.ok()?;
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

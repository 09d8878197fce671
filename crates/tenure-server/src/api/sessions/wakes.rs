//! Hints, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt};
use tenure::port::{GroupKey, PoolKey, QueueKey, TopicKey, Verb, Wake};
use tokio::sync::broadcast::error::RecvError;

use super::sees;
use crate::App;
use crate::access::Principal;
use crate::board::Hint;

/// How often something is sent when nothing happens, so that either end finds out that the other is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long one stream lasts. Whoever listens comes again, and finds the servers that are new.
const STREAM_LIFE: Duration = Duration::from_secs(300);

/// What happens in the store, sooner than looking would find it: events whose data is one hint each.
///
/// They may be lost, doubled or false; the first one, and each after a gap, is `"resync"`: look at everything. The stream
/// ends now and then, and is to be opened again.
#[utoipa::path(get, path = "/v1/wakes", tag = "sessions",
    responses((status = 200, body = Wake, content_type = "text/event-stream")))]
pub(super) async fn wakes(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let hints = app.board.hints();
    let heard = stream::unfold((hints, app, principal), |(mut hints, app, principal)| async move {
        loop {
            let wake = match hints.recv().await {
                Ok(hint) => shown(&app, &principal, hint),
                Err(RecvError::Lagged(_)) => Some(Wake::Resync),
                Err(RecvError::Closed) => return None,
            };
            if let Some(wake) = wake {
                return Some((wake, (hints, app, principal)));
            }
        }
    });
    let events = stream::once(async { Wake::Resync }).chain(heard).map(|wake| {
        let data = serde_json::to_string(&wake).unwrap_or_else(|_| "\"resync\"".into());
        Ok(Event::default().data(data))
    });
    let over = tokio::time::sleep(STREAM_LIFE);
    Sse::new(events.take_until(over)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

/// A hint, as far as it is this principal's business.
fn shown(app: &App, principal: &Principal, Hint { wake, places }: Hint) -> Option<Wake> {
    if principal.may(Verb::Read, None) {
        return Some(wake);
    }
    match &wake {
        Wake::Released { election, .. } | Wake::Changed(election) => {
            sees(principal, &election.namespace).then_some(wake)
        }
        // Of one that the server never saw anywhere, looking will tell.
        Wake::Ended(_) => places.iter().any(|namespace| sees(principal, namespace)).then_some(wake),
        Wake::Asked(session) => {
            let seen = app.board.seen();
            let mut holders = seen.elections.values().flat_map(|election| election.holders());
            let own = |(_, holder): (_, &tenure::port::SessionView)| {
                holder.id == *session && holder.owner.as_deref() == Some(&*principal.name)
            };
            holders.any(own).then_some(wake)
        }
        Wake::Work(QueueKey { namespace, .. })
        | Wake::Pool(PoolKey { namespace, .. })
        | Wake::Events(TopicKey { namespace, .. })
        | Wake::Group(GroupKey { topic: TopicKey { namespace, .. }, .. }) => {
            let works = principal.may(Verb::Claim, Some(namespace)) || sees(principal, namespace);
            works.then_some(wake)
        }
        // Of one that the server has not seen yet, looking will tell.
        Wake::Recalled(session) => {
            let seen = app.board.seen();
            let owner = seen.sessions.get(session).and_then(|sight| sight.session.owner.as_deref());
            (owner == Some(&*principal.name)).then_some(wake)
        }
        // It names nobody's schedule.
        Wake::Schedules | Wake::Resync => Some(wake),
        Wake::Died(_) | Wake::Severed(_) => None,
    }
}

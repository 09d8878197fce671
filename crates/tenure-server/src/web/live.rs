//! The event stream that triggers page refreshes.
//!
//! The stream carries no content. On each event the script fetches the page again with the current
//! permissions. So pages are rendered in one place, and a stream that outlives its permissions leaks no data.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use tokio::time::timeout;

use super::store_banner::Banner;
use crate::App;

/// Minimum interval between events.
const MIN_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum interval between events, so that ages on the page stay current.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

pub(super) async fn stream(State(app): State<App>) -> impl IntoResponse {
    let changes = app.elections.changes();
    // The access middleware ends the stream when the server shuts down.
    let events = stream::unfold((app, changes, Duration::ZERO), |(app, mut changes, pause)| async move {
        tokio::time::sleep(pause).await;
        // A timeout also sends an event, because ages on the page have changed.
        if let Ok(Err(_)) = timeout(MAX_INTERVAL, changes.changed()).await {
            return None;
        }
        let number = *changes.borrow_and_update();
        // A page without live content needs to know only whether the store is available.
        let store = if matches!(Banner::of(&app), Banner::None) { "live" } else { "stale" };
        let event = Event::default().event("refresh").data(format!("{number} {store}"));
        Some((Ok::<_, Infallible>(event), (app, changes, MIN_INTERVAL)))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

//! The stream that says that something changed.
//!
//! It carries no content: whoever hears it fetches the page anew, under the rights that they have by then. So there is
//! one way to render a page, and nothing leaks through a stream that was opened under rights since revoked.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream;
use tokio::time::timeout;

use super::store_banner::Banner;
use crate::App;

/// No more often than this, however much happens.
const AT_MOST_EVERY: Duration = Duration::from_secs(2);
/// And this often in any case, for the ages of things.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);

pub(super) async fn stream(State(app): State<App>) -> impl IntoResponse {
    let changes = app.board.changes();
    // The gate ends it when the server ends.
    let looks = stream::unfold((app, changes, Duration::ZERO), |(app, mut changes, pause)| async move {
        tokio::time::sleep(pause).await;
        // Nothing for long is news too: what is shown has aged.
        if let Ok(Err(_)) = timeout(AT_LEAST_EVERY, changes.changed()).await {
            return None;
        }
        let number = *changes.borrow_and_update();
        // A page that shows nothing that changes needs to know only whether the store can be read.
        let store = if matches!(Banner::of(&app), Banner::None) { "live" } else { "stale" };
        let event = Event::default().event("look").data(format!("{number} {store}"));
        Some((Ok::<_, Infallible>(event), (app, changes, AT_MOST_EVERY)))
    });
    Sse::new(looks).keep_alive(KeepAlive::default())
}

//! Waiting for a resource, for as long as the request allows.

use std::time::Duration;

use tenure::port::{Authority, NewRequest, PoolKey, PoolMatch, RequestState, RequestView, Wake};

use crate::App;
use crate::access::Slot;
use crate::problem::Problem;

/// How often it is looked again, hints or no hints.
const POLL: Duration = Duration::from_secs(1);

/// Asks for a resource, and waits for it.
pub(super) async fn asked(
    app: &App,
    slot: &Slot,
    pool: &PoolKey,
    request: NewRequest,
    wait: Duration,
) -> Result<RequestView, Problem> {
    let deadline = app.runtime.now() + wait.min(app.timeouts.request * 2 / 3);
    // First an ear, then a look: nothing falls between the two.
    let mut hints = app.board.hints();
    let mut closing = app.closing.subscribe();
    let mut view = app.store.request(pool, &request).await?;
    loop {
        view = matched(app, pool, view).await?;
        let now = app.runtime.now();
        if view.state != RequestState::Waiting || now >= deadline || *closing.borrow() {
            return Ok(view);
        }
        slot.lengthen()?;
        let again = app.runtime.sleep_until(deadline.min(now + POLL));
        tokio::pin!(again);
        loop {
            tokio::select! {
                hint = hints.recv() => match hint {
                    Ok(hint) if hint.wake != Wake::Pool(pool.clone()) && hint.wake != Wake::Resync => {}
                    _ => break,
                },
                () = &mut again => break,
                _ = closing.wait_for(|closing| *closing) => break,
            }
        }
    }
}

/// The request, after what is free was handed out.
pub(super) async fn matched(app: &App, pool: &PoolKey, view: RequestView) -> Result<RequestView, Problem> {
    if view.state != RequestState::Waiting {
        return Ok(view);
    }
    let ask = PoolMatch { pool: pool.clone(), authority: Authority::Direct, request: Some(view.id) };
    let id = view.id;
    match app.store.match_pool(&ask).await? {
        Ok(granted) if granted.iter().any(|one| one.id == id) => {
            Ok(granted.into_iter().find(|one| one.id == id).unwrap_or(view))
        }
        // It waits on: for a resource, for the leader that hands out, or for the end of a pause.
        _ => super::find_request(app, &pool.namespace, id).await,
    }
}

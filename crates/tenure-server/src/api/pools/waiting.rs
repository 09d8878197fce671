//! Waiting for a resource, for as long as the request allows.

use std::time::Duration;

use tenure::port::{
    Authority, ClaimRefusal, NewRequest, PoolKey, PoolMatch, RequestId, RequestState, RequestView, Wake,
};

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
        // Refused, it waits on: for the leader that hands out, or for the end of a pause.
        if view.state == RequestState::Waiting {
            let _ = matched(app, pool, view.id).await?;
            view = super::find_request(app, &pool.namespace, view.id).await?;
        }
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

/// Hands out what is free to a request; those that got something, or why nothing is handed out.
pub(super) async fn matched(
    app: &App,
    pool: &PoolKey,
    request: RequestId,
) -> Result<Result<Vec<RequestView>, ClaimRefusal>, Problem> {
    let ask = PoolMatch { pool: pool.clone(), authority: Authority::Direct, request: Some(request) };
    Ok(app.store.match_pool(&ask).await?)
}

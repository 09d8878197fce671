//! Waiting for a resource, for as long as the request allows.

use std::time::Duration;

use tenure::port::{
    Authority, ClaimRefusal, Mode, NewRequest, PoolKey, PoolMatch, RequestId, RequestState, RequestView,
};

use super::none;
use crate::App;
use crate::access::Slot;
use crate::api::claims::within;
use crate::problem::Problem;

/// Asks for a resource: at once, and then, if none fits, for as long as `wait`.
pub(super) async fn asked(
    app: &App,
    slot: &Slot,
    pool: &PoolKey,
    request: &NewRequest,
    wait: Duration,
) -> Result<RequestView, Problem> {
    let claims = app.claims().await?;
    let view = within(app, claims.request(pool, request, Duration::ZERO)).await?;
    if view.state != RequestState::Waiting || wait.is_zero() {
        return Ok(view);
    }
    slot.lengthen()?;
    // The answer has to be on its way before the request is given up.
    let wait = wait.min(app.timeouts.request * 2 / 3);
    let mut closing = app.closing.subscribe();
    tokio::select! {
        waited = claims.await_request(pool, view.id, wait) => waited?.ok_or_else(|| none(view.id)),
        _ = closing.wait_for(|closing| *closing) => Ok(view),
    }
}

/// Hands out what is free to a request; those that got something, or why nothing is handed out.
pub(super) async fn matched(
    app: &App,
    pool: &PoolKey,
    request: RequestId,
) -> Result<Result<Vec<RequestView>, ClaimRefusal>, Problem> {
    let ask = PoolMatch { pool: pool.clone(), authority: Authority::Direct, request: Some(request) };
    let matched = app.store.match_pool(&ask).await?;
    if matched != Err(ClaimRefusal::Mode(Mode::Exclusive)) {
        return Ok(matched);
    }
    // The leader hands out, wherever it is.
    let looked = app.claims().await?.await_request(pool, request, Duration::ZERO);
    let view = within(app, looked).await?.ok_or_else(|| none(request))?;
    Ok(Ok(Vec::from_iter(Some(view).filter(|view| view.state == RequestState::Granted))))
}

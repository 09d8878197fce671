//! Waiting for a resource within a request.

use std::time::Duration;

use tenure::port::{
    AssignmentMode, ClaimAuthority, ClaimRefusal, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestId,
    PoolRequestState, PoolRequestView,
};

use super::no_such_request;
use crate::App;
use crate::access::RequestPermitHandle;
use crate::api::claim::with_timeout;
use crate::problem::Problem;

/// Request a resource; if none is free, wait up to `wait`.
pub(super) async fn request_and_wait(
    app: &App,
    permit: &RequestPermitHandle,
    pool: &PoolKey,
    request: &PoolRequest,
    wait: Duration,
) -> Result<PoolRequestView, Problem> {
    let claims = app.claims().await?;
    let view = with_timeout(app, claims.request(pool, request, Duration::ZERO)).await?;
    if view.state != PoolRequestState::Waiting || wait.is_zero() {
        return Ok(view);
    }
    permit.mark_as_stream()?;
    // The response must be sent before the request times out.
    let wait = wait.min(app.timeouts.request * 2 / 3);
    let mut closing = app.closing.subscribe();
    tokio::select! {
        waited = claims.wait_for_pool_request(pool, view.id, wait) => waited?.ok_or_else(|| no_such_request(view.id)),
        _ = closing.wait_for(|closing| *closing) => Ok(view),
    }
}

/// Match a request with the free resources: the granted requests, or the reason for a refusal.
pub(super) async fn matched(
    app: &App,
    pool: &PoolKey,
    request: PoolRequestId,
) -> Result<Result<Vec<PoolRequestView>, ClaimRefusal>, Problem> {
    let ask =
        PoolMatchRequest { pool: pool.clone(), authority: ClaimAuthority::Direct, request: Some(request) };
    let matched = app.store.match_pool(&ask).await?;
    if matched != Err(ClaimRefusal::Mode(AssignmentMode::Exclusive)) {
        return Ok(matched);
    }
    // The broker grants, wherever it runs.
    let result = app.claims().await?.wait_for_pool_request(pool, request, Duration::ZERO);
    let view = with_timeout(app, result).await?.ok_or_else(|| no_such_request(request))?;
    Ok(Ok(Vec::from_iter(Some(view).filter(|view| view.state == PoolRequestState::Granted))))
}

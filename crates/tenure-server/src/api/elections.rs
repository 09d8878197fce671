//! Elections: seen, joined, led.

use axum::Json;
use axum::extract::{Path, Query, State};
use http::StatusCode;
use serde::Deserialize;
use tenure::port::ElectionView;
use tenure::{ElectionKey, Name};
use utoipa::IntoParams;

use crate::App;
use crate::problem::Problem;

/// The namespace of a request.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct In {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    pub(crate) namespace: Name,
}

/// One election.
#[utoipa::path(get, path = "/v1/elections/{election}", tag = "elections", params(("election" = Name, Path), In),
    responses((status = 200, body = ElectionView), (status = 404, body = Problem)))]
pub(crate) async fn show(
    State(app): State<App>,
    Path(election): Path<Name>,
    Query(within): Query<In>,
) -> Result<Json<ElectionView>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    let seen = app.board.seen();
    let view = seen.elections.get(&key).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-election", format!("nobody ever stood for {key}"))
    })?;
    Ok(Json(ElectionView::clone(view)))
}

//! Administrative operations in the form of the port, where the public API has another form.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tenure::port::{Pause, Permission, SessionView};
use tenure::{ElectionKey, Name, SessionId};
use utoipa::{IntoParams, ToSchema};

use super::{NamespaceQuery, may_see};
use crate::App;
use crate::access::Principal;
use crate::api::audit_writer::{AuditActor, record};
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::problem::Problem;

/// Query of sessions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ListSessionsQuery {
    /// Session ids, separated by commas; all live sessions if omitted.
    id: Option<String>,
}

/// List sessions from the store: the caller's own, and those in elections that the caller may read.
#[utoipa::path(get, path = "/internal/v1/sessions", tag = "internal", params(ListSessionsQuery),
    responses((status = 200, body = Vec<SessionView>), (status = 400, body = Problem)))]
pub(super) async fn list_sessions(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    QueryParams(query): QueryParams<ListSessionsQuery>,
) -> Result<Json<Vec<SessionView>>, Problem> {
    let ids = query.id.map(|ids| {
        ids.split(',').filter(|id| !id.is_empty()).map(SessionId::from_stored).collect::<Vec<_>>()
    });
    let mut sessions = app.store.sessions(ids.as_deref()).await?;
    if !principal.may(Permission::Read, None) {
        let elections = app.elections.snapshot();
        let visible =
            elections.elections.values().filter(|election| may_see(&principal, &election.key.namespace));
        let shown: BTreeSet<_> =
            visible.flat_map(|election| election.candidates.iter().map(|c| &c.session.id)).collect();
        let own = |session: &SessionView| session.owner.as_deref() == Some(&*principal.name);
        sessions.retain(|session| own(session) || shown.contains(&session.id));
    }
    Ok(Json(sessions))
}

/// Pause or resume of an election.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetElectionPausedRequest {
    /// Pause; `null` to resume.
    paused: Option<Pause>,
}

/// Whether anything changed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangeResponse {
    /// False if the election already had this state.
    changed: bool,
}

/// Pause an election and ask its leaders to stop, or resume it. Used by the HTTP store; the public API has
/// `pause` and `resume`.
#[utoipa::path(put, path = "/internal/v1/elections/{election}/paused", tag = "internal",
    params(("election" = Name, Path), NamespaceQuery), request_body = SetElectionPausedRequest,
    responses((status = 200, body = ChangeResponse), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn set_election_paused(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: AuditActor,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(SetElectionPausedRequest { paused }): JsonBody<SetElectionPausedRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    let paused =
        paused.map(|pause| Pause { paused_by: super::display_actor(&principal, &pause.paused_by), ..pause });
    if let Some(pause) = &paused {
        super::validate_text("paused_by", &pause.paused_by)?;
        super::validate_text("reason", &pause.reason)?;
    }
    let changed = app.store.set_election_paused(&key, paused.as_ref()).await?;
    if changed {
        let (action, reason) =
            paused.map_or(("election.resume", String::new()), |pause| ("election.pause", pause.reason));
        record(&app, &by, action, &key, reason).await;
    }
    Ok(Json(ChangeResponse { changed }))
}

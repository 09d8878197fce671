//! What the path of people needs in the form of the port, where the human API has another.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tenure::port::{Pause, SessionView, Verb};
use tenure::{ElectionKey, Name, SessionId};
use utoipa::{IntoParams, ToSchema};

use super::{Within, sees};
use crate::App;
use crate::access::Principal;
use crate::api::deeds::{By, record};
use crate::api::given::{At, Given, In};
use crate::problem::Problem;

/// Which sessions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    /// Their ids, separated by commas; all that live if left out.
    id: Option<String>,
}

/// Sessions, as the store has them: those that are the caller's own, or stand where the caller may look.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(Which),
    responses((status = 200, body = Vec<SessionView>), (status = 400, body = Problem)))]
pub(super) async fn sessions(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    In(which): In<Which>,
) -> Result<Json<Vec<SessionView>>, Problem> {
    let ids = which.id.map(|ids| {
        ids.split(',').filter(|id| !id.is_empty()).map(SessionId::from_stored).collect::<Vec<_>>()
    });
    let mut sessions = app.store.sessions(ids.as_deref()).await?;
    if !principal.may(Verb::Read, None) {
        let board = app.board.seen();
        let visible = board.elections.values().filter(|election| sees(&principal, &election.key.namespace));
        let shown: BTreeSet<_> =
            visible.flat_map(|election| election.candidates.iter().map(|c| &c.session.id)).collect();
        let own = |session: &SessionView| session.owner.as_deref() == Some(&*principal.name);
        sessions.retain(|session| own(session) || shown.contains(&session.id));
    }
    Ok(Json(sessions))
}

/// Whether an election is to be paused.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Paused {
    /// By whom, why and since when; none to resume.
    paused: Option<Pause>,
}

/// Whether something was changed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Changed {
    /// Not if it was so already.
    changed: bool,
}

/// Pauses an election, asking its holders to stop, or resumes it. For programs; people have `pause` and `resume`.
#[utoipa::path(put, path = "/v1/elections/{election}/paused", tag = "sessions",
    params(("election" = Name, Path), Within), request_body = Paused,
    responses((status = 200, body = Changed), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn set_paused(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: By,
    At(election): At<Name>,
    In(within): In<Within>,
    Given(Paused { paused }): Given<Paused>,
) -> Result<Json<Changed>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    let paused = paused.map(|pause| Pause { by: super::signed(&principal, &pause.by), ..pause });
    if let Some(pause) = &paused {
        super::fits("by", &pause.by)?;
        super::fits("reason", &pause.reason)?;
    }
    let changed = app.store.set_paused(&key, paused.as_ref()).await?;
    if changed {
        let (action, reason) = paused.map_or(("resume", String::new()), |pause| ("pause", pause.reason));
        record(&app, &by, action, &key, reason).await;
    }
    Ok(Json(Changed { changed }))
}

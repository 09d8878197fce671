//! Ownership of sessions named in request bodies. The access middleware checks sessions named in paths.

use http::StatusCode;
use tenure::SessionId;
use tenure::port::SessionView;

use crate::App;
use crate::access::{AccessMode, Principal};
use crate::problem::Problem;

/// Return the session if this principal opened it through a server. The snapshot suffices, because the owner
/// of a session never changes.
pub(super) async fn require_owned_session(
    app: &App,
    principal: &Principal,
    id: &SessionId,
) -> Result<SessionView, Problem> {
    let known = app.elections.snapshot().sessions.get(id).map(|heartbeat| heartbeat.session.clone());
    let found = match known {
        Some(session) => Some(session),
        None => {
            let found = app.store.sessions(Some(std::slice::from_ref(id))).await?;
            found.into_iter().find(|session| session.id == *id)
        }
    };
    let session = found.ok_or_else(|| super::sessions::session_ended(id).field("session"))?;
    match session.owner.as_deref() {
        // Without access control, local clients own every session that was opened through a server.
        Some(owner) if owner == &*principal.name || matches!(*app.access, AccessMode::Open) => Ok(session),
        _ => {
            let detail =
                format!("session {} was not opened by {} through a server", id.short(), principal.name);
            let problem = Problem::new(StatusCode::FORBIDDEN, "session-owned-by-other", detail);
            Err(problem.field("session").remedy("omit the session, and the server opens one"))
        }
    }
}

/// Reject a malformed session id.
pub(super) fn validate_session_id(id: &SessionId) -> Result<(), Problem> {
    let id = id.as_str();
    if id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(());
    }
    Err(super::sessions::invalid_value("session", "a session id has 32 lower-case hexadecimal digits")
        .remedy("send the session of an earlier response, or omit it"))
}

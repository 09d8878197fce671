//! Sessions that the body of a request names, and whose they are. Those that a path names are the gate's to check.

use http::StatusCode;
use tenure::SessionId;
use tenure::port::SessionView;

use crate::App;
use crate::access::{Access, Principal};
use crate::problem::Problem;

/// The session, if this principal opened it through a server. What the board has will do: an owner never changes.
pub(super) async fn owned(app: &App, principal: &Principal, id: &SessionId) -> Result<SessionView, Problem> {
    let known = app.board.seen().sessions.get(id).map(|sight| sight.session.clone());
    let found = match known {
        Some(session) => Some(session),
        None => {
            let found = app.store.sessions(Some(std::slice::from_ref(id))).await?;
            found.into_iter().find(|session| session.id == *id)
        }
    };
    let session = found.ok_or_else(|| super::sessions::gone(id).field("session"))?;
    match session.owner.as_deref() {
        // With access off, whoever is on this machine owns all that was opened through a server.
        Some(owner) if owner == &*principal.name || matches!(*app.access, Access::Open) => Ok(session),
        _ => {
            let detail =
                format!("session {} is not one that {} opened through a server", id.short(), principal.name);
            let problem = Problem::new(StatusCode::FORBIDDEN, "not-your-session", detail);
            Err(problem.field("session").remedy("campaign without a session, and one is opened"))
        }
    }
}

/// Refuses what can be no session's id.
pub(super) fn plausible(id: &SessionId) -> Result<(), Problem> {
    let id = id.as_str();
    if id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(());
    }
    Err(super::sessions::unfit("session", "a session's id is 32 lower-case hexadecimal digits")
        .remedy("give the session of an earlier answer, or none"))
}

//! How much of a store one principal, and one session, may take up through servers.
//!
//! Counted from what the server saw last: whoever is quick gets a little more, within what the limits on requests allow.

use http::StatusCode;
use tenure::port::Candidacy;

use crate::App;
use crate::access::Principal;
use crate::problem::Problem;

/// The most sessions of one owner that live at a time.
const SESSIONS_MAX: usize = 10_000;
/// The most elections in which one session stands.
const CANDIDACIES_MAX: usize = 1000;

/// Refuses one more session to whoever has too many.
pub(super) fn for_session(app: &App, principal: &Principal) -> Result<(), Problem> {
    let count = app.board.seen().owned.get(&*principal.name).copied().unwrap_or(0);
    if count < SESSIONS_MAX {
        return Ok(());
    }
    let detail =
        format!("{count} sessions of {} live; one principal may have {SESSIONS_MAX}", principal.name);
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-sessions", detail)
        .remedy("end sessions that are not needed: one session can stand in many elections")
        .retry_after(10))
}

/// Refuses one more candidacy to a session that has too many. It may always change those that it has.
pub(super) fn for_candidacy(app: &App, candidacy: &Candidacy) -> Result<(), Problem> {
    let seen = app.board.seen();
    let count = seen.standing.get(&candidacy.session).copied().unwrap_or(0);
    let stands = || seen.elections.get(&candidacy.election)?.candidate(&candidacy.session);
    if count < CANDIDACIES_MAX || stands().is_some() {
        return Ok(());
    }
    let detail = format!(
        "session {} stands in {count} elections; one session may stand in {CANDIDACIES_MAX}",
        candidacy.session.short()
    );
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-candidacies", detail)
        .remedy("leave elections, or open another session")
        .retry_after(10))
}

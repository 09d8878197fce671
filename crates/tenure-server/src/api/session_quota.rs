//! Quotas of sessions per principal and of candidacies per session.
//!
//! They are counted in the snapshot, so concurrent requests may exceed them slightly.

use http::StatusCode;
use tenure::port::Candidacy;

use crate::App;
use crate::access::Principal;
use crate::problem::Problem;

/// Maximum number of live sessions of a principal.
const SESSIONS_MAX: usize = 10_000;
/// Maximum number of elections that a session takes part in.
const CANDIDACIES_MAX: usize = 1000;

/// Check the session quota of a principal.
pub(super) fn check_session_quota(app: &App, principal: &Principal) -> Result<(), Problem> {
    let count = app.elections.snapshot().sessions_by_owner.get(&*principal.name).copied().unwrap_or(0);
    if count < SESSIONS_MAX {
        return Ok(());
    }
    let detail = format!("{} has {count} live sessions; the maximum is {SESSIONS_MAX}", principal.name);
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-sessions", detail)
        .remedy("end unused sessions: one session can take part in many elections")
        .retry_after(10))
}

/// Check the candidacy quota of a session. Existing candidacies can always be changed.
pub(super) fn check_candidacy_quota(app: &App, candidacy: &Candidacy) -> Result<(), Problem> {
    let snapshot = app.elections.snapshot();
    let count = snapshot.candidacies_by_session.get(&candidacy.session).copied().unwrap_or(0);
    let joined = || snapshot.elections.get(&candidacy.election)?.candidate(&candidacy.session);
    if count < CANDIDACIES_MAX || joined().is_some() {
        return Ok(());
    }
    let detail = format!(
        "session {} takes part in {count} elections; the maximum is {CANDIDACIES_MAX}",
        candidacy.session.short()
    );
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-candidacies", detail)
        .remedy("leave elections, or open another session")
        .retry_after(10))
}

//! Dashboard sessions: a browser has their cookie instead of an access token.
//!
//! A login creates a session with a random id and a random secret. The store keeps it among the credentials,
//! with the digest of the secret and the id of the access token, so every replica knows it. A session has no
//! grants of its own: it has the permissions of its access token while that is valid. It ends with its
//! lifetime, with a logout, and with its access token.

use http::StatusCode;
use tenure::port::{Credential, CredentialVerifier};

use super::access_token;
use crate::problem::Problem;

/// Prefix of session ids. The id of an access token has 16 hexadecimal digits, so the two cannot be confused.
const PREFIX: &str = "dashboard.";
/// Prefix of `created_by` of a session, followed by the id of its access token.
const ACCESS_TOKEN_PREFIX: &str = "access_token ";
/// Lifetime of a session.
pub(super) const LIFETIME_MS: i64 = 12 * 3_600_000;
/// Maximum number of sessions of one access token within that time. The store keeps each session as long as
/// an audit entry.
const LOGINS_MAX: usize = 50;

/// Whether a credential is a dashboard session.
pub fn is_dashboard_session(credential: &Credential) -> bool {
    credential.id.starts_with(PREFIX)
}

/// New session. Its cookie is known only now.
pub(super) struct NewDashboardSession {
    /// Value of the cookie.
    pub(super) cookie: String,
    /// Credential to store.
    pub(super) credential: Credential,
}

/// Create a session for an access token.
pub(super) fn create(of: &Credential, wall_ms: i64, random: impl FnMut() -> u64) -> NewDashboardSession {
    let access_token::AccessToken { text, id, digest } = access_token::AccessToken::generate(random);
    let secret = access_token::parse(&text).map(|(_, secret)| secret).unwrap_or_default();
    let lifetime = wall_ms.saturating_add(LIFETIME_MS);
    let credential = Credential {
        id: format!("{PREFIX}{id}"),
        name: of.name.clone(),
        verifier: CredentialVerifier::AccessToken { digest },
        grants: Vec::new(),
        created_at_ms: wall_ms,
        created_by: format!("{ACCESS_TOKEN_PREFIX}{}", of.id),
        expires_at_ms: Some(of.expires_at_ms.map_or(lifetime, |expires| expires.min(lifetime))),
        revoked_at_ms: None,
    };
    NewDashboardSession { cookie: format!("{id}.{secret}"), credential }
}

/// Check the login limit of an access token.
pub(super) fn check_login_limit<'c>(
    all: impl Iterator<Item = &'c Credential>,
    of: &str,
    wall_ms: i64,
) -> Result<(), Problem> {
    let live = |it: &&Credential| it.expires_at_ms.is_some_and(|at| wall_ms < at);
    let count = all.filter(|it| token_of(it) == Some(of)).filter(live).count();
    if count < LOGINS_MAX {
        return Ok(());
    }
    let detail =
        format!("{count} logins with this access token in the last hours; the maximum is {LOGINS_MAX}");
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-logins", detail)
        .remedy("use an existing session, log in with another access token, or retry later")
        .retry_after(600))
}

/// Parse a cookie into id and secret.
pub(super) fn parse(cookie: &str) -> Option<(String, &str)> {
    let (id, secret) = cookie.split_once('.')?;
    // Same form as an access token, in two parts.
    access_token::parse(&format!("tenure_{id}_{secret}"))?;
    Some((format!("{PREFIX}{id}"), secret))
}

/// Id of the access token of a session.
pub(super) fn token_of(session: &Credential) -> Option<&str> {
    session.created_by.strip_prefix(ACCESS_TOKEN_PREFIX).filter(|_| is_dashboard_session(session))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: &str) -> Credential {
        Credential {
            id: id.into(),
            name: "ops".into(),
            verifier: CredentialVerifier::AccessToken { digest: "d".into() },
            grants: vec!["*:admin".parse().expect("a grant")],
            created_at_ms: 0,
            created_by: "test".into(),
            expires_at_ms: None,
            revoked_at_ms: None,
        }
    }

    #[test]
    fn a_dashboard_session_has_no_grants_and_stores_a_digest() {
        let session = create(&token("0123456789abcdef"), 1000, tenure::runtime::random);
        let (id, secret) = parse(&session.cookie).expect("a cookie");
        assert_eq!(id, session.credential.id);
        assert!(session.credential.grants.is_empty() && is_dashboard_session(&session.credential));
        assert_eq!(token_of(&session.credential), Some("0123456789abcdef"));
        assert!(
            matches!(&session.credential.verifier, CredentialVerifier::AccessToken { digest } if access_token::verify(secret, digest))
        );
        assert_eq!(session.credential.expires_at_ms, Some(1000 + LIFETIME_MS));
        assert!(access_token::parse(&session.cookie).is_none(), "not an access token");
        let soon = Credential { expires_at_ms: Some(2000), ..token("a") };
        assert_eq!(create(&soon, 1000, tenure::runtime::random).credential.expires_at_ms, Some(2000));
        for wrong in [
            "",
            ".",
            "a.b",
            &session.cookie[1..],
            &access_token::AccessToken::generate(tenure::runtime::random).text,
        ] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn logins_per_access_token_are_limited() {
        let of = token("0123456789abcdef");
        let all: Vec<_> =
            (0..LOGINS_MAX).map(|_| create(&of, 0, tenure::runtime::random).credential).collect();
        assert_eq!(check_login_limit(all.iter(), &of.id, 1).expect_err("too many").status.as_u16(), 429);
        assert!(check_login_limit(all.iter().skip(1), &of.id, 1).is_ok());
        assert!(check_login_limit(all.iter(), "another", 1).is_ok());
        assert!(check_login_limit(all.iter(), &of.id, LIFETIME_MS + 1).is_ok(), "they have expired");
    }
}

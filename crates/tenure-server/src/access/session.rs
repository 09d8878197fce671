//! Sessions of the dashboard: what a browser has in its cookie instead of an access token.
//!
//! A login makes a session: a random id and a random secret. The store keeps it among the credentials, with the digest of
//! the secret and the id of the access token that it was made with, so that every replica knows it. It has no grants of its
//! own: what it may do is what its token may do, for as long as the token is worth something. It ends with its lifetime,
//! with a log-out, and with its token.

use http::StatusCode;
use tenure::port::{Credential, Proof};

use super::token;
use crate::problem::Problem;

/// What the ids of sessions begin with. The id of a token is 16 hexadecimal digits, so none is taken for the other.
const PREFIX: &str = "dashboard.";
/// What `created_by` of a session begins with; then comes the id of its token.
const OF_TOKEN: &str = "token ";
/// How long a session lasts.
pub(super) const LIFETIME_MS: i64 = 12 * 3_600_000;
/// How many sessions one token makes within that time: each is kept in the store for as long as an audit entry.
const LOGINS_MAX: usize = 50;

/// Whether a credential is a session of the dashboard, and no access token or certificate.
pub fn is_dashboard_session(credential: &Credential) -> bool {
    credential.id.starts_with(PREFIX)
}

/// A session that was just made: the only time that its cookie is known.
pub(super) struct Made {
    /// What the browser keeps.
    pub(super) cookie: String,
    /// What the store keeps.
    pub(super) credential: Credential,
}

/// Makes a session for whoever showed this token.
pub(super) fn make(of: &Credential, wall_ms: i64, random: impl FnMut() -> u64) -> Made {
    let token::Token { text, id, digest } = token::Token::generate(random);
    let secret = token::parse(&text).map(|(_, secret)| secret).unwrap_or_default();
    let lifetime = wall_ms.saturating_add(LIFETIME_MS);
    let credential = Credential {
        id: format!("{PREFIX}{id}"),
        name: of.name.clone(),
        proof: Proof::Token { digest },
        grants: Vec::new(),
        created_at_ms: wall_ms,
        created_by: format!("{OF_TOKEN}{}", of.id),
        expires_at_ms: Some(of.expires_at_ms.map_or(lifetime, |expires| expires.min(lifetime))),
        revoked_at_ms: None,
    };
    Made { cookie: format!("{id}.{secret}"), credential }
}

/// Refuses another session to a token that has made too many.
pub(super) fn room<'c>(
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
        format!("{count} logins were made with this token in the last hours; {LOGINS_MAX} are the most");
    Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-logins", detail)
        .remedy("use a session that is there, log in with another token, or come back later")
        .retry_after(600))
}

/// The id and the secret of a cookie's text; `None` if it is none.
pub(super) fn parse(cookie: &str) -> Option<(String, &str)> {
    let (id, secret) = cookie.split_once('.')?;
    // The form of a token, in two parts.
    token::parse(&format!("tenure_{id}_{secret}"))?;
    Some((format!("{PREFIX}{id}"), secret))
}

/// The id of the token that a session was made with.
pub(super) fn token_of(session: &Credential) -> Option<&str> {
    session.created_by.strip_prefix(OF_TOKEN).filter(|_| is_dashboard_session(session))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: &str) -> Credential {
        Credential {
            id: id.into(),
            name: "ops".into(),
            proof: Proof::Token { digest: "d".into() },
            grants: vec!["*:admin".parse().expect("a grant")],
            created_at_ms: 0,
            created_by: "test".into(),
            expires_at_ms: None,
            revoked_at_ms: None,
        }
    }

    #[test]
    fn a_session_has_no_grants_and_keeps_a_digest() {
        let made = make(&token("0123456789abcdef"), 1000, tenure::runtime::random);
        let (id, secret) = parse(&made.cookie).expect("a cookie");
        assert_eq!(id, made.credential.id);
        assert!(made.credential.grants.is_empty() && is_dashboard_session(&made.credential));
        assert_eq!(token_of(&made.credential), Some("0123456789abcdef"));
        assert!(matches!(&made.credential.proof, Proof::Token { digest } if token::verify(secret, digest)));
        assert_eq!(made.credential.expires_at_ms, Some(1000 + LIFETIME_MS));
        assert!(token::parse(&made.cookie).is_none(), "it is no access token");
        let soon = Credential { expires_at_ms: Some(2000), ..token("a") };
        assert_eq!(make(&soon, 1000, tenure::runtime::random).credential.expires_at_ms, Some(2000));
        for wrong in
            ["", ".", "a.b", &made.cookie[1..], &token::Token::generate(tenure::runtime::random).text]
        {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn one_token_makes_so_many_sessions() {
        let of = token("0123456789abcdef");
        let all: Vec<_> = (0..LOGINS_MAX).map(|_| make(&of, 0, tenure::runtime::random).credential).collect();
        assert_eq!(room(all.iter(), &of.id, 1).expect_err("too many").status.as_u16(), 429);
        assert!(room(all.iter().skip(1), &of.id, 1).is_ok());
        assert!(room(all.iter(), "another", 1).is_ok());
        assert!(room(all.iter(), &of.id, LIFETIME_MS + 1).is_ok(), "they are over");
    }
}

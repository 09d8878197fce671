//! What went wrong, for people, and without the password.

use sqlx::postgres::{PgDatabaseError, PgSeverity};
use tenure_core::port::{StoreError, Trouble};

/// Says what an error of the driver means for whoever uses the database at `place`.
///
/// `place` must be without a password; the server's own messages never have it.
pub(super) fn explain(error: &sqlx::Error, place: &str) -> StoreError {
    match error {
        sqlx::Error::Database(error) => database(error.downcast_ref(), place),
        sqlx::Error::Io(error) if is_tls(error) => tls(error, place),
        sqlx::Error::Tls(error) => tls(error, place),
        sqlx::Error::Io(error) => StoreError::new(
            Trouble::Unreachable,
            format!(
                "no answer from PostgreSQL at {place}: {error}; \
                 check that the server runs and that host and port are right"
            ),
        ),
        sqlx::Error::PoolTimedOut => timed_out(place),
        sqlx::Error::Configuration(error) => StoreError::new(
            Trouble::Address,
            format!(
                "this is not an address of a PostgreSQL server: {error}; \
                 give postgres://USER:PASSWORD@HOST:PORT/DATABASE, with special characters as %XX"
            ),
        ),
        sqlx::Error::Protocol(message) if message.contains("NotificationResponse") => StoreError::new(
            Trouble::Unavailable,
            format!(
                "a notification for somebody else arrived from PostgreSQL at {place}: a client uses LISTEN through a \
                 pooler in transaction mode, which can not work; let it connect directly"
            ),
        ),
        other => StoreError::new(Trouble::Other, format!("PostgreSQL at {place}: {other}")),
    }
}

/// The error for a server that does not answer in time.
pub(super) fn timed_out(place: &str) -> StoreError {
    StoreError::new(
        Trouble::Timeout,
        format!("PostgreSQL at {place} did not answer in time; check the network between here and there"),
    )
}

/// The error for what the server answered and this program does not understand.
pub(super) fn garbled(what: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::new(
        Trouble::Other,
        format!("PostgreSQL answered {what} in a form that is not understood: {error}"),
    )
}

/// The SQLSTATE of an error, if the server sent one.
pub(super) fn sqlstate(error: &sqlx::Error) -> Option<&str> {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        .map(PgDatabaseError::code)
}

/// Whether the connection is of no use after this error.
pub(super) fn is_fatal(error: &sqlx::Error) -> bool {
    match error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) {
        Some(error) => matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic),
        None => true,
    }
}

fn is_tls(error: &std::io::Error) -> bool {
    // A handshake that fails arrives as invalid data with the reason inside.
    error.kind() == std::io::ErrorKind::InvalidData
}

fn tls(error: &dyn std::fmt::Display, place: &str) -> StoreError {
    StoreError::new(
        Trouble::Unfit,
        format!(
            "no safe connection to PostgreSQL at {place}: {error}; \
             check sslmode, sslrootcert and that the certificate names this host"
        ),
    )
}

fn database(error: &PgDatabaseError, place: &str) -> StoreError {
    let (message, code) = (error.message(), error.code());
    if code.starts_with("TN01") {
        // Our own words about what was asked; they say it all.
        let hint = error.hint().unwrap_or_default();
        return StoreError::new(Trouble::Request, format!("{message}; {}", uncapitalized(hint)));
    }
    let (kind, advice) = meaning(code);
    StoreError::new(kind, format!("PostgreSQL at {place}: {message} ({code}); {advice}"))
}

/// A sentence, as the end of another.
fn uncapitalized(sentence: &str) -> String {
    let mut letters = sentence.trim_end_matches('.').chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// What a SQLSTATE means for us, and what to do about it.
fn meaning(code: &str) -> (Trouble, &'static str) {
    match code {
        "28P01" | "28000" => (Trouble::Denied, "check the user, the password and the server's pg_hba.conf"),
        "42501" => (
            Trouble::Denied,
            "this role may not; `tenure migrate sql --roles` prints the roles that may: tenure_owner for \
             `tenure migrate`, tenure_server for servers and access tokens, tenure_runtime for all else",
        ),
        "3D000" => (Trouble::Address, "create the database or name another"),
        "53300" => (
            Trouble::Unavailable,
            "all connections are in use; raise max_connections or put PgBouncer in between",
        ),
        "53100" => (Trouble::Unavailable, "the server's disk is full; make room on it"),
        "25006" => {
            (Trouble::Unfit, "this server only reads, as a standby does; give the address of the primary")
        }
        "57P01" | "57P02" | "57P03" | "57P05" => (Trouble::Unavailable, "it starts or stops; this may pass"),
        "55P03" => {
            (Trouble::Timeout, "another transaction holds the row, perhaps a guarded one; this may pass")
        }
        "57014" => (Trouble::Timeout, "it was cancelled or ran into statement_timeout; this may pass"),
        "40001" | "40P01" => (Trouble::Unavailable, "it met another transaction; this may pass"),
        "42P01" | "3F000" | "42883" => (Trouble::SchemaMissing, "create the tables with `tenure migrate up`"),
        "42703" => (Trouble::SchemaVersion, "bring the tables up to date with `tenure migrate up`"),
        "TN003" => {
            (Trouble::Unavailable, "set synchronous_standby_names on the server, or do without strict mode")
        }
        _ => match code.get(..2) {
            Some("08") => {
                (Trouble::Unreachable, "check the server, and the pooler if there is one in between")
            }
            Some("53" | "58") => {
                (Trouble::Unavailable, "the server lacks something that it needs; see its log")
            }
            Some("22" | "54") => (Trouble::Request, "what was asked does not fit into the tables"),
            _ => (Trouble::Other, "see the server's log"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_told_from_what_will_not() {
        let kind = |code| meaning(code).0;
        assert_eq!(kind("28P01"), Trouble::Denied);
        assert_eq!(kind("3D000"), Trouble::Address);
        assert_eq!(kind("53300"), Trouble::Unavailable);
        assert_eq!(kind("53100"), Trouble::Unavailable);
        assert_eq!(kind("25006"), Trouble::Unfit);
        assert_eq!(kind("57P01"), Trouble::Unavailable);
        assert_eq!(kind("55P03"), Trouble::Timeout);
        assert_eq!(kind("42P01"), Trouble::SchemaMissing);
        assert_eq!(kind("08006"), Trouble::Unreachable);
        assert_eq!(kind("22P05"), Trouble::Request);
        assert_eq!(kind("54001"), Trouble::Request);
        assert_eq!(kind("XX000"), Trouble::Other);
    }
}

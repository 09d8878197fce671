//! Errors of the server and the connection, without the password.

use std::fmt;
use std::io;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use tenure_core::port::{ErrorKind, StoreError};

/// An error on a connection of the library or of the user.
#[derive(Debug)]
pub(super) enum PgError {
    /// An error that the server sent.
    Server(Box<ServerError>),
    /// The connection could not be opened, or broke.
    Io(io::Error),
    /// TLS failed.
    Tls(String),
    /// No server matches `target_session_attrs`.
    NoMatchingServer(&'static str),
    /// A timeout expired.
    TimedOut,
    /// The server sent an unexpected message.
    Protocol(String),
    /// Another error of the driver of the user's connection.
    Other(String),
}

/// An error that the server sent.
#[derive(Debug, Default)]
pub(super) struct ServerError {
    /// Whether the server closes the connection.
    fatal: bool,
    code: String,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl PgError {
    /// The error in a message of the server.
    pub(super) fn server(body: &ErrorResponseBody) -> PgError {
        let mut error = ServerError::default();
        let mut fields = body.fields();
        while let Ok(Some(field)) = fields.next() {
            let value = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                // The severity, which is never translated.
                b'V' => error.fatal = matches!(value.as_str(), "FATAL" | "PANIC"),
                b'C' => error.code = value,
                b'M' => error.message = value,
                b'D' => error.detail = Some(value),
                b'H' => error.hint = Some(value),
                _ => {}
            }
        }
        PgError::Server(Box::new(error))
    }

    /// A failed authentication that is known before the server reports it.
    pub(super) fn authentication_failed(message: &str) -> PgError {
        let error =
            ServerError { fatal: true, code: "28P01".into(), message: message.into(), ..Default::default() };
        PgError::Server(Box::new(error))
    }

    /// The SQLSTATE, if the server sent one.
    pub(super) fn sqlstate(&self) -> Option<&str> {
        match self {
            PgError::Server(error) => Some(&error.code),
            _ => None,
        }
    }

    /// The DETAIL of the server.
    pub(super) fn detail(&self) -> Option<&str> {
        match self {
            PgError::Server(error) => error.detail.as_deref(),
            _ => None,
        }
    }

    /// Whether the connection is unusable after this error.
    pub(super) fn is_fatal(&self) -> bool {
        match self {
            PgError::Server(error) => error.fatal,
            _ => true,
        }
    }

    /// Whether the server rejects this user. Other servers of the same address would do the same.
    pub(super) fn is_authentication_failure(&self) -> bool {
        self.sqlstate().is_some_and(|code| code.starts_with("28"))
    }

    /// Whether the server announced the end of the connection: an administrator ended it, the server stops, or the
    /// connection was idle for too long.
    pub(super) fn is_termination(&self) -> bool {
        self.is_fatal() && matches!(self.sqlstate(), Some("57P01" | "57P02" | "57P05" | "25P03"))
    }

    /// Whether a prepared statement of this connection is invalid: another client deallocated it, or the tables changed. The
    /// transaction has failed, so the call can be repeated on a new connection.
    pub(super) fn is_stale_statement(&self) -> bool {
        match self {
            PgError::Server(error) => match error.code.as_str() {
                "26000" | "42P05" => true,
                "0A000" => error.message.contains("cached plan"),
                _ => false,
            },
            _ => false,
        }
    }
}

impl fmt::Display for PgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PgError::Server(error) => write!(f, "{} ({})", error.message, error.code),
            PgError::Io(error) => error.fmt(f),
            PgError::Tls(why) | PgError::Protocol(why) | PgError::Other(why) => f.write_str(why),
            PgError::NoMatchingServer(kind) => write!(f, "no server matches target_session_attrs={kind}"),
            PgError::TimedOut => f.write_str("timed out"),
        }
    }
}

impl From<io::Error> for PgError {
    fn from(error: io::Error) -> Self {
        PgError::Io(error)
    }
}

impl From<sqlx::Error> for PgError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => {
                let error: &PgDatabaseError = error.downcast_ref();
                PgError::Server(Box::new(ServerError {
                    fatal: matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic),
                    code: error.code().into(),
                    message: error.message().into(),
                    detail: error.detail().map(str::to_owned),
                    hint: error.hint().map(str::to_owned),
                }))
            }
            sqlx::Error::Io(error) => PgError::Io(error),
            sqlx::Error::Tls(error) => PgError::Tls(error.to_string()),
            sqlx::Error::PoolTimedOut => PgError::TimedOut,
            sqlx::Error::Protocol(message) => PgError::Protocol(message),
            other => PgError::Other(other.to_string()),
        }
    }
}

/// Convert an error into a [`StoreError`] with its cause and a remedy.
///
/// `address` must not contain the password; messages of the server never do.
pub(super) fn explain(error: &PgError, address: &str) -> StoreError {
    match error {
        PgError::Server(error) => database(error, address),
        PgError::Tls(error) => tls(error, address),
        PgError::Io(error) => StoreError::new(
            ErrorKind::Unreachable,
            format!(
                "cannot reach PostgreSQL at {address}: {error}; \
                 check that the server runs and that host and port are correct"
            ),
        ),
        PgError::TimedOut => timed_out(address),
        PgError::NoMatchingServer(kind) => StoreError::new(
            ErrorKind::Unavailable,
            format!(
                "no server of PostgreSQL at {address} matches target_session_attrs={kind}; \
                 check the hosts in the address"
            ),
        ),
        PgError::Protocol(message) if message.contains("NotificationResponse") => StoreError::new(
            ErrorKind::Unavailable,
            format!(
                "PostgreSQL at {address} sent a notification for another client: that client uses LISTEN through a \
                 pooler in transaction mode, which cannot work; let it connect directly"
            ),
        ),
        PgError::Protocol(why) | PgError::Other(why) => {
            StoreError::new(ErrorKind::Other, format!("PostgreSQL at {address}: {why}"))
        }
    }
}

/// The error for a server that does not respond in time.
pub(super) fn timed_out(address: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Timeout,
        format!("PostgreSQL at {address} did not respond in time; check the network to the server"),
    )
}

/// The error for a response that this program cannot decode.
pub(super) fn unexpected_response(value: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Other, format!("cannot decode {value} in the response of PostgreSQL: {error}"))
}

fn tls(error: &str, address: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Misconfigured,
        format!(
            "TLS connection to PostgreSQL at {address} failed: {error}; \
             check sslmode, sslrootcert and that the certificate contains this host name"
        ),
    )
}

fn database(error: &ServerError, address: &str) -> StoreError {
    let (message, code) = (error.message.as_str(), error.code.as_str());
    if code.starts_with("TN01") {
        // The functions of the schema raise complete messages with a hint, so no address or advice is added.
        let hint = error.hint.as_deref().unwrap_or_default();
        return StoreError::new(ErrorKind::Request, format!("{message}; {}", uncapitalized(hint)));
    }
    let (kind, advice) = classify(code);
    StoreError::new(kind, format!("PostgreSQL at {address}: {message} ({code}); {advice}"))
}

/// Convert a sentence into a clause: lower-case the first letter and remove the final period.
fn uncapitalized(sentence: &str) -> String {
    let mut letters = sentence.trim_end_matches('.').chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// The kind of error of a SQLSTATE, and a remedy.
fn classify(code: &str) -> (ErrorKind, &'static str) {
    match code {
        "28P01" | "28000" => (ErrorKind::Denied, "check the user, the password and the server's pg_hba.conf"),
        "42501" => (
            ErrorKind::Denied,
            "this role lacks the right; `tenure migrate sql --roles` prints the roles: tenure_owner for \
             `tenure migrate`, tenure_server for servers and access tokens, tenure_runtime for everything else",
        ),
        "3D000" => (ErrorKind::Address, "create the database or use another one"),
        "53300" => {
            (ErrorKind::Unavailable, "all connections are in use; raise max_connections or use PgBouncer")
        }
        "53100" => (ErrorKind::Unavailable, "the disk of the server is full; free space on it"),
        "25006" => (
            ErrorKind::Misconfigured,
            "this server is read-only, like a standby; use the address of the primary",
        ),
        "57P01" | "57P02" | "57P03" | "57P05" => {
            (ErrorKind::Unavailable, "the server is starting or stopping; retry")
        }
        "55P03" => (ErrorKind::Timeout, "another transaction holds the lock, possibly a guarded one; retry"),
        "57014" => (ErrorKind::Timeout, "the statement was cancelled or exceeded statement_timeout; retry"),
        "40001" | "40P01" => (ErrorKind::Unavailable, "the transaction conflicts with another one; retry"),
        "42P01" | "3F000" | "42883" => {
            (ErrorKind::SchemaMissing, "create the tables with `tenure migrate up`")
        }
        "42703" => (ErrorKind::SchemaVersion, "update the tables with `tenure migrate up`"),
        "TN003" => (
            ErrorKind::Unavailable,
            "set synchronous_standby_names on the server, or do not require synchronous replication",
        ),
        _ => match code.get(..2) {
            Some("08") => (ErrorKind::Unreachable, "check the server and the pooler"),
            Some("53" | "58") => (ErrorKind::Unavailable, "the server lacks resources; see its log"),
            Some("22" | "54") => (ErrorKind::Request, "a value does not fit into the tables"),
            _ => (ErrorKind::Other, "see the server's log"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_map_to_error_kinds() {
        let kind = |code| classify(code).0;
        assert_eq!(kind("28P01"), ErrorKind::Denied);
        assert_eq!(kind("3D000"), ErrorKind::Address);
        assert_eq!(kind("53300"), ErrorKind::Unavailable);
        assert_eq!(kind("53100"), ErrorKind::Unavailable);
        assert_eq!(kind("25006"), ErrorKind::Misconfigured);
        assert_eq!(kind("57P01"), ErrorKind::Unavailable);
        assert_eq!(kind("55P03"), ErrorKind::Timeout);
        assert_eq!(kind("42P01"), ErrorKind::SchemaMissing);
        assert_eq!(kind("08006"), ErrorKind::Unreachable);
        assert_eq!(kind("22P05"), ErrorKind::Request);
        assert_eq!(kind("54001"), ErrorKind::Request);
        assert_eq!(kind("XX000"), ErrorKind::Other);
    }
}

//! What went wrong, for people, and without the password.

use std::fmt;
use std::io;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorResponseBody;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use tenure_core::port::{StoreError, Trouble};

/// What went wrong on a connection, ours or the user's.
#[derive(Debug)]
pub(super) enum PgError {
    /// The server said so.
    Server(Box<ServerError>),
    /// The connection could not be made, or broke.
    Io(io::Error),
    /// No safe connection could be made.
    Tls(String),
    /// The server is not of the kind that `target_session_attrs` asks for.
    OtherKind(&'static str),
    /// It took too long.
    TimedOut,
    /// The answer is not one to what was sent.
    Protocol(String),
    /// Something else in the driver of the user's connection.
    Other(String),
}

/// An error that the server sent.
#[derive(Debug, Default)]
pub(super) struct ServerError {
    /// The connection is over.
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
                // The word that is never translated, in servers from 9.6 on.
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

    /// A refusal to let us in that we know of before the server says so.
    pub(super) fn refused(message: &str) -> PgError {
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

    /// What the server says in more words.
    pub(super) fn detail(&self) -> Option<&str> {
        match self {
            PgError::Server(error) => error.detail.as_deref(),
            _ => None,
        }
    }

    /// Whether the connection is of no use after this error.
    pub(super) fn is_fatal(&self) -> bool {
        match self {
            PgError::Server(error) => error.fatal,
            _ => true,
        }
    }

    /// Whether the server does not let this user in; another server of the same address will not either.
    pub(super) fn is_refusal(&self) -> bool {
        self.sqlstate().is_some_and(|code| code.starts_with("28"))
    }

    /// Whether the server announced the end of the connection: an administrator ended it, the server stops, or the
    /// connection was idle for too long.
    pub(super) fn is_termination(&self) -> bool {
        self.is_fatal() && matches!(self.sqlstate(), Some("57P01" | "57P02" | "57P05" | "25P03"))
    }

    /// Whether a prepared statement of this connection is not what it should be: another client deallocated it, or the
    /// tables have changed. The transaction has failed, so the call can be made again on a new connection.
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
            PgError::OtherKind(kind) => write!(f, "no server of kind {kind}"),
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

/// Says what an error means for whoever uses the database at `place`.
///
/// `place` must be without a password; the server's own messages never have it.
pub(super) fn explain(error: &PgError, place: &str) -> StoreError {
    match error {
        PgError::Server(error) => database(error, place),
        PgError::Tls(error) => tls(error, place),
        PgError::Io(error) => StoreError::new(
            Trouble::Unreachable,
            format!(
                "no answer from PostgreSQL at {place}: {error}; \
                 check that the server runs and that host and port are right"
            ),
        ),
        PgError::TimedOut => timed_out(place),
        PgError::OtherKind(kind) => StoreError::new(
            Trouble::Unavailable,
            format!(
                "no server of PostgreSQL at {place} is of the kind that target_session_attrs={kind} asks for; \
                 check the hosts of the address"
            ),
        ),
        PgError::Protocol(message) if message.contains("NotificationResponse") => StoreError::new(
            Trouble::Unavailable,
            format!(
                "a notification for somebody else arrived from PostgreSQL at {place}: a client uses LISTEN through a \
                 pooler in transaction mode, which can not work; let it connect directly"
            ),
        ),
        PgError::Protocol(why) | PgError::Other(why) => {
            StoreError::new(Trouble::Other, format!("PostgreSQL at {place}: {why}"))
        }
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

fn tls(error: &str, place: &str) -> StoreError {
    StoreError::new(
        Trouble::Unfit,
        format!(
            "no safe connection to PostgreSQL at {place}: {error}; \
             check sslmode, sslrootcert and that the certificate names this host"
        ),
    )
}

fn database(error: &ServerError, place: &str) -> StoreError {
    let (message, code) = (error.message.as_str(), error.code.as_str());
    if code.starts_with("TN01") {
        // Our own words about what was asked; they say it all.
        let hint = error.hint.as_deref().unwrap_or_default();
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

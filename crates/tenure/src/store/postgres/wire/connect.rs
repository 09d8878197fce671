//! Opening a connection: hosts in turn, TLS, authentication, and `target_session_attrs`.

use std::time::Duration;

use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::super::error::PgError;
use super::super::options::{Config, Host, SessionAttrs, SslMode};
use super::connection::Connection;
use super::stream::Stream;
use super::tls;
use crate::runtime::random;

/// Connect to the first host that answers and matches `target_session_attrs`. Returns the connection and the index of
/// that host in the configuration. `within` limits the attempt at each host.
///
/// A failed authentication ends the attempt, as in libpq; other hosts are tried only if a server cannot be reached.
pub(in super::super) async fn connect(
    config: &Config,
    within: Duration,
) -> Result<(Connection, usize), PgError> {
    let mut order: Vec<usize> = (0..config.hosts.len()).collect();
    if config.random_order {
        let by = random() as usize % order.len().max(1);
        order.rotate_left(by);
    }
    let rounds: &[SessionAttrs] = match config.session {
        SessionAttrs::PreferStandby => &[SessionAttrs::Standby, SessionAttrs::Any],
        ref wanted => std::slice::from_ref(wanted),
    };
    let mut last = PgError::TimedOut;
    for wanted in rounds {
        for &index in &order {
            match tokio::time::timeout(within, open(config, &config.hosts[index], *wanted)).await {
                Ok(Ok(connection)) => return Ok((connection, index)),
                Ok(Err(error)) if error.is_authentication_failure() => return Err(error),
                Ok(Err(error)) => last = error,
                Err(_) => last = PgError::TimedOut,
            }
        }
    }
    Err(last)
}

async fn open(config: &Config, host: &Host, wanted: SessionAttrs) -> Result<Connection, PgError> {
    let stream = socket(config, host).await?;
    let mut connection = Connection::new(stream);
    start(&mut connection, config, host).await?;
    check(&mut connection, wanted).await?;
    Ok(connection)
}

async fn socket(config: &Config, host: &Host) -> Result<Stream, PgError> {
    if let Some(path) = host.socket() {
        return Ok(Stream::Unix(UnixStream::connect(path).await?));
    }
    let address = host.address.as_deref().unwrap_or(&host.name);
    let mut stream = TcpStream::connect((address, host.port)).await?;
    stream.set_nodelay(true)?;
    if matches!(config.tls.mode, SslMode::Disable | SslMode::Allow) {
        return Ok(Stream::Tcp(stream));
    }
    let mut request = bytes::BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await?;
    // Exactly one byte: the rest belongs to the handshake.
    let mut answer = [0];
    stream.read_exact(&mut answer).await?;
    match (answer[0], config.tls.mode) {
        (b'S', _) => {
            let name = if host.name.is_empty() { address } else { &host.name };
            Ok(Stream::Tls(Box::new(tls::handshake(stream, name, &config.tls).await?)))
        }
        (b'N', SslMode::Prefer) => Ok(Stream::Tcp(stream)),
        (b'N', _) => Err(PgError::Tls("the server does not support TLS".into())),
        _ => Err(PgError::Protocol("unexpected response to the request for TLS".into())),
    }
}

async fn start(connection: &mut Connection, config: &Config, host: &Host) -> Result<(), PgError> {
    let mut parameters = vec![
        ("user", config.user.as_str()),
        ("database", config.database.as_str()),
        ("application_name", config.application_name.as_str()),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"),
    ];
    if let Some(options) = &config.options {
        parameters.push(("options", options.as_str()));
    }
    connection.send(|buffer| frontend::startup_message(parameters, buffer)).await?;
    authenticate(connection, config, host).await?;
    loop {
        match connection.receive().await? {
            Message::BackendKeyData(key) => connection.set_process(key.process_id()),
            Message::ReadyForQuery(_) => return Ok(()),
            Message::ErrorResponse(error) => return Err(PgError::server(&error)),
            _ => return Err(unexpected("the start of a connection")),
        }
    }
}

async fn authenticate(connection: &mut Connection, config: &Config, host: &Host) -> Result<(), PgError> {
    let password = || {
        config.password(host).ok_or_else(|| {
            PgError::authentication_failed(
                "the server requires a password, but neither the address nor a passfile has one",
            )
        })
    };
    loop {
        match connection.receive().await? {
            Message::AuthenticationOk => return Ok(()),
            Message::AuthenticationCleartextPassword => {
                let password = password()?;
                connection.send(|buffer| frontend::password_message(password.as_bytes(), buffer)).await?;
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(config.user.as_bytes(), password()?.as_bytes(), body.salt());
                connection.send(|buffer| frontend::password_message(hash.as_bytes(), buffer)).await?;
            }
            Message::AuthenticationSasl(body) => {
                if !body.mechanisms().any(|mechanism| Ok(mechanism == SCRAM_SHA_256))? {
                    return Err(PgError::Protocol("the server does not offer SCRAM-SHA-256".into()));
                }
                scram(connection, password()?).await?;
            }
            Message::ErrorResponse(error) => return Err(PgError::server(&error)),
            _ => {
                return Err(PgError::Protocol(
                    "the server requires an unsupported authentication method".into(),
                ));
            }
        }
    }
}

async fn scram(connection: &mut Connection, password: String) -> Result<(), PgError> {
    let mut scram = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
    connection.send(|buffer| frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), buffer)).await?;
    match connection.receive().await? {
        Message::AuthenticationSaslContinue(body) => scram.update(body.data())?,
        Message::ErrorResponse(error) => return Err(PgError::server(&error)),
        _ => return Err(unexpected("SCRAM")),
    }
    connection.send(|buffer| frontend::sasl_response(scram.message(), buffer)).await?;
    match connection.receive().await? {
        Message::AuthenticationSaslFinal(body) => scram.finish(body.data()).map_err(PgError::from),
        Message::ErrorResponse(error) => Err(PgError::server(&error)),
        _ => Err(unexpected("SCRAM")),
    }
}

/// Reject a server that does not match `target_session_attrs`.
async fn check(connection: &mut Connection, wanted: SessionAttrs) -> Result<(), PgError> {
    if wanted == SessionAttrs::Any {
        return Ok(());
    }
    let sql = "SELECT pg_catalog.pg_is_in_recovery(), \
               pg_catalog.current_setting('transaction_read_only') = 'on'";
    let answers = connection.simple(sql).await?;
    let row =
        answers.first().and_then(|rows| rows.first()).ok_or_else(|| unexpected("the check of the server"))?;
    let read = |index: usize| row.try_get::<bool>(index).map_err(|_| unexpected("the check of the server"));
    let (standby, read_only) = (read(0)?, read(1)?);
    let (fits, word) = match wanted {
        SessionAttrs::Any | SessionAttrs::PreferStandby => (true, ""),
        SessionAttrs::ReadWrite => (!read_only, "read-write"),
        SessionAttrs::ReadOnly => (read_only, "read-only"),
        SessionAttrs::Primary => (!standby, "primary"),
        SessionAttrs::Standby => (standby, "standby"),
    };
    if fits { Ok(()) } else { Err(PgError::NoMatchingServer(word)) }
}

fn unexpected(what: &str) -> PgError {
    PgError::Protocol(format!("unexpected message during {what}"))
}

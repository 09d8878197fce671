//! One connection and its messages.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, Message, RowDescriptionBody};
use postgres_protocol::message::frontend::{self, BindError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::error::PgError;
use super::super::value::without_comments;
use super::row::{Columns, PgRow};
use super::stream::Stream;

/// Larger messages are written while the response is read: the server may wait until its response is read before it reads
/// more.
const WRITE_ALONE_MAX: usize = 32 << 10;

/// A statement with its values.
#[derive(Clone)]
pub(in super::super) struct Statement<'q> {
    /// Name of the prepared statement. Different texts must have different names.
    pub(in super::super) id: String,
    pub(in super::super) sql: Cow<'q, str>,
    /// In text form, and of the types that the server infers from the statement.
    pub(in super::super) values: Vec<Option<String>>,
    /// Whether the caller needs its rows.
    pub(in super::super) answers: bool,
}

/// A connection to a server, or to a pooler.
pub(in super::super) struct Connection {
    stream: Stream,
    input: BytesMut,
    output: BytesMut,
    /// The process that the server announced at the start of the connection.
    process: i32,
    /// Whether that process executes the statements. It does not behind a pooler. `None`: not known yet.
    direct: Option<bool>,
    /// The prepared statements of this connection, with their columns once those are known.
    prepared: HashMap<String, Option<Columns>>,
    notifications: VecDeque<String>,
    /// `sent`: whether a byte of the last call was sent. `answered`: whether a message of its response arrived.
    sent: bool,
    answered: bool,
}

/// The expected response to one statement of a call.
struct Expected {
    /// Name to store after parsing; `None` for an unnamed statement.
    parse: Option<String>,
    describe: bool,
    columns: Option<Columns>,
    answers: bool,
}

impl Connection {
    pub(super) fn new(stream: Stream) -> Connection {
        let (input, output, prepared, notifications) = Default::default();
        Connection {
            stream,
            input,
            output,
            process: 0,
            direct: None,
            prepared,
            notifications,
            sent: false,
            answered: false,
        }
    }

    pub(super) fn set_process(&mut self, process: i32) {
        self.process = process;
    }

    /// Whether the connection can be used: the peer has neither closed it nor announced its end.
    pub(in super::super) fn is_usable(&self) -> bool {
        self.input.is_empty() && self.stream.is_quiet()
    }

    /// Whether the server has certainly executed nothing of the last call, which failed with `error`.
    ///
    /// Either nothing was sent, or the server ended the connection before any response: responses come in the order of the
    /// statements, so that of the first statement would have come before the announcement of the end.
    pub(in super::super) fn nothing_ran(&self, error: &PgError) -> bool {
        !self.sent || (!self.answered && error.is_termination())
    }

    /// Run statements in one flush and return the rows of those that are not discarded. The statements are one
    /// transaction: an implicit one, or the one that they begin and end.
    ///
    /// `process`: the first statement that returns a row has the server's process id in its first column.
    ///
    /// After a non-fatal error the connection can be used again. If this future is dropped before it completes, the
    /// connection must be dropped too.
    pub(in super::super) async fn call(
        &mut self,
        statements: &[Statement<'_>],
        process: bool,
    ) -> Result<Vec<Vec<PgRow>>, PgError> {
        // This connection does not listen; a client that listens through the same pooler may cause notifications.
        self.notifications.clear();
        let expected = self.encode(statements)?;
        self.transmit().await?;
        let mut expected = expected.into_iter();
        let (mut current, mut rows, mut all, mut failed) = (expected.next(), Vec::new(), Vec::new(), None);
        let mut first = process && self.direct.is_none();
        let state = loop {
            let message = self.receive().await?;
            self.answered |= !matches!(message, Message::ErrorResponse(_));
            match message {
                Message::ParseComplete => {
                    if let Some(name) = current.as_ref().and_then(|it| it.parse.clone()) {
                        self.prepared.insert(name, None);
                    }
                }
                Message::BindComplete | Message::NoData | Message::EmptyQueryResponse => {}
                Message::RowDescription(body) => {
                    let Some(it) = &mut current else { return Err(unexpected()) };
                    it.columns = Some(columns(&body)?);
                }
                Message::DataRow(body) => {
                    let known = current.as_ref().and_then(|it| it.columns.clone());
                    rows.push(row(known.ok_or_else(unexpected)?, &body)?);
                }
                Message::CommandComplete(_) => {
                    let Some(it) = current.take() else { return Err(unexpected()) };
                    if let (Some(known), true) = (&it.parse, it.describe) {
                        // A statement without rows has no columns.
                        let columns = it.columns.unwrap_or_else(|| Columns::from([]));
                        self.prepared.insert(known.clone(), Some(columns));
                    }
                    let rows = std::mem::take(&mut rows);
                    if let (true, Some(row)) = (first, rows.first()) {
                        let row: &PgRow = row;
                        (first, self.direct) =
                            (false, row.try_get::<i32>(0).ok().map(|it| it == self.process));
                    }
                    if it.answers {
                        all.push(rows);
                    }
                    current = expected.next();
                }
                Message::ErrorResponse(body) => {
                    let error = PgError::server(&body);
                    if error.is_fatal() {
                        return Err(error);
                    }
                    failed.get_or_insert(error);
                }
                Message::ReadyForQuery(body) => break body.status(),
                _ => return Err(unexpected()),
            }
        };
        if state != b'I' {
            // A statement of the explicit transaction failed, so the COMMIT was skipped.
            self.simple("ROLLBACK").await?;
        }
        failed.map_or(Ok(all), Err)
    }

    /// Write the messages of a call into the buffer.
    fn encode(&mut self, statements: &[Statement<'_>]) -> Result<Vec<Expected>, PgError> {
        self.output.clear();
        let named = self.direct == Some(true);
        let mut expected: Vec<Expected> = Vec::with_capacity(statements.len());
        for statement in statements {
            let name = if named { statement.id.as_str() } else { "" };
            let known = self.prepared.get(name).filter(|_| named);
            // A statement may occur twice in one call.
            let earlier = named && expected.iter().any(|it| it.parse.as_deref() == Some(name));
            if known.is_none() && !earlier {
                let text = without_comments(&statement.sql);
                frontend::parse(name, &text, std::iter::empty(), &mut self.output)?;
            }
            let columns = known.cloned().flatten();
            let bound = frontend::bind(
                "",
                name,
                std::iter::empty(),
                &statement.values,
                |value, buffer| match value {
                    Some(text) => {
                        buffer.extend_from_slice(text.as_bytes());
                        Ok(IsNull::No)
                    }
                    None => Ok(IsNull::Yes),
                },
                std::iter::empty(),
                &mut self.output,
            );
            bound.map_err(|error| match error {
                BindError::Conversion(error) => PgError::Protocol(error.to_string()),
                BindError::Serialization(error) => PgError::Io(error),
            })?;
            let describe = columns.is_none();
            if describe {
                frontend::describe(b'P', "", &mut self.output)?;
            }
            frontend::execute("", 0, &mut self.output)?;
            let parse = named.then(|| name.to_owned());
            expected.push(Expected { parse, describe, columns, answers: statement.answers });
        }
        frontend::sync(&mut self.output);
        Ok(expected)
    }

    /// Send SQL without values by the simple protocol, and return the rows of each of its statements.
    pub(in super::super) async fn simple(&mut self, sql: &str) -> Result<Vec<Vec<PgRow>>, PgError> {
        self.send(|buffer| frontend::query(sql, buffer)).await?;
        let (mut known, mut rows, mut all, mut failed) = (None, Vec::new(), Vec::new(), None);
        loop {
            let message = self.receive().await?;
            self.answered |= !matches!(message, Message::ErrorResponse(_));
            match message {
                Message::RowDescription(body) => known = Some(columns(&body)?),
                Message::DataRow(body) => rows.push(row(known.clone().ok_or_else(unexpected)?, &body)?),
                Message::CommandComplete(_) => all.push(std::mem::take(&mut rows)),
                Message::EmptyQueryResponse => {}
                Message::ErrorResponse(body) => {
                    let error = PgError::server(&body);
                    if error.is_fatal() {
                        return Err(error);
                    }
                    failed.get_or_insert(error);
                }
                Message::ReadyForQuery(_) => return failed.map_or(Ok(all), Err),
                _ => return Err(unexpected()),
            }
        }
    }

    /// Whether the announced server process executes the statements: there is no pooler.
    pub(in super::super) async fn is_direct(&mut self) -> Result<bool, PgError> {
        let process = self.server_process().await?;
        Ok(process == self.process)
    }

    /// The server process that executes the statements of this connection.
    pub(in super::super) async fn server_process(&mut self) -> Result<i32, PgError> {
        let answers = self.simple("SELECT pg_catalog.pg_backend_pid()").await?;
        let row = answers.first().and_then(|rows| rows.first()).ok_or_else(unexpected)?;
        row.try_get(0).map_err(|_| unexpected())
    }

    /// Wait for a notification and return its payload. May be dropped and called again.
    pub(in super::super) async fn notification(&mut self) -> Result<String, PgError> {
        loop {
            if let Some(payload) = self.notifications.pop_front() {
                return Ok(payload);
            }
            if let Some(Message::ErrorResponse(body)) = self.receive_or_notified().await? {
                return Err(PgError::server(&body));
            }
        }
    }

    /// Send one message.
    pub(super) async fn send(
        &mut self,
        write: impl FnOnce(&mut BytesMut) -> io::Result<()>,
    ) -> Result<(), PgError> {
        self.output.clear();
        write(&mut self.output)?;
        self.transmit().await
    }

    /// Send the buffer.
    async fn transmit(&mut self) -> Result<(), PgError> {
        (self.sent, self.answered) = (false, false);
        let mut output = self.output.split();
        if output.len() <= WRITE_ALONE_MAX {
            while !output.is_empty() {
                let written = self.stream.write_buf(&mut output).await?;
                if written == 0 {
                    return Err(PgError::Io(io::ErrorKind::WriteZero.into()));
                }
                self.sent = true;
            }
        } else {
            let (mut reader, mut writer) = tokio::io::split(&mut self.stream);
            while !output.is_empty() {
                tokio::select! {
                    written = writer.write_buf(&mut output) => {
                        if written? == 0 {
                            return Err(PgError::Io(io::ErrorKind::WriteZero.into()));
                        }
                        self.sent = true;
                    }
                    read = reader.read_buf(&mut self.input) => {
                        if read? == 0 {
                            return Err(closed());
                        }
                    }
                }
            }
        }
        Ok(self.stream.flush().await?)
    }

    /// The next message that belongs to a call.
    pub(super) async fn receive(&mut self) -> Result<Message, PgError> {
        loop {
            if let Some(message) = self.receive_or_notified().await? {
                return Ok(message);
            }
        }
    }

    /// The next message; `None` for a message that a server may send at any time.
    async fn receive_or_notified(&mut self) -> Result<Option<Message>, PgError> {
        loop {
            match Message::parse(&mut self.input)? {
                Some(Message::NotificationResponse(body)) => {
                    self.notifications.push_back(body.message()?.to_owned());
                    return Ok(None);
                }
                Some(Message::NoticeResponse(_) | Message::ParameterStatus(_)) => return Ok(None),
                Some(message) => return Ok(Some(message)),
                None => {}
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(closed());
            }
        }
    }
}

fn columns(body: &RowDescriptionBody) -> Result<Columns, PgError> {
    let names: Vec<Box<str>> = body.fields().map(|field| Ok(field.name().into())).collect()?;
    Ok(names.into())
}

fn row(columns: Columns, body: &DataRowBody) -> Result<PgRow, PgError> {
    let values: Vec<_> = body.ranges().collect()?;
    if values.len() != columns.len() {
        return Err(unexpected());
    }
    Ok(PgRow::new(columns, body.buffer_bytes().clone(), values))
}

fn unexpected() -> PgError {
    PgError::Protocol("unexpected message".into())
}

/// The error of a connection that ended without a message.
fn closed() -> PgError {
    PgError::Io(io::Error::new(io::ErrorKind::ConnectionAborted, "the server closed the connection"))
}

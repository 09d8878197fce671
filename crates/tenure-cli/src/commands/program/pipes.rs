//! What goes into a command and comes out of it.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use tenure::port::{Json, PAYLOAD_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::child::Streams;

/// How much of what a command says about its errors is kept, from the end.
const TAIL_BYTES: usize = 4096;

/// Where a command's standard output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// It is kept until the command has ended.
    Kept,
    /// To our own.
    Passed,
    /// To our errors, since our own output is for scripts.
    Errors,
}

/// Our ends of a command's standard streams.
pub(super) struct Pipes {
    input: Sender,
    output: Option<Receiver>,
    errors: Receiver,
}

/// What a command has said.
pub(crate) struct Said {
    /// Its standard output, as much of it as can be the output of a task, and one byte more.
    output: Vec<u8>,
    /// The end of its standard error.
    errors: Vec<u8>,
}

/// What a command says of its failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// The last line of its errors.
    pub(crate) line: String,
    /// The end of its errors, if that is more than a line.
    pub(crate) tail: Option<String>,
}

impl Pipes {
    /// The command's ends, and ours.
    pub(super) fn new(output: Output) -> io::Result<(Streams, Pipes)> {
        let ((input, feed), (told, errors)) = (io::pipe()?, io::pipe()?);
        let (said, output) = match output {
            Output::Kept => {
                let (said, output) = io::pipe()?;
                (Some(Receiver::from_owned_fd(OwnedFd::from(said))?), Some(OwnedFd::from(output)))
            }
            Output::Passed => (None, None),
            Output::Errors => (None, Some(io::stderr().as_fd().try_clone_to_owned()?)),
        };
        let pipes = Pipes {
            input: Sender::from_owned_fd(OwnedFd::from(feed))?,
            output: said,
            errors: Receiver::from_owned_fd(OwnedFd::from(told))?,
        };
        let streams = Streams { input: Some(input.into()), output, errors: Some(errors.into()) };
        Ok((streams, pipes))
    }

    /// Feeds the payload, passes errors on as they come, and keeps what is said, until all ends are closed.
    pub(super) async fn carry(self, payload: &[u8]) -> Said {
        let Pipes { mut input, output, errors } = self;
        let feed = async move {
            // A command that does not read its input is none the worse for it.
            let _ = input.write_all(payload).await;
        };
        let (_, output, errors) = tokio::join!(feed, keep_head(output), keep_tail(errors));
        Said { output, errors }
    }
}

/// The beginning of a stream. The rest is read too: nobody shall wait for us.
async fn keep_head(stream: Option<Receiver>) -> Vec<u8> {
    let Some(mut stream) = stream else { return Vec::new() };
    let (mut head, mut buffer) = (Vec::new(), vec![0; 8192]);
    while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
        let room = (PAYLOAD_MAX + 1).saturating_sub(head.len());
        head.extend_from_slice(&buffer[..bytes.min(room)]);
    }
    head
}

/// The end of a stream, all of which is passed on to our own errors.
async fn keep_tail(mut stream: Receiver) -> Vec<u8> {
    let (mut tail, mut buffer) = (Vec::new(), vec![0; 8192]);
    while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
        // If nobody reads our errors there is nobody to tell.
        let _ = io::stderr().write_all(&buffer[..bytes]);
        tail.extend_from_slice(&buffer[..bytes]);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
    }
    tail
}

impl Said {
    /// The output of the task: JSON, if that is what was said. Anything else is passed on to our own output.
    pub(crate) fn output(&self) -> Option<Json> {
        if self.output.len() > PAYLOAD_MAX {
            crate::output::err_line(format_args!(
                "tenure: a command put out more than {PAYLOAD_MAX} bytes, which are not kept"
            ));
            return None;
        }
        let text = String::from_utf8_lossy(&self.output);
        let json = Json::try_from(text.trim().to_owned()).ok();
        if json.is_none() {
            crate::output::print_text(&text);
        }
        json
    }

    /// The end of its errors: the last line that is not empty, which usually says what went wrong, and below it the lines that
    /// led to it, as many as were kept.
    pub(crate) fn complaint(&self) -> Option<Complaint> {
        let text = String::from_utf8_lossy(&self.errors);
        let text = text.trim_end();
        let line = text.lines().next_back().map(str::trim).filter(|line| !line.is_empty())?;
        // What was cut in the middle of a line begins with the next one.
        let whole = if self.errors.len() < TAIL_BYTES {
            text
        } else {
            text.split_once('\n').map_or(text, |cut| cut.1)
        };
        let tail = (whole.trim().lines().count() > 1).then(|| whole.trim_start_matches('\n').to_owned());
        Some(Complaint { line: line.to_owned(), tail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_is_an_output() {
        let said = |text: &str| Said { output: text.into(), errors: Vec::new() };
        assert_eq!(said(" {\"sent\": true}\n").output().unwrap().as_str(), "{\"sent\": true}");
        assert_eq!(said("").output(), None);
        assert_eq!(said("done").output(), None);
        assert_eq!(said(&"1".repeat(PAYLOAD_MAX + 1)).output(), None);
    }

    #[test]
    fn the_last_words_are_the_complaint() {
        let said = |text: &str| Said { output: Vec::new(), errors: text.into() };
        let complaint = said("\n  warming up\nno route to host\n\n").complaint().unwrap();
        assert_eq!(complaint.line, "no route to host");
        assert_eq!(complaint.tail.as_deref(), Some("  warming up\nno route to host"));
        assert_eq!(said("no route\n").complaint(), Some(Complaint { line: "no route".into(), tail: None }));
        assert_eq!(said("\n").complaint(), None);
        let text = format!("cut in the mi{}\nTraceback:\n  boom", "d".repeat(TAIL_BYTES));
        let long = said(&text[text.len() - TAIL_BYTES..]);
        assert_eq!(long.complaint().unwrap().tail.as_deref(), Some("Traceback:\n  boom"));
    }
}

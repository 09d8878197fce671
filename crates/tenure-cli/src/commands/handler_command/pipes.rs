//! Standard streams of a command.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use tenure::port::{PAYLOAD_MAX, RawJson};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::child::Streams;

/// Kept bytes of standard error, from its end.
const TAIL_BYTES: usize = 4096;

/// Destination of the standard output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputMode {
    /// Captured until the command exits.
    Kept,
    /// Passed to stdout of tenure.
    Passed,
    /// Passed to stderr of tenure, because stdout has JSON.
    Errors,
}

/// The ends of the standard streams that tenure keeps.
pub(super) struct Pipes {
    input: Sender,
    output: Option<Receiver>,
    errors: Receiver,
}

/// Captured output of a command.
pub(crate) struct CapturedOutput {
    /// Standard output, up to one byte more than the maximum size of a result.
    output: Vec<u8>,
    /// The end of standard error.
    errors: Vec<u8>,
}

/// Error output of a failed command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ErrorOutput {
    /// Last line of standard error.
    pub(crate) line: String,
    /// The end of standard error, if it has more than one line.
    pub(crate) tail: Option<String>,
}

impl Pipes {
    /// Creates the pipes. Returns the ends of the command and those of tenure.
    pub(super) fn new(output: OutputMode) -> io::Result<(Streams, Pipes)> {
        let ((input, feed), (stderr, errors)) = (io::pipe()?, io::pipe()?);
        let (stdout, output) = match output {
            OutputMode::Kept => {
                let (stdout, output) = io::pipe()?;
                (Some(Receiver::from_owned_fd(OwnedFd::from(stdout))?), Some(OwnedFd::from(output)))
            }
            OutputMode::Passed => (None, None),
            OutputMode::Errors => (None, Some(io::stderr().as_fd().try_clone_to_owned()?)),
        };
        let pipes = Pipes {
            input: Sender::from_owned_fd(OwnedFd::from(feed))?,
            output: stdout,
            errors: Receiver::from_owned_fd(OwnedFd::from(stderr))?,
        };
        let streams = Streams { input: Some(input.into()), output, errors: Some(errors.into()) };
        Ok((streams, pipes))
    }

    /// Writes the payload, forwards standard error and captures the output, until all pipes are closed.
    pub(super) async fn carry(self, payload: &[u8]) -> CapturedOutput {
        let Pipes { mut input, output, errors } = self;
        let feed = async move {
            // A command need not read its input.
            let _ = input.write_all(payload).await;
        };
        let (_, output, errors) = tokio::join!(feed, keep_head(output), keep_tail(errors));
        CapturedOutput { output, errors }
    }
}

/// Captures the beginning of a stream. Reads the rest too, so that the command does not block.
async fn keep_head(stream: Option<Receiver>) -> Vec<u8> {
    let Some(mut stream) = stream else { return Vec::new() };
    let (mut head, mut buffer) = (Vec::new(), vec![0; 8192]);
    while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
        let room = (PAYLOAD_MAX + 1).saturating_sub(head.len());
        head.extend_from_slice(&buffer[..bytes.min(room)]);
    }
    head
}

/// Captures the end of a stream and forwards the whole stream to stderr.
async fn keep_tail(mut stream: Receiver) -> Vec<u8> {
    let (mut tail, mut buffer) = (Vec::new(), vec![0; 8192]);
    while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
        // Ignore a closed stderr.
        let _ = io::stderr().write_all(&buffer[..bytes]);
        tail.extend_from_slice(&buffer[..bytes]);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
    }
    tail
}

impl CapturedOutput {
    /// The result of the task if the output is JSON. Any other output is printed on stdout.
    pub(crate) fn result(&self) -> Option<RawJson> {
        if self.output.len() > PAYLOAD_MAX {
            crate::output::err_line(format_args!(
                "tenure: the output of a command exceeds {PAYLOAD_MAX} bytes and is discarded"
            ));
            return None;
        }
        let text = String::from_utf8_lossy(&self.output);
        let json = RawJson::try_from(text.trim().to_owned()).ok();
        if json.is_none() {
            crate::output::print_text(&text);
        }
        json
    }

    /// The last non-empty line of standard error, and the captured lines before it.
    pub(crate) fn error_output(&self) -> Option<ErrorOutput> {
        let text = String::from_utf8_lossy(&self.errors);
        let text = text.trim_end();
        let line = text.lines().next_back().map(str::trim).filter(|line| !line.is_empty())?;
        // The capture may start in the middle of a line: skip to the next one.
        let whole = if self.errors.len() < TAIL_BYTES {
            text
        } else {
            text.split_once('\n').map_or(text, |cut| cut.1)
        };
        let tail = (whole.trim().lines().count() > 1).then(|| whole.trim_start_matches('\n').to_owned());
        Some(ErrorOutput { line: line.to_owned(), tail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_json_is_a_result() {
        let captured = |text: &str| CapturedOutput { output: text.into(), errors: Vec::new() };
        assert_eq!(captured(" {\"sent\": true}\n").result().unwrap().as_str(), "{\"sent\": true}");
        assert_eq!(captured("").result(), None);
        assert_eq!(captured("done").result(), None);
        assert_eq!(captured(&"1".repeat(PAYLOAD_MAX + 1)).result(), None);
    }

    #[test]
    fn the_last_line_of_standard_error_is_the_error() {
        let captured = |text: &str| CapturedOutput { output: Vec::new(), errors: text.into() };
        let error_output = captured("\n  warming up\nno route to host\n\n").error_output().unwrap();
        assert_eq!(error_output.line, "no route to host");
        assert_eq!(error_output.tail.as_deref(), Some("  warming up\nno route to host"));
        assert_eq!(
            captured("no route\n").error_output(),
            Some(ErrorOutput { line: "no route".into(), tail: None })
        );
        assert_eq!(captured("\n").error_output(), None);
        let text = format!("cut in the mi{}\nTraceback:\n  boom", "d".repeat(TAIL_BYTES));
        let long = captured(&text[text.len() - TAIL_BYTES..]);
        assert_eq!(long.error_output().unwrap().tail.as_deref(), Some("Traceback:\n  boom"));
    }
}

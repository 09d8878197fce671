//! What goes into a command and comes out of it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use tenure::port::{Json, PAYLOAD_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};

use crate::child::Streams;

/// How much of what a command says about its errors is kept, from the end.
const TAIL_BYTES: usize = 4096;

/// Our ends of a command's standard streams.
pub(super) struct Pipes {
    input: Sender,
    output: Receiver,
    errors: Receiver,
}

/// What a command has said.
pub(super) struct Said {
    /// Its standard output, as much of it as can be the output of a task, and one byte more.
    output: Vec<u8>,
    /// The end of its standard error.
    errors: Vec<u8>,
}

impl Pipes {
    /// The command's ends, and ours.
    pub(super) fn new() -> io::Result<(Streams, Pipes)> {
        let ((input, feed), (said, output)) = (io::pipe()?, io::pipe()?);
        let (told, errors) = io::pipe()?;
        let pipes = Pipes {
            input: Sender::from_owned_fd(OwnedFd::from(feed))?,
            output: Receiver::from_owned_fd(OwnedFd::from(said))?,
            errors: Receiver::from_owned_fd(OwnedFd::from(told))?,
        };
        let streams =
            Streams { input: Some(input.into()), output: Some(output.into()), errors: Some(errors.into()) };
        Ok((streams, pipes))
    }

    /// Feeds the payload, passes errors on as they come, and keeps what is said, until all ends are closed.
    pub(super) async fn carry(self, payload: &str) -> Said {
        let Pipes { mut input, output, errors } = self;
        let feed = async move {
            // A command that does not read its input is none the worse for it.
            let _ = input.write_all(payload.as_bytes()).await;
        };
        let (_, output, errors) = tokio::join!(feed, keep_head(output), keep_tail(errors));
        Said { output, errors }
    }
}

/// The beginning of a stream. The rest is read too: nobody shall wait for us.
async fn keep_head(mut stream: Receiver) -> Vec<u8> {
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
    pub(super) fn output(&self) -> Option<Json> {
        if self.output.len() > PAYLOAD_MAX {
            eprintln!("tenure: a command put out more than {PAYLOAD_MAX} bytes, which are not kept");
            return None;
        }
        let text = String::from_utf8_lossy(&self.output);
        let json = Json::try_from(text.trim().to_owned()).ok();
        if json.is_none() {
            crate::output::print_text(&text);
        }
        json
    }

    /// The last line of its errors that says something.
    pub(super) fn complaint(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.errors);
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
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
        assert_eq!(said("warming up\nno route to host\n\n").complaint().as_deref(), Some("no route to host"));
        assert_eq!(said("\n").complaint(), None);
    }
}

//! What supervisor and watchdog say to each other over their socket pair.
//!
//! A frame is its length (four bytes), a tag and a body. Both ends are the same executable on the same machine, so
//! numbers are in native order and there are no versions. The first order is `Start`. The answer to it is `Started`
//! or `Failed`; `Ended` or `Failed` is the last report. The end of the stream is a message too, and the one that
//! cannot be lost: to the watchdog it says that the supervisor is gone, to the supervisor that the watchdog is.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::sys::{Pid, Status};

/// From the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Start(Start),
    /// The program may be trusted until then.
    Extend {
        deadline_ns: u64,
    },
    /// For the group.
    Signal(i32),
    /// SIGTERM, this long, SIGKILL.
    End {
        grace_ns: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) deadline_ns: u64,
    pub(super) kill_after_ns: u64,
    pub(super) argv: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) withheld: Vec<OsString>,
    pub(super) orphan_cleanup: Vec<u8>,
}

/// From the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The program has been executed and leads the group of this number.
    Started(Pid),
    /// It could not be executed: an errno. Nothing is left of it.
    Failed(i32),
    /// The group's number is about to be given back: from here on it must not be signalled.
    Ended(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Status(Status),
    /// Trust ran out first.
    ForTrust,
}

/// A frame that makes no sense: the other end is not what it should be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nonsense;

/// More than the kernel takes as arguments and environment of one program.
const FRAME_MAX_BYTES: usize = 64 << 20;

pub(super) trait Message: Sized {
    fn write(&self, body: &mut Vec<u8>);
    fn read(body: &mut Reader<'_>) -> Option<Self>;

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        self.write(out);
        let bytes = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&bytes.to_ne_bytes());
    }

    /// Takes the first whole message out of `inbox`; `None` while there is none.
    fn decode(inbox: &mut Vec<u8>) -> Result<Option<Self>, Nonsense> {
        let Some(bytes) = Reader(inbox).u32() else { return Ok(None) };
        let end = 4 + bytes as usize;
        if end > FRAME_MAX_BYTES {
            return Err(Nonsense);
        }
        let Some(body) = inbox.get(4..end) else { return Ok(None) };
        let mut reader = Reader(body);
        let message = Self::read(&mut reader).filter(|_| reader.0.is_empty()).ok_or(Nonsense)?;
        inbox.drain(..end);
        Ok(Some(message))
    }
}

impl Message for Order {
    fn write(&self, body: &mut Vec<u8>) {
        match self {
            Self::Start(start) => {
                body.push(b'S');
                body.extend(start.deadline_ns.to_ne_bytes());
                body.extend(start.kill_after_ns.to_ne_bytes());
                body.extend((start.argv.len() as u32).to_ne_bytes());
                start.argv.iter().for_each(|arg| write_text(body, arg));
                body.extend((start.env.len() as u32).to_ne_bytes());
                for (name, value) in &start.env {
                    write_text(body, name);
                    write_text(body, value);
                }
                body.extend((start.withheld.len() as u32).to_ne_bytes());
                start.withheld.iter().for_each(|name| write_text(body, name));
                write_bytes(body, &start.orphan_cleanup);
            }
            Self::Extend { deadline_ns } => {
                body.push(b'X');
                body.extend(deadline_ns.to_ne_bytes());
            }
            Self::Signal(signal) => {
                body.push(b'K');
                body.extend(signal.to_ne_bytes());
            }
            Self::End { grace_ns } => {
                body.push(b'E');
                body.extend(grace_ns.to_ne_bytes());
            }
        }
    }

    fn read(body: &mut Reader<'_>) -> Option<Self> {
        Some(match body.u8()? {
            b'S' => Self::Start(Start {
                deadline_ns: body.u64()?,
                kill_after_ns: body.u64()?,
                argv: (0..body.u32()?).map(|_| body.text()).collect::<Option<_>>()?,
                env: (0..body.u32()?).map(|_| Some((body.text()?, body.text()?))).collect::<Option<_>>()?,
                withheld: (0..body.u32()?).map(|_| body.text()).collect::<Option<_>>()?,
                orphan_cleanup: body.bytes()?,
            }),
            b'X' => Self::Extend { deadline_ns: body.u64()? },
            b'K' => Self::Signal(body.i32()?),
            b'E' => Self::End { grace_ns: body.u64()? },
            _ => return None,
        })
    }
}

impl Message for Report {
    fn write(&self, body: &mut Vec<u8>) {
        let (tag, value) = match *self {
            Self::Started(pid) => (b'S', pid),
            Self::Failed(errno) => (b'F', errno),
            Self::Ended(Outcome::Status(Status::Exited(code))) => (b'X', code),
            Self::Ended(Outcome::Status(Status::Signalled(signal))) => (b'K', signal),
            Self::Ended(Outcome::ForTrust) => (b'T', 0),
        };
        body.push(tag);
        body.extend(value.to_ne_bytes());
    }

    fn read(body: &mut Reader<'_>) -> Option<Self> {
        let (tag, value) = (body.u8()?, body.i32()?);
        Some(match tag {
            b'S' => Self::Started(value),
            b'F' => Self::Failed(value),
            b'X' => Self::Ended(Outcome::Status(Status::Exited(value))),
            b'K' => Self::Ended(Outcome::Status(Status::Signalled(value))),
            b'T' => Self::Ended(Outcome::ForTrust),
            _ => return None,
        })
    }
}

fn write_text(body: &mut Vec<u8>, text: &OsString) {
    write_bytes(body, text.as_bytes());
}

fn write_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as u32).to_ne_bytes());
    body.extend(bytes);
}

/// What is left of a frame. Every method is `None` where the frame is too short.
pub(super) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    fn text(&mut self) -> Option<OsString> {
        self.bytes().map(OsString::from_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<M: Message + PartialEq + std::fmt::Debug>(messages: &[M]) {
        let mut wire = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut wire));
        let mut inbox = Vec::new();
        let mut read = Vec::new();
        for byte in wire {
            inbox.push(byte);
            read.extend(M::decode(&mut inbox).unwrap());
        }
        assert_eq!(read, messages);
        assert!(inbox.is_empty());
    }

    #[test]
    fn messages_survive_a_stream_that_gives_one_byte_at_a_time() {
        round_trip(&[
            Order::Start(Start {
                deadline_ns: u64::MAX,
                kill_after_ns: 7,
                argv: vec!["sh".into(), "".into(), OsString::from_vec(vec![0xff, 0xfe])],
                env: vec![("A".into(), "b=c".into())],
                withheld: vec!["SECRET".into()],
                orphan_cleanup: vec![0, 255],
            }),
            Order::Extend { deadline_ns: 1 },
            Order::Signal(15),
            Order::End { grace_ns: 0 },
        ]);
        round_trip(&[
            Report::Started(42),
            Report::Failed(2),
            Report::Ended(Outcome::Status(Status::Exited(3))),
            Report::Ended(Outcome::Status(Status::Signalled(9))),
            Report::Ended(Outcome::ForTrust),
        ]);
    }

    #[test]
    fn nonsense_is_refused() {
        let mut unknown = vec![1, 0, 0, 0, b'?'];
        assert_eq!(Order::decode(&mut unknown), Err(Nonsense));
        let mut endless = u32::MAX.to_ne_bytes().to_vec();
        assert_eq!(Report::decode(&mut endless), Err(Nonsense));
        let mut trailing = vec![10, 0, 0, 0, b'X', 0, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(Order::decode(&mut trailing), Err(Nonsense));
    }
}

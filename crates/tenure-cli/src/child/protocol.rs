//! Protocol between supervisor and watchdog over their socket pair.
//!
//! A frame is its length (four bytes), a tag and a body. Both ends are the same executable on the same machine, so
//! numbers are in native byte order and the protocol has no version. The first command is `Start`; the watchdog answers
//! it with `Started` or `Failed`. The last report is `Ended` or `Failed`. The end of the stream means that the other
//! process is gone.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::syscalls::{ExitStatus, Pid};

/// Message from the supervisor to the watchdog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchdogCommand {
    Start(StartCommand),
    /// New deadline of the program.
    Extend {
        deadline_ns: u64,
    },
    /// Signal for the process group.
    Signal(i32),
    /// Stops the process group: SIGTERM, then SIGKILL after this grace period.
    End {
        grace_ns: u64,
    },
}

/// The program to start; see [`ChildSpec`](super::ChildSpec) for the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StartCommand {
    pub(super) deadline_ns: u64,
    pub(super) kill_after_ns: u64,
    pub(super) argv: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) withheld: Vec<OsString>,
    pub(super) orphan_cleanup: Vec<u8>,
}

/// Message from the watchdog to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchdogReport {
    /// Exec succeeded. The pid is also the id of the process group.
    Started(Pid),
    /// Exec failed with this errno. No process is left.
    Failed(i32),
    /// The program ended. The group must not be signalled any more, because its id may be reused.
    Ended(ExitReport),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitReport {
    Status(ExitStatus),
    /// Stopped by the watchdog at the deadline, when the lease is no longer trusted.
    ForTrust,
}

/// Error: the frame cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidFrame;

/// Maximum frame size; larger than the arguments and environment that the kernel accepts.
const FRAME_MAX_BYTES: usize = 64 << 20;

pub(super) trait FrameCodec: Sized {
    fn write(&self, body: &mut Vec<u8>);
    fn read(body: &mut FrameReader<'_>) -> Option<Self>;

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; 4]);
        self.write(out);
        let bytes = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&bytes.to_ne_bytes());
    }

    /// Removes the first complete message from `inbox`; `None` if there is none.
    fn decode(inbox: &mut Vec<u8>) -> Result<Option<Self>, InvalidFrame> {
        let Some(bytes) = FrameReader(inbox).u32() else { return Ok(None) };
        let end = 4 + bytes as usize;
        if end > FRAME_MAX_BYTES {
            return Err(InvalidFrame);
        }
        let Some(body) = inbox.get(4..end) else { return Ok(None) };
        let mut reader = FrameReader(body);
        let message = Self::read(&mut reader).filter(|_| reader.0.is_empty()).ok_or(InvalidFrame)?;
        inbox.drain(..end);
        Ok(Some(message))
    }
}

impl FrameCodec for WatchdogCommand {
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

    fn read(body: &mut FrameReader<'_>) -> Option<Self> {
        Some(match body.u8()? {
            b'S' => Self::Start(StartCommand {
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

impl FrameCodec for WatchdogReport {
    fn write(&self, body: &mut Vec<u8>) {
        let (tag, value) = match *self {
            Self::Started(pid) => (b'S', pid),
            Self::Failed(errno) => (b'F', errno),
            Self::Ended(ExitReport::Status(ExitStatus::Exited(code))) => (b'X', code),
            Self::Ended(ExitReport::Status(ExitStatus::Signalled(signal))) => (b'K', signal),
            Self::Ended(ExitReport::ForTrust) => (b'T', 0),
        };
        body.push(tag);
        body.extend(value.to_ne_bytes());
    }

    fn read(body: &mut FrameReader<'_>) -> Option<Self> {
        let (tag, value) = (body.u8()?, body.i32()?);
        Some(match tag {
            b'S' => Self::Started(value),
            b'F' => Self::Failed(value),
            b'X' => Self::Ended(ExitReport::Status(ExitStatus::Exited(value))),
            b'K' => Self::Ended(ExitReport::Status(ExitStatus::Signalled(value))),
            b'T' => Self::Ended(ExitReport::ForTrust),
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

/// Reader of the rest of a frame. Every method returns `None` if the frame is too short.
pub(super) struct FrameReader<'a>(&'a [u8]);

impl FrameReader<'_> {
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

    fn round_trip<M: FrameCodec + PartialEq + std::fmt::Debug>(messages: &[M]) {
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
    fn messages_are_decoded_from_single_bytes() {
        round_trip(&[
            WatchdogCommand::Start(StartCommand {
                deadline_ns: u64::MAX,
                kill_after_ns: 7,
                argv: vec!["sh".into(), "".into(), OsString::from_vec(vec![0xff, 0xfe])],
                env: vec![("A".into(), "b=c".into())],
                withheld: vec!["SECRET".into()],
                orphan_cleanup: vec![0, 255],
            }),
            WatchdogCommand::Extend { deadline_ns: 1 },
            WatchdogCommand::Signal(15),
            WatchdogCommand::End { grace_ns: 0 },
        ]);
        round_trip(&[
            WatchdogReport::Started(42),
            WatchdogReport::Failed(2),
            WatchdogReport::Ended(ExitReport::Status(ExitStatus::Exited(3))),
            WatchdogReport::Ended(ExitReport::Status(ExitStatus::Signalled(9))),
            WatchdogReport::Ended(ExitReport::ForTrust),
        ]);
    }

    #[test]
    fn an_invalid_frame_is_rejected() {
        let mut unknown = vec![1, 0, 0, 0, b'?'];
        assert_eq!(WatchdogCommand::decode(&mut unknown), Err(InvalidFrame));
        let mut endless = u32::MAX.to_ne_bytes().to_vec();
        assert_eq!(WatchdogReport::decode(&mut endless), Err(InvalidFrame));
        let mut trailing = vec![10, 0, 0, 0, b'X', 0, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(WatchdogCommand::decode(&mut trailing), Err(InvalidFrame));
    }
}

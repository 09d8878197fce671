//! Frames that only those can read and write who know a secret: that of the leader's post in the store, or that of a cluster.
//!
//! Both ends send a fresh number in the clear. From the secret and both numbers each derives one key per direction
//! (HKDF-SHA256), and every frame is sealed (ChaCha20-Poly1305) under a counter. Who does not know the secret can neither read a
//! frame nor make one, change one, leave one out or send one twice; and a whole conversation that was recorded is no use,
//! because the other end's number is new.
//!
//! A message is one or more frames: a length (four bytes, big-endian), then the sealed part, whose first byte says whether more
//! follows. A frame is at most [`FRAME_MAX`] long, a message at most what its reader allows.

use std::io;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The number that each end draws.
pub(crate) const NUMBER: usize = 32;

/// The longest frame, sealed.
pub(crate) const FRAME_MAX: usize = 1 << 20;

/// What a seal adds.
const TAG: usize = 16;

/// The longest part of a message in one frame.
const PART_MAX: usize = FRAME_MAX - TAG - 1;

const MORE: u8 = 1;
const LAST: u8 = 0;

/// One direction's keys and counter.
pub(crate) struct Seal {
    key: LessSafeKey,
    count: u64,
}

impl Seal {
    fn new(secret: &[u8], asker: &[u8; NUMBER], leader: &[u8; NUMBER], direction: &[u8]) -> io::Result<Seal> {
        let salt = Salt::new(HKDF_SHA256, &[asker.as_slice(), leader.as_slice()].concat());
        let info = [b"tenure broker 1".as_slice(), direction];
        let key = salt.extract(secret);
        let key = key.expand(&info, &CHACHA20_POLY1305).map_err(|_| refused("no key"))?;
        Ok(Seal { key: LessSafeKey::new(UnboundKey::from(key)), count: 0 })
    }

    /// Each number once under each key. 2^64 frames are never reached.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.count.to_be_bytes());
        self.count += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The seals of a connection, as the asker (`from_asker` writes) or the leader uses them.
pub(crate) struct Seals {
    pub(crate) from_asker: Seal,
    pub(crate) from_leader: Seal,
}

impl Seals {
    pub(crate) fn derive(secret: &[u8], asker: &[u8; NUMBER], leader: &[u8; NUMBER]) -> io::Result<Seals> {
        Ok(Seals {
            from_asker: Seal::new(secret, asker, leader, b"from asker")?,
            from_leader: Seal::new(secret, asker, leader, b"from leader")?,
        })
    }
}

/// Seals a message and puts its frames at the end of `to`.
pub(crate) fn seal(seal: &mut Seal, message: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
    let mut parts = message.chunks(PART_MAX).peekable();
    if parts.peek().is_none() {
        return Err(refused("an empty message"));
    }
    while let Some(part) = parts.next() {
        let length = u32::try_from(part.len() + 1 + TAG).map_err(|_| refused("a frame that is too long"))?;
        let header = length.to_be_bytes();
        let mut body = Vec::with_capacity(part.len() + 1 + TAG);
        body.push(if parts.peek().is_some() { MORE } else { LAST });
        body.extend_from_slice(part);
        let nonce = seal.nonce();
        seal.key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut body)
            .map_err(|_| refused("a frame that can not be sealed"))?;
        to.extend_from_slice(&header);
        to.extend_from_slice(&body);
    }
    Ok(())
}

/// Reads a message of at most `most` bytes. `None` at the end of the stream.
pub(crate) async fn open(
    from: &mut (impl AsyncRead + Unpin),
    seal: &mut Seal,
    most: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    loop {
        let mut header = [0; 4];
        match from.read_exact(&mut header).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && message.is_empty() => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let length = u32::from_be_bytes(header) as usize;
        if !(TAG + 2..=FRAME_MAX).contains(&length) {
            return Err(refused("a frame of an impossible length"));
        }
        if message.len() + length > most + TAG + 1 {
            return Err(refused("a message that is too long"));
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).await?;
        let nonce = seal.nonce();
        let part = seal.key.open_in_place(nonce, Aad::from(header), &mut body).map_err(|_| {
            refused("a frame that does not open: forged, changed, repeated or of another leader")
        })?;
        let (more, part) = part.split_first().ok_or_else(|| refused("an empty frame"))?;
        message.extend_from_slice(part);
        match *more {
            LAST => return Ok(Some(message)),
            MORE => {}
            _ => return Err(refused("a frame of an unknown kind")),
        }
    }
}

/// Reads the first message of a connection, of one frame and at most `most` bytes, and finds out under which of several secrets it was sealed
/// by the asker. Returns the message, and the seals of that secret.
#[cfg(feature = "raft")]
pub(crate) async fn open_first(
    from: &mut (impl AsyncRead + Unpin),
    candidates: Vec<Seals>,
    most: usize,
) -> io::Result<(Vec<u8>, Seals)> {
    let mut header = [0; 4];
    from.read_exact(&mut header).await?;
    let length = u32::from_be_bytes(header) as usize;
    if !(TAG + 2..=most + TAG + 1).contains(&length) {
        return Err(refused("a first frame of an impossible length"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    for mut seals in candidates {
        let frame = [header.as_slice(), &body].concat();
        if let Ok(Some(message)) = open(&mut frame.as_slice(), &mut seals.from_asker, most).await {
            return Ok((message, seals));
        }
    }
    Err(refused("a first frame that does not open: the other end has another secret"))
}

/// A fresh number.
pub(crate) fn draw(mut random: impl FnMut() -> u64) -> [u8; NUMBER] {
    let mut bytes = [0; NUMBER];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&random().to_le_bytes()[..part.len()]);
    }
    bytes
}

/// Exchanges numbers.
pub(crate) async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ours: &[u8; NUMBER],
) -> io::Result<[u8; NUMBER]> {
    stream.write_all(ours).await?;
    let mut theirs = [0; NUMBER];
    stream.read_exact(&mut theirs).await?;
    Ok(theirs)
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"a secret of thirty-two bytes!!!!";

    fn seals(leader: u8) -> Seals {
        Seals::derive(SECRET, &[1; NUMBER], &[leader; NUMBER]).unwrap()
    }

    fn sealed(message: &[u8]) -> Vec<u8> {
        let mut frames = Vec::new();
        seal(&mut seals(2).from_asker, message, &mut frames).unwrap();
        frames
    }

    async fn opened(mut frames: &[u8], seal: &mut Seal, most: usize) -> io::Result<Option<Vec<u8>>> {
        open(&mut frames, seal, most).await
    }

    #[tokio::test]
    async fn a_message_of_many_frames_comes_back_whole() {
        for length in [1, PART_MAX, PART_MAX + 1, 3 * PART_MAX + 17] {
            let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let back = opened(&sealed(&message), &mut seals(2).from_asker, usize::MAX / 2).await.unwrap();
            assert_eq!(back.as_deref(), Some(message.as_slice()));
        }
    }

    #[tokio::test]
    async fn a_changed_byte_anywhere_is_refused() {
        let frames = sealed(b"give me work");
        for at in 0..frames.len() {
            let mut forged = frames.clone();
            forged[at] ^= 1;
            assert!(opened(&forged, &mut seals(2).from_asker, 1000).await.is_err(), "byte {at}");
        }
    }

    #[tokio::test]
    async fn a_frame_that_is_sent_twice_or_left_out_is_refused() {
        let mut writer = seals(2).from_asker;
        let (mut first, mut second) = (Vec::new(), Vec::new());
        seal(&mut writer, b"first", &mut first).unwrap();
        seal(&mut writer, b"second", &mut second).unwrap();
        let twice = [first.clone(), first].concat();
        let mut reader = seals(2).from_asker;
        let mut stream = twice.as_slice();
        assert!(open(&mut stream, &mut reader, 1000).await.is_ok());
        assert!(open(&mut stream, &mut reader, 1000).await.is_err());
        assert!(opened(&second, &mut seals(2).from_asker, 1000).await.is_err());
    }

    #[tokio::test]
    async fn a_recorded_conversation_is_no_use_with_another_number_or_in_the_other_direction() {
        let frames = sealed(b"give me work");
        assert!(opened(&frames, &mut seals(3).from_asker, 1000).await.is_err());
        assert!(opened(&frames, &mut seals(2).from_leader, 1000).await.is_err());
    }

    #[tokio::test]
    async fn who_does_not_know_the_secret_is_refused() {
        let mut frames = Vec::new();
        let mut stranger = Seals::derive(&[0; 32], &[1; NUMBER], &[2; NUMBER]).unwrap();
        seal(&mut stranger.from_asker, b"give me work", &mut frames).unwrap();
        assert!(opened(&frames, &mut seals(2).from_asker, 1000).await.is_err());
    }

    #[cfg(feature = "raft")]
    #[tokio::test]
    async fn the_first_message_tells_which_of_several_secrets_the_asker_has() {
        let with = |secret: &[u8]| Seals::derive(secret, &[1; NUMBER], &[2; NUMBER]).unwrap();
        let accepted = || vec![with(SECRET), with(b"another")];
        for secret in [SECRET, b"another"] {
            let mut asker = with(secret);
            let mut frames = Vec::new();
            seal(&mut asker.from_asker, b"hello", &mut frames).unwrap();
            seal(&mut asker.from_asker, b"again", &mut frames).unwrap();
            let mut stream = frames.as_slice();
            let (hello, mut seals) = open_first(&mut stream, accepted(), 100).await.unwrap();
            let again = open(&mut stream, &mut seals.from_asker, 100).await.unwrap();
            assert_eq!((hello.as_slice(), again.as_deref()), (&b"hello"[..], Some(&b"again"[..])));
        }
        let mut frames = Vec::new();
        seal(&mut with(b"a third").from_asker, b"hello", &mut frames).unwrap();
        assert!(open_first(&mut frames.as_slice(), accepted(), 100).await.is_err());
        assert!(open_first(&mut sealed(&[7; 101]).as_slice(), accepted(), 100).await.is_err());
    }

    #[tokio::test]
    async fn what_is_longer_than_allowed_is_refused_before_it_is_read() {
        let huge = u32::MAX.to_be_bytes();
        assert!(opened(&huge, &mut seals(2).from_asker, usize::MAX / 2).await.is_err());
        let frames = sealed(&[7; 2000]);
        assert!(opened(&frames, &mut seals(2).from_asker, 1000).await.is_err());
        assert!(opened(&frames, &mut seals(2).from_asker, 2000).await.is_ok());
    }
}

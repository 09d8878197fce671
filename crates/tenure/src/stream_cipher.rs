//! Encrypted frames between two processes that share a secret: the secret of a broker endpoint, or of a
//! cluster.
//!
//! Both ends send a fresh nonce in plain text. From the secret and both nonces each end derives one key per
//! direction (HKDF-SHA256), and encrypts every frame (ChaCha20-Poly1305) under a counter. Without the secret, a
//! third party can neither read a frame nor forge, change, omit or repeat one. A recorded connection cannot be
//! replayed, because the nonce of the other end is new.
//!
//! A message is one or more frames: a length (four bytes, big-endian), then the encrypted part, whose first
//! byte tells whether another frame follows. A frame has at most [`FRAME_MAX`] bytes; the reader limits the
//! length of a message.

use std::io;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Length of the nonce that each end sends.
pub(crate) const NONCE_LEN: usize = 32;

/// Maximum length of an encrypted frame.
pub(crate) const FRAME_MAX: usize = 1 << 20;

/// Length of the authentication tag.
const TAG: usize = 16;

/// Maximum length of the part of a message in one frame.
const PART_MAX: usize = FRAME_MAX - TAG - 1;

const MORE: u8 = 1;
const LAST: u8 = 0;

/// Key and counter of one direction.
pub(crate) struct StreamCipher {
    key: LessSafeKey,
    count: u64,
}

impl StreamCipher {
    fn new(
        secret: &[u8],
        client: &[u8; NONCE_LEN],
        server: &[u8; NONCE_LEN],
        direction: &[u8],
    ) -> io::Result<StreamCipher> {
        let salt = Salt::new(HKDF_SHA256, &[client.as_slice(), server.as_slice()].concat());
        let info = [b"tenure broker 1".as_slice(), direction];
        let key = salt.extract(secret);
        let key = key.expand(&info, &CHACHA20_POLY1305).map_err(|_| invalid("key derivation failed"))?;
        Ok(StreamCipher { key: LessSafeKey::new(UnboundKey::from(key)), count: 0 })
    }

    /// Returns the nonce of the next frame. The counter never repeats: no connection sends 2^64 frames.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.count.to_be_bytes());
        self.count += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Both directions of a connection: the client writes with `from_client`, the server with `from_server`.
pub(crate) struct StreamCiphers {
    pub(crate) from_client: StreamCipher,
    pub(crate) from_server: StreamCipher,
}

impl StreamCiphers {
    pub(crate) fn derive(
        secret: &[u8],
        client: &[u8; NONCE_LEN],
        server: &[u8; NONCE_LEN],
    ) -> io::Result<StreamCiphers> {
        Ok(StreamCiphers {
            from_client: StreamCipher::new(secret, client, server, b"from client")?,
            from_server: StreamCipher::new(secret, client, server, b"from server")?,
        })
    }
}

/// Encrypts a message and appends its frames to `to`.
pub(crate) fn encrypt(cipher: &mut StreamCipher, message: &[u8], to: &mut Vec<u8>) -> io::Result<()> {
    let mut parts = message.chunks(PART_MAX).peekable();
    if parts.peek().is_none() {
        return Err(invalid("message is empty"));
    }
    while let Some(part) = parts.next() {
        let length = u32::try_from(part.len() + 1 + TAG).map_err(|_| invalid("frame is too long"))?;
        let header = length.to_be_bytes();
        let mut body = Vec::with_capacity(part.len() + 1 + TAG);
        body.push(if parts.peek().is_some() { MORE } else { LAST });
        body.extend_from_slice(part);
        let nonce = cipher.nonce();
        cipher
            .key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut body)
            .map_err(|_| invalid("frame cannot be encrypted"))?;
        to.extend_from_slice(&header);
        to.extend_from_slice(&body);
    }
    Ok(())
}

/// Reads a message of at most `max_len` bytes. Returns `None` at the end of the stream.
pub(crate) async fn read_message(
    from: &mut (impl AsyncRead + Unpin),
    cipher: &mut StreamCipher,
    max_len: usize,
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
            return Err(invalid("frame length is out of range"));
        }
        if message.len() + length > max_len + TAG + 1 {
            return Err(invalid("message is too long"));
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).await?;
        let nonce = cipher.nonce();
        let part = cipher.key.open_in_place(nonce, Aad::from(header), &mut body).map_err(|_| {
            invalid("frame cannot be decrypted: forged, changed, repeated or encrypted for another term")
        })?;
        let (more, part) = part.split_first().ok_or_else(|| invalid("frame is empty"))?;
        message.extend_from_slice(part);
        match *more {
            LAST => return Ok(Some(message)),
            MORE => {}
            _ => return Err(invalid("frame has an unknown kind")),
        }
    }
}

/// Reads the first message of a connection, of one frame and at most `max_len` bytes, and finds which of several
/// secrets the client used. Returns the message and the ciphers of that secret.
#[cfg(feature = "raft")]
pub(crate) async fn read_first_message(
    from: &mut (impl AsyncRead + Unpin),
    candidates: Vec<StreamCiphers>,
    max_len: usize,
) -> io::Result<(Vec<u8>, StreamCiphers)> {
    let mut header = [0; 4];
    from.read_exact(&mut header).await?;
    let length = u32::from_be_bytes(header) as usize;
    if !(TAG + 2..=max_len + TAG + 1).contains(&length) {
        return Err(invalid("length of the first frame is out of range"));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    for mut ciphers in candidates {
        let frame = [header.as_slice(), &body].concat();
        if let Ok(Some(message)) =
            read_message(&mut frame.as_slice(), &mut ciphers.from_client, max_len).await
        {
            return Ok((message, ciphers));
        }
    }
    Err(invalid("first frame cannot be decrypted: the other end uses a different secret"))
}

/// Generates a nonce.
pub(crate) fn nonce(mut random: impl FnMut() -> u64) -> [u8; NONCE_LEN] {
    let mut bytes = [0; NONCE_LEN];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&random().to_le_bytes()[..part.len()]);
    }
    bytes
}

/// Exchanges nonces with the other end.
pub(crate) async fn exchange_nonces(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ours: &[u8; NONCE_LEN],
) -> io::Result<[u8; NONCE_LEN]> {
    stream.write_all(ours).await?;
    let mut theirs = [0; NONCE_LEN];
    stream.read_exact(&mut theirs).await?;
    Ok(theirs)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"a secret of thirty-two bytes!!!!";

    fn ciphers(server: u8) -> StreamCiphers {
        StreamCiphers::derive(SECRET, &[1; NONCE_LEN], &[server; NONCE_LEN]).unwrap()
    }

    fn encrypted(message: &[u8]) -> Vec<u8> {
        let mut frames = Vec::new();
        encrypt(&mut ciphers(2).from_client, message, &mut frames).unwrap();
        frames
    }

    async fn decrypted(
        mut frames: &[u8],
        cipher: &mut StreamCipher,
        max_len: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        read_message(&mut frames, cipher, max_len).await
    }

    #[tokio::test]
    async fn a_message_of_many_frames_is_read_completely() {
        for length in [1, PART_MAX, PART_MAX + 1, 3 * PART_MAX + 17] {
            let message: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let back =
                decrypted(&encrypted(&message), &mut ciphers(2).from_client, usize::MAX / 2).await.unwrap();
            assert_eq!(back.as_deref(), Some(message.as_slice()));
        }
    }

    #[tokio::test]
    async fn a_frame_with_a_changed_byte_is_rejected() {
        let frames = encrypted(b"give me work");
        for at in 0..frames.len() {
            let mut forged = frames.clone();
            forged[at] ^= 1;
            assert!(decrypted(&forged, &mut ciphers(2).from_client, 1000).await.is_err(), "byte {at}");
        }
    }

    #[tokio::test]
    async fn a_repeated_or_omitted_frame_is_rejected() {
        let mut writer = ciphers(2).from_client;
        let (mut first, mut second) = (Vec::new(), Vec::new());
        encrypt(&mut writer, b"first", &mut first).unwrap();
        encrypt(&mut writer, b"second", &mut second).unwrap();
        let twice = [first.clone(), first].concat();
        let mut reader = ciphers(2).from_client;
        let mut stream = twice.as_slice();
        assert!(read_message(&mut stream, &mut reader, 1000).await.is_ok());
        assert!(read_message(&mut stream, &mut reader, 1000).await.is_err());
        assert!(decrypted(&second, &mut ciphers(2).from_client, 1000).await.is_err());
    }

    #[tokio::test]
    async fn a_recorded_connection_cannot_be_replayed_with_another_nonce_or_direction() {
        let frames = encrypted(b"give me work");
        assert!(decrypted(&frames, &mut ciphers(3).from_client, 1000).await.is_err());
        assert!(decrypted(&frames, &mut ciphers(2).from_server, 1000).await.is_err());
    }

    #[tokio::test]
    async fn a_client_without_the_secret_is_rejected() {
        let mut frames = Vec::new();
        let mut stranger = StreamCiphers::derive(&[0; 32], &[1; NONCE_LEN], &[2; NONCE_LEN]).unwrap();
        encrypt(&mut stranger.from_client, b"give me work", &mut frames).unwrap();
        assert!(decrypted(&frames, &mut ciphers(2).from_client, 1000).await.is_err());
    }

    #[cfg(feature = "raft")]
    #[tokio::test]
    async fn the_first_message_shows_which_of_several_secrets_the_client_uses() {
        let with = |secret: &[u8]| StreamCiphers::derive(secret, &[1; NONCE_LEN], &[2; NONCE_LEN]).unwrap();
        let accepted = || vec![with(SECRET), with(b"another")];
        for secret in [SECRET, b"another"] {
            let mut client = with(secret);
            let mut frames = Vec::new();
            encrypt(&mut client.from_client, b"hello", &mut frames).unwrap();
            encrypt(&mut client.from_client, b"again", &mut frames).unwrap();
            let mut stream = frames.as_slice();
            let (hello, mut ciphers) = read_first_message(&mut stream, accepted(), 100).await.unwrap();
            let second = read_message(&mut stream, &mut ciphers.from_client, 100).await.unwrap();
            assert_eq!((hello.as_slice(), second.as_deref()), (&b"hello"[..], Some(&b"again"[..])));
        }
        let mut frames = Vec::new();
        encrypt(&mut with(b"a third").from_client, b"hello", &mut frames).unwrap();
        assert!(read_first_message(&mut frames.as_slice(), accepted(), 100).await.is_err());
        assert!(read_first_message(&mut encrypted(&[7; 101]).as_slice(), accepted(), 100).await.is_err());
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_rejected_before_it_is_read() {
        let huge = u32::MAX.to_be_bytes();
        assert!(decrypted(&huge, &mut ciphers(2).from_client, usize::MAX / 2).await.is_err());
        let frames = encrypted(&[7; 2000]);
        assert!(decrypted(&frames, &mut ciphers(2).from_client, 1000).await.is_err());
        assert!(decrypted(&frames, &mut ciphers(2).from_client, 2000).await.is_ok());
    }
}

//! Encryption and authentication of datagrams.
//!
//! ```text
//! "TNG1" · cluster (4) · sender (16) · number (8) · encrypted: kind (1) · to (16) · from (16) · body · tag (16)
//! ```
//!
//! The *sender* is a random value of each process. The key of a sender is derived from the secret, the cluster name and
//! the sender value (HKDF-SHA256). The *number* counts up, so no nonce is used twice under one key (ChaCha20-Poly1305).
//! The header is authenticated together with the encrypted part. With several secrets, the first encrypts; for a new
//! sender all are tried.
//!
//! Replay protection: a datagram names its recipient (*to*) by the nonce that the recipient chose at its start and
//! sends in each of its datagrams (*from*). A recorded datagram is useless: its recipient has already seen the number;
//! any other process, and the same process after a restart, has another nonce. A process remembers the numbers of a
//! limited number of senders; when it forgets them, it chooses a new nonce.
//!
//! A process that does not know the nonce of its peer requests it (`NonceRequest`) and receives it (`NonceReply`).
//! The reply is no longer than the request, and the responder keeps no state.

use std::collections::HashMap;
use std::io;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use super::drops::DropReason;
use super::fragments::MessageAssembler;
use super::replay_window::Window;
use crate::secrets::Secrets;

/// Maximum datagram size. Larger datagrams would be fragmented by most networks, and many networks drop fragments.
pub(super) const DATAGRAM_MAX: usize = 1400;

const MAGIC: &[u8; 4] = b"TNG1";
const PROCESS_NONCE_LEN: usize = 16;
const TAG: usize = 16;
const HEADER: usize = 4 + 4 + PROCESS_NONCE_LEN + 8;
const PREFACE: usize = 1 + PROCESS_NONCE_LEN + PROCESS_NONCE_LEN;

/// Maximum body size.
pub(super) const BODY_MAX: usize = DATAGRAM_MAX - HEADER - PREFACE - TAG;

/// Maximum number of remembered senders.
const SENDERS_MAX: usize = 4096;

/// Random value by which a process is addressed.
pub(super) type ProcessNonce = [u8; PROCESS_NONCE_LEN];

/// Placeholder for a nonce that is not known.
pub(super) const UNKNOWN_NONCE: ProcessNonce = [0; PROCESS_NONCE_LEN];

/// Kind of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Fragment of a message.
    Fragment = 0,
    /// Request for the recipient's nonce.
    NonceRequest = 1,
    /// Reply with the sender's nonce.
    NonceReply = 2,
}

/// Content of an opened datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OpenedDatagram {
    /// A request for this process's nonce.
    NonceRequested(ProcessNonce),
    /// A datagram of a member with an outdated recipient nonce: replayed, or sent before the sender learned of a
    /// restart.
    Stale(ProcessNonce),
    /// A reply with the sender's nonce.
    NonceReceived(ProcessNonce),
    /// A fragment from the sender with this nonce, and the message if it is complete now.
    Fragment(ProcessNonce, Option<Vec<u8>>),
}

/// Encrypts and decrypts the datagrams of one process.
pub(super) struct DatagramCipher {
    /// Master keys for deriving sender keys, one per accepted secret.
    master_keys: Vec<Prk>,
    cluster: [u8; 4],
    sender: ProcessNonce,
    ours: LessSafeKey,
    number: u64,
    process_nonce: ProcessNonce,
    senders: HashMap<ProcessNonce, Sender>,
    draw: fn() -> u64,
}

/// A sender whose datagrams were opened.
struct Sender {
    key: LessSafeKey,
    replay_window: Window,
    assembler: MessageAssembler,
}

impl DatagramCipher {
    pub(super) fn new(secrets: &Secrets, cluster: &str, draw: fn() -> u64) -> io::Result<DatagramCipher> {
        let info = [b"cluster".as_slice(), cluster.as_bytes()];
        let master_keys = secrets.accepted().map(|secret| {
            let master = Salt::new(HKDF_SHA256, b"tenure gossip 1").extract(secret);
            master.expand(&info, HKDF_SHA256).map(Prk::from).map_err(|_| io::Error::other("no key"))
        });
        let master_keys = master_keys.collect::<io::Result<Vec<Prk>>>()?;
        let sender = process_nonce(draw);
        let ours = key(master_keys.first().ok_or_else(|| io::Error::other("no secret"))?, &sender)?;
        let mut mark = [0; 4];
        mark.copy_from_slice(&digest(&SHA256, cluster.as_bytes()).as_ref()[..4]);
        Ok(DatagramCipher {
            master_keys,
            cluster: mark,
            sender,
            ours,
            number: 0,
            process_nonce: process_nonce(draw),
            senders: HashMap::new(),
            draw,
        })
    }

    /// Encrypt a datagram for the process with the given nonce.
    pub(super) fn encrypt(&mut self, kind: Kind, to: &ProcessNonce, body: &[u8]) -> io::Result<Vec<u8>> {
        self.number += 1;
        let mut datagram = Vec::with_capacity(HEADER + PREFACE + body.len() + TAG);
        datagram.extend_from_slice(MAGIC);
        datagram.extend_from_slice(&self.cluster);
        datagram.extend_from_slice(&self.sender);
        datagram.extend_from_slice(&self.number.to_be_bytes());
        let mut encrypted = Vec::with_capacity(PREFACE + body.len() + TAG);
        encrypted.push(kind as u8);
        encrypted.extend_from_slice(to);
        encrypted.extend_from_slice(&self.process_nonce);
        encrypted.extend_from_slice(body);
        self.ours
            .seal_in_place_append_tag(nonce(self.number), Aad::from(&datagram), &mut encrypted)
            .map_err(|_| io::Error::other("cannot encrypt a datagram"))?;
        datagram.extend_from_slice(&encrypted);
        Ok(datagram)
    }

    /// Decrypt and check a datagram, or return the reason to drop it.
    pub(super) fn open(&mut self, datagram: &[u8]) -> Result<OpenedDatagram, DropReason> {
        if datagram.len() > DATAGRAM_MAX {
            return Err(DropReason::Oversized);
        }
        let (header, encrypted) = datagram.split_at_checked(HEADER).ok_or(DropReason::Malformed)?;
        if &header[..4] != MAGIC {
            return Err(DropReason::Malformed);
        }
        if header[4..8] != self.cluster {
            return Err(DropReason::Foreign);
        }
        let sender: ProcessNonce =
            header[8..8 + PROCESS_NONCE_LEN].try_into().map_err(|_| DropReason::Malformed)?;
        let number = u64::from_be_bytes(
            header[8 + PROCESS_NONCE_LEN..].try_into().map_err(|_| DropReason::Malformed)?,
        );
        if sender == self.sender {
            return Err(DropReason::Replayed);
        }
        let keys = match self.senders.get(&sender) {
            Some(known) => vec![known.key.clone()],
            None => self.master_keys.iter().filter_map(|master| key(master, &sender).ok()).collect(),
        };
        // A failed decryption overwrites its buffer, so each attempt uses a copy.
        let opened = keys.into_iter().find_map(|key| {
            let mut copy = encrypted.to_vec();
            let length = key.open_in_place(nonce(number), Aad::from(header), &mut copy).ok()?.len();
            copy.truncate(length);
            Some((key, copy))
        });
        let (key, opened) = opened.ok_or(DropReason::Forged)?;
        let (preface, body) = opened.split_at_checked(PREFACE).ok_or(DropReason::Malformed)?;
        let (to, from) = preface[1..].split_at(PROCESS_NONCE_LEN);
        let from: ProcessNonce = from.try_into().map_err(|_| DropReason::Malformed)?;
        let kind = kind(preface[0]).ok_or(DropReason::Malformed)?;
        if to != self.process_nonce {
            // The recipient nonce belongs to another process or to an earlier run of this one. The datagram may be
            // arbitrarily old and is not trusted.
            return match kind {
                Kind::NonceRequest => Ok(OpenedDatagram::NonceRequested(from)),
                Kind::Fragment => Ok(OpenedDatagram::Stale(from)),
                Kind::NonceReply => Err(DropReason::Replayed),
            };
        }
        let sender = self.remember(sender, key);
        if !sender.replay_window.admit(number) {
            return Err(DropReason::Replayed);
        }
        match kind {
            Kind::NonceRequest => Ok(OpenedDatagram::NonceRequested(from)),
            Kind::NonceReply => Ok(OpenedDatagram::NonceReceived(from)),
            Kind::Fragment => Ok(OpenedDatagram::Fragment(from, sender.assembler.add(body)?)),
        }
    }

    fn remember(&mut self, id: ProcessNonce, key: LessSafeKey) -> &mut Sender {
        if self.senders.len() >= SENDERS_MAX && !self.senders.contains_key(&id) {
            // Forgotten numbers would allow replays; a new nonce prevents them.
            self.senders.clear();
            self.process_nonce = process_nonce(self.draw);
        }
        self.senders.entry(id).or_insert_with(|| Sender {
            key,
            replay_window: Window::new(),
            assembler: MessageAssembler::default(),
        })
    }
}

fn kind(byte: u8) -> Option<Kind> {
    [Kind::Fragment, Kind::NonceRequest, Kind::NonceReply].into_iter().find(|kind| *kind as u8 == byte)
}

fn process_nonce(draw: fn() -> u64) -> ProcessNonce {
    let mut process_nonce = UNKNOWN_NONCE;
    process_nonce[..8].copy_from_slice(&draw().to_le_bytes());
    process_nonce[8..].copy_from_slice(&draw().to_le_bytes());
    process_nonce
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn key(master: &Prk, sender: &ProcessNonce) -> io::Result<LessSafeKey> {
    let info = [b"datagrams".as_slice(), sender];
    let key = master.expand(&info, &CHACHA20_POLY1305).map_err(|_| io::Error::other("no key"))?;
    Ok(LessSafeKey::new(UnboundKey::from(key)))
}

#[cfg(test)]
mod tests;

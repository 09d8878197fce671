//! Datagrams that only members of the cluster can read and write.
//!
//! ```text
//! "TNG1" · cluster (4) · sender (16) · number (8) · sealed: kind (1) · to (16) · from (16) · body · tag (16)
//! ```
//!
//! The *sender* is drawn anew by each process; its key follows from the secret (of several, the first; all are tried for a sender that is new), the cluster's name and that (HKDF-SHA256), so that the
//! *number*, which it counts up, is never used twice under one key (ChaCha20-Poly1305). All that is not sealed is signed with it.
//!
//! A datagram names the one process that it is *to*, by a word that the process drew when it started, and tells in whatever it sends
//! (*from*). So what was recorded is of no use: to the process that got it, its number is known; to any
//! other, and to the same one after a restart, it bears the wrong word. A process that forgets whose numbers it has seen (it
//! remembers a limited number of senders) draws a new word.
//!
//! Who does not know the other's word *asks* for it, and is told. A question is answered with no more than it cost, and leaves no trace.

use std::collections::HashMap;
use std::io;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use super::drops::Dropped;
use super::parts::Parts;
use super::window::Window;
use crate::secrets::Secrets;

/// The longest datagram. Longer ones would be cut up on most networks, and many drop what is cut up.
pub(super) const DATAGRAM_MAX: usize = 1400;

const MAGIC: &[u8; 4] = b"TNG1";
const WORD: usize = 16;
const TAG: usize = 16;
const HEADER: usize = 4 + 4 + WORD + 8;
const PREFACE: usize = 1 + WORD + WORD;

/// The longest body.
pub(super) const BODY_MAX: usize = DATAGRAM_MAX - HEADER - PREFACE - TAG;

/// How many senders are remembered.
const SENDERS_MAX: usize = 4096;

/// What a process draws to be known by.
pub(super) type Word = [u8; WORD];

/// Of a process whose word is not known.
pub(super) const NOBODY: Word = [0; WORD];

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Part of a message.
    Part = 0,
    /// What is your word?
    Ask = 1,
    /// This is my word.
    Tell = 2,
}

/// What came of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// Somebody asks for our word.
    Asked(Word),
    /// It was sealed by a member, but not for us as we are: repeated, or sent before it heard that we started anew.
    Stale(Word),
    /// Somebody told us its word.
    Told(Word),
    /// Part of a message, from one with this word, and the message if it is whole now.
    Part(Word, Option<Vec<u8>>),
}

/// The seal of one process.
pub(super) struct Seal {
    /// What the keys of senders follow from, one for each secret that is accepted.
    masters: Vec<Prk>,
    cluster: [u8; 4],
    sender: Word,
    ours: LessSafeKey,
    number: u64,
    word: Word,
    senders: HashMap<Word, Sender>,
    draw: fn() -> u64,
}

/// Somebody whose datagrams we have opened.
struct Sender {
    key: LessSafeKey,
    window: Window,
    parts: Parts,
}

impl Seal {
    pub(super) fn new(secrets: &Secrets, cluster: &str, draw: fn() -> u64) -> io::Result<Seal> {
        let info = [b"cluster".as_slice(), cluster.as_bytes()];
        let masters = secrets.accepted().map(|secret| {
            let master = Salt::new(HKDF_SHA256, b"tenure gossip 1").extract(secret);
            master.expand(&info, HKDF_SHA256).map(Prk::from).map_err(|_| io::Error::other("no key"))
        });
        let masters = masters.collect::<io::Result<Vec<Prk>>>()?;
        let sender = word(draw);
        let ours = key(masters.first().ok_or_else(|| io::Error::other("no secret"))?, &sender)?;
        let mut mark = [0; 4];
        mark.copy_from_slice(&digest(&SHA256, cluster.as_bytes()).as_ref()[..4]);
        Ok(Seal {
            masters,
            cluster: mark,
            sender,
            ours,
            number: 0,
            word: word(draw),
            senders: HashMap::new(),
            draw,
        })
    }

    /// Seals a datagram to whoever has this word.
    pub(super) fn seal(&mut self, kind: Kind, to: &Word, body: &[u8]) -> io::Result<Vec<u8>> {
        self.number += 1;
        let mut datagram = Vec::with_capacity(HEADER + PREFACE + body.len() + TAG);
        datagram.extend_from_slice(MAGIC);
        datagram.extend_from_slice(&self.cluster);
        datagram.extend_from_slice(&self.sender);
        datagram.extend_from_slice(&self.number.to_be_bytes());
        let mut sealed = Vec::with_capacity(PREFACE + body.len() + TAG);
        sealed.push(kind as u8);
        sealed.extend_from_slice(to);
        sealed.extend_from_slice(&self.word);
        sealed.extend_from_slice(body);
        self.ours
            .seal_in_place_append_tag(nonce(self.number), Aad::from(&datagram), &mut sealed)
            .map_err(|_| io::Error::other("a datagram that can not be sealed"))?;
        datagram.extend_from_slice(&sealed);
        Ok(datagram)
    }

    /// Opens a datagram, or says why it is dropped.
    pub(super) fn open(&mut self, datagram: &[u8]) -> Result<Opened, Dropped> {
        if datagram.len() > DATAGRAM_MAX {
            return Err(Dropped::Oversized);
        }
        let (header, sealed) = datagram.split_at_checked(HEADER).ok_or(Dropped::Malformed)?;
        if &header[..4] != MAGIC {
            return Err(Dropped::Malformed);
        }
        if header[4..8] != self.cluster {
            return Err(Dropped::Foreign);
        }
        let sender: Word = header[8..8 + WORD].try_into().map_err(|_| Dropped::Malformed)?;
        let number = u64::from_be_bytes(header[8 + WORD..].try_into().map_err(|_| Dropped::Malformed)?);
        if sender == self.sender {
            return Err(Dropped::Replayed);
        }
        let keys = match self.senders.get(&sender) {
            Some(known) => vec![known.key.clone()],
            None => self.masters.iter().filter_map(|master| key(master, &sender).ok()).collect(),
        };
        // What fails to open is not left as it was.
        let opened = keys.into_iter().find_map(|key| {
            let mut copy = sealed.to_vec();
            let length = key.open_in_place(nonce(number), Aad::from(header), &mut copy).ok()?.len();
            copy.truncate(length);
            Some((key, copy))
        });
        let (key, opened) = opened.ok_or(Dropped::Forged)?;
        let (preface, body) = opened.split_at_checked(PREFACE).ok_or(Dropped::Malformed)?;
        let (to, from) = preface[1..].split_at(WORD);
        let from: Word = from.try_into().map_err(|_| Dropped::Malformed)?;
        let kind = kind(preface[0]).ok_or(Dropped::Malformed)?;
        if to != self.word {
            // The word that it names is another's, or ours of an earlier life: it may be as old as it likes, and is not believed.
            return match kind {
                Kind::Ask => Ok(Opened::Asked(from)),
                Kind::Part => Ok(Opened::Stale(from)),
                Kind::Tell => Err(Dropped::Replayed),
            };
        }
        let sender = self.remember(sender, key);
        if !sender.window.admit(number) {
            return Err(Dropped::Replayed);
        }
        match kind {
            Kind::Ask => Ok(Opened::Asked(from)),
            Kind::Tell => Ok(Opened::Told(from)),
            Kind::Part => Ok(Opened::Part(from, sender.parts.add(body)?)),
        }
    }

    fn remember(&mut self, id: Word, key: LessSafeKey) -> &mut Sender {
        if self.senders.len() >= SENDERS_MAX && !self.senders.contains_key(&id) {
            // Whose numbers are forgotten could be repeated to us; not under another word.
            self.senders.clear();
            self.word = word(self.draw);
        }
        self.senders.entry(id).or_insert_with(|| Sender {
            key,
            window: Window::new(),
            parts: Parts::default(),
        })
    }
}

fn kind(byte: u8) -> Option<Kind> {
    [Kind::Part, Kind::Ask, Kind::Tell].into_iter().find(|kind| *kind as u8 == byte)
}

fn word(draw: fn() -> u64) -> Word {
    let mut word = NOBODY;
    word[..8].copy_from_slice(&draw().to_le_bytes());
    word[8..].copy_from_slice(&draw().to_le_bytes());
    word
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

fn key(master: &Prk, sender: &Word) -> io::Result<LessSafeKey> {
    let info = [b"datagrams".as_slice(), sender];
    let key = master.expand(&info, &CHACHA20_POLY1305).map_err(|_| io::Error::other("no key"))?;
    Ok(LessSafeKey::new(UnboundKey::from(key)))
}

#[cfg(test)]
mod tests;

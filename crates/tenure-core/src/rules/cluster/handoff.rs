//! A small state that one holder of a singleton passes to the next, in the metadata of its candidacy.
//!
//! A holder that finishes stores the state in its candidacy *before* it releases the lease. It remains a candidate (an
//! observer, if it is about to stop) until the next holder has acknowledged the state. The next holder reads the state
//! while it holds the lease. It accepts the state only from the holder of the term directly before its own, because the
//! state of an older term may be outdated. If the previous holder died, or if no next holder was elected in time, the
//! singleton starts without a state.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;

use super::Metadata;
use crate::Token;
use crate::port::{ElectionView, Term};

/// Maximum size of the state in bytes: enough for a cursor, a checkpoint or a reference.
pub const HANDOFF_MAX: usize = 8 * 1024;

/// Maximum length of one metadata value; a server accepts at most 1024 bytes per value.
const PART: usize = 1000;

const PREFIX: &str = "tenure.handoff.";
const TERM_TOKEN: &str = "tenure.handoff.token";
const SIZE: &str = "tenure.handoff.bytes";
const ACKNOWLEDGED: &str = "tenure.handoff.acknowledged";

/// The state exceeds the maximum size. Nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the handoff state has {0} bytes, more than the maximum of {HANDOFF_MAX}; store it elsewhere and hand \
     off a reference"
)]
pub struct HandoffTooLarge(pub usize);

/// A state and the term in which it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// Token of the term that ended with it.
    pub of: Token,
    /// The state.
    pub state: Vec<u8>,
}

impl Handoff {
    /// Adds the state to the metadata of a candidate, replacing an earlier state. Keeps the acknowledgement of a
    /// received state, because its sender may not have read it yet.
    pub fn write_to(&self, metadata: &mut Metadata) -> Result<(), HandoffTooLarge> {
        if self.state.len() > HANDOFF_MAX {
            return Err(HandoffTooLarge(self.state.len()));
        }
        metadata.retain(|key, _| key == ACKNOWLEDGED || !key.starts_with(PREFIX));
        metadata.insert(TERM_TOKEN.into(), self.of.as_u64().to_string());
        metadata.insert(SIZE.into(), self.state.len().to_string());
        let text = encoded(&self.state);
        // The text is ASCII, so every index is a character boundary.
        for (n, part) in text.as_bytes().chunks(PART).enumerate() {
            metadata.insert(part_key(n), String::from_utf8_lossy(part).into_owned());
        }
        Ok(())
    }

    /// The state in the metadata of a candidate. `None` if there is none or it is incomplete.
    pub fn read_from(metadata: &Metadata) -> Option<Handoff> {
        let of = Token::from_u64(metadata.get(TERM_TOKEN)?.parse().ok()?);
        let size: usize = metadata.get(SIZE)?.parse().ok()?;
        let parts = (0..).map_while(|n| metadata.get(&part_key(n)).map(String::as_str));
        let state = decoded(&parts.collect::<String>())?;
        (state.len() == size && size <= HANDOFF_MAX).then_some(Handoff { of, state })
    }
}

/// Encodes a state as text.
pub fn encoded(state: &[u8]) -> String {
    BASE64.encode(state)
}

/// Decodes a state; `None` if the text is invalid.
pub fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

fn part_key(n: usize) -> String {
    format!("{PREFIX}{n:02}")
}

/// The state handed to the holder of `mine` by the holder of the term directly before it.
pub fn incoming_handoff(election: &ElectionView, terms: &[Term], mine: Token) -> Option<Handoff> {
    let before =
        terms.iter().filter(|term| term.slot == 0 && term.token < mine).max_by_key(|term| term.token)?;
    let sender = election.candidate(&before.session)?;
    Handoff::read_from(&sender.metadata).filter(|handoff| handoff.of == before.token)
}

/// The metadata entry with which a holder acknowledges the state of term `of`.
pub fn acknowledge_handoff(of: Token) -> (String, String) {
    (ACKNOWLEDGED.into(), of.as_u64().to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::{CandidateView, SessionView, StartReason};
    use crate::{ElectionKey, Name, SessionId};

    #[test]
    fn a_large_or_broken_handoff_is_rejected() {
        let mut metadata = Metadata::new();
        let large = Handoff { of: Token::from_u64(1), state: vec![0; HANDOFF_MAX + 1] };
        assert_eq!(large.write_to(&mut metadata), Err(HandoffTooLarge(HANDOFF_MAX + 1)));
        assert!(metadata.is_empty());
        let most = Handoff { of: Token::from_u64(1), state: vec![7; HANDOFF_MAX] };
        most.write_to(&mut metadata).unwrap();
        assert!(metadata.values().all(|value| value.len() <= 1024));
        assert!(metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() < 12 * 1024);
        metadata.remove(&part_key(3));
        assert_eq!(Handoff::read_from(&metadata), None);
    }

    #[test]
    fn an_acknowledgement_survives_the_next_handoff() {
        let mut metadata = Metadata::from([acknowledge_handoff(Token::from_u64(1))]);
        Handoff { of: Token::from_u64(2), state: vec![7; 3_000] }.write_to(&mut metadata).unwrap();
        let short = Handoff { of: Token::from_u64(4), state: vec![8] };
        short.write_to(&mut metadata).unwrap();
        assert_eq!(metadata.get(ACKNOWLEDGED).map(String::as_str), Some("1"));
        assert_eq!(Handoff::read_from(&metadata), Some(short), "and the earlier state is gone");
    }

    #[test]
    fn a_handoff_of_an_older_term_is_ignored() {
        let session = |id: &str| SessionView {
            id: SessionId::from_stored(id),
            name: id.into(),
            heartbeat_count: 1,
            lease_ms: 1000,
            live: true,
            heartbeat_at_ms: 0,
            owner: None,
        };
        let mut metadata = Metadata::new();
        Handoff { of: Token::from_u64(1), state: b"old".to_vec() }.write_to(&mut metadata).unwrap();
        let candidate = CandidateView {
            name: "a".into(),
            session: session("a"),
            priority: 0,
            observer: false,
            capabilities: Vec::new(),
            metadata,
            joined_at_ms: 0,
        };
        let election = ElectionView {
            key: ElectionKey::new(Name::default_namespace(), "job".parse().unwrap()),
            slots: 1,
            required_capabilities: Vec::new(),
            paused: None,
            leases: Vec::new(),
            candidates: vec![candidate],
        };
        let term = |token: u64, id: &str| Term {
            slot: 0,
            token: Token::from_u64(token),
            candidate_name: id.into(),
            session: SessionId::from_stored(id),
            start_reason: StartReason::Release,
            started_at_ms: 0,
            ended_at_ms: None,
            end_reason: None,
        };
        let of = |terms: &[Term], mine: u64| {
            incoming_handoff(&election, terms, Token::from_u64(mine)).map(|h| h.state)
        };
        assert_eq!(of(&[term(2, "b"), term(1, "a")], 2).as_deref(), Some(&b"old"[..]));
        // `b` led in between and may have continued from the state of `a`.
        assert_eq!(of(&[term(3, "c"), term(2, "b"), term(1, "a")], 3), None);
        // `a` led again and left no state in that term.
        assert_eq!(of(&[term(3, "c"), term(2, "a"), term(1, "a")], 3), None);
        assert_eq!(of(&[], 2), None, "without known terms nothing is accepted");
    }

    proptest! {
        #[test]
        fn a_handoff_round_trips(state in proptest::collection::vec(any::<u8>(), 0..4_000), of in 1u64..u64::MAX) {
            let handoff = Handoff { of: Token::from_u64(of), state };
            let mut metadata = Metadata::from([("zone".to_owned(), "a".to_owned())]);
            handoff.write_to(&mut metadata).unwrap();
            prop_assert_eq!(Handoff::read_from(&metadata), Some(handoff));
        }
    }
}

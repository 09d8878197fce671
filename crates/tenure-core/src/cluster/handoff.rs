//! A small state that goes from one holder of a singleton to the next, as part of what a candidate says of itself.
//!
//! The holder that finishes puts the state beside its candidacy *before* it gives the lease back, and stays a candidate (one that
//! never leads, if it is about to go) until the next one has said that it took it. The next one looks for it under its lease, and
//! takes it only from the holder of the term directly before its own: what an older term left behind may have been overtaken.
//! Where that fails, because the holder died, or the next one did not come in time, the singleton begins without a state.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;

use super::Metadata;
use crate::Token;
use crate::port::{ElectionView, Term};

/// The largest state that is handed on, in bytes: a cursor, a checkpoint, the place where the rest is.
pub const HANDOFF_MAX: usize = 8 * 1024;

/// The longest part in one value: a server keeps no more than 1024 bytes in each.
const PART: usize = 1000;

const PREFIX: &str = "tenure.handoff.";
const OF: &str = "tenure.handoff.of";
const SIZE: &str = "tenure.handoff.bytes";
const TOOK: &str = "tenure.handoff.took";

/// The state is larger than what is handed on. Nothing was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a state of {0} bytes is too large to be handed on; at most {HANDOFF_MAX} are: hand on where it is")]
pub struct TooLarge(pub usize);

/// A state, and the term under which it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// The token of the term that ended with it.
    pub of: Token,
    /// The state.
    pub state: Vec<u8>,
}

impl Handoff {
    /// Adds it to what a candidate says of itself, in place of all that it said of states before, but for what it took: who gave that may
    /// not have looked since.
    pub fn say(&self, metadata: &mut Metadata) -> Result<(), TooLarge> {
        if self.state.len() > HANDOFF_MAX {
            return Err(TooLarge(self.state.len()));
        }
        metadata.retain(|key, _| key == TOOK || !key.starts_with(PREFIX));
        metadata.insert(OF.into(), self.of.as_u64().to_string());
        metadata.insert(SIZE.into(), self.state.len().to_string());
        let text = encoded(&self.state);
        // ASCII: every place is one between two characters.
        for (n, part) in text.as_bytes().chunks(PART).enumerate() {
            metadata.insert(part_key(n), String::from_utf8_lossy(part).into_owned());
        }
        Ok(())
    }

    /// What a candidate says that it hands on; `None` if it says nothing, or not all of it.
    pub fn heard(metadata: &Metadata) -> Option<Handoff> {
        let of = Token::from_u64(metadata.get(OF)?.parse().ok()?);
        let size: usize = metadata.get(SIZE)?.parse().ok()?;
        let parts = (0..).map_while(|n| metadata.get(&part_key(n)).map(String::as_str));
        let state = decoded(&parts.collect::<String>())?;
        (state.len() == size && size <= HANDOFF_MAX).then_some(Handoff { of, state })
    }
}

/// A state as text.
pub fn encoded(state: &[u8]) -> String {
    BASE64.encode(state)
}

/// A state from its text; `None` if it is none.
pub fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

fn part_key(n: usize) -> String {
    format!("{PREFIX}{n:02}")
}

/// What was handed to the holder under `mine`: by whom held the term directly before it, and by nobody else.
pub fn received(election: &ElectionView, terms: &[Term], mine: Token) -> Option<Handoff> {
    let before =
        terms.iter().filter(|term| term.slot == 0 && term.token < mine).max_by_key(|term| term.token)?;
    let giver = election.candidate(&before.session)?;
    Handoff::heard(&giver.metadata).filter(|handoff| handoff.of == before.token)
}

/// What the holder says once it has what the term `of` handed on; and what the giver looks for.
pub fn took(of: Token) -> (String, String) {
    (TOOK.into(), of.as_u64().to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::port::{CandidateView, SessionView, Via};
    use crate::{ElectionKey, Name, SessionId};

    #[test]
    fn what_is_too_large_or_broken_is_not_handed_on() {
        let mut metadata = Metadata::new();
        let large = Handoff { of: Token::from_u64(1), state: vec![0; HANDOFF_MAX + 1] };
        assert_eq!(large.say(&mut metadata), Err(TooLarge(HANDOFF_MAX + 1)));
        assert!(metadata.is_empty());
        let most = Handoff { of: Token::from_u64(1), state: vec![7; HANDOFF_MAX] };
        most.say(&mut metadata).unwrap();
        assert!(metadata.values().all(|value| value.len() <= 1024));
        assert!(metadata.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() < 12 * 1024);
        metadata.remove(&part_key(3));
        assert_eq!(Handoff::heard(&metadata), None);
    }

    #[test]
    fn what_was_taken_is_still_said_when_the_next_is_handed_on() {
        let mut metadata = Metadata::from([took(Token::from_u64(1))]);
        Handoff { of: Token::from_u64(2), state: vec![7; 3_000] }.say(&mut metadata).unwrap();
        let short = Handoff { of: Token::from_u64(4), state: vec![8] };
        short.say(&mut metadata).unwrap();
        assert_eq!(metadata.get(TOOK).map(String::as_str), Some("1"));
        assert_eq!(Handoff::heard(&metadata), Some(short), "and nothing is left of the one before");
    }

    #[test]
    fn a_state_of_an_older_term_is_not_taken() {
        let session = |id: &str| SessionView {
            id: SessionId::from_stored(id),
            name: id.into(),
            beat: 1,
            lease_ms: 1000,
            live: true,
            beat_at_ms: 0,
            owner: None,
        };
        let mut metadata = Metadata::new();
        Handoff { of: Token::from_u64(1), state: b"old".to_vec() }.say(&mut metadata).unwrap();
        let candidate = CandidateView {
            id: "a".into(),
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
            requires: Vec::new(),
            paused: None,
            leases: Vec::new(),
            candidates: vec![candidate],
        };
        let term = |token: u64, id: &str| Term {
            slot: 0,
            token: Token::from_u64(token),
            id: id.into(),
            session: SessionId::from_stored(id),
            via: Via::Release,
            began_at_ms: 0,
            ended_at_ms: None,
            end: None,
        };
        let of =
            |terms: &[Term], mine: u64| received(&election, terms, Token::from_u64(mine)).map(|h| h.state);
        assert_eq!(of(&[term(2, "b"), term(1, "a")], 2).as_deref(), Some(&b"old"[..]));
        // b ran in between, and may have gone on from there.
        assert_eq!(of(&[term(3, "c"), term(2, "b"), term(1, "a")], 3), None);
        // a itself ran again, and left nothing that time.
        assert_eq!(of(&[term(3, "c"), term(2, "a"), term(1, "a")], 3), None);
        assert_eq!(of(&[], 2), None, "where nothing is known of terms, nothing is taken");
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(state in proptest::collection::vec(any::<u8>(), 0..4_000), of in 1u64..u64::MAX) {
            let handoff = Handoff { of: Token::from_u64(of), state };
            let mut metadata = Metadata::from([("zone".to_owned(), "a".to_owned())]);
            handoff.say(&mut metadata).unwrap();
            prop_assert_eq!(Handoff::heard(&metadata), Some(handoff));
        }
    }
}

//! Positions of watchers in the sequence of terms.

use std::fmt;
use std::str::FromStr;

use tenure::port::{ElectionView, Term};

use super::TermTransition;

/// Maximum number of slots in a mark; with more slots it uses the clock.
const SLOTS_MAX: usize = 8;

/// Position of a watcher in the terms of an election. Its text, together with the version of the snapshot, is
/// the id of an event: a watcher that reconnects with it, to any replica, receives what it missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TermMark {
    /// For each slot the last token, and whether it was held.
    Tokens(Vec<(u64, bool)>),
    /// Up to this time by the store's clock. Changes in the same millisecond may be sent twice.
    Time(i64),
}

impl TermMark {
    /// Position of a watcher that has seen this election, and everything until `mark_ms`.
    pub(crate) fn of(view: &ElectionView, mark_ms: i64) -> TermMark {
        if view.leases.len() > SLOTS_MAX {
            return TermMark::Time(mark_ms);
        }
        TermMark::Tokens(
            view.leases.iter().map(|lease| (lease.token.as_u64(), lease.holder.is_some())).collect(),
        )
    }

    /// Filter terms, given newest first, to those the watcher has not seen, oldest first.
    pub(crate) fn transitions_after(&self, terms: &[Term]) -> Vec<TermTransition> {
        let mut transitions = Vec::new();
        for term in terms.iter().rev() {
            let (began, ended) = self.covers(term);
            if !began {
                transitions.push(TermTransition::Started(Term {
                    ended_at_ms: None,
                    end_reason: None,
                    ..term.clone()
                }));
            }
            if !ended && term.ended_at_ms.is_some() {
                transitions.push(TermTransition::Ended(term.clone()));
            }
        }
        transitions
    }

    /// Whether the start and the end of a term were seen.
    fn covers(&self, term: &Term) -> (bool, bool) {
        match self {
            TermMark::Tokens(slots) => {
                let none = (0, false);
                let (token, held) = slots.get(term.slot as usize).unwrap_or(&none);
                let this = term.token.as_u64();
                (this <= *token, this < *token || (this == *token && !held))
            }
            TermMark::Time(at) => {
                (term.started_at_ms < *at, term.ended_at_ms.is_some_and(|ended| ended < *at))
            }
        }
    }
}

impl fmt::Display for TermMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TermMark::Tokens(slots) => {
                for (token, held) in slots {
                    write!(f, ".{token}{}", if *held { "h" } else { "f" })?;
                }
                Ok(())
            }
            TermMark::Time(at) => write!(f, "@{at}"),
        }
    }
}

impl FromStr for TermMark {
    type Err = ();
    fn from_str(text: &str) -> Result<TermMark, ()> {
        if let Some(at) = text.strip_prefix('@') {
            return at.parse().map(TermMark::Time).map_err(|_| ());
        }
        let slot = |part: &str| {
            let held = part.ends_with('h');
            let token = part.strip_suffix(['h', 'f']).ok_or(())?;
            Ok((token.parse().map_err(|_| ())?, held))
        };
        let slots: Vec<&str> = text.strip_prefix('.').ok_or(())?.split('.').collect();
        if slots.len() > SLOTS_MAX {
            Err(())
        } else {
            slots.into_iter().map(slot).collect::<Result<_, _>>().map(TermMark::Tokens)
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::StartReason;
    use tenure::{SessionId, Token};

    use super::*;

    fn term(token: u64, ended: Option<i64>) -> Term {
        Term {
            slot: 0,
            token: Token::from_u64(token),
            candidate_name: "a".into(),
            session: SessionId::from_stored("s"),
            start_reason: StartReason::Release,
            started_at_ms: token as i64 * 10,
            ended_at_ms: ended,
            end_reason: ended.map(|_| "released".into()),
        }
    }

    fn changes_after(mark: &str, terms: &[Term]) -> Vec<(bool, u64)> {
        let transitions = mark.parse::<TermMark>().unwrap().transitions_after(terms);
        transitions
            .iter()
            .map(|transitions| match transitions {
                TermTransition::Started(term) => (true, term.token.as_u64()),
                TermTransition::Ended(term) => (false, term.token.as_u64()),
            })
            .collect()
    }

    #[test]
    fn missed_terms_are_returned_in_order_and_once() {
        let terms = [term(9, None), term(8, Some(85)), term(7, Some(75))];
        assert_eq!(changes_after(".7h", &terms), [(false, 7), (true, 8), (false, 8), (true, 9)]);
        assert_eq!(changes_after(".7f", &terms), [(true, 8), (false, 8), (true, 9)]);
        assert_eq!(changes_after(".9h", &terms), []);
        assert_eq!(changes_after("@85", &terms), [(false, 8), (true, 9)]);
    }

    #[test]
    fn marks_round_trip_and_invalid_ones_are_rejected() {
        for text in [".7h", ".7h.0f", "@17", "@-1"] {
            assert_eq!(text.parse::<TermMark>().unwrap().to_string(), text);
        }
        for text in ["", ".", "7h", ".7", ".h", ".7h.", "@", "@x", ".1f.1f.1f.1f.1f.1f.1f.1f.1f"] {
            assert_eq!(text.parse::<TermMark>(), Err(()), "{text:?}");
        }
    }
}

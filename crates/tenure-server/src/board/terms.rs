//! Which terms somebody has heard of, and which they missed.

use std::fmt;
use std::str::FromStr;

use tenure::port::{ElectionView, Term};

use super::News;

/// With more slots than this, a mark goes by the clock.
const SLOTS_MAX: usize = 8;

/// How far somebody has heard of the terms of an election. Its text, together with the version of what was seen, is the id
/// of an event: whoever comes back with it, to whichever replica, hears what was missed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// For each slot the last token, and whether it was held.
    Tokens(Vec<(u64, bool)>),
    /// Up to this time by the store's wall clock. What happened in that very millisecond may be heard twice.
    Time(i64),
}

impl Mark {
    /// The mark of who has seen an election like this, and everything until `mark_ms`.
    pub(crate) fn of(view: &ElectionView, mark_ms: i64) -> Mark {
        if view.leases.len() > SLOTS_MAX {
            return Mark::Time(mark_ms);
        }
        Mark::Tokens(view.leases.iter().map(|lease| (lease.token.as_u64(), lease.holder.is_some())).collect())
    }

    /// What of these terms, which come newest first, is news, the oldest first.
    pub(crate) fn news(&self, terms: &[Term]) -> Vec<News> {
        let mut news = Vec::new();
        for term in terms.iter().rev() {
            let (began, ended) = self.covers(term);
            if !began {
                news.push(News::Began(Term { ended_at_ms: None, end: None, ..term.clone() }));
            }
            if !ended && term.ended_at_ms.is_some() {
                news.push(News::Ended(term.clone()));
            }
        }
        news
    }

    /// Whether the beginning and the end of a term were heard of.
    fn covers(&self, term: &Term) -> (bool, bool) {
        match self {
            Mark::Tokens(slots) => {
                let none = (0, false);
                let (token, held) = slots.get(term.slot as usize).unwrap_or(&none);
                let this = term.token.as_u64();
                (this <= *token, this < *token || (this == *token && !held))
            }
            Mark::Time(at) => (term.began_at_ms < *at, term.ended_at_ms.is_some_and(|ended| ended < *at)),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Tokens(slots) => {
                for (token, held) in slots {
                    write!(f, ".{token}{}", if *held { "h" } else { "f" })?;
                }
                Ok(())
            }
            Mark::Time(at) => write!(f, "@{at}"),
        }
    }
}

impl FromStr for Mark {
    type Err = ();
    fn from_str(text: &str) -> Result<Mark, ()> {
        if let Some(at) = text.strip_prefix('@') {
            return at.parse().map(Mark::Time).map_err(|_| ());
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
            slots.into_iter().map(slot).collect::<Result<_, _>>().map(Mark::Tokens)
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::Via;
    use tenure::{SessionId, Token};

    use super::*;

    fn term(token: u64, ended: Option<i64>) -> Term {
        Term {
            slot: 0,
            token: Token::from_u64(token),
            id: "a".into(),
            session: SessionId::from_stored("s"),
            via: Via::Release,
            began_at_ms: token as i64 * 10,
            ended_at_ms: ended,
            end: ended.map(|_| "released".into()),
        }
    }

    fn told(mark: &str, terms: &[Term]) -> Vec<(bool, u64)> {
        let news = mark.parse::<Mark>().unwrap().news(terms);
        news.iter()
            .map(|news| match news {
                News::Began(term) => (true, term.token.as_u64()),
                News::Ended(term) => (false, term.token.as_u64()),
            })
            .collect()
    }

    #[test]
    fn what_was_missed_is_told_in_order_and_nothing_twice() {
        let terms = [term(9, None), term(8, Some(85)), term(7, Some(75))];
        assert_eq!(told(".7h", &terms), [(false, 7), (true, 8), (false, 8), (true, 9)]);
        assert_eq!(told(".7f", &terms), [(true, 8), (false, 8), (true, 9)]);
        assert_eq!(told(".9h", &terms), []);
        assert_eq!(told("@85", &terms), [(false, 8), (true, 9)]);
    }

    #[test]
    fn a_mark_reads_as_it_was_written_and_nonsense_is_none() {
        for text in [".7h", ".7h.0f", "@17", "@-1"] {
            assert_eq!(text.parse::<Mark>().unwrap().to_string(), text);
        }
        for text in ["", ".", "7h", ".7", ".h", ".7h.", "@", "@x", ".1f.1f.1f.1f.1f.1f.1f.1f.1f"] {
            assert_eq!(text.parse::<Mark>(), Err(()), "{text:?}");
        }
    }
}

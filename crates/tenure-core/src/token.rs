//! The fencing token.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How many low bits of a token count grants; the bits above hold the store's timeline.
const GRANT_BITS: u32 = 40;

/// A fencing token: greater with every grant of a lease, for ever.
///
/// A PostgreSQL standby that is promoted may not have received the last grants, so the server's timeline, which
/// grows with each promotion, stands in the high bits. People see `timeline.grant`, or the bare number where the
/// store has no timelines.
///
/// ```
/// use tenure_core::Token;
///
/// let before = Token::ZERO.next(1).next(1);
/// let after_promotion = Token::ZERO.next(2); // the two grants above were lost
/// assert!(after_promotion > before);
/// assert_eq!(before.to_string(), "1.2");
/// assert_eq!(after_promotion.to_string(), "2.1");
/// assert_eq!("2.1".parse(), Ok(after_promotion));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = u64, example = 7))]
pub struct Token(u64);

impl Token {
    /// The token of a lease that was never granted.
    pub const ZERO: Token = Token(0);

    /// A token from its number, as a store keeps it and a fence compares it.
    pub const fn from_u64(n: u64) -> Self {
        Token(n)
    }

    /// The number, as a store keeps it and a fence compares it.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The token of a lease that was not yet granted, on a store whose timeline is `timeline`.
    pub const fn first(timeline: u32) -> Self {
        Token((timeline as u64) << GRANT_BITS)
    }

    /// The token of the next grant, on a store whose timeline is `timeline` (0: it has none).
    #[must_use]
    pub const fn next(self, timeline: u32) -> Token {
        let floor = Token::first(timeline).0;
        Token(if self.0 > floor { self.0 } else { floor } + 1)
    }

    /// The store's timeline when this token was granted, 0 if it has none.
    pub const fn timeline(self) -> u32 {
        (self.0 >> GRANT_BITS) as u32
    }

    /// The grant within its timeline.
    pub const fn grant(self) -> u64 {
        self.0 & ((1 << GRANT_BITS) - 1)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.timeline() {
            0 => write!(f, "{}", self.0),
            timeline => write!(f, "{timeline}.{}", self.grant()),
        }
    }
}

/// `timeline.grant` or the bare number; neither form is mistaken for the other.
impl FromStr for Token {
    type Err = std::num::ParseIntError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s.split_once('.') {
            Some((timeline, grant)) => {
                Ok(Token((u64::from(timeline.parse::<u32>()?) << GRANT_BITS) | grant.parse::<u64>()?))
            }
            None => s.parse().map(Token),
        }
    }
}

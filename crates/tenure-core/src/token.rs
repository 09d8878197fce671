//! Fencing tokens and epochs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum epoch. Tokens and event ids are JSON numbers, which are exact below 2^53.
pub const EPOCH_MAX: u32 = (1 << 13) - 1;

/// 2026-01-01, in days since 1970.
const EPOCH_DAY_ZERO: i64 = 20_454;

/// Returns the lowest epoch that may follow `stored`. `wall_ms` is the wall clock in milliseconds since 1970.
///
/// The epoch is at least the number of days since 2026. A restored copy that is older than the last change of the epoch
/// therefore still gets a greater epoch than the original, unless both changes happened on the same day. The clock can
/// only raise the epoch, so a wrong clock wastes numbers but is safe. The result is at least 2, because 0 and 1 (on
/// PostgreSQL) are first epochs, which follow no other.
///
/// ```
/// use tenure_core::next_epoch;
///
/// let day = 24 * 60 * 60 * 1000;
/// assert_eq!(next_epoch(0, 0), 2);
/// assert_eq!(next_epoch(7, 0), 8);
/// assert_eq!(next_epoch(7, (20_454 + 319) * day), 319); // 2026-11-16
/// assert_eq!(next_epoch(319, (20_454 + 319) * day), 320);
/// assert_eq!(next_epoch(7, i64::MAX), 8000);
/// ```
pub const fn next_epoch(stored: u32, wall_ms: i64) -> u32 {
    let days = wall_ms / (24 * 60 * 60 * 1000) - EPOCH_DAY_ZERO;
    let days = if days > 8000 {
        8000
    } else if days < 2 {
        2
    } else {
        days as u32
    };
    let next = stored.saturating_add(1);
    if next > days { next } else { days }
}

/// Number of low bits that count grants. The bits above hold the epoch of the store.
const GRANT_BITS: u32 = 40;

/// A fencing token. It grows with every grant of a lease.
///
/// A store that was restored, copied or promoted may not know the latest grants. Its *epoch* grows whenever that may
/// have happened, and occupies the high bits of the token. The text form is `epoch.grant`, or the bare number in
/// epoch 0.
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

    /// Creates a token from its number, the form in which stores keep it and fences compare it.
    pub const fn from_u64(n: u64) -> Self {
        Token(n)
    }

    /// The number of the token, the form in which stores keep it and fences compare it.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The token of a lease that was never granted, on a store with this epoch.
    pub const fn first(epoch: u32) -> Self {
        Token((epoch as u64) << GRANT_BITS)
    }

    /// The token of the next grant, on a store with this epoch (0 if the store has no epoch).
    #[must_use]
    pub const fn next(self, epoch: u32) -> Token {
        let floor = Token::first(epoch).0;
        Token(if self.0 > floor { self.0 } else { floor } + 1)
    }

    /// Epoch of the store at the time of the grant; 0 if the store has no epoch.
    pub const fn epoch(self) -> u32 {
        (self.0 >> GRANT_BITS) as u32
    }

    /// Number of the grant in its epoch.
    pub const fn grant(self) -> u64 {
        self.0 & ((1 << GRANT_BITS) - 1)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.epoch() {
            0 => write!(f, "{}", self.0),
            epoch => write!(f, "{epoch}.{}", self.grant()),
        }
    }
}

/// Parses `epoch.grant` or a bare number.
impl FromStr for Token {
    type Err = std::num::ParseIntError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s.split_once('.') {
            Some((epoch, grant)) => {
                Ok(Token((u64::from(epoch.parse::<u32>()?) << GRANT_BITS) | grant.parse::<u64>()?))
            }
            None => s.parse().map(Token),
        }
    }
}

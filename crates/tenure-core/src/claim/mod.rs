//! The rules of work: who may do what, in which order, how soon again, and why not yet.
//!
//! Everything here is a function of its arguments. Stores call it where a rule is not a matter of rows
//! ([`check`], [`Demand`], [`assign`], [`why`]), the keeper where it must not trust anybody's clock ([`SteadyClock`],
//! [`Deathwatch`]), workers for [`backoff`]. What a store does with rows, as a pure value, is [`ledger`](crate::ledger).
//!
//! | | what it decides |
//! |---|---|
//! | [`check`], [`check_of_tick`], [`check_seats`], [`check_settlements`], [`check_worker`], [`check_queue`], [`check_pool`], [`check_resources`], [`check_request`] | what makes no sense, before a store sees it |
//! | [`Demand`] | which workers a task fits |
//! | [`effective_at`], [`backoff`] | when it is its turn |
//! | [`why`], [`stats`] | what to tell people |
//! | [`Formula`], [`assign`] | which request gets which resource |
//! | [`SteadyClock`], [`Deathwatch`] | when somebody's time is over |

mod ask;
mod assign;
mod check;
mod clock;
mod deathwatch;
mod demand;
mod formula;
mod order;
mod stats;
mod text;
mod why;

pub use self::ask::{
    AskError, check_pool, check_queue, check_request, check_resources, check_seats, check_settlements,
    check_worker, span_ms,
};
pub use self::assign::{Free, Wish, assign};
pub(crate) use self::check::{LAST_MS, LONGEST_MS};
pub use self::check::{SubmissionError, check, check_of_tick};
pub use self::clock::SteadyClock;
pub use self::deathwatch::Deathwatch;
pub use self::demand::Demand;
pub use self::formula::{Facts, Formula, FormulaError};
pub use self::order::{backoff, effective_at};
pub use self::stats::stats;
pub(crate) use self::text::shown;
pub use self::text::{NOTE_MAX, TEXT_MAX, TextError, clip};
pub use self::why::{Look, why};

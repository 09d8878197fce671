//! Rules of queues, workers and pools.
//!
//! All items are pure functions of their arguments. Stores use them for rules that are not queries
//! ([`validate_submission`], [`Requirements`], [`match_pool_requests`], [`wait_reasons`]). Maintenance uses
//! [`StoreClockEstimate`] and [`SessionMonitor`], because it must rely only on its own clock. Workers use [`backoff`].
//! The behaviour of a store as a whole is modelled by [`model::Work`](crate::model::Work).
//!
//! | item | purpose |
//! |---|---|
//! | [`validate_submission`], [`validate_tick_submission`], [`validate_claim_requests`], [`validate_settlements`], [`validate_worker`], [`validate_queue`], [`validate_pool`], [`validate_resources`], [`validate_pool_request`] | validation before a store receives a request |
//! | [`Requirements`] | which workers match a task |
//! | [`effective_at`], [`backoff`] | order of tasks and delays between attempts |
//! | [`wait_reasons`], [`stats`] | explanations and statistics for operators |
//! | [`Formula`], [`match_pool_requests`] | assignment of resources to requests |
//! | [`StoreClockEstimate`], [`SessionMonitor`] | when claims time out and sessions expire |

mod formula;
mod order;
mod pool_match;
mod requirements;
mod session_monitor;
mod stats;
mod store_clock;
mod text;
mod validate_request;
mod validate_submission;
mod why;

pub use self::formula::{Formula, FormulaError, PriorityInputs};
pub use self::order::{backoff, effective_at};
pub use self::pool_match::{FreeResource, WaitingPoolRequest, match_pool_requests};
pub use self::requirements::Requirements;
pub use self::session_monitor::SessionMonitor;
pub use self::stats::stats;
pub use self::store_clock::StoreClockEstimate;
pub(crate) use self::text::shown;
pub use self::text::{NOTE_MAX, TEXT_MAX, TextError, clip};
pub use self::validate_request::{
    WorkRequestError, bounded_ms, validate_claim_requests, validate_pool, validate_pool_request,
    validate_queue, validate_resources, validate_settlements, validate_worker,
};
pub(crate) use self::validate_submission::{LAST_MS, LONGEST_MS};
pub use self::validate_submission::{SubmissionError, validate_submission, validate_tick_submission};
pub use self::why::{WaitContext, wait_reasons};

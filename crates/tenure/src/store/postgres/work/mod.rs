//! Tasks, queues and pools.
//!
//! **State.** The tables hold all state. Operations that need several reads or branches in one round trip (submit, claim,
//! settle, maintain) are functions in the database; their files document them. A process keeps only [`ClaimCursors`],
//! which it can lose at any time.
//!
//! **Locks.** A claim locks tasks with `SKIP LOCKED` and never waits for one. Other calls that change several tasks lock
//! them in the order of their ids, parents before children. The lock of the table `claim_lock`, which claims share, guards
//! the mode of a queue. A row of `concurrency_locks` guards a concurrency key; claims only try to lock it. All of these
//! locks need rights on tables. Any role that may connect can take advisory locks, so only two kinds are used: class
//! 8368 for sessions with takeover mode `connection` (if another client holds such a lock, a takeover waits for the
//! whole lease), and one lock for migrations.

mod admin;
mod claim;
mod claim_cursor;
mod pools;
mod settle;
mod submit;
mod tasks;

pub(super) use claim_cursor::ClaimCursors;
pub use submit::submit;
pub(super) use submit::{RequirementsArg, TaskArg, array, text as json_text, texts};
pub(super) use tasks::unhex;

//! Work and resources.
//!
//! **Who owns the truth.** The tables, as everywhere here. What needs several looks or branches in one round trip (to submit,
//! to claim, to settle, to tend) is a function in the database; its file says how it works. A process remembers one
//! thing, [`Floors`], and may forget it at any time.
//!
//! **Locks.** A claim locks tasks with `SKIP LOCKED` and never waits for one; whoever changes several tasks and may wait
//! locks them in the order of their numbers, parents before children. A queue's mode is guarded by a lock of the table `claim_gate`,
//! which claims share; a concurrency key by a row of `key_locks`, for which claims only try. All of them need rights on tables. The
//! advisory locks that are left, and that anybody who may connect can take: 8368, of a session whose connection's end tells of its
//! death (held by somebody else it delays a take-over until the lease is over), and that of migrations.

mod desk;
mod floors;
mod pools;
mod settle;
mod submit;
mod take;
mod tasks;

pub(super) use floors::Floors;
pub use submit::submit;
pub(super) use submit::{Asked, Row, array, text as json_text, texts};
pub(super) use tasks::unhex;

//! Work and resources.
//!
//! **Who owns the truth.** The tables, as everywhere here. What needs several looks or branches in one round trip (to submit,
//! to claim, to settle, to tend) is a function in the database; its file says how it works. A process remembers one
//! thing, [`Floors`], and may forget it at any time.
//!
//! **Locks.** A claim locks tasks with `SKIP LOCKED` and never waits for one; whoever changes several tasks and may wait
//! locks them in the order of their numbers, parents before children. A queue's mode is guarded by an advisory lock, shared
//! by claims (8369); a concurrency key by one that claims only try for (8371).

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

//! Queues and pools through the library: batched, waiting and routed claims, and workers.

mod broker;
mod direct;
mod exclusive;
mod instrumented_store;
#[path = "../real/mod.rs"]
mod on_stores;
mod pool;
mod real;
mod support;
mod worker;

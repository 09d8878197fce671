//! placeholder
pub mod backend;
pub mod runtime;

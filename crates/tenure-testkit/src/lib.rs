//! placeholder
pub mod conformance;

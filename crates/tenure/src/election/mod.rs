//! Leader election for applications: candidates, leadership handles and operator requests.
//!
//! [`elector`] campaigns and reports changes, [`leadership`] is the handle of a term, [`dual`] leads only while it leads
//! in two stores, and [`operator`] transfers, resigns and pauses.

pub(crate) mod dual;
pub(crate) mod elector;
pub(crate) mod leadership;
pub mod operator;

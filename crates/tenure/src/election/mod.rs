//! Leader election for applications: candidates, leadership handles and operator requests.
//!
//! [`elector`] campaigns and reports changes, [`leadership`] is the handle of a term, [`dual`] combines the
//! elections of two stores, and [`operator`] sends requests to resign, transfer, pause and resume.

pub(crate) mod dual;
pub(crate) mod elector;
pub(crate) mod leadership;
pub mod operator;

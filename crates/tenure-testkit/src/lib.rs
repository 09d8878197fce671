//! Test your leader code, and Tenure's.
//!
//! | module | what it is for |
//! |---|---|
//! | [`sim`] | the rules under a seeded network, clocks and faults, with invariants and negative controls |

pub mod sim;

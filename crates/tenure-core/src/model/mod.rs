//! Reference implementations of the ports, as values in memory without I/O.
//!
//! Each store must behave like these models; the conformance and differential tests compare them. The Raft store
//! replicates [`Elections`] itself.

pub mod credentials;
pub mod elections;
pub mod work;

pub use self::credentials::Credentials;
pub use self::elections::Elections;
pub use self::work::Work;

//! Who may do how much at once.

/// Something that is counted while it lives.
#[derive(Debug)]
pub(crate) struct Permit;

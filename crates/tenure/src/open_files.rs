//! The limit of open files (`RLIMIT_NOFILE`) of this process.
//!
//! Shells and service managers start programs with a soft limit of 1,024 open files, for programs that use
//! `select(2)`. A process that serves connections needs more, and the hard limit allows it. Child processes get
//! the soft limit that this process was started with ([`initial_limit`]), so nothing changes for them.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The highest limit that [`raise_limit`] sets. Some container runtimes set a hard limit of a billion.
const HIGHEST: u64 = 1 << 20;

/// The limit to try if the system rejects a higher one; every supported system allows it.
const FALLBACK: u64 = 10_240;

static INITIAL: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the soft limit to the hard limit, at most to 1,048,576. Returns the limit in force afterwards.
///
/// Never lowers the limit. If the system rejects the change, the limit stays as it is.
pub fn raise_limit() -> u64 {
    let before = getrlimit(Resource::Nofile);
    INITIAL.get_or_init(|| before.current);
    // `None` means no limit.
    let Some(soft) = before.current else { return HIGHEST };
    let highest = before.maximum.map_or(HIGHEST, |hard| hard.min(HIGHEST));
    for wanted in [highest, highest.min(FALLBACK)] {
        let raised = Rlimit { current: Some(wanted), maximum: before.maximum };
        if wanted > soft && setrlimit(Resource::Nofile, raised).is_ok() {
            return wanted;
        }
    }
    soft
}

/// The soft limit in force.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST)
}

/// The soft limit that this process was started with, if [`raise_limit`] was called and there was one. Child
/// processes should get it.
pub fn initial_limit() -> Option<u64> {
    INITIAL.get().copied().flatten()
}

/// Whether an operation failed because this process or the machine has no free file descriptor. A later retry
/// may succeed.
#[cfg(feature = "raft")]
pub(crate) fn are_exhausted(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_the_hard_limit_and_the_initial_one_is_kept() {
        let before = limit();
        let raised = raise_limit();
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(HIGHEST).min(HIGHEST);
        assert!(raised >= before && raised <= hard.max(before), "{before} {raised} {hard}");
        assert_eq!(limit(), raised);
        raise_limit();
        // `None` if there was no limit.
        assert_eq!(initial_limit().unwrap_or(before), before);
    }
}

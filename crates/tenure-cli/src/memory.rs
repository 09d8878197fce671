//! How memory is handed out.
#![allow(unsafe_code)]

/// One heap for all threads. glibc makes one for each, and what a connection allocated on one thread and left on another keeps
/// both large: with a thousand watchers that is 2 MiB of 42. The few threads of a server hardly wait for one another, since
/// each keeps what it freed last to itself. To be called before there are threads.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn one_heap() {
    // SAFETY: takes no pointers, and no other thread exists that might be allocating.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Elsewhere there is nothing to be set.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn one_heap() {}

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

/// How much free memory the heap may have before it is given back to the system.
const FREE_MAX: usize = 16 * 1024 * 1024;

/// Gives memory that was freed back to the system, if there is much more of it than `kept`, which is what was free after the
/// last time. glibc keeps what is free between two blocks in use: without this, a server that once had thousands of
/// connections would stay as large as it was then. The program waits for it a few milliseconds.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn give_back(kept: &mut usize) {
    // SAFETY: takes no pointers.
    let free = unsafe { libc::mallinfo2() }.fordblks;
    *kept = (*kept).min(free);
    if free > *kept + FREE_MAX {
        // SAFETY: takes no pointers.
        unsafe { libc::malloc_trim(0) };
        *kept = free;
    }
}

/// Elsewhere the allocator does that by itself.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back(_: &mut usize) {}

/// Elsewhere there is nothing to be set.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn one_heap() {}

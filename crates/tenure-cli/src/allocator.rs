//! Settings of the memory allocator.
#![allow(unsafe_code)]

/// Uses one malloc arena for all threads. Must be called before the first thread starts.
///
/// glibc uses one arena per thread. If one thread allocates memory and another frees it, both arenas stay large. One
/// arena saves 2 of 42 MiB with a thousand streams. The few threads of a server rarely contend for it, because each
/// thread has a cache of freed blocks.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn use_single_arena() {
    // SAFETY: takes no pointers, and no other thread exists that might be allocating.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Growth of free heap memory that triggers a trim.
const FREE_MAX: usize = 16 * 1024 * 1024;

/// Returns free heap memory to the system if it exceeds `kept` by more than [`FREE_MAX`]. Blocks for a few
/// milliseconds.
///
/// The caller stores `kept` between calls: the free memory at the last trim, or less if it has shrunk since.
///
/// glibc keeps free memory between used blocks. Without a trim, a server that once had thousands of connections would
/// keep the memory it needed for them.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim_heap(kept: &mut usize) {
    // SAFETY: takes no pointers.
    let free = unsafe { libc::mallinfo2() }.fordblks;
    *kept = (*kept).min(free);
    if free > *kept + FREE_MAX {
        // SAFETY: takes no pointers.
        unsafe { libc::malloc_trim(0) };
        *kept = free;
    }
}

/// Other allocators need no trim.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim_heap(_: &mut usize) {}

/// Other allocators need no setting.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn use_single_arena() {}

//! Settings of the memory allocator.
#![allow(unsafe_code)]

/// Uses one malloc arena for all threads. Must be called before the first thread starts.
///
/// glibc uses one arena per thread, and memory that one thread allocates and another frees keeps both arenas large: with a
/// thousand streams, 2 MiB of 42. The few threads of a server rarely contend, because each has a cache of freed blocks.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn use_single_arena() {
    // SAFETY: takes no pointers, and no other thread exists that might be allocating.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Growth of free heap memory that triggers a trim.
const FREE_MAX: usize = 16 * 1024 * 1024;

/// Returns free memory to the system if it exceeds `kept`, the free memory after the last trim, by [`FREE_MAX`]. Blocks for a
/// few milliseconds.
///
/// glibc keeps free memory between used blocks. Without a trim, a server that once had thousands of connections would stay
/// as large as it was then.
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

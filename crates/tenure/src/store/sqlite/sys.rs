//! System calls that std and tokio do not offer. All unsafe code of the SQLite store is in this file.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How to take a kernel lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flock {
    /// Exclusive, or [`WouldBlock`](io::ErrorKind::WouldBlock).
    TryExclusive,
    /// Shared, or [`WouldBlock`](io::ErrorKind::WouldBlock).
    TryShared,
    /// Shared. Blocks the thread until the lock is available.
    Shared,
}

/// Lock a file with `flock(2)`. The lock belongs to the open file description: it ends when the last descriptor is closed in any
/// process. (A POSIX lock ends when the process closes *any* descriptor of the file, and processes cannot share it.)
pub(super) fn flock(file: &File, how: Flock) -> io::Result<()> {
    let operation = match how {
        Flock::TryExclusive => libc::LOCK_EX | libc::LOCK_NB,
        Flock::TryShared => libc::LOCK_SH | libc::LOCK_NB,
        Flock::Shared => libc::LOCK_SH,
    };
    loop {
        // SAFETY: the descriptor is open for as long as `file` is borrowed, and nothing else is passed.
        if unsafe { libc::flock(file.as_raw_fd(), operation) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Create a FIFO for its owner only.
pub(super) fn mkfifo(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a string that ends in NUL and lives until the call returns.
    match unsafe { libc::mkfifo(path.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Check that this process may write to the path, without opening it.
pub(super) fn may_write(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a string that ends in NUL and lives until the call returns.
    match unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The magic number of the file system of `path`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn filesystem_magic(path: &Path) -> io::Result<u32> {
    let path = c_path(path)?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `path` is a string that ends in NUL, and `found` is a place for one `statfs`.
    if unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled it in, and its initial value of zeros is also valid.
    let found = unsafe { found.assume_init() };
    // Magic numbers have 32 bits; a signed narrow field makes some of them negative.
    Ok((found.f_type as u64 & 0xffff_ffff) as u32)
}

/// Other systems do not report a magic number.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn filesystem_magic(_: &Path) -> io::Result<u32> {
    Ok(0)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path contains a NUL character"))
}

//! The few calls that neither std nor tokio has. All that is unsafe about this backend is here.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How to ask for a kernel lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flock {
    /// Exclusive, or [`WouldBlock`](io::ErrorKind::WouldBlock).
    TryExclusive,
    /// Shared, or [`WouldBlock`](io::ErrorKind::WouldBlock).
    TryShared,
    /// Shared, waiting for as long as it takes. Blocks the thread.
    Shared,
}

/// Locks a file by `flock(2)`. Such a lock belongs to the open file description: it ends when the last descriptor of it
/// is closed, in whatever process that is, and not before. (A POSIX lock would end when *any* descriptor of the file is
/// closed by its process, and no other process could share it.)
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

/// Makes a FIFO that only its owner may use.
pub(super) fn mkfifo(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a string that ends in NUL and lives until the call returns.
    match unsafe { libc::mkfifo(path.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this process may write there, found out without opening it.
pub(super) fn may_write(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: `path` is a string that ends in NUL and lives until the call returns.
    match unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The magic number of the file system that holds `path`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn filesystem_magic(path: &Path) -> io::Result<u32> {
    let path = c_path(path)?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `path` is a string that ends in NUL, and `found` is a place for one `statfs`.
    if unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled it in; and all zeros, with which it began, is a valid value too.
    let found = unsafe { found.assume_init() };
    // Every magic number has 32 bits; where the field is signed and narrow, some look negative.
    Ok((found.f_type as u64 & 0xffff_ffff) as u32)
}

/// Elsewhere, nothing is known.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn filesystem_magic(_: &Path) -> io::Result<u32> {
    Ok(0)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path has a NUL character"))
}

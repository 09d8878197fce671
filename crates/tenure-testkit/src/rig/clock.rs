//! Wrong clocks for single processes, and a reading of the true clock.
//!
//! [`FakeClock`] preloads libfaketime into a child process. The behaviour of libfaketime 0.9.10 (Debian 12, x86-64,
//! glibc) was measured against [`true_boottime_ns`], with both `libfaketime.so.1` and `libfaketimeMT.so.1`, which
//! agree:
//!
//! - `clock_gettime` is faked for `CLOCK_REALTIME`, `CLOCK_MONOTONIC`, `CLOCK_MONOTONIC_RAW` **and `CLOCK_BOOTTIME`**:
//!   a rate of 1.5 makes each of them advance 1.5 s per true second.
//! - The monotonic clocks also change their origin: they then count from 1970, as the wall clock does. Never compare
//!   a reading under libfaketime with one outside; compare differences.
//! - Waits with a *relative* time are scaled by the rate: `nanosleep`, `clock_nanosleep`, `poll`, `epoll_wait` and
//!   `timerfd_settime`.
//! - `timerfd_settime` with an *absolute* time (`TFD_TIMER_ABSTIME`, `CLOCK_MONOTONIC` or `CLOCK_BOOTTIME`) never
//!   fires: the kernel is handed a time counted from 1970.
//! - Rust's own timed waits (`Condvar::wait_timeout`, `thread::park_timeout`, `Receiver::recv_timeout`) never time
//!   out under it, at any rate or offset: std passes an absolute time to the futex system call, which is not
//!   intercepted. `thread::sleep` works. So do tokio's timers in a runtime with the I/O driver (`enable_all` and the
//!   feature `net`), which sleeps in `epoll_wait`; a runtime with only `enable_time` sleeps in a `Condvar`, forever.
//! - `FAKETIME_DONT_FAKE_MONOTONIC=1` leaves the monotonic and boot clocks right, but still scales the waits.
//! - Raw system calls and statically linked programs are not affected.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Context;
use super::process::write;

/// A wrong clock for a child process: shifted, fast or slow.
///
/// ```no_run
/// use std::process::Command;
/// use tenure_testkit::rig::FakeClock;
///
/// let mut date = Command::new("date");
/// FakeClock::true_time().rate(1.5).offset_s(-3600).apply(&mut date)?;
/// # Ok::<(), tenure_testkit::rig::RigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FakeClock {
    offset_s: i64,
    rate: f64,
}

impl FakeClock {
    /// No shift, and one second per second.
    pub fn true_time() -> Self {
        Self { offset_s: 0, rate: 1.0 }
    }

    /// Starts this many seconds ahead of the true time, or behind if negative.
    pub fn offset_s(mut self, offset_s: i64) -> Self {
        self.offset_s = offset_s;
        self
    }

    /// Advances this many seconds per true second.
    ///
    /// # Panics
    ///
    /// If `rate` is not a finite number above zero.
    pub fn rate(mut self, rate: f64) -> Self {
        assert!(
            rate.is_finite() && rate > 0.0,
            "the rate of a clock must be a finite number above zero, not {rate}"
        );
        self.rate = rate;
        self
    }

    /// Whether libfaketime is installed, or why a test must skip.
    pub fn available() -> Result<(), String> {
        library().map(|_| ())
    }

    /// Makes `command` and its children use this clock.
    pub fn apply(&self, command: &mut Command) -> super::Result<()> {
        let library = library().map_err(super::RigError::new)?;
        command.env("LD_PRELOAD", library).env("FAKETIME", format!("{:+} x{}", self.offset_s, self.rate));
        Ok(())
    }
}

/// A wall clock that can be set while processes use it. Their monotonic clocks stay right.
#[derive(Debug, Clone)]
pub struct SettableClock {
    file: PathBuf,
}

impl SettableClock {
    /// A clock that shows the true time, stored in this directory.
    pub fn new(folder: &Path) -> super::Result<Self> {
        library().map_err(super::RigError::new)?;
        let clock = Self { file: folder.join("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets the clock to this many seconds ahead of the true time, or behind if negative. Takes effect at once.
    pub fn set(&self, offset_s: i64) -> super::Result<()> {
        // Replace the file atomically, so that no process reads half of it.
        let new = self.file.with_extension("new");
        write(&new, &format!("{offset_s:+}\n"))?;
        let wrong = || format!("cannot set the clock {}", self.file.display());
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).context(wrong)?;
        fs::rename(&new, &self.file).context(wrong)
    }

    /// Makes `command` and its children use this clock.
    pub fn apply(&self, command: &mut Command) -> super::Result<()> {
        let library = library().map_err(super::RigError::new)?;
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            // Without this, a change takes effect up to ten seconds later.
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Ok(())
    }
}

/// Nanoseconds of `CLOCK_BOOTTIME` directly from the kernel, independent of preloaded libraries.
#[allow(unsafe_code)]
pub fn true_boottime_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to a variable of that type that we own, and keeps no pointer to it.
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_BOOTTIME, &raw mut now) };
    assert_eq!(result, 0, "Linux has had CLOCK_BOOTTIME since 2.6.39");
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn library() -> Result<PathBuf, String> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders
        .map(|folder| folder.path().join("faketime/libfaketime.so.1"))
        .chain([PathBuf::from("/usr/lib/faketime/libfaketime.so.1")])
        .find(|library| library.exists())
        .ok_or_else(|| "libfaketime.so.1 not found under /usr/lib; install the package faketime".to_owned())
}

//! Clocks and randomness. All other code receives them through [`Runtime`].
#![allow(unsafe_code, clippy::disallowed_methods)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{BootInstant, Entropy};

/// Source of time and randomness: the machine, or a test.
pub trait Runtime: Send + Sync + 'static {
    /// The monotonic clock that includes suspended time.
    fn now(&self) -> BootInstant;

    /// The wall clock in milliseconds since 1970. For display only; no guarantee depends on it.
    fn wall_ms(&self) -> i64;

    /// Sleeps until the clock shows `at`.
    fn sleep_until<'a>(&'a self, at: BootInstant) -> futures_core::future::BoxFuture<'a, ()>;

    /// 64 random bits.
    fn random(&self) -> u64;
}

/// The clock and randomness of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRuntime;

impl Runtime for SystemRuntime {
    fn now(&self) -> BootInstant {
        now()
    }

    fn wall_ms(&self) -> i64 {
        wall_ms()
    }

    fn sleep_until<'a>(&'a self, at: BootInstant) -> futures_core::future::BoxFuture<'a, ()> {
        Box::pin(sleep_until(at))
    }

    fn random(&self) -> u64 {
        random()
    }
}

/// Random numbers from a [`Runtime`].
pub struct RuntimeEntropy<'a>(pub &'a dyn Runtime);

impl Entropy for RuntimeEntropy<'_> {
    fn next_u64(&mut self) -> u64 {
        self.0.random()
    }
}

/// Current time of the clock that trust depends on. It includes suspended time, which `std::time::Instant` does
/// not: a laptop that was suspended for an hour must not resume as leader.
pub fn now() -> BootInstant {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    // Includes suspended time on Apple's systems.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    let status = unsafe { libc::clock_gettime(CLOCK, &mut time) };
    assert_eq!(status, 0, "this system has no monotonic clock that includes suspended time");
    BootInstant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Milliseconds since 1970, for display.
pub fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A random duration between half and one and a half of `time`, so that many processes do not retry at the same
/// moment.
pub fn jittered(time: Duration) -> Duration {
    time / 2 + time.mul_f64((random() % 1024) as f64 / 1024.0)
}

/// 64 random bits from the operating system.
pub fn random() -> u64 {
    getrandom::u64().expect("the operating system provides no random numbers")
}

/// The longest single sleep. The timer of tokio does not include suspended time, so a long sleep is split into
/// short ones. Code that compares the clock at every call ([`now`]) is exact regardless.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Sleeps until [`now`] shows `at`.
pub async fn sleep_until(at: BootInstant) {
    loop {
        let remaining = at.since(now());
        if remaining.is_zero() {
            return;
        }
        tokio::time::sleep(remaining.min(SLEEP_MAX)).await;
    }
}

/// Blocks the current thread. Not for threads of the asynchronous runtime.
pub fn block_for(time: Duration) {
    std::thread::sleep(time);
}

/// The host's name.
pub fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer has this length, and its last byte stays zero.
    let status = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    if status == 0 { String::from_utf8_lossy(&name[..end]).into_owned() } else { "host".into() }
}

/// Default name of this process: the host name and the process number.
pub fn process_name() -> String {
    format!("{}-{}", host_name(), std::process::id())
}

//! The only place that reads a clock or draws randomness. Everything else is told.
#![allow(unsafe_code, clippy::disallowed_methods)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::{Entropy, Moment};

/// Where time and randomness come from: the machine, or a test's hand.
pub trait Runtime: Send + Sync + 'static {
    /// The suspend-counting monotonic clock.
    fn now(&self) -> Moment;

    /// The wall clock, in milliseconds since 1970; for people, never for safety.
    fn wall_ms(&self) -> i64;

    /// Sleeps until the clock shows `at`.
    fn sleep_until<'a>(&'a self, at: Moment) -> futures_core::future::BoxFuture<'a, ()>;

    /// 64 random bits.
    fn random(&self) -> u64;
}

/// The machine's own clock and randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Runtime for System {
    fn now(&self) -> Moment {
        now()
    }

    fn wall_ms(&self) -> i64 {
        wall_ms()
    }

    fn sleep_until<'a>(&'a self, at: Moment) -> futures_core::future::BoxFuture<'a, ()> {
        Box::pin(sleep_until(at))
    }

    fn random(&self) -> u64 {
        random()
    }
}

/// Draws from a [`Runtime`].
pub struct Draw<'a>(pub &'a dyn Runtime);

impl Entropy for Draw<'_> {
    fn next_u64(&mut self) -> u64 {
        self.0.random()
    }
}

/// The clock of trust. It counts the time a machine is suspended, which `std::time::Instant` does not: a laptop that
/// slept for an hour must not wake up as leader.
pub fn now() -> Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    // Counts suspend on Apple's systems.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the kernel to write to.
    let status = unsafe { libc::clock_gettime(CLOCK, &mut time) };
    assert_eq!(status, 0, "this system has no suspend-counting clock");
    Moment::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Milliseconds since 1970, for people.
pub fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Between a half of a time and one and a half of it, so that two hundred processes do not all come back at once.
pub fn jittered(time: Duration) -> Duration {
    time / 2 + time.mul_f64((random() % 1024) as f64 / 1024.0)
}

/// 64 bits from the operating system.
pub fn random() -> u64 {
    getrandom::u64().expect("the operating system has no randomness")
}

/// The longest single sleep. The timer under tokio does not count suspend, so a long sleep is cut into short ones, each
/// measured anew; what compares the clock at every call ([`now`]) is exact all the same.
const NAP: Duration = Duration::from_millis(500);

/// Sleeps until [`now`] shows `at`.
pub async fn sleep_until(at: Moment) {
    loop {
        let left = at.since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(NAP)).await;
    }
}

/// Stops this thread for a while. Not for threads of the asynchronous runtime.
pub fn block_for(time: Duration) {
    std::thread::sleep(time);
}

/// The host's name.
pub fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is as long as said, and the last byte stays zero.
    let status = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    if status == 0 { String::from_utf8_lossy(&name[..end]).into_owned() } else { "host".into() }
}

/// What people call this process: the host's name and the process number.
pub fn process_name() -> String {
    format!("{}-{}", host_name(), std::process::id())
}

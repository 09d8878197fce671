//! Runs a program while a lease is held, and guarantees that it stops before the lease ends.
//!
//! ```text
//!   supervisor (`tenure run`)  --commands-->  watchdog  --signals-->  the program and its group
//!              ^---------------reports-------------'
//! ```
//!
//! The supervisor knows how long the lease lasts and sends deadlines (absolute `CLOCK_BOOTTIME` nanoseconds). The
//! watchdog, a separate process, stops the program *before* the last deadline it received. So exclusivity does not
//! depend on the supervisor being alive, scheduled or not stopped. What happens when a process dies or stops:
//!
//! | dies or stops | then |
//! |---|---|
//! | main process exits | descendants get SIGTERM, the grace period, SIGKILL; then the watchdog reports the status |
//! | supervisor stopped | the watchdog stops the group before the deadline |
//! | supervisor killed | the watchdog stops the group at once, within the deadline, and then ends the session |
//! | watchdog stopped | the supervisor kills the group at the deadline and wakes the watchdog |
//! | watchdog killed | the kernel kills the main process; the supervisor kills all descendants |
//! | both killed | the kernel kills the main process; surviving descendants hold the kernel lock and so the lease |
//!
//! The group is a process group in the session of the watchdog. Descendants that leave it (`setsid`, double fork) are
//! found while the watchdog or the supervisor lives, because both are subreapers. They get SIGTERM after the main
//! process has exited (before that, the main process manages them), and SIGKILL with the rest.
//!
//! The program inherits the standard streams (or gets those of [`ChildSpec::streams`]), the working directory, the
//! environment (with [`ChildSpec::env`] added and [`ChildSpec::withheld`] removed) and the descriptors of
//! [`ChildSpec::keep`]. It inherits no other descriptor and no blocked or ignored signal. It has no controlling
//! terminal: it can read and write streams that are terminals, but it has no job control.
//!
//! A supervisor must not have children in other sessions, except through [`Child`]: if a watchdog is killed, they could
//! not be distinguished from its descendants.

mod process_tree;
mod protocol;
mod shutdown;
mod supervisor;
mod syscalls;
mod watchdog;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use supervisor::WatchdogMailbox;

/// Exit code of a program that was stopped at its deadline; the same as timeout(1).
pub(crate) const EXIT_DEADLINE: i32 = 124;
/// Exit code of an internal error of tenure; the same as env(1), timeout(1) and docker.
pub(crate) const EXIT_INTERNAL_ERROR: i32 = 125;

/// Hidden argument of the process that ends the sessions of a dead supervisor; see [`ChildSpec::orphan_cleanup`].
pub(crate) const END_SESSIONS: &str = "__end-sessions";

/// The program to run, its environment and its first deadline.
#[derive(Debug)]
pub(crate) struct ChildSpec {
    /// The program, searched in `PATH`, and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Variables added to the inherited environment of the program.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Variables that the program does not inherit.
    pub(crate) withheld: Vec<OsString>,
    /// Descriptors kept open in the watchdog until the whole process tree is gone, and in the program under the same
    /// numbers.
    ///
    /// Used for the kernel lock of the lease. The lock must belong to the open file (`flock` or `F_OFD_SETLK`), because
    /// a child process does not inherit other locks. The caller must not unlock it before [`Child::wait`] has returned.
    pub(crate) keep: Vec<OwnedFd>,
    /// Standard streams of the program.
    pub(crate) streams: Streams,
    /// Deadline of the program, in nanoseconds of `CLOCK_BOOTTIME`.
    pub(crate) deadline_ns: u64,
    /// Grace period between SIGTERM and SIGKILL.
    pub(crate) kill_after: Duration,
    /// Input of `tenure __end-sessions`. The watchdog runs that command after the supervisor has died and no process of
    /// the program is left. If the input is empty, the watchdog does not run it.
    pub(crate) orphan_cleanup: Vec<u8>,
}

/// Standard streams of the program; `None` means inherited.
///
/// The watchdog closes input and output once the program runs, so that a pipe ends when the program closes it. It keeps
/// standard error open until it exits.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) input: Option<OwnedFd>,
    pub(crate) output: Option<OwnedFd>,
    pub(crate) errors: Option<OwnedFd>,
}

/// A program under a watchdog. Dropping it stops the program as [`Child::end`] does.
#[derive(Debug)]
pub(crate) struct Child {
    pid: u32,
    watchdog_pid: u32,
    kill_after: Duration,
    desk: Arc<WatchdogMailbox>,
    ending: watch::Receiver<Option<ChildExit>>,
}

/// How the program ended. No process of the program is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildExit {
    /// Exit code.
    Exited(i32),
    /// Killed by this signal.
    Signalled(i32),
    /// Stopped by the watchdog at its deadline.
    EndedForTrust,
    /// The watchdog was killed, and the program with it.
    WatchdogDied,
}

/// The program was not started; no process is left.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    /// The program cannot be executed.
    #[error("cannot run {program:?}: {source}")]
    Exec {
        /// The first argument.
        program: OsString,
        /// Reason.
        source: io::Error,
    },
    /// The watchdog cannot be started.
    #[error("cannot start the watchdog: {0}")]
    Watchdog(#[source] io::Error),
    /// The watchdog was killed before it could start the program.
    #[error("the watchdog died before the program was started")]
    WatchdogDied,
    /// The deadline had passed before the program was started.
    #[error("the deadline passed before the program was started")]
    TrustEnded,
}

impl Child {
    /// Starts the program. Returns after exec succeeded or failed. Dropping the future stops the program.
    pub(crate) async fn spawn(spec: ChildSpec) -> Result<Self, SpawnError> {
        // The link refers to this file even if another version was installed at its path.
        Self::spawn_with(Path::new("/proc/self/exe"), spec).await
    }

    /// As [`Child::spawn`], with another executable as watchdog. It must call [`watchdog_main_if_requested`].
    #[doc(hidden)]
    pub(crate) async fn spawn_with(executable: &Path, spec: ChildSpec) -> Result<Self, SpawnError> {
        supervisor::spawn(executable, spec).await
    }

    /// Pid of the main process, which is also the id of its process group.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Pid of the watchdog.
    pub(crate) fn watchdog_pid(&self) -> u32 {
        self.watchdog_pid
    }

    /// Sets a later deadline. Never blocks; an earlier deadline has no effect.
    pub(crate) fn extend(&self, deadline_ns: u64) {
        self.desk.extend(deadline_ns);
    }

    /// Sends a signal to the group. Never blocks; merges equal signals that are not delivered yet, as the kernel does.
    pub(crate) fn signal(&self, signal: i32) {
        self.desk.signal(signal);
    }

    /// Sends SIGTERM and, after `kill_after`, SIGKILL. Never blocks; use [`wait`](Child::wait) to wait for the end.
    pub(crate) fn stop(&self) {
        self.desk.end(self.kill_after);
    }

    /// Sends SIGTERM and, after `kill_after`, SIGKILL. Returns when no process is left. Continues if the future is
    /// dropped.
    pub(crate) async fn end(&self) -> ChildExit {
        self.end_within(self.kill_after).await
    }

    /// As [`Child::end`] with another grace period; zero means SIGKILL at once. A second call can only shorten it.
    pub(crate) async fn end_within(&self, grace: Duration) -> ChildExit {
        self.desk.end(grace);
        self.wait().await
    }

    /// Waits until no process is left, the watchdog included. May be called and dropped any number of times.
    pub(crate) async fn wait(&self) -> ChildExit {
        let mut ending = self.ending.clone();
        let known = ending.wait_for(Option::is_some).await;
        // The sender is dropped only with the runtime. The watchdog then detects the closed socket and stops the
        // program.
        known.ok().and_then(|ending| *ending).unwrap_or(ChildExit::WatchdogDied)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.desk.close();
    }
}

impl ChildExit {
    /// Exit code of `tenure run`.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Exited(code) => *code,
            Self::Signalled(signal) => 128 + signal,
            Self::EndedForTrust => EXIT_DEADLINE,
            Self::WatchdogDied => EXIT_INTERNAL_ERROR,
        }
    }
}

impl SpawnError {
    /// Exit code of `tenure run`, as in shells: 127 if the program is not found, 126 if it cannot be executed.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            Self::Watchdog(_) | Self::WatchdogDied => EXIT_INTERNAL_ERROR,
            Self::TrustEnded => EXIT_DEADLINE,
        }
    }
}

/// Overwrites a secret in the arguments of this process, so that other processes cannot read it. Returns whether the
/// secret was found. Must be called while the process has one thread.
pub(crate) fn overwrite_in_arguments(secret: &str) -> bool {
    syscalls::overwrite_in_arguments(secret)
}

/// Nanoseconds of `CLOCK_BOOTTIME`, the clock of all deadlines; for tests.
#[allow(dead_code)]
pub(crate) fn boottime_ns() -> u64 {
    syscalls::boottime_ns()
}

/// If this process was started as a watchdog, runs the watchdog and does not return.
///
/// `main` must call it first: the watchdog forks, so the process must have one thread.
pub(crate) fn watchdog_main_if_requested() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != watchdog::ARGUMENT) {
        return;
    }
    let descriptors: Option<Vec<_>> = arguments.map(|argument| argument.to_str()?.parse().ok()).collect();
    let result =
        descriptors.ok_or_else(|| io::ErrorKind::InvalidInput.into()).and_then(|it| watchdog::run(&it));
    if let Err(error) = &result {
        let mut err = io::stderr();
        let _ = writeln!(err, "tenure: the watchdog failed: {error}");
    }
    std::process::exit(if result.is_ok() { 0 } else { EXIT_INTERNAL_ERROR });
}

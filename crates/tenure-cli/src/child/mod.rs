//! The program that runs while we lead, and the promise that it does not run any longer.
//!
//! ```text
//!   supervisor (`tenure run`)  --orders-->  watchdog  --signals-->  the program and its group
//!              ^---------------reports-----------'
//! ```
//!
//! The supervisor knows how long trust lasts and says so in deadlines (absolute `CLOCK_BOOTTIME` nanoseconds). The
//! watchdog, a process of its own, ends the program *before* the last deadline it was told. So exclusivity does not hang
//! on the supervisor being alive, scheduled or not stopped. What happens when something dies:
//!
//! | dies or stops | then |
//! |---|---|
//! | the program's main process | what it left behind gets SIGTERM, the grace, SIGKILL; then its status is reported |
//! | supervisor stopped | the group is ended before the deadline |
//! | supervisor killed | the group gets SIGTERM, the grace (within trust), SIGKILL; then the watchdog ends the session in the store |
//! | watchdog stopped | the supervisor kills the group at the deadline and wakes the watchdog |
//! | watchdog killed | the kernel kills the main process, the supervisor the group and whatever has left it |
//! | both killed | the kernel kills the main process; descendants that live on hold the kernel lock, so the lease too |
//!
//! The group is a process group in the watchdog's session. Descendants that leave it (`setsid`, double fork) are found
//! as long as watchdog or supervisor lives, since both are subreapers. They get SIGTERM when the main process has
//! gone (before, they are its own affair), and SIGKILL with the rest.
//!
//! The program inherits standard streams (or gets those of [`Spec::streams`]), directory, environment (plus [`Spec::env`], less
//! [`Spec::withheld`]) and [`Spec::keep`], and nothing else: no other descriptor, no blocked or ignored signal. It has no controlling terminal, though its streams may be
//! terminals: it can read and write them, but job control is not its own.
//!
//! A supervisor must not have children in other sessions than its own, except through [`Child`]: should a watchdog be
//! killed, they could not be told from what it left behind.

mod plan;
mod protocol;
mod supervisor;
mod sys;
mod tree;
mod watchdog;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use supervisor::Desk;

/// The exit code that says: ended because trust ran out. That of timeout(1), since that is what it is.
pub(crate) const EXIT_TRUST_ENDED: i32 = 124;
/// The exit code that says: the failure is tenure's, not the program's. That of env(1), timeout(1) and docker.
pub(crate) const EXIT_OWN_FAILURE: i32 = 125;

/// The hidden argument of the process that ends the sessions of a dead supervisor; see [`Spec::orphan_cleanup`].
pub(crate) const END_SESSIONS: &str = "__end-sessions";

/// What to run, and for how long at first.
#[derive(Debug)]
pub(crate) struct Spec {
    /// The program, searched in `PATH`, and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Added to our own environment, for the program only.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Variables of our own environment that the program does not get.
    pub(crate) withheld: Vec<OsString>,
    /// Open in the watchdog until the whole tree is gone, and in the program under the same numbers.
    ///
    /// Meant for the kernel lock of the lease. It must be one that belongs to the open file (`flock`, or `F_OFD_SETLK`),
    /// since others are not inherited, and it must not be unlocked by hand before [`Child::wait`] has returned.
    pub(crate) keep: Vec<OwnedFd>,
    /// Its standard streams, where they are not ours.
    pub(crate) streams: Streams,
    /// Until when the program may run, in nanoseconds of `CLOCK_BOOTTIME`.
    pub(crate) deadline_ns: u64,
    /// The grace between SIGTERM and SIGKILL.
    pub(crate) kill_after: Duration,
    /// What the watchdog passes to `tenure __end-sessions` when the supervisor has died and no process of the program is left. Empty:
    /// nothing is run then.
    pub(crate) orphan_cleanup: Vec<u8>,
}

/// Standard streams of the program; those that are `None` are ours.
///
/// The watchdog lets go of input and output once the program runs, so a pipe ends when the program's own end does. Its errors it
/// shares until it exits.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) input: Option<OwnedFd>,
    pub(crate) output: Option<OwnedFd>,
    pub(crate) errors: Option<OwnedFd>,
}

/// A program that runs under a watchdog. Dropping it ends the program as [`Child::end`] does.
#[derive(Debug)]
pub(crate) struct Child {
    pid: u32,
    watchdog_pid: u32,
    kill_after: Duration,
    desk: Arc<Desk>,
    ending: watch::Receiver<Option<Ending>>,
}

/// How the program ended. When this is known, no process of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With this code.
    Exited(i32),
    /// By this signal, whoever sent it.
    Signalled(i32),
    /// By the watchdog, since no newer deadline came in time.
    EndedForTrust,
    /// The watchdog was killed, and the program with it.
    WatchdogDied,
}

/// The program was not started, and nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    /// The program cannot be executed.
    #[error("cannot run {program:?}: {source}")]
    Exec {
        /// The first of the arguments.
        program: OsString,
        /// Why.
        source: io::Error,
    },
    /// The watchdog cannot be started.
    #[error("cannot start the watchdog, without which nothing is run: {0}")]
    Watchdog(#[source] io::Error),
    /// The watchdog was killed before it could start the program.
    #[error("the watchdog died before the program was started")]
    WatchdogDied,
    /// The deadline had passed before the program was started.
    #[error("trust ran out before the program was started")]
    TrustEnded,
}

impl Child {
    /// Resolves when the program has been executed, or could not be. Dropping the future ends what was begun.
    pub(crate) async fn spawn(spec: Spec) -> Result<Self, SpawnError> {
        // The link means this very file, even if another version has been installed over its path.
        Self::spawn_with(Path::new("/proc/self/exe"), spec).await
    }

    /// With another executable as the watchdog, one that calls [`watchdog_main_if_asked`].
    #[doc(hidden)]
    pub(crate) async fn spawn_with(executable: &Path, spec: Spec) -> Result<Self, SpawnError> {
        supervisor::spawn(executable, spec).await
    }

    /// Of the main process, which is also the number of its group.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// For people who look for it.
    pub(crate) fn watchdog_pid(&self) -> u32 {
        self.watchdog_pid
    }

    /// Trusts the program until then. Never blocks; an earlier deadline than the last one changes nothing.
    pub(crate) fn extend(&self, deadline_ns: u64) {
        self.desk.extend(deadline_ns);
    }

    /// Sends a signal to the group. Never blocks; like the kernel, merges equal signals that are not yet delivered.
    pub(crate) fn signal(&self, signal: i32) {
        self.desk.signal(signal);
    }

    /// SIGTERM, `kill_after`, SIGKILL; [`wait`](Child::wait) says when no process is left. Never blocks.
    pub(crate) fn stop(&self) {
        self.desk.end(self.kill_after);
    }

    /// SIGTERM, `kill_after`, SIGKILL. Resolves when no process is left. It goes on if the future is dropped.
    pub(crate) async fn end(&self) -> Ending {
        self.end_within(self.kill_after).await
    }

    /// As [`Child::end`] with another grace; none at all means SIGKILL at once. A second call can only shorten it.
    pub(crate) async fn end_within(&self, grace: Duration) -> Ending {
        self.desk.end(grace);
        self.wait().await
    }

    /// Resolves when no process is left and the watchdog has gone too. May be called, and dropped, any number of times.
    pub(crate) async fn wait(&self) -> Ending {
        let mut ending = self.ending.clone();
        let known = ending.wait_for(Option::is_some).await;
        // The task that would tell is gone only if the runtime is; the watchdog then sees its line closed, and ends all.
        known.ok().and_then(|ending| *ending).unwrap_or(Ending::WatchdogDied)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.desk.close();
    }
}

impl Ending {
    /// What `tenure run` exits with.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Exited(code) => *code,
            Self::Signalled(signal) => 128 + signal,
            Self::EndedForTrust => EXIT_TRUST_ENDED,
            Self::WatchdogDied => EXIT_OWN_FAILURE,
        }
    }
}

impl SpawnError {
    /// What `tenure run` exits with: as shells do, 127 for what is not there and 126 for what cannot be executed.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            Self::Watchdog(_) | Self::WatchdogDied => EXIT_OWN_FAILURE,
            Self::TrustEnded => EXIT_TRUST_ENDED,
        }
    }
}

/// Overwrites a secret in the arguments of this process, as others see them. True if it was there. Must be called while the process has
/// one thread.
pub(crate) fn overwrite_in_arguments(secret: &str) -> bool {
    sys::overwrite_in_arguments(secret)
}

/// Nanoseconds of `CLOCK_BOOTTIME`: the clock of all deadlines here. The tests reckon with it.
#[allow(dead_code)]
pub(crate) fn boottime_ns() -> u64 {
    sys::boottime_ns()
}

/// Becomes the watchdog, and does not return, if this process was started to be one.
///
/// Must be the first thing that `main` does: the watchdog forks, and so must have one thread.
pub(crate) fn watchdog_main_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != watchdog::ARGUMENT) {
        return;
    }
    let descriptors: Option<Vec<_>> = arguments.map(|argument| argument.to_str()?.parse().ok()).collect();
    let result =
        descriptors.ok_or_else(|| io::ErrorKind::InvalidInput.into()).and_then(|it| watchdog::run(&it));
    if let Err(error) = &result {
        let mut err = io::stderr();
        let _ = writeln!(err, "tenure: the watchdog, which only `tenure run` can start, failed: {error}");
    }
    std::process::exit(if result.is_ok() { 0 } else { EXIT_OWN_FAILURE });
}

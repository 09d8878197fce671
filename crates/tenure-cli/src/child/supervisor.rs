//! Supervisor side: starts the watchdog, sends it commands, and cleans up if it dies.
//!
//! A [`WatchdogMailbox`] holds the pending commands: the latest deadline, a set of signals, the shortest grace period.
//! It is a state, not a queue, so it stays small while the watchdog does not read, and adding to it never blocks. A
//! task sends it, reads the reports, and outlives the [`Child`] until the watchdog is reaped.
//!
//! The watchdog manages the process group. The supervisor acts itself in two cases only:
//!
//! - The deadline has passed without a report, which means that the watchdog hangs or is stopped by a signal. The
//!   supervisor sends it SIGCONT and kills its descendants one by one through pid descriptors.
//! - The watchdog died without a report. It has not reaped the main process, and the supervisor, which is a subreaper
//!   and now the parent, has not reaped it either. So the group id is still valid, and the supervisor kills the group.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot, watch};

use super::protocol::{ExitReport, FrameCodec, StartCommand, WatchdogCommand, WatchdogReport};
use super::syscalls::{self, ExitStatus, Pid, SIGCONT, SIGKILL};
use super::{Child, ChildExit, ChildSpec, SpawnError, Streams, process_tree, watchdog};

/// Poll interval for a group that should be gone.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of clock checks: a sleep does not count the time of a suspend, but the deadline does.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// Living watchdogs. The lock is held while a watchdog is started, so that `end_adopted` does not mistake the new
/// process for an adopted one.
static WATCHDOGS: Mutex<BTreeSet<Pid>> = Mutex::new(BTreeSet::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pending commands for the watchdog.
#[derive(Debug)]
pub(super) struct WatchdogMailbox {
    orders: Mutex<PendingCommands>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct PendingCommands {
    deadline_ns: u64,
    deadline_is_news: bool,
    /// Bit n is signal n.
    signals: u128,
    grace_ns: Option<u64>,
    closed: bool,
}

impl WatchdogMailbox {
    fn new(deadline_ns: u64) -> Self {
        Self {
            orders: Mutex::new(PendingCommands { deadline_ns, ..PendingCommands::default() }),
            changed: Notify::new(),
        }
    }

    pub(super) fn extend(&self, deadline_ns: u64) {
        self.change(|orders| {
            if deadline_ns > orders.deadline_ns {
                orders.deadline_ns = deadline_ns;
                orders.deadline_is_news = true;
            }
        });
    }

    pub(super) fn signal(&self, signal: i32) {
        if (1..128).contains(&signal) {
            self.change(|orders| orders.signals |= 1 << signal);
        }
    }

    pub(super) fn end(&self, grace: Duration) {
        let grace_ns = nanos(grace);
        self.change(|orders| {
            orders.grace_ns = Some(orders.grace_ns.map_or(grace_ns, |other| other.min(grace_ns)))
        });
    }

    pub(super) fn close(&self) {
        self.change(|orders| orders.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut PendingCommands)) {
        change(&mut lock(&self.orders));
        self.changed.notify_one();
    }

    /// Moves the pending commands into `outbox`. Returns whether one of them is an end.
    fn take(&self, outbox: &mut Vec<u8>) -> bool {
        let mut orders = lock(&self.orders);
        if std::mem::take(&mut orders.deadline_is_news) {
            WatchdogCommand::Extend { deadline_ns: orders.deadline_ns }.encode(outbox);
        }
        let signals = std::mem::take(&mut orders.signals);
        (1..128)
            .filter(|signal| signals & 1 << signal != 0)
            .for_each(|it| WatchdogCommand::Signal(it).encode(outbox));
        let grace_ns = orders.grace_ns.take();
        grace_ns.into_iter().for_each(|grace_ns| WatchdogCommand::End { grace_ns }.encode(outbox));
        grace_ns.is_some()
    }

    /// The latest deadline, and whether the child was dropped.
    fn glance(&self) -> (u64, bool) {
        let orders = lock(&self.orders);
        (orders.deadline_ns, orders.closed)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) async fn spawn(executable: &Path, spec: ChildSpec) -> Result<Child, SpawnError> {
    let program = check(&spec)?;
    let (line, theirs) = StdStream::pair().map_err(SpawnError::Watchdog)?;
    let mut line = WatchdogSocket::new(line).map_err(SpawnError::Watchdog)?;
    // If the watchdog is killed, its descendants become children of this process instead of init.
    syscalls::adopt_orphans().map_err(SpawnError::Watchdog)?;
    let watchdog =
        Watchdog::start(executable, theirs.into(), spec.keep, spec.streams).map_err(SpawnError::Watchdog)?;

    let (deadline_ns, kill_after) = (spec.deadline_ns, spec.kill_after);
    let start = StartCommand {
        deadline_ns,
        kill_after_ns: nanos(kill_after),
        argv: spec.argv,
        env: spec.env,
        withheld: spec.withheld,
        orphan_cleanup: spec.orphan_cleanup,
    };
    WatchdogCommand::Start(start).encode(&mut line.outbox);
    let (answer, answered) = oneshot::channel();
    // A separate task, so that the watchdog is reaped even if the caller no longer waits.
    tokio::spawn(async move {
        match line.answer().await {
            Some(WatchdogReport::Started(group)) => {
                let desk = Arc::new(WatchdogMailbox::new(deadline_ns));
                let (tell, ending) = watch::channel(None);
                let (pid, watchdog_pid) = (group.cast_unsigned(), watchdog.pid.cast_unsigned());
                // If the caller is gone, the child is dropped and thereby stopped.
                let _ =
                    answer.send(Ok(Child { pid, watchdog_pid, kill_after, desk: Arc::clone(&desk), ending }));
                tell.send_replace(Some(supervise(line, watchdog, &desk, group).await));
            }
            other => {
                drop(line);
                watchdog.gone().await;
                let _ = answer.send(Err(match other {
                    Some(WatchdogReport::Failed(errno)) => {
                        SpawnError::Exec { program, source: io::Error::from_raw_os_error(errno) }
                    }
                    Some(_) => SpawnError::TrustEnded,
                    None => SpawnError::WatchdogDied,
                }));
            }
        }
    });
    answered.await.unwrap_or(Err(SpawnError::WatchdogDied))
}

/// Waits until no process is left, the watchdog included.
async fn supervise(
    mut line: WatchdogSocket,
    watchdog: Watchdog,
    desk: &WatchdogMailbox,
    group: Pid,
) -> ChildExit {
    let last = line.carry(desk, &watchdog).await;
    // Close the socket before the wait: if the child was dropped, the closed socket tells the watchdog to stop the
    // program.
    drop(line);
    if matches!(last, SupervisorExit::Closed) {
        syscalls::kill_group(group, SIGKILL);
    }
    watchdog.gone().await;
    match last {
        SupervisorExit::Report(ExitReport::Status(ExitStatus::Exited(code))) => ChildExit::Exited(code),
        SupervisorExit::Report(ExitReport::Status(ExitStatus::Signalled(signal))) => {
            ChildExit::Signalled(signal)
        }
        SupervisorExit::Report(ExitReport::ForTrust) => ChildExit::EndedForTrust,
        SupervisorExit::Closed | SupervisorExit::Dropped => ChildExit::WatchdogDied,
    }
}

/// Rejects arguments that exec cannot take. Returns the program name.
fn check(spec: &ChildSpec) -> Result<std::ffi::OsString, SpawnError> {
    let program = spec.argv.first().cloned().unwrap_or_default();
    let has_nul = |text: &std::ffi::OsString| text.as_bytes().contains(&0);
    let bad_name =
        |name: &std::ffi::OsString| name.is_empty() || has_nul(name) || name.as_bytes().contains(&b'=');
    let why = if spec.argv.is_empty() {
        "no program"
    } else if spec.argv.iter().any(has_nul)
        || spec.env.iter().any(|(name, value)| bad_name(name) || has_nul(value))
    {
        "an argument or variable has an invalid character"
    } else {
        return Ok(program);
    };
    Err(SpawnError::Exec { program, source: io::Error::new(io::ErrorKind::InvalidInput, why) })
}

/// The watchdog process until it is reaped.
struct Watchdog {
    process: tokio::process::Child,
    pid: Pid,
}

impl Watchdog {
    fn start(executable: &Path, line: OwnedFd, keep: Vec<OwnedFd>, streams: Streams) -> io::Result<Self> {
        let inherit: Vec<_> = std::iter::once(&line).chain(&keep).map(AsRawFd::as_raw_fd).collect();
        let mut command = Command::new(executable);
        command.arg0("tenure").arg(watchdog::ARGUMENT).args(inherit.iter().map(ToString::to_string));
        if let Some(input) = streams.input {
            command.stdin(input);
        }
        if let Some(output) = streams.output {
            command.stdout(output);
        }
        if let Some(errors) = streams.errors {
            command.stderr(errors);
        }
        syscalls::detach(&mut command, inherit);
        let mut living = lock(&WATCHDOGS);
        let process = tokio::process::Command::from(command).spawn()?;
        let pid = process.id().map_or(0, u32::cast_signed);
        living.insert(pid);
        Ok(Self { process, pid })
    }

    /// Continues a stopped watchdog. Its pid is valid, because only `gone` reaps it.
    fn wake(&self) {
        syscalls::kill(self.pid, SIGCONT);
    }

    /// Kills all descendants of the watchdog, for the case that the watchdog does not.
    fn kill_descendants(&self) {
        process_tree::descendants(self.pid).iter().for_each(|it| it.signal(SIGKILL));
    }

    /// Waits until the watchdog exits. If it failed, kills its remaining descendants.
    async fn gone(mut self) {
        // A stopped watchdog would not notice the closed socket.
        self.wake();
        let status = self.process.wait().await;
        lock(&WATCHDOGS).remove(&self.pid);
        while !status.as_ref().is_ok_and(std::process::ExitStatus::success) && end_adopted() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Kills and reaps the descendants of a dead watchdog. Returns whether there were any.
fn end_adopted() -> bool {
    let living = lock(&WATCHDOGS);
    let Ok(adopted) = process_tree::adopted(&living) else { return true };
    process_tree::with_descendants(process_tree::own_pid(), adopted.clone())
        .iter()
        .for_each(|it| it.signal(SIGKILL));
    for pid in &adopted {
        syscalls::reap(*pid);
    }
    !adopted.is_empty()
}

/// Why the exchange of frames ended.
enum SupervisorExit {
    Report(ExitReport),
    /// The watchdog closed the socket without a report: it died.
    Closed,
    /// The child was dropped.
    Dropped,
}

/// The supervisor's end of the socket pair.
struct WatchdogSocket {
    stream: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

impl WatchdogSocket {
    fn new(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, inbox: Vec::new(), outbox: Vec::new() })
    }

    /// The next report; `None` if the socket is closed. Cancel-safe.
    async fn answer(&mut self) -> Option<WatchdogReport> {
        loop {
            if let Some(report) = WatchdogReport::decode(&mut self.inbox).ok()? {
                return Some(report);
            }
            tokio::select! {
                ready = self.stream.readable() => {
                    ready.ok()?;
                    let mut buffer = [0; 256];
                    match self.stream.try_read(&mut buffer) {
                        Ok(0) => return None,
                        Ok(bytes) => self.inbox.extend(&buffer[..bytes]),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(_) => return None,
                    }
                }
                ready = self.stream.writable(), if !self.outbox.is_empty() => {
                    match ready.and_then(|()| self.stream.try_write(&self.outbox)) {
                        Ok(bytes) => drop(self.outbox.drain(..bytes)),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        // The watchdog is gone, but its last report may still be unread.
                        Err(_) => self.outbox.clear(),
                    }
                }
            }
        }
    }

    /// Sends commands and waits for the last report.
    async fn carry(&mut self, desk: &WatchdogMailbox, watchdog: &Watchdog) -> SupervisorExit {
        loop {
            // Take new commands only when the buffer is empty: pending commands are merged and stay small, while the
            // buffer would grow.
            if self.outbox.is_empty() && desk.take(&mut self.outbox) {
                watchdog.wake();
            }
            let (deadline_ns, closed) = desk.glance();
            if closed {
                return SupervisorExit::Dropped;
            }
            let left = Duration::from_nanos(deadline_ns.saturating_sub(syscalls::boottime_ns()));
            tokio::select! {
                report = self.answer() => match report {
                    Some(WatchdogReport::Ended(outcome)) => return SupervisorExit::Report(outcome),
                    Some(WatchdogReport::Started(_) | WatchdogReport::Failed(_)) => {}
                    None => return SupervisorExit::Closed,
                },
                () = desk.changed.notified() => {}
                () = tokio::time::sleep(left.clamp(POLL_INTERVAL, CLOCK_INTERVAL)) => if left.is_zero() {
                    watchdog.wake();
                    watchdog.kill_descendants();
                },
            }
        }
    }
}

//! The supervisor's side: starts the watchdog, carries orders to it, and cleans up should it die.
//!
//! A [`Desk`] holds what the watchdog is still to be told: the latest deadline, a set of signals, the shortest grace. It
//! is a state, not a queue, so it stays small however long the watchdog does not listen, and putting something on it
//! never blocks. A task carries it over, reads the reports, and outlives the [`Child`] until the watchdog is reaped.
//!
//! The watchdog owns the truth about the group. We act ourselves in two cases only. When the deadline has passed and it
//! has not reported the end, it must be stopped: it is woken, and all below it killed, one by one, by what cannot be
//! mistaken for a reused number. When it has died without a report, it has not reaped the main process, which is now ours
//! (we are a subreaper) and not reaped by us: the group's number is still its own, and the group is killed by it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot, watch};

use super::protocol::{Message, Order, Outcome, Report, Start};
use super::sys::{self, Pid, SIGCONT, SIGKILL, Status};
use super::{Child, Ending, SpawnError, Spec, Streams, tree, watchdog};

/// How often to look again at a group that should be gone.
const AGAIN: Duration = Duration::from_millis(20);
/// How often to look at the clock: a sleep does not count the time of a suspend, and the deadline does.
const GLANCE: Duration = Duration::from_secs(1);

/// The watchdogs that live. Held while one is started, so that none is taken for an adopted process.
static WATCHDOGS: Mutex<BTreeSet<Pid>> = Mutex::new(BTreeSet::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the watchdog is still to be told.
#[derive(Debug)]
pub(super) struct Desk {
    orders: Mutex<Orders>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Orders {
    deadline_ns: u64,
    deadline_is_news: bool,
    /// Bit n is signal n.
    signals: u128,
    grace_ns: Option<u64>,
    closed: bool,
}

impl Desk {
    fn new(deadline_ns: u64) -> Self {
        Self { orders: Mutex::new(Orders { deadline_ns, ..Orders::default() }), changed: Notify::new() }
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

    fn change(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut lock(&self.orders));
        self.changed.notify_one();
    }

    /// Moves what is on the desk into `outbox`. True if an end is part of it.
    fn take(&self, outbox: &mut Vec<u8>) -> bool {
        let mut orders = lock(&self.orders);
        if std::mem::take(&mut orders.deadline_is_news) {
            Order::Extend { deadline_ns: orders.deadline_ns }.encode(outbox);
        }
        let signals = std::mem::take(&mut orders.signals);
        (1..128).filter(|signal| signals & 1 << signal != 0).for_each(|it| Order::Signal(it).encode(outbox));
        let grace_ns = orders.grace_ns.take();
        grace_ns.into_iter().for_each(|grace_ns| Order::End { grace_ns }.encode(outbox));
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

pub(super) async fn spawn(executable: &Path, spec: Spec) -> Result<Child, SpawnError> {
    let program = check(&spec)?;
    let (line, theirs) = StdStream::pair().map_err(SpawnError::Watchdog)?;
    let mut line = Line::new(line).map_err(SpawnError::Watchdog)?;
    // Should the watchdog be killed, what it leaves behind comes to us and not to init.
    sys::adopt_orphans().map_err(SpawnError::Watchdog)?;
    let watchdog =
        Watchdog::start(executable, theirs.into(), spec.keep, spec.streams).map_err(SpawnError::Watchdog)?;

    let (deadline_ns, kill_after) = (spec.deadline_ns, spec.kill_after);
    let start = Start {
        deadline_ns,
        kill_after_ns: nanos(kill_after),
        argv: spec.argv,
        env: spec.env,
        withheld: spec.withheld,
        orphan_cleanup: spec.orphan_cleanup,
    };
    Order::Start(start).encode(&mut line.outbox);
    let (answer, answered) = oneshot::channel();
    // A task of its own, so that the watchdog is reaped even if nobody waits for the answer any more.
    tokio::spawn(async move {
        match line.answer().await {
            Some(Report::Started(group)) => {
                let desk = Arc::new(Desk::new(deadline_ns));
                let (tell, ending) = watch::channel(None);
                let (pid, watchdog_pid) = (group.cast_unsigned(), watchdog.pid.cast_unsigned());
                // If nobody takes it, it is dropped, and so ended.
                let _ =
                    answer.send(Ok(Child { pid, watchdog_pid, kill_after, desk: Arc::clone(&desk), ending }));
                tell.send_replace(Some(supervise(line, watchdog, &desk, group).await));
            }
            other => {
                drop(line);
                watchdog.gone().await;
                let _ = answer.send(Err(match other {
                    Some(Report::Failed(errno)) => {
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

/// Until nothing is left, of the watchdog either.
async fn supervise(mut line: Line, watchdog: Watchdog, desk: &Desk, group: Pid) -> Ending {
    let last = line.carry(desk, &watchdog).await;
    // Before the wait: if the child was dropped, this is what tells the watchdog.
    drop(line);
    if matches!(last, Last::Closed) {
        sys::kill_group(group, SIGKILL);
    }
    watchdog.gone().await;
    match last {
        Last::Report(Outcome::Status(Status::Exited(code))) => Ending::Exited(code),
        Last::Report(Outcome::Status(Status::Signalled(signal))) => Ending::Signalled(signal),
        Last::Report(Outcome::ForTrust) => Ending::EndedForTrust,
        Last::Closed | Last::Dropped => Ending::WatchdogDied,
    }
}

/// What exec would refuse for reasons that have no errno of their own.
fn check(spec: &Spec) -> Result<std::ffi::OsString, SpawnError> {
    let program = spec.argv.first().cloned().unwrap_or_default();
    let has_nul = |text: &std::ffi::OsString| text.as_bytes().contains(&0);
    let bad_name =
        |name: &std::ffi::OsString| name.is_empty() || has_nul(name) || name.as_bytes().contains(&b'=');
    let why = if spec.argv.is_empty() {
        "no program was given"
    } else if spec.argv.iter().any(has_nul)
        || spec.env.iter().any(|(name, value)| bad_name(name) || has_nul(value))
    {
        "an argument or a variable holds a character that it cannot"
    } else {
        return Ok(program);
    };
    Err(SpawnError::Exec { program, source: io::Error::new(io::ErrorKind::InvalidInput, why) })
}

/// The process, until it is reaped.
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
        sys::detach(&mut command, inherit);
        let mut living = lock(&WATCHDOGS);
        let process = tokio::process::Command::from(command).spawn()?;
        let pid = process.id().map_or(0, u32::cast_signed);
        living.insert(pid);
        Ok(Self { process, pid })
    }

    /// For one that was stopped. It is our child, and not reaped before `gone`.
    fn wake(&self) {
        sys::kill(self.pid, SIGCONT);
    }

    /// Does its work, for one that does not: kills all that is below it.
    fn kill_descendants(&self) {
        tree::descendants(self.pid).iter().for_each(|it| it.signal(SIGKILL));
    }

    /// Waits for its exit, and ends what it has left behind if it did not exit in peace.
    async fn gone(mut self) {
        // A stopped one would never see that its line is closed.
        self.wake();
        let status = self.process.wait().await;
        lock(&WATCHDOGS).remove(&self.pid);
        while !status.as_ref().is_ok_and(ExitStatus::success) && end_adopted() {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Kills and reaps what a dead watchdog has left to us. False when there was nothing.
fn end_adopted() -> bool {
    let living = lock(&WATCHDOGS);
    let Ok(adopted) = tree::adopted(&living) else { return true };
    tree::with_descendants(tree::own_pid(), adopted.clone()).iter().for_each(|it| it.signal(SIGKILL));
    for pid in &adopted {
        sys::reap(*pid);
    }
    !adopted.is_empty()
}

/// Why nothing more is carried.
enum Last {
    Report(Outcome),
    /// By the watchdog, without a word: it has died.
    Closed,
    /// The child was dropped.
    Dropped,
}

/// Our end of the socket pair.
struct Line {
    stream: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

impl Line {
    fn new(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, inbox: Vec::new(), outbox: Vec::new() })
    }

    /// The next report; `None` when the line is closed. Dropping the future loses nothing.
    async fn answer(&mut self) -> Option<Report> {
        loop {
            if let Some(report) = Report::decode(&mut self.inbox).ok()? {
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
                        // Gone, but its last report may still be there to read.
                        Err(_) => self.outbox.clear(),
                    }
                }
            }
        }
    }

    /// Carries orders over and waits for the last report.
    async fn carry(&mut self, desk: &Desk, watchdog: &Watchdog) -> Last {
        loop {
            // What was written so far first: the desk stays small, this would not.
            if self.outbox.is_empty() && desk.take(&mut self.outbox) {
                watchdog.wake();
            }
            let (deadline_ns, closed) = desk.glance();
            if closed {
                return Last::Dropped;
            }
            let left = Duration::from_nanos(deadline_ns.saturating_sub(sys::boottime_ns()));
            tokio::select! {
                report = self.answer() => match report {
                    Some(Report::Ended(outcome)) => return Last::Report(outcome),
                    Some(Report::Started(_) | Report::Failed(_)) => {}
                    None => return Last::Closed,
                },
                () = desk.changed.notified() => {}
                () = tokio::time::sleep(left.clamp(AGAIN, GLANCE)) => if left.is_zero() {
                    watchdog.wake();
                    watchdog.kill_descendants();
                },
            }
        }
    }
}

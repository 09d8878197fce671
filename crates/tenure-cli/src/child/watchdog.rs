//! The process between the supervisor and the program, which ends the program when the supervisor cannot.
//!
//! It is this executable again, with a hidden argument, in a session of its own: what a terminal sends (Ctrl-C, Ctrl-Z,
//! hang-up) does not reach it, and signals that can be blocked are. It has one thread and one loop, over four
//! descriptors: orders from the supervisor, an alarm on `CLOCK_BOOTTIME`, SIGCHLD, and the pipe that tells of exec.
//!
//! It owns the truth about the program: it is its parent, and a subreaper, so every descendant stays below it. The
//! supervisor owns the truth about trust, and tells it as deadlines. [`Plan`] says what is due when.
//!
//! - **The main process ends**: what it left behind gets SIGTERM, a grace, SIGKILL. It stays a zombie until everything
//!   else is gone, so that the number of its group cannot become a stranger's while we may still signal it.
//! - **The supervisor dies** (end of file): as if it had asked for an end, within the trust that it last gave.
//! - **The supervisor is stopped, or slow**: no newer deadline comes, and the plan ends the group for trust.
//! - **This process is frozen past the deadline**: on waking it kills before it reads anything.
//! - **This process is killed**: the main process is killed by the kernel (`PR_SET_PDEATHSIG`); the rest is up to the
//!   supervisor.
//!
//! - **The supervisor has died, and no descendant is left**: nothing of the program can run any more, so the watchdog becomes
//!   `tenure __end-sessions`, which ends the supervisor's sessions in the store. The next leader need not wait out the lease.
//!
//! It exits only when no descendant is left, and with it goes the last copy of the kernel lock that the supervisor gave
//! it. What it cannot kill (a process of another user, one stuck in the kernel) keeps it, and the lock, here for as
//! long: a lease that is held too long is safe, one that is free too early is not.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::plan::Plan;
use super::protocol::{Message, Nonsense, Order, Outcome, Report, Start};
use super::sys::{self, Alarm, Pid, SIGCONT, SIGKILL, SIGTERM, Status};
use super::tree;

/// The hidden argument. Those after it are descriptors: the control socket, then what is to be kept open.
pub(super) const ARGUMENT: &str = "__watchdog";

/// The longest input of the cleanup: half of what a pipe holds.
const CLEANUP_MAX_BYTES: usize = 32 << 10;

/// How soon to look again for what has survived a SIGKILL; doubles up to the second number.
const SWEEP_MIN_NS: u64 = 5_000_000;
const SWEEP_MAX_NS: u64 = 100_000_000;

/// Serves one supervisor. An error means that nothing was started.
pub(super) fn run(descriptors: &[RawFd]) -> io::Result<()> {
    let supervisor = sys::parent();
    let (&control, keep) = descriptors.split_first().ok_or(ErrorKind::InvalidInput)?;
    close_strays(descriptors);
    let child_ended = File::from(sys::block_signals()?);
    let control = UnixStream::from(sys::inherited(control)?);
    let keep = keep.iter().map(|fd| sys::inherited(*fd)).collect::<io::Result<Vec<OwnedFd>>>()?;
    sys::set_process_name(c"tenure-watchdog");
    sys::adopt_orphans()?;
    let alarm = Alarm::new()?;

    let mut line = Line { control, inbox: Vec::new(), open: true };
    let Some(mut start) = line.wait_for_start()? else { return Ok(()) };
    let orphan_cleanup = std::mem::take(&mut start.orphan_cleanup);
    let mut plan = Plan::new(sys::boottime_ns(), start.deadline_ns, start.kill_after_ns);
    if plan.kill_due(sys::boottime_ns()) {
        line.report(Report::Ended(Outcome::ForTrust));
        return Ok(());
    }
    let (main, exec) = match start_program(start, &keep) {
        Ok(started) => started,
        Err(error) => {
            line.report(Report::Failed(error.raw_os_error().unwrap_or(libc::EINVAL)));
            return Ok(());
        }
    };
    release_streams();
    let group = Group { main, status: None, failed: None, reaped: false };
    Watchdog { line, plan, alarm, child_ended, exec: Some(File::from(exec)), group, sweep_ns: SWEEP_MIN_NS }
        .serve()?;
    if !orphan_cleanup.is_empty() && has_died(supervisor) {
        return Err(become_cleanup(&orphan_cleanup));
    }
    Ok(())
}

/// Whether the supervisor is dead. A closed line does not prove it: a living supervisor that drops its child closes the line too. A
/// process whose parent dies gets another one, but the kernel closes the parent's line first; so this looks for a while.
fn has_died(supervisor: Pid) -> bool {
    for _ in 0..100 {
        if sys::parent() != supervisor {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    false
}

/// Replaces this process by the one that ends the sessions. Returns only what kept it from that.
fn become_cleanup(sessions: &[u8]) -> io::Error {
    let prepare = || -> io::Result<io::PipeReader> {
        let (reader, mut writer) = io::pipe()?;
        // Far less than what a pipe holds, so that nobody needs to read meanwhile.
        writer.write_all(sessions.get(..CLEANUP_MAX_BYTES).unwrap_or(sessions))?;
        sys::unblock_signals()?;
        Ok(reader)
    };
    match prepare() {
        Ok(reader) => {
            Command::new("/proc/self/exe").arg0("tenure").arg(super::END_SESSIONS).stdin(reader).exec()
        }
        Err(error) => error,
    }
}

/// What the supervisor had open without close-on-exec, by its own or its caller's fault, is not for the program.
fn close_strays(keep: &[RawFd]) {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    // Listed first: the listing has a descriptor too.
    let open: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    open.into_iter().filter(|fd| *fd > 2 && !keep.contains(fd)).for_each(sys::close_stray);
}

fn start_program(start: Start, keep: &[OwnedFd]) -> io::Result<(Pid, OwnedFd)> {
    let argv =
        start.argv.into_iter().map(|arg| CString::new(arg.into_vec())).collect::<Result<Vec<_>, _>>()?;
    if argv.is_empty() {
        return Err(ErrorKind::InvalidInput.into());
    }
    // The program gets the kernel lock too: if both of us are killed, its descendants still hold the lease.
    let inherit = keep.iter().map(AsRawFd::as_raw_fd).collect();
    sys::start(&sys::Program { argv, env: start.env, withheld: start.withheld, inherit })
}

/// The program's input and output are its own: a pipe must close when the program closes it. Errors may still be told.
fn release_streams() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        sys::replace_stream(null.as_fd(), 0);
        sys::replace_stream(null.as_fd(), 1);
    }
}

/// The supervisor's end of things.
struct Line {
    control: UnixStream,
    inbox: Vec<u8>,
    open: bool,
}

impl Line {
    /// `None` if the supervisor has gone before it asked for anything.
    fn wait_for_start(&mut self) -> io::Result<Option<Start>> {
        self.control.set_nonblocking(true)?;
        loop {
            sys::poll([Some(self.control.as_raw_fd())])?;
            match self.next() {
                Some(Order::Start(start)) => return Ok(Some(start)),
                Some(_) => return Err(ErrorKind::InvalidData.into()),
                None if !self.open => return Ok(None),
                None => {}
            }
        }
    }

    /// The next order that is here. Closes the line when the supervisor has, or talks nonsense.
    fn next(&mut self) -> Option<Order> {
        let mut buffer = [0; 4096];
        loop {
            match Order::decode(&mut self.inbox) {
                Ok(Some(order)) => return Some(order),
                Err(Nonsense) => self.open = false,
                Ok(None) => {}
            }
            if !self.open {
                return None;
            }
            match self.control.read(&mut buffer) {
                Ok(0) => self.open = false,
                Ok(bytes) => self.inbox.extend(&buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.open = false,
            }
        }
    }

    /// Reports are few and small: they fit into the socket's buffer even if the supervisor never reads.
    fn report(&mut self, report: Report) {
        let mut frame = Vec::new();
        report.encode(&mut frame);
        // If the supervisor is gone there is nobody to tell.
        let _ = self.control.write_all(&frame);
    }
}

/// The main process and its group.
struct Group {
    main: Pid,
    /// How the main process ended. It is a zombie from then on, until it is `reaped`.
    status: Option<Status>,
    /// The errno of an exec that failed.
    failed: Option<i32>,
    reaped: bool,
}

impl Group {
    fn signal(&self, signal: i32) {
        if !self.reaped {
            sys::kill_group(self.main, signal);
        }
    }

    /// Descendants that have left the group, or all if the group is no longer ours to signal.
    fn signal_strays(&self, signal: i32) {
        let below = tree::descendants(tree::own_pid());
        below.iter().filter(|it| self.reaped || it.group != self.main).for_each(|it| it.signal(signal));
    }

    /// Reaps orphans, and notes the end of the main process without reaping it.
    fn observe(&mut self) {
        if self.status.is_none() {
            while let Some(pid) = sys::peek_any().filter(|pid| *pid != self.main) {
                sys::reap(pid);
            }
            self.status = sys::peek(self.main);
        }
        if self.status.is_some() {
            // The zombie hides those that ended after it from `peek_any`.
            for pid in tree::children(tree::own_pid()).unwrap_or_default() {
                if pid != self.main {
                    sys::reap(pid);
                }
            }
        }
    }

    /// Whether nothing but the zombie is left, as far as can be seen.
    fn alone(&self) -> bool {
        let only_main = |children: Vec<Pid>| children.iter().all(|pid| *pid == self.main);
        self.status.is_some() && tree::children(tree::own_pid()).is_ok_and(only_main)
    }
}

struct Watchdog {
    line: Line,
    plan: Plan,
    alarm: Alarm,
    child_ended: File,
    exec: Option<File>,
    group: Group,
    sweep_ns: u64,
}

impl Watchdog {
    /// Until nothing is left. Past the start there is no error to give up for: the group must end.
    fn serve(mut self) -> io::Result<()> {
        loop {
            // Before anything else: time may have passed that we did not see.
            if self.plan.kill_due(sys::boottime_ns()) {
                self.group.signal(SIGKILL);
                self.group.signal_strays(SIGKILL);
            }
            self.take_orders();
            self.watch_exec();
            self.watch_children();
            if self.finished() {
                return Ok(());
            }
            if self.plan.term_due(sys::boottime_ns()) {
                self.group.signal(SIGTERM);
                self.group.signal(SIGCONT); // a stopped process cannot answer
            }
            self.sleep();
        }
    }

    fn take_orders(&mut self) {
        if !self.line.open {
            return;
        }
        while let Some(order) = self.line.next() {
            let now_ns = sys::boottime_ns();
            match order {
                Order::Extend { deadline_ns } => self.plan.extend(now_ns, deadline_ns),
                Order::Signal(signal) => self.group.signal(signal),
                Order::End { grace_ns } => self.plan.end(now_ns, grace_ns),
                Order::Start(_) => {} // one program per watchdog
            }
        }
        if !self.line.open {
            self.plan.end_in_time(sys::boottime_ns());
        }
    }

    fn watch_exec(&mut self) {
        let Some(exec) = &mut self.exec else { return };
        let mut errno = [0; 4];
        match exec.read(&mut errno) {
            Ok(4) => self.group.failed = Some(i32::from_ne_bytes(errno)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            _ => self.line.report(Report::Started(self.group.main)),
        }
        self.exec = None;
    }

    fn watch_children(&mut self) {
        let mut told = [0; 128]; // one signalfd_siginfo; SIGCHLD is never queued twice
        while matches!(self.child_ended.read(&mut told), Ok(bytes) if bytes > 0) {}
        let was_running = self.group.status.is_none();
        self.group.observe();
        if was_running && self.group.status.is_some() {
            self.plan.main_ended(sys::boottime_ns());
            // While it lived, those that left its group were its own affair. The group itself is the plan's.
            self.group.signal_strays(SIGTERM);
        }
    }

    /// Reports before it gives the group's number back: who has read the report signals the group no more.
    fn finished(&mut self) -> bool {
        if !self.group.reaped && self.exec.is_none() && self.group.alone() {
            self.line.report(self.last_report());
            sys::reap(self.group.main);
            self.group.reaped = true;
        }
        self.group.reaped && sys::childless()
    }

    fn last_report(&self) -> Report {
        match (self.group.failed, self.group.status) {
            (Some(errno), _) => Report::Failed(errno),
            (None, Some(status)) if !self.plan.ended_for_trust() => Report::Ended(Outcome::Status(status)),
            _ => Report::Ended(Outcome::ForTrust),
        }
    }

    fn sleep(&mut self) {
        let wake_ns = self.plan.wake_at_ns().unwrap_or_else(|| {
            let again_ns = sys::boottime_ns() + self.sweep_ns;
            self.sweep_ns = (self.sweep_ns * 2).min(SWEEP_MAX_NS);
            again_ns
        });
        let control = self.line.open.then(|| self.line.control.as_raw_fd());
        let exec = self.exec.as_ref().map(AsRawFd::as_raw_fd);
        let awake = self.alarm.set(wake_ns).and_then(|()| {
            sys::poll([control, Some(self.alarm.as_raw_fd()), Some(self.child_ended.as_raw_fd()), exec])
        });
        if awake.is_err() {
            // Without an alarm there is no promise to keep: end it now.
            self.plan.end(sys::boottime_ns(), 0);
        }
    }
}

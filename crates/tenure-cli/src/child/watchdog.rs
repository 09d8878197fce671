//! The watchdog: a process between the supervisor and the program, which stops the program if the supervisor cannot.
//!
//! It is this executable with a hidden argument, in its own session: terminal signals (Ctrl-C, Ctrl-Z, hang-up) do not
//! reach it, and it blocks all signals that can be blocked. It has one thread and one loop over four descriptors:
//! commands from the supervisor, an alarm on `CLOCK_BOOTTIME`, SIGCHLD, and the pipe that reports exec.
//!
//! It is the parent of the program and a subreaper, so every descendant stays below it. The supervisor sends it
//! deadlines. [`ShutdownPlan`] decides which signal is due when.
//!
//! - **The main process ends**: its remaining descendants get SIGTERM, a grace period, SIGKILL. It stays a zombie until
//!   they are gone, so that the id of its group cannot be reused while it may still be signalled.
//! - **The supervisor dies** (end of file on the socket): handled as if it had requested an end, within the last
//!   deadline.
//! - **The supervisor is stopped, or slow**: no later deadline arrives, and the plan stops the group.
//! - **This process is frozen past the deadline**: when it resumes, it kills before it reads commands.
//! - **This process is killed**: the kernel kills the main process (`PR_SET_PDEATHSIG`); the supervisor kills the rest.
//! - **The supervisor has died, and no descendant is left**: the watchdog executes `tenure __end-sessions`, which ends
//!   the sessions of the supervisor in the store, so that the next leader does not wait for the lease to expire.
//!
//! It exits only when no descendant is left; then the last copy of the kernel lock of the lease is closed. While it
//! cannot kill a process (of another user, or stuck in the kernel), it keeps running and keeps the lock: a lease held
//! too long is safe, a lease released too early is not.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::process_tree;
use super::protocol::{ExitReport, FrameCodec, InvalidFrame, StartCommand, WatchdogCommand, WatchdogReport};
use super::shutdown::ShutdownPlan;
use super::syscalls::{self, Alarm, ExitStatus, Pid, SIGCONT, SIGKILL, SIGTERM};

/// The hidden argument. The following arguments are descriptors: the control socket, then those to keep open.
pub(super) const ARGUMENT: &str = "__watchdog";

/// Maximum input of the cleanup: half of the capacity of a pipe.
const CLEANUP_MAX_BYTES: usize = 32 << 10;

/// First interval of the search for processes that survived SIGKILL; it doubles up to `SWEEP_MAX_NS`.
const SWEEP_MIN_NS: u64 = 5_000_000;
const SWEEP_MAX_NS: u64 = 100_000_000;

/// Serves one supervisor. An error means that no program was started.
pub(super) fn run(descriptors: &[RawFd]) -> io::Result<()> {
    let supervisor = syscalls::parent();
    let (&control, keep) = descriptors.split_first().ok_or(ErrorKind::InvalidInput)?;
    close_other_descriptors(descriptors);
    let child_ended = File::from(syscalls::block_signals()?);
    let control = UnixStream::from(syscalls::inherited(control)?);
    let keep = keep.iter().map(|fd| syscalls::inherited(*fd)).collect::<io::Result<Vec<OwnedFd>>>()?;
    syscalls::set_process_name(c"tenure-watchdog");
    syscalls::adopt_orphans()?;
    let alarm = Alarm::new()?;

    let mut line = SupervisorSocket { control, inbox: Vec::new(), open: true };
    let Some(mut start) = line.wait_for_start()? else { return Ok(()) };
    let orphan_cleanup = std::mem::take(&mut start.orphan_cleanup);
    let mut plan = ShutdownPlan::new(syscalls::boottime_ns(), start.deadline_ns, start.kill_after_ns);
    if plan.kill_due(syscalls::boottime_ns()) {
        line.report(WatchdogReport::Ended(ExitReport::ForTrust));
        return Ok(());
    }
    let (main, exec) = match start_program(start, &keep) {
        Ok(started) => started,
        Err(error) => {
            line.report(WatchdogReport::Failed(error.raw_os_error().unwrap_or(libc::EINVAL)));
            return Ok(());
        }
    };
    release_streams();
    let group = ProcessGroup { main, status: None, failed: None, reaped: false };
    Watchdog { line, plan, alarm, child_ended, exec: Some(File::from(exec)), group, sweep_ns: SWEEP_MIN_NS }
        .serve()?;
    if !orphan_cleanup.is_empty() && has_died(supervisor) {
        return Err(become_cleanup(&orphan_cleanup));
    }
    Ok(())
}

/// Whether the supervisor is dead. A closed socket is no proof: a living supervisor closes it too when it drops its
/// child. If the supervisor is dead, this process gets a new parent, but only after the kernel has closed the socket.
/// So this function polls for up to a second.
fn has_died(supervisor: Pid) -> bool {
    for _ in 0..100 {
        if syscalls::parent() != supervisor {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    false
}

/// Executes `tenure __end-sessions` in this process. Returns only an error.
fn become_cleanup(sessions: &[u8]) -> io::Error {
    let prepare = || -> io::Result<io::PipeReader> {
        let (reader, mut writer) = io::pipe()?;
        // Less than the capacity of a pipe, so that the write does not block.
        writer.write_all(sessions.get(..CLEANUP_MAX_BYTES).unwrap_or(sessions))?;
        syscalls::unblock_signals()?;
        Ok(reader)
    };
    match prepare() {
        Ok(reader) => {
            Command::new("/proc/self/exe").arg0("tenure").arg(super::END_SESSIONS).stdin(reader).exec()
        }
        Err(error) => error,
    }
}

/// Closes descriptors that were inherited without close-on-exec, so that the program does not get them.
fn close_other_descriptors(keep: &[RawFd]) {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    // Collected first: the listing itself uses a descriptor.
    let open: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    open.into_iter().filter(|fd| *fd > 2 && !keep.contains(fd)).for_each(syscalls::close_stray);
}

fn start_program(start: StartCommand, keep: &[OwnedFd]) -> io::Result<(Pid, OwnedFd)> {
    let argv =
        start.argv.into_iter().map(|arg| CString::new(arg.into_vec())).collect::<Result<Vec<_>, _>>()?;
    if argv.is_empty() {
        return Err(ErrorKind::InvalidInput.into());
    }
    // The program gets the kernel lock too: if supervisor and watchdog are killed, its descendants still hold the
    // lease.
    let inherit = keep.iter().map(AsRawFd::as_raw_fd).collect();
    syscalls::start(&syscalls::ExecSpec { argv, env: start.env, withheld: start.withheld, inherit })
}

/// Closes standard input and output: a pipe must end when the program closes it. Keeps standard error for messages.
fn release_streams() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        syscalls::replace_stream(null.as_fd(), 0);
        syscalls::replace_stream(null.as_fd(), 1);
    }
}

/// The watchdog's end of the socket pair.
struct SupervisorSocket {
    control: UnixStream,
    inbox: Vec<u8>,
    open: bool,
}

impl SupervisorSocket {
    /// Waits for the first command; `None` if the supervisor is gone before.
    fn wait_for_start(&mut self) -> io::Result<Option<StartCommand>> {
        self.control.set_nonblocking(true)?;
        loop {
            syscalls::poll([Some(self.control.as_raw_fd())])?;
            match self.next() {
                Some(WatchdogCommand::Start(start)) => return Ok(Some(start)),
                Some(_) => return Err(ErrorKind::InvalidData.into()),
                None if !self.open => return Ok(None),
                None => {}
            }
        }
    }

    /// The next received command. Marks the socket as closed after end of file or an invalid frame.
    fn next(&mut self) -> Option<WatchdogCommand> {
        let mut buffer = [0; 4096];
        loop {
            match WatchdogCommand::decode(&mut self.inbox) {
                Ok(Some(order)) => return Some(order),
                Err(InvalidFrame) => self.open = false,
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

    /// Sends a report. Reports are few and small, so they fit into the socket buffer even if the supervisor never
    /// reads.
    fn report(&mut self, report: WatchdogReport) {
        let mut frame = Vec::new();
        report.encode(&mut frame);
        // The supervisor may be gone.
        let _ = self.control.write_all(&frame);
    }
}

/// The main process and its group.
struct ProcessGroup {
    main: Pid,
    /// Exit status of the main process, which stays a zombie until `reaped`.
    status: Option<ExitStatus>,
    /// Errno of a failed exec.
    failed: Option<i32>,
    reaped: bool,
}

impl ProcessGroup {
    fn signal(&self, signal: i32) {
        if !self.reaped {
            syscalls::kill_group(self.main, signal);
        }
    }

    /// Signals descendants that left the group, or all descendants after the main process was reaped.
    fn signal_outside_group(&self, signal: i32) {
        let below = process_tree::descendants(process_tree::own_pid());
        below.iter().filter(|it| self.reaped || it.group != self.main).for_each(|it| it.signal(signal));
    }

    /// Reaps orphans, and records the end of the main process without reaping it.
    fn observe(&mut self) {
        if self.status.is_none() {
            while let Some(pid) = syscalls::peek_any().filter(|pid| *pid != self.main) {
                syscalls::reap(pid);
            }
            self.status = syscalls::peek(self.main);
        }
        if self.status.is_some() {
            // `peek_any` would return the zombie of the main process and hide later exits, so list the children
            // instead.
            for pid in process_tree::children(process_tree::own_pid()).unwrap_or_default() {
                if pid != self.main {
                    syscalls::reap(pid);
                }
            }
        }
    }

    /// Whether only the zombie of the main process is visible.
    fn alone(&self) -> bool {
        let only_main = |children: Vec<Pid>| children.iter().all(|pid| *pid == self.main);
        self.status.is_some() && process_tree::children(process_tree::own_pid()).is_ok_and(only_main)
    }
}

struct Watchdog {
    line: SupervisorSocket,
    plan: ShutdownPlan,
    alarm: Alarm,
    child_ended: File,
    exec: Option<File>,
    group: ProcessGroup,
    sweep_ns: u64,
}

impl Watchdog {
    /// Runs until no process is left. After the start no error ends the loop: the group must end.
    fn serve(mut self) -> io::Result<()> {
        loop {
            // Check this before reading commands: this process may have been frozen past the deadline.
            if self.plan.kill_due(syscalls::boottime_ns()) {
                self.group.signal(SIGKILL);
                self.group.signal_outside_group(SIGKILL);
            }
            self.read_commands();
            self.watch_exec();
            self.watch_children();
            if self.finished() {
                return Ok(());
            }
            if self.plan.term_due(syscalls::boottime_ns()) {
                self.group.signal(SIGTERM);
                self.group.signal(SIGCONT); // a stopped process does not handle SIGTERM
            }
            self.sleep();
        }
    }

    fn read_commands(&mut self) {
        if !self.line.open {
            return;
        }
        while let Some(order) = self.line.next() {
            let now_ns = syscalls::boottime_ns();
            match order {
                WatchdogCommand::Extend { deadline_ns } => self.plan.extend(now_ns, deadline_ns),
                WatchdogCommand::Signal(signal) => self.group.signal(signal),
                WatchdogCommand::End { grace_ns } => self.plan.end(now_ns, grace_ns),
                WatchdogCommand::Start(_) => {} // one program per watchdog
            }
        }
        if !self.line.open {
            self.plan.end_in_time(syscalls::boottime_ns());
        }
    }

    fn watch_exec(&mut self) {
        let Some(exec) = &mut self.exec else { return };
        let mut errno = [0; 4];
        match exec.read(&mut errno) {
            Ok(4) => self.group.failed = Some(i32::from_ne_bytes(errno)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            _ => self.line.report(WatchdogReport::Started(self.group.main)),
        }
        self.exec = None;
    }

    fn watch_children(&mut self) {
        let mut signal_info = [0; 128]; // one signalfd_siginfo; SIGCHLD is never queued twice
        while matches!(self.child_ended.read(&mut signal_info), Ok(bytes) if bytes > 0) {}
        let was_running = self.group.status.is_none();
        self.group.observe();
        if was_running && self.group.status.is_some() {
            self.plan.main_ended(syscalls::boottime_ns());
            // While the main process lived, it managed the processes that left its group. They get SIGTERM here; the
            // plan signals the group.
            self.group.signal_outside_group(SIGTERM);
        }
    }

    /// Reports the end before it reaps the main process: after the report, the supervisor no longer signals the group.
    fn finished(&mut self) -> bool {
        if !self.group.reaped && self.exec.is_none() && self.group.alone() {
            self.line.report(self.last_report());
            syscalls::reap(self.group.main);
            self.group.reaped = true;
        }
        self.group.reaped && syscalls::childless()
    }

    fn last_report(&self) -> WatchdogReport {
        match (self.group.failed, self.group.status) {
            (Some(errno), _) => WatchdogReport::Failed(errno),
            (None, Some(status)) if !self.plan.ended_at_deadline() => {
                WatchdogReport::Ended(ExitReport::Status(status))
            }
            _ => WatchdogReport::Ended(ExitReport::ForTrust),
        }
    }

    fn sleep(&mut self) {
        let wake_ns = self.plan.wake_at_ns().unwrap_or_else(|| {
            let again_ns = syscalls::boottime_ns() + self.sweep_ns;
            self.sweep_ns = (self.sweep_ns * 2).min(SWEEP_MAX_NS);
            again_ns
        });
        let control = self.line.open.then(|| self.line.control.as_raw_fd());
        let exec = self.exec.as_ref().map(AsRawFd::as_raw_fd);
        let awake = self.alarm.set(wake_ns).and_then(|()| {
            syscalls::poll([control, Some(self.alarm.as_raw_fd()), Some(self.child_ended.as_raw_fd()), exec])
        });
        if awake.is_err() {
            // Without an alarm the deadline cannot be enforced: stop the program now.
            self.plan.end(syscalls::boottime_ns(), 0);
        }
    }
}

//! The system calls of this module, each behind a safe function.
//!
//! This file has no policy. Every `unsafe` block states why it is sound. Two rules make the functions with pids safe: a
//! caller signals only children that it has not reaped (a zombie keeps its pid), and any other process only through a
//! [`PidFd`], which never refers to another process.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString, c_int};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

pub(super) use libc::{SIGCONT, SIGKILL, SIGTERM};

/// Process id or, where the name says so, process group id.
pub(super) type Pid = libc::pid_t;

/// Exit status of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExitStatus {
    Exited(i32),
    Signalled(i32),
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Nanoseconds of `CLOCK_BOOTTIME`, which counts suspend.
pub(super) fn boottime_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to. The call cannot fail for a clock every supported kernel has.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One-shot alarm on `CLOCK_BOOTTIME`: readable after its time, also if that was during a suspend.
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers; the result is a new descriptor that nothing else owns.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        // SAFETY: `check` has ruled out an error, so this is that new descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(check(fd)?) }))
    }

    /// Sets the alarm and clears an unread expiry.
    pub(super) fn set(&self, at_ns: u64) -> io::Result<()> {
        let at_ns = at_ns.max(1); // zero would disarm it
        let spec = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: libc::time_t::try_from(at_ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
                tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: `spec` outlives the call, and a null old value is allowed.
        let done = unsafe {
            libc::timerfd_settime(self.0.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &spec, ptr::null_mut())
        };
        check(done).map(drop)
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Blocks every signal that can be blocked, for this (only) thread. Returns a descriptor that reports SIGCHLD.
pub(super) fn block_signals() -> io::Result<OwnedFd> {
    // SAFETY: both sets are initialised by sigfillset and sigemptyset before they are used, and outlive the calls.
    let fd = unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&mut all);
        check(libc::sigprocmask(libc::SIG_SETMASK, &all, ptr::null_mut()))?;
        let mut child: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut child);
        libc::sigaddset(&mut child, libc::SIGCHLD);
        // With an inherited ignored SIGCHLD the kernel would reap children, and pids could be reused.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        check(libc::signalfd(-1, &child, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?
    };
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Undoes [`block_signals`] for this (only) thread, before it executes another program.
pub(super) fn unblock_signals() -> io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset before it is used, and outlives the call.
    unsafe {
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut none);
        check(libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut())).map(drop)
    }
}

/// Pid of the parent; it changes when the parent dies.
pub(super) fn parent() -> Pid {
    // SAFETY: takes no pointers, and can not fail.
    unsafe { libc::getppid() }
}

/// Waits until one of the descriptors is readable or hung up. Those that are `None` are skipped.
pub(super) fn poll<const N: usize>(fds: [Option<RawFd>; N]) -> io::Result<[bool; N]> {
    // A negative descriptor is skipped by poll(2).
    let mut polled = fds.map(|fd| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: `polled` is an array of N initialised pollfds.
        match check(unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, -1) }) {
            Ok(_) => return Ok(polled.map(|fd| fd.revents != 0)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes this process a subreaper: orphans below it become its children instead of those of init.
pub(super) fn adopt_orphans() -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Sets the process name shown by `ps` and `top`; at most 15 bytes.
pub(super) fn set_process_name(name: &std::ffi::CStr) {
    // SAFETY: `name` ends in a NUL and outlives the call.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Signals an unreaped child.
pub(super) fn kill(pid: Pid, signal: i32) {
    debug_assert!(pid > 0);
    // SAFETY: takes no pointers. An error means that it has ended or may not be signalled; both show in a wait.
    unsafe { libc::kill(pid, signal) };
}

/// Signals a process group whose leader is unreaped, so that its id is not reused.
pub(super) fn kill_group(group: Pid, signal: i32) {
    debug_assert!(group > 1, "-1 would signal every process");
    // SAFETY: takes no pointers; errors as in `kill`.
    unsafe { libc::kill(-group, signal) };
}

/// Descriptor of a process. It never refers to another process with the same pid.
pub(super) struct PidFd(OwnedFd);

impl PidFd {
    pub(super) fn open(pid: Pid) -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        // SAFETY: `check` has ruled out an error: a new descriptor (close-on-exec) that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(check(fd as c_int)?) }))
    }

    pub(super) fn signal(&self, signal: i32) {
        // SAFETY: with a null siginfo the kernel uses the same values as for kill(2).
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
    }
}

/// Status of a child if it has ended. Leaves it a zombie, so that its pid is not reused.
pub(super) fn peek(pid: Pid) -> Option<ExitStatus> {
    wait(libc::P_PID, pid, libc::WNOWAIT).map(|(_, status)| status)
}

/// Pid of any child that has ended. Leaves it a zombie.
pub(super) fn peek_any() -> Option<Pid> {
    wait(libc::P_ALL, 0, libc::WNOWAIT).map(|(pid, _)| pid)
}

/// Reaps a child if it has ended. Its pid may be reused afterwards.
pub(super) fn reap(pid: Pid) -> Option<ExitStatus> {
    wait(libc::P_PID, pid, 0).map(|(_, status)| status)
}

fn wait(kind: libc::idtype_t, pid: Pid, flags: c_int) -> Option<(Pid, ExitStatus)> {
    // SAFETY: a zeroed siginfo is valid, outlives the call, and is read with the accessors for SIGCHLD only after
    // waitid has filled it in (a zero pid says that it has not).
    let (found, code, status) = unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        if libc::waitid(kind, pid as libc::id_t, &mut info, libc::WEXITED | libc::WNOHANG | flags) < 0 {
            return None;
        }
        (info.si_pid(), info.si_code, info.si_status())
    };
    let status =
        if code == libc::CLD_EXITED { ExitStatus::Exited(status) } else { ExitStatus::Signalled(status) };
    (found > 0).then_some((found, status))
}

/// Whether this process has no child, zombies included.
pub(super) fn childless() -> bool {
    // SAFETY: as in `wait`; WNOWAIT takes nothing.
    let result = unsafe {
        let mut info: libc::siginfo_t = mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
    };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
}

/// Overwrites every occurrence of `secret` in the arguments as other processes see them (`ps`, `/proc/PID/cmdline`).
/// Returns whether there was one.
///
/// Must be called while the process has one thread: `std::env::args` reads the same memory.
pub(super) fn overwrite_in_arguments(secret: &str) -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field, the name, may hold spaces and ends with the last parenthesis. arg_start and arg_end are fields
    // 48 and 49.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
    let number =
        |field: usize| fields.get(field - 3).and_then(|text| text.parse::<usize>().ok()).filter(|n| *n > 0);
    let (Some(start), Some(end)) = (number(48), number(49)) else { return false };
    if secret.is_empty() || end <= start {
        return false;
    }
    // SAFETY: the kernel put the arguments there, on this process's stack, where they may be written to. No other
    // thread exists that could read them, and no reference to them is held: `std::env::args` makes copies.
    let arguments = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, end - start) };
    let mut found = false;
    let mut at = 0;
    while let Some(next) =
        arguments[at..].windows(secret.len()).position(|window| window == secret.as_bytes())
    {
        arguments[at + next..at + next + secret.len()].fill(b'*');
        at += next + secret.len();
        found = true;
    }
    found
}

/// Takes ownership of an inherited descriptor.
pub(super) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers; fails if the descriptor is not open.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: open, and by the protocol between supervisor and watchdog nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes a descriptor that has no owner in this process.
pub(super) fn close_stray(fd: RawFd) {
    // SAFETY: called at the start of the watchdog, for numbers it was not told to keep and has not opened.
    unsafe { libc::close(fd) };
}

/// Replaces a standard stream by another descriptor (dup2(2)).
pub(super) fn replace_stream(with: BorrowedFd<'_>, stream: RawFd) {
    debug_assert!((0..=2).contains(&stream));
    // SAFETY: takes no pointers; the standard streams have no owner.
    unsafe { libc::dup2(with.as_raw_fd(), stream) };
}

/// Makes `command` start in its own session, with all signals blocked and with these descriptors.
///
/// The close-on-exec flags are cleared after the fork, so that a program started in another thread cannot inherit the
/// descriptors. The limit of open files is the one that this process was started with.
pub(super) fn detach(command: &mut Command, inherit: Vec<RawFd>) {
    let files = tenure::open_files::initial_limit();
    let prepare = move || {
        // SAFETY: setsid, getrlimit, setrlimit, sigfillset, sigprocmask and fcntl are system calls or touch only their
        // argument; `limit` and `all` are initialised before use.
        unsafe {
            if let Some(files) = files {
                let mut limit: libc::rlimit = mem::zeroed();
                check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
                limit.rlim_cur = files.min(limit.rlim_max);
                check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
            }
            check(libc::setsid())?;
            let mut all: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&mut all);
            check(libc::sigprocmask(libc::SIG_SETMASK, &all, ptr::null_mut()))?;
            for fd in &inherit {
                check(libc::fcntl(*fd, libc::F_SETFD, 0))?;
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing, takes no lock, and makes only the calls named above.
    unsafe { command.pre_exec(prepare) };
}

/// Program, environment and descriptors of a new process.
pub(super) struct ExecSpec {
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<(OsString, OsString)>,
    /// Variables that it does not inherit.
    pub(super) withheld: Vec<OsString>,
    /// Descriptors kept open over the exec.
    pub(super) inherit: Vec<RawFd>,
}

/// Forks, and executes `program` as the leader of a new process group that dies with this process.
///
/// Returns its pid and a pipe: end of file means that exec succeeded (or that the process was killed before), four
/// bytes are the errno of a failure. The function does not wait for exec, so the caller can stop a process that hangs
/// in it.
///
/// Must be called while the process has one thread.
pub(super) fn start(program: &ExecSpec) -> io::Result<(Pid, OwnedFd)> {
    let mut argv: Vec<*const libc::c_char> = program.argv.iter().map(|arg| arg.as_ptr()).collect();
    argv.push(ptr::null());
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: two new descriptors that nothing else owns.
    let (reader, writer) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: takes no pointers.
    let parent = unsafe { libc::getpid() };
    // SAFETY: this process has one thread, so the child is not restricted to async-signal-safe functions.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        let errno =
            become_program(program, &argv, parent).raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes();
        // SAFETY: `errno` is four readable bytes, and _exit runs nothing of the parent's.
        unsafe {
            libc::write(writer.as_raw_fd(), errno.as_ptr().cast(), errno.len());
            libc::_exit(127)
        }
    }
    // Both this process and the child set the group, because either may run first: no process may see the child outside
    // its group.
    // SAFETY: takes no pointers. Fails harmlessly once the child has executed.
    unsafe { libc::setpgid(pid, pid) };
    Ok((pid, reader))
}

/// Executes the program. Returns only an error.
fn become_program(program: &ExecSpec, argv: &[*const libc::c_char], parent: Pid) -> io::Error {
    let prepare = || {
        // SAFETY: takes no pointers.
        check(unsafe { libc::setpgid(0, 0) })?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
        // The parent may have died before the call above; then no signal arrives.
        // SAFETY: takes no pointers.
        if unsafe { libc::getppid() } != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        for fd in &program.inherit {
            // SAFETY: takes no pointers.
            check(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
        }
        for name in &program.withheld {
            // SAFETY: one thread.
            unsafe { std::env::remove_var(name) };
        }
        for (name, value) in &program.env {
            // SAFETY: one thread.
            unsafe { std::env::set_var(name, value) };
        }
        // Ignored signals and the signal mask survive exec; the Rust runtime ignores SIGPIPE, and the watchdog blocks
        // all signals. Reset the dispositions before the mask, so that a pending signal has its default effect.
        for signal in 1..=libc::SIGRTMAX() {
            // SAFETY: keeps no pointers. It fails without effect for SIGKILL, SIGSTOP and the signals that libc
            // reserves.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: `none` is initialised before it is used.
        unsafe {
            let mut none: libc::sigset_t = mem::zeroed();
            libc::sigemptyset(&mut none);
            check(libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut())).map(drop)
        }
    };
    if let Err(error) = prepare() {
        return error;
    }
    // SAFETY: `argv` ends in a null, and its strings live in `program`.
    unsafe { libc::execvp(argv[0], argv.as_ptr()) };
    io::Error::last_os_error()
}

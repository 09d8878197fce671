//! Processes and their descendants from `/proc`, and signals that cannot hit an unrelated process.
//!
//! `/proc` may be outdated when it is read, because processes fork meanwhile, so no list is assumed to be complete. The
//! caller signals the processes it finds and repeats until the kernel reports no child. That is sufficient because
//! orphans below a *subreaper* become its children: a subreaper without children has no descendants.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::syscalls::{self, Pid, PidFd};

/// One process. The start time distinguishes it from a later process with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) parent: Pid,
    pub(super) group: Pid,
    pub(super) session: Pid,
    start_ticks: u64,
}

impl Process {
    pub(super) fn read(pid: Pid) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&stat))
    }

    /// Parses `/proc/PID/stat`. The second field, the name, may contain spaces and parentheses, so the other fields are
    /// counted from its end.
    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<Pid>().ok();
        let start_ticks = fields.get(19)?.parse().ok()?;
        Some(Self { pid, parent: number(1)?, group: number(2)?, session: number(3)?, start_ticks })
    }

    /// Signals this process, but never another process that reuses its pid.
    pub(super) fn signal(&self, signal: i32) {
        match PidFd::open(self.pid) {
            // Read again after opening, to verify that the descriptor refers to the same process.
            Ok(fd) => {
                let now = Self::read(self.pid);
                if now.is_some_and(|now| now.start_ticks == self.start_ticks) {
                    fd.signal(signal);
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // Pid descriptors do not exist before Linux 5.3 and may be forbidden. Without one, only the pid of an own
            // child is certain. That is sufficient: when an own child dies, its children become own children.
            Err(_) if Self::read(self.pid).is_some_and(|now| now.parent == own_pid()) => {
                syscalls::kill(self.pid, signal);
            }
            Err(_) => {}
        }
    }
}

/// The children of a process, of all its threads. An error means that `/proc` cannot be read, not that there are none.
pub(super) fn children(pid: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in numbers_in(&format!("/proc/{pid}/task"))? {
        match fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")) {
            Ok(text) => {
                children.extend(text.split_ascii_whitespace().filter_map(|it| it.parse::<Pid>().ok()))
            }
            Err(error) if is_gone(&error) && !fs::exists(format!("/proc/{pid}/task/{thread}"))? => {}
            // A kernel can be built without these files: search all processes instead.
            Err(error) if is_gone(&error) => return searched_children(pid),
            Err(error) => return Err(error),
        }
    }
    Ok(children)
}

fn searched_children(pid: Pid) -> io::Result<Vec<Pid>> {
    let is_child = |other: &Pid| Process::read(*other).is_some_and(|it| it.parent == pid);
    Ok(numbers_in("/proc")?.into_iter().filter(is_child).collect())
}

/// Numeric names in a directory; none if it does not exist.
fn numbers_in(directory: &str) -> io::Result<Vec<Pid>> {
    let mut numbers = Vec::new();
    match fs::read_dir(directory) {
        Ok(entries) => {
            for entry in entries {
                match entry {
                    Ok(entry) => {
                        numbers.extend(entry.file_name().to_str().and_then(|it| it.parse::<Pid>().ok()))
                    }
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Err(error) if is_gone(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(numbers)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Visible descendants of a process.
pub(super) fn descendants(pid: Pid) -> Vec<Process> {
    with_descendants(pid, children(pid).unwrap_or_default())
}

/// The children in `chosen`, which must be children of `parent`, and their visible descendants.
pub(super) fn with_descendants(parent: Pid, chosen: Vec<Pid>) -> Vec<Process> {
    let mut found = Vec::new();
    let mut next: Vec<(Pid, Pid)> = chosen.into_iter().map(|pid| (parent, pid)).collect();
    while let Some((parent, pid)) = next.pop() {
        // If the parent has changed, the pid may belong to another process. The caller repeats the search and finds the
        // process below its new parent.
        if let Some(process) = Process::read(pid).filter(|it| it.parent == parent) {
            found.push(process);
            next.extend(children(pid).unwrap_or_default().into_iter().map(|child| (pid, child)));
        }
    }
    found
}

/// Own children that belonged to a dead watchdog or its descendants.
///
/// A watchdog has its own session, and its descendants cannot return to the session of the supervisor. So an own child
/// is adopted if it is in another session and is not a living watchdog.
pub(super) fn adopted(living_watchdogs: &BTreeSet<Pid>) -> io::Result<Vec<Pid>> {
    let own = Process::read(own_pid()).ok_or(io::ErrorKind::NotFound)?;
    let strange =
        |pid: &Pid| Process::read(*pid).is_some_and(|it| it.session != own.session && it.parent == own.pid);
    Ok(children(own.pid)?.into_iter().filter(|pid| !living_watchdogs.contains(pid)).filter(strange).collect())
}

pub(super) fn own_pid() -> Pid {
    std::process::id().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_is_parsed() {
        let stat = "42 (a) S 9 (b c) R 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 0";
        let process = Process::parse(42, stat).unwrap();
        assert_eq!(process, Process { pid: 42, parent: 7, group: 8, session: 9, start_ticks: 12345 });
    }

    #[test]
    fn a_child_is_found_below_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(children(own_pid()).unwrap().contains(&pid));
        assert!(searched_children(own_pid()).unwrap().contains(&pid));
        assert!(descendants(own_pid()).iter().any(|it| it.pid == pid && it.parent == own_pid()));
        Process::read(pid).unwrap().signal(syscalls::SIGKILL);
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()),
            Some(syscalls::SIGKILL)
        );
    }
}

//! Processes and their descendants, as `/proc` shows them, and how to signal them without hitting a stranger.
//!
//! The kernel owns the truth, and `/proc` is a picture of it that may be old when it is read: processes fork while we
//! look. So nothing here is ever believed to be complete. Whoever ends a tree signals what it sees and looks again,
//! until the kernel itself says that there is no child left. That is enough because orphans below a *subreaper* become
//! its children: a subreaper without children has no descendants.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::sys::{self, Pid, PidFd};

/// One process at one moment. The start tells it from a later one of the same number.
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

    /// The name, which comes second, may itself hold spaces and parentheses: so count from its end.
    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<Pid>().ok();
        let start_ticks = fields.get(19)?.parse().ok()?;
        Some(Self { pid, parent: number(1)?, group: number(2)?, session: number(3)?, start_ticks })
    }

    /// Signals this process, and no other that has got its number since.
    pub(super) fn signal(&self, signal: i32) {
        match PidFd::open(self.pid) {
            // Looked at again after it was opened: what we saw is what we hold.
            Ok(fd) => {
                let now = Self::read(self.pid);
                if now.is_some_and(|now| now.start_ticks == self.start_ticks) {
                    fd.signal(signal);
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // Before Linux 5.3, or forbidden: only our own children are certain to be who they were. That is enough:
            // as those die, theirs become ours.
            Err(_) if Self::read(self.pid).is_some_and(|now| now.parent == own_pid()) => {
                sys::kill(self.pid, signal);
            }
            Err(_) => {}
        }
    }
}

/// The children of a process, of all its threads. An error says that `/proc` could not be read, not that there are none.
pub(super) fn children(pid: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in numbers_in(&format!("/proc/{pid}/task"))? {
        match fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")) {
            Ok(text) => {
                children.extend(text.split_ascii_whitespace().filter_map(|it| it.parse::<Pid>().ok()))
            }
            Err(error) if is_gone(&error) && !fs::exists(format!("/proc/{pid}/task/{thread}"))? => {}
            // A kernel can be built without these files: then look at everybody.
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

/// The numbers among a directory's names; none if it is gone.
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

/// Everything that can be seen below a process.
pub(super) fn descendants(pid: Pid) -> Vec<Process> {
    with_descendants(pid, children(pid).unwrap_or_default())
}

/// These children of a process, and what can be seen below them.
pub(super) fn with_descendants(parent: Pid, chosen: Vec<Pid>) -> Vec<Process> {
    let mut found = Vec::new();
    let mut next: Vec<(Pid, Pid)> = chosen.into_iter().map(|pid| (parent, pid)).collect();
    while let Some((parent, pid)) = next.pop() {
        // If its parent is another by now, so may it be. The next look will tell.
        if let Some(process) = Process::read(pid).filter(|it| it.parent == parent) {
            found.push(process);
            next.extend(children(pid).unwrap_or_default().into_iter().map(|child| (pid, child)));
        }
    }
    found
}

/// Children of ours that were a dead watchdog's, or its descendants'.
///
/// A watchdog leads a session of its own, and nothing below it can come back into ours: so what is our child, but not
/// in our session, and no living watchdog, is adopted.
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
    fn a_name_full_of_parentheses_is_not_mistaken_for_fields() {
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
        Process::read(pid).unwrap().signal(sys::SIGKILL);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(sys::SIGKILL));
    }
}

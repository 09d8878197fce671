//! Worker processes, as the fault injector controls them.
//!
//! A worker slot has a running process (a child of this one, possibly stopped) or none (killed, or ended in order).
//! Each start is a new process with its own log. All processes run in one temporary directory. Its guard, a `sh` at the
//! end of a pipe that only this process holds, kills the remaining processes and removes the directory when this
//! process ends for any reason.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, NetworkNamespace, NetworkSwitch, SettableClock};

use crate::Failed;
use crate::fault_deck::below;
use crate::worker::Plan;

/// Secret of the Raft cluster.
const RAFT_SECRET: &str = "secret of the chaos cluster";

/// A directory whose processes end when it is dropped.
pub(crate) struct WorkDirectory {
    path: PathBuf,
    guard: Child,
}

const GUARD: &str = r#"trap '' HUP INT QUIT TERM
read -r _
for look in 1 2 3; do
    find /proc/[0-9]*/cwd -prune -lname "$1" 2>/dev/null | cut -d/ -f3 | xargs -r kill -KILL
    sleep 0.05
done
rm -rf "$1""#;

impl WorkDirectory {
    pub(crate) fn new() -> Result<Self, Failed> {
        let path = tempfile::Builder::new().prefix("tenure-chaos-").tempdir()?.keep().canonicalize()?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "tenure-chaos-guard"])
            .arg(&path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { path, guard })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        // `wait` closes our end of the pipe first.
        let _ = self.guard.wait();
    }
}

/// Instructions of a process.
pub(crate) trait Job: serde::Serialize + Sized {
    /// First command-line argument that selects this kind of process.
    const ROLE: &'static str;

    /// Set the path of its log.
    fn log_to(&mut self, path: PathBuf);

    /// Program to start; this one by default.
    fn program(&self) -> Result<PathBuf, Failed> {
        Ok(std::env::current_exe()?)
    }

    /// Add the arguments to the command.
    fn instruct(&self, command: &mut Command) -> Result<(), Failed> {
        command.args([Self::ROLE, &serde_json::to_string(self)?]);
        Ok(())
    }
}

/// A worker slot with its start parameters.
pub(crate) struct WorkerSlot<J = Plan> {
    pub(crate) plan: J,
    /// Clock rate, if not 1.
    pub(crate) rate: Option<f64>,
    /// Clock, if not the true one.
    pub(crate) clock: Option<SettableClock>,
    /// Whether the process runs in the network namespace.
    pub(crate) inside: bool,
    child: Option<Child>,
}

impl<J> WorkerSlot<J> {
    pub(crate) fn new(plan: J) -> Self {
        Self { plan, rate: None, clock: None, inside: false, child: None }
    }
}

/// All worker slots of a scenario.
pub(crate) struct WorkerProcesses<J = Plan> {
    /// Declared before the directory, so that children are reaped first.
    pub(crate) slots: Vec<WorkerSlot<J>>,
    pub(crate) namespace: Option<NetworkNamespace>,
    /// If set, each worker runs in its own network namespace of the switch.
    pub(crate) switch: Option<NetworkSwitch>,
    pub(crate) starts: u32,
    /// Number of processes that ended without a request.
    unexpected_exits: usize,
    pub(crate) directory: WorkDirectory,
}

impl<J> WorkerProcesses<J> {
    pub(crate) fn new() -> Result<Self, Failed> {
        let (slots, directory) = (Vec::new(), WorkDirectory::new()?);
        Ok(Self { slots, namespace: None, switch: None, starts: 0, unexpected_exits: 0, directory })
    }

    /// Start a new process in a slot without one.
    pub(crate) fn start(&mut self, worker: usize) -> Result<(), Failed>
    where
        J: Job,
    {
        if self.slots[worker].child.is_some() && !self.exited(worker) {
            return Ok(());
        }
        self.starts += 1;
        let slot = &mut self.slots[worker];
        slot.plan.log_to(self.directory.path.join(format!("worker-{worker}-{}.log", self.starts)));
        let program = slot.plan.program()?;
        let mut command = match (self.namespace.as_ref().filter(|_| slot.inside), &self.switch) {
            (Some(namespace), _) => namespace.command(program),
            (None, Some(switch)) => switch.command(worker, program),
            (None, None) => Command::new(program),
        };
        command.env("TENURE_RAFT_SECRET", RAFT_SECRET);
        slot.plan.instruct(&mut command)?;
        command.current_dir(&self.directory.path).stdin(Stdio::piped()).stdout(Stdio::null());
        // Ctrl-C is for this process, which ends the workers.
        command.process_group(0);
        if let Some(rate) = slot.rate {
            FakeClock::true_time().rate(rate).apply(&mut command)?;
        }
        if let Some(clock) = &slot.clock {
            clock.apply(&mut command)?;
        }
        slot.child = Some(command.spawn()?);
        Ok(())
    }

    pub(crate) fn start_all(&mut self) -> Result<(), Failed>
    where
        J: Job,
    {
        (0..self.slots.len()).try_for_each(|worker| self.start(worker))
    }

    /// Whether a process ended by itself; its slot is empty from then on.
    fn exited(&mut self, worker: usize) -> bool {
        let slot = &mut self.slots[worker];
        let exited = slot.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
        if exited {
            slot.child = None;
            self.unexpected_exits += 1;
        }
        exited
    }

    /// Violation message if processes ended without a request.
    pub(crate) fn unexpected_exits(&self, kind: &str) -> Option<String> {
        (self.unexpected_exits > 0).then(|| format!("{} {kind} ended unexpectedly", self.unexpected_exits))
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, worker: usize) {
        if let Some(mut child) = self.slots[worker].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Send SIGTERM and wait for the end. Returns whether the process ended in time.
    pub(crate) fn end(&mut self, worker: usize) -> bool {
        let Some(child) = self.slots[worker].child.as_mut() else { return true };
        signal(child.id(), libc::SIGCONT);
        signal(child.id(), libc::SIGTERM);
        for _ in 0..500 {
            if matches!(child.try_wait(), Ok(Some(_))) {
                self.slots[worker].child = None;
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill(worker);
        false
    }

    pub(crate) fn stop(&self, worker: usize) {
        self.signal(worker, libc::SIGSTOP);
    }

    fn go_on(&self, worker: usize) {
        self.signal(worker, libc::SIGCONT);
    }

    /// Resume a stopped process, or start a new one.
    pub(crate) fn bring_back(&mut self, worker: usize) -> Result<(), Failed>
    where
        J: Job,
    {
        self.go_on(worker);
        self.start(worker)
    }

    /// A random slot whose plan fits.
    pub(crate) fn random_slot(&self, entropy: &mut SplitMix, fits: impl Fn(&J) -> bool) -> usize {
        let those: Vec<usize> = (0..self.slots.len()).filter(|slot| fits(&self.slots[*slot].plan)).collect();
        those[below(entropy, those.len())]
    }

    /// End all processes, in order if possible.
    pub(crate) fn end_all(&mut self) {
        (0..self.slots.len()).for_each(|worker| {
            self.exited(worker);
        });
        for slot in &self.slots {
            if let Some(child) = &slot.child {
                signal(child.id(), libc::SIGCONT);
                signal(child.id(), libc::SIGTERM);
            }
        }
        (0..self.slots.len()).for_each(|worker| {
            self.end(worker);
        });
    }

    fn signal(&self, worker: usize, number: libc::c_int) {
        if let Some(child) = &self.slots[worker].child {
            signal(child.id(), number);
        }
    }
}

impl<J> Drop for WorkerProcesses<J> {
    fn drop(&mut self) {
        (0..self.slots.len()).for_each(|worker| self.kill(worker));
    }
}

/// Stop the calling process until another process resumes it.
pub(crate) fn stop_myself() {
    signal(std::process::id(), libc::SIGSTOP);
}

/// Send a signal to a process that was not reaped yet: a child, or this process.
#[allow(unsafe_code)]
fn signal(pid: u32, number: libc::c_int) {
    if let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 1) {
        // SAFETY: kill(2) touches no memory of this process, and `pid` is a single process.
        unsafe { libc::kill(pid, number) };
    }
}

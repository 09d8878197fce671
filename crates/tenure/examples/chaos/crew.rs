//! The worker processes, as the process that breaks them sees them.
//!
//! A hand is *at work* (a child of ours, perhaps stopped) or *away* (killed, or ended in good order). Each start is a new
//! process with a log of its own. All work in one temporary folder; its guard, a `sh` at the end of a pipe that only we
//! hold, kills what still works there and removes the folder however we end.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, Namespace, SettableClock, Switch};

use crate::Failed;
use crate::deck::below;
use crate::worker::Plan;

/// What the members of a cluster speak under.
const RAFT_SECRET: &str = "chaos, and nothing but chaos";

/// A folder that ends the processes in it when it goes.
pub(crate) struct Workplace {
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

impl Workplace {
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

impl Drop for Workplace {
    fn drop(&mut self) {
        // `wait` closes our end of the pipe first.
        let _ = self.guard.wait();
    }
}

/// What a process is told to do.
pub(crate) trait Job: serde::Serialize + Sized {
    /// By which word this program is told that it is such a process.
    const ROLE: &'static str;

    /// Tells it where to leave its log.
    fn log_to(&mut self, path: PathBuf);

    /// Which program does it: this one, unless it says otherwise.
    fn program(&self) -> Result<PathBuf, Failed> {
        Ok(std::env::current_exe()?)
    }

    /// Tells that program what to do.
    fn instruct(&self, command: &mut Command) -> Result<(), Failed> {
        command.args([Self::ROLE, &serde_json::to_string(self)?]);
        Ok(())
    }
}

/// One worker and how to start it.
pub(crate) struct Hand<J = Plan> {
    pub(crate) plan: J,
    /// How fast its clock runs, if not true.
    pub(crate) rate: Option<f64>,
    /// Which clock it believes, if not the true one.
    pub(crate) clock: Option<SettableClock>,
    /// Whether it lives in the namespace.
    pub(crate) inside: bool,
    child: Option<Child>,
}

impl<J> Hand<J> {
    pub(crate) fn new(plan: J) -> Self {
        Self { plan, rate: None, clock: None, inside: false, child: None }
    }
}

/// All workers of one stage.
pub(crate) struct Crew<J = Plan> {
    /// Before the workplace: children of ours are reaped first.
    pub(crate) hands: Vec<Hand<J>>,
    pub(crate) namespace: Option<Namespace>,
    /// If there is one, each worker lives in its own namespace of it.
    pub(crate) switch: Option<Switch>,
    pub(crate) starts: u32,
    /// How many ended without having been told to.
    fallen: usize,
    pub(crate) workplace: Workplace,
}

impl<J> Crew<J> {
    pub(crate) fn new() -> Result<Self, Failed> {
        let (hands, workplace) = (Vec::new(), Workplace::new()?);
        Ok(Self { hands, namespace: None, switch: None, starts: 0, fallen: 0, workplace })
    }

    /// Starts a hand that is away, as a new process.
    pub(crate) fn start(&mut self, worker: usize) -> Result<(), Failed>
    where
        J: Job,
    {
        if self.hands[worker].child.is_some() && !self.fell(worker) {
            return Ok(());
        }
        self.starts += 1;
        let hand = &mut self.hands[worker];
        hand.plan.log_to(self.workplace.path.join(format!("worker-{worker}-{}.log", self.starts)));
        let program = hand.plan.program()?;
        let mut command = match (self.namespace.as_ref().filter(|_| hand.inside), &self.switch) {
            (Some(namespace), _) => namespace.command(program),
            (None, Some(switch)) => switch.command(worker, program),
            (None, None) => Command::new(program),
        };
        command.env("TENURE_RAFT_SECRET", RAFT_SECRET);
        hand.plan.instruct(&mut command)?;
        command.current_dir(&self.workplace.path).stdin(Stdio::piped()).stdout(Stdio::null());
        // Ctrl-C is for us; we end them.
        command.process_group(0);
        if let Some(rate) = hand.rate {
            FakeClock::true_time().rate(rate).apply(&mut command)?;
        }
        if let Some(clock) = &hand.clock {
            clock.apply(&mut command)?;
        }
        hand.child = Some(command.spawn()?);
        Ok(())
    }

    pub(crate) fn start_all(&mut self) -> Result<(), Failed>
    where
        J: Job,
    {
        (0..self.hands.len()).try_for_each(|worker| self.start(worker))
    }

    /// Whether a hand that should be at work ended by itself. It is away from now on.
    fn fell(&mut self, worker: usize) -> bool {
        let hand = &mut self.hands[worker];
        let fell = hand.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
        if fell {
            hand.child = None;
            self.fallen += 1;
        }
        fell
    }

    /// What is amiss if some, which are called `who`, ended without having been told to.
    pub(crate) fn fallen(&self, who: &str) -> Option<String> {
        (self.fallen > 0).then(|| format!("{} {who} ended without having been told to", self.fallen))
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, worker: usize) {
        if let Some(mut child) = self.hands[worker].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, and waits for the end. Whether it ended by itself in time.
    pub(crate) fn end(&mut self, worker: usize) -> bool {
        let Some(child) = self.hands[worker].child.as_mut() else { return true };
        signal(child.id(), libc::SIGCONT);
        signal(child.id(), libc::SIGTERM);
        for _ in 0..500 {
            if matches!(child.try_wait(), Ok(Some(_))) {
                self.hands[worker].child = None;
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

    /// Lets a hand go on, or starts it if it is away.
    pub(crate) fn bring_back(&mut self, worker: usize) -> Result<(), Failed>
    where
        J: Job,
    {
        self.go_on(worker);
        self.start(worker)
    }

    /// Any whose plan is such.
    pub(crate) fn someone(&self, entropy: &mut SplitMix, fits: impl Fn(&J) -> bool) -> usize {
        let those: Vec<usize> = (0..self.hands.len()).filter(|hand| fits(&self.hands[*hand].plan)).collect();
        those[below(entropy, those.len())]
    }

    /// Ends everybody, in good order if they can.
    pub(crate) fn end_all(&mut self) {
        (0..self.hands.len()).for_each(|worker| {
            self.fell(worker);
        });
        for hand in &self.hands {
            if let Some(child) = &hand.child {
                signal(child.id(), libc::SIGCONT);
                signal(child.id(), libc::SIGTERM);
            }
        }
        (0..self.hands.len()).for_each(|worker| {
            self.end(worker);
        });
    }

    fn signal(&self, worker: usize, number: libc::c_int) {
        if let Some(child) = &self.hands[worker].child {
            signal(child.id(), number);
        }
    }
}

impl<J> Drop for Crew<J> {
    fn drop(&mut self) {
        (0..self.hands.len()).for_each(|worker| self.kill(worker));
    }
}

/// Stops the calling process, until somebody lets it go on.
pub(crate) fn stop_myself() {
    signal(std::process::id(), libc::SIGSTOP);
}

/// Sends a signal to a process that was not reaped yet: a child of ours, or ourselves.
#[allow(unsafe_code)]
fn signal(pid: u32, number: libc::c_int) {
    if let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 1) {
        // SAFETY: kill(2) touches no memory of ours, and `pid` is a single process.
        unsafe { libc::kill(pid, number) };
    }
}

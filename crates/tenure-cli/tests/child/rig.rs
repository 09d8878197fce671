//! Test support: shell programs as children, and supervisors in separate processes that tests stop and kill.
//!
//! A supervisor process is this test binary with a variable that selects the role. Tests wait for conditions, never for
//! a time; `PATIENCE_NS` only limits how long a failing test takes.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::child::{Child, ChildExit, ChildSpec, SpawnError, Streams, boottime_ns};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
const PATIENCE_NS: u64 = 60 * SECOND_NS;

/// A directory in which programs leave files for the test.
pub(crate) struct TestDirectory(TempDir);

impl TestDirectory {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(crate) fn mark(&self, name: &str) {
        File::create(self.path(name)).unwrap();
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file has a complete line, and returns it.
    pub(crate) fn line(&self, name: &str) -> String {
        until(name, || self.text(name).ends_with('\n'));
        self.text(name).trim().to_owned()
    }

    pub(crate) fn pid(&self, name: &str) -> u32 {
        self.line(name).parse().unwrap()
    }

    /// A shell program that runs in this directory.
    pub(crate) fn spec(&self, script: &str, trust: Duration, kill_after: Duration) -> ChildSpec {
        let script = format!("cd {}; {script}", self.0.path().display());
        ChildSpec {
            argv: ["sh", "-c", &script].map(Into::into).to_vec(),
            env: Vec::new(),
            withheld: Vec::new(),
            keep: Vec::new(),
            streams: Streams::default(),
            deadline_ns: boottime_ns() + trust.as_nanos() as u64,
            kill_after,
            orphan_cleanup: Vec::new(),
        }
    }

    /// Passes a kernel lock to the program. Returns a file to test whether the lock is free.
    pub(crate) fn lock(&self, spec: &mut ChildSpec) -> File {
        let held = File::create(self.path("lock")).unwrap();
        held.try_lock().unwrap();
        spec.keep.push(OwnedFd::from(held));
        File::open(self.path("lock")).unwrap()
    }

    pub(crate) async fn run(&self, script: &str, trust_s: u64, kill_after_s: u64) -> Child {
        let spec = self.spec(script, Duration::from_secs(trust_s), Duration::from_secs(kill_after_s));
        spawn(spec).await.unwrap()
    }

    /// Runs a script and waits until it has created the file `ready`. Returns the child and its deadline.
    ///
    /// If the deadline passes first, because the machine is slow, runs the script again with twice the time.
    pub(crate) async fn run_until_ready(&self, script: &str, kill_after: Duration) -> (Child, u64) {
        let mut trust = Duration::from_secs(3);
        loop {
            let spec = self.spec(script, trust, kill_after);
            let deadline_ns = spec.deadline_ns;
            let child = spawn(spec).await.unwrap();
            until("it is ready, or over", || self.has("ready") || !lives(child.watchdog_pid()));
            if self.has("ready") {
                return (child, deadline_ns);
            }
            trust *= 2;
        }
    }

    /// A supervisor process that runs the script. Five times a second it sets the deadline to `trust_s` from now.
    pub(crate) fn supervisor(&self, script: &str, trust_s: u64, kill_after_s: u64) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["supervisor_role", "--exact", "--nocapture", "--test-threads=1", "-q"])
            .env("CHILD_TEST_PLACE", self.0.path())
            .env("CHILD_TEST_SCRIPT", script)
            .env("CHILD_TEST_TRUST_S", trust_s.to_string())
            .env("CHILD_TEST_KILL_AFTER_S", kill_after_s.to_string());
        command
    }

    /// Starts a supervisor and waits until its watchdog and main process run. Returns all three.
    pub(crate) fn supervised(&self, script: &str, trust_s: u64, kill_after_s: u64) -> Tree {
        let mut command = self.supervisor(script, trust_s, kill_after_s);
        let supervisor = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        self.line("deadline");
        Tree { watchdog: self.pid("watchdog"), main: self.pid("main"), supervisor }
    }
}

pub(crate) struct Tree {
    pub(crate) supervisor: std::process::Child,
    pub(crate) watchdog: u32,
    pub(crate) main: u32,
}

impl Drop for Tree {
    fn drop(&mut self) {
        kill("CONT", self.watchdog);
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

/// Main function of a supervisor process; returns at once in other processes.
///
/// In its directory, it holds the kernel lock `lock`, writes the pids to `watchdog` and `main` and each deadline to
/// `deadline`, and writes how the child ended to `ending`.
pub(crate) fn play_supervisor() {
    let Some(place) = std::env::var_os("CHILD_TEST_PLACE") else { return };
    let place = PathBuf::from(place);
    let variable = |name: &str| std::env::var(name).unwrap();
    let seconds = |name: &str| Duration::from_secs(variable(name).parse().unwrap());
    let (trust, kill_after) = (seconds("CHILD_TEST_TRUST_S"), seconds("CHILD_TEST_KILL_AFTER_S"));
    let renewed = || boottime_ns() + trust.as_nanos() as u64;
    let lock = File::create(place.join("lock")).unwrap();
    lock.try_lock().unwrap();
    let spec = ChildSpec {
        argv: ["sh", "-c", &format!("cd {}; {}", place.display(), variable("CHILD_TEST_SCRIPT"))]
            .map(Into::into)
            .to_vec(),
        env: Vec::new(),
        withheld: Vec::new(),
        keep: vec![OwnedFd::from(lock)],
        streams: Streams::default(),
        deadline_ns: renewed(),
        kill_after,
        orphan_cleanup: Vec::new(),
    };
    let note = |name: &str, text: String| {
        let (path, draft) = (place.join(name), place.join(format!("{name}.draft")));
        fs::write(&draft, text + "\n").unwrap();
        fs::rename(draft, path).unwrap();
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let ending = runtime.block_on(async {
        let child = spawn(spec).await.unwrap();
        note("watchdog", child.watchdog_pid().to_string());
        note("main", child.pid().to_string());
        loop {
            let deadline_ns = renewed();
            note("deadline", deadline_ns.to_string());
            child.extend(deadline_ns);
            tokio::select! {
                ending = child.wait() => return ending,
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
        }
    });
    note("ending", format!("{ending:?}"));
}

pub(crate) async fn spawn(spec: ChildSpec) -> Result<Child, SpawnError> {
    Child::spawn_with(Path::new(env!("CARGO_BIN_EXE_tenure")), spec).await
}

/// Waits for the child. Panics if it does not end in time.
pub(crate) async fn ending(child: &Child) -> ChildExit {
    let patience = Duration::from_nanos(PATIENCE_NS);
    tokio::time::timeout(patience, child.wait()).await.expect("the child should have ended")
}

pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let give_up_ns = boottime_ns() + PATIENCE_NS;
    while !condition() {
        assert!(boottime_ns() < give_up_ns, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process is alive. A zombie is not: it waits to be reaped.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let done =
        Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).stderr(Stdio::null()).status();
    done.unwrap();
}

/// Stops a process and waits until each of its threads has stopped, because a signal takes effect after `kill` returns.
pub(crate) fn stop(pid: u32) {
    kill("STOP", pid);
    let stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    until("stopped", || {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.all(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).is_ok_and(stopped))
    });
}

/// The last boot time that a program logged, in nanoseconds. Each line of the log has seconds with two decimals; an
/// incomplete last line is ignored.
pub(crate) fn last_stamp_ns(text: &str) -> u64 {
    let whole = text.rsplit_once('\n').expect("a stamp").0;
    let (seconds, hundredths) = whole.lines().last().expect("a stamp").split_once('.').unwrap();
    seconds.parse::<u64>().unwrap() * SECOND_NS + hundredths.parse::<u64>().unwrap() * SECOND_NS / 100
}

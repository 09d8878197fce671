//! Commands, signals and users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use super::{Context, Result, RigError};

/// Timeout of the rig for a server, far longer than a healthy server needs.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// User that runs the servers: `postgres` if this process is root, because servers refuse root; otherwise the current
/// user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerUser(Option<(u32, u32)>);

impl ServerUser {
    pub(crate) fn find() -> Result<Self> {
        if !is_root() {
            return Ok(Self(None));
        }
        let users = fs::read_to_string("/etc/passwd").context(|| "cannot read /etc/passwd".to_owned())?;
        let ids = users.lines().find_map(|line| {
            let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        });
        match ids {
            Some(ids) => Ok(Self(Some(ids))),
            None => Err(RigError::new(
                "running as root, but there is no user `postgres` to run servers as; install the package \
                 postgresql",
            )),
        }
    }

    pub(crate) fn ids(&self) -> Option<(u32, u32)> {
        self.0
    }

    /// A command that runs as this user in `folder`, without our `PG*` variables.
    pub(crate) fn command(&self, program: impl AsRef<Path>, folder: &Path) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(folder).stdin(Stdio::null()).env("LC_ALL", "C").env("HOME", folder);
        forget_postgres_variables(&mut command);
        if let Some((uid, gid)) = self.0 {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Directory for temporary files: `TMPDIR` if this user has access to it, else `/tmp`.
    pub(crate) fn temporary_parent(&self) -> PathBuf {
        let folder = std::env::temp_dir();
        let open = |folder: &Path| fs::metadata(folder).is_ok_and(|m| m.permissions().mode() & 0o001 != 0);
        if self.0.is_none() || folder.ancestors().all(open) { folder } else { PathBuf::from("/tmp") }
    }
}

/// Removes our own connection settings, which must not affect the tools of a private cluster.
pub(crate) fn forget_postgres_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Runs a command to completion. Returns its standard output, or an error with all its output.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(RigError::new(format!(
        "{command:?} exited with {}: {}{}",
        output.status,
        message.trim(),
        text.trim()
    )))
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(|| format!("cannot write {}", path.display()))
}

/// A server process; killed and reaped on drop.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn spawn(mut command: Command) -> Result<Self> {
        command.spawn().map(Self).context(|| format!("cannot run {command:?}"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Exit status, if it has exited.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls until `done` returns a value, or fails with an error that names `what`.
pub(crate) fn wait_for<T>(what: &str, mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    // Count polls and do not read a clock, so that a loaded machine only extends the timeout.
    for _ in 0..PATIENCE.as_millis() / LOOK_EVERY.as_millis() {
        if let Some(value) = done()? {
            return Ok(value);
        }
        thread::sleep(LOOK_EVERY);
    }
    Err(RigError::new(format!("timed out waiting for {what}")))
}

/// The processes whose working directory is in `folder`. Zombies have none.
pub(crate) fn processes_in(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder)))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Suspends a process and returns when it has stopped, which happens some time after the signal.
pub(crate) fn stop(pid: u32) -> Result<()> {
    send(pid, Signal::Stop)?;
    wait_for("a process to stop", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        let stat = stat.context(|| format!("process {pid} exited before it stopped"))?;
        // The name before the state may contain any character, including `)`.
        let state = stat.rsplit(") ").next().unwrap_or_default();
        // A zombie whose parent is suspended stays one and never stops, so report its exit.
        if state.starts_with('Z') {
            return Err(RigError::new(format!("process {pid} exited before it stopped")));
        }
        Ok(state.starts_with('T').then_some(()))
    })
}

/// A signal that the rig sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Interrupt,
    Kill,
    Stop,
    Continue,
}

/// Sends a signal. A missing process is an error, because then the test's fault was not applied.
#[allow(unsafe_code)]
pub(crate) fn send(pid: u32, signal: Signal) -> Result<()> {
    let number = match signal {
        Signal::Interrupt => libc::SIGINT,
        Signal::Kill => libc::SIGKILL,
        Signal::Stop => libc::SIGSTOP,
        Signal::Continue => libc::SIGCONT,
    };
    let target = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 1);
    let target =
        target.ok_or_else(|| RigError::new(format!("{pid} is not a process id that can be signalled")))?;
    // SAFETY: kill(2) does not access our memory, and `target` is a single process: neither 0, -1 nor a group.
    if unsafe { libc::kill(target, number) } == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error()).context(|| format!("cannot send {signal:?} to process {pid}"))
}

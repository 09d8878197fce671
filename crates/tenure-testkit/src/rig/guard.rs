//! Cleanup guards: they remove what a test created, however the test process ends.
//!
//! A guard is a `sh` that blocks on its standard input. The test process holds the only other end (Rust's pipes are
//! close-on-exec, so no child inherits it), and the kernel closes it however the process ends. The guard has its own
//! process group, so a runner that kills the group of the test does not kill the guard.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::process::ServerUser;
use super::{Context, Result, RigError};

/// Runs a shell script when dropped, or when this process ends in any way.
#[derive(Debug)]
pub(crate) struct CleanupGuard {
    shell: Child,
}

impl CleanupGuard {
    /// `cleanup` is the script; `args` are its `$1`, `$2`, and so on.
    pub(crate) fn new(cleanup: &str, args: &[&str]) -> Result<Self> {
        let script = format!("trap '' HUP INT QUIT TERM\nread -r _\n{cleanup}");
        let shell = Command::new("sh")
            .args(["-c", &script, "tenure-rig-guard"])
            .args(args)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context(|| "cannot start the guard `sh`".to_owned())?;
        Ok(Self { shell })
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        // `wait` closes our end of the pipe first, which starts the script.
        let _ = self.shell.wait();
    }
}

/// Ends the processes that run in the directory `$1`, then removes it.
///
/// SIGQUIT comes first: it is PostgreSQL's immediate shutdown, after which no System V segment remains. Two empty
/// checks in a row are required, because a child may be between its fork and its chdir during the first.
const END_FOLDER: &str = r#"
those_inside() { find /proc/[0-9]*/cwd -prune \( -lname "$1" -o -lname "$1/*" \) 2>/dev/null | cut -d/ -f3; }
empty=0; look=0
while [ "$empty" -lt 2 ] && [ "$look" -lt 200 ]; do
    pids=$(those_inside "$1")
    if [ -z "$pids" ]; then
        empty=$((empty + 1))
    else
        empty=0
        if [ "$look" -lt 20 ]; then kill -QUIT $pids; kill -CONT $pids; else kill -KILL $pids; fi
    fi
    look=$((look + 1))
    sleep 0.02
done
for lock in "$1"/data/postmaster.pid; do
    [ -f "$lock" ] && segment=$(sed -n 7p "$lock" | awk '{print $2}') && [ -n "$segment" ] && ipcrm -m "$segment"
done
rm -rf "$1"
"#;

/// A temporary directory that owns the processes that run in it.
#[derive(Debug)]
pub(crate) struct TempDirectory {
    path: PathBuf,
    _guard: CleanupGuard,
}

impl TempDirectory {
    /// Creates a directory in `parent`, or in the directory for temporary files, that belongs to `user`.
    pub(crate) fn new(user: &ServerUser, parent: Option<&Path>) -> Result<Self> {
        let parent = match parent {
            Some(parent) => parent.to_owned(),
            None => user.temporary_parent(),
        };
        let folder = tempfile::Builder::new()
            .prefix("tenure-rig-")
            .tempdir_in(&parent)
            .context(|| format!("cannot create a directory in {}", parent.display()))?;
        // The kernel reports working directories without symbolic links.
        let path =
            folder.path().canonicalize().context(|| format!("cannot resolve {}", folder.path().display()))?;
        let text = path.to_str().ok_or_else(|| RigError::new(format!("{} is not UTF-8", path.display())))?;
        let guard = CleanupGuard::new(END_FOLDER, &[text])?;
        // The guard removes the directory from here on.
        let _ = folder.keep();
        if let Some((uid, gid)) = user.ids() {
            chown(&path, Some(uid), Some(gid)).context(|| format!("cannot chown {text}"))?;
        }
        Ok(Self { path, _guard: guard })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

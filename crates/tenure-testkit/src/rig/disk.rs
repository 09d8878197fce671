//! A disk so small that a test can fill it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guard::CleanupGuard;
use super::process::{is_root, run};
use super::{Context, Result, RigError};

/// A tmpfs of a given size in its own directory, writable by all, unmounted on drop.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    _guard: CleanupGuard,
}

/// Unmounts the disk `$1`. If the test process was killed, the cleanup guard of a server on the disk runs at the same
/// time and finds the server's processes by their working directory. A lazy unmount would hide that directory, so use
/// it only as a last resort.
const END_DISK: &str = r#"
look=0
until umount "$1"; do
    look=$((look + 1))
    [ "$look" -lt 100 ] || { umount -l "$1"; break; }
    sleep 0.05
done
rmdir "$1"
"#;

impl SmallDisk {
    /// Whether this process may mount, or why a test must skip.
    pub fn available() -> std::result::Result<(), String> {
        if !is_root() {
            return Err("mounting a small disk needs root".to_owned());
        }
        Self::new(65_536).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Mounts a disk of this many bytes, rounded up to whole pages.
    pub fn new(bytes: u64) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tenure-disk-")
            .tempdir_in("/tmp")
            .context(|| "cannot create a directory in /tmp".to_owned())?;
        let text =
            folder.path().to_str().ok_or_else(|| RigError::new("the name of the directory is not UTF-8"))?;
        let guard = CleanupGuard::new(END_DISK, &[text])?;
        run(Command::new("mount").args([
            "-t",
            "tmpfs",
            "-o",
            &format!("size={bytes},mode=1777"),
            "tmpfs",
            text,
        ]))?;
        Ok(Self { path: folder.keep(), _guard: guard })
    }

    /// Mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the disk completely.
    pub fn fill(&self) -> Result<()> {
        let ballast = self.ballast();
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&ballast)
            .context(|| format!("cannot open {}", ballast.display()))?;
        // A page at a time, so that the last free page is used too.
        let page = [0; 4096];
        loop {
            match file.write_all(&page) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context(|| format!("cannot write {}", ballast.display())),
            }
        }
    }

    /// Frees the space that [`fill`](Self::fill) used.
    pub fn free(&self) -> Result<()> {
        let ballast = self.ballast();
        match fs::remove_file(&ballast) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).context(|| format!("cannot remove {}", ballast.display()))
            }
            _ => Ok(()),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }
}

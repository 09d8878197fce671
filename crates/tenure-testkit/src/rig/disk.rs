//! A disk so small that it can be filled.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guard::Guard;
use super::process::{is_root, run};
use super::{Context, Error, Result};

/// A tmpfs of a given size in a folder of its own, writable by all, unmounted on drop.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    _guard: Guard,
}

/// Unmounts the disk `$1`. If the test process was killed, the guard of a server that lives there is at work now as well,
/// and finds its processes by their folder: under an unmounted disk it would find none. So lazily only in the end.
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
    /// Whether we may mount, or why a test that needs a small disk must skip.
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
            .context(|| "cannot make a folder in /tmp".to_owned())?;
        let text = folder.path().to_str().ok_or_else(|| Error::new("the folder's name is not UTF-8"))?;
        let guard = Guard::new(END_DISK, &[text])?;
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

    /// Where the disk is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes until nothing more fits.
    pub fn fill(&self) -> Result<()> {
        let ballast = self.ballast();
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&ballast)
            .context(|| format!("cannot open {}", ballast.display()))?;
        // A page at a time, so that the last free page is taken too.
        let page = [0; 4096];
        loop {
            match file.write_all(&page) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).context(|| format!("cannot write {}", ballast.display())),
            }
        }
    }

    /// Gives back what [`fill`](Self::fill) took.
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

//! Creation of files and directories that only their owner may read, independent of the umask.
//!
//! Tenure's files contain payloads, webhook secrets and broker keys. This crate creates all its files through this
//! module.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
#[cfg(feature = "sqlite")]
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;

/// Mode of a private file.
const FILE: u32 = 0o600;

/// Mode of a private directory.
const FOLDER: u32 = 0o700;

/// Create a directory and its parents with mode 0700. Existing directories are not changed.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

/// Options for opening a file; a missing file is created with mode 0600.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Create an empty file with mode 0600, unless it exists.
///
/// The file is never opened under its own name: closing any descriptor of a SQLite database would cancel the POSIX
/// locks that other connections of this process hold on it.
#[cfg(feature = "sqlite")]
pub(crate) fn create_empty(path: &Path) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".new-{}-{:x}", std::process::id(), crate::runtime::random()));
    let beside = PathBuf::from(beside);
    drop(options().write(true).create_new(true).open(&beside)?);
    let linked = std::fs::hard_link(&beside, path);
    let _ = std::fs::remove_file(&beside);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // A file system without hard links, such as FAT.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS)) => {
            match options().write(true).create_new(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                created => created.map(drop),
            }
        }
        other => other,
    }
}

/// The existing paths that users other than the owner can access, with their modes.
#[cfg(feature = "sqlite")]
pub(crate) fn exposed(paths: impl IntoIterator<Item = PathBuf>) -> Vec<(PathBuf, u32)> {
    let mode = |path: &Path| std::fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
    let exposed = |path: PathBuf| mode(&path).ok().filter(|mode| mode & 0o077 != 0).map(|mode| (path, mode));
    paths.into_iter().filter_map(exposed).collect()
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.db");
        create_empty(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        create_empty(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file remains");
        assert!(exposed([path.clone()]).is_empty());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert_eq!(exposed([path.clone(), folder.path().join("none")]), [(path, 0o640)]);
    }
}

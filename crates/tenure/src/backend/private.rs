//! Files and folders that only their owner may read, whatever the umask is.
//!
//! Tenure's files hold payloads, secrets of webhooks and keys of the broker. Everything that this crate creates on a disk
//! is created through this module.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
#[cfg(feature = "sqlite")]
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;

/// The mode of a private file.
const FILE: u32 = 0o600;

/// The mode of a private folder.
const FOLDER: u32 = 0o700;

/// Creates a folder, and the folders above it, with mode 0700. Folders that exist are left as they are.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

/// Options for opening a file that is created with mode 0600 if it does not exist.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Creates an empty file with mode 0600, unless a file of this name exists.
///
/// No descriptor of the file is opened or closed under its own name: closing any descriptor of a SQLite database cancels
/// the POSIX locks that other connections of this process hold on it.
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
        // A file system without links, such as FAT.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS)) => {
            match options().write(true).create_new(true).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                created => created.map(drop),
            }
        }
        other => other,
    }
}

/// Those of the paths that exist and that users other than their owner may use, each with its mode.
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
    fn an_existing_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.db");
        create_empty(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        create_empty(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(exposed([path.clone()]).is_empty());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        assert_eq!(exposed([path.clone(), folder.path().join("none")]), [(path, 0o640)]);
    }
}

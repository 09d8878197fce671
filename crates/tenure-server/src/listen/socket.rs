//! Unix sockets: created with their final permissions, and removed only if they are stale.

use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// Unix socket. It is removed on drop if it is still the same file.
pub(crate) struct Socket {
    pub(crate) path: PathBuf,
    inode: u64,
    /// Held while listening: two servers that start at once must not both consider a socket stale.
    _lock: File,
}

impl Socket {
    /// Listen on a path. A socket of a dead server is replaced; anything else is not touched.
    pub(crate) fn bind(path: &Path, mode: u32, random: u64) -> io::Result<(UnixListener, Socket)> {
        let lock = lock(path)?;
        clear(path)?;
        // Bind in a private directory and rename with the final permissions, so that unauthorized clients can
        // never connect.
        let hidden = with_suffix(path, &format!(".{:08x}", random as u32));
        std::fs::DirBuilder::new().mode(0o700).create(&hidden)?;
        let inner = hidden.join("s");
        let bound = UnixListener::bind(&inner).and_then(|listener| {
            std::fs::set_permissions(&inner, Permissions::from_mode(mode))?;
            let inode = std::fs::symlink_metadata(&inner)?.ino();
            std::fs::rename(&inner, path)?;
            Ok((listener, inode))
        });
        let _ = std::fs::remove_file(&inner);
        let _ = std::fs::remove_dir(&hidden);
        let (listener, inode) = bound?;
        Ok((listener, Socket { path: path.into(), inode, _lock: lock }))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(with_suffix(path, ".lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::AddrInUse.into()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn clear(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => Err(error),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        // First a live socket, then a stale one.
        let other = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        assert_eq!(Socket::bind(&path, 0o600, 1).err().expect("refused").kind(), io::ErrorKind::AddrInUse);
        drop(other);
        let (listener, socket) = Socket::bind(&path, 0o660, 2).expect("the stale one is replaced");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o660);
        assert_eq!(Socket::bind(&path, 0o600, 3).err().expect("refused").kind(), io::ErrorKind::AddrInUse);
        drop((listener, socket));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn other_files_are_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").expect("written");
        assert_eq!(
            Socket::bind(&path, 0o600, 1).err().expect("refused").kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "data");
    }
}

//! Notifications between the processes of one machine.
//!
//! Each client that listens has a FIFO, `<client>.notify`, in the lock directory. After a commit, the writer sends one line of JSON to
//! every FIFO. A line is shorter than `PIPE_BUF`, so the kernel does not interleave lines. Notifications only save time: polling
//! finds a lost one, and a false one only causes a read. So the writer skips a full FIFO (its reader is stopped), removes a FIFO
//! without a reader (its process is dead), and ignores errors.
//!
//! The death of a session is never taken from a FIFO. Each process asks the kernel (`lock.rs`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tenure_core::port::{Notification, NotificationSource};
use tokio::net::unix::pipe;
use tokio::sync::broadcast;

use super::lock::LockDirectory;
use super::sys;

/// Maximum length of a line. Linux writes this many bytes to a pipe atomically (POSIX guarantees 512).
const LINE_MAX: usize = 4096;

/// Capacity of a FIFO. A reader that finds it full has probably missed later notifications.
const BACKLOG: usize = 64 * 1024;

/// Suffix of a FIFO with a reader.
const SUFFIX: &str = ".notify";

/// Suffix of a FIFO that its reader has not opened yet.
const NEW_SUFFIX: &str = ".notify-new";

/// Send notifications to every client that listens.
pub(super) fn notify(directory: &LockDirectory, notifications: &[Notification]) {
    let lines: Vec<Vec<u8>> = notifications.iter().filter_map(line).collect();
    if lines.is_empty() {
        return;
    }
    let Ok(entries) = std::fs::read_dir(directory.path()) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_fifo = entry.file_type().is_ok_and(|kind| kind.is_fifo());
        if is_fifo && path.to_str().is_some_and(|path| path.ends_with(SUFFIX)) {
            write_lines(&path, &lines);
        }
    }
}

/// Remove FIFOs without a reader, including new ones that are not open yet: their creator retries.
pub(super) fn remove_unread(directory: &LockDirectory) {
    let Ok(entries) = std::fs::read_dir(directory.path()) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_fifo())) {
        let _ = writer(&entry.path());
    }
}

fn line(notification: &Notification) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(notification).ok()?;
    line.push(b'\n');
    (line.len() <= LINE_MAX).then_some(line)
}

fn write_lines(path: &Path, lines: &[Vec<u8>]) {
    let Ok(mut writer) = writer(path) else { return };
    // An own reader prevents SIGPIPE if the other reader dies during the write.
    let Ok(_reader) = fifo().read(true).open(path) else { return };
    for line in lines {
        if writer.write_all(line).is_err() {
            return;
        }
    }
}

/// Open a FIFO for writing. Removes a FIFO without a reader.
fn writer(path: &Path) -> io::Result<File> {
    let opened = fifo().write(true).open(path);
    if opened.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO)) {
        let _ = std::fs::remove_file(path);
    }
    opened
}

fn fifo() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    options
}

/// Notifications for one client: from its FIFO, and deaths that this process detected.
pub(super) struct FifoNotificationSource {
    /// The FIFO before the first read, which needs a runtime.
    unread: Option<(File, PathBuf)>,
    pipe: Option<pipe::Receiver>,
    path: Option<PathBuf>,
    buffer: Vec<u8>,
    deaths: broadcast::Receiver<Notification>,
}

impl FifoNotificationSource {
    /// Start listening. If the FIFO cannot be created, the source only reports deaths.
    pub(super) fn new(
        directory: &LockDirectory,
        id: &str,
        deaths: broadcast::Receiver<Notification>,
    ) -> FifoNotificationSource {
        let created = make(directory, id);
        if let Err(error) = &created {
            tracing::warn!(directory = %directory.path().display(), %error, "creating the notification FIFO failed; polling instead");
        }
        FifoNotificationSource { unread: created.ok(), pipe: None, path: None, buffer: Vec::new(), deaths }
    }

    fn connect(&mut self) {
        if let Some((file, path)) = self.unread.take() {
            self.pipe = pipe::Receiver::from_file_unchecked(file).ok();
            self.path = Some(path);
        }
    }

    /// The next notification in the buffer. Skips kinds that a process must detect itself.
    fn take_line(&mut self) -> Option<Notification> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let notification = serde_json::from_slice(&self.buffer[..end]);
            self.buffer.drain(..=end);
            if let Ok(notification) = notification
                && !matches!(
                    notification,
                    Notification::SessionExpired(_) | Notification::ConnectionLost(_) | Notification::Resync
                )
            {
                return Some(notification);
            }
        }
        None
    }

    /// Read the available bytes; `true` if notifications were probably lost.
    fn read(&mut self) -> io::Result<bool> {
        let Some(pipe) = &self.pipe else { return Ok(false) };
        let mut read = 0;
        let mut chunk = [0; LINE_MAX];
        while read < BACKLOG {
            match pipe.try_read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => {
                    self.buffer.extend_from_slice(&chunk[..n]);
                    read += n;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        // No valid line is longer: discard it.
        if self.buffer.len() > LINE_MAX && !self.buffer.contains(&b'\n') {
            self.buffer.clear();
        }
        Ok(read + LINE_MAX >= BACKLOG)
    }
}

#[async_trait]
impl NotificationSource for FifoNotificationSource {
    async fn next(&mut self) -> Option<Notification> {
        self.connect();
        loop {
            if let Some(notification) = self.take_line() {
                return Some(notification);
            }
            let readable = async {
                match &self.pipe {
                    Some(pipe) => pipe.readable().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                death = self.deaths.recv() => return match death {
                    Ok(notification) => Some(notification),
                    Err(broadcast::error::RecvError::Lagged(_)) => Some(Notification::Resync),
                    Err(broadcast::error::RecvError::Closed) => None,
                },
                ready = readable => {
                    match ready.and_then(|()| self.read()) {
                        Ok(false) => {}
                        Ok(true) => {
                            self.buffer.clear();
                            return Some(Notification::Resync);
                        }
                        Err(error) => {
                            tracing::warn!(%error, "reading the notification FIFO failed; polling instead");
                            self.pipe = None;
                        }
                    }
                }
            }
        }
    }
}

impl Drop for FifoNotificationSource {
    fn drop(&mut self) {
        let unread = self.unread.take().map(|(_, path)| path);
        for path in unread.into_iter().chain(self.path.take()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Create a FIFO, open it for reading, then give it its final name. A FIFO with a final name and without a reader is therefore left
/// over from a dead process.
fn make(directory: &LockDirectory, id: &str) -> io::Result<(File, PathBuf)> {
    let (unready, ready) =
        (directory.path().join(format!("{id}{NEW_SUFFIX}")), directory.path().join(format!("{id}{SUFFIX}")));
    for _ in 0..10 {
        directory.make()?;
        let created = sys::mkfifo(&unready).and_then(|()| {
            // Also open for writing, so that the FIFO never reaches its end when the last writer closes it.
            let file = fifo().read(true).write(true).open(&unready)?;
            std::fs::rename(&unready, &ready)?;
            Ok(file)
        });
        match created {
            Ok(file) => return Ok((file, ready)),
            // Another process removed the new FIFO.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{ElectionKey, Name, SessionId};

    fn directory() -> (tempfile::TempDir, LockDirectory) {
        let dir = tempfile::tempdir().unwrap();
        let directory = LockDirectory::of(&dir.path().join("t.db"));
        directory.make().unwrap();
        (dir, directory)
    }

    fn changed() -> Notification {
        let name: Name = "a".parse().unwrap();
        Notification::ElectionChanged(ElectionKey::new(Name::default_namespace(), name))
    }

    fn source(directory: &LockDirectory) -> FifoNotificationSource {
        FifoNotificationSource::new(directory, "client", broadcast::channel(4).1.resubscribe())
    }

    #[tokio::test]
    async fn session_deaths_from_a_fifo_are_ignored() {
        let (_dir, directory) = directory();
        let (_deaths, receiver) = broadcast::channel(4);
        let mut source = FifoNotificationSource::new(&directory, "client", receiver);
        let id = SessionId::from_stored("a");
        notify(
            &directory,
            &[
                Notification::SessionExpired(id.clone()),
                Notification::ConnectionLost(id),
                Notification::Resync,
                changed(),
            ],
        );
        assert_eq!(source.next().await, Some(changed()));
    }

    #[tokio::test]
    async fn invalid_lines_are_skipped() {
        let (_dir, directory) = directory();
        let (_deaths, receiver) = broadcast::channel(4);
        let mut source = FifoNotificationSource::new(&directory, "client", receiver);
        let path = directory.path().join("client.notify");
        OpenOptions::new().write(true).open(&path).unwrap().write_all(b"\n{\n\xff\xfe\n").unwrap();
        notify(&directory, &[changed()]);
        assert_eq!(source.next().await, Some(changed()));
    }

    #[tokio::test]
    async fn a_reader_of_a_full_fifo_resynchronizes() {
        let (_dir, directory) = directory();
        let (_deaths, receiver) = broadcast::channel(4);
        let mut source = FifoNotificationSource::new(&directory, "client", receiver);
        // More than the FIFO holds: the rest is dropped, and no writer waits.
        for _ in 0..10_000 {
            notify(&directory, &[changed()]);
        }
        assert_eq!(source.next().await, Some(Notification::Resync));
    }

    #[test]
    fn a_fifo_without_a_reader_is_removed() {
        let (_dir, directory) = directory();
        let source = source(&directory);
        let path = directory.path().join("client.notify");
        notify(&directory, &[changed()]);
        assert!(path.exists(), "the FIFO has a reader");
        let left = directory.path().join("dead.notify");
        sys::mkfifo(&left).unwrap();
        notify(&directory, &[changed()]);
        assert!(!left.exists() && path.exists());
        drop(source);
        assert!(!path.exists());
    }

    #[test]
    fn a_regular_file_in_the_lock_directory_stays() {
        let (_dir, directory) = directory();
        let file = directory.path().join("notes.notify");
        std::fs::write(&file, "mine").unwrap();
        notify(&directory, &[changed()]);
        remove_unread(&directory);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}

//! Hints between the processes of one machine.
//!
//! Each client that listens has a FIFO, `<client>.wake`, in the folder beside the database. Whoever changes something
//! writes one line of JSON to every FIFO there, after its commit. A line is shorter than `PIPE_BUF`, so the kernel
//! never mixes two. Nothing here is needed for anything but speed: a hint that is lost is found by polling, and one that
//! is false leads to a look at the database and no further. So a full FIFO (its reader is stopped) is skipped, one that
//! nobody reads (its process is dead) is removed, and no trouble is ever reported.
//!
//! That a session died is never taken from a FIFO: each process asks the kernel itself (`lock.rs`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tenure_core::port::{Wake, WakeSource};
use tokio::net::unix::pipe;
use tokio::sync::broadcast;

use super::lock::Folder;
use super::sys;

/// The longest line: what POSIX lets a pipe take in one piece is at least 512 bytes, and Linux takes this.
const LINE_MAX: usize = 4096;

/// As much as a FIFO holds. Whoever finds that much has probably missed what came after.
const BACKLOG: usize = 64 * 1024;

/// The ending of a FIFO that can be written to.
const READY: &str = ".wake";

/// The ending of a FIFO whose reader has not opened it yet.
const UNREADY: &str = ".wake-new";

/// Tells everybody who listens.
pub(super) fn ring(folder: &Folder, wakes: &[Wake]) {
    let lines: Vec<Vec<u8>> = wakes.iter().filter_map(line).collect();
    if lines.is_empty() {
        return;
    }
    let Ok(entries) = std::fs::read_dir(folder.path()) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_fifo = entry.file_type().is_ok_and(|kind| kind.is_fifo());
        if is_fifo && path.to_str().is_some_and(|path| path.ends_with(READY)) {
            tell(&path, &lines);
        }
    }
}

/// Removes the FIFOs that nobody reads, half-made ones too: whoever is making one begins again.
pub(super) fn sweep(folder: &Folder) {
    let Ok(entries) = std::fs::read_dir(folder.path()) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_fifo())) {
        let _ = writer(&entry.path());
    }
}

fn line(wake: &Wake) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(wake).ok()?;
    line.push(b'\n');
    (line.len() <= LINE_MAX).then_some(line)
}

fn tell(path: &Path, lines: &[Vec<u8>]) {
    let Ok(mut writer) = writer(path) else { return };
    // With a reader of our own, its death in this moment cannot make the write raise SIGPIPE.
    let Ok(_reader) = fifo().read(true).open(path) else { return };
    for line in lines {
        if writer.write_all(line).is_err() {
            return;
        }
    }
}

/// Opens a FIFO for writing. One that nobody reads is removed.
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

/// One client's end: what the FIFO brings, and the deaths that this process saw itself.
pub(super) struct Ear {
    /// The FIFO, until a runtime is there to read it.
    unread: Option<(File, PathBuf)>,
    pipe: Option<pipe::Receiver>,
    path: Option<PathBuf>,
    buffer: Vec<u8>,
    deaths: broadcast::Receiver<Wake>,
}

impl Ear {
    /// Listens from now on. Without a FIFO, for want of space or rights, it hears of deaths only.
    pub(super) fn new(folder: &Folder, id: &str, deaths: broadcast::Receiver<Wake>) -> Ear {
        let made = make(folder, id);
        if let Err(error) = &made {
            tracing::warn!(folder = %folder.path().display(), %error, "no FIFO for hints; polling instead");
        }
        Ear { unread: made.ok(), pipe: None, path: None, buffer: Vec::new(), deaths }
    }

    fn connect(&mut self) {
        if let Some((file, path)) = self.unread.take() {
            self.pipe = pipe::Receiver::from_file_unchecked(file).ok();
            self.path = Some(path);
        }
    }

    /// The first hint in the buffer that others may give.
    fn take_line(&mut self) -> Option<Wake> {
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let wake = serde_json::from_slice(&self.buffer[..end]);
            self.buffer.drain(..=end);
            // Those that a process must see for itself are not believed.
            if let Ok(wake) = wake
                && !matches!(wake, Wake::Died(_) | Wake::Severed(_) | Wake::Resync)
            {
                return Some(wake);
            }
        }
        None
    }

    /// Reads what is there; `true` if there was so much that some was probably missed.
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
        // No honest line is that long: do not gather one.
        if self.buffer.len() > LINE_MAX && !self.buffer.contains(&b'\n') {
            self.buffer.clear();
        }
        Ok(read + LINE_MAX >= BACKLOG)
    }
}

#[async_trait]
impl WakeSource for Ear {
    async fn next(&mut self) -> Option<Wake> {
        self.connect();
        loop {
            if let Some(wake) = self.take_line() {
                return Some(wake);
            }
            let readable = async {
                match &self.pipe {
                    Some(pipe) => pipe.readable().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                death = self.deaths.recv() => return match death {
                    Ok(wake) => Some(wake),
                    Err(broadcast::error::RecvError::Lagged(_)) => Some(Wake::Resync),
                    Err(broadcast::error::RecvError::Closed) => None,
                },
                ready = readable => {
                    match ready.and_then(|()| self.read()) {
                        Ok(false) => {}
                        Ok(true) => {
                            self.buffer.clear();
                            return Some(Wake::Resync);
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the FIFO for hints is broken; polling instead");
                            self.pipe = None;
                        }
                    }
                }
            }
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let unread = self.unread.take().map(|(_, path)| path);
        for path in unread.into_iter().chain(self.path.take()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes a FIFO and opens it for reading *before* it gets the name by which others find it: one of that name that nobody
/// reads has been left behind.
fn make(folder: &Folder, id: &str) -> io::Result<(File, PathBuf)> {
    let (unready, ready) =
        (folder.path().join(format!("{id}{UNREADY}")), folder.path().join(format!("{id}{READY}")));
    for _ in 0..10 {
        folder.make()?;
        let made = sys::mkfifo(&unready).and_then(|()| {
            // For writing too, so that it never ends when the last writer goes.
            let file = fifo().read(true).write(true).open(&unready)?;
            std::fs::rename(&unready, &ready)?;
            Ok(file)
        });
        match made {
            Ok(file) => return Ok((file, ready)),
            // Somebody swept it away half-made.
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

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(&dir.path().join("t.db"));
        folder.make().unwrap();
        (dir, folder)
    }

    fn changed() -> Wake {
        let name: Name = "a".parse().unwrap();
        Wake::Changed(ElectionKey::new(Name::default_namespace(), name))
    }

    fn ear(folder: &Folder) -> Ear {
        Ear::new(folder, "client", broadcast::channel(4).1.resubscribe())
    }

    #[tokio::test]
    async fn deaths_are_never_believed_from_a_fifo() {
        let (_dir, folder) = folder();
        let (_deaths, receiver) = broadcast::channel(4);
        let mut ear = Ear::new(&folder, "client", receiver);
        let id = SessionId::from_stored("a");
        ring(&folder, &[Wake::Died(id.clone()), Wake::Severed(id), Wake::Resync, changed()]);
        assert_eq!(ear.next().await, Some(changed()));
    }

    #[tokio::test]
    async fn nonsense_is_skipped() {
        let (_dir, folder) = folder();
        let (_deaths, receiver) = broadcast::channel(4);
        let mut ear = Ear::new(&folder, "client", receiver);
        let path = folder.path().join("client.wake");
        OpenOptions::new().write(true).open(&path).unwrap().write_all(b"\n{\n\xff\xfe\n").unwrap();
        ring(&folder, &[changed()]);
        assert_eq!(ear.next().await, Some(changed()));
    }

    #[tokio::test]
    async fn a_reader_that_was_stopped_looks_at_everything() {
        let (_dir, folder) = folder();
        let (_deaths, receiver) = broadcast::channel(4);
        let mut ear = Ear::new(&folder, "client", receiver);
        // Far more than fits: the rest is dropped, and no writer waits.
        for _ in 0..10_000 {
            ring(&folder, &[changed()]);
        }
        assert_eq!(ear.next().await, Some(Wake::Resync));
    }

    #[test]
    fn a_fifo_that_nobody_reads_is_removed() {
        let (_dir, folder) = folder();
        let ear = ear(&folder);
        let path = folder.path().join("client.wake");
        ring(&folder, &[changed()]);
        assert!(path.exists(), "it has a reader");
        let left = folder.path().join("dead.wake");
        sys::mkfifo(&left).unwrap();
        ring(&folder, &[changed()]);
        assert!(!left.exists() && path.exists());
        drop(ear);
        assert!(!path.exists());
    }

    #[test]
    fn a_plain_file_in_the_folder_is_left_alone() {
        let (_dir, folder) = folder();
        let file = folder.path().join("notes.wake");
        std::fs::write(&file, "mine").unwrap();
        ring(&folder, &[changed()]);
        sweep(&folder);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}

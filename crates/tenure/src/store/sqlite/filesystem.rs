//! Supported file systems.
//!
//! The write-ahead log of SQLite uses shared memory, and kernel locks belong to one kernel: neither works across machines. On a file
//! system that several machines can mount, two machines could each have a leader. So the store refuses such a file system, even if
//! only one machine uses it now.
//!
//! The list contains the file systems to refuse, because there are many local ones. It contains FUSE as a whole: sshfs, s3fs,
//! GlusterFS, virtiofs and the shared folders of Docker Desktop cannot be distinguished from local FUSE file systems (ntfs-3g,
//! gocryptfs).

use std::path::Path;

use tenure_core::port::{ErrorKind, StoreError};

use super::sys;

/// File systems that several machines can mount, with their magic numbers of `statfs(2)`.
const SHARED: &[(u32, &str)] = &[
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x6573_5546, "FUSE (sshfs, virtiofs, GlusterFS or the like)"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x7375_7245, "Coda"),
    (0x0000_564c, "NCP"),
    (0x1983_0326, "BeeGFS"),
    (0xaad7_aaea, "PanFS"),
    (0x2003_0528, "OrangeFS"),
    (0x786f_4256, "a VirtualBox shared folder"),
    (0xbacb_acbc, "a VMware shared folder"),
    (0x7c7c_6673, "a Parallels shared folder"),
];

/// Refuse a directory on a file system where kernel locks do not exclude every other process.
pub(super) fn check(directory: &Path) -> Result<(), StoreError> {
    match sys::filesystem_magic(directory) {
        Ok(magic) => refuse(directory, shared(magic)),
        Err(error) => Err(super::error::io(directory, "reading the type of its file system", &error)),
    }
}

/// The name of a shared file system; `None` for a local one.
fn shared(magic: u32) -> Option<&'static str> {
    SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

fn refuse(directory: &Path, name: Option<&str>) -> Result<(), StoreError> {
    let Some(name) = name else { return Ok(()) };
    Err(StoreError::new(
        ErrorKind::Misconfigured,
        format!(
            "{} is on {name}, which other machines can mount. Kernel locks do not work across machines, so two machines \
             could lead at the same time. Put the SQLite file on a local disk, or use PostgreSQL (postgres://…) to share \
             elections between machines",
            directory.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_cluster_file_systems_are_refused_by_name() {
        let cases = [
            (libc::NFS_SUPER_MAGIC as u32, "NFS"),
            (libc::SMB_SUPER_MAGIC as u32, "SMB"),
            (0xff53_4d42, "CIFS"),
            (0xfe53_4d42, "SMB2"),
            (0x0102_1997, "9p"),
            (libc::AFS_SUPER_MAGIC as u32, "AFS"),
            (0x00c3_6400, "Ceph"),
            (libc::FUSE_SUPER_MAGIC as u32, "FUSE"),
            (libc::CODA_SUPER_MAGIC as u32, "Coda"),
        ];
        for (magic, name) in cases {
            let error = refuse(Path::new("/shared"), shared(magic)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Misconfigured);
            for part in ["/shared", name, "postgres://"] {
                assert!(error.message.contains(part), "{part:?} is missing in: {error}");
            }
        }
    }

    #[test]
    fn local_file_systems_are_accepted() {
        // ext4, XFS, Btrfs, tmpfs, overlayfs, ZFS, F2FS, bcachefs, eCryptfs.
        let local = [
            0xef53,
            0x5846_5342,
            0x9123_683e,
            0x0102_1994,
            0x794c_7630,
            0x2fc1_2fc1,
            0xf2f5_2010,
            0xca45_1a4e,
            0xf15f,
        ];
        assert!(local.iter().all(|magic| shared(*magic).is_none()));
        assert!(check(&std::env::temp_dir()).is_ok());
    }
}

//! Which file systems will do.
//!
//! SQLite's write-ahead log is shared memory and Tenure's kernel locks are one kernel's: both mean nothing to a second
//! machine. On a file system that several machines can mount, two of them could lead at once, each with a lock that
//! it really holds. So such a file system is refused, even when only one machine happens to use it today.
//!
//! The list names what to refuse, since local file systems are many and new ones appear. FUSE is on it as a whole:
//! sshfs, s3fs, GlusterFS, virtiofs and the shared folders of Docker Desktop all look the same from here, and the
//! local ones among them (ntfs-3g, gocryptfs) cannot be told apart.

use std::path::Path;

use tenure_core::port::{StoreError, Trouble};

use super::sys;

/// File systems that more than one kernel can write to, by the magic numbers of `statfs(2)`.
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

/// Refuses a folder on a file system where kernel locks do not exclude every other process.
pub(super) fn check(folder: &Path) -> Result<(), StoreError> {
    match sys::filesystem_magic(folder) {
        Ok(magic) => refuse(folder, shared(magic)),
        Err(error) => Err(super::error::io(folder, "finding out its file system", &error)),
    }
}

/// The name of a shared file system; `None` for a local one.
fn shared(magic: u32) -> Option<&'static str> {
    SHARED.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

fn refuse(folder: &Path, name: Option<&str>) -> Result<(), StoreError> {
    let Some(name) = name else { return Ok(()) };
    Err(StoreError::new(
        Trouble::Unfit,
        format!(
            "{} is on {name}, which other machines can mount too: locks of this machine mean nothing to them, and two \
             could lead at once. Put the SQLite file on a local disk, or use PostgreSQL (postgres://…) to share \
             elections between machines",
            folder.display()
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
            assert_eq!(error.kind, Trouble::Unfit);
            for part in ["/shared", name, "postgres://"] {
                assert!(error.message.contains(part), "{part:?} is missing in: {error}");
            }
        }
    }

    #[test]
    fn local_file_systems_will_do() {
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

//! A hot standby of a private cluster, for failover.
//!
//! It streams from its primary through the primary's unix socket. To lose the last commits in a failover,
//! [`disconnect`](PgStandby::disconnect) it, commit on the primary, [`kill9`](PgCluster::kill9) the primary and
//! [`promote`](PgStandby::promote) the standby. (Pausing the replay would not work: the WAL is received anyway, and a
//! promotion replays it.) A synchronous standby makes the primary's commits wait for it, even while disconnected.

use super::pgtools::quoted;
use super::process::{run, wait_for};
use super::{PgCluster, Result};

/// A standby until it is promoted, then an ordinary cluster. Stopped and removed on drop.
#[derive(Debug)]
pub struct PgStandby {
    cluster: PgCluster,
    /// Connection string of the primary.
    primary_conninfo: String,
    /// Superuser connection to the primary, for the rig.
    primary: (std::path::PathBuf, String),
}

impl PgStandby {
    /// An asynchronous standby. It has caught up when this returns.
    pub fn of(primary: &PgCluster) -> Result<Self> {
        let mut cluster = PgCluster::in_new_folder(primary.how_built().clone())?;
        run(cluster
            .tool("pg_basebackup")
            .args(["--checkpoint=fast", "--no-sync", "--wal-method=stream", "--write-recovery-conf", "-D"])
            .arg(cluster.data())
            .args(["-d", &primary.socket_conninfo("postgres")]))?;
        if primary.ca_path().is_some() {
            let folder = primary.socket_folder().join("tls");
            run(cluster.user().command("cp", cluster.socket_folder()).arg("-r").arg(folder).arg("tls"))?;
        }
        cluster.start_on_a_free_port()?;
        let primary_conninfo = cluster.psql("postgres", "SHOW primary_conninfo")?;
        let primary = (primary.binaries().to_owned(), primary.socket_conninfo("postgres"));
        let standby = Self { cluster, primary_conninfo, primary };
        standby.wait_caught_up()?;
        Ok(standby)
    }

    /// A synchronous standby: every commit of the primary waits until the standby has flushed its WAL.
    pub fn synchronous_of(primary: &PgCluster) -> Result<Self> {
        let standby = Self::of(primary)?;
        let name = standby.cluster.psql("postgres", "SHOW cluster_name")?;
        standby.on_primary(&format!(
            "ALTER SYSTEM SET synchronous_standby_names = {};\nSELECT pg_reload_conf()",
            quoted(&name)
        ))?;
        wait_for("the standby to be synchronous", || {
            let state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            Ok((standby.on_primary(state)? == "1").then_some(()))
        })?;
        Ok(standby)
    }

    /// The standby as a cluster.
    pub fn cluster(&self) -> &PgCluster {
        &self.cluster
    }

    /// URL of the standby's database `postgres`, over TCP.
    pub fn url(&self) -> String {
        self.cluster.url()
    }

    /// Promotes the standby to a primary on a new timeline, with what it has received. The old primary is unchanged.
    pub fn promote(&self) -> Result<()> {
        self.cluster.psql("postgres", "SELECT pg_promote(false)")?;
        wait_for("the standby to be promoted", || {
            Ok((self.cluster.psql("postgres", "SELECT pg_is_in_recovery()")? == "f").then_some(()))
        })
    }

    /// Waits until the standby has replayed everything that the primary had committed before this call.
    pub fn wait_caught_up(&self) -> Result<()> {
        // Compare with the flushed position. The insert position may be past the header of a new segment, which is sent
        // only with the next record, and an idle server writes that record after 15 s.
        let flushed = self.on_primary("SELECT pg_current_wal_flush_lsn()")?;
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{flushed}'");
        wait_for("the standby to catch up", || {
            Ok((self.cluster.psql("postgres", &replayed)? == "t").then_some(()))
        })
    }

    /// Cuts the stream: later commits of the primary do not reach the standby.
    pub fn disconnect(&self) -> Result<()> {
        self.stream_from("")?;
        wait_for("the standby to be disconnected", || Ok((!self.is_streaming()?).then_some(())))
    }

    /// Resumes the stream where it was cut.
    pub fn reconnect(&self) -> Result<()> {
        self.stream_from(&self.primary_conninfo)?;
        wait_for("the standby to be connected", || Ok(self.is_streaming()?.then_some(())))
    }

    fn stream_from(&self, conninfo: &str) -> Result<()> {
        let set =
            format!("ALTER SYSTEM SET primary_conninfo = {};\nSELECT pg_reload_conf()", quoted(conninfo));
        self.cluster.psql("postgres", &set).map(|_| ())
    }

    fn is_streaming(&self) -> Result<bool> {
        Ok(self.cluster.psql("postgres", "SELECT count(*) FROM pg_stat_wal_receiver")? != "0")
    }

    fn on_primary(&self, sql: &str) -> Result<String> {
        super::pgtools::psql(&self.primary.0, &self.primary.1, sql)
    }
}

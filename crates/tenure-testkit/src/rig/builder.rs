//! Options of a private cluster, and its creation.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::pgtools::quoted;
use super::postgres::PgCluster;
use super::process::{run, write};
use super::{Result, tls};

/// Options of a [`PgCluster`]; see [`PgCluster::builder`].
#[derive(Debug, Clone, Default)]
pub struct PgClusterBuilder {
    settings: Vec<(String, String)>,
    pub(super) password: Option<String>,
    pub(super) tls: bool,
    durable: bool,
    pub(super) settable_clock: bool,
    addresses: Vec<IpAddr>,
    pub(super) parent: Option<PathBuf>,
}

impl PgClusterBuilder {
    /// Adds server settings, as in `postgresql.conf`. They override the settings of the rig.
    pub fn settings(mut self, settings: &[(&str, &str)]) -> Self {
        self.settings.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self
    }

    /// Requires this password over TCP. Without it every local user is accepted.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Accepts only TLS over TCP, with a certificate of an authority created for this cluster.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Syncs to disk as in production. Off by default, because tests kill servers but do not cut the power.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Uses a wall clock that can be set while the server runs ([`PgCluster::clock`]). Needs libfaketime.
    pub fn settable_clock(mut self) -> Self {
        self.settable_clock = true;
        self
    }

    /// Also listens on this address, such as a
    /// [`NetworkNamespace::host_address`](super::NetworkNamespace::host_address).
    pub fn listen_on(mut self, address: impl Into<IpAddr>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Creates the cluster below this directory, such as that of a [`SmallDisk`](super::SmallDisk). As root,
    /// `postgres` must have access to it.
    pub fn inside(mut self, parent: impl Into<PathBuf>) -> Self {
        self.parent = Some(parent.into());
        self
    }

    /// Creates and starts the cluster.
    pub fn start(self) -> Result<PgCluster> {
        let mut cluster = PgCluster::in_new_folder(self)?;
        let builder = cluster.how_built().clone();
        let mut initdb = cluster.tool("initdb");
        initdb.args([
            "--no-sync",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        ]);
        run(initdb.arg("-D").arg(cluster.data()))?;
        if builder.tls {
            let folder = cluster.socket_folder().join("tls");
            run(cluster.user().command("mkdir", cluster.socket_folder()).arg(&folder))?;
            tls::make(cluster.user(), &folder)?;
        }
        // Replace the sample file: all its settings are commented out.
        write(&cluster.data().join("postgresql.conf"), "include 'tenure.conf'\n")?;
        write(&cluster.data().join("pg_hba.conf"), &builder.access())?;
        cluster.start_on_a_free_port()?;
        if let Some(password) = &builder.password {
            cluster.psql("postgres", &format!("ALTER ROLE postgres PASSWORD {}", quoted(password)))?;
        }
        Ok(cluster)
    }

    /// The access rules (`pg_hba.conf`). `10.213.0.0/16` contains the addresses of network namespaces.
    fn access(&self) -> String {
        let kind = if self.tls { "hostssl" } else { "host" };
        let method = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let mut lines = "local all all trust\nlocal replication all trust\n".to_owned();
        for network in ["127.0.0.1/32", "10.213.0.0/16", "10.214.0.0/16"] {
            lines += &format!("{kind} all all {network} {method}\n");
        }
        lines
    }

    pub(super) fn configuration(&self, port: u16, folder: &Path) -> String {
        let addresses: String = self.addresses.iter().map(|address| format!(",{address}")).collect();
        let on = |yes: bool| if yes { "on" } else { "off" };
        let ours = [
            ("port", port.to_string()),
            ("listen_addresses", format!("127.0.0.1{addresses}")),
            ("unix_socket_directories", folder.display().to_string()),
            // Name under which a standby reports to its primary.
            ("cluster_name", format!("tenure_rig_{port}")),
            ("fsync", on(self.durable).to_owned()),
            ("full_page_writes", on(self.durable).to_owned()),
            ("wal_level", "replica".to_owned()),
            ("max_wal_senders", "8".to_owned()),
            // Interval at which a standby tries to reach its primary again.
            ("wal_retrieve_retry_interval", "50ms".to_owned()),
            ("shared_buffers", "32MB".to_owned()),
            // Keep shared memory in the directory and not in /dev/shm, so that the remains of a killed server are
            // removed with it.
            ("dynamic_shared_memory_type", "mmap".to_owned()),
            ("ssl", on(self.tls).to_owned()),
            ("ssl_cert_file", folder.join("tls/server.crt").display().to_string()),
            ("ssl_key_file", folder.join("tls/server.key").display().to_string()),
        ];
        let ours = ours.iter().map(|(name, value)| (*name, value.as_str()));
        let theirs = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        ours.chain(theirs).map(|(name, value)| format!("{name} = {}\n", quoted(value))).collect()
    }
}

//! Private etcd clusters of one or more members, optionally with TLS and passwords.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::guard::TempDirectory;
use super::process::{Server, ServerUser, Signal, run, send, wait_for};
use super::{Context, Result, RigError, port, tls};

/// A private etcd cluster, stopped and removed on drop.
///
/// Its members run as the same user as the other servers of the rig, listen on free ports of 127.0.0.1, and keep the
/// ports over restarts.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    user: ServerUser,
    /// Certificates, if it uses TLS.
    vault: Option<TempDirectory>,
    /// Credentials for `etcdctl`, if needed.
    root: Option<String>,
    /// Number of restores.
    restores: u32,
}

#[derive(Debug)]
struct Member {
    name: String,
    client: u16,
    peer: u16,
    folder: TempDirectory,
    server: Option<Server>,
}

impl EtcdCluster {
    /// A cluster of one member.
    pub fn start() -> Result<Self> {
        Self::of(1)
    }

    /// A cluster of this many members.
    pub fn of(members: usize) -> Result<Self> {
        Self::begin(members, false)
    }

    /// A cluster of one member that uses TLS and requires client certificates.
    pub fn secured() -> Result<Self> {
        Self::begin(1, true)
    }

    fn begin(members: usize, secured: bool) -> Result<Self> {
        run(Command::new("etcd").arg("--version"))
            .map_err(|_| RigError::new("etcd is not installed; install the package etcd-server"))?;
        let mut refused = RigError::new("no port was tried");
        for _ in 0..5 {
            match Self::try_start(members, secured) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn try_start(count: usize, secured: bool) -> Result<Self> {
        let user = ServerUser::find()?;
        let vault = match secured {
            true => {
                let vault = TempDirectory::new(&user, None)?;
                tls::make(&user, vault.path())?;
                Some(vault)
            }
            false => None,
        };
        let mut members = Vec::new();
        for i in 0..count {
            let (client, peer, folder) = (port::free()?, port::free()?, TempDirectory::new(&user, None)?);
            members.push(Member { name: format!("m{i}"), client, peer, folder, server: None });
        }
        let mut cluster = EtcdCluster { members, user, vault, root: None, restores: 0 };
        (0..count).try_for_each(|member| cluster.launch(member))?;
        cluster.wait_until_ready(0)?;
        Ok(cluster)
    }

    /// Store URL of the cluster, with all members.
    pub fn url(&self) -> String {
        let members: Vec<_> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        format!("{}://{}", if self.vault.is_some() { "etcds" } else { "etcd" }, members.join(","))
    }

    /// URL of one member, for `etcdctl`.
    pub fn endpoint(&self, member: usize) -> String {
        let scheme = if self.vault.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.members[member].client)
    }

    /// Port of one member.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].client
    }

    /// Files of the authority, the client certificate and its key, if the cluster uses TLS.
    pub fn certificates(&self) -> Option<[PathBuf; 3]> {
        let vault = self.vault.as_ref()?.path();
        Some(["ca.crt", "client.crt", "client.key"].map(|file| vault.join(file)))
    }

    /// Runs `etcdctl` against a running member.
    pub fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        let up = self.members.iter().position(|member| member.server.is_some()).unwrap_or(0);
        run(self.tool(up).args(arguments))
    }

    /// Enables authentication: `root` with this password may do everything.
    pub fn enable_auth(&mut self, root_password: &str) -> Result<()> {
        let root = format!("root:{root_password}");
        self.etcdctl(&["user", "add", &root])?;
        self.etcdctl(&["user", "grant-role", "root", "root"])?;
        self.etcdctl(&["auth", "enable"])?;
        self.root = Some(root);
        Ok(())
    }

    /// Process id of a running member.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members[member].server.as_ref().map(Server::id)
    }

    /// Kills a member, like a machine failure.
    pub fn kill9(&mut self, member: usize) -> Result<()> {
        if let Some(mut server) = self.members[member].server.take() {
            send(server.id(), Signal::Kill)?;
            wait_for("the killed member to exit", || Ok(server.ended()))?;
        }
        Ok(())
    }

    /// Restarts a stopped member with its data.
    pub fn start_again(&mut self, member: usize) -> Result<()> {
        self.launch(member)?;
        self.wait_until_ready(member)
    }

    /// Restarts all stopped members and waits for all of them, because one alone may have no quorum.
    pub fn start_all_again(&mut self) -> Result<()> {
        (0..self.members.len()).try_for_each(|member| self.launch(member))?;
        (0..self.members.len()).try_for_each(|member| self.wait_until_ready(member))
    }

    /// Saves a snapshot of a member, for [`restore`](Self::restore).
    pub fn backup(&self) -> Result<PathBuf> {
        let path = self.members[0].folder.path().join("backup.db");
        self.etcdctl(&["snapshot", "save", &path.to_string_lossy()])?;
        Ok(path)
    }

    /// Stops all members and restarts them from a snapshot under the same names and addresses, as operators do after
    /// a disaster.
    pub fn restore(&mut self, backup: &Path) -> Result<()> {
        (0..self.members.len()).try_for_each(|member| self.kill9(member))?;
        self.restores += 1;
        let (all, data) = (self.initial_cluster(), self.data());
        for member in &self.members {
            let peer = peer_url(member.peer);
            let mut command = Command::new("etcdctl");
            command.env("ETCDCTL_API", "3").current_dir(member.folder.path());
            command.args(["snapshot", "restore"]).arg(backup).args(["--data-dir", &data]);
            command.args(["--name", &member.name, "--initial-cluster", &all]);
            run(command.args(["--initial-advertise-peer-urls", &peer]))?;
            if let Some((user, group)) = self.user.ids() {
                let owner = format!("{user}:{group}");
                run(Command::new("chown").arg("-R").arg(owner).arg(member.folder.path().join(&data)))?;
            }
        }
        self.start_all_again()
    }

    fn initial_cluster(&self) -> String {
        let members = self.members.iter().map(|it| format!("{}={}", it.name, peer_url(it.peer)));
        members.collect::<Vec<_>>().join(",")
    }

    /// Name of the data directory of the members.
    fn data(&self) -> String {
        format!("data{}", self.restores)
    }

    /// `etcdctl` for a member.
    fn tool(&self, member: usize) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint(member)]);
        if let Some([ca, cert, key]) = self.certificates() {
            command.arg("--cacert").arg(ca).arg("--cert").arg(cert).arg("--key").arg(key);
        }
        if let Some(root) = &self.root {
            command.args(["--user", root]);
        }
        command
    }

    fn launch(&mut self, member: usize) -> Result<()> {
        if self.members[member].server.is_some() {
            return Ok(());
        }
        let (all, data, clients) = (self.initial_cluster(), self.data(), self.endpoint(member));
        let member = &mut self.members[member];
        let log_file = File::create(member.folder.path().join("log")).context(|| "no log".to_owned())?;
        let peers = peer_url(member.peer);
        let mut command = self.user.command("etcd", member.folder.path());
        // Environment variables of etcd would be taken as settings.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for (name, value) in [
            ("--name", &member.name),
            ("--data-dir", &data),
            ("--listen-client-urls", &clients),
            ("--advertise-client-urls", &clients),
            ("--listen-peer-urls", &peers),
            ("--initial-advertise-peer-urls", &peers),
            ("--initial-cluster", &all),
            ("--heartbeat-interval", &"50".to_owned()),
            ("--election-timeout", &"500".to_owned()),
        ] {
            command.arg(name).arg(value);
        }
        if let Some(vault) = &self.vault {
            let file = |name: &str| vault.path().join(name);
            command.arg("--cert-file").arg(file("server.crt")).arg("--key-file").arg(file("server.key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca.crt"));
        }
        command.stdout(Stdio::null()).stderr(Stdio::from(log_file));
        member.server = Some(Server::spawn(command)?);
        Ok(())
    }

    fn wait_until_ready(&mut self, member: usize) -> Result<()> {
        let mut health_check = self.tool(member);
        health_check.args(["endpoint", "health"]);
        let member = &mut self.members[member];
        let log = member.folder.path().join("log");
        let name = member.name.clone();
        let Some(server) = member.server.as_mut() else {
            return Err(RigError::new("the member is not running"));
        };
        wait_for("etcd to be ready", || {
            if let Some(status) = server.ended() {
                let message = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(RigError::new(format!("etcd {name} exited with {status}: {message}")));
            }
            Ok(run(&mut health_check).is_ok().then_some(()))
        })
    }
}

fn peer_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

//! Private etcd clusters, of one member or several.

use std::fs::File;
use std::process::{Command, Stdio};

use super::guard::Folder;
use super::process::{Server, ServerUser, Signal, run, send, wait_for};
use super::{Error, Result, port};

/// A private etcd cluster: ended and removed on drop.
///
/// Its members run as the user that the rig's other servers run as, listen on free ports of 127.0.0.1, and keep them over restarts.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    user: ServerUser,
}

#[derive(Debug)]
struct Member {
    name: String,
    client: u16,
    arguments: Vec<String>,
    folder: Folder,
    server: Option<Server>,
}

impl EtcdCluster {
    /// A cluster of one.
    pub fn start() -> Result<Self> {
        Self::of(1)
    }

    /// A cluster of so many.
    pub fn of(members: usize) -> Result<Self> {
        run(Command::new("etcd").arg("--version"))
            .map_err(|_| Error::new("there is no etcd on this machine: install the package etcd-server"))?;
        let mut refused = Error::new("no port was tried");
        for _ in 0..5 {
            match Self::try_start(members) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn try_start(count: usize) -> Result<Self> {
        let user = ServerUser::find()?;
        let names: Vec<String> = (0..count).map(|i| format!("m{i}")).collect();
        let ports = (0..count).map(|_| Ok((port::free()?, port::free()?))).collect::<Result<Vec<_>>>()?;
        let peer = |port: u16| format!("http://127.0.0.1:{port}");
        let all: Vec<String> =
            names.iter().zip(&ports).map(|(name, (_, at))| format!("{name}={}", peer(*at))).collect();
        let mut members = Vec::new();
        for (name, (client, at)) in names.into_iter().zip(ports) {
            let folder = Folder::new(&user, None)?;
            let (clients, peers) = (peer(client), peer(at));
            let arguments = [
                ("--name", name.as_str()),
                ("--data-dir", "data"),
                ("--listen-client-urls", &clients),
                ("--advertise-client-urls", &clients),
                ("--listen-peer-urls", &peers),
                ("--initial-advertise-peer-urls", &peers),
                ("--initial-cluster", &all.join(",")),
                ("--heartbeat-interval", "50"),
                ("--election-timeout", "500"),
            ];
            let arguments =
                arguments.iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]).collect();
            members.push(Member { name, client, arguments, folder, server: None });
        }
        let mut cluster = EtcdCluster { members, user };
        for member in 0..count {
            cluster.launch(member)?;
        }
        cluster.wait_until_ready(0)?;
        Ok(cluster)
    }

    /// The cluster's address for Tenure: all of its members.
    pub fn url(&self) -> String {
        let members: Vec<_> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client)).collect();
        format!("etcd://{}", members.join(","))
    }

    /// The address of one member, for `etcdctl`.
    pub fn endpoint(&self, member: usize) -> String {
        format!("http://127.0.0.1:{}", self.members[member].client)
    }

    /// Has `etcdctl` do something, at a member that runs.
    pub fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        let up = self.members.iter().position(|member| member.server.is_some()).unwrap_or(0);
        let mut command = Command::new("etcdctl");
        run(command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoint(up)]).args(arguments))
    }

    /// The process of a member, while it runs.
    pub fn pid(&self, member: usize) -> Option<u32> {
        self.members[member].server.as_ref().map(Server::id)
    }

    /// Kills a member, as the end of its machine would.
    pub fn kill9(&mut self, member: usize) -> Result<()> {
        if let Some(mut server) = self.members[member].server.take() {
            send(server.id(), Signal::Kill)?;
            wait_for("the killed member to end", || Ok(server.ended()))?;
        }
        Ok(())
    }

    /// Starts a member that is down, with what it had.
    pub fn start_again(&mut self, member: usize) -> Result<()> {
        if self.members[member].server.is_none() {
            self.launch(member)?;
        }
        self.wait_until_ready(member)
    }

    fn launch(&mut self, member: usize) -> Result<()> {
        let member = &mut self.members[member];
        let said =
            File::create(member.folder.path().join("log")).map_err(|error| Error::new(error.to_string()))?;
        let mut command = self.user.command("etcd", member.folder.path());
        // A variable of etcd's own would be taken for a setting.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(&member.arguments).stdout(Stdio::null()).stderr(Stdio::from(said));
        member.server = Some(Server::spawn(command)?);
        Ok(())
    }

    fn wait_until_ready(&mut self, member: usize) -> Result<()> {
        let endpoint = self.endpoint(member);
        let member = &mut self.members[member];
        let log = member.folder.path().join("log");
        let name = member.name.clone();
        let Some(server) = member.server.as_mut() else { return Err(Error::new("the member does not run")) };
        wait_for("etcd to be ready", || {
            if let Some(status) = server.ended() {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(Error::new(format!("etcd {name} ended with {status}: {said}")));
            }
            let mut look = Command::new("etcdctl");
            look.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint, "endpoint", "health"]);
            Ok(run(&mut look).is_ok().then_some(()))
        })
    }
}

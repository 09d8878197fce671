//! PgBouncer in transaction mode: consecutive transactions of one client may run on different connections.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::guard::Folder;
use super::pgtools::percent_encoded;
use super::process::{Server, ServerUser, run, wait_for, write};
use super::{Error, PgCluster, Result, port};

/// A PgBouncer in front of a cluster, ended on drop.
///
/// It lets everybody in as `postgres`, and goes to the cluster through its unix socket. Every database of the cluster is
/// there under its own name. Of what clients ask for at the start it ignores `extra_float_digits` alone, as many
/// drivers need; anything else that it does not know is refused.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _folder: Folder,
    _server: Server,
}

impl PgBouncer {
    /// Starts one in transaction mode, with at most four connections to each database.
    pub fn in_front_of(cluster: &PgCluster) -> Result<Self> {
        let user = ServerUser::find()?;
        let program = find_program()?;
        let mut refused = Error::new("no port was tried");
        for _ in 0..10 {
            let folder = Folder::new(&user, None)?;
            let port = port::free()?;
            let settings = folder.path().join("pgbouncer.ini");
            let log = folder.path().join("log");
            write(&settings, &configuration(cluster, port))?;
            let mut command = user.command(&program, folder.path());
            // Not -q: what it says goes to its standard error, and so to the log.
            let errors = std::fs::File::create(&log).map_err(|error| Error::new(error.to_string()))?;
            command.arg(&settings).stdout(Stdio::null()).stderr(Stdio::from(errors));
            let mut server = Server::spawn(command)?;
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            let up = wait_for("PgBouncer to be up", || match server.ended() {
                Some(status) => Err(Error::new(format!("PgBouncer ended with {status}: {}", said()))),
                None => Ok(said().contains("process up").then_some(())),
            });
            match up {
                Ok(()) => return Ok(Self { port, _folder: folder, _server: server }),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// The address of a database through PgBouncer.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", self.port, percent_encoded(database))
    }

    /// The port of 127.0.0.1 that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn configuration(cluster: &PgCluster, port: u16) -> String {
    let (socket, server_port) = (cluster.socket_folder().display(), cluster.port());
    format!(
        "[databases]\n\
         * = host={socket} port={server_port} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = 4\n\
         max_client_conn = 500\n\
         server_check_delay = 0\n\
         ignore_startup_parameters = extra_float_digits\n"
    )
}

fn find_program() -> Result<PathBuf> {
    let here = |path: &PathBuf| run(Command::new(path).arg("--version")).is_ok();
    ["pgbouncer", "/usr/sbin/pgbouncer"]
        .map(PathBuf::from)
        .into_iter()
        .find(here)
        .ok_or_else(|| Error::new("there is no PgBouncer on this machine: install the package pgbouncer"))
}

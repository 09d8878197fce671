//! PgBouncer in transaction mode: consecutive transactions of one client may use different server connections.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::guard::TempDirectory;
use super::pgtools::percent_encoded;
use super::process::{Server, ServerUser, run, wait_for, write};
use super::{PgCluster, Result, RigError, port};

/// A PgBouncer in front of a cluster, stopped on drop.
///
/// It accepts every client as `postgres` and connects to the cluster through its unix socket. Every database of the
/// cluster is available under its own name. It ignores the startup parameter `extra_float_digits`, which many drivers
/// send, and rejects other unknown parameters.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _folder: TempDirectory,
    _server: Server,
}

impl PgBouncer {
    /// Starts PgBouncer in transaction mode with at most four connections per database.
    pub fn in_front_of(cluster: &PgCluster) -> Result<Self> {
        let user = ServerUser::find()?;
        let program = find_program()?;
        let mut refused = RigError::new("no port was tried");
        for _ in 0..10 {
            let folder = TempDirectory::new(&user, None)?;
            let port = port::free()?;
            let settings = folder.path().join("pgbouncer.ini");
            let log = folder.path().join("log");
            write(&settings, &configuration(cluster, port))?;
            let mut command = user.command(&program, folder.path());
            // Without -q it logs to its standard error, and so to the log file.
            let errors = std::fs::File::create(&log).map_err(|error| RigError::new(error.to_string()))?;
            command.arg(&settings).stdout(Stdio::null()).stderr(Stdio::from(errors));
            let mut server = Server::spawn(command)?;
            let message = || std::fs::read_to_string(&log).unwrap_or_default();
            let up = wait_for("PgBouncer to be up", || match server.ended() {
                Some(status) => Err(RigError::new(format!("PgBouncer exited with {status}: {}", message()))),
                None => Ok(message().contains("process up").then_some(())),
            });
            match up {
                Ok(()) => return Ok(Self { port, _folder: folder, _server: server }),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// URL of a database through PgBouncer.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{}", self.port, percent_encoded(database))
    }

    /// Port of 127.0.0.1.
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
        .ok_or_else(|| RigError::new("PgBouncer is not installed; install the package pgbouncer"))
}

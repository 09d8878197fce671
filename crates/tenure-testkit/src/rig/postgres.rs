//! Private PostgreSQL clusters.
//!
//! A cluster uses one directory: `data/` (the cluster), `log` (the server log), `tls/` if requested, and the unix
//! socket. It also listens on a free port of 127.0.0.1, which it keeps over restarts. Its only role is the superuser
//! `postgres`. The socket never requires a password, so the rig can always connect.
//!
//! States: *running* (a postmaster that reported "ready") or *down*. [`PgCluster::stop`] and [`PgCluster::kill9`]
//! stop it, [`PgCluster::start_again`] starts it. The settings are in `data/tenure.conf`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::builder::PgClusterBuilder;
use super::clock::SettableClock;
use super::database::SHARED_CLUSTER_VARIABLE;
use super::guard::TempDirectory;
use super::pgtools::{BINARIES_VARIABLE, find_binaries, percent_encoded, program, psql, quoted};
use super::process::{Server, ServerUser, Signal, processes_in, send, stop, wait_for, write};
use super::{Context, Result, RigError, port};

/// A private PostgreSQL cluster, stopped and removed on drop.
#[derive(Debug)]
pub struct PgCluster {
    binaries: PathBuf,
    user: ServerUser,
    port: u16,
    builder: PgClusterBuilder,
    clock: Option<SettableClock>,
    /// Declared before the postmaster, because fields are dropped in order: the guard stops the cluster first, then the
    /// postmaster is reaped.
    folder: TempDirectory,
    /// The postmaster, while it runs.
    postmaster: Mutex<Option<Server>>,
}

impl PgCluster {
    /// A cluster with default options.
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// A builder of a cluster with other options.
    pub fn builder() -> PgClusterBuilder {
        PgClusterBuilder::default()
    }

    /// The shared cluster of this process, started at the first call. Tests must not break it.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<std::result::Result<PgCluster, String>> = OnceLock::new();
        let started = SHARED.get_or_init(|| {
            let settings = [("max_connections", "300")];
            Self::builder().settings(&settings).start().map_err(|error| error.to_string())
        });
        started.as_ref().map_err(|error| RigError::new(error.clone()))
    }

    /// URL of the database `postgres`, over TCP.
    pub fn url(&self) -> String {
        self.url_for_db("postgres")
    }

    /// URL of a database, over TCP. With TLS it requires `verify-full` against the authority of this cluster.
    pub fn url_for_db(&self, database: &str) -> String {
        self.url_at("127.0.0.1", database)
    }

    /// URL of a database under another host name or address of this machine.
    pub fn url_at(&self, host: &str, database: &str) -> String {
        let password = self
            .builder
            .password
            .as_deref()
            .map(|it| format!(":{}", percent_encoded(it)))
            .unwrap_or_default();
        let mut url =
            format!("postgres://postgres{password}@{host}:{}/{}", self.port, percent_encoded(database));
        if let Some(authority) = self.ca_path() {
            url += &format!("?sslmode=verify-full&sslrootcert={}", authority.display());
        }
        url
    }

    /// Lets the test processes of a command share this cluster.
    pub fn share_with(&self, command: &mut Command) {
        command.env(SHARED_CLUSTER_VARIABLE, self.url()).env(BINARIES_VARIABLE, &self.binaries);
    }

    /// Port of 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Directory of the unix socket.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// Certificate of the authority, if the cluster uses TLS.
    pub fn ca_path(&self) -> Option<PathBuf> {
        self.builder.tls.then(|| self.folder.path().join("tls/ca.crt"))
    }

    /// The server's wall clock, if it can be set; unchanged by restarts.
    pub fn clock(&self) -> Option<&SettableClock> {
        self.clock.as_ref()
    }

    /// The server log so far.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// Creates an empty database and returns its URL.
    pub fn create_database(&self, name: &str) -> Result<String> {
        self.psql("postgres", &format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")))?;
        Ok(self.url_for_db(name))
    }

    /// Runs SQL in a database and returns the rows, one per line with columns separated by `|`.
    ///
    /// Each statement is its own transaction. Stops at the first error.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        psql(&self.binaries, &self.socket_conninfo(database), sql)
    }

    /// The output of `pg_dump` for a database, as a script for [`psql`](Self::psql).
    pub fn dump(&self, database: &str, options: &[&str]) -> Result<String> {
        super::pgtools::dump(&self.binaries, &self.socket_conninfo(database), options)
    }

    /// Process id of the postmaster; `None` if the cluster is down.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster().as_ref().map(Server::id)
    }

    /// Stops the cluster in *fast* mode: clients are disconnected, committed data is written.
    pub fn stop(&self) -> Result<()> {
        let mut postmaster = self.postmaster();
        let Some(server) = postmaster.as_mut() else { return Ok(()) };
        send(server.id(), Signal::Interrupt)?;
        wait_for("the cluster to stop", || Ok(server.ended()))?;
        *postmaster = None;
        Ok(())
    }

    /// Kills the postmaster and every process of the cluster, like a machine failure.
    pub fn kill9(&self) -> Result<()> {
        let mut postmaster = self.postmaster();
        // Kill the postmaster first, because it would restart its backends. Dropping the handle kills it.
        *postmaster = None;
        wait_for("the killed processes of the cluster to exit", || {
            let left = processes_in(self.folder.path());
            for pid in &left {
                // The process may have exited meanwhile.
                let _ = send(*pid, Signal::Kill);
            }
            Ok(left.is_empty().then_some(()))
        })
    }

    /// Starts a cluster that is down on its previous port, including crash recovery. No effect if it runs.
    pub fn start_again(&self) -> Result<()> {
        if self.pid().is_some() {
            return Ok(());
        }
        // The port may be busy for a moment while another test looks for a free one.
        let mut started = self.launch();
        for _ in 0..20 {
            if started.is_ok() || !self.port_was_taken() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
            started = self.launch();
        }
        started
    }

    /// [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    /// Suspends one backend (`SIGSTOP`): its locks stay, and its client gets no response.
    ///
    /// The id is the result of `pg_backend_pid()`. Only processes of this cluster are accepted.
    pub fn sigstop_backend(&self, pid: u32) -> Result<()> {
        self.check_backend(pid)?;
        stop(pid)
    }

    /// Resumes a suspended backend.
    pub fn sigcont_backend(&self, pid: u32) -> Result<()> {
        self.check_backend(pid)?;
        send(pid, Signal::Continue)
    }

    /// Suspends every process of the cluster: existing and new connections hang.
    pub fn freeze(&self) -> Result<()> {
        // Repeats until no new process appears; the postmaster is stopped in the first round.
        let mut stopped = Vec::new();
        loop {
            let fresh: Vec<u32> =
                processes_in(&self.data()).into_iter().filter(|pid| !stopped.contains(pid)).collect();
            if fresh.is_empty() {
                return Ok(());
            }
            for pid in fresh {
                // The process may have exited meanwhile.
                let _ = stop(pid);
                stopped.push(pid);
            }
        }
    }

    /// Resumes a suspended cluster.
    pub fn thaw(&self) -> Result<()> {
        for pid in processes_in(&self.data()) {
            let _ = send(pid, Signal::Continue);
        }
        Ok(())
    }

    /// Terminates all client connections to a database and returns their number.
    pub fn terminate_backends(&self, database: &str) -> Result<usize> {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity \
             WHERE datname = {} AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
            quoted(database)
        );
        // Connect to another database, so that this connection is not terminated.
        let asked_from = if database == "postgres" { "template1" } else { "postgres" };
        let count = self.psql(asked_from, &sql)?;
        count.parse().context(|| format!("not a number: {count}"))
    }

    /// The directory of a cluster without data.
    pub(crate) fn in_new_folder(builder: PgClusterBuilder) -> Result<Self> {
        let user = ServerUser::find()?;
        let folder = TempDirectory::new(&user, builder.parent.as_deref())?;
        let clock = builder.settable_clock.then(|| SettableClock::new(folder.path())).transpose()?;
        let (binaries, postmaster) = (find_binaries()?, Mutex::new(None));
        Ok(Self { binaries, user, port: 0, builder, clock, folder, postmaster })
    }

    pub(crate) fn start_on_a_free_port(&mut self) -> Result<()> {
        let mut refused = RigError::new("no port was tried");
        for _ in 0..10 {
            self.port = port::free()?;
            let configuration = self.builder.configuration(self.port, self.folder.path());
            write(&self.data().join("tenure.conf"), &configuration)?;
            match self.launch() {
                Ok(()) => return Ok(()),
                Err(error) if self.port_was_taken() => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    pub(crate) fn how_built(&self) -> &PgClusterBuilder {
        &self.builder
    }

    pub(crate) fn binaries(&self) -> &Path {
        &self.binaries
    }

    pub(crate) fn user(&self) -> &ServerUser {
        &self.user
    }

    /// A PostgreSQL program, as the user that owns the cluster.
    pub(crate) fn tool(&self, name: &str) -> Command {
        self.user.command(program(&self.binaries, name), self.folder.path())
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Connection string of a database through the socket, for libpq.
    pub(crate) fn socket_conninfo(&self, database: &str) -> String {
        format!(
            "host='{}' port={} user=postgres dbname={}",
            self.folder.path().display(),
            self.port,
            quoted(database)
        )
    }

    fn launch(&self) -> Result<()> {
        let log = File::create(self.log_path()).context(|| "cannot write the cluster's log".to_owned())?;
        let errors = log.try_clone().context(|| "cannot write the cluster's log".to_owned())?;
        let mut command = self.tool("postgres");
        command.arg("-D").arg(self.data()).stdout(Stdio::from(log)).stderr(Stdio::from(errors));
        if let Some(clock) = &self.clock {
            clock.apply(&mut command)?;
        }
        let mut server = Server::spawn(command)?;
        wait_for("the cluster to be ready", || match server.ended() {
            Some(status) => Err(RigError::new(format!("the cluster exited with {status}: {}", self.log()))),
            None => Ok(self.is_ready(server.id()).then_some(())),
        })?;
        *self.postmaster() = Some(server);
        Ok(())
    }

    /// Whether the postmaster reported that it is ready: it writes its process id to the first line of its lock file
    /// and its state to the eighth.
    fn is_ready(&self, pid: u32) -> bool {
        let lock = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = lock.lines();
        lines.next() == Some(&pid.to_string()) && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }

    fn port_was_taken(&self) -> bool {
        let log = self.log();
        log.contains("Address already in use") || log.contains("could not create any TCP/IP sockets")
    }

    fn check_backend(&self, pid: u32) -> Result<()> {
        if processes_in(&self.data()).contains(&pid) {
            return Ok(());
        }
        Err(RigError::new(format!(
            "process {pid} does not belong to the cluster in {}",
            self.data().display()
        )))
    }

    fn postmaster(&self) -> MutexGuard<'_, Option<Server>> {
        self.postmaster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

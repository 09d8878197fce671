//! Private PostgreSQL clusters.
//!
//! A cluster lives in one folder: `data/` (the cluster), `log` (what the server said), `tls/` if asked for, and the
//! unix socket. It also listens on a free port of 127.0.0.1, which it keeps over restarts. Its only role is the
//! superuser `postgres`. The socket asks for no password, whatever the builder says, so the rig can always get in.
//!
//! States: *running* (a postmaster of ours that said "ready") or *down*. [`PgCluster::stop`] and
//! [`PgCluster::kill9`] lead down, [`PgCluster::start_again`] up. The settings live in `data/tenure.conf`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::builder::PgClusterBuilder;
use super::clock::SettableClock;
use super::database::SHARED_CLUSTER_VARIABLE;
use super::guard::Folder;
use super::pgtools::{BINARIES_VARIABLE, find_binaries, percent_encoded, program, psql, quoted};
use super::process::{Server, ServerUser, Signal, processes_in, send, stop, wait_for, write};
use super::{Context, Error, Result, port};

/// A private PostgreSQL cluster: stopped and removed on drop.
#[derive(Debug)]
pub struct PgCluster {
    binaries: PathBuf,
    user: ServerUser,
    port: u16,
    builder: PgClusterBuilder,
    clock: Option<SettableClock>,
    /// Before the postmaster: its guard stops the cluster in its own way, and then there is one to reap.
    folder: Folder,
    /// The postmaster, while it runs.
    postmaster: Mutex<Option<Server>>,
}

impl PgCluster {
    /// A cluster with the rig's defaults.
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// A cluster to your liking.
    pub fn builder() -> PgClusterBuilder {
        PgClusterBuilder::default()
    }

    /// The one cluster of this process, started at the first call. It is shared: do not break it.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<std::result::Result<PgCluster, String>> = OnceLock::new();
        let started = SHARED.get_or_init(|| {
            let settings = [("max_connections", "300")];
            Self::builder().settings(&settings).start().map_err(|error| error.to_string())
        });
        started.as_ref().map_err(|error| Error::new(error.clone()))
    }

    /// The address of the database `postgres`, over TCP.
    pub fn url(&self) -> String {
        self.url_for_db("postgres")
    }

    /// The address of a database, over TCP. With TLS it asks for `verify-full` against this cluster's authority.
    pub fn url_for_db(&self, database: &str) -> String {
        self.url_at("127.0.0.1", database)
    }

    /// The address of a database under another name or address of this machine.
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

    /// Lets the test processes that a command starts share this cluster.
    pub fn share_with(&self, command: &mut Command) {
        command.env(SHARED_CLUSTER_VARIABLE, self.url()).env(BINARIES_VARIABLE, &self.binaries);
    }

    /// The port of 127.0.0.1 that the cluster listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with the cluster's unix socket.
    pub fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    /// The certificate of the cluster's authority, if it speaks TLS.
    pub fn ca_path(&self) -> Option<PathBuf> {
        self.builder.tls.then(|| self.folder.path().join("tls/ca.crt"))
    }

    /// The server's wall clock, if it was built with one that can be set; it stays as it is over restarts.
    pub fn clock(&self) -> Option<&SettableClock> {
        self.clock.as_ref()
    }

    /// What the server has said so far.
    pub fn log(&self) -> String {
        fs::read(self.log_path()).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// Creates an empty database and returns its address.
    pub fn create_database(&self, name: &str) -> Result<String> {
        self.psql("postgres", &format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")))?;
        Ok(self.url_for_db(name))
    }

    /// Runs SQL in a database and returns the rows: a line each, columns apart by `|`.
    ///
    /// Each statement is a transaction of its own, and the first that fails ends it all.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        psql(&self.binaries, &self.socket_conninfo(database), sql)
    }

    /// The postmaster's process id, or nothing if the cluster is down.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster().as_ref().map(Server::id)
    }

    /// Stops the cluster in good order (mode *fast*): clients are cut off, what is committed is written.
    pub fn stop(&self) -> Result<()> {
        let mut postmaster = self.postmaster();
        let Some(server) = postmaster.as_mut() else { return Ok(()) };
        send(server.id(), Signal::Interrupt)?;
        wait_for("the cluster to stop", || Ok(server.ended()))?;
        *postmaster = None;
        Ok(())
    }

    /// Kills the postmaster and every process of the cluster, as the end of its machine would.
    pub fn kill9(&self) -> Result<()> {
        let mut postmaster = self.postmaster();
        // The postmaster first: it would answer the death of a backend by starting over. Dropping kills it.
        *postmaster = None;
        wait_for("the killed cluster's processes to end", || {
            let left = processes_in(self.folder.path());
            for pid in &left {
                // It may have gone by itself since we looked.
                let _ = send(*pid, Signal::Kill);
            }
            Ok(left.is_empty().then_some(()))
        })
    }

    /// Starts a cluster that is down, on the port it had; crash recovery included. No effect if it runs.
    pub fn start_again(&self) -> Result<()> {
        if self.pid().is_some() {
            return Ok(());
        }
        // The port may be busy for a moment: another test's look for a free one binds and lets go.
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

    /// Stops one backend in its tracks (`SIGSTOP`): its locks stay, its client hears nothing.
    ///
    /// The id is what `pg_backend_pid()` answers. Only processes of this cluster are accepted.
    pub fn sigstop_backend(&self, pid: u32) -> Result<()> {
        self.check_backend(pid)?;
        stop(pid)
    }

    /// Lets a stopped backend go on.
    pub fn sigcont_backend(&self, pid: u32) -> Result<()> {
        self.check_backend(pid)?;
        send(pid, Signal::Continue)
    }

    /// Stops every process of the cluster in its tracks: connections hang, and new ones too.
    pub fn freeze(&self) -> Result<()> {
        // Until none is left that was started meanwhile; the postmaster is stopped in the first round.
        let mut stopped = Vec::new();
        loop {
            let fresh: Vec<u32> =
                processes_in(&self.data()).into_iter().filter(|pid| !stopped.contains(pid)).collect();
            if fresh.is_empty() {
                return Ok(());
            }
            for pid in fresh {
                // It may have ended since we looked.
                let _ = stop(pid);
                stopped.push(pid);
            }
        }
    }

    /// Lets a frozen cluster go on.
    pub fn thaw(&self) -> Result<()> {
        for pid in processes_in(&self.data()) {
            let _ = send(pid, Signal::Continue);
        }
        Ok(())
    }

    /// Ends every client's connection to a database and returns how many there were.
    pub fn terminate_backends(&self, database: &str) -> Result<usize> {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity \
             WHERE datname = {} AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
            quoted(database)
        );
        // Asked from another database, so that it ends none of its own kind.
        let asked_from = if database == "postgres" { "template1" } else { "postgres" };
        let count = self.psql(asked_from, &sql)?;
        count.parse().context(|| format!("not a count: {count}"))
    }

    /// A cluster's folder, before there is any data in it.
    pub(crate) fn in_new_folder(builder: PgClusterBuilder) -> Result<Self> {
        let user = ServerUser::find()?;
        let folder = Folder::new(&user, builder.parent.as_deref())?;
        let clock = builder.settable_clock.then(|| SettableClock::new(folder.path())).transpose()?;
        let (binaries, postmaster) = (find_binaries()?, Mutex::new(None));
        Ok(Self { binaries, user, port: 0, builder, clock, folder, postmaster })
    }

    pub(crate) fn start_on_a_free_port(&mut self) -> Result<()> {
        let mut refused = Error::new("no port was tried");
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

    /// One of PostgreSQL's programs, as the user that owns the cluster.
    pub(crate) fn tool(&self, name: &str) -> Command {
        self.user.command(program(&self.binaries, name), self.folder.path())
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// How to reach a database through the socket, in libpq's words.
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
            Some(status) => Err(Error::new(format!("the cluster ended with {status}: {}", self.log()))),
            None => Ok(self.is_ready(server.id()).then_some(())),
        })?;
        *self.postmaster() = Some(server);
        Ok(())
    }

    /// The postmaster writes its state to the eighth line of its lock file; the first is its process id.
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
        Err(Error::new(format!("process {pid} is not of the cluster in {}", self.data().display())))
    }

    fn postmaster(&self) -> MutexGuard<'_, Option<Server>> {
        self.postmaster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

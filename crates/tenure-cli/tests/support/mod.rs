//! Test support: real `tenure` processes, and checks of the signs that their children write.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tenure_testkit::rig::{
    EtcdCluster, FreshDatabase, KubeApi, free_port, fresh_database, prepared_database, real_kubernetes,
};

/// Defines one test per store.
#[allow(unused_macros, reason = "not every test program uses it")]
macro_rules! on_every_store {
    ($($claim:ident),* $(,)?) => {
        mod sqlite { $(#[test] fn $claim() { super::$claim(&crate::support::World::sqlite()); })* }
        mod postgres { $(#[test] fn $claim() { super::$claim(&crate::support::World::postgres()); })* }
        mod http { $(#[test] fn $claim() { super::$claim(&crate::support::World::http()); })* }
    };
}

/// Maximum time to wait for a condition. Only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store for one test, and a folder for its processes.
pub struct World {
    pub folder: TempDir,
    pub store: String,
    database: Option<FreshDatabase>,
    server: Option<Server>,
    etcd: Option<EtcdCluster>,
    pub api: Option<KubeApi>,
    pub members: Vec<Server>,
}

/// One line written by a child: it was alive under this token.
#[derive(Clone, Copy, Debug)]
pub struct Sign {
    pub token: u64,
    pub pid: u32,
    pub at_us: u64,
}

impl World {
    pub fn sqlite() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let store = format!("sqlite:{}", folder.path().join("tenure.db").display());
        World { folder, store, database: None, server: None, etcd: None, api: None, members: Vec::new() }
    }

    pub fn postgres() -> World {
        let tables = tenure::store::migration_sql("postgres:").expect("tables");
        World::on(prepared_database(&tables).expect("a database"))
    }

    /// A database without the schema.
    pub fn empty_postgres() -> World {
        World::on(fresh_database().expect("a database"))
    }

    /// A store that the test created.
    pub fn at(store: String) -> World {
        World { store, ..World::sqlite() }
    }

    fn on(database: FreshDatabase) -> World {
        World { store: database.url().to_owned(), database: Some(database), ..World::sqlite() }
    }

    /// An etcd cluster of three members.
    pub fn etcd() -> World {
        let etcd = EtcdCluster::of(3).expect("etcd");
        World { store: etcd.url(), etcd: Some(etcd), ..World::sqlite() }
    }

    /// A namespace of an API server; a real one, if available.
    pub fn kubernetes() -> World {
        match real_kubernetes().expect("a namespace") {
            Some(store) => World { store, ..World::sqlite() },
            None => World::kubernetes_of_the_rig(),
        }
    }

    /// A namespace of a fake API server whose faults a test controls.
    pub fn kubernetes_of_the_rig() -> World {
        let api = KubeApi::start().expect("an API server");
        World { store: api.url("prod"), api: Some(api), ..World::sqlite() }
    }

    /// Three servers that form a Raft cluster; the store is that cluster.
    pub fn raft() -> World {
        let mut world = World::sqlite();
        let places: Vec<String> =
            (1..=3).map(|node| format!("{node}@127.0.0.1:{}", free_port().expect("a port"))).collect();
        let peers = places.join(",");
        world.store = format!("raft:?peers={peers}");
        world.members = std::thread::scope(|scope| {
            let start = |node: u32| {
                let folder = world.path(&format!("member{node}"));
                let store = format!("raft:{}?node={node}&peers={peers}", folder.display());
                let (world, name) = (&world, format!("member{node}"));
                scope.spawn(move || {
                    Server::start_with(
                        world,
                        &name,
                        &["--listen", "127.0.0.1:0"],
                        &[("TENURE_STORE", &store)],
                    )
                })
            };
            let members = [start(1), start(2), start(3)];
            members.map(|member| member.join().expect("a member")).into()
        });
        world
    }

    /// A server on SQLite; the store is that server.
    pub fn http() -> World {
        let mut world = World::sqlite();
        let server = Server::start(&world, "server");
        world.store = server.url.clone();
        world.server = Some(server);
        world
    }

    pub fn is_postgres(&self) -> bool {
        self.database.is_some()
    }

    /// Contents of the store as text.
    pub fn contents(&self) -> String {
        match &self.database {
            Some(database) => {
                let rows = |table: &str| format!("SELECT to_jsonb(t)::text FROM tenure.{table} t");
                let tables =
                    ["credentials", "audit_log", "sessions", "group_webhooks"].map(rows).join(" UNION ALL ");
                database.psql(&tables).expect("rows")
            }
            None => {
                let files = std::fs::read_dir(self.folder.path()).expect("the folder").flatten();
                let read = |path: PathBuf| std::fs::read(path).unwrap_or_default();
                let text = files.map(|file| String::from_utf8_lossy(&read(file.path())).into_owned());
                text.collect()
            }
        }
    }

    /// Runs SQL as the owner of the database.
    pub fn psql(&self, sql: &str) -> Result<String, String> {
        let database = self.database.as_ref().expect("a database");
        database.psql(sql).map(|text| text.trim().to_owned()).map_err(|error| error.to_string())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A `tenure` command on the store of this world, without inherited tenure variables.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        for (name, _) in std::env::vars() {
            if name.starts_with("TENURE_") || name == "DATABASE_URL" {
                command.env_remove(name);
            }
        }
        command.env("TENURE_STORE", &self.store).args(args).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("tenure runs")
    }

    /// Runs a command that must succeed. Returns its stdout.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tenure {args:?}: {} {errors}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).expect("JSON")
    }

    /// A candidate whose child writes signs to a common file while it lives.
    pub fn candidate(&self, name: &str, extra: &[&str]) -> Candidate {
        let signs = self.path("signs");
        let script = "while :; do echo \"$TENURE_TOKEN $$ $EPOCHREALTIME\" >> \"$SIGNS\"; sleep 0.02; done";
        let log = File::create(self.path(&format!("{name}.log"))).expect("a log");
        let mut command = self.command(&["run", "nightly", "--name", name, "-v", "--kill-after", "300ms"]);
        command.args(extra).args(["--", "bash", "-c", script]).env("SIGNS", signs);
        command.stdout(Stdio::null()).stderr(log);
        Candidate { process: command.spawn().expect("tenure runs"), name: name.to_owned() }
    }

    pub fn signs(&self) -> Vec<Sign> {
        signs_in(&self.path("signs"))
    }

    /// Name of the leader, if there is one.
    pub fn leader(&self) -> Option<String> {
        self.try_leader().ok().flatten()
    }

    pub fn try_leader(&self) -> Result<Option<String>, String> {
        let output = self.run(&["elections", "show", "nightly", "-o", "json"]);
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let value: serde_json::Value =
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        Ok(value["leader"].as_str().map(str::to_owned))
    }

    pub fn until_leader(&self, wanted: &str) {
        until(&format!("{wanted} leads"), || self.leader().as_deref() == Some(wanted), || self.logs());
    }

    /// Waits until a child signs under a greater token. Returns that token.
    pub fn until_token_after(&self, token: u64) -> u64 {
        let newest = || self.signs().last().map_or(0, |sign| sign.token);
        until(&format!("a child under a token after {token}"), || newest() > token, || self.logs());
        newest()
    }

    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.folder.path()).expect("the folder").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                text += &format!(
                    "--- {}\n{}",
                    entry.path().display(),
                    std::fs::read_to_string(entry.path()).unwrap_or_default()
                );
            }
        }
        text
    }

    /// Asserts that no two children lived at the same time, and that later ones had greater tokens.
    pub fn assert_never_two(&self) {
        let mut lives: BTreeMap<(u64, u32), (u64, u64)> = BTreeMap::new();
        for sign in self.signs() {
            let life = lives.entry((sign.token, sign.pid)).or_insert((sign.at_us, sign.at_us));
            life.1 = life.1.max(sign.at_us);
        }
        let lives: Vec<_> = lives.into_iter().collect();
        for pair in lives.windows(2) {
            let ((before, (_, last)), (after, (first, _))) = (&pair[0], &pair[1]);
            assert!(last < first, "{before:?} lived until {last}, {after:?} from {first}\n{}", self.logs());
            assert!(before.0 < after.0, "two children under one token: {before:?} and {after:?}");
        }
    }
}

pub fn signs_in(path: &Path) -> Vec<Sign> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap_or_else(|| panic!("{line:?} is torn"));
            Sign {
                token: word().parse().expect("a token"),
                pid: word().parse().expect("a process"),
                at_us: word().replace(['.', ','], "").parse().expect("a time"),
            }
        })
        .collect()
}

/// A `tenure run` process. Killed when dropped.
pub struct Candidate {
    pub process: Child,
    pub name: String,
}

impl Candidate {
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    pub fn wait(&mut self) -> Option<i32> {
        until(
            &format!("{} ends", self.name),
            || self.process.try_wait().expect("waiting").is_some(),
            String::new,
        );
        self.process.wait().expect("waiting").code()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        // Its watchdog stops the child.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A `tenure serve` process on a free port. Killed when dropped.
pub struct Server {
    pub process: Child,
    pub url: String,
}

impl Server {
    pub fn start(world: &World, name: &str) -> Server {
        Server::start_with(world, name, &["--listen", "127.0.0.1:0"], &[])
    }

    pub fn start_with(world: &World, name: &str, args: &[&str], env: &[(&str, &str)]) -> Server {
        let log = File::create(world.path(&format!("{name}.log"))).expect("a log");
        let mut command = world.command(&["serve", "--name", name, "-o", "json"]);
        command.args(args).envs(env.iter().copied()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn().expect("tenure runs");
        let mut line = String::new();
        let mut said = BufReader::new(process.stdout.take().expect("its output"));
        said.read_line(&mut line).expect("a line");
        let line: serde_json::Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("{error} in {line:?}\n{}", world.logs()));
        let url = line["listening"][0].as_str().expect("an address").to_owned();
        Server { process, url }
    }

    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Output of a command on both streams.
pub fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Asserts that a command fails with this code, and that its output contains these words.
pub fn refused(world: &World, args: &[&str], code: i32, words: &[&str]) {
    let output = world.run(args);
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?} should say {word:?}: {text}");
    }
}

/// Polls until a condition holds.
pub fn until(what: &str, mut so: impl FnMut() -> bool, explain: impl Fn() -> String) {
    for _ in 0..(PATIENCE.as_millis() / 20) {
        if so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("timed out waiting until {what}\n{}", explain());
}

/// Whether a process exists and is not a zombie.
pub fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

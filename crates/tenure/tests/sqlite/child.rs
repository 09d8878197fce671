//! Child processes: this test binary, started again in a role.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use tenure::store::sqlite::{SqliteOptions, SqliteStore};
use tenure_core::port::{
    ClaimBatchResponse, ClaimRequest, ElectionStore, HeartbeatResponse, Notification, OpenSessionRequest,
};
use tenure_testkit::conformance::{TestSession, election, new_id, new_session};

use super::{claims, partition_leases, schedules_safety};

/// The prefix of lines from a child. The test harness prints other lines.
const MARK: &str = "child says ";

/// A child process in a role. Killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Start this binary in a role.
    pub(crate) fn spawn(role: &str, database: &Path) -> Child {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::run_role", "--nocapture"])
            .env("TENURE_TEST_ROLE", role)
            .env("TENURE_TEST_DATABASE", database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Child { process, lines }
    }

    /// The next line of the child.
    pub(crate) fn read_line(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the child exited").expect("the child's output");
            if let Some((_, output)) = line.split_once(MARK) {
                return output.to_owned();
            }
        }
    }

    /// Send a line to the child.
    pub(crate) fn write_line(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Send a signal to the child.
    pub(crate) fn signal(&self, signal: &str) {
        signal_to(self.process.id(), signal);
    }

    /// Kill the child.
    pub(crate) fn kill_now(&mut self) {
        self.process.kill().unwrap();
    }

    /// Kill the child and wait for its exit.
    pub(crate) fn kill(&mut self) {
        self.kill_now();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Send a signal to a process.
pub(crate) fn signal_to(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
}

/// Open a file with a long busy timeout, because the machine may be busy.
pub(crate) async fn open(database: &Path) -> SqliteStore {
    let options = SqliteOptions::new(database).busy_timeout(std::time::Duration::from_secs(20));
    SqliteStore::open(options).await.unwrap()
}

/// Not a test: the entry point of a child. Without a role it does nothing.
#[tokio::test]
async fn run_role() {
    let (Ok(role), Some(database)) =
        (std::env::var("TENURE_TEST_ROLE"), std::env::var_os("TENURE_TEST_DATABASE"))
    else {
        return;
    };
    let database = Path::new(&database);
    let key = election("e");
    match role.as_str() {
        "leader" | "candidate" => {
            let store = open(database).await;
            let actor = TestSession::open(std::sync::Arc::new(store), "child").await;
            actor.join(&key).await;
            if role == "leader" {
                actor.take(&key, 0).await;
            }
            print_line(actor.id.as_str());
            wait_for_line();
        }
        "server" => {
            let id = new_id();
            let session = OpenSessionRequest { owner: Some("ci".into()), ..new_session(&id, "remote") };
            let store = std::sync::Arc::new(open(database).await);
            assert!(matches!(store.open_session(&session).await, Ok(HeartbeatResponse::Live { .. })));
            let actor = TestSession { store, id, epoch: 0 };
            actor.join(&key).await;
            actor.take(&key, 0).await;
            print_line(actor.id.as_str());
            wait_for_line();
        }
        "leader with a watchdog" => {
            let store = open(database).await;
            let actor = TestSession::open(std::sync::Arc::new(store.clone()), "child").await;
            actor.join(&key).await;
            actor.take(&key, 0).await;
            let lock = store.lock_fd(&actor.id).unwrap();
            // The watchdog must outlive this process. The test ends it.
            #[allow(clippy::zombie_processes)]
            let watchdog = Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::from(lock))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            print_line(&format!("{} {}", actor.id, watchdog.id()));
            wait_for_line();
        }
        "listener" => {
            let store = open(database).await;
            let mut notifications = store.notifications();
            print_line("listening");
            loop {
                if let Some(Notification::LeaseReleased { released_by, token, .. }) =
                    notifications.next().await
                {
                    return print_line(&format!("{released_by} released {token}"));
                }
            }
        }
        "claimer" => {
            let store = open(database).await;
            print_line("ready");
            wait_for_line();
            loop {
                let claimed =
                    claims::claim(&store, &claims::direct("q", claims::claim_request("child", 7))).await;
                if claimed.is_empty() {
                    return print_line("done");
                }
                let ids: Vec<String> = claimed.iter().map(|task| task.id.to_string()).collect();
                print_line(&ids.join(" "));
            }
        }
        "worker" => {
            let actor = TestSession::open(std::sync::Arc::new(open(database).await), "child").await;
            let claim_request = ClaimRequest {
                session: Some(actor.id.clone()),
                claim_timeout_ms: None,
                ..claims::claim_request("child", 1)
            };
            let answer = actor.store.claim(&claims::direct("q", claim_request)).await.unwrap();
            let ClaimBatchResponse::Served { tasks, .. } = answer else { panic!("{answer:?}") };
            print_line(&format!("{} {} {}", actor.id, tasks[0][0].id, tasks[0][0].token));
            wait_for_line();
        }
        "scheduler" => schedules_safety::fire_forever(open(database).await).await,
        "consumer" => partition_leases::consume(open(database).await).await,
        "producer" => {
            let (sender, receiver) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                wait_for_line();
                let _ = sender.send(());
            });
            partition_leases::produce(open(database).await, move || receiver.try_recv().is_ok()).await;
        }
        "opener" => {
            print_line("ready");
            wait_for_line();
            let store = open(database).await;
            let actor = TestSession::open(std::sync::Arc::new(store), "child").await;
            actor.join(&key).await;
            actor.store.end_session(&actor.id).await.unwrap();
            print_line("done");
        }
        other => panic!("unknown role {other}"),
    }
}

pub(crate) fn print_line(text: &str) {
    println!("{MARK}{text}");
    std::io::stdout().flush().unwrap();
}

/// Wait for a line from the parent, or for its exit.
fn wait_for_line() {
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

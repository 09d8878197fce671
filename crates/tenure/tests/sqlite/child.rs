//! Real processes: this test binary, started again, with a part to play.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};

use tenure::backend::sqlite::{Sqlite, SqliteOptions};
use tenure_core::port::{ClaimAnswer, NewSession, Pulse, Seat, Store, Wake};
use tenure_testkit::conformance::{Actor, election, new_id, new_session};

use super::{claims, events_shares, schedules_safety};

/// What lines of ours begin with: the test harness prints some too.
const MARK: &str = "child says ";

/// A process that plays a part. Killed when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts this binary again.
    pub(crate) fn play(part: &str, database: &Path) -> Child {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::play_a_part", "--nocapture"])
            .env("TENURE_TEST_PART", part)
            .env("TENURE_TEST_DATABASE", database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Child { process, lines }
    }

    /// The next thing it says.
    pub(crate) fn says(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the child is gone").expect("the child's output");
            if let Some((_, said)) = line.split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    /// Says something to it.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        signal_to(self.process.id(), signal);
    }

    /// Ends it as a crash does.
    pub(crate) fn kill_now(&mut self) {
        self.process.kill().unwrap();
    }

    /// Ends it as a crash does, and waits until it is gone.
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

/// Sends a signal to a process.
pub(crate) fn signal_to(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
}

/// Opens a file as the tests do: patient, since the machine may be busy.
pub(crate) async fn open(database: &Path) -> Sqlite {
    let options = SqliteOptions::new(database).busy_timeout(std::time::Duration::from_secs(20));
    Sqlite::open(options).await.unwrap()
}

/// Not a test: what a child does. Without a part there is nothing to do.
#[tokio::test]
async fn play_a_part() {
    let (Ok(part), Some(database)) =
        (std::env::var("TENURE_TEST_PART"), std::env::var_os("TENURE_TEST_DATABASE"))
    else {
        return;
    };
    let database = Path::new(&database);
    let key = election("e");
    match part.as_str() {
        "leader" | "candidate" => {
            let store = open(database).await;
            let actor = Actor::open(std::sync::Arc::new(store), "child").await;
            actor.stand(&key).await;
            if part == "leader" {
                actor.take(&key, 0).await;
            }
            say(actor.id.as_str());
            wait_for_a_line();
        }
        "server" => {
            let id = new_id();
            let session = NewSession { owner: Some("ci".into()), ..new_session(&id, "remote") };
            let store = std::sync::Arc::new(open(database).await);
            assert!(matches!(store.open(&session).await, Ok(Pulse::Alive { .. })));
            let actor = Actor { store, id, epoch: 0 };
            actor.stand(&key).await;
            actor.take(&key, 0).await;
            say(actor.id.as_str());
            wait_for_a_line();
        }
        "leader with a watchdog" => {
            let store = open(database).await;
            let actor = Actor::open(std::sync::Arc::new(store.clone()), "child").await;
            actor.stand(&key).await;
            actor.take(&key, 0).await;
            let lock = store.lock_fd(&actor.id).unwrap();
            // Left running: that it outlives us is the point. The test ends it.
            #[allow(clippy::zombie_processes)]
            let watchdog = Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::from(lock))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            say(&format!("{} {}", actor.id, watchdog.id()));
            wait_for_a_line();
        }
        "listener" => {
            let store = open(database).await;
            let mut hints = store.wakes();
            say("listening");
            loop {
                if let Some(Wake::Released { by, token, .. }) = hints.next().await {
                    return say(&format!("{by} released {token}"));
                }
            }
        }
        "claimer" => {
            let store = open(database).await;
            say("ready");
            wait_for_a_line();
            loop {
                let claimed = claims::claim(&store, &claims::direct("q", claims::seat("child", 7))).await;
                if claimed.is_empty() {
                    return say("done");
                }
                let ids: Vec<String> = claimed.iter().map(|task| task.id.to_string()).collect();
                say(&ids.join(" "));
            }
        }
        "worker" => {
            let actor = Actor::open(std::sync::Arc::new(open(database).await), "child").await;
            let seat = Seat { session: Some(actor.id.clone()), hold_ms: None, ..claims::seat("child", 1) };
            let answer = actor.store.claim(&claims::direct("q", seat)).await.unwrap();
            let ClaimAnswer::Served { tasks, .. } = answer else { panic!("{answer:?}") };
            say(&format!("{} {} {}", actor.id, tasks[0][0].id, tasks[0][0].token));
            wait_for_a_line();
        }
        "scheduler" => schedules_safety::fire_for_ever(open(database).await).await,
        "consumer" => events_shares::consume(open(database).await).await,
        "producer" => {
            let (told, hears) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                wait_for_a_line();
                let _ = told.send(());
            });
            events_shares::produce(open(database).await, move || hears.try_recv().is_ok()).await;
        }
        "opener" => {
            say("ready");
            wait_for_a_line();
            let store = open(database).await;
            let actor = Actor::open(std::sync::Arc::new(store), "child").await;
            actor.stand(&key).await;
            actor.store.end(&actor.id).await.unwrap();
            say("done");
        }
        other => panic!("no part is called {other}"),
    }
}

pub(crate) fn say(text: &str) {
    println!("{MARK}{text}");
    std::io::stdout().flush().unwrap();
}

/// Also ends when whoever started us is gone.
fn wait_for_a_line() {
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

//! Files with secrets are private for every umask.

use std::process::{Command, Stdio};

use crate::support::{World, output_text};

/// Runs `tenure run` under a umask. Returns mode, type and path of each file in `folder` while it leads.
fn seen_under(umask: &str, store: &str, folder: &std::path::Path) -> Vec<(String, String, String)> {
    let world = World::sqlite();
    let mut command = Command::new("sh");
    command.args(["-c", "umask \"$0\" && exec \"$@\"", umask, env!("CARGO_BIN_EXE_tenure")]);
    command.args(["run", "nightly", "--store", store, "--", "find", "."]);
    command.args(["-printf", "%m %y %p\\n"]).current_dir(folder);
    command.env_remove("DATABASE_URL").env("XDG_STATE_HOME", folder.join("state")).stdin(Stdio::null());
    let output = command.output().expect("tenure runs");
    assert!(output.status.success(), "{}", output_text(&output));
    drop(world);
    let listed = String::from_utf8(output.stdout).expect("text");
    let entry = |line: &str| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    };
    listed.lines().filter_map(entry).filter(|(_, _, path)| path != ".").collect()
}

/// Regression: with the usual umask every local user could read payloads, webhook secrets and the key of the broker.
#[test]
fn files_of_tenure_are_readable_by_their_owner_only() {
    for umask in ["000", "022"] {
        let port = tenure_testkit::rig::free_port().expect("a port");
        let raft = format!("raft:member?node=1&peers=1@127.0.0.1:{port}");
        let stores: [(&str, &[&str]); 3] = [
            ("sqlite:t.db", &["./t.db", "./t.db-wal", "./t.db-shm", "./t.db.tenure"]),
            ("sqlite:", &["./state/tenure", "./state/tenure/tenure.db", "./state/tenure/tenure.db.tenure"]),
            (&raft, &["./member", "./member/lock"]),
        ];
        for (store, expected) in stores {
            let folder = tempfile::tempdir().expect("a folder");
            let seen = seen_under(umask, store, folder.path());
            for path in expected {
                assert!(seen.iter().any(|(_, _, p)| p == path), "{path} is missing: {seen:?}");
            }
            for (mode, kind, path) in &seen {
                let private = if kind == "d" { "700" } else { "600" };
                assert_eq!(mode, private, "umask {umask}, {path}: {seen:?}");
            }
        }
    }
}

//! Restored files and databases, with real processes: tokens only grow.

use std::path::Path;
use std::process::Command;

use super::support::{World, refused, until};

fn token(world: &World, extra: &[&str]) -> u64 {
    let echo = ["--", "sh", "-c", "echo $TENURE_TOKEN"];
    let printed = world.ok(&[&["run", "nightly", "--lease", "2s"], extra, &echo].concat());
    printed.trim().parse().expect("a token")
}

fn sqlite3(database: &Path, script: &str) {
    let done = Command::new("sqlite3").arg(database).arg(script).status().expect("sqlite3 runs");
    assert!(done.success(), "{script}");
}

/// The SQLite file of the store.
fn file(world: &World) -> std::path::PathBuf {
    world.store.strip_prefix("sqlite:").expect("a file").into()
}

/// Replaces the file by an old copy, in several ways, or by an empty file, each time after more tokens were granted.
#[test]
fn a_restored_sqlite_file_continues_above_every_token() {
    let world = World::sqlite();
    let database = file(&world);
    let [copy, wal, shm] = ["copy", "-wal", "-shm"].map(|tail| {
        let mut name = database.clone().into_os_string();
        name.push(if tail == "copy" { ".copy" } else { tail });
        std::path::PathBuf::from(name)
    });
    let tidy = || [&wal, &shm].into_iter().for_each(|path| drop(std::fs::remove_file(path)));
    let mut tokens = vec![token(&world, &[]), token(&world, &[])];
    assert_eq!(tokens, [1, 2]);
    sqlite3(&database, &format!(".backup '{}'", copy.display()));
    let restores: [(&str, &dyn Fn()); 5] = [
        ("over the same file", &|| {
            std::fs::copy(&copy, &database).expect("a copy");
        }),
        ("as another file", &|| {
            std::fs::copy(&copy, database.with_extension("new")).expect("a copy");
            std::fs::rename(database.with_extension("new"), &database).expect("it is moved");
        }),
        ("after it was deleted", &|| {
            std::fs::remove_file(&database).expect("it is deleted");
            std::fs::copy(&copy, &database).expect("a copy");
        }),
        ("by sqlite3", &|| sqlite3(&database, &format!(".restore '{}'", copy.display()))),
        ("as a new, empty one", &|| std::fs::remove_file(&database).expect("it is deleted")),
    ];
    for (how, restore) in restores {
        tokens.extend([token(&world, &[]), token(&world, &[])]);
        if how != "by sqlite3" {
            tidy();
        }
        restore();
        tokens.push(token(&world, &[]));
        assert!(tokens.is_sorted_by(|a, b| a < b), "{how}: {tokens:?}");
    }
    // Copy the file to another folder, with its write-ahead log if there is one.
    let other = World::sqlite();
    for (from, tail) in [(&database, ""), (&wal, "-wal")] {
        let mut to = file(&other).into_os_string();
        to.push(tail);
        if from.exists() {
            let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
            assert!(copied.success());
        }
    }
    tokens.push(token(&other, &[]));
    assert!(tokens.is_sorted_by(|a, b| a < b), "elsewhere: {tokens:?}");
    // A restore starts one new epoch: the next session continues in it.
    let epoch = other.json(&["epoch", "show", "-o", "json"]);
    let again = token(&other, &[]);
    assert_eq!(again, tokens[tokens.len() - 1] + 1);
    assert_eq!(epoch, other.json(&["epoch", "show", "-o", "json"]));
}

#[test]
fn a_dump_in_a_new_postgres_database_continues_above_every_token() {
    let (world, restored) = (World::postgres(), World::empty_postgres());
    let mut tokens = vec![token(&world, &[]), token(&world, &[])];
    let dump = format!("pg_dump '{}' > dump.sql", world.store);
    let shell = |script: &str| {
        let done =
            Command::new("sh").args(["-c", script]).current_dir(world.path("")).status().expect("sh runs");
        assert!(done.success(), "{script}");
    };
    shell(&dump);
    tokens.extend([token(&world, &[]), token(&world, &[])]);
    shell(&format!("psql -q -v ON_ERROR_STOP=1 '{}' -f dump.sql", restored.store));
    tokens.push(token(&restored, &[]));
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[test]
fn an_epoch_is_shown_and_bumped_after_confirmation() {
    for world in [World::sqlite(), World::postgres()] {
        let first = token(&world, &[]);
        let before = world.json(&["epoch", "show", "-o", "json"]);
        assert_eq!(before["epoch"].as_u64(), Some(first >> 40));
        assert_eq!(before["reason"], "installed");
        refused(&world, &["epoch", "bump"], 64, &["--yes"]);
        refused(&world, &["epoch", "bump", "--to", "0", "--yes"], 64, &["already"]);
        let after = world.json(&[
            "epoch",
            "bump",
            "--above",
            "6000.3",
            "--yes",
            "--reason",
            "a snapshot",
            "-o",
            "json",
        ]);
        assert_eq!((&after["epoch"], &after["reason"]), (&6001.into(), &"a snapshot".into()));
        assert_eq!(token(&world, &[]) >> 40, 6001);
        assert!(world.ok(&["epoch", "show"]).contains("6001"));
    }
    refused(&World::etcd(), &["epoch", "show"], 64, &["no epoch"]);
}

/// A new epoch stops the leader at once, and no candidate leads in it before that leader has stopped.
#[test]
fn a_leader_stops_when_a_new_epoch_starts() {
    for world in [World::sqlite(), World::postgres()] {
        let _a = world.candidate("a", &["--lease", "2s"]);
        let _b = world.candidate("b", &["--lease", "2s"]);
        until("a child works", || world.signs().len() > 2, || world.logs());
        world.ok(&["epoch", "bump", "--to", "5000", "--yes"]);
        let later = || world.signs().iter().any(|sign| sign.token >> 40 == 5000);
        until("a child works in the new epoch", later, || world.logs());
        world.assert_never_two();
    }
}

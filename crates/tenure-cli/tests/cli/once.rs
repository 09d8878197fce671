//! `tenure run --once-per`.

use std::process::{Command, Stdio};

use tenure_testkit::rig::{NetworkSwitch, PgCluster};

use crate::support::{World, output_text};

/// Adds a line to a shared file.
const JOB: [&str; 4] = ["--", "sh", "-c", "echo ran >> \"$RUNS\""];

fn run(mut command: Command, world: &World, args: &[&str]) -> Command {
    command.args(["run", "nightly"]).args(args).args(JOB).env("RUNS", world.path("runs"));
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

fn runs(world: &World) -> usize {
    std::fs::read_to_string(world.path("runs")).unwrap_or_default().lines().count()
}

/// Regression: three machines ran the job of the README three times, because the next candidate led as soon as the
/// first finished.
pub fn one_of_many_candidates_runs_once_per_period(world: World) {
    let tenure = |args: &[&str]| run(world.command(&[]), &world, args);
    let all: Vec<_> = (0..3).map(|_| tenure(&["--once-per", "1h"]).spawn().expect("tenure runs")).collect();
    for process in all {
        let output = process.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    }
    assert_eq!(runs(&world), 1);
    let late = tenure(&["--once-per", "1h", "--no-wait"]).output().expect("tenure runs");
    assert_eq!((late.status.code(), runs(&world)), (Some(0), 1), "{}", output_text(&late));
    assert!(output_text(&late).contains("nightly ran"), "{}", output_text(&late));
    // The period is over.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let next = tenure(&["--once-per", "1s", "--no-wait"]).output().expect("tenure runs");
    assert_eq!((next.status.code(), runs(&world)), (Some(0), 2), "{}", output_text(&next));
    // Control: without the option, the command runs again.
    assert!(tenure(&[]).output().expect("tenure runs").status.success());
    assert_eq!(runs(&world), 3);
}

/// The first command of the README, on three machines that share only a database.
#[test]
fn on_three_machines_the_first_command_of_the_readme_runs_once() {
    if let Err(why) = NetworkSwitch::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let switch = NetworkSwitch::of(4).expect("a switch");
    let address = switch.address(0);
    let cluster = std::thread::scope(|scope| {
        let start = || {
            switch.enter(0).expect("its machine");
            PgCluster::builder().listen_on(address).start().expect("a server")
        };
        scope.spawn(start).join().expect("it starts")
    });
    cluster.create_database("app").expect("a database");
    let world = World::at(cluster.url_at(&address.to_string(), "app"));
    let on = |node: usize| {
        let mut command = switch.command(node, env!("CARGO_BIN_EXE_tenure"));
        command.env("TENURE_STORE", &world.store).env_remove("DATABASE_URL");
        command
    };
    let migrated = on(1).args(["migrate", "up"]).output().expect("tenure runs");
    assert!(migrated.status.success(), "{}", output_text(&migrated));
    let headline =
        include_str!("../../../../README.md").lines().find(|line| line.starts_with("$ tenure run nightly"));
    assert!(
        headline.is_some_and(|line| line.contains("tenure run nightly --once-per 1h -- ./report.sh")),
        "{headline:?}"
    );
    let all: Vec<_> = (1..=3)
        .map(|node| run(on(node), &world, &["--once-per", "1h"]).spawn().expect("tenure runs"))
        .collect();
    for process in all {
        let output = process.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    }
    assert_eq!(runs(&world), 1);
}

/// With a local file each machine would run the command; options for several machines cause a warning.
#[test]
fn options_for_several_machines_warn_about_a_local_file() {
    let world = World::sqlite();
    let warned = |args: &[&str]| {
        let output = run(world.command(&[]), &world, args).output().expect("tenure runs");
        output_text(&output).contains("the store is a file on this machine")
    };
    assert!(warned(&["--once-per", "1h"]));
    assert!(warned(&["--priority", "10"]));
    assert!(!warned(&[]));
}

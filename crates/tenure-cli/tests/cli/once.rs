//! `tenure run --once-per`.

use std::process::{Command, Stdio};

use tenure_testkit::rig::{PgCluster, Switch};

use crate::support::{World, said};

/// Adds a line to a file that all machines see.
const JOB: [&str; 4] = ["--", "sh", "-c", "echo ran >> \"$RUNS\""];

fn run(mut command: Command, world: &World, args: &[&str]) -> Command {
    command.args(["run", "nightly"]).args(args).args(JOB).env("RUNS", world.path("runs"));
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

fn runs(world: &World) -> usize {
    std::fs::read_to_string(world.path("runs")).unwrap_or_default().lines().count()
}

/// Three machines ran the README's job three times: the next candidate led as soon as the first had ended.
pub fn of_many_candidates_one_runs_once_in_a_period(world: World) {
    let tenure = |args: &[&str]| run(world.command(&[]), &world, args);
    let all: Vec<_> = (0..3).map(|_| tenure(&["--once-per", "1h"]).spawn().expect("tenure runs")).collect();
    for process in all {
        let output = process.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    assert_eq!(runs(&world), 1);
    let late = tenure(&["--once-per", "1h", "--no-wait"]).output().expect("tenure runs");
    assert_eq!((late.status.code(), runs(&world)), (Some(0), 1), "{}", said(&late));
    assert!(said(&late).contains("nightly ran"), "{}", said(&late));
    // The period is over.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let next = tenure(&["--once-per", "1s", "--no-wait"]).output().expect("tenure runs");
    assert_eq!((next.status.code(), runs(&world)), (Some(0), 2), "{}", said(&next));
    // The control: without the option, everybody runs it.
    assert!(tenure(&[]).output().expect("tenure runs").status.success());
    assert_eq!(runs(&world), 3);
}

/// The headline of the README, on three machines that share nothing but a database.
#[test]
fn on_three_machines_the_headline_of_the_readme_runs_once() {
    if let Err(why) = Switch::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let switch = Switch::of(4).expect("a switch");
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
    assert!(migrated.status.success(), "{}", said(&migrated));
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
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    assert_eq!(runs(&world), 1);
}

/// On its own file each machine would run it; whoever asks for more than one machine is told.
#[test]
fn a_run_that_looks_distributed_is_warned_of_a_local_file() {
    let world = World::sqlite();
    let warned = |args: &[&str]| {
        let output = run(world.command(&[]), &world, args).output().expect("tenure runs");
        said(&output).contains("the store is a file of this machine")
    };
    assert!(warned(&["--once-per", "1h"]));
    assert!(warned(&["--priority", "10"]));
    assert!(!warned(&[]));
}

//! Rolling migration from one store to another: never two leaders at once.

use std::collections::BTreeMap;

use super::support::{Candidate, Server, World, until};

const LEASE: &str = "2s";

/// First and last sign of each child, ordered by start.
fn lives(world: &World) -> Vec<(u64, u64, u32)> {
    let mut lives: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for sign in world.signs() {
        let life = lives.entry(sign.pid).or_insert((sign.at_us, sign.at_us));
        life.1 = life.1.max(sign.at_us);
    }
    let mut lives: Vec<_> = lives.into_iter().map(|(pid, (first, last))| (first, last, pid)).collect();
    lives.sort_unstable();
    lives
}

/// How long two children lived at the same time, in microseconds.
fn overlap(world: &World) -> u64 {
    let lives = lives(world);
    let mut last = 0;
    lives.iter().fold(0, |sum, (begun, ended, _)| {
        let both = last.min(*ended).saturating_sub(*begun);
        last = last.max(*ended);
        sum + both
    })
}

struct Fleet<'a> {
    world: &'a World,
    nodes: Vec<Candidate>,
}

impl Fleet<'_> {
    /// Restarts the nodes one after the other with these arguments. Waits each time until a child works.
    fn roll(&mut self, step: &str, args: &[&str]) {
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let name = node.name.clone();
            node.signal("TERM");
            node.wait();
            let before = self.world.signs().len();
            self.nodes[at] = self.world.candidate(&name, &[args, &["--lease", LEASE]].concat());
            let what = format!("a child works after {name} was restarted with {step}");
            until(&what, || self.world.signs().len() > before + 2, || self.world.logs());
        }
    }
}

fn migrates_without_two_leaders(old: &World, new: &World) {
    let (a, b) = (old.store.as_str(), new.store.as_str());
    rolls_without_two_leaders(
        old,
        &[
            ("A", &["--store", a]),
            ("A and B", &["--store", a, "--second-store", b]),
            ("B and A", &["--store", b, "--second-store", a]),
            ("B", &["--store", b]),
        ],
    );
}

/// Starts three nodes with the arguments of the first step, then restarts them with those of each later step. Asserts
/// that no two children lived at the same time.
fn rolls_without_two_leaders(old: &World, args: &[(&str, &[&str])]) {
    let start = |name| old.candidate(name, &[args[0].1, &["--lease", LEASE]].concat());
    let mut fleet = Fleet { world: old, nodes: ["a", "b", "c"].map(start).into() };
    until("a child works", || old.signs().len() > 2, || old.logs());
    for (step, args) in &args[1..] {
        fleet.roll(step, args);
    }
    drop(fleet);
    assert!(lives(old).len() >= args.len(), "leadership moved with the nodes");
    assert_eq!(overlap(old), 0, "{:?}\n{}", lives(old), old.logs());
}

#[test]
fn from_sqlite_to_postgres() {
    migrates_without_two_leaders(&World::sqlite(), &World::postgres());
}

#[test]
fn from_postgres_to_etcd() {
    migrates_without_two_leaders(&World::postgres(), &World::etcd());
}

#[test]
fn from_etcd_to_raft() {
    migrates_without_two_leaders(&World::etcd(), &World::raft());
}

#[test]
fn elections_move_from_postgres_to_etcd_and_the_data_stays() {
    let (old, etcd) = (World::postgres(), World::etcd());
    let apart: [&str; 4] = ["--store", &old.store, "--election-store", &etcd.store];
    rolls_without_two_leaders(&old, &[("A", &["--store", &old.store]), ("A, elected by B", &apart)]);
}

#[test]
fn control_without_the_intermediate_steps_there_are_two_leaders() {
    let (old, new) = (World::sqlite(), World::sqlite());
    let _a = old.candidate("a", &["--lease", LEASE]);
    let _b = old.candidate("b", &["--lease", LEASE, "--store", &new.store]);
    until("both work", || lives(&old).len() == 2, || old.logs());
    until("they are two", || overlap(&old) > 0, || old.logs());
}

#[test]
fn candidates_with_the_stores_in_different_order_do_not_deadlock() {
    let (one, other) = (World::sqlite(), World::sqlite());
    let _a = one.candidate("a", &["--lease", LEASE, "--second-store", &other.store]);
    let _b = one.candidate("b", &["--lease", LEASE, "--store", &other.store, "--second-store", &one.store]);
    until("one of them works", || one.signs().len() > 2, || one.logs());
    assert_eq!(overlap(&one), 0);
}

#[test]
fn the_tokens_of_both_stores_are_passed_to_the_command() {
    let (one, other) = (World::sqlite(), World::sqlite());
    let printed = one.ok(&[
        "run",
        "nightly",
        "--second-store",
        &other.store,
        "--",
        "sh",
        "-c",
        "echo $TENURE_TOKEN $TENURE_SECOND_TOKEN",
    ]);
    assert_eq!(printed.trim(), "1 1");
    let lines =
        one.ok(&["campaign", "nightly", "--second-store", &other.store, "--duration", "2s", "-o", "json"]);
    let line: serde_json::Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&line["change"], &line["token"], &line["second_token"]),
        (&"leading".into(), &2.into(), &2.into())
    );
}

/// Regression: a run with a separate election store lowered the tokens of the store: SQLite granted 2 and 3 again, and
/// PostgreSQL could not grant any more.
#[test]
fn tokens_grow_across_a_run_with_a_separate_election_store() {
    for world in [World::sqlite(), World::postgres()] {
        let elector = World::sqlite();
        let run = |extra: &[&str]| {
            let token =
                world.ok(&[&["run", "nightly"], extra, &["--", "sh", "-c", "echo $TENURE_TOKEN"]].concat());
            token.trim().parse::<u64>().expect("a token")
        };
        let mut tokens: Vec<u64> = (0..3).map(|_| run(&[])).collect();
        assert_eq!(run(&["--election-store", &elector.store]), 1, "the elector's own token");
        tokens.extend((0..2).map(|_| run(&[])));
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }
}

/// Regression: the same happened to the scheduler election, and schedules stopped firing.
#[test]
fn servers_with_a_separate_election_store_do_not_stop_the_schedules() {
    let (world, elector) = (World::postgres(), World::sqlite());
    let token = || {
        let lease = "SELECT coalesce(max(token), 0) FROM tenure.leases WHERE election = 'scheduler' AND session IS NOT NULL";
        world.psql(lease).ok().and_then(|token| token.parse::<u64>().ok()).unwrap_or_default()
    };
    let mut last = 0;
    for (name, extra) in
        [("one", &[][..]), ("two", &[]), ("apart", &["--election-store", &elector.store]), ("three", &[])]
    {
        let mut server =
            Server::start_with(&world, name, &[&["--listen", "127.0.0.1:0"], extra].concat(), &[]);
        if extra.is_empty() {
            until("the scheduler leads under a greater token", || token() > last, || world.logs());
            last = token();
        } else {
            until("the scheduler leads", || token() > 0, || world.logs());
        }
        server.signal("TERM");
        server.process.wait().expect("it ends");
        until("its lease is free", || token() == 0, || world.logs());
    }
}

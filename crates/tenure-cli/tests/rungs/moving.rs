//! A rolling change from one store to another: at every moment somebody leads or nobody, and never two.

use std::collections::BTreeMap;

use super::support::{Candidate, Server, World, until};

const LEASE: &str = "2s";

/// The lives of all children: from when to when each was seen, in the order in which they began.
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

/// For how long two lived at once, in microseconds.
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
    /// Restarts one node after the other with these arguments, each after the one before it is gone; waits each time until somebody works.
    fn roll(&mut self, step: &str, args: &[&str]) {
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let name = node.name.clone();
            node.signal("TERM");
            node.wait();
            let before = self.world.signs().len();
            self.nodes[at] = self.world.candidate(&name, &[args, &["--lease", LEASE]].concat());
            let what = format!("somebody works after {name} was restarted with {step}");
            until(&what, || self.world.signs().len() > before + 2, || self.world.logs());
        }
    }
}

fn is_moved_with_no_moment_of_two_leaders(old: &World, new: &World) {
    let (a, b) = (old.store.as_str(), new.store.as_str());
    rolls_with_no_moment_of_two_leaders(
        old,
        &[
            ("A", &["--store", a]),
            ("A and B", &["--store", a, "--and-store", b]),
            ("B and A", &["--store", b, "--and-store", a]),
            ("B", &["--store", b]),
        ],
    );
}

/// The first step is how the fleet begins.
fn rolls_with_no_moment_of_two_leaders(old: &World, args: &[(&str, &[&str])]) {
    let start = |name| old.candidate(name, &[args[0].1, &["--lease", LEASE]].concat());
    let mut fleet = Fleet { world: old, nodes: ["a", "b", "c"].map(start).into() };
    until("somebody works", || old.signs().len() > 2, || old.logs());
    for (step, args) in &args[1..] {
        fleet.roll(step, args);
    }
    drop(fleet);
    assert!(lives(old).len() >= args.len(), "leadership moved with the nodes");
    assert_eq!(overlap(old), 0, "{:?}\n{}", lives(old), old.logs());
}

#[test]
fn from_sqlite_to_postgres() {
    is_moved_with_no_moment_of_two_leaders(&World::sqlite(), &World::postgres());
}

#[test]
fn from_postgres_to_etcd() {
    is_moved_with_no_moment_of_two_leaders(&World::postgres(), &World::etcd());
}

#[test]
fn from_etcd_to_raft() {
    is_moved_with_no_moment_of_two_leaders(&World::etcd(), &World::raft());
}

#[test]
fn elections_leave_postgres_and_the_work_stays() {
    let (old, etcd) = (World::postgres(), World::etcd());
    let apart: [&str; 4] = ["--store", &old.store, "--elect", &etcd.store];
    rolls_with_no_moment_of_two_leaders(
        &old,
        &[("A", &["--store", &old.store]), ("A, elected by B", &apart)],
    );
}

#[test]
fn without_the_steps_between_there_are_two_and_the_oracle_sees_them() {
    let (old, new) = (World::sqlite(), World::sqlite());
    let _a = old.candidate("a", &["--lease", LEASE]);
    let _b = old.candidate("b", &["--lease", LEASE, "--store", &new.store]);
    until("both work", || lives(&old).len() == 2, || old.logs());
    until("they are two", || overlap(&old) > 0, || old.logs());
}

#[test]
fn candidates_that_ask_in_different_orders_do_not_wait_for_each_other_for_ever() {
    let (one, other) = (World::sqlite(), World::sqlite());
    let _a = one.candidate("a", &["--lease", LEASE, "--and-store", &other.store]);
    let _b = one.candidate("b", &["--lease", LEASE, "--store", &other.store, "--and-store", &one.store]);
    until("one of them works", || one.signs().len() > 2, || one.logs());
    assert_eq!(overlap(&one), 0);
}

#[test]
fn the_tokens_of_both_are_told() {
    let (one, other) = (World::sqlite(), World::sqlite());
    let said = one.ok(&[
        "run",
        "nightly",
        "--and-store",
        &other.store,
        "--",
        "sh",
        "-c",
        "echo $TENURE_TOKEN $TENURE_AND_TOKEN",
    ]);
    assert_eq!(said.trim(), "1 1");
    let lines = one.ok(&["elect", "nightly", "--and-store", &other.store, "--for", "2s", "-o", "json"]);
    let line: serde_json::Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!(
        (&line["change"], &line["token"], &line["and_token"]),
        (&"leading".into(), &2.into(), &2.into())
    );
}

/// A run that another store elected lowered the store's own tokens: SQLite granted 2 and 3 a second time, and PostgreSQL could never grant
/// one again.
#[test]
fn tokens_only_grow_around_a_run_that_another_store_elected() {
    for world in [World::sqlite(), World::postgres()] {
        let elector = World::sqlite();
        let run = |extra: &[&str]| {
            let token =
                world.ok(&[&["run", "nightly"], extra, &["--", "sh", "-c", "echo $TENURE_TOKEN"]].concat());
            token.trim().parse::<u64>().expect("a token")
        };
        let mut tokens: Vec<u64> = (0..3).map(|_| run(&[])).collect();
        assert_eq!(run(&["--elect", &elector.store]), 1, "the elector's own token");
        tokens.extend((0..2).map(|_| run(&[])));
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }
}

/// The same happened to the election of the scheduler, and no schedule fired any more.
#[test]
fn servers_that_another_store_elected_do_not_stop_the_schedules() {
    let (world, elector) = (World::postgres(), World::sqlite());
    let token = || {
        let lease = "SELECT coalesce(max(token), 0) FROM tenure.leases WHERE name = 'scheduler' AND session IS NOT NULL";
        world.psql(lease).ok().and_then(|token| token.parse::<u64>().ok()).unwrap_or_default()
    };
    let mut last = 0;
    for (name, extra) in
        [("one", &[][..]), ("two", &[]), ("apart", &["--elect", &elector.store]), ("three", &[])]
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

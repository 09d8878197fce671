//! Soft elections with real processes: one leader without a network split, one on each side during a split, and one
//! soon after it heals. The tests measure how long two leaders overlap.

#![allow(unreachable_pub, dead_code)]

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Command, Stdio};

use support::{Candidate, Server, World, until};
use tenure_testkit::rig::{NetworkNamespace, free_port};

/// Fast rounds with a long silence limit, because the test machine is busy.
const PACE: &str = "round=50ms&silence_limit=3s&hold_down=1500ms";

/// Writes signs to a common file while it lives.
const SIGNING: &str = "while :; do echo \"$TENURE_NAME $EPOCHREALTIME\" >> \"$SIGNS\"; sleep 0.02; done";

/// Maximum gap between signs of a working child.
const BREATH_US: u64 = 150_000;

/// How long a child must work alone to count as the only one.
const ALONE_US: u64 = 1_500_000;

/// A world without a store.
fn world() -> World {
    World::sqlite()
}

fn store(bind: &str, seed: &str) -> String {
    format!("gossip:{bind}?seed={seed}&{PACE}")
}

fn candidate(world: &World, name: &str, mut command: Command, store: &str) -> Candidate {
    let log = File::create(world.path(&format!("{name}.log"))).expect("a log");
    command
        .args([
            "run",
            "warm",
            "--soft",
            "--name",
            name,
            "-v",
            "--kill-after",
            "300ms",
            "--",
            "bash",
            "-c",
            SIGNING,
        ])
        .env("TENURE_STORE", store)
        .env("TENURE_GOSSIP_SECRET", "between members only")
        .env("SIGNS", world.path("signs"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    Candidate { process: command.spawn().expect("tenure runs"), name: name.to_owned() }
}

/// Signs of each child in microseconds, oldest first.
fn signs(world: &World) -> BTreeMap<String, Vec<u64>> {
    let text = std::fs::read_to_string(world.path("signs")).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut signs: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in whole.lines() {
        let Some((name, at)) = line.split_once(' ') else { continue };
        let at = at.replace(['.', ','], "").parse().expect("a time");
        signs.entry(name.to_owned()).or_default().push(at);
    }
    signs
}

/// Last sign of a child, if any.
fn last_sign(world: &World, name: &str) -> Option<u64> {
    signs(world).get(name).and_then(|of| of.last().copied())
}

/// How long two children worked at the same time in this range, in milliseconds.
fn dual_ms(world: &World, from_us: u64, to_us: u64) -> u64 {
    let signs = signs(world);
    let works = |of: &[u64], at: u64| {
        let next = of.partition_point(|sign| *sign < at);
        let around = next.checked_sub(1).map(|before| of[before]).zip(of.get(next));
        around.is_some_and(|(before, after)| after - before < BREATH_US)
    };
    let moments = (from_us..to_us).step_by(1000);
    moments.filter(|at| signs.values().filter(|of| works(of, *at)).count() > 1).count() as u64
}

/// Names of the children that work now.
fn working(world: &World) -> Vec<String> {
    let now = wall_us();
    let signs = signs(world);
    let works = |of: &Vec<u64>| of.last().is_some_and(|last| now.saturating_sub(*last) < BREATH_US);
    signs.iter().filter(|(_, of)| works(of)).map(|(name, _)| name.clone()).collect()
}

fn wall_us() -> u64 {
    u64::try_from(tenure::runtime::wall_ms()).expect("after 1970") * 1000
}

fn until_works(world: &World, names: &[&str]) {
    until(&format!("{names:?} work"), || working(world) == names, || world.logs());
}

/// Waits until another child works alone. Returns its name.
fn until_another_works(world: &World, than: &str) -> String {
    let mut works = Vec::new();
    let mut another = || {
        works = working(world);
        works.len() == 1 && works[0] != than
    };
    until(&format!("another than {than} works"), &mut another, || world.logs());
    works.remove(0)
}

/// Waits until a candidate has seen the leader; from then on both know each other.
fn until_waits(world: &World, name: &str, leader: &str) {
    let said = || std::fs::read_to_string(world.path(&format!("{name}.log"))).unwrap_or_default();
    let waits = format!("{leader} leads warm; waiting");
    until(&format!("{name} waits for {leader}"), || said().contains(&waits), || world.logs());
}

#[test]
fn one_of_three_leads_another_takes_over_and_never_two_at_once() {
    let world = world();
    let ports: Vec<u16> = (0..3).map(|_| free_port().expect("a port")).collect();
    let at = |n: usize| format!("127.0.0.1:{}", ports[n]);
    let begin = |name: &str, n: usize| candidate(&world, name, world.command(&[]), &store(&at(n), &at(0)));
    let begun = wall_us();
    let mut first = begin("a", 0);
    until_works(&world, &["a"]);
    let mut others = vec![begin("b", 1), begin("c", 2)];
    let members = || {
        let mut command = world.command(&["gossip", "-o", "json"]);
        command.env("TENURE_STORE", format!("gossip:{}?{PACE}", at(0)));
        command.env("TENURE_GOSSIP_SECRET", "between members only");
        let output = command.output().expect("tenure runs");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default()
    };
    until(
        "all three are candidates",
        || members()["elections"][0]["candidates"].as_array().is_some_and(|all| all.len() == 3),
        || world.logs(),
    );
    let seen = members();
    assert_eq!(seen["elections"][0]["leaders"], serde_json::json!(["a"]), "{seen}");
    assert_eq!(
        seen["members"].as_array().map(Vec::len),
        Some(3),
        "the temporary member is not listed: {seen}"
    );

    // SIGTERM lets it leave the cluster; SIGKILL does not.
    first.signal("TERM");
    assert_eq!(first.wait(), Some(143));
    let second = until_another_works(&world, "a");
    let mut second = others.remove(others.iter().position(|other| other.name == second).expect("it runs"));
    second.signal("KILL");
    second.wait();
    assert_eq!(until_another_works(&world, &second.name), others[0].name);
    assert_eq!(dual_ms(&world, begun, wall_us()), 0, "{}", world.logs());
}

#[test]
fn a_stopped_leader_stops_its_child_before_another_starts() {
    let world = world();
    let ports: Vec<u16> = (0..2).map(|_| free_port().expect("a port")).collect();
    let at = |n: usize| format!("127.0.0.1:{}", ports[n]);
    let begun = wall_us();
    let first = candidate(&world, "a", world.command(&[]), &store(&at(0), &at(1)));
    until_works(&world, &["a"]);
    let _second = candidate(&world, "b", world.command(&[]), &store(&at(1), &at(0)));
    until_waits(&world, "b", "a");
    first.signal("STOP");
    until_works(&world, &["b"]);
    first.signal("CONT");
    // The older candidate takes over again after the younger has stopped.
    until_works(&world, &["a"]);
    assert_eq!(dual_ms(&world, begun, wall_us()), 0, "{}", world.logs());
}

/// Two members, one of them in a separate network namespace.
struct Apart {
    world: World,
    namespace: NetworkNamespace,
    _members: [Candidate; 2],
}

impl Apart {
    fn new() -> Option<Apart> {
        if let Err(why) = NetworkNamespace::available() {
            eprintln!("skipped: {why}");
            return None;
        }
        let world = world();
        let namespace = NetworkNamespace::new().expect("a namespace");
        let here = format!("{}:{}", namespace.host_address(), free_port().expect("a port"));
        let there = format!("{}:8370", namespace.address());
        let first = candidate(&world, "here", world.command(&[]), &store(&here, &there));
        until_works(&world, &["here"]);
        let mut inside = namespace.command(env!("CARGO_BIN_EXE_tenure"));
        inside.env_remove("DATABASE_URL").env_remove("TENURE_NAME").env_remove("TENURE_PRIORITY");
        let second = candidate(&world, "there", inside, &store(&there, &here));
        until_waits(&world, "there", "here");
        Some(Apart { world, namespace, _members: [first, second] })
    }

    /// Blocks or unblocks messages from the other network.
    fn mute(&self, muted: bool) {
        let host = format!("{}/32", self.namespace.host_address());
        let verb = if muted { "add" } else { "del" };
        let status = self.namespace.command("ip").args(["route", verb, "blackhole", &host]).status();
        assert!(status.expect("ip runs").success());
    }

    /// Waits for one leader after healing, and checks how long two overlapped.
    fn heals(&self, how: &str, cut_us: u64) {
        let healed = wall_us();
        // Only `here` works, for longer than the pauses of a busy machine.
        let alone = || {
            last_sign(&self.world, "here")
                > last_sign(&self.world, "there").max(Some(healed)).map(|at| at + ALONE_US)
        };
        until("one works alone", alone, || self.world.logs());
        let (during, after) = (dual_ms(&self.world, cut_us, healed), dual_ms(&self.world, healed, wall_us()));
        println!("{how}: two at once for {during} ms while cut, {after} ms after healing");
        // Forty rounds plus the grace period of the command, with a margin for a busy machine.
        assert!(after <= 40 * 50 + 300 + 3000, "{how}: {after} ms\n{}", self.world.logs());
    }
}

#[test]
fn a_network_split_has_two_leaders_and_one_soon_after_it_heals() {
    let Some(apart) = Apart::new() else { return };
    let cut = wall_us();
    apart.namespace.cut_both_ways().expect("cut");
    until_works(&apart.world, &["here", "there"]);
    apart.namespace.heal().expect("healed");
    apart.heals("cut both ways", cut);
    // There were two leaders.
    assert!(last_sign(&apart.world, "there") > Some(cut), "{}", apart.world.logs());
}

#[test]
fn a_member_that_receives_no_messages_leads_and_stops_soon_after_the_split_heals() {
    let Some(apart) = Apart::new() else { return };
    let cut = wall_us();
    // Its messages still arrive: the other member ranks higher and continues.
    apart.namespace.cut_one_way().expect("cut");
    until_works(&apart.world, &["here", "there"]);
    apart.namespace.heal().expect("healed");
    apart.heals("receives nothing", cut);
}

#[test]
fn a_member_whose_messages_are_lost_follows_while_it_receives() {
    let Some(apart) = Apart::new() else { return };
    let cut = wall_us();
    apart.mute(true);
    // Longer than the silence limit.
    until(
        "the other member continues",
        || last_sign(&apart.world, "here") > Some(cut + 4_500_000),
        || apart.world.logs(),
    );
    assert_eq!(last_sign(&apart.world, "there"), None, "{}", apart.world.logs());
    apart.mute(false);
    apart.heals("sends nothing", cut);
    assert_eq!(dual_ms(&apart.world, cut, wall_us()), 0, "{}", apart.world.logs());
}

#[test]
fn gossip_requires_soft() {
    let world = world();
    for args in [&["run", "warm", "--", "true"][..], &["campaign", "warm"], &["elections", "list"]] {
        let mut command = world.command(args);
        let output = command.env("TENURE_STORE", "gossip:127.0.0.1:0").output().expect("tenure runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("no token") && said.contains("--soft"), "{said}");
    }
    let output = world.run(&["run", "warm", "--soft", "--", "true"]);
    assert_eq!(output.status.code(), Some(64));
    let output = world.run(&["gossip"]);
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn a_server_shows_members_and_soft_leaders() {
    let world = world();
    let port = free_port().expect("a port");
    let gossip = format!("gossip:127.0.0.1:{port}?{PACE}");
    let secret = [("TENURE_GOSSIP_SECRET", "between members only")];
    let server = Server::start_with(&world, "s", &["--listen", "127.0.0.1:0", "--gossip", &gossip], &secret);
    let member = free_port().expect("a port");
    let at = store(&format!("127.0.0.1:{member}"), &format!("127.0.0.1:{port}"));
    let _candidate = candidate(&world, "a", world.command(&[]), &at);
    let ask = |path: &str| {
        let output =
            Command::new("curl").args(["-s", &format!("{}{path}", server.url)]).output().expect("curl runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let led = || {
        let seen: serde_json::Value = serde_json::from_str(&ask("/v1/gossip")).unwrap_or_default();
        seen["elections"][0]["leaders"] == serde_json::json!(["a"])
            && seen["members"].as_array().is_some_and(|all| all.len() == 2)
    };
    until("the server shows the leader", led, || world.logs());
    let page = ask("/gossip");
    assert!(page.contains("(this server)") && page.contains("Leader"), "{page}");
    assert!(ask("/metrics").contains("tenure_gossip_members{cluster=\"tenure\",state=\"live\"} 2"));
}

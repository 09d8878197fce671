//! Gossip members in their own network namespaces that are cut and reconnected: both sides hold a name or run a
//! singleton, and after they reconnect only one does.

use std::sync::Arc;
use std::time::Duration;

use tenure::cluster::{ConflictPolicy, Registration, RegistrationEnd, Registry, SoftBackend, Supervisor};
use tenure::rules::soft::GossipTiming;
use tenure::store::gossip::{Gossip, GossipOptions};
use tenure_core::rules::cluster::owner;
use tenure_testkit::rig::NetworkSwitch;

use crate::namespace_thread::*;
use crate::support::*;

const NOTHING: [(&str, &str); 0] = [];

/// Three members, each in its own network namespace, on a switch that can cut them off.
struct Cut {
    switch: Arc<NetworkSwitch>,
    members: [Gossip; 3],
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Cut {
    async fn new() -> Option<Cut> {
        if let Err(why) = NetworkSwitch::available() {
            eprintln!("skipped: {why}");
            return None;
        }
        let switch = Arc::new(NetworkSwitch::of(3).expect("a switch"));
        let ms = Duration::from_millis;
        let pace = GossipTiming::new(ms(100), ms(2000), ms(800)).expect("in range");
        let members = [0, 1, 2].map(|node| {
            let at = |node: usize| format!("{}:8370", switch.address(node));
            let options = GossipOptions::new(at(node)).name(NAMES[node]).timing(pace);
            let options = options.secret("between members only");
            let others = (0..3).filter(|other| *other != node);
            let options = others.fold(options, |options, other| options.seed(at(other)));
            let switch = switch.clone();
            let enter = move || switch.enter(node).expect("a namespace");
            NamespaceThread::new(enter, move || async move { Gossip::join(options).await.expect("it joins") })
                .value
        });
        let cut = Cut { switch, members };
        cut.sees([3, 3, 3]).await;
        Some(cut)
    }

    /// Waits until each member sees its number of live members in `live`, including itself.
    async fn sees(&self, live: [usize; 3]) {
        let counts = || [0, 1, 2].map(|node| self.members[node].roster().live().count());
        until(&format!("they see {live:?}"), async || counts() == live).await;
    }
}

/// Creates a registry with one conflict policy.
type MakeRegistry = fn(&Gossip) -> Registry<SoftBackend>;

/// Returns for each case: a name, its conflict policy, and the member that keeps it if b registered it before a.
fn rules() -> [(&'static str, MakeRegistry, Option<&'static str>); 4] {
    [
        ("older", |gossip| Registry::soft(gossip).conflict_policy(ConflictPolicy::KeepOlder), Some("b")),
        ("lower", |gossip| Registry::soft(gossip).conflict_policy(ConflictPolicy::KeepLower), Some("a")),
        ("neither", |gossip| Registry::soft(gossip).conflict_policy(ConflictPolicy::StopBoth), None),
        (
            "asked",
            |gossip| {
                Registry::soft(gossip)
                    .conflict_rule(|all| all.iter().position(|view| view.metadata["at"] == "there"))
            },
            Some("b"),
        ),
    ]
}

/// Each side registers the same names; when they reconnect, each conflict policy resolves them as documented,
/// and all members agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_conflict_policy_resolves_names_held_on_both_sides_of_a_network_partition() {
    let Some(cut) = Cut::new().await else { return };
    let [a, b, c] = &cut.members;
    let mut of_b = Vec::new();
    for (name, on, _) in rules() {
        of_b.push(on(b).register(name, [("at", "there")]).await.unwrap());
        until("all members see it", async || on(c).whereis(name).await.unwrap().is_some()).await;
    }
    cut.switch.isolate(1).unwrap();
    cut.sees([2, 1, 2]).await;
    let mut of_a = Vec::new();
    for (name, on, _) in rules() {
        let max_wait = Duration::from_secs(30);
        of_a.push(on(a).register_within(name, [("at", "here")], max_wait).await.unwrap());
    }
    let both = |one: &Registration<SoftBackend>, other: &Registration<SoftBackend>| {
        one.is_registered() && other.is_registered()
    };
    assert!(
        of_a.iter().zip(&of_b).all(|(a, b)| both(a, b)),
        "each side holds each name, as soft names allow"
    );
    let (name, on, _) = rules()[0];
    until("this side sees its own holder", async || {
        on(c).whereis(name).await.unwrap().is_some_and(|view| view.holder == "a")
    })
    .await;

    cut.switch.heal().unwrap();
    for ((of_a, of_b), (name, on, kept_by)) in of_a.iter().zip(&of_b).zip(rules()) {
        for (registration, member_name) in [(of_a, "a"), (of_b, "b")] {
            if kept_by == Some(member_name) {
                continue;
            }
            let ended = RegistrationEnd::Conflict { kept_by: kept_by.map(str::to_owned) };
            assert_eq!(registration.ended().await, ended, "{name} at {member_name}");
        }
        for (member, observer) in NAMES.iter().zip(&cut.members) {
            until(&format!("{member} sees the holder of {name}"), async || {
                on(observer).whereis(name).await.unwrap().map(|view| view.holder).as_deref() == kept_by
            })
            .await;
        }
        let held = [("a", of_a), ("b", of_b)]
            .map(|(member_name, held)| held.is_registered() == (kept_by == Some(member_name)));
        assert_eq!(held, [true, true], "{name} is kept by {kept_by:?}");
    }
    // A name that no side kept is free.
    let (name, on, _) = rules()[2];
    let next = on(c).register_within(name, NOTHING, Duration::from_secs(30)).await.unwrap();
    assert!(next.is_registered());
}

/// In a network partition each side runs each singleton; after it heals each runs once, on its owner, and the
/// time with two runs is printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn singletons_run_on_both_sides_of_a_network_partition_and_once_after_it_heals() {
    let Some(cut) = Cut::new().await else { return };
    let log = Log::default();
    let mut supervisors = Vec::new();
    for (member, name) in cut.members.iter().zip(NAMES) {
        supervisors.push(working(Supervisor::soft(member), name, &log).start().await.unwrap());
    }
    until("each singleton runs on its owner", async || placed(&log.running(), &NAMES)).await;
    cut.switch.isolate(1).unwrap();
    until("each side runs each singleton", async || {
        placed(&log.running_on(&["a", "c"]), &["a", "c"]) && placed(&log.running_on(&["b"]), &["b"])
    })
    .await;
    cut.switch.heal().unwrap();
    let healed = tenure::runtime::now();
    until("each singleton runs once, on its owner", async || placed(&log.running(), &NAMES)).await;
    println!("cut both ways: two runs for {:?} after healing", tenure::runtime::now().since(healed));

    // A member that receives nothing runs all singletons. The others still receive its messages, so they do not
    // run the singletons that it owns.
    cut.switch.deafen(1).unwrap();
    let theirs: Vec<_> =
        JOBS.iter().filter(|job| owner(job, NAMES.map(|node| (node, 1))) != Some("b")).collect();
    until("the deaf member runs all, and the others continue with theirs", async || {
        let here = log.running_on(&["a", "c"]);
        placed(&log.running_on(&["b"]), &["b"]) && here.keys().eq(theirs.iter().copied())
    })
    .await;
    cut.switch.heal().unwrap();
    let healed = tenure::runtime::now();
    until("each singleton runs once, on its owner", async || placed(&log.running(), &NAMES)).await;
    println!("cut one way: two runs for {:?} after healing", tenure::runtime::now().since(healed));
    drop(supervisors);
}

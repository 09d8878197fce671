//! Members that gossip, each in a network of its own that is cut and mended: both sides have what there should be one of, and when they meet
//! again one of them has it.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::gossip::{Gossip, GossipOptions};
use tenure::cluster::{Ended, Registered, Registry, Resolver, Soft, Supervisor};
use tenure::soft::Pace;
use tenure_core::cluster::owner;
use tenure_testkit::rig::Switch;

use crate::island::*;
use crate::support::*;

const NOTHING: [(&str, &str); 0] = [];

/// Three members that hear each other, each in a network of its own.
struct Cut {
    switch: Arc<Switch>,
    members: [Gossip; 3],
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Cut {
    async fn new() -> Option<Cut> {
        if let Err(why) = Switch::available() {
            eprintln!("left out: {why}");
            return None;
        }
        let switch = Arc::new(Switch::of(3).expect("a switch"));
        let ms = Duration::from_millis;
        let pace = Pace::new(ms(100), ms(2000), ms(800)).expect("in range");
        let members = [0, 1, 2].map(|node| {
            let at = |node: usize| format!("{}:8370", switch.address(node));
            let options = GossipOptions::new(at(node)).name(NAMES[node]).pace(pace);
            let options = options.secret("between members only");
            let others = (0..3).filter(|other| *other != node);
            let options = others.fold(options, |options, other| options.seed(at(other)));
            let switch = switch.clone();
            let enter = move || switch.enter(node).expect("a namespace");
            Island::new(enter, move || async move { Gossip::join(options).await.expect("it joins") }).brought
        });
        let cut = Cut { switch, members };
        cut.sees([3, 3, 3]).await;
        Some(cut)
    }

    /// Waits until each of them sees so many live, itself among them.
    async fn sees(&self, live: [usize; 3]) {
        let counts = || [0, 1, 2].map(|node| self.members[node].roster().live().count());
        until(&format!("they see {live:?}"), async || counts() == live).await;
    }
}

/// A registry on which names are settled in one way.
type Settled = fn(&Gossip) -> Registry<Soft>;

/// A name, how it is settled, and who keeps it if b has it for longer than a.
fn rules() -> [(&'static str, Settled, Option<&'static str>); 4] {
    [
        ("older", |gossip| Registry::soft(gossip).resolver(Resolver::KeepOlder), Some("b")),
        ("lower", |gossip| Registry::soft(gossip).resolver(Resolver::KeepLower), Some("a")),
        ("neither", |gossip| Registry::soft(gossip).resolver(Resolver::StopBoth), None),
        (
            "asked",
            |gossip| {
                Registry::soft(gossip).ask(|all| all.iter().position(|view| view.metadata["at"] == "there"))
            },
            Some("b"),
        ),
    ]
}

/// One side has what the other had before it was cut off; when they meet again, each rule settles it as it says, and all see that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_both_sides_of_a_netsplit_have_is_settled_by_each_rule_when_it_heals() {
    let Some(cut) = Cut::new().await else { return };
    let [a, b, c] = &cut.members;
    let mut of_b = Vec::new();
    for (name, on, _) in rules() {
        of_b.push(on(b).register(name, [("at", "there")]).await.unwrap());
        until("all hear of it", async || on(c).whereis(name).await.unwrap().is_some()).await;
    }
    cut.switch.isolate(1).unwrap();
    cut.sees([2, 1, 2]).await;
    let mut of_a = Vec::new();
    for (name, on, _) in rules() {
        let patience = Duration::from_secs(30);
        of_a.push(on(a).register_within(name, [("at", "here")], patience).await.unwrap());
    }
    let both =
        |one: &Registered<Soft>, other: &Registered<Soft>| one.is_registered() && other.is_registered();
    assert!(of_a.iter().zip(&of_b).all(|(a, b)| both(a, b)), "each side has each: that is what soft means");
    let (name, on, _) = rules()[0];
    until("this side sees its own", async || {
        on(c).whereis(name).await.unwrap().is_some_and(|view| view.holder == "a")
    })
    .await;

    cut.switch.heal().unwrap();
    for ((of_a, of_b), (name, on, kept_by)) in of_a.iter().zip(&of_b).zip(rules()) {
        for (mine, who) in [(of_a, "a"), (of_b, "b")] {
            if kept_by == Some(who) {
                continue;
            }
            let ended = Ended::Conflict { kept_by: kept_by.map(str::to_owned) };
            assert_eq!(mine.ended().await, ended, "{name} at {who}");
        }
        for (member, onlooker) in NAMES.iter().zip(&cut.members) {
            until(&format!("{member} sees who keeps {name}"), async || {
                on(onlooker).whereis(name).await.unwrap().map(|view| view.holder).as_deref() == kept_by
            })
            .await;
        }
        let held =
            [("a", of_a), ("b", of_b)].map(|(who, held)| held.is_registered() == (kept_by == Some(who)));
        assert_eq!(held, [true, true], "{name} is kept by {kept_by:?}");
    }
    // What nobody kept is free for all.
    let (name, on, _) = rules()[2];
    let next = on(c).register_within(name, NOTHING, Duration::from_secs(30)).await.unwrap();
    assert!(next.is_registered());
}

/// In a netsplit each side runs each singleton; when it heals each runs once, where it belongs, and for how long there were two is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn singletons_run_on_both_sides_of_a_netsplit_and_once_when_it_heals() {
    let Some(cut) = Cut::new().await else { return };
    let log = Log::default();
    let mut supervisors = Vec::new();
    for (member, name) in cut.members.iter().zip(NAMES) {
        supervisors.push(working(Supervisor::soft(member), name, &log).start().await.unwrap());
    }
    until("each runs where it belongs", async || placed(&log.running(), &NAMES)).await;
    assert_eq!(log.overlaps(), 0, "while the network holds");

    let doubled = |log: &Log| log.running().values().filter(|nodes| nodes.len() > 1).count();
    cut.switch.isolate(1).unwrap();
    until("each side runs each", async || {
        placed(&log.running_on(&["a", "c"]), &["a", "c"]) && placed(&log.running_on(&["b"]), &["b"])
    })
    .await;
    assert_eq!(doubled(&log), JOBS.len(), "two are not denied");
    cut.switch.heal().unwrap();
    let healed = tenure::runtime::now();
    until("each runs once, where it belongs", async || placed(&log.running(), &NAMES)).await;
    println!("cut both ways: two at once for {:?} after healing", tenure::runtime::now().since(healed));

    // Who hears nobody runs all; the others hear it, and leave to it what is its own.
    cut.switch.deafen(1).unwrap();
    until("who hears nobody runs all", async || placed(&log.running_on(&["b"]), &["b"])).await;
    let here: Vec<_> = log.running_on(&["a", "c"]).into_keys().collect();
    let theirs: Vec<_> =
        JOBS.iter().filter(|job| owner(job, NAMES.map(|node| (node, 1))) != Some("b")).collect();
    assert!(theirs.iter().all(|job| here.contains(&job.to_string())), "{here:?} of {theirs:?}");
    cut.switch.heal().unwrap();
    let healed = tenure::runtime::now();
    until("each runs once, where it belongs", async || placed(&log.running(), &NAMES)).await;
    println!("cut one way: two at once for {:?} after healing", tenure::runtime::now().since(healed));
    drop(supervisors);
}

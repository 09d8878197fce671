//! Tests that span several stores, with real processes: a separate election store, migration between stores, Raft
//! members, advice.

#![allow(unreachable_pub, dead_code)]

#[path = "stores/apart.rs"]
mod apart;
#[path = "stores/flood.rs"]
mod flood;
#[path = "stores/members.rs"]
mod members;
#[path = "stores/moving.rs"]
mod moving;
#[path = "stores/restores.rs"]
mod restores;
mod support;

use support::World;

#[test]
fn advise_takes_flags_and_prints_the_guarantees_of_the_store() {
    let world = World::sqlite();
    let advice = world.json(&["advise", "--topology", "cluster", "--available", "etcd", "-o", "json"]);
    assert_eq!(advice["advice"]["store"], "etcd");
    assert_eq!(advice["guarantees"]["at_most_one"], tenure::store::etcd::GUARANTEES.at_most_one);
    let text = world.ok(&["advise", "--use-case", "tasks", "--available", "postgres", "--order", "strict"]);
    assert!(text.contains("tenure queues mode mail exclusive") && text.contains("assumed"), "{text}");
    // Without answers and without a terminal, the safe case is assumed.
    assert!(world.ok(&["advise"]).contains("--split-brain never"));
}

#[test]
fn doctor_compares_the_store_with_the_recommendation() {
    let world = World::sqlite();
    world.ok(&["migrate", "up"]);
    let status = |args: &[&str]| {
        let output = world.run(&[&["doctor", "--rounds", "1", "-o", "json"], args].concat());
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = found["findings"].as_array().expect("findings");
        findings
            .iter()
            .find(|finding| finding["check"] == "store choice")
            .map(|choice| choice["status"].clone())
    };
    assert_eq!(status(&["--topology", "machine"]), Some("ok".into()));
    assert_eq!(status(&["--topology", "cluster", "--available", "postgres"]), Some("error".into()));
}

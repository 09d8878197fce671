//! From rung to rung, with real processes: elections and data apart, candidates that move between stores, members of Raft, and advice.

#![allow(unreachable_pub, dead_code)]

#[path = "rungs/apart.rs"]
mod apart;
#[path = "rungs/flood.rs"]
mod flood;
#[path = "rungs/members.rs"]
mod members;
#[path = "rungs/moving.rs"]
mod moving;
mod support;

use support::World;

#[test]
fn advice_is_given_by_flags_and_told_in_the_stores_own_words() {
    let world = World::sqlite();
    let advice = world.json(&["advise", "--where", "many", "--have", "etcd", "-o", "json"]);
    assert_eq!(advice["advice"]["backend"], "etcd");
    assert_eq!(advice["guarantee"]["at_most_one"], tenure::backend::etcd::PROMISES.at_most_one);
    let text = world.ok(&["advise", "--need", "tasks", "--have", "postgres", "--order", "strict"]);
    assert!(text.contains("tenure queue mode mail exclusive") && text.contains("assumed"), "{text}");
    // Nothing is said, and nobody is there to ask: the dangerous case is assumed.
    assert!(world.ok(&["advise"]).contains("--two never"));
}

#[test]
fn doctor_holds_the_store_against_the_advice() {
    let world = World::sqlite();
    let verdict = |args: &[&str]| {
        let output = world.run(&[&["doctor", "--rounds", "1", "-o", "json"], args].concat());
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = found["findings"].as_array().expect("findings");
        findings.iter().find(|finding| finding["check"] == "choice").map(|choice| choice["verdict"].clone())
    };
    assert_eq!(verdict(&["--where", "machine"]), Some("good".into()));
    assert_eq!(verdict(&["--where", "many", "--have", "postgres"]), Some("bad".into()));
}

//! Gossip: membership, entries, soft elections and rejected datagrams.

#![cfg(feature = "gossip")]

mod forged;
mod soft;

use std::time::Duration;

use futures_util::StreamExt;
use tenure::port::ErrorKind;
use tenure::rules::soft::GossipTiming;
use tenure::store::gossip::{Gossip, GossipMemberState, GossipOptions, NOT_A_STORE};
use tenure::store::{self, StoreOptions};

const SECRET: &str = "between members only";

/// Fast rounds with a generous silence limit for busy machines.
fn timing() -> GossipTiming {
    let ms = Duration::from_millis;
    GossipTiming::new(ms(20), ms(1500), ms(300)).unwrap()
}

fn options(name: &str) -> GossipOptions {
    GossipOptions::new("127.0.0.1:0").name(name).secret(SECRET).timing(timing())
}

/// Start members that use the first one as their seed.
async fn cluster(names: &[&str]) -> Vec<Gossip> {
    let mut members: Vec<Gossip> = Vec::new();
    for name in names {
        let seed = members.first().map(|first| first.address().to_string());
        let options = seed.into_iter().fold(options(name), GossipOptions::seed);
        members.push(Gossip::join(options).await.unwrap());
        // A later member must have a later join time in milliseconds.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for member in &members {
        until(member, |gossip| live(gossip).len() == names.len()).await;
    }
    members
}

/// Names of the live members as one member sees them.
fn live(member: &Gossip) -> Vec<String> {
    let mut names: Vec<_> = member.roster().live().map(|member| member.name.clone()).collect();
    names.sort();
    names
}

/// Wait until a member sees a condition. Only a hang fails.
async fn until(member: &Gossip, so: impl Fn(&Gossip) -> bool) {
    let reached = async {
        let mut changes = member.watch();
        while !so(member) {
            changes.next().await.unwrap();
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), reached).await;
    assert!(waited.is_ok(), "the condition was not reached; {} sees {:?}", member.name(), member.roster());
}

#[tokio::test]
async fn members_find_each_other_through_one_seed() {
    let members = cluster(&["a", "b", "c", "d"]).await;
    let roster = members[3].roster();
    let first = roster.live().find(|member| member.name == "a").unwrap();
    assert_eq!((first.id.as_str(), first.address), (members[0].id(), members[0].address()));
    assert_eq!(roster.me().unwrap().name, "d");
}

#[tokio::test]
async fn entries_and_their_deletion_reach_all_members() {
    let members = cluster(&["a", "b", "c"]).await;
    members[1].set("load", "0.3").await.unwrap();
    assert_eq!(members[1].entries("load")[0].value, "0.3", "a member sees its own entry at once");
    for member in &members {
        until(member, |gossip| gossip.entries("lo").iter().any(|entry| entry.value == "0.3")).await;
    }
    members[1].set("load", "0.4").await.unwrap();
    members[1].set("other", "1").await.unwrap();
    until(&members[2], |gossip| gossip.entries("other").len() == 1).await;
    let entry = members[2].entries("load").remove(0);
    assert_eq!(
        (entry.value.as_str(), entry.member.name.as_str()),
        ("0.4", "b"),
        "in the order of its writes"
    );
    members[1].delete("load").await.unwrap();
    until(&members[2], |gossip| gossip.entries("load").is_empty()).await;
}

#[tokio::test]
async fn metadata_is_visible_with_its_member() {
    let a = Gossip::join(options("a").metadata("zone", "1")).await.unwrap();
    let b = Gossip::join(options("b").seed(a.address().to_string())).await.unwrap();
    until(&b, |gossip| {
        gossip.roster().live().any(|member| member.metadata.get("zone").is_some_and(|z| z == "1"))
    })
    .await;
}

#[tokio::test]
async fn a_member_leaves_with_an_announcement_and_fails_without_one() {
    let mut members = cluster(&["a", "b", "c"]).await;
    let gone = members.pop().unwrap();
    let id = gone.id().to_owned();
    gone.leave().await;
    assert_eq!(gone.set("x", "y").await.unwrap_err().kind, ErrorKind::Unavailable);
    let state_of = |gossip: &Gossip, id: &str| gossip.roster().member(id).map(|member| member.state);
    until(&members[0], |gossip| state_of(gossip, &id) == Some(GossipMemberState::Left)).await;
    let silent = members.pop().unwrap();
    silent.set("says", "something").await.unwrap();
    until(&members[0], |gossip| gossip.entries("says").len() == 1).await;
    let id = silent.id().to_owned();
    drop(silent);
    until(&members[0], |gossip| state_of(gossip, &id) == Some(GossipMemberState::Failed)).await;
    assert!(members[0].entries("says").is_empty(), "entries of failed members are hidden");
}

#[tokio::test]
async fn large_entries_arrive_complete() {
    let members = cluster(&["a", "b"]).await;
    // Longer than one datagram, and than one message.
    for at in 0..40 {
        let noise: String = (0..1000).map(|n| format!("{:x}", (n * 7919 + at * 104_729) % 65_537)).collect();
        members[0].set(&format!("big/{at:03}"), &noise).await.unwrap();
    }
    until(&members[1], |gossip| gossip.entries("big/").len() == 40).await;
    let entries_of = |member: &Gossip| -> Vec<_> {
        member.entries("big/").into_iter().map(|e| (e.key, e.value)).collect()
    };
    assert_eq!(entries_of(&members[0]), entries_of(&members[1]));
}

#[tokio::test]
async fn entries_beyond_the_limits_are_rejected() {
    let member = Gossip::join(options("a")).await.unwrap();
    for (key, value) in
        [("", "x"), ("a\nb", "x"), ("tenure/left", "1"), ("k", &"x".repeat(9000)), (&"k".repeat(300), "x")]
    {
        assert_eq!(member.set(key, value).await.unwrap_err().kind, ErrorKind::Request, "{key:?}");
    }
    let mut refused = None;
    for at in 0..200 {
        refused = member.set(&format!("k{at}"), &"x".repeat(8000)).await.err().or(refused);
    }
    assert!(refused.unwrap().message.contains("keep larger data in a store"));
    member.set("k0", "short").await.unwrap();
}

#[tokio::test]
async fn observers_see_members_and_are_not_listed() {
    let a = Gossip::join(options("a")).await.unwrap();
    let visiting: GossipOptions = format!("gossip:{}", a.address()).parse().unwrap();
    let observer_process =
        Gossip::join(visiting.temporary_observer().secret(SECRET).timing(timing())).await.unwrap();
    until(&observer_process, |gossip| {
        gossip.roster().live().any(|member| member.name == "a" && !member.observer)
    })
    .await;
    assert!(observer_process.roster().me().unwrap().observer);
}

#[tokio::test]
async fn gossip_is_rejected_as_a_store_with_alternatives() {
    let options = StoreOptions { url: "gossip:127.0.0.1:0".into(), ..StoreOptions::default() };
    let Err(error) = store::open(&options).await else { panic!("gossip was opened as a store") };
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Misconfigured, NOT_A_STORE));
    assert!(NOT_A_STORE.contains("raft:") && NOT_A_STORE.contains("--soft"));
}

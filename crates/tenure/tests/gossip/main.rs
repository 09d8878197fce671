//! Gossip: who finds whom, what spreads, who leads softly, and whom nobody believes.

#![cfg(feature = "gossip")]

mod forged;
mod soft;

use std::time::Duration;

use futures_util::StreamExt;
use tenure::backend::gossip::{Gossip, GossipOptions, NOT_A_STORE, Presence};
use tenure::backend::{self, StoreOptions};
use tenure::port::Trouble;
use tenure::soft::Pace;

const SECRET: &str = "between members only";

/// Quick, but patient: the machine that tests is busy.
fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace::new(ms(20), ms(1500), ms(300)).unwrap()
}

fn options(name: &str) -> GossipOptions {
    GossipOptions::new("127.0.0.1:0").name(name).secret(SECRET).pace(pace())
}

/// Members that know the first.
async fn cluster(names: &[&str]) -> Vec<Gossip> {
    let mut members: Vec<Gossip> = Vec::new();
    for name in names {
        let seed = members.first().map(|first| first.address().to_string());
        let options = seed.into_iter().fold(options(name), GossipOptions::seed);
        members.push(Gossip::join(options).await.unwrap());
        // Who comes later is younger, by a clock of milliseconds.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for member in &members {
        until(member, |seen| live(seen).len() == names.len()).await;
    }
    members
}

/// The names of those who are there, as one of them sees it.
fn live(member: &Gossip) -> Vec<String> {
    let mut names: Vec<_> = member.roster().live().map(|member| member.name.clone()).collect();
    names.sort();
    names
}

/// Waits until a member sees something. Only a hang fails.
async fn until(member: &Gossip, so: impl Fn(&Gossip) -> bool) {
    let seen = async {
        let mut changes = member.watch();
        while !so(member) {
            changes.next().await.unwrap();
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), seen).await;
    assert!(waited.is_ok(), "it never came about; {} sees {:?}", member.name(), member.roster());
}

#[tokio::test]
async fn members_find_each_other_through_one_that_all_know() {
    let members = cluster(&["a", "b", "c", "d"]).await;
    let roster = members[3].roster();
    let first = roster.live().find(|member| member.name == "a").unwrap();
    assert_eq!((first.id.as_str(), first.address), (members[0].id(), members[0].address()));
    assert_eq!(roster.me().unwrap().name, "d");
}

#[tokio::test]
async fn what_one_says_all_come_to_see_and_what_it_says_no_longer_too() {
    let members = cluster(&["a", "b", "c"]).await;
    members[1].set("load", "0.3").await.unwrap();
    assert_eq!(members[1].entries("load")[0].value, "0.3", "what we say we see at once");
    for member in &members {
        until(member, |seen| seen.entries("lo").iter().any(|entry| entry.value == "0.3")).await;
    }
    members[1].set("load", "0.4").await.unwrap();
    members[1].set("other", "1").await.unwrap();
    until(&members[2], |seen| seen.entries("other").len() == 1).await;
    let entry = members[2].entries("load").remove(0);
    assert_eq!((entry.value.as_str(), entry.member.name.as_str()), ("0.4", "b"), "in the order of its words");
    members[1].delete("load").await.unwrap();
    until(&members[2], |seen| seen.entries("load").is_empty()).await;
}

#[tokio::test]
async fn metadata_is_there_when_a_member_is() {
    let a = Gossip::join(options("a").metadata("zone", "1")).await.unwrap();
    let b = Gossip::join(options("b").seed(a.address().to_string())).await.unwrap();
    until(&b, |seen| {
        seen.roster().live().any(|member| member.metadata.get("zone").is_some_and(|z| z == "1"))
    })
    .await;
}

#[tokio::test]
async fn who_says_goodbye_has_left_and_who_does_not_falls_silent() {
    let mut members = cluster(&["a", "b", "c"]).await;
    let gone = members.pop().unwrap();
    let id = gone.id().to_owned();
    gone.leave().await;
    assert_eq!(gone.set("x", "y").await.unwrap_err().kind, Trouble::Unavailable);
    let presence = |seen: &Gossip, id: &str| seen.roster().member(id).map(|member| member.presence);
    until(&members[0], |seen| presence(seen, &id) == Some(Presence::Left)).await;
    let silent = members.pop().unwrap();
    silent.set("says", "something").await.unwrap();
    until(&members[0], |seen| seen.entries("says").len() == 1).await;
    let id = silent.id().to_owned();
    drop(silent);
    until(&members[0], |seen| presence(seen, &id) == Some(Presence::Silent)).await;
    assert!(members[0].entries("says").is_empty(), "who is not there says nothing");
}

#[tokio::test]
async fn much_that_is_said_arrives_whole() {
    let members = cluster(&["a", "b"]).await;
    // More than one datagram holds, and more than a message does.
    for at in 0..40 {
        let noise: String = (0..1000).map(|n| format!("{:x}", (n * 7919 + at * 104_729) % 65_537)).collect();
        members[0].set(&format!("big/{at:03}"), &noise).await.unwrap();
    }
    until(&members[1], |seen| seen.entries("big/").len() == 40).await;
    let said = |member: &Gossip| -> Vec<_> {
        member.entries("big/").into_iter().map(|e| (e.key, e.value)).collect()
    };
    assert_eq!(said(&members[0]), said(&members[1]));
}

#[tokio::test]
async fn a_member_that_says_too_much_is_told_so() {
    let member = Gossip::join(options("a")).await.unwrap();
    for (key, value) in
        [("", "x"), ("a\nb", "x"), ("tenure/left", "1"), ("k", &"x".repeat(9000)), (&"k".repeat(300), "x")]
    {
        assert_eq!(member.set(key, value).await.unwrap_err().kind, Trouble::Request, "{key:?}");
    }
    let mut refused = None;
    for at in 0..200 {
        refused = member.set(&format!("k{at}"), &"x".repeat(8000)).await.err().or(refused);
    }
    assert!(refused.unwrap().message.contains("keep it in a store"));
    member.set("k0", "short").await.unwrap();
}

#[tokio::test]
async fn guests_see_and_are_not_counted() {
    let a = Gossip::join(options("a")).await.unwrap();
    let visiting: GossipOptions = format!("gossip:{}", a.address()).parse().unwrap();
    let guest = Gossip::join(visiting.visiting().secret(SECRET).pace(pace())).await.unwrap();
    until(&guest, |seen| seen.roster().live().any(|member| member.name == "a" && !member.guest)).await;
    assert!(guest.roster().me().unwrap().guest);
}

#[tokio::test]
async fn it_is_not_a_store_and_says_what_is() {
    let options = StoreOptions { url: "gossip:127.0.0.1:0".into(), ..StoreOptions::default() };
    let Err(error) = backend::open(&options).await else { panic!("gossip was opened as a store") };
    assert_eq!((error.kind, error.message.as_str()), (Trouble::Unfit, NOT_A_STORE));
    assert!(NOT_A_STORE.contains("raft:") && NOT_A_STORE.contains("--soft"));
}

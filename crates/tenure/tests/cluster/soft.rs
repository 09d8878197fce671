//! Names and singletons of members that gossip, on real sockets. Two clusters that do not know of each other are the two sides of a
//! netsplit; a member that knows both is its end.

use std::time::Duration;

use tenure::backend::gossip::{Gossip, GossipOptions};
use tenure::cluster::{Ended, Registered, Registry, RegistryError, Resolver, Soft, Supervisor};
use tenure::soft::Pace;
use tenure_core::cluster::owner;

use crate::support::*;

const NOTHING: [(&str, &str); 0] = [];

async fn member(name: &str, seeds: &[&Gossip]) -> Gossip {
    let ms = Duration::from_millis;
    let pace = Pace::new(ms(50), ms(1500), ms(500)).unwrap();
    let options = GossipOptions::new("127.0.0.1:0").name(name).pace(pace);
    let options = seeds.iter().fold(options, |options, seed| options.seed(seed.address().to_string()));
    Gossip::join(options).await.unwrap()
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1200 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("not within half a minute: {what}");
}

async fn all_see(count: usize, members: &[&Gossip]) {
    until("all see all", async || members.iter().all(|member| member.roster().live().count() == count)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_seen_by_all_updated_and_given_up() {
    let a = member("a", &[]).await;
    let b = member("b", &[&a]).await;
    all_see(2, &[&a, &b]).await;
    let (here, there) = (Registry::soft(&a), Registry::soft(&b));
    let held = here.register("printer", [("zone", "1")]).await.unwrap();
    let refused = there.register("printer", NOTHING).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Taken { ref holder, .. } if holder == "a"), "{refused}");
    let again = here.register("printer", NOTHING).await.unwrap_err();
    assert!(matches!(again, RegistryError::Taken { .. }), "one member has it once: {again}");
    held.update([("zone", "2")]).await.unwrap();
    until("the other hears of it", async || {
        there.whereis("printer").await.unwrap().is_some_and(|view| view.metadata["zone"] == "2")
    })
    .await;
    assert!(there.whereis("printer").await.unwrap().unwrap().token.is_none());
    held.unregister().await.unwrap();
    let held = there.register_within("printer", NOTHING, Duration::from_secs(20)).await.unwrap();
    assert!(held.is_registered());
    b.leave().await;
    assert_eq!(held.ended().await, Ended::Asked);
    until("who left has nothing", async || here.list().await.unwrap().is_empty()).await;
}

/// Each side registers the name; then they meet. How it ended for each.
async fn after_a_netsplit(
    on: impl Fn(&Gossip) -> Registry<Soft>,
) -> (Registered<Soft>, Registered<Soft>, Registry<Soft>, Vec<Gossip>) {
    let (a, b) = (member("a", &[]).await, member("b", &[]).await);
    // The higher name has it first.
    let of_b = on(&b).register("printer", [("side", "b")]).await.unwrap();
    let of_a = on(&a).register("printer", [("side", "a")]).await.unwrap();
    assert!(of_a.is_registered() && of_b.is_registered(), "each side has one: that is what soft means");
    let c = member("c", &[&a, &b]).await;
    let onlooker = on(&c);
    (of_a, of_b, onlooker, vec![a, b, c])
}

async fn settles(registry: &Registry<Soft>, holder: Option<&str>) {
    until("all see who has it", async || {
        let found = registry.whereis("printer").await.unwrap();
        found.as_ref().map(|view| view.holder.as_str()) == holder
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_netsplit_the_older_keeps_it() {
    let (of_a, of_b, onlooker, _members) = after_a_netsplit(Registry::soft).await;
    assert_eq!(of_a.ended().await, Ended::Conflict { kept_by: Some("b".into()) });
    settles(&onlooker, Some("b")).await;
    assert!(of_b.is_registered());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_netsplit_the_lower_keeps_it() {
    let rule = |gossip: &Gossip| Registry::soft(gossip).resolver(Resolver::KeepLower);
    let (of_a, of_b, onlooker, _members) = after_a_netsplit(rule).await;
    assert_eq!(of_b.ended().await, Ended::Conflict { kept_by: Some("a".into()) });
    settles(&onlooker, Some("a")).await;
    assert!(of_a.is_registered());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_netsplit_both_stop_and_the_next_has_it() {
    let rule = |gossip: &Gossip| Registry::soft(gossip).resolver(Resolver::StopBoth);
    let (of_a, of_b, onlooker, _members) = after_a_netsplit(rule).await;
    assert_eq!(of_a.ended().await, Ended::Conflict { kept_by: None });
    assert_eq!(of_b.ended().await, Ended::Conflict { kept_by: None });
    settles(&onlooker, None).await;
    let next = onlooker.register_within("printer", NOTHING, Duration::from_secs(20)).await.unwrap();
    assert!(next.is_registered());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_netsplit_a_rule_of_the_users_decides() {
    let rule = |gossip: &Gossip| {
        Registry::soft(gossip).ask(|all| all.iter().position(|view| view.metadata["side"] == "b"))
    };
    let (of_a, of_b, onlooker, _members) = after_a_netsplit(rule).await;
    assert_eq!(of_a.ended().await, Ended::Conflict { kept_by: Some("b".into()) });
    settles(&onlooker, Some("b")).await;
    assert!(of_b.is_registered());
}

/// A panic in the user's rule once ended the task that keeps the name: nobody was told, and both went on having it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_panics_chooses_nobody() {
    let rule = |gossip: &Gossip| Registry::soft(gossip).ask(|_| panic!("the test wants this"));
    let (of_a, of_b, onlooker, _members) = after_a_netsplit(rule).await;
    assert_eq!(of_a.ended().await, Ended::Conflict { kept_by: None });
    assert_eq!(of_b.ended().await, Ended::Conflict { kept_by: None });
    settles(&onlooker, None).await;
}

fn working(gossip: &Gossip, log: &Log) -> tenure::cluster::SupervisorBuilder<Soft> {
    ["a1", "b2", "c3", "d4", "e5", "f6"].iter().fold(Supervisor::soft(gossip), |builder, job| {
        let (log, node) = (log.clone(), gossip.name().to_owned());
        builder.singleton(*job, move |singleton| {
            let (log, node) = (log.clone(), node.clone());
            async move {
                let running = log.begin(&singleton, &node);
                singleton.leaving().await;
                singleton.hand_on(node.repeat(8000)).unwrap();
                drop(running);
            }
        })
    })
}

fn placed(log: &Log, nodes: &[&str]) -> bool {
    let running = log.running();
    running.len() == 6
        && running.iter().all(|(job, at)| {
            let place = owner(job, nodes.iter().map(|node| (*node, 1)));
            at.len() == 1 && place == Some(at[0].as_str())
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn singletons_move_to_who_comes_with_their_state_and_back_when_it_leaves_or_dies() {
    let log = Log::default();
    let a = member("a", &[]).await;
    let _on_a = working(&a, &log).start().await.unwrap();
    until("all run here", async || placed(&log, &["a"])).await;
    let b = member("b", &[&a]).await;
    all_see(2, &[&a, &b]).await;
    let on_b = working(&b, &log).start().await.unwrap();
    until("each has its part", async || placed(&log, &["a", "b"])).await;
    let came: Vec<_> = log.starts().into_iter().filter(|start| start.node == "b").collect();
    assert!(
        !came.is_empty() && came.iter().all(|start| start.state == Some("a".repeat(8000))),
        "{}",
        came.len()
    );
    let before = log.starts().len();
    on_b.leave().await;
    until("all run here again", async || placed(&log, &["a"])).await;
    let back = log.starts().split_off(before);
    assert_eq!(back.len(), came.len(), "only what was there");
    assert!(back.iter().all(|start| start.state == Some("b".repeat(8000))));
    assert_eq!(log.overlaps(), 0, "while the network holds");

    // And once more, without a word: a process that dies is a runtime that is gone.
    b.leave().await;
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (seed, told) = (a.clone(), log.clone());
    process.spawn(async move {
        let b = member("b", &[&seed]).await;
        let _on_b = working(&b, &told).start().await.unwrap();
        std::future::pending::<()>().await;
    });
    until("each has its part", async || placed(&log, &["a", "b"])).await;
    // What was handed over is forgotten when it is heard that it runs; until then it would do for the next run.
    until("what was taken is forgotten", async || a.entries("tenure/hand/").is_empty()).await;
    let before = log.starts().len();
    process.shutdown_background();
    until("what ran there runs here", async || placed(&log, &["a"])).await;
    let restarted = log.starts().split_off(before);
    assert_eq!(restarted.len(), came.len());
    assert!(restarted.iter().all(|start| start.state.is_none()));
}

/// After a netsplit two members ran each singleton under the same number. The one that had to stop left its state behind, and when
/// the other died, the next run began at once with that stale state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_the_run_that_loses_a_netsplit_reaches_no_later_run() {
    let log = Log::default();
    let a = member("a", &[]).await;
    let _on_a = working(&a, &log).start().await.unwrap();
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (tell, told) = tokio::sync::oneshot::channel();
    let logged = log.clone();
    process.spawn(async move {
        let b = member("b", &[]).await;
        let _on_b = working(&b, &logged).start().await.unwrap();
        let _ = tell.send(b);
        std::future::pending::<()>().await;
    });
    let b = told.await.unwrap();
    until("each side runs all", async || {
        log.running().len() == 6 && log.running().values().all(|at| at.len() == 2)
    })
    .await;

    // The netsplit heals: one member knows both sides.
    let c = member("c", &[&a, &b]).await;
    all_see(3, &[&a, &b, &c]).await;
    until("each runs once, where it belongs", async || placed(&log, &["a", "b"])).await;
    until("the runs that stopped left nothing", async || c.entries("tenure/hand/").is_empty()).await;

    let before = log.starts().len();
    process.shutdown_background();
    until("what ran there runs here", async || placed(&log, &["a"])).await;
    let restarted = log.starts().split_off(before);
    assert!(!restarted.is_empty() && restarted.iter().all(|start| start.state.is_none()), "{restarted:?}");
}

/// A member may say a mebibyte. What it can not say that it runs does not run, and keeps nothing else from running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_singleton_that_can_not_be_told_of_is_started_when_it_can() {
    let (a, log) = (member("a", &[]).await, Log::default());
    let mut full = 0;
    // As much as fits. Of the small pieces, one is as much as it takes to offer it, and not to say that it runs as well.
    for length in [8000, 37] {
        while a.set(&format!("{full:05}"), &"x".repeat(length)).await.is_ok() {
            full += 1;
        }
    }
    let offering = Supervisor::soft(&a).singleton("s", |_| std::future::pending()).start().await;
    assert!(offering.is_err(), "there is no room even to offer it");
    a.delete(&format!("{:05}", full - 1)).await.unwrap();
    let logged = log.clone();
    let supervisor = Supervisor::soft(&a)
        .singleton("s", move |singleton| {
            let running = logged.begin(&singleton, "a");
            async move {
                singleton.leaving().await;
                drop(running);
            }
        })
        .start()
        .await
        .unwrap();
    // It is due after the hold-down, and can not be told of.
    tokio::time::sleep(a.pace().hold_down() * 2).await;
    assert!(log.running().is_empty());
    a.delete("00000").await.unwrap();
    until("it runs", async || log.running().len() == 1).await;
    supervisor.leave().await;
    assert_eq!(log.starts().len(), 1);
}

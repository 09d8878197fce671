//! Names and singletons on gossip, on real sockets. Two clusters without contact are the two sides of a network
//! partition; a member that knows both heals it.

use std::time::Duration;

use tenure::cluster::{
    ConflictPolicy, Registration, RegistrationEnd, Registry, RegistryError, SoftBackend, Supervisor,
};
use tenure::rules::soft::GossipTiming;
use tenure::store::gossip::{Gossip, GossipOptions};
use tenure_core::rules::cluster::owner;

use crate::support::*;

const NOTHING: [(&str, &str); 0] = [];

async fn member(name: &str, seeds: &[&Gossip]) -> Gossip {
    let ms = Duration::from_millis;
    let pace = GossipTiming::new(ms(50), ms(1500), ms(500)).unwrap();
    let options = GossipOptions::new("127.0.0.1:0").name(name).timing(pace);
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
    until("all members see each other", async || {
        members.iter().all(|member| member.roster().live().count() == count)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_seen_by_all_members_updated_and_released() {
    let a = member("a", &[]).await;
    let b = member("b", &[&a]).await;
    all_see(2, &[&a, &b]).await;
    let (here, there) = (Registry::soft(&a), Registry::soft(&b));
    let held = here.register("printer", [("zone", "1")]).await.unwrap();
    let refused = there.register("printer", NOTHING).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Taken { ref holder, .. } if holder == "a"), "{refused}");
    let again = here.register("printer", NOTHING).await.unwrap_err();
    assert!(matches!(again, RegistryError::Taken { .. }), "a member can hold a name once: {again}");
    held.update([("zone", "2")]).await.unwrap();
    until("the other member sees it", async || {
        there.whereis("printer").await.unwrap().is_some_and(|view| view.metadata["zone"] == "2")
    })
    .await;
    assert!(there.whereis("printer").await.unwrap().unwrap().token.is_none());
    held.unregister().await.unwrap();
    let held = there.register_within("printer", NOTHING, Duration::from_secs(20)).await.unwrap();
    assert!(held.is_registered());
    b.leave().await;
    assert_eq!(held.ended().await, RegistrationEnd::Requested);
    until("a member that left holds nothing", async || here.list().await.unwrap().is_empty()).await;
}

/// Registers one name on both sides of a network partition, then reconnects them. Returns how each registration
/// ended.
async fn after_a_network_partition(
    on: impl Fn(&Gossip) -> Registry<SoftBackend>,
) -> (Registration<SoftBackend>, Registration<SoftBackend>, Registry<SoftBackend>, Vec<Gossip>) {
    let (a, b) = (member("a", &[]).await, member("b", &[]).await);
    // The higher name registers first.
    let of_b = on(&b).register("printer", [("side", "b")]).await.unwrap();
    let of_a = on(&a).register("printer", [("side", "a")]).await.unwrap();
    assert!(of_a.is_registered() && of_b.is_registered(), "each side holds the name, as soft names allow");
    let c = member("c", &[&a, &b]).await;
    let observer = on(&c);
    (of_a, of_b, observer, vec![a, b, c])
}

async fn settles(registry: &Registry<SoftBackend>, holder: Option<&str>) {
    until("all members see the holder", async || {
        let found = registry.whereis("printer").await.unwrap();
        found.as_ref().map(|view| view.holder.as_str()) == holder
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_network_partition_the_older_claim_wins() {
    let (of_a, of_b, observer, _members) = after_a_network_partition(Registry::soft).await;
    assert_eq!(of_a.ended().await, RegistrationEnd::Conflict { kept_by: Some("b".into()) });
    settles(&observer, Some("b")).await;
    assert!(of_b.is_registered());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_network_partition_the_lower_claim_wins() {
    let rule = |gossip: &Gossip| Registry::soft(gossip).conflict_policy(ConflictPolicy::KeepLower);
    let (of_a, of_b, observer, _members) = after_a_network_partition(rule).await;
    assert_eq!(of_b.ended().await, RegistrationEnd::Conflict { kept_by: Some("a".into()) });
    settles(&observer, Some("a")).await;
    assert!(of_a.is_registered());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_network_partition_both_stop_and_the_name_is_free() {
    let rule = |gossip: &Gossip| Registry::soft(gossip).conflict_policy(ConflictPolicy::StopBoth);
    let (of_a, of_b, observer, _members) = after_a_network_partition(rule).await;
    assert_eq!(of_a.ended().await, RegistrationEnd::Conflict { kept_by: None });
    assert_eq!(of_b.ended().await, RegistrationEnd::Conflict { kept_by: None });
    settles(&observer, None).await;
    let next = observer.register_within("printer", NOTHING, Duration::from_secs(20)).await.unwrap();
    assert!(next.is_registered());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_network_partition_a_user_rule_decides() {
    let rule = |gossip: &Gossip| {
        Registry::soft(gossip).conflict_rule(|all| all.iter().position(|view| view.metadata["side"] == "b"))
    };
    let (of_a, of_b, observer, _members) = after_a_network_partition(rule).await;
    assert_eq!(of_a.ended().await, RegistrationEnd::Conflict { kept_by: Some("b".into()) });
    settles(&observer, Some("b")).await;
    assert!(of_b.is_registered());
}

/// Regression: a panic in the user's conflict rule ended the task that keeps the name, and both members kept
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_rule_that_panics_selects_no_holder() {
    let rule = |gossip: &Gossip| Registry::soft(gossip).conflict_rule(|_| panic!("deliberate panic"));
    let (of_a, of_b, observer, _members) = after_a_network_partition(rule).await;
    assert_eq!(of_a.ended().await, RegistrationEnd::Conflict { kept_by: None });
    assert_eq!(of_b.ended().await, RegistrationEnd::Conflict { kept_by: None });
    settles(&observer, None).await;
}

fn working(gossip: &Gossip, log: &Log) -> tenure::cluster::SupervisorBuilder<SoftBackend> {
    ["a1", "b2", "c3", "d4", "e5", "f6"].iter().fold(Supervisor::soft(gossip), |builder, job| {
        let (log, node) = (log.clone(), gossip.name().to_owned());
        builder.singleton(*job, move |singleton| {
            let (log, node) = (log.clone(), node.clone());
            async move {
                let running = log.begin(&singleton, &node);
                singleton.stop_requested().await;
                singleton.set_handoff(node.repeat(8000)).unwrap();
                drop(running);
            }
        })
    })
}

fn placed(log: &Log, nodes: &[&str]) -> bool {
    let running = log.running();
    running.len() == 6
        && running.iter().all(|(job, at)| {
            let index = owner(job, nodes.iter().map(|node| (*node, 1)));
            at.len() == 1 && index == Some(at[0].as_str())
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn singletons_move_to_a_new_member_with_their_state_and_back_when_it_leaves_or_dies() {
    let log = Log::default();
    let a = member("a", &[]).await;
    let _on_a = working(&a, &log).start().await.unwrap();
    until("all singletons run on a", async || placed(&log, &["a"])).await;
    let b = member("b", &[&a]).await;
    all_see(2, &[&a, &b]).await;
    let on_b = working(&b, &log).start().await.unwrap();
    until("each member runs its share", async || placed(&log, &["a", "b"])).await;
    let came: Vec<_> = log.starts().into_iter().filter(|start| start.node == "b").collect();
    assert!(
        !came.is_empty() && came.iter().all(|start| start.state == Some("a".repeat(8000))),
        "{}",
        came.len()
    );
    let before = log.starts().len();
    on_b.leave().await;
    until("all singletons run on a again", async || placed(&log, &["a"])).await;
    let back = log.starts().split_off(before);
    assert_eq!(back.len(), came.len(), "only its own singletons moved");
    assert!(back.iter().all(|start| start.state == Some("b".repeat(8000))));
    assert_eq!(log.overlaps(), 0, "without a network partition");

    // Once more, without leaving: dropping the runtime acts as a crash.
    b.leave().await;
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (seed, run_log) = (a.clone(), log.clone());
    process.spawn(async move {
        let b = member("b", &[&seed]).await;
        let _on_b = working(&b, &run_log).start().await.unwrap();
        std::future::pending::<()>().await;
    });
    until("each member runs its share", async || placed(&log, &["a", "b"])).await;
    // A handed-over state is removed when its owner sees the next run; until then it would be used by another
    // run.
    until("the taken states are removed", async || a.entries("tenure/handoff/").is_empty()).await;
    let before = log.starts().len();
    process.shutdown_background();
    until("its singletons run on a", async || placed(&log, &["a"])).await;
    let restarted = log.starts().split_off(before);
    assert_eq!(restarted.len(), came.len());
    assert!(restarted.iter().all(|start| start.state.is_none()));
}

/// Regression: after a network partition two members ran each singleton under the same number. The one that had
/// to stop published its state, and when the other one died, the next run started at once with that stale
/// state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_the_run_that_loses_a_network_partition_is_discarded() {
    let log = Log::default();
    let a = member("a", &[]).await;
    let _on_a = working(&a, &log).start().await.unwrap();
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let logged = log.clone();
    process.spawn(async move {
        let b = member("b", &[]).await;
        let _on_b = working(&b, &logged).start().await.unwrap();
        let _ = sender.send(b);
        std::future::pending::<()>().await;
    });
    let b = receiver.await.unwrap();
    until("each side runs all singletons", async || {
        log.running().len() == 6 && log.running().values().all(|at| at.len() == 2)
    })
    .await;

    // The network partition heals: one member knows both sides.
    let c = member("c", &[&a, &b]).await;
    all_see(3, &[&a, &b, &c]).await;
    until("each singleton runs once, on its owner", async || placed(&log, &["a", "b"])).await;
    until("the stopped runs left no state", async || c.entries("tenure/handoff/").is_empty()).await;

    let before = log.starts().len();
    process.shutdown_background();
    until("its singletons run on a", async || placed(&log, &["a"])).await;
    let restarted = log.starts().split_off(before);
    assert!(!restarted.is_empty() && restarted.iter().all(|start| start.state.is_none()), "{restarted:?}");
}

/// A member may publish one mebibyte. A singleton whose run cannot be published does not start, and does not
/// block others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_singleton_starts_only_when_its_run_can_be_published() {
    let (a, log) = (member("a", &[]).await, Log::default());
    let mut full = 0;
    // Fill the space. The last small entry leaves room to publish the offer, but not the run.
    for length in [8000, 37] {
        while a.set(&format!("{full:05}"), &"x".repeat(length)).await.is_ok() {
            full += 1;
        }
    }
    let offering = Supervisor::soft(&a).singleton("s", |_| std::future::pending()).start().await;
    assert!(offering.is_err(), "there is no room for the offer");
    a.delete(&format!("{:05}", full - 1)).await.unwrap();
    let logged = log.clone();
    let supervisor = Supervisor::soft(&a)
        .singleton("s", move |singleton| {
            let running = logged.begin(&singleton, "a");
            async move {
                singleton.stop_requested().await;
                drop(running);
            }
        })
        .start()
        .await
        .unwrap();
    // It is due after the hold-down, and cannot be published.
    tokio::time::sleep(a.timing().hold_down() * 2).await;
    assert!(log.running().is_empty());
    a.delete("00000").await.unwrap();
    until("the singleton runs", async || log.running().len() == 1).await;
    supervisor.leave().await;
    assert_eq!(log.starts().len(), 1);
}

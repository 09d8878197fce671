//! Registered names and singletons on real stores and the system clock.

use std::time::Duration;

use tenure::Tenure;
use tenure::cluster::{Registry, RegistryError, Supervisor};
use tenure_core::rules::cluster::owner;

use crate::on_stores::on_real_stores;
use crate::support::*;

async fn process_at(url: &str, name: &str) -> Tenure {
    Tenure::builder().url(url).name(name).lease(20 * SECOND).open().await.expect("the store opens")
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not within half a minute: {what}");
}

async fn a_name_has_one_owner_and_moves(url: &str) {
    let (a, b) = (process_at(url, "a").await, process_at(url, "b").await);
    let (here, there) = (Registry::strict(&a), Registry::strict(&b));
    let held = here.register("printer", [("at", "a")]).await.unwrap();
    let refused = there.register("printer", [("at", "b")]).await;
    assert!(matches!(refused, Err(RegistryError::Taken { holder, .. }) if holder == "a"));
    held.update([("at", "a2")]).await.unwrap();
    assert_eq!(there.whereis("printer").await.unwrap().unwrap().metadata["at"], "a2");
    let waiting =
        tokio::spawn(async move { there.register_within("printer", [("at", "b")], 30 * SECOND).await });
    let token = held.token();
    held.unregister().await.unwrap();
    let held = waiting.await.unwrap().unwrap();
    assert!(held.token() > token && held.is_registered());
    b.close().await.unwrap();
    until("the name is free", async || here.whereis("printer").await.unwrap().is_none()).await;
    a.close().await.unwrap();
}

/// The larger state has the maximum size.
async fn a_singleton_moves_with_its_state(url: &str) {
    let (a, b) = (process_at(url, "a").await, process_at(url, "b").await);
    let log = Log::default();
    let on = |tenure: &Tenure| {
        let (log, node) = (log.clone(), tenure.name().to_owned());
        Supervisor::strict(tenure).singleton("job", move |singleton| {
            let (log, node) = (log.clone(), node.clone());
            async move {
                let _running = log.begin(&singleton, &node);
                singleton.stop_requested().await;
                singleton.set_handoff(node.repeat(8192)).unwrap();
            }
        })
    };
    let heavier = owner("job", [("a", 1), ("b", 1)]).unwrap();
    let (first, second) = if heavier == "a" { (&b, &a) } else { (&a, &b) };
    let _on_first = on(first).start().await.unwrap();
    until("the singleton runs", async || log.running().contains_key("job")).await;
    let on_second = on(second).start().await.unwrap();
    until("the singleton moved", async || log.running().get("job").is_some_and(|nodes| *nodes == [heavier]))
        .await;
    on_second.leave().await;
    let back = first.name().to_owned();
    until("the singleton moved back", async || {
        log.running().get("job").is_some_and(|nodes| *nodes == [back.as_str()])
    })
    .await;
    let states: Vec<_> = log.starts().into_iter().map(|start| start.state).collect();
    assert_eq!(states, [None, Some(first.name().repeat(8192)), Some(second.name().repeat(8192))]);
    assert_eq!(log.overlaps(), 0);
    a.close().await.unwrap();
    b.close().await.unwrap();
}

on_real_stores!(a_name_has_one_owner_and_moves, a_singleton_moves_with_its_state);

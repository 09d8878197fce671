//! A process in a network of its own, cut off from the store: what it had is over before anybody else has it, whichever way the cut goes.

use std::sync::Arc;
use std::time::Duration;

use tenure::Tenure;
use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::cluster::{Ended, Registered, Registry, RegistryError, Strict, Supervisor};
use tenure_testkit::rig::{Namespace, PgCluster};

use crate::island::*;
use crate::support::*;

const NODES: [&str; 2] = ["inside", "outside"];

const PATIENCE: Duration = Duration::from_secs(60);

/// What cuts a network off.
type Cut = fn(&Namespace);

/// The ways to be cut off.
const CUTS: [(&str, Cut); 2] = [
    ("one way", |namespace| namespace.cut_one_way().unwrap()),
    ("both ways", |namespace| namespace.cut_both_ways().unwrap()),
];

async fn process_at(url: String, name: &str) -> Tenure {
    Tenure::builder().url(url).name(name).lease(4 * SECOND).open().await.expect("the server answers")
}

async fn register(tenure: Tenure, patience: Duration) -> Result<Registered<Strict>, RegistryError> {
    Registry::strict(&tenure).register_within("printer", [("zone", "1")], patience).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_off_from_the_store_is_over_before_anybody_else_has_it() {
    if let Err(why) = Namespace::available() {
        eprintln!("left out: {why}");
        return;
    }
    let namespace = Arc::new(Namespace::new().unwrap());
    let host = namespace.host_address();
    let cluster = PgCluster::builder().listen_on(host).start().unwrap();
    let store = Postgres::connect_unchecked(PostgresOptions::new(cluster.url())).await.unwrap();
    store.migrate().await.unwrap();
    let (there, url) = (namespace.clone(), cluster.url_at(&host.to_string(), "postgres"));
    let inside = Island::new(move || there.enter().expect("a namespace"), move || process_at(url, NODES[0]));
    let outside = process_at(cluster.url(), NODES[1]).await;
    let log = Log::default();
    let on_inside = working(Supervisor::strict(&inside.brought), NODES[0], &log);
    let _on_inside = inside.run(on_inside.start()).await.unwrap();
    let _on_outside = working(Supervisor::strict(&outside), NODES[1], &log).start().await.unwrap();

    for (how, cut) in CUTS {
        until("each runs where it belongs", async || placed(&log.running(), &NODES)).await;
        let held = inside.run(register(inside.brought.clone(), PATIENCE)).await.unwrap();
        let next = tokio::spawn(register(outside.clone(), PATIENCE));
        cut(&namespace);
        let next = next.await.unwrap().unwrap();
        assert!(!held.is_registered(), "cut {how}: two have the name");
        assert!(next.token() > held.token());
        assert!(matches!(held.ended().await, Ended::Lost(_)), "cut {how}");
        let refused = inside.run(register(inside.brought.clone(), Duration::ZERO)).await;
        assert!(refused.is_err(), "cut {how}: without the store there is no name");
        until("all run outside", async || placed(&log.running(), &NODES[1..])).await;
        namespace.heal().unwrap();
        // If it was lost meanwhile it is free as well.
        let _ = next.unregister().await;
    }
    until("who comes back gets back what was its own", async || placed(&log.running(), &NODES)).await;
    assert_eq!(log.overlaps(), 0, "no singleton ever ran twice at once");
}

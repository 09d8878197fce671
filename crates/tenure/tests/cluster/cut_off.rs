//! A process in its own network namespace, disconnected from the store: its names and singletons end before
//! another process gets them, whichever direction is cut.

use std::sync::Arc;
use std::time::Duration;

use tenure::Tenure;
use tenure::cluster::{Registration, RegistrationEnd, Registry, RegistryError, StrictBackend, Supervisor};
use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::rig::{NetworkNamespace, PgCluster};

use crate::namespace_thread::*;
use crate::support::*;

const NODES: [&str; 2] = ["inside", "outside"];

const MAX_WAIT: Duration = Duration::from_secs(60);

/// A function that disconnects a network.
type Cut = fn(&NetworkNamespace);

/// The ways to disconnect.
const CUTS: [(&str, Cut); 2] = [
    ("one way", |namespace| namespace.cut_one_way().unwrap()),
    ("both ways", |namespace| namespace.cut_both_ways().unwrap()),
];

async fn process_at(url: String, name: &str) -> Tenure {
    Tenure::builder().url(url).name(name).lease(4 * SECOND).open().await.expect("the server responds")
}

async fn register(tenure: Tenure, max_wait: Duration) -> Result<Registration<StrictBackend>, RegistryError> {
    Registry::strict(&tenure).register_within("printer", [("zone", "1")], max_wait).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_singletons_of_a_disconnected_process_end_before_another_gets_them() {
    if let Err(why) = NetworkNamespace::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let namespace = Arc::new(NetworkNamespace::new().unwrap());
    let host = namespace.host_address();
    let cluster = PgCluster::builder().listen_on(host).start().unwrap();
    let store = PostgresStore::connect_unchecked(PostgresOptions::new(cluster.url())).await.unwrap();
    store.migrate().await.unwrap();
    let (there, url) = (namespace.clone(), cluster.url_at(&host.to_string(), "postgres"));
    let inside =
        NamespaceThread::new(move || there.enter().expect("a namespace"), move || process_at(url, NODES[0]));
    let outside = process_at(cluster.url(), NODES[1]).await;
    let log = Log::default();
    let on_inside = working(Supervisor::strict(&inside.value), NODES[0], &log);
    let _on_inside = inside.run(on_inside.start()).await.unwrap();
    let _on_outside = working(Supervisor::strict(&outside), NODES[1], &log).start().await.unwrap();

    for (how, cut) in CUTS {
        until("each singleton runs on its owner", async || placed(&log.running(), &NODES)).await;
        let held = inside.run(register(inside.value.clone(), MAX_WAIT)).await.unwrap();
        let next = tokio::spawn(register(outside.clone(), MAX_WAIT));
        cut(&namespace);
        let next = next.await.unwrap().unwrap();
        assert!(!held.is_registered(), "cut {how}: two processes hold the name");
        assert!(next.token() > held.token());
        assert!(matches!(held.ended().await, RegistrationEnd::Lost(_)), "cut {how}");
        let refused = inside.run(register(inside.value.clone(), Duration::ZERO)).await;
        assert!(refused.is_err(), "cut {how}: a name was registered without the store");
        until("all singletons run outside", async || placed(&log.running(), &NODES[1..])).await;
        namespace.heal().unwrap();
        // Ignore the result: if the registration was lost, the name is free as well.
        let _ = next.unregister().await;
    }
    until("the returning process gets back its singletons", async || placed(&log.running(), &NODES)).await;
    assert_eq!(log.overlaps(), 0, "no singleton ever ran twice at the same time");
}

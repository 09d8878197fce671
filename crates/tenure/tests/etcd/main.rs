//! etcd: real clusters, on their bad days.

#![cfg(feature = "etcd")]

mod backup;
mod crowd;
mod loss;
mod proxy;
mod secured;

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::StoreOptions;
use tenure::backend::etcd::Etcd;
use tenure::{Elector, Leadership, Tenure};
use tenure_testkit::conformance::Actor;

/// Short, so that a test can wait for it.
const LEASE: Duration = Duration::from_millis(1500);

async fn client(url: &str) -> Etcd {
    Etcd::connect(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await.unwrap()
}

async fn actor(url: &str, name: &str) -> Actor {
    Actor::open(Arc::new(client(url).await), name).await
}

/// A process that leads.
async fn leader(url: &str, name: &str) -> (Tenure, Elector, Leadership) {
    let tenure = Tenure::builder().url(url).name(name).lease(LEASE).open().await.unwrap();
    let elector = tenure.elector("e").start().await.unwrap();
    let leadership = elector.elected().await.unwrap();
    (tenure, elector, leadership)
}

//! Tests against real etcd clusters, with faults.

#![cfg(feature = "etcd")]

mod backup;
mod loss;
mod proxy;
mod read_cost;
mod secured;

use std::sync::Arc;
use std::time::Duration;

use tenure::store::StoreOptions;
use tenure::store::etcd::EtcdStore;
use tenure::{Elector, Leadership, Tenure};
use tenure_testkit::conformance::TestSession;

/// Short enough to wait for in a test, long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(3);

async fn client(url: &str) -> EtcdStore {
    EtcdStore::connect(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await.unwrap()
}

async fn actor(url: &str, name: &str) -> TestSession {
    TestSession::open(Arc::new(client(url).await), name).await
}

/// Start a process that leads. On a busy machine etcd may answer late at first.
async fn leader(url: &str, name: &str) -> (Tenure, Elector, Leadership) {
    let tenure = retry(async || Tenure::builder().url(url).name(name).lease(LEASE).open().await).await;
    let elector = retry(async || tenure.elector("e").start().await).await;
    let leadership = elector.elected().await.unwrap();
    (tenure, elector, leadership)
}

/// Retry until a call succeeds. Each attempt has a short limit, as in the election driver: etcd itself waits for
/// seconds for a lost leader.
async fn retry<T, E>(ask: impl AsyncFn() -> Result<T, E>) -> T {
    loop {
        match tokio::time::timeout(Duration::from_secs(1), ask()).await {
            Ok(Ok(answer)) => return answer,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

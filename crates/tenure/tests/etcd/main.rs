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

/// Short, so that a test can wait for it; long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(3);

async fn client(url: &str) -> Etcd {
    Etcd::connect(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await.unwrap()
}

async fn actor(url: &str, name: &str) -> Actor {
    Actor::open(Arc::new(client(url).await), name).await
}

/// A process that leads. On a busy machine etcd may be late at first.
async fn leader(url: &str, name: &str) -> (Tenure, Elector, Leadership) {
    let tenure = patiently(async || Tenure::builder().url(url).name(name).lease(LEASE).open().await).await;
    let elector = patiently(async || tenure.elector("e").start().await).await;
    let leadership = elector.elected().await.unwrap();
    (tenure, elector, leadership)
}

/// Asks until there is an answer. Not for long each time, as the machine does: etcd itself would wait for seconds for a leader that is gone.
async fn patiently<T, E>(ask: impl AsyncFn() -> Result<T, E>) -> T {
    loop {
        match tokio::time::timeout(Duration::from_secs(1), ask()).await {
            Ok(Ok(answer)) => return answer,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

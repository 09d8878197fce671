//! Tests against a simulated Kubernetes API server: interoperation with client-go, and faults.

#![cfg(feature = "k8s")]
#![allow(unreachable_pub)]

mod client_go;
mod competing;
mod faults;
mod leases;
mod read_cost;

use std::sync::Arc;

use serde_json::Value;
use tenure::port::Store;
use tenure::store::StoreOptions;
use tenure::store::kubernetes::KubernetesStore;
use tenure_testkit::conformance::TestSession;
use tenure_testkit::rig::KubeApi;

/// Namespace of all tests.
const NAMESPACE: &str = "prod";

fn api() -> Arc<KubeApi> {
    Arc::new(KubeApi::start().unwrap())
}

async fn client(api: &KubeApi) -> Arc<dyn Store> {
    let options = StoreOptions { url: api.url(NAMESPACE), ..StoreOptions::default() };
    Arc::new(KubernetesStore::connect(&options).await.unwrap())
}

async fn actor(api: &KubeApi, name: &str) -> TestSession {
    TestSession::open(client(api).await, name).await
}

fn lease(api: &KubeApi, name: &str) -> Value {
    api.lease(NAMESPACE, name).unwrap_or_else(|| panic!("the Lease {name} does not exist"))
}

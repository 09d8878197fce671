//! Kubernetes: one Lease with client-go, and every bad day of an API server.

#![cfg(feature = "k8s")]
#![allow(unreachable_pub)]

mod bad_days;
mod client_go;
mod competing;
mod leases;
mod looks;

use std::sync::Arc;

use serde_json::Value;
use tenure::backend::StoreOptions;
use tenure::backend::kubernetes::Kubernetes;
use tenure::port::Backend;
use tenure_testkit::conformance::Actor;
use tenure_testkit::rig::KubeApi;

/// Where everything happens.
const NAMESPACE: &str = "prod";

fn api() -> Arc<KubeApi> {
    Arc::new(KubeApi::start().unwrap())
}

async fn client(api: &KubeApi) -> Arc<dyn Backend> {
    let options = StoreOptions { url: api.url(NAMESPACE), ..StoreOptions::default() };
    Arc::new(Kubernetes::connect(&options).await.unwrap())
}

async fn actor(api: &KubeApi, name: &str) -> Actor {
    Actor::open(client(api).await, name).await
}

fn lease(api: &KubeApi, name: &str) -> Value {
    api.lease(NAMESPACE, name).unwrap_or_else(|| panic!("there is a Lease {name}"))
}

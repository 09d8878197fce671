//! Pools and requests through a server.

use async_trait::async_trait;
use http::Method;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_core::port::{
    ClaimAuthority, ClaimRefusal, NewResource, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestAction,
    PoolRequestId, PoolRequestView, PoolSettings, PoolStore, PoolView, StoreError,
};
use tenure_core::{Name, Token};

use super::HttpStore;
use super::client::{bare, get, part, send};
use super::tasks::within;

/// Maximum number of resources in one request.
const RESOURCES_MAX: usize = 1000;

#[derive(Deserialize)]
struct PoolList {
    pools: Vec<PoolView>,
}

#[derive(Serialize)]
struct CreatePoolRequest<'a> {
    #[serde(flatten)]
    request: &'a PoolRequest,
    /// False: only [`PoolStore::match_pool`] grants the request.
    match_now: bool,
}

#[derive(Deserialize)]
struct PoolMatchResponse {
    granted: Vec<PoolRequestView>,
    refusal: Option<ClaimRefusal>,
}

#[async_trait]
impl PoolStore for HttpStore {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        let path = match namespace {
            Some(namespace) => within("/v1/pools", namespace),
            None => "/v1/pools".into(),
        };
        self.client.call(&get(path)).await?.read().map(|list: PoolList| list.pools)
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        let response = self.client.call(&get(of(key, ""))).await?;
        if response.says("no-such-pool") { Ok(None) } else { response.read().map(Some) }
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        let response = self.client.call(&send(Method::PUT, of(key, ""), settings)).await?;
        response.read().map(|_: IgnoredAny| ())
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        for resources in resources.chunks(RESOURCES_MAX) {
            let call = send(Method::POST, of(key, "/resources"), &json!({ "resources": resources }));
            self.client.call(&call).await?.done()?;
        }
        Ok(())
    }

    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        let path = of(key, &format!("/resources/{}", part(name.as_str())));
        let response = self.client.call(&bare(Method::DELETE, path)).await?;
        // After a retry, an earlier attempt may have deleted it.
        if response.says("no-such-resource") {
            Ok(response.tries > 1)
        } else {
            response.done().map(|()| true)
        }
    }

    async fn create_pool_request(
        &self,
        key: &PoolKey,
        request: &PoolRequest,
    ) -> Result<PoolRequestView, StoreError> {
        let body = CreatePoolRequest { request, match_now: false };
        self.client.call(&send(Method::POST, of(key, "/requests"), &body)).await?.read()
    }

    async fn match_pool(
        &self,
        matching: &PoolMatchRequest,
    ) -> Result<Result<Vec<PoolRequestView>, ClaimRefusal>, StoreError> {
        let request = match (&matching.authority, matching.request) {
            // Through a server, only the servers themselves act as broker.
            (ClaimAuthority::Leader { .. }, _) => return Ok(Err(ClaimRefusal::NotLeader)),
            (_, None) => return Ok(Ok(Vec::new())),
            (_, Some(request)) => request,
        };
        let path = internal(&matching.pool, &format!("/requests/{request}/match"));
        let matched: PoolMatchResponse = self.client.call(&bare(Method::POST, path)).await?.read()?;
        Ok(matched.refusal.map_or(Ok(matched.granted), Err))
    }

    async fn pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
    ) -> Result<Option<PoolRequestView>, StoreError> {
        let response = self.client.call(&get(within(&format!("/v1/requests/{id}"), namespace))).await?;
        if response.says("no-such-request") { Ok(None) } else { response.read().map(Some) }
    }

    async fn update_pool_request(
        &self,
        namespace: &Name,
        id: PoolRequestId,
        owner: &str,
        token: Option<Token>,
        handle: PoolRequestAction,
    ) -> Result<bool, StoreError> {
        if token.is_none() && handle != PoolRequestAction::Release {
            // A waiting request has no claim to extend.
            return Ok(false);
        }
        let (word, body) = match handle {
            PoolRequestAction::Release => ("release", json!({ "owner": owner, "token": token })),
            PoolRequestAction::Heartbeat(ms) => {
                ("heartbeat", json!({ "owner": owner, "token": token, "claim_timeout_ms": ms }))
            }
        };
        let path = within(&format!("/v1/requests/{id}/{word}"), namespace);
        let response = self.client.call(&send(Method::POST, path, &body)).await?;
        let lost = ["claim-lost", "request-owned-by-other", "no-such-request"];
        if lost.iter().any(|code| response.says(code)) {
            return Ok(false);
        }
        response.read().map(|_: IgnoredAny| true)
    }
}

/// Internal path of a pool.
fn internal(key: &PoolKey, rest: &str) -> String {
    within(&format!("/internal/v1/pools/{}{rest}", part(key.name.as_str())), &key.namespace)
}

/// Public path of a pool.
fn of(key: &PoolKey, rest: &str) -> String {
    within(&format!("/v1/pools/{}{rest}", part(key.name.as_str())), &key.namespace)
}

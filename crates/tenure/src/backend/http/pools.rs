//! Pools and requests.

use async_trait::async_trait;
use http::Method;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_core::port::{
    Authority, ClaimRefusal, Handle, NewRequest, NewResource, PoolKey, PoolMatch, PoolSettings, PoolView,
    Pools, RequestId, RequestView, StoreError,
};
use tenure_core::{Name, Token};

use super::Http;
use super::caller::{bare, get, part, send};
use super::claims::within;

/// The most resources that are put into a pool at once.
const RESOURCES_MAX: usize = 1000;

#[derive(Deserialize)]
struct PoolList {
    pools: Vec<PoolView>,
}

#[derive(Serialize)]
struct Wish<'a> {
    #[serde(flatten)]
    request: &'a NewRequest,
    /// To be handed out by [`Pools::match_pool`] only.
    look: bool,
}

#[derive(Deserialize)]
struct Matched {
    granted: Vec<RequestView>,
    refused: Option<ClaimRefusal>,
}

#[async_trait]
impl Pools for Http {
    async fn pools(&self, namespace: Option<&Name>) -> Result<Vec<PoolView>, StoreError> {
        let path = match namespace {
            Some(namespace) => within("/v1/pools", namespace),
            None => "/v1/pools".into(),
        };
        self.caller.call(&get(path)).await?.read().map(|list: PoolList| list.pools)
    }

    async fn pool(&self, key: &PoolKey) -> Result<Option<PoolView>, StoreError> {
        let answer = self.caller.call(&get(of(key, ""))).await?;
        if answer.says("no-such-pool") { Ok(None) } else { answer.read().map(Some) }
    }

    async fn set_pool(&self, key: &PoolKey, settings: &PoolSettings) -> Result<(), StoreError> {
        let answer = self.caller.call(&send(Method::PUT, of(key, ""), settings)).await?;
        answer.read().map(|_: IgnoredAny| ())
    }

    async fn add_resources(&self, key: &PoolKey, resources: &[NewResource]) -> Result<(), StoreError> {
        for resources in resources.chunks(RESOURCES_MAX) {
            let call = send(Method::POST, of(key, "/resources"), &json!({ "resources": resources }));
            self.caller.call(&call).await?.done()?;
        }
        Ok(())
    }

    async fn remove_resource(&self, key: &PoolKey, name: &Name) -> Result<bool, StoreError> {
        let path = of(key, &format!("/resources/{}", part(name.as_str())));
        let answer = self.caller.call(&bare(Method::DELETE, path)).await?;
        // Of a second try it is known that it is gone, not since when.
        if answer.says("no-such-resource") { Ok(answer.tries > 1) } else { answer.done().map(|()| true) }
    }

    async fn request(&self, key: &PoolKey, request: &NewRequest) -> Result<RequestView, StoreError> {
        let wish = Wish { request, look: false };
        self.caller.call(&send(Method::POST, of(key, "/requests"), &wish)).await?.read()
    }

    async fn match_pool(
        &self,
        ask: &PoolMatch,
    ) -> Result<Result<Vec<RequestView>, ClaimRefusal>, StoreError> {
        let request = match (&ask.authority, ask.request) {
            // Nobody hands out through a server but the servers themselves.
            (Authority::Leader { .. }, _) => return Ok(Err(ClaimRefusal::NotLeader)),
            (_, None) => return Ok(Ok(Vec::new())),
            (_, Some(request)) => request,
        };
        let path = of(&ask.pool, &format!("/requests/{request}/match"));
        let matched: Matched = self.caller.call(&bare(Method::POST, path)).await?.read()?;
        Ok(matched.refused.map_or(Ok(matched.granted), Err))
    }

    async fn pool_request(&self, namespace: &Name, id: RequestId) -> Result<Option<RequestView>, StoreError> {
        let answer = self.caller.call(&get(within(&format!("/v1/requests/{id}"), namespace))).await?;
        if answer.says("no-such-request") { Ok(None) } else { answer.read().map(Some) }
    }

    async fn handle_request(
        &self,
        namespace: &Name,
        id: RequestId,
        owner: &str,
        token: Option<Token>,
        handle: Handle,
    ) -> Result<bool, StoreError> {
        if token.is_none() && handle != Handle::Release {
            // What still waits has nothing that could last longer.
            return Ok(false);
        }
        let (word, body) = match handle {
            Handle::Release => ("release", json!({ "owner": owner, "token": token })),
            Handle::Extend(ms) => ("extend", json!({ "owner": owner, "token": token, "hold_ms": ms })),
        };
        let path = within(&format!("/v1/requests/{id}/{word}"), namespace);
        let answer = self.caller.call(&send(Method::POST, path, &body)).await?;
        let lost = ["claim-lost", "not-your-request", "no-such-request"];
        if lost.iter().any(|code| answer.says(code)) {
            return Ok(false);
        }
        answer.read().map(|_: IgnoredAny| true)
    }
}

/// The path of a pool.
fn of(key: &PoolKey, rest: &str) -> String {
    within(&format!("/v1/pools/{}{rest}", part(key.name.as_str())), &key.namespace)
}

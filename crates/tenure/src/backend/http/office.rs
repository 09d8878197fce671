//! What a server keeps for itself, as far as it lets others look and change it.

use async_trait::async_trait;
use http::Method;
use tenure_core::Name;
use tenure_core::port::{Credential, Deed, Office, StoreError};

use super::Http;
use super::caller::{get, part, send};

#[async_trait]
impl Office for Http {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.caller.call(&get("/v1/credentials")).await?.read()
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let path = format!("/v1/credentials/{}", part(&credential.id));
        self.caller.call(&send(Method::PUT, path, credential)).await?.done()
    }

    /// A server records by itself what is done through it, under the name that it knows us by.
    async fn record(&self, _: &Deed) -> Result<(), StoreError> {
        Ok(())
    }

    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        let within = namespace.map(|name| format!("&namespace={}", part(name.as_str()))).unwrap_or_default();
        let before = before.map(|n| format!("&before={n}")).unwrap_or_default();
        self.caller.call(&get(format!("/v1/audit?limit={limit}{within}{before}"))).await?.read()
    }

    /// The servers keep their own house.
    async fn forget(&self, _: i64) -> Result<(), StoreError> {
        Ok(())
    }
}

//! What a server keeps for itself, as far as it lets others look and change it.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use tenure_core::Name;
use tenure_core::port::{Credential, Deed, Grant, Office, Proof, StoreError};

use super::Http;
use super::caller::{get, part, send};

/// How many deeds are asked for at once.
const PAGE: u32 = 500;

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<Shown>,
}

/// A credential as a server shows it: without what proves it.
#[derive(Deserialize)]
struct Shown {
    id: String,
    name: String,
    subject: Option<String>,
    grants: Vec<Grant>,
    created_at_ms: i64,
    created_by: String,
    expires_at_ms: Option<i64>,
    revoked_at_ms: Option<i64>,
}

#[derive(Deserialize)]
struct Deeds {
    deeds: Vec<Deed>,
    next: Option<i64>,
}

impl From<Shown> for Credential {
    fn from(shown: Shown) -> Credential {
        // A digest leaves no server, and none needs it back: what proves a known credential never changes.
        let token = || Proof::Token { digest: String::new() };
        Credential {
            proof: shown.subject.map_or_else(token, |subject| Proof::Certificate { subject }),
            id: shown.id,
            name: shown.name,
            grants: shown.grants,
            created_at_ms: shown.created_at_ms,
            created_by: shown.created_by,
            expires_at_ms: shown.expires_at_ms,
            revoked_at_ms: shown.revoked_at_ms,
        }
    }
}

#[async_trait]
impl Office for Http {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        let shown: Tokens = self.caller.call(&get("/v1/tokens")).await?.read()?;
        Ok(shown.tokens.into_iter().map(Credential::from).collect())
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let path = format!("/v1/tokens/{}", part(&credential.id));
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
        let (mut all, mut before) = (Vec::new(), before);
        let wanted = limit as usize;
        while all.len() < wanted {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(PAGE).min(PAGE);
            let from = before.map(|n| format!("&before={n}")).unwrap_or_default();
            let path = format!("/v1/audit?limit={limit}{within}{from}");
            let page: Deeds = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.deeds);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(all)
    }

    /// The servers keep their own house.
    async fn forget(&self, _: i64) -> Result<(), StoreError> {
        Ok(())
    }
}

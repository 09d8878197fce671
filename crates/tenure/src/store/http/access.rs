//! Credentials and audit log through a server.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use tenure_core::Name;
use tenure_core::port::{AccessStore, AuditEntry, Credential, CredentialVerifier, Grant, StoreError};

use super::HttpStore;
use super::client::{get, part, send};

/// Page size of audit entries.
const PAGE: u32 = 500;

#[derive(Deserialize)]
struct CredentialList {
    credentials: Vec<CredentialView>,
}

/// Credential without its verifier.
#[derive(Deserialize)]
struct CredentialView {
    id: String,
    name: String,
    certificate_subject: Option<String>,
    grants: Vec<Grant>,
    created_at_ms: i64,
    created_by: String,
    expires_at_ms: Option<i64>,
    revoked_at_ms: Option<i64>,
}

#[derive(Deserialize)]
struct AuditEntryList {
    entries: Vec<AuditEntry>,
    next_cursor: Option<i64>,
}

impl From<CredentialView> for Credential {
    fn from(shown: CredentialView) -> Credential {
        // Servers never send digests, and never need them back: the verifier of an existing credential does
        // not change.
        let token = || CredentialVerifier::AccessToken { digest: String::new() };
        Credential {
            verifier: shown.certificate_subject.map_or_else(token, |subject| {
                CredentialVerifier::Certificate { certificate_subject: subject }
            }),
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
impl AccessStore for HttpStore {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        let shown: CredentialList = self.client.call(&get("/v1/credentials")).await?.read()?;
        Ok(shown.credentials.into_iter().map(Credential::from).collect())
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let path = format!("/internal/v1/credentials/{}", part(&credential.id));
        self.client.call(&send(Method::PUT, path, credential)).await?.done()
    }

    /// No-op: the server records changes itself, under the name of the principal.
    async fn append_audit(&self, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }

    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let within = namespace.map(|name| format!("&namespace={}", part(name.as_str()))).unwrap_or_default();
        let (mut all, mut before) = (Vec::new(), before);
        let wanted = limit as usize;
        while all.len() < wanted {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(PAGE).min(PAGE);
            let from = before.map(|n| format!("&cursor={n}")).unwrap_or_default();
            let path = format!("/v1/audit?limit={limit}{within}{from}");
            let page: AuditEntryList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.entries);
            before = page.next_cursor;
            if before.is_none() {
                break;
            }
        }
        Ok(all)
    }

    /// No-op: the servers run maintenance themselves.
    async fn prune_access(&self, _: i64) -> Result<(), StoreError> {
        Ok(())
    }
}

//! Credentials and the audit log of the servers.

use async_trait::async_trait;
use tenure_core::Name;
use tenure_core::model::credentials::credential_conflict;
use tenure_core::port::{AccessStore, AuditEntry, Credential, CredentialVerifier, StoreError};

use super::message::Message;
use super::store::json;
use super::value::Value;
use super::{PostgresStore, from_json};

#[async_trait]
impl AccessStore for PostgresStore {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        let rows = self.call("credential_list", &[]).await?;
        rows.iter().map(|row| from_json(row, "credential")).collect()
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let (kind, verifier) = match &credential.verifier {
            CredentialVerifier::AccessToken { digest } => ("access_token", digest),
            CredentialVerifier::Certificate { certificate_subject: subject } => ("certificate", subject),
        };
        let values = [
            credential.id.as_str().into(),
            credential.name.as_str().into(),
            kind.into(),
            verifier.as_str().into(),
            json(&credential.grants)?,
            Value::Int(credential.created_at_ms),
            credential.created_by.as_str().into(),
            credential.expires_at_ms.map_or(Value::Null, Value::Int),
            credential.revoked_at_ms.map_or(Value::Null, Value::Int),
        ];
        let rows = self.call("credential_put", &values).await?;
        if rows.is_empty() { Err(credential_conflict(&credential.id)) } else { Ok(()) }
    }

    async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let values = [
            Value::Int(entry.recorded_at_ms),
            entry.principal.as_str().into(),
            entry.action.as_str().into(),
            entry.namespace.as_ref().map(Name::as_str).into(),
            entry.target.as_str().into(),
            entry.detail.as_str().into(),
            entry.request_id.as_str().into(),
        ];
        self.call("audit_append", &values).await.map(drop)
    }

    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let page = [Value::Int(before.unwrap_or(i64::MAX)), limit.into()];
        let rows = match namespace {
            Some(namespace) => {
                let [before, limit] = page;
                self.call("audit_list_in", &[before, limit, namespace.as_str().into()]).await?
            }
            None => self.call("audit_list", &page).await?,
        };
        rows.iter().map(|row| from_json(row, "entry")).collect()
    }

    async fn prune_access(&self, before_ms: i64) -> Result<(), StoreError> {
        let before = [Value::Int(before_ms)];
        let message =
            Message::new(&self.queries).then("credential_prune", &before)?.then("audit_prune", &before)?;
        self.shared.calls.run(message).await.map(drop)
    }
}

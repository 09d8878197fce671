//! What servers keep for themselves: credentials, and the audit.

use async_trait::async_trait;
use tenure_core::Name;
use tenure_core::cabinet::another_credential;
use tenure_core::port::{Credential, Deed, Office, Proof, StoreError};

use super::message::Message;
use super::store::json;
use super::value::Value;
use super::{Postgres, from_json};

#[async_trait]
impl Office for Postgres {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        let rows = self.call("credential_list", &[]).await?;
        rows.iter().map(|row| from_json(row, "credential")).collect()
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let (kind, proof) = match &credential.proof {
            Proof::Token { digest } => ("token", digest),
            Proof::Certificate { subject } => ("certificate", subject),
        };
        let values = [
            credential.id.as_str().into(),
            credential.name.as_str().into(),
            kind.into(),
            proof.as_str().into(),
            json(&credential.grants)?,
            Value::Int(credential.created_at_ms),
            credential.created_by.as_str().into(),
            credential.expires_at_ms.map_or(Value::Null, Value::Int),
            credential.revoked_at_ms.map_or(Value::Null, Value::Int),
        ];
        let rows = self.call("credential_put", &values).await?;
        if rows.is_empty() { Err(another_credential(&credential.id)) } else { Ok(()) }
    }

    async fn record(&self, deed: &Deed) -> Result<(), StoreError> {
        let values = [
            Value::Int(deed.at_ms),
            deed.principal.as_str().into(),
            deed.action.as_str().into(),
            deed.namespace.as_ref().map(Name::as_str).into(),
            deed.target.as_str().into(),
            deed.detail.as_str().into(),
            deed.request_id.as_str().into(),
        ];
        self.call("deed_record", &values).await.map(drop)
    }

    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        let page = [Value::Int(before.unwrap_or(i64::MAX)), limit.into()];
        let rows = match namespace {
            Some(namespace) => {
                let [before, limit] = page;
                self.call("deed_list_in", &[before, limit, namespace.as_str().into()]).await?
            }
            None => self.call("deed_list", &page).await?,
        };
        rows.iter().map(|row| from_json(row, "deed")).collect()
    }

    async fn forget(&self, before_ms: i64) -> Result<(), StoreError> {
        let before = [Value::Int(before_ms)];
        let message =
            Message::new(&self.queries).then("credential_forget", &before)?.then("deed_forget", &before)?;
        self.shared.calls.run(message).await.map(drop)
    }
}

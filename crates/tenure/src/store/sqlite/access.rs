//! Credentials and the audit log.

use async_trait::async_trait;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::Name;
use tenure_core::model::credentials::credential_conflict;
use tenure_core::port::{AccessStore, AuditEntry, Credential, CredentialVerifier, StoreError};

use super::SqliteStore;
use super::connection::{Explain, decode_error, query};
use super::election_admin::json;

impl SqliteStore {
    async fn list_credentials(&self) -> sqlx::Result<Vec<Credential>> {
        let select = query(self.queries.get("credential_list"));
        select.fetch_all(&self.inner.pools.reads).await?.iter().map(credential_of).collect()
    }

    /// Insert or update a credential. `false` if the id belongs to another credential.
    async fn store_credential(&self, credential: &Credential) -> sqlx::Result<bool> {
        let (kind, verifier) = match &credential.verifier {
            CredentialVerifier::AccessToken { digest } => ("access_token", digest),
            CredentialVerifier::Certificate { certificate_subject: subject } => ("certificate", subject),
        };
        let grants =
            serde_json::to_string(&credential.grants).map_err(|error| decode_error("grants", error))?;
        let mut tx = self.begin_write().await?;
        let put = query(self.queries.get("credential_put"))
            .bind(&credential.id)
            .bind(&credential.name)
            .bind(kind)
            .bind(verifier)
            .bind(grants)
            .bind(credential.created_at_ms)
            .bind(&credential.created_by)
            .bind(credential.expires_at_ms)
            .bind(credential.revoked_at_ms);
        let stored = tx.transaction.execute(put).await?.rows_affected() > 0;
        tx.commit().await?;
        Ok(stored)
    }

    async fn append_entry(&self, entry: &AuditEntry) -> sqlx::Result<()> {
        let mut tx = self.begin_write().await?;
        let record = query(self.queries.get("audit_append"))
            .bind(entry.recorded_at_ms)
            .bind(&entry.principal)
            .bind(&entry.action)
            .bind(entry.namespace.as_ref().map(Name::as_str))
            .bind(&entry.target)
            .bind(&entry.detail)
            .bind(&entry.request_id);
        tx.transaction.execute(record).await?;
        tx.commit().await
    }

    async fn list_audit(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> sqlx::Result<Vec<AuditEntry>> {
        let name = if namespace.is_some() { "audit_list_in" } else { "audit_list" };
        let mut select = query(self.queries.get(name)).bind(before.unwrap_or(i64::MAX)).bind(limit);
        if let Some(namespace) = namespace {
            select = select.bind(namespace.as_str());
        }
        select.fetch_all(&self.inner.pools.reads).await?.iter().map(audit_entry_of).collect()
    }

    async fn prune_before(&self, before_ms: i64) -> sqlx::Result<()> {
        let mut tx = self.begin_write().await?;
        for name in ["credential_prune", "audit_prune"] {
            tx.transaction.execute(query(self.queries.get(name)).bind(before_ms)).await?;
        }
        tx.commit().await
    }
}

#[async_trait]
impl AccessStore for SqliteStore {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.check_file()?;
        self.list_credentials().await.explain(self.path(), "reading credentials")
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.check_file()?;
        let stored = self.store_credential(credential).await.explain(self.path(), "storing a credential")?;
        if stored { Ok(()) } else { Err(credential_conflict(&credential.id)) }
    }

    async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        self.check_file()?;
        self.append_entry(entry).await.explain(self.path(), "writing to the audit log")
    }

    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        self.check_file()?;
        self.list_audit(namespace, before, limit).await.explain(self.path(), "reading the audit log")
    }

    async fn prune_access(&self, before_ms: i64) -> Result<(), StoreError> {
        self.check_file()?;
        self.prune_before(before_ms).await.explain(self.path(), "pruning credentials and the audit log")
    }
}

fn credential_of(row: &SqliteRow) -> sqlx::Result<Credential> {
    let verifier = row.try_get("verifier")?;
    Ok(Credential {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        verifier: match row.try_get("kind")? {
            "access_token" => CredentialVerifier::AccessToken { digest: verifier },
            _ => CredentialVerifier::Certificate { certificate_subject: verifier },
        },
        grants: json(row, "grants")?,
        created_at_ms: row.try_get("created_at_ms")?,
        created_by: row.try_get("created_by")?,
        expires_at_ms: row.try_get("expires_at_ms")?,
        revoked_at_ms: row.try_get("revoked_at_ms")?,
    })
}

fn audit_entry_of(row: &SqliteRow) -> sqlx::Result<AuditEntry> {
    let namespace: Option<&str> = row.try_get("namespace")?;
    Ok(AuditEntry {
        seq: row.try_get("seq")?,
        recorded_at_ms: row.try_get("recorded_at_ms")?,
        principal: row.try_get("principal")?,
        action: row.try_get("action")?,
        namespace: namespace.map(str::parse).transpose().map_err(|error| decode_error("namespace", error))?,
        target: row.try_get("target")?,
        detail: row.try_get("detail")?,
        request_id: row.try_get("request_id")?,
    })
}

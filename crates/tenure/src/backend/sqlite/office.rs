//! What servers keep for themselves: credentials, and the audit.

use async_trait::async_trait;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::Name;
use tenure_core::cabinet::another_credential;
use tenure_core::port::{Credential, Deed, Office, Proof, StoreError};

use super::Sqlite;
use super::connection::{Explain, broken, query};
use super::directory::json;

impl Sqlite {
    async fn all_credentials(&self) -> sqlx::Result<Vec<Credential>> {
        let select = query(self.queries.get("credential_list"));
        select.fetch_all(&self.inner.pools.reads).await?.iter().map(credential_of).collect()
    }

    /// `false` if there is another of this id.
    async fn keep_credential(&self, credential: &Credential) -> sqlx::Result<bool> {
        let (kind, proof) = match &credential.proof {
            Proof::Token { digest } => ("token", digest),
            Proof::Certificate { subject } => ("certificate", subject),
        };
        let grants = serde_json::to_string(&credential.grants).map_err(|error| broken("grants", error))?;
        let mut change = self.change().await?;
        let put = query(self.queries.get("credential_put"))
            .bind(&credential.id)
            .bind(&credential.name)
            .bind(kind)
            .bind(proof)
            .bind(grants)
            .bind(credential.created_at_ms)
            .bind(&credential.created_by)
            .bind(credential.expires_at_ms)
            .bind(credential.revoked_at_ms);
        let kept = change.transaction.execute(put).await?.rows_affected() > 0;
        change.commit().await?;
        Ok(kept)
    }

    async fn record_deed(&self, deed: &Deed) -> sqlx::Result<()> {
        let mut change = self.change().await?;
        let record = query(self.queries.get("deed_record"))
            .bind(deed.at_ms)
            .bind(&deed.principal)
            .bind(&deed.action)
            .bind(deed.namespace.as_ref().map(Name::as_str))
            .bind(&deed.target)
            .bind(&deed.detail)
            .bind(&deed.request_id);
        change.transaction.execute(record).await?;
        change.commit().await
    }

    async fn some_deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> sqlx::Result<Vec<Deed>> {
        let name = if namespace.is_some() { "deed_list_in" } else { "deed_list" };
        let mut select = query(self.queries.get(name)).bind(before.unwrap_or(i64::MAX)).bind(limit);
        if let Some(namespace) = namespace {
            select = select.bind(namespace.as_str());
        }
        select.fetch_all(&self.inner.pools.reads).await?.iter().map(deed_of).collect()
    }

    async fn forget_before(&self, before_ms: i64) -> sqlx::Result<()> {
        let mut change = self.change().await?;
        for name in ["credential_forget", "deed_forget"] {
            change.transaction.execute(query(self.queries.get(name)).bind(before_ms)).await?;
        }
        change.commit().await
    }
}

#[async_trait]
impl Office for Sqlite {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.in_place()?;
        self.all_credentials().await.explain(self.path(), "reading credentials")
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.in_place()?;
        let kept = self.keep_credential(credential).await.explain(self.path(), "keeping a credential")?;
        if kept { Ok(()) } else { Err(another_credential(&credential.id)) }
    }

    async fn record(&self, deed: &Deed) -> Result<(), StoreError> {
        self.in_place()?;
        self.record_deed(deed).await.explain(self.path(), "writing to the audit")
    }

    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        self.in_place()?;
        self.some_deeds(namespace, before, limit).await.explain(self.path(), "reading the audit")
    }

    async fn forget(&self, before_ms: i64) -> Result<(), StoreError> {
        self.in_place()?;
        self.forget_before(before_ms).await.explain(self.path(), "forgetting what is long past")
    }
}

fn credential_of(row: &SqliteRow) -> sqlx::Result<Credential> {
    let proof = row.try_get("proof")?;
    Ok(Credential {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        proof: match row.try_get("kind")? {
            "token" => Proof::Token { digest: proof },
            _ => Proof::Certificate { subject: proof },
        },
        grants: json(row, "grants")?,
        created_at_ms: row.try_get("created_at")?,
        created_by: row.try_get("created_by")?,
        expires_at_ms: row.try_get("expires_at")?,
        revoked_at_ms: row.try_get("revoked_at")?,
    })
}

fn deed_of(row: &SqliteRow) -> sqlx::Result<Deed> {
    let namespace: Option<&str> = row.try_get("namespace")?;
    Ok(Deed {
        n: row.try_get("n")?,
        at_ms: row.try_get("at")?,
        principal: row.try_get("principal")?,
        action: row.try_get("action")?,
        namespace: namespace.map(str::parse).transpose().map_err(|error| broken("namespace", error))?,
        target: row.try_get("target")?,
        detail: row.try_get("detail")?,
        request_id: row.try_get("request_id")?,
    })
}

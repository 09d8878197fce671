//! Reference implementation of [`AccessStore`](crate::port::AccessStore), without I/O. Every store must behave like
//! it.

use crate::Name;
use crate::port::{AuditEntry, Credential, ErrorKind, StoreError};

/// Credentials and the audit log.
///
/// ```
/// use tenure_core::model::Credentials;
/// use tenure_core::port::AuditEntry;
///
/// let mut credentials = Credentials::default();
/// let entry = AuditEntry {
///     seq: 0, recorded_at_ms: 1, principal: "ops".into(), action: "election.pause".into(), namespace: None,
///     target: "nightly".into(), detail: String::new(), request_id: String::new(),
/// };
/// credentials.append_audit(&entry);
/// credentials.append_audit(&entry);
/// assert_eq!(credentials.audit_entries(None, None, 1)[0].seq, 2);
/// ```
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Credentials {
    credentials: Vec<Credential>,
    entries: Vec<AuditEntry>,
    recorded: i64,
}

impl Credentials {
    /// See [`AccessStore::credentials`](crate::port::AccessStore::credentials).
    pub fn credentials(&self) -> Vec<Credential> {
        self.credentials.iter().rev().cloned().collect()
    }

    /// See [`AccessStore::put_credential`](crate::port::AccessStore::put_credential).
    pub fn put_credential(&mut self, credential: &Credential) -> Result<(), StoreError> {
        let Some(known) = self.credentials.iter_mut().find(|known| known.id == credential.id) else {
            self.credentials.push(credential.clone());
            return Ok(());
        };
        if (&known.name, &known.verifier, &known.grants)
            != (&credential.name, &credential.verifier, &credential.grants)
        {
            return Err(credential_conflict(&credential.id));
        }
        let earlier = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        known.expires_at_ms = earlier(known.expires_at_ms, credential.expires_at_ms);
        known.revoked_at_ms = earlier(known.revoked_at_ms, credential.revoked_at_ms);
        Ok(())
    }

    /// See [`AccessStore::append_audit`](crate::port::AccessStore::append_audit).
    pub fn append_audit(&mut self, entry: &AuditEntry) {
        self.recorded += 1;
        self.entries.push(AuditEntry { seq: self.recorded, ..entry.clone() });
    }

    /// See [`AccessStore::audit_entries`](crate::port::AccessStore::audit_entries).
    pub fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Vec<AuditEntry> {
        let matches_filter = |entry: &&AuditEntry| {
            namespace.is_none_or(|namespace| entry.namespace.as_ref() == Some(namespace))
                && before.is_none_or(|before| entry.seq < before)
        };
        self.entries.iter().rev().filter(matches_filter).take(limit as usize).cloned().collect()
    }

    /// See [`AccessStore::prune_access`](crate::port::AccessStore::prune_access).
    pub fn prune_access(&mut self, before_ms: i64) {
        let past = |at: Option<i64>| at.is_some_and(|at| at < before_ms);
        self.entries.retain(|entry| entry.recorded_at_ms >= before_ms);
        self.credentials.retain(|it| !past(it.expires_at_ms) && !past(it.revoked_at_ms));
    }
}

/// The error for a credential that differs from the stored one with the same id.
pub fn credential_conflict(id: &str) -> StoreError {
    let message = format!(
        "credential {id} exists with another name, verifier or grants, which cannot be changed; create a new \
         credential and revoke this one"
    );
    StoreError::new(ErrorKind::Request, message)
}

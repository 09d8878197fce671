//! What an [`Office`](crate::port::Office) keeps, as a pure value: the reference that every store is held to, as
//! [`Book`](crate::book::Book) is for elections.

use crate::Name;
use crate::port::{Credential, Deed, StoreError, Trouble};

/// Credentials, and the audit.
///
/// ```
/// use tenure_core::cabinet::Cabinet;
/// use tenure_core::port::Deed;
///
/// let mut cabinet = Cabinet::default();
/// let deed = Deed {
///     n: 0, at_ms: 1, principal: "ops".into(), action: "pause".into(), namespace: None,
///     target: "nightly".into(), detail: String::new(), request_id: String::new(),
/// };
/// cabinet.record(&deed);
/// cabinet.record(&deed);
/// assert_eq!(cabinet.deeds(None, None, 1)[0].n, 2);
/// ```
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Cabinet {
    credentials: Vec<Credential>,
    deeds: Vec<Deed>,
    recorded: i64,
}

impl Cabinet {
    /// See [`Office::credentials`](crate::port::Office::credentials).
    pub fn credentials(&self) -> Vec<Credential> {
        self.credentials.iter().rev().cloned().collect()
    }

    /// See [`Office::put_credential`](crate::port::Office::put_credential).
    pub fn put_credential(&mut self, credential: &Credential) -> Result<(), StoreError> {
        let Some(known) = self.credentials.iter_mut().find(|known| known.id == credential.id) else {
            self.credentials.push(credential.clone());
            return Ok(());
        };
        if (&known.name, &known.proof, &known.grants)
            != (&credential.name, &credential.proof, &credential.grants)
        {
            return Err(another_credential(&credential.id));
        }
        let earlier = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        known.expires_at_ms = earlier(known.expires_at_ms, credential.expires_at_ms);
        known.revoked_at_ms = earlier(known.revoked_at_ms, credential.revoked_at_ms);
        Ok(())
    }

    /// See [`Office::record`](crate::port::Office::record).
    pub fn record(&mut self, deed: &Deed) {
        self.recorded += 1;
        self.deeds.push(Deed { n: self.recorded, ..deed.clone() });
    }

    /// See [`Office::deeds`](crate::port::Office::deeds).
    pub fn deeds(&self, namespace: Option<&Name>, before: Option<i64>, limit: u32) -> Vec<Deed> {
        let wanted = |deed: &&Deed| {
            namespace.is_none_or(|namespace| deed.namespace.as_ref() == Some(namespace))
                && before.is_none_or(|before| deed.n < before)
        };
        self.deeds.iter().rev().filter(wanted).take(limit as usize).cloned().collect()
    }

    /// See [`Office::forget`](crate::port::Office::forget).
    pub fn forget(&mut self, before_ms: i64) {
        let past = |at: Option<i64>| at.is_some_and(|at| at < before_ms);
        self.deeds.retain(|deed| deed.at_ms >= before_ms);
        self.credentials.retain(|it| !past(it.expires_at_ms) && !past(it.revoked_at_ms));
    }
}

/// The error for a credential that is not the one that is kept under its id.
pub fn another_credential(id: &str) -> StoreError {
    let message = format!(
        "there is another credential {id}; its name, proof and grants never change. Make a new one, and revoke this one"
    );
    StoreError::new(Trouble::Request, message)
}

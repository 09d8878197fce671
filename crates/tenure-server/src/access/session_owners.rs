//! Owners of sessions. The owner of a session never changes, so the cache is always valid.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use tenure::SessionId;
use tenure::port::Store;

use super::Principal;
use crate::problem::Problem;

/// Maximum number of cached owners; beyond it the cache is cleared.
const KEPT: usize = 65_536;

/// Cached owners of sessions.
#[derive(Debug, Default)]
pub(crate) struct SessionOwners {
    known: Mutex<HashMap<SessionId, Arc<str>>>,
}

impl SessionOwners {
    /// Check that the principal owns the session. Without access control every local client passes.
    pub(super) async fn check(
        &self,
        store: &dyn Store,
        session: &SessionId,
        principal: &Principal,
        open: bool,
    ) -> Result<(), Problem> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(session).cloned();
        let owner = match known {
            Some(owner) => owner,
            None => self.read(store, session).await?,
        };
        if owner == principal.name || open {
            return Ok(());
        }
        let detail = format!("session {} does not belong to {}", session.short(), principal.name);
        Err(Problem::new(StatusCode::FORBIDDEN, "session-owned-by-other", detail)
            .remedy("open your own session"))
    }

    async fn read(&self, store: &dyn Store, session: &SessionId) -> Result<Arc<str>, Problem> {
        let found = store.sessions(Some(std::slice::from_ref(session))).await?;
        let Some(view) = found.into_iter().find(|view| view.id == *session) else {
            let detail = format!("session {} does not exist", session.short());
            return Err(Problem::new(StatusCode::GONE, "session-ended", detail)
                .field("session")
                .remedy("open a new session; all leases of the old one are lost"));
        };
        let Some(owner) = view.owner else {
            let detail = format!("session {} was not opened through a server", session.short());
            return Err(Problem::new(StatusCode::FORBIDDEN, "session-owned-by-other", detail)
                .remedy("use sessions that were opened through a server"));
        };
        let owner: Arc<str> = owner.into();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(session.clone(), owner.clone());
        Ok(owner)
    }
}

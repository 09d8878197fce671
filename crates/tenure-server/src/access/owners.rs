//! Whose session it is. An owner never changes, so what was once read stays true.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use tenure::SessionId;
use tenure::port::Backend;

use super::Principal;
use crate::problem::Problem;

/// How many owners are kept; then it begins anew.
const KEPT: usize = 65_536;

/// The owners of sessions.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    known: Mutex<HashMap<SessionId, Arc<str>>>,
}

impl Owners {
    /// Lets the owner of a session through; with access off, whoever is on this machine.
    pub(super) async fn check(
        &self,
        store: &dyn Backend,
        session: &SessionId,
        principal: &Principal,
        open: bool,
    ) -> Result<(), Problem> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(session).cloned();
        let owner = match known {
            Some(owner) => owner,
            None => self.ask(store, session).await?,
        };
        if owner == principal.name || open {
            return Ok(());
        }
        let detail = format!("session {} belongs to somebody else than {}", session.short(), principal.name);
        Err(Problem::new(StatusCode::FORBIDDEN, "not-your-session", detail)
            .remedy("open a session of your own"))
    }

    async fn ask(&self, store: &dyn Backend, session: &SessionId) -> Result<Arc<str>, Problem> {
        let found = store.sessions(Some(std::slice::from_ref(session))).await?;
        let Some(view) = found.into_iter().find(|view| view.id == *session) else {
            let detail = format!("there is no session {}", session.short());
            return Err(Problem::new(StatusCode::GONE, "session-gone", detail)
                .field("session")
                .remedy("open a new one; what it held is lost"));
        };
        let Some(owner) = view.owner else {
            let detail = format!("session {} has the store in its own hands", session.short());
            return Err(Problem::new(StatusCode::FORBIDDEN, "not-your-session", detail)
                .remedy("only sessions that were opened through a server are used through one"));
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

//! Administrative operations on elections through a server.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use tenure_core::port::{
    ElectionAdmin, ElectionView, Finding, Pause, RaftMemberAction, RaftStatus, SessionView, StoreError,
    StoreGuarantees, Term,
};
use tenure_core::{ElectionKey, Name, SessionId};

use super::HttpStore;
use super::client::{get, part, send};
use super::elections::{internal, of};

/// Page size of elections.
const PAGE: u32 = 1000;
/// Maximum number of terms; stores keep no more.
const TERMS_MAX: u32 = 100;

#[derive(Deserialize)]
struct ChangeResponse {
    changed: bool,
}

#[derive(Deserialize)]
struct StoreClock {
    seconds: Option<f64>,
}

#[derive(Deserialize)]
struct ElectionList {
    elections: Vec<ElectionView>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct TermList {
    terms: Vec<Term>,
}

#[derive(Deserialize)]
struct DoctorResponse {
    findings: Option<Vec<Finding>>,
}

/// Guarantees of a Tenure server.
pub const GUARANTEES: StoreGuarantees = StoreGuarantees {
    backend: "a Tenure server",
    at_most_one: "as its own store",
    netsplit: "as its own store; a client that cannot reach a server stops in time",
    after_crash: "after a lease; the crash of a server has no effect while another one responds",
};

#[async_trait]
impl ElectionAdmin for HttpStore {
    fn guarantees(&self) -> StoreGuarantees {
        GUARANTEES
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        let within = namespace.map(|name| format!("&namespace={}", part(name.as_str()))).unwrap_or_default();
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/elections?consistent=true&limit={PAGE}{within}{after}");
            let page: ElectionList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.elections);
            match page.next_cursor {
                Some(next) => after = format!("&cursor={}", part(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        let response = self.client.call(&get(of(key, "") + "&consistent=true")).await?;
        if response.code().as_deref() == Some("no-such-election") {
            Ok(None)
        } else {
            response.read().map(Some)
        }
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let path = format!("{}&consistent=true&limit={}", of(key, "/terms"), limit.min(TERMS_MAX));
        let response = self.client.call(&get(path)).await?;
        let none = response.code().as_deref() == Some("no-such-election");
        if none { Ok(Vec::new()) } else { response.read().map(|history: TermList| history.terms) }
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let mut call = send(Method::PUT, internal(key, "/paused"), &json!({ "paused": pause }));
        // No retry: after a lost response the second attempt would report `changed: false`.
        call.again = false;
        self.client.call(&call).await?.read().map(|response: ChangeResponse| response.changed)
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        let ids = |ids: &[SessionId]| ids.iter().map(|id| part(id.as_str())).collect::<Vec<_>>().join(",");
        let query = which.map(|which| format!("?id={}", ids(which))).unwrap_or_default();
        self.client.call(&get(format!("/internal/v1/sessions{query}"))).await?.read()
    }

    async fn raft_status(&self) -> Result<Option<RaftStatus>, StoreError> {
        let response = self.client.call(&get("/v1/raft")).await?;
        if response.code().as_deref() == Some("not-a-raft-store") {
            Ok(None)
        } else {
            response.read().map(Some)
        }
    }

    async fn change_raft_members(&self, action: &RaftMemberAction) -> Result<(), StoreError> {
        let (method, path, body) = match action {
            RaftMemberAction::Add { node_id, address } => {
                (Method::PUT, format!("/v1/raft/members/{node_id}"), json!({ "address": address }))
            }
            RaftMemberAction::Remove { node_id } => {
                (Method::DELETE, format!("/v1/raft/members/{node_id}"), json!({}))
            }
            RaftMemberAction::Transfer { node_id } => {
                (Method::POST, "/v1/raft/transfer".into(), json!({ "to": node_id }))
            }
        };
        let mut call = send(method, path, &body);
        // No retry: the leader may have changed, and a second transfer would move the leadership again.
        call.again = false;
        self.client.call(&call).await?.read().map(|RaftStatus { .. }| ())
    }

    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        self.client
            .call(&get("/internal/v1/store-clock"))
            .await?
            .read()
            .map(|clock: StoreClock| clock.seconds)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        // Without `admin` in `*` the server returns no findings.
        let response = self.client.call(&get("/v1/store")).await?;
        response.read().map(|examined: DoctorResponse| examined.findings.unwrap_or_default())
    }
}

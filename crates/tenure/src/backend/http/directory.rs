//! The path of people.

use async_trait::async_trait;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use tenure_core::port::{
    Directory, ElectionView, Finding, MemberOrder, Membership, Pause, Promises, SessionView, StoreError, Term,
};
use tenure_core::{ElectionKey, Name, SessionId};

use super::Http;
use super::caller::{get, part, send};
use super::store::of;

/// How many elections are asked for at once.
const PAGE: u32 = 1000;
/// How many terms there can be: stores keep no more.
const TERMS_MAX: u32 = 100;

#[derive(Deserialize)]
struct Changed {
    changed: bool,
}

#[derive(Deserialize)]
struct Clock {
    seconds: Option<f64>,
}

#[derive(Deserialize)]
struct Page {
    elections: Vec<ElectionView>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct History {
    terms: Vec<Term>,
}

#[derive(Deserialize)]
struct Examined {
    findings: Option<Vec<Finding>>,
}

/// What a Tenure server promises to those who ask it.
pub const PROMISES: Promises = Promises {
    backend: "a Tenure server",
    at_most_one: "as its own store",
    netsplit: "as its own store; a client that reaches no server stops in time",
    after_crash: "after a lease; a server's crash costs nothing while another server answers",
};

#[async_trait]
impl Directory for Http {
    fn promises(&self) -> Promises {
        PROMISES
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        let within = namespace.map(|name| format!("&namespace={}", part(name.as_str()))).unwrap_or_default();
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/elections?consistent=true&limit={PAGE}{within}{after}");
            let page: Page = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.elections);
            match page.next {
                Some(next) => after = format!("&after={}", part(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        let answer = self.caller.call(&get(of(key, "") + "&consistent=true")).await?;
        if answer.code().as_deref() == Some("no-such-election") { Ok(None) } else { answer.read().map(Some) }
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let path = format!("{}&consistent=true&limit={}", of(key, "/history"), limit.min(TERMS_MAX));
        let answer = self.caller.call(&get(path)).await?;
        let none = answer.code().as_deref() == Some("no-such-election");
        if none { Ok(Vec::new()) } else { answer.read().map(|history: History| history.terms) }
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let mut call = send(Method::PUT, of(key, "/paused"), &json!({ "paused": pause }));
        // Whoever paused it with a try whose answer was lost would be told that it was paused already.
        call.again = false;
        self.caller.call(&call).await?.read().map(|answer: Changed| answer.changed)
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        let ids = |ids: &[SessionId]| ids.iter().map(|id| part(id.as_str())).collect::<Vec<_>>().join(",");
        let query = which.map(|which| format!("?id={}", ids(which))).unwrap_or_default();
        self.caller.call(&get(format!("/v1/sessions{query}"))).await?.read()
    }

    async fn membership(&self) -> Result<Option<Membership>, StoreError> {
        let answer = self.caller.call(&get("/v1/raft")).await?;
        if answer.code().as_deref() == Some("no-members") { Ok(None) } else { answer.read().map(Some) }
    }

    async fn order_member(&self, order: &MemberOrder) -> Result<(), StoreError> {
        let (method, path, body) = match order {
            MemberOrder::Admit { node, place } => {
                (Method::PUT, format!("/v1/raft/members/{node}"), json!({ "place": place }))
            }
            MemberOrder::Dismiss { node } => (Method::DELETE, format!("/v1/raft/members/{node}"), json!({})),
            MemberOrder::Transfer { node } => {
                (Method::POST, "/v1/raft/transfer".into(), json!({ "to": node }))
            }
        };
        let mut call = send(method, path, &body);
        // Who leads may be another by now, and to say it twice would move it twice.
        call.again = false;
        self.caller.call(&call).await?.read().map(|Membership { .. }| ())
    }

    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        self.caller.call(&get("/v1/store/clock")).await?.read().map(|clock: Clock| clock.seconds)
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        // Whoever may lead somewhere need not know how the whole store is set up, and is told nothing.
        let answer = self.caller.call(&get("/v1/store")).await?;
        answer.read().map(|examined: Examined| examined.findings.unwrap_or_default())
    }
}

//! One call of etcd's, to whichever member answers.
//!
//! Every call may be sent again to another member when nobody knows whether it happened: reads are, and what writes compares the
//! revisions that it was worked out from, so that of two at most one does anything.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tenure_core::port::{StoreError, Trouble};

use super::address::{Address, User, user};
use super::message::{LeaseAnswer, Op, Problem, Range, Status, Txn, TxnAnswer};
use super::records::FLOOR;
use crate::backend::ServerAccess;
use crate::backend::wire::{Base, Call, Endpoint, Reply, Ring, rotated, tls};

/// The members of a cluster.
pub(super) struct Gateway {
    ring: Ring,
    user: Option<User>,
    proof: Mutex<Option<HeaderValue>>,
}

/// Codes of gRPC, as the gateway passes them on.
mod code {
    pub(super) const DENIED: u32 = 7;
    pub(super) const EXHAUSTED: u32 = 8;
    pub(super) const UNAVAILABLE: u32 = 14;
    pub(super) const UNAUTHENTICATED: u32 = 16;
}

impl Gateway {
    pub(super) fn new(address: &Address, access: &ServerAccess) -> Result<Gateway, StoreError> {
        let user = user(access.user.as_deref())?;
        let open = address.members.iter().find(|base| base.is_open_to_others());
        if let (Some(base), Some(_)) = (open, &user) {
            let message = format!(
                "a password is not sent to {} in the open, where others on the way can read it; use etcds://",
                base.place()
            );
            return Err(StoreError::new(Trouble::Address, message));
        }
        let needs_tls = address.members.iter().any(|base| matches!(base, Base::Tcp { tls: true, .. }));
        let tls = tls::config(access, needs_tls)?;
        let members = rotated(address.members.clone()).into_iter();
        let ring = Ring::new(members.map(|base| Arc::new(Endpoint::new(base, tls.clone()))).collect());
        Ok(Gateway { ring, user, proof: Mutex::default() })
    }

    /// Makes sure that a member is there which answers, and lets us read: a transaction that does nothing it lets everybody do.
    pub(super) async fn meet(&self) -> Result<(), StoreError> {
        let look = Txn { success: vec![Op::Range(Range::one(FLOOR))], ..Txn::default() };
        self.txn(&look).await.map(drop)
    }

    pub(super) async fn txn(&self, txn: &Txn) -> Result<TxnAnswer, StoreError> {
        self.call("/v3/kv/txn", txn).await
    }

    /// A lease of etcd's own, of so many seconds.
    pub(super) async fn grant(&self, seconds: u64) -> Result<i64, StoreError> {
        let answer: LeaseAnswer =
            self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() })).await?;
        Ok(answer.id)
    }

    /// Keeps a lease for as long again.
    pub(super) async fn keep(&self, lease: i64) -> Result<(), StoreError> {
        let _: serde_json::Value =
            self.call("/v3/lease/keepalive", &json!({ "ID": lease.to_string() })).await?;
        Ok(())
    }

    /// Ends a lease, and with it all keys that hang on it.
    pub(super) async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let _: serde_json::Value = self.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() })).await?;
        Ok(())
    }

    /// What each member says of itself, or why it says nothing.
    pub(super) async fn statuses(&self) -> Vec<(String, Result<Status, StoreError>)> {
        let call = call("/v3/maintenance/status", &json!({}));
        let mut told = Vec::new();
        for member in self.ring.in_order() {
            let status = match self.send(&member, &call).await {
                Ok(reply) => read(reply, &member),
                Err(error) => Err(error),
            };
            told.push((member.base.place(), status));
        }
        told
    }

    /// What happens to keys from now on, a line each.
    pub(super) async fn watch(&self, ask: &impl Serialize) -> Result<Incoming, StoreError> {
        let call = call("/v3/watch", ask);
        let mut last = StoreError::new(Trouble::Address, "no member was named");
        for member in self.ring.in_order() {
            let mut watch = self.ring.watch(&member);
            match member.stream(&call, self.proof()).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    watch.answered();
                    return Ok(response.into_body());
                }
                Ok(response) => {
                    if response.status() == StatusCode::UNAUTHORIZED {
                        self.log_in(&member).await?;
                    }
                    last = StoreError::new(
                        Trouble::Unavailable,
                        format!("{} does not let us watch: {}", member.base.place(), response.status()),
                    );
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, StoreError> {
        let call = call(path, body);
        let mut last = StoreError::new(Trouble::Address, "no member was named");
        for member in self.ring.in_order() {
            // A call that is dropped before its answer is a failure too.
            let mut watch = self.ring.watch(&member);
            match self.send(&member, &call).await.and_then(|reply| read(reply, &member)) {
                Ok(answer) => {
                    watch.answered();
                    return Ok(answer);
                }
                // Another member may see it otherwise: this one is away, or cut off from the others.
                Err(error) if may_pass(&error) => last = error,
                Err(error) => {
                    watch.answered();
                    return Err(error);
                }
            }
        }
        Err(last)
    }

    async fn send(&self, member: &Endpoint, call: &Call) -> Result<Reply, StoreError> {
        if self.user.is_some() && self.proof().is_none() {
            self.log_in(member).await?;
        }
        let reply = member.send(call, self.proof()).await.map_err(|miss| miss.into_error())?;
        if self.user.is_some() && wants_log_in(&problem(&reply)) {
            // It was for a while, or until users were changed, and no more.
            self.log_in(member).await?;
            return member.send(call, self.proof()).await.map_err(|miss| miss.into_error());
        }
        Ok(reply)
    }

    fn proof(&self) -> Option<HeaderValue> {
        self.proof.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn log_in(&self, member: &Endpoint) -> Result<(), StoreError> {
        #[derive(serde::Deserialize)]
        struct Token {
            token: String,
        }
        let Some(user) = &self.user else { return Ok(()) };
        let call = call("/v3/auth/authenticate", &json!({ "name": user.name, "password": user.password }));
        let reply = member.send(&call, None).await.map_err(|miss| miss.into_error())?;
        let token: Token = read(reply, member)?;
        let mut proof = HeaderValue::from_str(&token.token)
            .map_err(|_| StoreError::new(Trouble::Denied, "etcd gave a token that can not be sent"))?;
        proof.set_sensitive(true);
        *self.proof.lock().unwrap_or_else(PoisonError::into_inner) = Some(proof);
        Ok(())
    }
}

fn call(path: &str, body: &impl Serialize) -> Call {
    // What is said is plain; writing it can not fail.
    let body = Some(serde_json::to_vec(body).unwrap_or_default());
    Call { method: Method::POST, path: path.into(), body, again: true }
}

fn wants_log_in(problem: &Problem) -> bool {
    problem.code == code::UNAUTHENTICATED || problem.message().contains("revision of auth store is old")
}

fn may_pass(error: &StoreError) -> bool {
    matches!(error.kind, Trouble::Unreachable | Trouble::Timeout | Trouble::Unavailable)
}

fn problem(reply: &Reply) -> Problem {
    if reply.status.is_success() {
        return Problem::default();
    }
    // Not everything that it says is of the gateway's form.
    serde_json::from_slice(&reply.body).unwrap_or_else(|_| Problem::plain(&reply.body))
}

fn read<T: DeserializeOwned>(reply: Reply, member: &Endpoint) -> Result<T, StoreError> {
    let place = member.base.place();
    if !reply.status.is_success() {
        return Err(trouble(&problem(&reply), reply.status, &place));
    }
    serde_json::from_slice(&reply.body).map_err(|error| {
        let message = format!(
            "what answers at {place} is no etcd that tenure understands: {error}; etcd 3.4 and later are"
        );
        StoreError::new(Trouble::Unfit, message)
    })
}

fn trouble(problem: &Problem, status: StatusCode, place: &str) -> StoreError {
    let said = match problem.message() {
        "" => status.to_string(),
        said => said.to_owned(),
    };
    let (kind, remedy) = match problem.code {
        code::DENIED => (Trouble::Denied, "; grant the role of this user readwrite on the prefix /tenure/"),
        code::UNAUTHENTICATED => (Trouble::Denied, "; set $TENURE_ETCD_USER to NAME:PASSWORD"),
        code::EXHAUSTED => {
            (Trouble::Unavailable, "; if its space is used up: compact, defragment, disarm the alarm")
        }
        code::UNAVAILABLE => (Trouble::Unavailable, ""),
        // What it says when authentication is on and we have said nothing.
        _ if said.contains("user name is empty") => {
            (Trouble::Denied, "; set $TENURE_ETCD_USER to NAME:PASSWORD")
        }
        // It ran out between a read and a write: what hung on it is gone, and looking again will tell.
        _ if said.contains("requested lease not found") => (Trouble::Unavailable, ""),
        _ if said.contains("CommonName of client") => (
            Trouble::Denied,
            "; where etcd has users, its gateway wants a client certificate without a common name",
        ),
        _ if said.contains("authentication failed") => (Trouble::Denied, "; check $TENURE_ETCD_USER"),
        _ if status.is_server_error() => (Trouble::Unavailable, ""),
        _ if status == StatusCode::NOT_FOUND => {
            (Trouble::Unfit, "; is this etcd 3.4 or later, and its gateway not switched off?")
        }
        _ => (Trouble::Other, ""),
    };
    StoreError::new(kind, format!("etcd at {place} refuses: {said}{remedy}"))
}

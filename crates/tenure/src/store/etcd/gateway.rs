//! Calls to the JSON gateway of etcd, on any member that answers.
//!
//! A call whose outcome is unknown may be repeated on another member. Reads are repeatable. A write compares the
//! revisions that it was computed from, so at most one of two attempts takes effect.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Method, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tenure_core::port::{ErrorKind, StoreError};

use super::address::{Address, User, user};
use super::message::{LeaseAnswer, Op, Problem, Range, Status, Txn, TxnAnswer};
use super::records::MIN_TOKEN;
use crate::store::ClientAuth;
use crate::store::http_client::{Endpoint, HttpReply, HttpRequest, ServerAddress, ServerList, rotated, tls};

/// Connections to the members of a cluster.
pub(super) struct Gateway {
    ring: ServerList,
    user: Option<User>,
    auth_header: Mutex<Option<HeaderValue>>,
}

/// gRPC status codes as the gateway reports them.
mod code {
    pub(super) const DENIED: u32 = 7;
    pub(super) const EXHAUSTED: u32 = 8;
    pub(super) const UNAVAILABLE: u32 = 14;
    pub(super) const UNAUTHENTICATED: u32 = 16;
}

impl Gateway {
    pub(super) fn new(address: &Address, access: &ClientAuth) -> Result<Gateway, StoreError> {
        let user = user(access.user.as_deref())?;
        let open = address.members.iter().find(|base| base.is_open_to_others());
        if let (Some(base), Some(_)) = (open, &user) {
            let message =
                format!("cannot send a password to {} without encryption; use etcds://", base.place());
            return Err(StoreError::new(ErrorKind::Address, message));
        }
        let needs_tls =
            address.members.iter().any(|base| matches!(base, ServerAddress::Tcp { tls: true, .. }));
        let tls = tls::config(access, needs_tls)?;
        let members = rotated(address.members.clone()).into_iter();
        let ring = ServerList::new(members.map(|base| Arc::new(Endpoint::new(base, tls.clone()))).collect());
        Ok(Gateway { ring, user, auth_header: Mutex::default() })
    }

    /// Check that a member answers and permits reads. A transaction without operations would not check the permission.
    pub(super) async fn check_access(&self) -> Result<(), StoreError> {
        let read = Txn { success: vec![Op::Range(Range::one(MIN_TOKEN))], ..Txn::default() };
        self.txn(&read).await.map(drop)
    }

    pub(super) async fn txn(&self, txn: &Txn) -> Result<TxnAnswer, StoreError> {
        self.call("/v3/kv/txn", txn).await
    }

    /// Grant an etcd lease with the given TTL in seconds.
    pub(super) async fn grant(&self, seconds: u64) -> Result<i64, StoreError> {
        let answer: LeaseAnswer =
            self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() })).await?;
        Ok(answer.id)
    }

    /// Keep an etcd lease alive.
    pub(super) async fn keep(&self, lease: i64) -> Result<(), StoreError> {
        let _: serde_json::Value =
            self.call("/v3/lease/keepalive", &json!({ "ID": lease.to_string() })).await?;
        Ok(())
    }

    /// Revoke an etcd lease; etcd deletes all keys attached to it.
    pub(super) async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let _: serde_json::Value = self.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() })).await?;
        Ok(())
    }

    /// Return the status of each member, or the reason why it does not answer.
    pub(super) async fn statuses(&self) -> Vec<(String, Result<Status, StoreError>)> {
        let call = call("/v3/maintenance/status", &json!({}));
        let mut statuses = Vec::new();
        for member in self.ring.in_order() {
            let status = match self.send(&member, &call).await {
                Ok(reply) => read(reply, &member),
                Err(error) => Err(error),
            };
            statuses.push((member.base.place(), status));
        }
        statuses
    }

    /// Watch keys from now on; the response body has one JSON message per line.
    pub(super) async fn watch(&self, request: &impl Serialize) -> Result<Incoming, StoreError> {
        let call = call("/v3/watch", request);
        let mut last = StoreError::new(ErrorKind::Address, "the etcd URL lists no member");
        for member in self.ring.in_order() {
            let mut watch = self.ring.watch(&member);
            match member.stream(&call, self.auth_header()).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    watch.answered();
                    return Ok(response.into_body());
                }
                Ok(response) => {
                    if response.status() == StatusCode::UNAUTHORIZED {
                        self.login(&member).await?;
                    }
                    last = StoreError::new(
                        ErrorKind::Unavailable,
                        format!("etcd at {} rejects the watch: {}", member.base.place(), response.status()),
                    );
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, StoreError> {
        let call = call(path, body);
        let mut last = StoreError::new(ErrorKind::Address, "the etcd URL lists no member");
        for member in self.ring.in_order() {
            // A call that is dropped before its reply counts as a failure.
            let mut watch = self.ring.watch(&member);
            match self.send(&member, &call).await.and_then(|reply| read(reply, &member)) {
                Ok(answer) => {
                    watch.answered();
                    return Ok(answer);
                }
                // The member is down or disconnected from the others; another member may succeed.
                Err(error) if is_transient(&error) => last = error,
                Err(error) => {
                    watch.answered();
                    return Err(error);
                }
            }
        }
        Err(last)
    }

    async fn send(&self, member: &Endpoint, call: &HttpRequest) -> Result<HttpReply, StoreError> {
        if self.user.is_some() && self.auth_header().is_none() {
            self.login(member).await?;
        }
        let reply = member.send(call, self.auth_header()).await.map_err(|miss| miss.into_error())?;
        if self.user.is_some() && needs_login(&problem(&reply)) {
            // The authentication token has expired, or the users were changed.
            self.login(member).await?;
            return member.send(call, self.auth_header()).await.map_err(|miss| miss.into_error());
        }
        Ok(reply)
    }

    fn auth_header(&self) -> Option<HeaderValue> {
        self.auth_header.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn login(&self, member: &Endpoint) -> Result<(), StoreError> {
        #[derive(serde::Deserialize)]
        struct EtcdAuthToken {
            token: String,
        }
        let Some(user) = &self.user else { return Ok(()) };
        let call = call("/v3/auth/authenticate", &json!({ "name": user.name, "password": user.password }));
        let reply = member.send(&call, None).await.map_err(|miss| miss.into_error())?;
        let token: EtcdAuthToken = read(reply, member)?;
        let mut auth_header = HeaderValue::from_str(&token.token).map_err(|_| {
            StoreError::new(
                ErrorKind::Denied,
                "etcd returned an authentication token with invalid characters",
            )
        })?;
        auth_header.set_sensitive(true);
        *self.auth_header.lock().unwrap_or_else(PoisonError::into_inner) = Some(auth_header);
        Ok(())
    }
}

fn call(path: &str, body: &impl Serialize) -> HttpRequest {
    // The messages are plain data; serialization cannot fail.
    let body = Some(serde_json::to_vec(body).unwrap_or_default());
    HttpRequest { method: Method::POST, path: path.into(), body, again: true }
}

fn needs_login(problem: &Problem) -> bool {
    problem.code == code::UNAUTHENTICATED || problem.message().contains("revision of auth store is old")
}

fn is_transient(error: &StoreError) -> bool {
    matches!(error.kind, ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Unavailable)
}

fn problem(reply: &HttpReply) -> Problem {
    if reply.status.is_success() {
        return Problem::default();
    }
    // Not every error response has the form of the gateway.
    serde_json::from_slice(&reply.body).unwrap_or_else(|_| Problem::plain(&reply.body))
}

fn read<T: DeserializeOwned>(reply: HttpReply, member: &Endpoint) -> Result<T, StoreError> {
    let address = member.base.place();
    if !reply.status.is_success() {
        return Err(store_error(&problem(&reply), reply.status, &address));
    }
    serde_json::from_slice(&reply.body).map_err(|error| {
        let message = format!(
            "cannot decode the response of etcd at {address}: {error}; Tenure requires etcd 3.4 or later"
        );
        StoreError::new(ErrorKind::Misconfigured, message)
    })
}

fn store_error(problem: &Problem, status: StatusCode, address: &str) -> StoreError {
    let reason = match problem.message() {
        "" => status.to_string(),
        reason => reason.to_owned(),
    };
    let (kind, remedy) = match problem.code {
        code::DENIED => (ErrorKind::Denied, "; grant the role of this user readwrite on the prefix /tenure/"),
        code::UNAUTHENTICATED => (ErrorKind::Denied, "; set $TENURE_ETCD_USER to NAME:PASSWORD"),
        code::EXHAUSTED => (
            ErrorKind::Unavailable,
            "; if its storage quota is exceeded: compact, defragment, and disarm the alarm",
        ),
        code::UNAVAILABLE => (ErrorKind::Unavailable, ""),
        // Reported when authentication is enabled and the request had none.
        _ if reason.contains("user name is empty") => {
            (ErrorKind::Denied, "; set $TENURE_ETCD_USER to NAME:PASSWORD")
        }
        // The lease expired between a read and a write. Its keys are deleted; the next read shows that.
        _ if reason.contains("requested lease not found") => (ErrorKind::Unavailable, ""),
        _ if reason.contains("CommonName of client") => (
            ErrorKind::Denied,
            "; with etcd users enabled, the gateway requires a client certificate without a common name",
        ),
        _ if reason.contains("authentication failed") => (ErrorKind::Denied, "; check $TENURE_ETCD_USER"),
        _ if status.is_server_error() => (ErrorKind::Unavailable, ""),
        _ if status == StatusCode::NOT_FOUND => {
            (ErrorKind::Misconfigured, "; check that this is etcd 3.4 or later with its gateway enabled")
        }
        _ => (ErrorKind::Other, ""),
    };
    StoreError::new(kind, format!("etcd at {address} rejected the request: {reason}{remedy}"))
}

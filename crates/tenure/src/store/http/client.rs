//! Client of the servers on one store, and their discovery.

use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use tenure_core::port::{ErrorKind, StoreError};

use super::PROTOCOL;
use super::access_token::AccessTokenSource;
use super::address::Address;
use super::response::HttpResponse;
use crate::store::ClientAuth;
use crate::store::http_client::{Endpoint, HttpRequest, NoReply, ServerAddress, ServerList, rotated, tls};

/// Maximum number of known servers.
const SERVERS_MAX: usize = 32;

/// Client of all known servers.
pub(super) struct ServerClient {
    /// Configured servers, then discovered ones.
    servers: ServerList,
    given: Vec<ServerAddress>,
    access_token: AccessTokenSource,
    tls: ClientConfig,
}

/// Handshake response.
#[derive(Debug, Deserialize)]
struct HandshakeResponse {
    version: String,
    protocol: u32,
}

/// Servers on one store.
#[derive(Debug, Deserialize)]
struct Replicas {
    replicas: Vec<Replica>,
}

#[derive(Debug, Deserialize)]
struct Replica {
    address: String,
    online: bool,
}

impl ServerClient {
    pub(super) fn new(address: &Address, access: &ClientAuth) -> Result<ServerClient, StoreError> {
        let access_token = AccessTokenSource::find(access)?;
        let open = address.0.iter().find(|base| base.is_open_to_others());
        if let (Some(base), Some(_)) = (open, access_token.header()) {
            let message =
                format!("refusing to send an access token to {} without TLS; use https://", base.place());
            return Err(StoreError::new(ErrorKind::Address, message));
        }
        let needs_tls = address.0.iter().any(|base| matches!(base, ServerAddress::Tcp { tls: true, .. }));
        let tls = tls::config(access, needs_tls)?;
        let given = rotated(address.0.clone());
        let servers = given.iter().map(|base| Arc::new(Endpoint::new(base.clone(), tls.clone())));
        Ok(ServerClient { servers: ServerList::new(servers.collect()), given, access_token, tls })
    }

    /// Verify that a server with a compatible protocol responds, and discover the others.
    pub(super) async fn handshake_servers(&self) -> Result<(), StoreError> {
        let (response, endpoint) = self.request(&get("/internal/v1/handshake")).await?;
        let handshake: HandshakeResponse = response.read()?;
        let place = endpoint.base.place();
        if handshake.protocol != PROTOCOL {
            let older = if handshake.protocol < PROTOCOL { "the server" } else { "this program" };
            let message = format!(
                "the server at {place} is tenure {} with protocol version {}, this program is tenure {} with protocol version \
                {PROTOCOL}; upgrade {older}",
                handshake.version,
                handshake.protocol,
                env!("CARGO_PKG_VERSION")
            );
            return Err(StoreError::new(ErrorKind::Misconfigured, message));
        }
        self.discover_servers().await;
        Ok(())
    }

    /// Discover the other servers. Errors are ignored: the configured servers are known.
    pub(super) async fn discover_servers(&self) {
        let Ok((response, endpoint)) = self.request(&get("/v1/replicas")).await else { return };
        let Ok(reported) = response.read::<Replicas>() else { return };
        let live = reported.replicas.into_iter().filter(|replica| replica.online);
        self.learn(&endpoint.base, &live.map(|replica| replica.address).collect::<Vec<_>>());
    }

    /// Add the servers that another server reported.
    fn learn(&self, from: &ServerAddress, reported: &[String]) {
        let mut bases = self.given.clone();
        for base in
            reported.iter().filter_map(|url| url.parse::<Address>().ok()).flat_map(|address| address.0)
        {
            let safe = self.access_token.header().is_none() || !base.is_open_to_others();
            if bases.len() < SERVERS_MAX && !bases.contains(&base) && from.may_lead_to(&base) && safe {
                bases.push(base);
            }
        }
        self.servers.replace(bases, |base| Endpoint::new(base, self.tls.clone()));
    }

    /// Send a request to the servers in order until one responds.
    pub(super) async fn call(&self, call: &HttpRequest) -> Result<HttpResponse, StoreError> {
        self.request(call).await.map(|(response, _)| response)
    }

    async fn request(&self, call: &HttpRequest) -> Result<(HttpResponse, Arc<Endpoint>), StoreError> {
        let mut last = Err(StoreError::new(ErrorKind::Address, "no server is configured"));
        for (tried, server) in self.in_order().into_iter().enumerate() {
            // A call dropped before its response counts as a failure too.
            let mut guard = self.servers.watch(&server);
            let mut outcome = server.send(call, self.access_token.header()).await;
            if matches!(&outcome, Ok(reply) if reply.status == StatusCode::UNAUTHORIZED)
                && self.access_token.reload()
            {
                outcome = server.send(call, self.access_token.header()).await;
            }
            match outcome {
                Ok(reply) => {
                    let response = HttpResponse::new(reply, server.base.place(), tried + 1);
                    if !response.is_transient() {
                        guard.answered();
                        return Ok((response, server.clone()));
                    }
                    last = Ok((response, server.clone()));
                    if !call.again {
                        break;
                    }
                }
                Err(NoReply::Unknown(error)) if !call.again => return Err(error),
                // Prefer the response of another server over the missing one of this server.
                Err(miss) => last = last.or(Err(miss.into_error())),
            }
        }
        last
    }

    /// Servers, best first.
    pub(super) fn in_order(&self) -> Vec<Arc<Endpoint>> {
        self.servers.in_order()
    }

    /// Record that a server did not respond.
    pub(super) fn failed(&self, server: &Endpoint) {
        self.servers.failed(server);
    }

    /// Value of the `Authorization` header.
    pub(super) fn access_token(&self) -> Option<HeaderValue> {
        self.access_token.header()
    }

    /// Read the access token again; whether it changed.
    pub(super) fn reload_access_token(&self) -> bool {
        self.access_token.reload()
    }
}

/// GET request.
pub(super) fn get(path: impl Into<String>) -> HttpRequest {
    HttpRequest { method: Method::GET, path: path.into(), body: None, again: true }
}

/// Request with a JSON body.
pub(super) fn send(method: Method, path: String, body: &impl Serialize) -> HttpRequest {
    // Serializing the types of the port cannot fail.
    HttpRequest { method, path, body: Some(serde_json::to_vec(body).unwrap_or_default()), again: true }
}

/// Request without a body.
pub(super) fn bare(method: Method, path: String) -> HttpRequest {
    HttpRequest { method, path, body: None, again: true }
}

/// Characters that need no percent-encoding in a path or query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encode a part of a path or query.
pub(super) fn part(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

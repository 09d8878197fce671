//! The servers that are asked, and who tells of whom.

use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use tenure_core::port::{StoreError, Trouble};

use super::PROTOCOL;
use super::address::Address;
use super::answer::Answer;
use super::proof::Proof;
use crate::backend::ServerAccess;
use crate::backend::wire::{Base, Call, Endpoint, Miss, Ring, rotated, tls};

/// The most servers that are remembered.
const SERVERS_MAX: usize = 32;

/// All servers that we know of.
pub(super) struct Caller {
    /// Those that we were given, then those that they told us of.
    ring: Ring,
    given: Vec<Base>,
    proof: Proof,
    tls: ClientConfig,
}

/// What a server says of itself.
#[derive(Debug, Deserialize)]
struct Hello {
    version: String,
    protocol: u32,
}

/// The servers on one store.
#[derive(Debug, Deserialize)]
struct Replicas {
    replicas: Vec<Replica>,
}

#[derive(Debug, Deserialize)]
struct Replica {
    address: String,
    live: bool,
}

impl Caller {
    pub(super) fn new(address: &Address, access: &ServerAccess) -> Result<Caller, StoreError> {
        let proof = Proof::find(access)?;
        let open = address.0.iter().find(|base| base.is_open_to_others());
        if let (Some(base), Some(_)) = (open, proof.header()) {
            let message = format!(
                "a token is not sent to {} in the open, where others on the way can read it; use https://",
                base.place()
            );
            return Err(StoreError::new(Trouble::Address, message));
        }
        let needs_tls = address.0.iter().any(|base| matches!(base, Base::Tcp { tls: true, .. }));
        let tls = tls::config(access, needs_tls)?;
        let given = rotated(address.0.clone());
        let servers = given.iter().map(|base| Arc::new(Endpoint::new(base.clone(), tls.clone())));
        Ok(Caller { ring: Ring::new(servers.collect()), given, proof, tls })
    }

    /// Makes sure that a server is there which we understand, and learns of the others.
    pub(super) async fn meet(&self) -> Result<(), StoreError> {
        let (answer, endpoint) = self.ask(&get("/v1/protocol")).await?;
        let hello: Hello = answer.read()?;
        let place = endpoint.base.place();
        if hello.protocol != PROTOCOL {
            let older = if hello.protocol < PROTOCOL { "the server" } else { "this program" };
            let message = format!(
                "the server at {place} is tenure {} and speaks version {} of the protocol, this program is tenure {} and \
                 speaks version {PROTOCOL}; upgrade {older}",
                hello.version,
                hello.protocol,
                env!("CARGO_PKG_VERSION")
            );
            return Err(StoreError::new(Trouble::Unfit, message));
        }
        self.look_around().await;
        Ok(())
    }

    /// Learns who else may be asked. That nobody tells is no trouble: those that were given are known.
    pub(super) async fn look_around(&self) {
        let Ok((answer, endpoint)) = self.ask(&get("/v1/replicas")).await else { return };
        let Ok(told) = answer.read::<Replicas>() else { return };
        let live = told.replicas.into_iter().filter(|replica| replica.live);
        self.learn(&endpoint.base, &live.map(|replica| replica.address).collect::<Vec<_>>());
    }

    /// Takes in what a server says of the others.
    fn learn(&self, from: &Base, told: &[String]) {
        let mut bases = self.given.clone();
        for base in told.iter().filter_map(|url| url.parse::<Address>().ok()).flat_map(|address| address.0) {
            let safe = self.proof.header().is_none() || !base.is_open_to_others();
            if bases.len() < SERVERS_MAX && !bases.contains(&base) && from.may_lead_to(&base) && safe {
                bases.push(base);
            }
        }
        self.ring.become_those(bases, |base| Endpoint::new(base, self.tls.clone()));
    }

    /// The answer of the first server that gives one.
    pub(super) async fn call(&self, call: &Call) -> Result<Answer, StoreError> {
        self.ask(call).await.map(|(answer, _)| answer)
    }

    async fn ask(&self, call: &Call) -> Result<(Answer, Arc<Endpoint>), StoreError> {
        let mut last = Err(StoreError::new(Trouble::Address, "no server was named"));
        for (tried, server) in self.in_order().into_iter().enumerate() {
            // A call that is dropped before its answer is a failure too.
            let mut watch = self.ring.watch(&server);
            let mut outcome = server.send(call, self.proof.header()).await;
            if matches!(&outcome, Ok(reply) if reply.status == StatusCode::UNAUTHORIZED) && self.proof.renew()
            {
                outcome = server.send(call, self.proof.header()).await;
            }
            match outcome {
                Ok(reply) => {
                    let answer = Answer::new(reply, server.base.place(), tried + 1);
                    if !answer.is_passing() {
                        watch.answered();
                        return Ok((answer, server.clone()));
                    }
                    last = Ok((answer, server.clone()));
                    if !call.again {
                        break;
                    }
                }
                Err(Miss::Unknown(error)) if !call.again => return Err(error),
                // What another server said is worth more than that this one says nothing.
                Err(miss) => last = last.or(Err(miss.into_error())),
            }
        }
        last
    }

    /// The servers, the best first.
    pub(super) fn in_order(&self) -> Vec<Arc<Endpoint>> {
        self.ring.in_order()
    }

    /// A server did not answer.
    pub(super) fn failed(&self, server: &Endpoint) {
        self.ring.failed(server);
    }

    /// What shows who we are.
    pub(super) fn proof(&self) -> Option<HeaderValue> {
        self.proof.header()
    }

    /// Reads again what shows who we are; whether it is another now.
    pub(super) fn renew_proof(&self) -> bool {
        self.proof.renew()
    }
}

/// A read.
pub(super) fn get(path: impl Into<String>) -> Call {
    Call { method: Method::GET, path: path.into(), body: None, again: true }
}

/// A call with a body.
pub(super) fn send(method: Method, path: String, body: &impl Serialize) -> Call {
    // The types of the port are plain; writing them can not fail.
    Call { method, path, body: Some(serde_json::to_vec(body).unwrap_or_default()), again: true }
}

/// A call without one.
pub(super) fn bare(method: Method, path: String) -> Call {
    Call { method, path, body: None, again: true }
}

/// What may stand in a path or a query as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Text as a part of a path or query.
pub(super) fn part(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

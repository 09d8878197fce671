//! The gate in front of every route.
//!
//! In this order, so that the cheapest refusal comes first and nothing is read from a client that may not ask: where the
//! request comes from, who asks, whether they may, the body within its bounds, a slot among the requests that are worked
//! on, and only then the handler, within its time. The slot is held until the last byte of the answer is on its way. A
//! client that has not authenticated takes its slot before its body is read: the pool of those slots is small, and
//! nobody else's.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use tenure::port::Verb;
use tenure::{Name, SessionId};

use super::answer::Held;
use super::{Access, CHALLENGE, Credentials, Principal, STRANGERS, body, browser, unknown};
use crate::App;
use crate::app::SERVERS;
use crate::limits::{self, Lane, Side, Turn};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::route::{Guard, Need};

/// Where logins go.
const LOGIN: &str = "/login";
/// The page that describes the API.
const DOCS: &str = "/docs";

/// A request's place among those that are worked on.
#[derive(Clone)]
pub struct Slot {
    turn: Arc<Mutex<Option<Turn>>>,
    /// The account of the client.
    name: Arc<str>,
    app: App,
}

impl Slot {
    /// Says that this request will wait for long without working. It is counted among the streams from now on, and makes
    /// room for others.
    pub fn lengthen(&self) -> Result<(), Problem> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.as_mut().map_or(Ok(()), |turn| turn.lengthen(self.app.runtime.now()))
    }

    /// A count of bytes that are kept for this client until it takes them.
    pub(crate) fn unread(&self) -> limits::Bytes {
        self.app.limits.bytes(&self.name, Side::Response)
    }
}

impl FromRequestParts<App> for Slot {
    type Rejection = std::convert::Infallible;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Slot, Self::Rejection> {
        // A router without its gate counts nothing.
        let none = || Slot { turn: Arc::default(), name: "".into(), app: app.clone() };
        Ok(parts.extensions.get().cloned().unwrap_or_else(none))
    }
}

/// Who was known and not let through. On an answer, for the log.
#[derive(Clone, Debug)]
pub(crate) struct Denied(pub(crate) Arc<str>);

/// Lets a request through to its route, as its principal, or answers it.
pub(crate) async fn gate(State((app, guard)): State<(App, Guard)>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let principal = match admit(&app, guard, &mut parts).await {
        Ok(principal) => principal,
        Err(problem) => return refusal(&app, &parts, problem),
    };
    let mut response = match pass(&app, guard, parts, body, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    };
    if let Some(principal) = principal {
        // For the log.
        response.extensions_mut().insert(principal);
    }
    response
}

/// Finds out who asks and whether they may.
async fn admit(app: &App, guard: Guard, parts: &mut Parts) -> Result<Option<Principal>, Problem> {
    let need = guard.need;
    let peer = parts.extensions.get::<Peer>().cloned();
    let open = matches!(*app.access, Access::Open);
    if open {
        browser::check_forwarded(&parts.headers)?;
    }
    if open && peer.as_ref().is_some_and(|peer| peer.address.is_some()) {
        browser::check_host(parts)?;
    }
    browser::check_origin(parts)?;
    let found = match &*app.access {
        Access::Open => Ok(Principal::local()),
        Access::Guarded(credentials) => {
            let tls = peer.as_ref().is_some_and(|peer| peer.tls);
            let proof = match (bearer(parts), browser::cookie_of(&parts.headers, tls), &peer) {
                (Some(token), _, _) => token.map(Shown::Token),
                (None, Some(cookie), _) => Ok(Shown::Session(cookie)),
                (None, None, Some(Peer { subject: Some(subject), .. })) => Ok(Shown::Subject(subject)),
                _ => Err(unknown("unauthenticated", "this needs to know who asks")),
            };
            match proof {
                Ok(proof) => {
                    // Health is told to everybody.
                    let must = need != Need::Nothing;
                    identify(app, credentials, proof, peer.as_ref(), must).await?
                }
                Err(problem) => Err(problem),
            }
        }
    };
    let principal = match found {
        Ok(principal) => principal,
        // Whoever they are, they may.
        Err(_) if need == Need::Nothing => return Ok(None),
        Err(problem) => {
            // Guessing is counted, too.
            ask(app, &stranger(peer.as_ref()), false)?;
            return Err(problem);
        }
    };
    if !uncounted(need, parts) {
        // Before the check: what is refused is counted, too.
        ask(app, &principal.name, guard.heartbeat)?;
    }
    if let Some(peer) = &peer {
        peer.authenticated();
    }
    // Before the check: the page that says no says it to somebody.
    parts.extensions.insert(principal.clone());
    check(app, need, parts, &principal, open).await?;
    Ok(Some(principal))
}

/// What a client shows to prove who it is.
#[derive(Clone, Copy)]
enum Shown<'a> {
    Token(&'a str),
    /// The cookie of a dashboard session.
    Session(&'a str),
    Subject(&'a str),
}

/// Finds the principal of a proof. A client whose proof this server does not know waits until the store was read, and has
/// one of the slots for unauthenticated requests meanwhile. The outer error says that there is none, if there `must` be one.
async fn identify(
    app: &App,
    credentials: &Credentials,
    shown: Shown<'_>,
    peer: Option<&Peer>,
    must: bool,
) -> Result<Result<Principal, Problem>, Problem> {
    let known = match shown {
        Shown::Token(token) => credentials.knows_token(token),
        Shown::Session(cookie) => credentials.knows_session(cookie),
        Shown::Subject(subject) => credentials.knows_subject(subject),
    };
    let _turn = match known {
        true => None,
        false => {
            let turn = app.limits.request(&stranger(peer), Lane::Unauthenticated, app.runtime.now()).await;
            match turn {
                Ok(turn) => Some(turn),
                Err(problem) if must => return Err(problem),
                Err(problem) => return Ok(Err(problem)),
            }
        }
    };
    Ok(match shown {
        Shown::Token(token) => credentials.by_token(token).await,
        Shown::Session(cookie) => credentials.by_session(cookie).await,
        Shown::Subject(subject) => credentials.by_subject(subject).await,
    })
}

/// Whether a principal has what a route needs.
async fn check(
    app: &App,
    need: Need,
    parts: &mut Parts,
    principal: &Principal,
    open: bool,
) -> Result<(), Problem> {
    let within = |verb: Verb, parts: &Parts| principal.must(verb, Some(&namespace(parts)?));
    match need {
        Need::Nothing | Need::Known => Ok(()),
        Need::In(verb) => {
            within(verb, parts)?;
            // Operators may ask a server to stop keeping house.
            let keeps_house = verb == Verb::Lead && principal.may(Verb::Admin, Some(&SERVERS.namespace));
            match verb {
                // To pull is to stand there, too.
                Verb::Lead | Verb::Claim if !keeps_house => unreserved(parts),
                _ => Ok(()),
            }
        }
        Need::InAny(verbs) => {
            let namespace = namespace(parts)?;
            match verbs.iter().any(|verb| principal.may(*verb, Some(&namespace))) {
                true => Ok(()),
                // The first is the least.
                false => verbs.first().map_or(Ok(()), |verb| principal.must(*verb, Some(&namespace))),
            }
        }
        Need::Over(verb) => principal.must(verb, None),
        Need::Session => owns(app, parts, principal, open).await,
        Need::Stand => {
            within(Verb::Lead, parts)?;
            unreserved(parts)
        }
        Need::SessionIn(verb) => {
            within(verb, parts)?;
            unreserved(parts)?;
            owns(app, parts, principal, open).await
        }
    }
}

/// Refuses the servers' own namespace: whoever stood there would pass for a server, and clients show their tokens to
/// those.
fn unreserved(parts: &Parts) -> Result<(), Problem> {
    if namespace(parts)? != SERVERS.namespace {
        return Ok(());
    }
    let detail = format!("in the namespace {} only the servers themselves stand", SERVERS.namespace);
    Err(Problem::new(StatusCode::FORBIDDEN, "reserved-namespace", detail)
        .field("namespace")
        .remedy("choose another namespace"))
}

async fn owns(app: &App, parts: &mut Parts, principal: &Principal, open: bool) -> Result<(), Problem> {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let session = params.ok().and_then(|params| {
        let found = params.iter().find(|(name, _)| *name == "session");
        found.map(|(_, value)| value.to_owned())
    });
    let shaped =
        |id: &String| id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let Some(session) = session.filter(shaped) else {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed-path",
            "a session is 32 hexadecimal digits",
        )
        .field("session")
        .remedy("use the id that opening the session gave"));
    };
    app.owners.check(app.store.as_ref(), &SessionId::from(session), principal, open).await
}

/// The namespace that the query names. Twice is once too often: the handler might take the other one.
fn namespace(parts: &Parts) -> Result<Name, Problem> {
    let malformed = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
            .field("namespace")
            .remedy("write ?namespace=NAME once, or leave it out for the namespace `default`")
    };
    let query = parts.uri.query().unwrap_or_default();
    // Read as the handlers read it.
    let mut found = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "namespace");
    let Some((_, text)) = found.next() else { return Ok(Name::default_namespace()) };
    if found.next().is_some() {
        return Err(malformed("the query names two namespaces".into()));
    }
    text.parse().map_err(|error: tenure::NameError| malformed(error.to_string()))
}

/// The token of the `Authorization` header, if there is such a header.
fn bearer(parts: &Parts) -> Option<Result<&str, Problem>> {
    let value = parts.headers.get(AUTHORIZATION)?;
    let token = value.to_str().ok().and_then(|text| text.split_once(' '));
    Some(match token {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(unknown("unknown-token", "only `Authorization: Bearer TOKEN` is understood")),
    })
}

/// Whom a request without a name is counted against.
fn stranger(peer: Option<&Peer>) -> Arc<str> {
    format!("{STRANGERS} from {}", peer.map_or_else(|| "here".to_owned(), Peer::network)).into()
}

/// Whether a request is counted against nobody: health and style sheets are told under any load. Pages are made anew for
/// each client, and so are counted.
fn uncounted(need: Need, parts: &Parts) -> bool {
    let page = matches!(parts.uri.path(), LOGIN | DOCS);
    need == Need::Nothing && matches!(parts.method, Method::GET | Method::HEAD) && !page
}

/// Counts a request against how often somebody may ask. Where access control is off there is nobody to tell apart.
fn ask(app: &App, name: &Arc<str>, heartbeat: bool) -> Result<(), Problem> {
    match *app.access {
        Access::Open => Ok(()),
        Access::Guarded(_) => app.limits.ask(name, heartbeat, app.runtime.now()),
    }
}

/// Counts a request that no gate has seen, since there is no route for it, against where it comes from.
pub(crate) fn astray(app: &App, request: &Request) -> Result<(), Problem> {
    ask(app, &stranger(request.extensions().get()), false)
}

/// Reads the body of a request, finds a slot for it, and hands it to its handler.
async fn pass(
    app: &App,
    guard: Guard,
    mut parts: Parts,
    body: Body,
    next: Next,
) -> Result<Response, Problem> {
    if uncounted(guard.need, &parts) {
        return Ok(next.run(Request::from_parts(parts, body)).await);
    }
    let principal = parts.extensions.get::<Principal>().cloned();
    let peer = parts.extensions.get::<Peer>().cloned();
    let (name, lane) = match &principal {
        Some(principal) if guard.heartbeat => (principal.name.clone(), Lane::Heartbeat),
        Some(principal) => (principal.name.clone(), Lane::Ordinary),
        None => {
            let name = stranger(peer.as_ref());
            // A login has a bucket of its own: others who guess from the same address do not keep anybody out.
            if parts.uri.path() == LOGIN {
                ask(app, &format!("{name}, to log in").into(), false)?
            } else {
                ask(app, &name, false)?
            }
            (name, Lane::Unauthenticated)
        }
    };
    let now = app.runtime.now();
    if let Some(peer) = &peer {
        peer.charge(&name, || app.limits.connection(&name, now))?;
    }
    let early = match lane {
        Lane::Unauthenticated => Some(app.limits.request(&name, lane, now).await?),
        _ => None,
    };
    let (body, _kept) = body::read(app, guard, lane, &name, &parts, body).await?;
    let turn = match early {
        Some(turn) => turn,
        None => app.limits.request(&name, lane, app.runtime.now()).await?,
    };
    if lane != Lane::Heartbeat {
        app.limits.reads_its_answers(&name)?;
    }
    let slot = Slot { turn: Arc::new(Mutex::new(Some(turn))), name, app: app.clone() };
    parts.extensions.insert(slot.clone());
    let repeatable = parts.method.is_safe();
    let answer = next.run(Request::from_parts(parts, body));
    let Ok(response) = tokio::time::timeout(app.timeouts.request, answer).await else {
        let detail = format!("no answer within {:?}", app.timeouts.request);
        return Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", detail)
            .remedy("whether it happened is unknown; try again")
            .retry_after(1));
    };
    hold(app, slot, principal, response, repeatable)
}

/// Keeps the place until the last byte. A stream is counted as one, and ends when the server does, or when its principal's
/// credential is worth nothing any more.
fn hold(
    app: &App,
    slot: Slot,
    principal: Option<Principal>,
    response: Response,
    repeatable: bool,
) -> Result<Response, Problem> {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if !kind.starts_with(b"text/event-stream") {
        let (head, inner) = response.into_parts();
        let unread = slot.unread();
        return Ok(Response::from_parts(head, Body::new(Held::whole(inner, slot, unread, repeatable)?)));
    }
    slot.lengthen()?;
    let mut closing = app.closing.subscribe();
    let access = app.access.clone();
    let over = async move {
        let ended = async {
            match (&*access, principal) {
                (Access::Guarded(credentials), Some(principal)) => credentials.worthless(&principal).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => {}
            () = ended => {}
        }
    };
    Ok(response.map(|body| {
        let inner = Body::from_stream(body.into_data_stream().take_until(Box::pin(over)));
        let unread = slot.unread();
        Body::new(Held::stream(inner, slot, unread))
    }))
}

/// The answer for whoever may not: for a browser that asks for a page, a page, or the way to the login.
fn refusal(app: &App, parts: &Parts, problem: Problem) -> Response {
    let unauthenticated = problem.status == StatusCode::UNAUTHORIZED;
    let accept = parts.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let page = !parts.uri.path().starts_with("/v1/") && accept.contains("text/html");
    if unauthenticated && page && parts.method == Method::GET {
        let here = parts.uri.path_and_query().map_or("/", |here| here.as_str());
        let next: String =
            percent_encoding::utf8_percent_encode(here, percent_encoding::NON_ALPHANUMERIC).collect();
        return (StatusCode::SEE_OTHER, [(LOCATION, format!("/login?next={next}"))]).into_response();
    }
    if page {
        return crate::pages::refused(app, parts, &problem);
    }
    let mut response = problem.into_response();
    if let Some(principal) = parts.extensions.get::<Principal>() {
        response.extensions_mut().insert(Denied(principal.name.clone()));
    }
    if unauthenticated {
        response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
    }
    response
}

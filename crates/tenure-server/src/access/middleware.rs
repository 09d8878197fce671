//! Access middleware in front of every route.
//!
//! The checks run in this order, cheapest first, and nothing is read from a client that is not permitted:
//! origin of the request, principal, permission, body within its limits, a permit among the concurrent
//! requests, and then the handler within its timeout. The permit is held until the last byte of the response
//! is sent. An unauthenticated client takes its permit before its body is read, from a small pool of its own.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use tenure::port::Permission;
use tenure::{Name, SessionId};

use super::answer::PermitBody;
use super::{ANONYMOUS, AccessMode, CHALLENGE, CredentialCache, Principal, body, browser, unknown};
use crate::App;
use crate::app::COORDINATOR_ELECTION;
use crate::limits::{self, RequestLane, RequestPermit, Side};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::route::{RequiredPermission, RouteAccess, is_api};

/// Path of the login.
const LOGIN: &str = "/login";
/// Path of the API reference.
const DOCS: &str = "/docs";

/// Handle of a request's permit.
#[derive(Clone)]
pub struct RequestPermitHandle {
    permit: Arc<Mutex<Option<RequestPermit>>>,
    /// Account of the client.
    name: Arc<str>,
    app: App,
}

impl RequestPermitHandle {
    /// Count the request as a stream from now on, and return its permit. For requests that mostly wait, such
    /// as event streams and long polls. Fails if the client has too many streams.
    pub fn mark_as_stream(&self) -> Result<(), Problem> {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        permit.as_mut().map_or(Ok(()), |permit| permit.mark_as_stream(self.app.runtime.now()))
    }

    /// Counter of bytes that are kept for this client until it reads them.
    pub(crate) fn unread(&self) -> limits::Bytes {
        self.app.limits.bytes(&self.name, Side::Response)
    }
}

impl FromRequestParts<App> for RequestPermitHandle {
    type Rejection = std::convert::Infallible;
    async fn from_request_parts(
        parts: &mut Parts,
        app: &App,
    ) -> Result<RequestPermitHandle, Self::Rejection> {
        // A router without the access middleware counts nothing.
        let none = || RequestPermitHandle { permit: Arc::default(), name: "".into(), app: app.clone() };
        Ok(parts.extensions.get().cloned().unwrap_or_else(none))
    }
}

/// Principal that was denied. Response extension, for the log.
#[derive(Clone, Debug)]
pub(crate) struct DeniedPrincipal(pub(crate) Arc<str>);

/// Pass a request to its route with its principal, or answer it with a problem.
pub(crate) async fn authorize(
    State((app, guard)): State<(App, RouteAccess)>,
    request: Request,
    next: Next,
) -> Response {
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
        // The access log reads the principal from the response.
        response.extensions_mut().insert(principal);
    }
    response
}

/// Determine the principal and check its permission.
async fn admit(app: &App, guard: RouteAccess, parts: &mut Parts) -> Result<Option<Principal>, Problem> {
    let need = guard.need;
    let peer = parts.extensions.get::<Peer>().cloned();
    let open = matches!(*app.access, AccessMode::Open);
    if open {
        browser::check_forwarded(&parts.headers)?;
    }
    if open && peer.as_ref().is_some_and(|peer| peer.address.is_some()) {
        browser::check_host(parts)?;
    }
    browser::check_origin(parts)?;
    let found = match &*app.access {
        AccessMode::Open => Ok(Principal::local()),
        AccessMode::Guarded(credentials) => {
            let tls = peer.as_ref().is_some_and(|peer| peer.tls);
            let credential = match (bearer(parts), browser::cookie_of(&parts.headers, tls), &peer) {
                (Some(token), _, _) => token.map(Shown::Token),
                (None, Some(cookie), _) => Ok(Shown::Session(cookie)),
                (None, None, Some(Peer { subject: Some(subject), .. })) => Ok(Shown::Subject(subject)),
                _ => Err(unknown("unauthenticated", "the request has no credential")),
            };
            match credential {
                Ok(credential) => {
                    // Routes without a required permission, such as health checks, need no credential.
                    let must = need != RequiredPermission::None;
                    identify(app, credentials, credential, peer.as_ref(), must).await?
                }
                Err(problem) => Err(problem),
            }
        }
    };
    let principal = match found {
        Ok(principal) => principal,
        // The route requires no credential.
        Err(_) if need == RequiredPermission::None => return Ok(None),
        Err(problem) => {
            // Failed attempts count against the rate limit too.
            check_rate(app, &anonymous_account(peer.as_ref()), false)?;
            return Err(problem);
        }
    };
    if !uncounted(need, parts) {
        // Count before the permission check, so that rejected requests count too.
        check_rate(app, &principal.name, guard.heartbeat)?;
    }
    if let Some(peer) = &peer {
        peer.authenticated();
    }
    // Insert before the permission check, because the page of a rejection shows the principal.
    parts.extensions.insert(principal.clone());
    check(app, need, parts, &principal, open).await?;
    Ok(Some(principal))
}

/// Credential of a request.
#[derive(Clone, Copy)]
enum Shown<'a> {
    Token(&'a str),
    /// Cookie of a dashboard session.
    Session(&'a str),
    Subject(&'a str),
}

/// Find the principal of a credential. If the cache does not have it, the client waits for a read of the
/// store and holds a permit for unauthenticated requests meanwhile.
///
/// The outer error means that no permit is free and the request `must` have a credential. All other problems
/// are inner errors.
async fn identify(
    app: &App,
    credentials: &CredentialCache,
    shown: Shown<'_>,
    peer: Option<&Peer>,
    must: bool,
) -> Result<Result<Principal, Problem>, Problem> {
    let known = match shown {
        Shown::Token(token) => credentials.has_token(token),
        Shown::Session(cookie) => credentials.has_session(cookie),
        Shown::Subject(subject) => credentials.has_subject(subject),
    };
    let _permit = match known {
        true => None,
        false => {
            let permit = app
                .limits
                .request(&anonymous_account(peer), RequestLane::Unauthenticated, app.runtime.now())
                .await;
            match permit {
                Ok(permit) => Some(permit),
                Err(problem) if must => return Err(problem),
                Err(problem) => return Ok(Err(problem)),
            }
        }
    };
    Ok(match shown {
        Shown::Token(token) => credentials.by_access_token(token).await,
        Shown::Session(cookie) => credentials.by_session(cookie).await,
        Shown::Subject(subject) => credentials.by_subject(subject).await,
    })
}

/// Check that a principal has the permission that a route requires.
async fn check(
    app: &App,
    need: RequiredPermission,
    parts: &mut Parts,
    principal: &Principal,
    open: bool,
) -> Result<(), Problem> {
    let within = |verb: Permission, parts: &Parts| principal.require(verb, Some(&namespace(parts)?));
    match need {
        RequiredPermission::None | RequiredPermission::AnyCredential => Ok(()),
        RequiredPermission::In(verb) => {
            within(verb, parts)?;
            // Operators may ask the coordinator to resign.
            let is_operator = verb == Permission::Lead
                && principal.may(Permission::Admin, Some(&COORDINATOR_ELECTION.namespace));
            match verb {
                // A pull joins a group, so the reserved namespace is rejected for it as for a candidacy.
                Permission::Lead | Permission::Claim if !is_operator => check_not_reserved(parts),
                _ => Ok(()),
            }
        }
        RequiredPermission::InAny(verbs) => {
            let namespace = namespace(parts)?;
            match verbs.iter().any(|verb| principal.may(*verb, Some(&namespace))) {
                true => Ok(()),
                // Name the first permission in the problem, because it is the weakest.
                false => verbs.first().map_or(Ok(()), |verb| principal.require(*verb, Some(&namespace))),
            }
        }
        RequiredPermission::InAll(verb) => principal.require(verb, None),
        RequiredPermission::Session => check_session_owner(app, parts, principal, open).await,
        RequiredPermission::Campaign => {
            within(Permission::Lead, parts)?;
            check_not_reserved(parts)
        }
        RequiredPermission::SessionIn(verb) => {
            within(verb, parts)?;
            check_not_reserved(parts)?;
            check_session_owner(app, parts, principal, open).await
        }
    }
}

/// Reject the namespace of the servers: a candidate there would pass for a server, and clients send their
/// access tokens to servers.
fn check_not_reserved(parts: &Parts) -> Result<(), Problem> {
    if namespace(parts)? != COORDINATOR_ELECTION.namespace {
        return Ok(());
    }
    let detail = format!("the namespace {} is reserved for the servers", COORDINATOR_ELECTION.namespace);
    Err(Problem::new(StatusCode::FORBIDDEN, "reserved-namespace", detail)
        .field("namespace")
        .remedy("choose another namespace"))
}

async fn check_session_owner(
    app: &App,
    parts: &mut Parts,
    principal: &Principal,
    open: bool,
) -> Result<(), Problem> {
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
            "a session id has 32 hexadecimal digits",
        )
        .field("session")
        .remedy("use the id of the opened session"));
    };
    app.owners.check(app.store.as_ref(), &SessionId::from(session), principal, open).await
}

/// Namespace in a path such as `/v1/namespaces/{namespace}/pause`.
fn path_namespace(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/namespaces/")?.split('/').next()
}

/// Namespace of a request: in its path, else in its query. Two namespaces are rejected, because the handler
/// might read the other one.
fn namespace(parts: &Parts) -> Result<Name, Problem> {
    let malformed = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
            .field("namespace")
            .remedy("send ?namespace=NAME once, or omit it for the namespace `default`")
    };
    if let Some(text) = path_namespace(parts.uri.path()) {
        let text = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
        return text.parse().map_err(|error: tenure::NameError| {
            Problem::new(StatusCode::BAD_REQUEST, "malformed-path", error.to_string())
                .field("namespace")
                .remedy("send the name of a namespace")
        });
    }
    let query = parts.uri.query().unwrap_or_default();
    // Parsed the same way as in the handlers.
    let mut found = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "namespace");
    let Some((_, text)) = found.next() else { return Ok(Name::default_namespace()) };
    if found.next().is_some() {
        return Err(malformed("the query has two namespaces".into()));
    }
    text.parse().map_err(|error: tenure::NameError| malformed(error.to_string()))
}

/// Access token of the `Authorization` header, if there is one.
fn bearer(parts: &Parts) -> Option<Result<&str, Problem>> {
    let value = parts.headers.get(AUTHORIZATION)?;
    let token = value.to_str().ok().and_then(|text| text.split_once(' '));
    Some(match token {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(unknown("invalid-access-token", "the Authorization header is not `Bearer ACCESS_TOKEN`")),
    })
}

/// Account of a request without a principal.
fn anonymous_account(peer: Option<&Peer>) -> Arc<str> {
    format!("{ANONYMOUS} from {}", peer.map_or_else(|| "this machine".to_owned(), Peer::network)).into()
}

/// Whether a request is not counted: health checks and static assets are served under any load. Pages are
/// rendered for each client, so they count.
fn uncounted(need: RequiredPermission, parts: &Parts) -> bool {
    let page = matches!(parts.uri.path(), LOGIN | DOCS);
    need == RequiredPermission::None && matches!(parts.method, Method::GET | Method::HEAD) && !page
}

/// Count a request against the rate limit of a principal. Without access control there are no principals to
/// distinguish.
fn check_rate(app: &App, name: &Arc<str>, heartbeat: bool) -> Result<(), Problem> {
    match *app.access {
        AccessMode::Open => Ok(()),
        AccessMode::Guarded(_) => app.limits.count_request(name, heartbeat, app.runtime.now()),
    }
}

/// Count a request without a route against the rate limit of its address.
pub(crate) fn check_unrouted_request(app: &App, request: &Request) -> Result<(), Problem> {
    check_rate(app, &anonymous_account(request.extensions().get()), false)
}

/// Read the body of a request, take a permit and call the handler.
async fn pass(
    app: &App,
    guard: RouteAccess,
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
        Some(principal) if guard.heartbeat => (principal.name.clone(), RequestLane::Heartbeat),
        Some(principal) => (principal.name.clone(), RequestLane::Ordinary),
        None => {
            let name = anonymous_account(peer.as_ref());
            // Logins have their own rate limit, so failed requests from the same address do not block them.
            if parts.uri.path() == LOGIN {
                check_rate(app, &format!("{name}, login").into(), false)?
            } else {
                check_rate(app, &name, false)?
            }
            (name, RequestLane::Unauthenticated)
        }
    };
    let now = app.runtime.now();
    if let Some(peer) = &peer {
        peer.charge(&name, || app.limits.connection(&name, now))?;
    }
    let early = match lane {
        RequestLane::Unauthenticated => Some(app.limits.request(&name, lane, now).await?),
        _ => None,
    };
    let (body, _kept) = body::read(app, guard, lane, &name, &parts, body).await?;
    let permit = match early {
        Some(permit) => permit,
        None => app.limits.request(&name, lane, app.runtime.now()).await?,
    };
    if lane != RequestLane::Heartbeat {
        app.limits.check_unread_responses(&name)?;
    }
    let handle = RequestPermitHandle { permit: Arc::new(Mutex::new(Some(permit))), name, app: app.clone() };
    parts.extensions.insert(handle.clone());
    let repeatable = parts.method.is_safe();
    let answer = next.run(Request::from_parts(parts, body));
    let Ok(response) = tokio::time::timeout(app.timeouts.request, answer).await else {
        let detail = format!("no response within {:?}", app.timeouts.request);
        return Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, "request-timeout", detail)
            .remedy("the outcome is unknown; retry")
            .retry_after(1));
    };
    hold(app, handle, principal, response, repeatable)
}

/// Hold the permit until the last byte. A stream counts as a stream, and ends when the server shuts down or
/// the principal's credential becomes invalid.
fn hold(
    app: &App,
    handle: RequestPermitHandle,
    principal: Option<Principal>,
    response: Response,
    repeatable: bool,
) -> Result<Response, Problem> {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if !kind.starts_with(b"text/event-stream") {
        let (head, inner) = response.into_parts();
        let unread = handle.unread();
        return Ok(Response::from_parts(
            head,
            Body::new(PermitBody::whole(inner, handle, unread, repeatable)?),
        ));
    }
    handle.mark_as_stream()?;
    let mut closing = app.closing.subscribe();
    let access = app.access.clone();
    let over = async move {
        let ended = async {
            match (&*access, principal) {
                (AccessMode::Guarded(credentials), Some(principal)) => {
                    credentials.wait_until_invalid(&principal).await
                }
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
        let unread = handle.unread();
        Body::new(PermitBody::stream(inner, handle, unread))
    }))
}

/// Response for a rejected request: a page or a redirect to the login for browsers, a problem for other
/// clients.
fn refusal(app: &App, parts: &Parts, problem: Problem) -> Response {
    let unauthenticated = problem.status == StatusCode::UNAUTHORIZED;
    let accept = parts.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let page = !is_api(parts.uri.path()) && accept.contains("text/html");
    if unauthenticated && page && parts.method == Method::GET {
        let here = parts.uri.path_and_query().map_or("/", |here| here.as_str());
        let next: String =
            percent_encoding::utf8_percent_encode(here, percent_encoding::NON_ALPHANUMERIC).collect();
        return (StatusCode::SEE_OTHER, [(LOCATION, format!("/login?next={next}"))]).into_response();
    }
    if page {
        return crate::web::rejection_page(app, parts, &problem);
    }
    let mut response = problem.into_response();
    if let Some(principal) = parts.extensions.get::<Principal>() {
        response.extensions_mut().insert(DeniedPrincipal(principal.name.clone()));
    }
    if unauthenticated {
        response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
    }
    response
}

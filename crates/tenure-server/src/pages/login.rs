//! Logging in with an access token, and logging out.

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use http::header::{LOCATION, SET_COOKIE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use maud::{Markup, html};
use serde::Deserialize;

use super::frame::{Visit, own_path, page, trouble};
use super::given::{Got, Posted};
use super::parts;
use crate::listen::Peer;
use crate::{App, access};

/// Where to go afterwards.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Then {
    #[serde(default)]
    next: String,
}

pub(super) async fn show(visit: Visit, Got(Query(then)): Got<Query<Then>>) -> Response {
    page(&visit, "Log in", "", form(&visit, own_path(&then.next), None))
}

fn form(visit: &Visit, next: &str, wrong: Option<&str>) -> Markup {
    html! {
        div.head { div { h1 { "Log in" } } }
        @if let Some(wrong) = wrong { (parts::notice("bad", html! { p { (wrong) } })) }
        section.card.narrow { div.body {
            @if visit.guarded {
                form.form method="post" action="/login" {
                    input type="hidden" name="next" value=(next);
                    div.field {
                        label for="token" { "Token" }
                        input #token type="password" name="token" required autocomplete="current-password" spellcheck="false" autofocus;
                        small { "It begins with " code { "tenure_" } ". Whoever runs this server makes one with " code { "tenure token create" } "." }
                    }
                    div.buttons { button.button.main { "Log in" } }
                }
            } @else {
                p { "This server asks nobody for credentials: it can be reached from this machine only." }
                p { a href="/" { "To the elections" } }
            }
        } }
    }
}

/// The form of the login.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entering {
    token: String,
    #[serde(default)]
    next: String,
}

pub(super) async fn enter(
    State(app): State<App>,
    visit: Visit,
    peer: Option<Extension<Peer>>,
    Posted(entering): Posted<Entering>,
) -> Response {
    let token = entering.token.trim();
    let next = own_path(&entering.next);
    let session = app.access.log_in(token).await;
    let cookie = |session: &Option<String>| access::cookie(session.as_deref()?, visit.tls);
    match (session.as_ref().ok().and_then(cookie), session) {
        (Some(kept), Ok(_)) if visit.guarded => {
            let next = HeaderValue::from_str(next).unwrap_or(HeaderValue::from_static("/"));
            (StatusCode::SEE_OTHER, [(SET_COOKIE, kept), (LOCATION, next)]).into_response()
        }
        (_, session) => {
            let (status, wrong) = session.map_or_else(
                |problem| (problem.status, problem.detail),
                |_| (StatusCode::UNAUTHORIZED, "This is no token.".into()),
            );
            let peer = peer.as_ref().map(|peer| peer.0.label());
            tracing::warn!(peer = peer.as_deref().unwrap_or("-"), "a login failed: {wrong}");
            let mut response = page(&visit, "Log in", "", form(&visit, next, Some(&wrong)));
            *response.status_mut() = status;
            if status == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(WWW_AUTHENTICATE, access::CHALLENGE);
            }
            response
        }
    }
}

pub(super) async fn leave(State(app): State<App>, visit: Visit, headers: HeaderMap) -> Response {
    let login = HeaderValue::from_static("/login");
    let gone = [(SET_COOKIE, access::no_cookie(visit.tls)), (LOCATION, login)];
    match app.access.log_out(&headers, visit.tls).await {
        Ok(()) => (StatusCode::SEE_OTHER, gone).into_response(),
        // The cookie is still there, so that the session can be ended later.
        Err(problem) => trouble(&visit, &problem),
    }
}

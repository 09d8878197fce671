//! Login with an access token, and logout.

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use http::header::{LOCATION, SET_COOKIE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use maud::{Markup, html};
use serde::Deserialize;

use super::components;
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, own_path, page, problem_page};
use crate::listen::Peer;
use crate::{App, access};

/// The query of the login page.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginQuery {
    #[serde(default)]
    next: String,
}

pub(super) async fn show(
    ctx: PageContext,
    PageParams(Query(query)): PageParams<Query<LoginQuery>>,
) -> Response {
    page(&ctx, "Log in", "", login_form(&ctx, own_path(&query.next), None))
}

fn login_form(ctx: &PageContext, next: &str, error: Option<&str>) -> Markup {
    html! {
        div.head { div { h1 { "Log in" } } }
        @if let Some(error) = error { (components::notice("bad", html! { p { (error) } })) }
        section.card.narrow { div.body {
            @if ctx.guarded {
                form.form method="post" action="/login" {
                    input type="hidden" name="next" value=(next);
                    div.field {
                        label for="access_token" { "Access token" }
                        input #access_token type="password" name="access_token" required autocomplete="current-password" spellcheck="false" autofocus;
                        small { "Starts with " code { "tenure_" } ". An administrator creates one with " code { "tenure credentials create" } "." }
                    }
                    div.buttons { button.button.main { "Log in" } }
                }
            } @else {
                p { "This server requires no credentials; it accepts local connections only." }
                p { a href="/" { "Go to elections" } }
            }
        } }
    }
}

/// The form of the login page.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginForm {
    access_token: String,
    #[serde(default)]
    next: String,
}

pub(super) async fn log_in(
    State(app): State<App>,
    ctx: PageContext,
    peer: Option<Extension<Peer>>,
    FormBody(form): FormBody<LoginForm>,
) -> Response {
    let token = form.access_token.trim();
    let next = own_path(&form.next);
    let session = app.access.log_in(token).await;
    let cookie = |session: &Option<String>| access::cookie(session.as_deref()?, ctx.tls);
    match (session.as_ref().ok().and_then(cookie), session) {
        (Some(kept), Ok(_)) if ctx.guarded => {
            let next = HeaderValue::from_str(next).unwrap_or(HeaderValue::from_static("/"));
            (StatusCode::SEE_OTHER, [(SET_COOKIE, kept), (LOCATION, next)]).into_response()
        }
        (_, session) => {
            let (status, error) = session.map_or_else(
                |problem| (problem.status, problem.detail),
                |_| (StatusCode::UNAUTHORIZED, "Invalid access token.".into()),
            );
            let peer = peer.as_ref().map(|peer| peer.0.label());
            tracing::warn!(peer = peer.as_deref().unwrap_or("-"), "login failed: {error}");
            let mut response = page(&ctx, "Log in", "", login_form(&ctx, next, Some(&error)));
            *response.status_mut() = status;
            if status == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(WWW_AUTHENTICATE, access::CHALLENGE);
            }
            response
        }
    }
}

pub(super) async fn log_out(State(app): State<App>, ctx: PageContext, headers: HeaderMap) -> Response {
    let login = HeaderValue::from_static("/login");
    let redirect = [(SET_COOKIE, access::no_cookie(ctx.tls)), (LOCATION, login)];
    match app.access.log_out(&headers, ctx.tls).await {
        Ok(()) => (StatusCode::SEE_OTHER, redirect).into_response(),
        // Keep the cookie, so that the user can end the session later.
        Err(problem) => problem_page(&ctx, &problem),
    }
}

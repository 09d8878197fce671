//! The layout of every page: request context, theme, navigation and footer.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::Permission;

use super::assets::{self, LOGO, SCRIPT, STYLE};
use super::components;
use super::extract::FormBody;
use super::flash::{self, Flash};
use super::store_banner::{self, Banner};
use crate::access::{AccessMode, Principal};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::{App, RequestId};

/// The context of a page request: principal, theme, address and one-time message.
#[derive(Clone)]
pub(crate) struct PageContext {
    app: App,
    /// The authenticated principal; `None` before login.
    pub(super) principal: Option<Principal>,
    /// Whether this server requires credentials.
    pub(super) guarded: bool,
    /// Host and port as the browser sent them: `127.0.0.1:7171`.
    pub(super) host: String,
    /// The path and query of this page.
    pub(super) path: String,
    /// Whether this server has joined a gossip cluster.
    has_gossip: bool,
    /// Whether the connection is encrypted.
    pub(super) tls: bool,
    /// Whether the method is GET or HEAD, so that a failed request has changed nothing.
    is_read: bool,
    /// The one-time message of the previous form.
    flash: Flash,
    request: RequestId,
    theme: Theme,
}

impl PageContext {
    /// Read the context from a request.
    pub(super) fn of(parts: &Parts, app: &App) -> PageContext {
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let host = header("host").or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        PageContext {
            app: app.clone(),
            principal: parts.extensions.get::<Principal>().cloned(),
            guarded: !matches!(*app.access, AccessMode::Open),
            host: host.unwrap_or("localhost").to_owned(),
            path: path.to_owned(),
            has_gossip: app.gossip.is_some(),
            tls: parts.extensions.get::<Peer>().is_some_and(|peer| peer.tls),
            is_read: matches!(parts.method, Method::GET | Method::HEAD),
            flash: Flash::of(&parts.headers, path),
            request: parts.extensions.get().cloned().unwrap_or_else(|| RequestId("".into())),
            theme: Theme::of(cookie(&parts.headers, "tenure_theme").unwrap_or_default()),
        }
    }

    /// Whether the principal has a permission in a namespace; `None` means in all namespaces.
    pub(super) fn may(&self, permission: Permission, namespace: Option<&Name>) -> bool {
        self.principal.as_ref().is_some_and(|principal| principal.may(permission, namespace))
    }

    /// The name of the principal in the audit log.
    pub(super) fn name(&self) -> &str {
        self.principal.as_ref().map_or("not logged in", |principal| &principal.name)
    }

    /// Write an entry of the principal to the audit log.
    pub(super) async fn record(
        &self,
        app: &App,
        action: &str,
        namespace: Option<&Name>,
        target: &str,
        detail: String,
    ) {
        // Routes with actions require a principal.
        if let Some(principal) = &self.principal {
            app.audit(principal, action, namespace, target, detail, &self.request).await;
        }
    }

    /// The result of the previous form, if this page is to show it.
    pub(super) fn message(&self) -> Option<&str> {
        self.flash.message.as_deref()
    }

    /// The secret that the previous form created, if this page is to show it.
    pub(super) fn secret(&self) -> Option<&str> {
        self.flash.secret.as_deref()
    }

    /// Redirect to a page after an action. The page shows the result once.
    pub(super) fn redirect_with_message(&self, to: &str, message: &str) -> Response {
        flash::redirect(to, message, None, self.tls)
    }

    /// Redirect to a page after an action that created a secret. The page shows the secret once.
    pub(super) fn redirect_with_secret(&self, to: &str, message: &str, secret: &str) -> Response {
        flash::redirect(to, message, Some(secret), self.tls)
    }

    /// The base URL of this server as the browser sees it.
    pub(super) fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.host)
    }
}

impl FromRequestParts<App> for PageContext {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<PageContext, Self::Rejection> {
        Ok(PageContext::of(parts, app))
    }
}

/// The value of a cookie.
pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// Render a complete page. `tab` is the current entry of the navigation.
pub(crate) fn page(ctx: &PageContext, title: &str, tab: &str, content: Markup) -> Response {
    render(ctx, title, tab, content, &Banner::of(&ctx.app))
}

fn render(ctx: &PageContext, title: &str, tab: &str, content: Markup, banner: &Banner) -> Response {
    let body = html! {
        (DOCTYPE)
        html lang="en" data-theme=[ctx.theme.attribute()] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Tenure" }
                link rel="icon" href=(assets::url(LOGO)) type="image/svg+xml";
                link rel="stylesheet" href=(assets::url(STYLE));
                script src=(assets::url(SCRIPT)) defer {}
                @if banner.is_unreadable() { noscript { meta http-equiv="refresh" content="5"; } }
            }
            body {
                a.skip href="#main" { "Skip to main content" }
                (header(ctx, tab))
                main #main tabindex="-1" data-failed[banner.is_unreadable()] {
                    div #store-state data-live { (store_banner::shown(banner, ctx)) }
                    (content)
                }
                div #news .hidden aria-live="polite" {}
                (footer(ctx))
            }
        }
    };
    // The outer middleware adds the content security policy and `Cache-Control: no-store`.
    let mut response = ([(CONTENT_TYPE, "text/html; charset=utf-8")], body.into_string()).into_response();
    ctx.flash.forget(&mut response);
    response
}

fn header(ctx: &PageContext, tab: &str) -> Markup {
    let item = |href: &str, name: &str| {
        html! { a href=(href) aria-current=[(tab == name).then_some("page")] { (name) } }
    };
    html! {
        header.bar {
            div {
                a.brand href="/" { img src=(assets::url(LOGO)) alt=""; "Tenure" }
                @if ctx.principal.is_some() {
                    nav.nav aria-label="Pages" {
                        (item("/", "Elections"))
                        (item("/names", "Registered names"))
                        (item("/schedules", "Schedules"))
                        (item("/topics", "Events"))
                        (item("/queues", "Queues"))
                        (item("/workers", "Workers"))
                        (item("/pools", "Pools"))
                        @if ctx.has_gossip { (item("/gossip", "Gossip")) }
                        (item("/audit", "Audit log"))
                        @if ctx.may(Permission::Admin, None) { (item("/credentials", "Credentials")) }
                        (item("/docs", "API"))
                    }
                }
                div.bar-end {
                    span #live .live role="status" hidden {}
                    form method="post" action="/theme" {
                        input type="hidden" name="next" value=(ctx.path);
                        button.quiet name="theme" value=(ctx.theme.next().word()) title=(format!("Theme: {}", ctx.theme.word())) {
                            (ctx.theme.sign()) span.hidden { "Switch to the " (ctx.theme.next().word()) " theme" }
                        }
                    }
                    @if ctx.guarded && ctx.principal.is_some() {
                        span.soft.small { (ctx.name()) }
                        form method="post" action="/logout" { button.quiet { "Log out" } }
                    }
                }
            }
        }
    }
}

fn footer(ctx: &PageContext) -> Markup {
    html! {
        footer.foot {
            div {
                span { "Tenure " (env!("CARGO_PKG_VERSION")) }
                a href="/docs" { "API" }
                a href="/openapi.json" { "OpenAPI" }
                @if ctx.may(Permission::Read, None) { a href="/metrics" { "Metrics" } }
                a href="/readyz" { "Health" }
            }
        }
    }
}

/// Redirect to another page after an action.
pub(super) fn go(to: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response()
}

/// Return `next` if it is a path of this server, else `/`. Prevents open redirects.
pub(super) fn own_path(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if plain && next.starts_with('/') && !next.starts_with("//") { next } else { "/" }
}

/// Render a problem as a page. If the store was unavailable for a read, the page shows only that and reloads
/// when the store is back.
pub(super) fn problem_page(ctx: &PageContext, problem: &Problem) -> Response {
    let unreadable = ctx.is_read && problem.is_store_error();
    let (banner, title) = match unreadable {
        true => (Banner::unreadable(problem), "Store unavailable"),
        false => (Banner::of(&ctx.app), problem.title),
    };
    let content = html! {
        div.head { div { h1 { (title) } } }
        @if !unreadable {
            (components::notice("bad", html! {
                p { (problem.detail) }
                @if let Some(remedy) = &problem.remedy { p.soft { (remedy) } }
            }))
        }
        p { a href="/" { "Go to elections" } }
    };
    let mut response = render(ctx, title, "", content, &banner);
    *response.status_mut() = problem.status;
    problem.attach_cause(&mut response);
    response
}

/// The colour theme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    Auto,
    Light,
    Dark,
}

impl Theme {
    fn of(word: &str) -> Theme {
        match word {
            "light" => Theme::Light,
            "dark" => Theme::Dark,
            _ => Theme::Auto,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Theme::Auto => "automatic",
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }

    fn attribute(self) -> Option<&'static str> {
        (self != Theme::Auto).then(|| self.word())
    }

    fn next(self) -> Theme {
        match self {
            Theme::Auto => Theme::Dark,
            Theme::Dark => Theme::Light,
            Theme::Light => Theme::Auto,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Theme::Auto => "◐",
            Theme::Light => "○",
            Theme::Dark => "●",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Choice {
    theme: String,
    #[serde(default)]
    next: String,
}

pub(super) async fn choose_theme(FormBody(choice): FormBody<Choice>) -> Response {
    let word = Theme::of(&choice.theme).word();
    let kept = format!("tenure_theme={word}; Path=/; Max-Age=31536000; SameSite=Lax; HttpOnly");
    (StatusCode::SEE_OTHER, [(SET_COOKIE, kept.as_str()), (LOCATION, own_path(&choice.next))]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_this_server() {
        for stays in ["/", "/elections/a?namespace=b", "/audit?cursor=3"] {
            assert_eq!(own_path(stays), stays);
        }
        for leaves in [
            "",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/\t/evil",
            "evil",
            "/a\r\nX: y",
        ] {
            assert_eq!(own_path(leaves), "/", "{leaves:?}");
        }
    }
}

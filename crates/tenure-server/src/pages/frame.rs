//! What is around every page: who visits, in which light, and the frame itself.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::Verb;

use super::assets::{self, LOGO, SCRIPT, STYLE};
use super::flash::{self, Flash};
use super::given::Posted;
use super::parts;
use super::store_banner::{self, Banner};
use crate::access::{Access, Principal};
use crate::listen::Peer;
use crate::problem::Problem;
use crate::{App, RequestId};

/// Somebody looks at a page.
#[derive(Clone)]
pub(crate) struct Visit {
    app: App,
    /// Who, if that is known.
    pub(super) principal: Option<Principal>,
    /// Whether this server asks for credentials at all.
    pub(super) guarded: bool,
    /// How the browser reached us: `127.0.0.1:7171`.
    pub(super) host: String,
    /// The path and query of this page.
    pub(super) here: String,
    /// Whether this server has joined a cluster by gossip.
    gossips: bool,
    /// Whether the connection is encrypted.
    pub(super) tls: bool,
    /// Whether the request only reads: a failure of it has changed nothing.
    reads: bool,
    /// What the request before this one did, to be told once.
    flash: Flash,
    request: RequestId,
    theme: Theme,
}

impl Visit {
    /// Who looks, from where, at what.
    pub(super) fn of(parts: &Parts, app: &App) -> Visit {
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let host = header("host").or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
        let here = parts.uri.path_and_query().map_or("/", |here| here.as_str());
        Visit {
            app: app.clone(),
            principal: parts.extensions.get::<Principal>().cloned(),
            guarded: !matches!(*app.access, Access::Open),
            host: host.unwrap_or("localhost").to_owned(),
            here: here.to_owned(),
            gossips: app.gossip.is_some(),
            tls: parts.extensions.get::<Peer>().is_some_and(|peer| peer.tls),
            reads: matches!(parts.method, Method::GET | Method::HEAD),
            flash: Flash::of(&parts.headers, here),
            request: parts.extensions.get().cloned().unwrap_or_else(|| RequestId("".into())),
            theme: Theme::of(cookie(&parts.headers, "tenure_theme").unwrap_or_default()),
        }
    }

    /// Whether the visitor may do this there.
    pub(super) fn may(&self, verb: Verb, namespace: Option<&Name>) -> bool {
        self.principal.as_ref().is_some_and(|principal| principal.may(verb, namespace))
    }

    /// What the audit calls the visitor.
    pub(super) fn name(&self) -> &str {
        self.principal.as_ref().map_or("nobody", |principal| &principal.name)
    }

    /// Writes down what the visitor did.
    pub(super) async fn record(
        &self,
        app: &App,
        action: &str,
        namespace: Option<&Name>,
        target: &str,
        detail: String,
    ) {
        // Nobody gets as far as a deed without being somebody.
        if let Some(principal) = &self.principal {
            app.audit(principal, action, namespace, target, detail, &self.request).await;
        }
    }

    /// The word for what the visitor's last form did, if this is the page that tells it.
    pub(super) fn done(&self) -> Option<&str> {
        self.flash.done.as_deref()
    }

    /// The secret that the visitor's last form created, if this is the page that shows it.
    pub(super) fn secret(&self) -> Option<&str> {
        self.flash.secret.as_deref()
    }

    /// Redirects to a page after an action. That page tells what was done, and only the first time that it is opened.
    pub(super) fn tell(&self, to: &str, done: &str) -> Response {
        flash::redirect(to, done, None, self.tls)
    }

    /// Redirects to a page after an action that created a secret. That page shows the secret, and only the first time.
    pub(super) fn tell_secret(&self, to: &str, done: &str, secret: &str) -> Response {
        flash::redirect(to, done, Some(secret), self.tls)
    }

    /// Where this server is, as its visitor reached it.
    pub(super) fn origin(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.host)
    }
}

impl FromRequestParts<App> for Visit {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Visit, Self::Rejection> {
        Ok(Visit::of(parts, app))
    }
}

/// A cookie of a request.
pub(super) fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';')).find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key.trim() == name).then_some(value.trim())
    })
}

/// A whole page: its title, what of it stands in the menu, and what is in it.
pub(crate) fn page(visit: &Visit, title: &str, tab: &str, content: Markup) -> Response {
    framed(visit, title, tab, content, &Banner::of(&visit.app))
}

fn framed(visit: &Visit, title: &str, tab: &str, content: Markup, banner: &Banner) -> Response {
    let body = html! {
        (DOCTYPE)
        html lang="en" data-theme=[visit.theme.attribute()] {
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
                (header(visit, tab))
                main #main tabindex="-1" data-failed[banner.is_unreadable()] {
                    div #store-state data-live { (store_banner::shown(banner, visit)) }
                    (content)
                }
                div #news .hidden aria-live="polite" {}
                (footer(visit))
            }
        }
    };
    // The envelope adds the policy, and that nobody keeps it.
    let mut response = ([(CONTENT_TYPE, "text/html; charset=utf-8")], body.into_string()).into_response();
    visit.flash.forget(&mut response);
    response
}

fn header(visit: &Visit, tab: &str) -> Markup {
    let item = |href: &str, name: &str| {
        html! { a href=(href) aria-current=[(tab == name).then_some("page")] { (name) } }
    };
    html! {
        header.bar {
            div {
                a.brand href="/" { img src=(assets::url(LOGO)) alt=""; "Tenure" }
                @if visit.principal.is_some() {
                    nav.nav aria-label="Pages" {
                        (item("/", "Elections"))
                        (item("/names", "Names"))
                        (item("/schedules", "Schedules"))
                        (item("/topics", "Events"))
                        (item("/queues", "Queues"))
                        (item("/workers", "Workers"))
                        (item("/pools", "Pools"))
                        @if visit.gossips { (item("/members", "Members")) }
                        (item("/audit", "Audit"))
                        @if visit.may(Verb::Admin, None) { (item("/access", "Access")) }
                        (item("/docs", "API"))
                    }
                }
                div.aside {
                    span #live .live role="status" hidden {}
                    form method="post" action="/theme" {
                        input type="hidden" name="next" value=(visit.here);
                        button.quiet name="theme" value=(visit.theme.next().word()) title=(format!("Theme: {}", visit.theme.word())) {
                            (visit.theme.sign()) span.hidden { "Switch to the " (visit.theme.next().word()) " theme" }
                        }
                    }
                    @if visit.guarded && visit.principal.is_some() {
                        span.soft.small { (visit.name()) }
                        form method="post" action="/logout" { button.quiet { "Log out" } }
                    }
                }
            }
        }
    }
}

fn footer(visit: &Visit) -> Markup {
    html! {
        footer.foot {
            div {
                span { "Tenure " (env!("CARGO_PKG_VERSION")) }
                a href="/docs" { "API" }
                a href="/openapi.json" { "OpenAPI" }
                @if visit.may(Verb::Read, None) { a href="/metrics" { "Metrics" } }
                a href="/readyz" { "Ready?" }
            }
        }
    }
}

/// The way to another page, after a deed.
pub(super) fn go(to: &str) -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response()
}

/// A path of this server that somebody handed us; `/` if it is none.
pub(super) fn own_path(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if plain && next.starts_with('/') && !next.starts_with("//") { next } else { "/" }
}

/// What went wrong, as a page. A page that the store did not give the data for says only that, and comes back by itself.
pub(super) fn trouble(visit: &Visit, problem: &Problem) -> Response {
    let unreadable = visit.reads && problem.is_about_the_store();
    let (banner, title) = match unreadable {
        true => (Banner::unreadable(problem), "Store unavailable"),
        false => (Banner::of(&visit.app), problem.title),
    };
    let content = html! {
        div.head { div { h1 { (title) } } }
        @if !unreadable {
            (parts::notice("bad", html! {
                p { (problem.detail) }
                @if let Some(remedy) = &problem.remedy { p.soft { (remedy) } }
            }))
        }
        p { a href="/" { "Go to elections" } }
    };
    let mut response = framed(visit, title, "", content, &banner);
    *response.status_mut() = problem.status;
    problem.note(&mut response);
    response
}

/// In which light somebody reads.
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

pub(super) async fn choose_theme(Posted(choice): Posted<Choice>) -> Response {
    let word = Theme::of(&choice.theme).word();
    let kept = format!("tenure_theme={word}; Path=/; Max-Age=31536000; SameSite=Lax; HttpOnly");
    (StatusCode::SEE_OTHER, [(SET_COOKIE, kept.as_str()), (LOCATION, own_path(&choice.next))]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_away_from_this_server() {
        for stays in ["/", "/elections/a?namespace=b", "/audit?before=3"] {
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

//! The table of all routes.
//!
//! A route gets into the router only through [`Routes`], and only together with its [`Need`]. So there is no route that
//! the gate does not guard, and a test that walks this table walks everything that there is.

use axum::Router;
use axum::routing::MethodRouter;
use http::Method;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{PathItem, Paths};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use crate::App;
use crate::access::gate;
use tenure::port::Verb;

/// What a route asks of whoever calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: health, the login page, style sheets.
    Nothing,
    /// To be somebody. What is shown is narrowed to what they may see.
    Known,
    /// This verb in the namespace that the query names (`?namespace=`, else `default`).
    In(Verb),
    /// Any of these verbs in the namespace that the query names: what those who do different things all have to see.
    InAny(&'static [Verb]),
    /// This verb over everything: a grant in `*`.
    Over(Verb),
    /// To be the owner of the session that the path names.
    Session,
    /// Both: to own the session, and this verb in the namespace that the query names. The servers' own namespace is
    /// nobody's to stand in.
    SessionIn(Verb),
    /// To stand for elections in the namespace that the query names: `lead`, anywhere but in the servers' own.
    Stand,
}

/// A route, as the table has it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The method.
    pub method: Method,
    /// The path, with its parameters in braces.
    pub path: String,
    /// What it asks of whoever calls it.
    pub need: Need,
    /// Whether its bodies may be large: they carry payloads.
    pub large: bool,
}

/// What the gate has to know of a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) need: Need,
    pub(crate) large: bool,
    /// Whether its requests renew what a client holds, and have slots of their own.
    pub(crate) heartbeat: bool,
}

/// Routes, being gathered.
#[derive(Default)]
pub struct Routes {
    routers: Vec<(Guard, OpenApiRouter<App>)>,
    table: Vec<Entry>,
}

impl Routes {
    /// None yet.
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Adds documented handlers of the API: `routes.api(Need::In(Verb::Read), routes!(show))`.
    #[must_use]
    pub fn api(self, need: Need, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.guarded(Guard { need, large: false, heartbeat: false }, handlers)
    }

    /// Adds documented handlers of the API whose bodies carry payloads, and may be large.
    #[must_use]
    pub fn api_large(self, need: Need, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.guarded(Guard { need, large: true, heartbeat: false }, handlers)
    }

    /// Adds documented handlers of the API that renew a session or a claim. Slots are reserved for them.
    #[must_use]
    pub fn api_heartbeat(self, need: Need, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.guarded(Guard { need, large: false, heartbeat: true }, handlers)
    }

    fn guarded(mut self, guard: Guard, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.table.extend(entries(&handlers.1, guard));
        self.routers.push((guard, OpenApiRouter::new().routes(handlers)));
        self
    }

    /// Adds a handler that is not part of the API: a page, a style sheet.
    #[must_use]
    pub fn page(mut self, need: Need, method: Method, path: &str, handler: MethodRouter<App>) -> Routes {
        let guard = Guard { need, large: false, heartbeat: false };
        self.table.push(Entry { method, path: path.into(), need, large: false });
        self.routers.push((guard, OpenApiRouter::new().route(path, handler)));
        self
    }

    /// All of both.
    #[must_use]
    pub fn merge(mut self, other: Routes) -> Routes {
        self.routers.extend(other.routers);
        self.table.extend(other.table);
        self
    }

    /// The table.
    pub fn table(&self) -> &[Entry] {
        &self.table
    }

    /// The document that describes those of the API, begun with this one.
    pub fn document(&self, mut document: OpenApi) -> OpenApi {
        for (_, router) in &self.routers {
            document.merge(router.get_openapi().clone());
        }
        document
    }

    /// The router, each route behind the gate, and the document that describes those of the API.
    pub fn split(self, app: &App, document: OpenApi) -> (Router<App>, OpenApi) {
        let mut all = OpenApiRouter::with_openapi(document);
        for (guard, router) in self.routers {
            let layer = axum::middleware::from_fn_with_state((app.clone(), guard), gate);
            all = all.merge(router.route_layer(layer));
        }
        all.split_for_parts()
    }

    /// The service.
    pub fn into_router(self, app: App) -> Router {
        self.split(&app, crate::api::document()).0.with_state(app)
    }
}

fn entries(paths: &Paths, Guard { need, large, .. }: Guard) -> impl Iterator<Item = Entry> {
    let methods = |item: &PathItem| {
        let known = [
            (Method::GET, item.get.is_some()),
            (Method::PUT, item.put.is_some()),
            (Method::POST, item.post.is_some()),
            (Method::DELETE, item.delete.is_some()),
            (Method::PATCH, item.patch.is_some()),
        ];
        known.into_iter().filter(|(_, there)| *there).map(|(method, _)| method)
    };
    let entries: Vec<_> = paths
        .paths
        .iter()
        .flat_map(|(path, item)| {
            methods(item).map(move |method| Entry { method, path: path.clone(), need, large })
        })
        .collect();
    entries.into_iter()
}

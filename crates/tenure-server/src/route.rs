//! Table of all routes.
//!
//! A route enters the router only through [`Routes`], together with its [`RequiredPermission`]. So every
//! route is guarded by the access middleware, and a test over this table covers every route.

use axum::Router;
use axum::routing::MethodRouter;
use http::Method;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::{PathItem, Paths};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use crate::App;
use crate::access::authorize;
use tenure::port::Permission;

/// Permission that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredPermission {
    /// None: health checks, the login page, static assets.
    None,
    /// Any credential. The response is limited to what the principal may read.
    AnyCredential,
    /// This permission in the namespace of the request (`?namespace=`, else `default`).
    In(Permission),
    /// Any of these permissions in the namespace of the request.
    InAny(&'static [Permission]),
    /// This permission in `*`.
    InAll(Permission),
    /// Ownership of the session in the path.
    Session,
    /// Ownership of the session, and this permission in the namespace of the request. The namespace of the
    /// servers is excluded.
    SessionIn(Permission),
    /// `lead` in the namespace of the request, except in the namespace of the servers.
    Campaign,
}

/// Row of the route table.
#[derive(Clone, Debug)]
pub struct RouteEntry {
    /// Method.
    pub method: Method,
    /// Path, with parameters in braces.
    pub path: String,
    /// Required permission.
    pub need: RequiredPermission,
    /// Whether bodies may be large because they contain payloads.
    pub large: bool,
}

/// Properties of a route for the access middleware.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteAccess {
    pub(crate) need: RequiredPermission,
    pub(crate) large: bool,
    /// Whether requests of the route are heartbeats, which have their own permits.
    pub(crate) heartbeat: bool,
}

/// Prefix of routes that only Tenure's own clients use. They are not in the OpenAPI document.
pub(crate) const INTERNAL: &str = "/internal/";

/// Whether a path belongs to the API, as opposed to the pages.
pub(crate) fn is_api(path: &str) -> bool {
    path.starts_with("/v1/") || path.starts_with(INTERNAL)
}

/// Routes under construction.
#[derive(Default)]
pub struct Routes {
    routers: Vec<(RouteAccess, OpenApiRouter<App>)>,
    table: Vec<RouteEntry>,
}

impl Routes {
    /// Create an empty table.
    pub fn new() -> Routes {
        Routes::default()
    }

    /// Add documented API handlers: `routes.api(RequiredPermission::In(Permission::Read),
    /// routes!(get_queue))`.
    #[must_use]
    pub fn api(self, need: RequiredPermission, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.guarded(RouteAccess { need, large: false, heartbeat: false }, handlers)
    }

    /// Add documented API handlers with large bodies.
    #[must_use]
    pub fn api_large(self, need: RequiredPermission, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.guarded(RouteAccess { need, large: true, heartbeat: false }, handlers)
    }

    /// Add documented API handlers for heartbeats, which have reserved permits.
    #[must_use]
    pub fn api_heartbeat(self, need: RequiredPermission, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.guarded(RouteAccess { need, large: false, heartbeat: true }, handlers)
    }

    fn guarded(mut self, guard: RouteAccess, handlers: UtoipaMethodRouter<App>) -> Routes {
        self.table.extend(entries(&handlers.1, guard));
        self.routers.push((guard, OpenApiRouter::new().routes(handlers)));
        self
    }

    /// Add a handler that is not part of the API: a page or a static asset.
    #[must_use]
    pub fn page(
        mut self,
        need: RequiredPermission,
        method: Method,
        path: &str,
        handler: MethodRouter<App>,
    ) -> Routes {
        let guard = RouteAccess { need, large: false, heartbeat: false };
        self.table.push(RouteEntry { method, path: path.into(), need, large: false });
        self.routers.push((guard, OpenApiRouter::new().route(path, handler)));
        self
    }

    /// Merge two tables.
    #[must_use]
    pub fn merge(mut self, other: Routes) -> Routes {
        self.routers.extend(other.routers);
        self.table.extend(other.table);
        self
    }

    /// The table.
    pub fn table(&self) -> &[RouteEntry] {
        &self.table
    }

    /// Complete an OpenAPI document with the routes of the public API.
    pub fn document(&self, mut document: OpenApi) -> OpenApi {
        for (_, router) in &self.routers {
            let api = router.get_openapi();
            if api.paths.paths.keys().any(|path| path.starts_with(INTERNAL)) {
                continue;
            }
            document.merge(api.clone());
        }
        document
    }

    /// Build the router with the access middleware in front of every route, and the document of the API.
    pub fn into_router_and_document(self, app: &App, document: OpenApi) -> (Router<App>, OpenApi) {
        let mut all = OpenApiRouter::with_openapi(document);
        for (guard, router) in self.routers {
            let layer = axum::middleware::from_fn_with_state((app.clone(), guard), authorize);
            all = all.merge(router.route_layer(layer));
        }
        all.split_for_parts()
    }

    /// Build the service.
    pub fn into_router(self, app: App) -> Router {
        self.into_router_and_document(&app, crate::api::document()).0.with_state(app)
    }
}

fn entries(paths: &Paths, RouteAccess { need, large, .. }: RouteAccess) -> impl Iterator<Item = RouteEntry> {
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
            methods(item).map(move |method| RouteEntry { method, path: path.clone(), need, large })
        })
        .collect();
    entries.into_iter()
}

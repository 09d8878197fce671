//! Every route × every principal × every namespace.
//!
//! No route is named here: the test takes them from the table and computes the expected result from the route's
//! [`RequiredPermission`] and the principal's grants alone. New routes are covered automatically.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use tenure::SessionId;
use tenure::port::{ElectionStore as _, Grant, OpenSessionRequest, Permission, TakeoverMode};
use tenure::runtime::random;
use tenure_server::access::Principal;
use tenure_server::route::{RequiredPermission, RouteEntry};
use tower::ServiceExt as _;

use crate::support::{TestServer, guarded, within};

/// Client with or without a credential.
struct Caller {
    name: String,
    grant: Option<Grant>,
    token: Option<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_admits_exactly_the_principals_with_its_required_permission() {
    let fixture = guarded().await;
    let callers = callers(&fixture).await;
    let app = fixture.server.app();
    let (router, routes) = (app.router(), app.routes());
    let table = routes.table();
    assert!(table.len() > 30, "the table has only {} routes", table.len());
    let mut asked = 0;
    for entry in table {
        for caller in &callers {
            for namespace in ["a", "b"] {
                // Ownership matters only for routes with a session in the path.
                let owners: &[bool] =
                    if entry.path.contains("{session}") { &[true, false] } else { &[false] };
                for own in owners {
                    let owner = if *own { caller.name.as_str() } else { "another principal" };
                    let request = request(&fixture, entry, caller, namespace, owner).await;
                    let response = within(router.clone().oneshot(request)).await.expect("infallible");
                    let expected =
                        may(entry.need, caller.grant.as_ref(), caller.token.is_some(), namespace, *own);
                    let what = format!(
                        "{} {} in {namespace} as {} (owner: {own}), which requires {:?}: {}",
                        entry.method,
                        entry.path,
                        caller.name,
                        entry.need,
                        response.status()
                    );
                    // Only admitted requests carry their principal.
                    let passed = response.extensions().get::<Principal>().is_some();
                    if entry.need == RequiredPermission::None {
                        assert!(!matches!(response.status().as_u16(), 401 | 429), "{what}");
                        assert_eq!(passed, caller.token.is_some(), "{what}");
                    } else {
                        assert_eq!(passed, expected, "{what}");
                        if !expected {
                            let status = if caller.token.is_some() { 403 } else { 401 };
                            assert_eq!(response.status().as_u16(), status, "{what}");
                            assert_eq!(
                                response.headers()["content-type"],
                                "application/problem+json",
                                "{what}"
                            );
                            assert_eq!(
                                response.headers().contains_key("www-authenticate"),
                                status == 401,
                                "{what}"
                            );
                        }
                    }
                    asked += 1;
                }
            }
        }
    }
    assert!(asked >= table.len() * callers.len() * 2);
}

/// Independent definition of the expected result.
fn may(need: RequiredPermission, grant: Option<&Grant>, known: bool, namespace: &str, own: bool) -> bool {
    let has = |verb: Permission, place: &str| {
        grant.is_some_and(|grant| {
            let realm = grant.scope.to_string();
            (realm == "*" || realm == place)
                && grant.permissions.iter().any(|v| *v == verb || *v == Permission::Admin)
        })
    };
    match need {
        RequiredPermission::None => true,
        RequiredPermission::AnyCredential => known,
        RequiredPermission::In(verb) => has(verb, namespace),
        RequiredPermission::InAny(verbs) => verbs.iter().any(|verb| has(*verb, namespace)),
        RequiredPermission::InAll(verb) => has(verb, "*"),
        RequiredPermission::Session => known && own,
        RequiredPermission::Campaign => has(Permission::Lead, namespace),
        RequiredPermission::SessionIn(verb) => own && has(verb, namespace),
    }
}

/// A client without credential, and one principal per permission and scope.
async fn callers(fixture: &TestServer) -> Vec<Caller> {
    let mut callers = vec![Caller { name: "anonymous".into(), grant: None, token: None }];
    for verb in Permission::ALL {
        for realm in ["a", "b", "*"] {
            let text = format!("{realm}:{verb}");
            let token = fixture.principal(&text, &[&text]).await;
            let grant = Some(text.parse().expect("a grant"));
            callers.push(Caller { name: text, grant, token: Some(token.text) });
        }
    }
    callers
}

async fn request(
    fixture: &TestServer,
    entry: &RouteEntry,
    caller: &Caller,
    namespace: &str,
    owner: &str,
) -> Request<Body> {
    let mut path = entry.path.replace("{namespace}", namespace);
    if path.contains("{session}") {
        let id = SessionId::from(format!("{:016x}{:016x}", random(), random()));
        let session = OpenSessionRequest {
            id: id.clone(),
            name: "walked".into(),
            lease: Duration::from_secs(60),
            takeover: TakeoverMode::Lease,
            owner: Some(owner.into()),
        };
        fixture.store.open_session(&session).await.expect("opened");
        path = path.replace("{session}", id.as_str());
    }
    while let (Some(from), Some(to)) = (path.find('{'), path.find('}')) {
        path.replace_range(from..=to, "x");
    }
    let builder = Request::builder()
        .method(entry.method.clone())
        .uri(format!("{path}?namespace={namespace}"))
        .header("content-type", "application/json");
    let builder = match &caller.token {
        Some(token) => builder.header("authorization", format!("Bearer {token}")),
        None => builder,
    };
    builder.body(Body::empty()).expect("a request")
}

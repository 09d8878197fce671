//! Where servers push a group's events to.

use axum::Json;
use axum::extract::State;
use http::{StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{GroupKey, Push, Verb};
use tenure::runtime::random;
use tenure_core::event::{check_push, secret_of, signing_key};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{find, key, of_group as refused, record};
use crate::App;
use crate::api::deeds::By;
use crate::api::given::{At, Given, In};
use crate::api::sense::of_group;
use crate::api::sessions::{Within, unfit};
use crate::problem::Problem;
use crate::route::{Need, Routes};
use crate::webhooks::host_is_private;

/// How long an answer may take, unless it is said.
const TIMEOUT_MS: u64 = 10_000;

pub(super) fn routes() -> Routes {
    let admin = Need::In(Verb::Admin);
    Routes::new().api(admin, routes!(set)).api(admin, routes!(unset))
}

/// Where events are to be pushed to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://example.org/hooks/orders", "timeout_ms": 10000}))]
pub(crate) struct PushWish {
    /// `http://` or `https://`: by `POST`, one event each.
    #[schema(max_length = 2048)]
    pub(crate) url: String,
    /// What the signatures are made with: `whsec_` and base64, or 16 bytes at least that are taken as they are. Left out, it stays as it is; if there is none yet, one is made, and shown in the answer to this request only.
    pub(crate) secret: Option<String>,
    /// Whether a new secret is made, and shown in the answer to this request only. The one before is of no use from then on.
    #[serde(default)]
    #[schema(default = false)]
    pub(crate) rotate: bool,
    /// How long an answer may take.
    #[schema(minimum = 1, maximum = 300000, default = 10000)]
    pub(crate) timeout_ms: Option<u64>,
}

/// Where events are pushed to from now on.
#[derive(Serialize, ToSchema)]
pub(super) struct PushSet {
    /// By `POST`, one event each.
    url: String,
    /// How long an answer may take.
    timeout_ms: u64,
    /// The secret that was made. It is never shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// Push a group's events
///
/// The servers consume the group from now on, each a member, and `POST` every event to this address: as this API shows it, with its
/// namespace, topic and group, and with the headers `webhook-id` (the event's number: what makes handling it idempotent), `webhook-timestamp` and `webhook-signature` of Standard
/// Webhooks. Any `2xx` says that it is done; all else that it failed, and is tried again by the group's settings. Redirects are not followed.
#[utoipa::path(put, path = "/v1/topics/{topic}/groups/{group}/push", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = PushWish,
    responses((status = 200, body = PushSet), (status = 404, body = Problem, description = "There is no such group.")))]
pub(super) async fn set(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(wish): Given<PushWish>,
) -> Result<Json<PushSet>, Problem> {
    let group = key(within, topic, group);
    let (push, secret) = set_push(&app, &by, &group, wish).await?;
    Ok(Json(PushSet { url: push.url, timeout_ms: push.timeout_ms, secret }))
}

/// Sets where a group is pushed to, for the API and for the pages: the one way to do it. What it is now, and the secret if one was
/// made.
pub(crate) async fn set_push(
    app: &App,
    by: &By,
    group: &GroupKey,
    wish: PushWish,
) -> Result<(Push, Option<String>), Problem> {
    let timeout_ms = wish.timeout_ms.unwrap_or(TIMEOUT_MS);
    if wish.rotate && wish.secret.is_some() {
        return Err(unfit("rotate", "a secret is given, and another is to be made").remedy("leave one out"));
    }
    let kept = match wish.secret.is_some() || wish.rotate {
        true => None,
        false => known_secret(app, group).await?,
    };
    let given = wish.secret.or(kept);
    let made = given.is_none().then(new_secret);
    let secret = given.or_else(|| made.clone()).unwrap_or_default();
    let push = Push { url: wish.url, secret, timeout_ms };
    check_secret(&push.secret)?;
    check_push(&push).map_err(|error| of_group(&error, "url"))?;
    let shown = address(&push.url)?;
    if !app.push_private && host_is_private(&push.url) {
        return Err(unfit("url", "this is an address of a private network, or of this machine")
            .remedy("push to a public address; or start the servers with --push-private"));
    }
    find(app, group).await?;
    if let Err(error) = app.store.set_push(group, Some(&push)).await {
        return Err(refused(app, group, error).await);
    }
    record(app, by, "push.set", group, shown).await;
    Ok((push, made))
}

/// Stop pushing a group's events
///
/// The servers leave it. How far it was read stays.
#[utoipa::path(delete, path = "/v1/topics/{topic}/groups/{group}/push", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within),
    responses((status = 204), (status = 404, body = Problem, description = "There is no such group.")))]
pub(super) async fn unset(
    State(app): State<App>,
    by: By,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
) -> Result<StatusCode, Problem> {
    let group = key(within, topic, group);
    let known = find(&app, &group).await?;
    if let Err(error) = app.store.set_push(&group, None).await {
        return Err(refused(&app, &group, error).await);
    }
    if let Some(push) = known.push {
        record(&app, &by, "push.unset", &group, address(&push.url).unwrap_or_default()).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// An address that can be pushed to, as it is shown where others read it: without its query, which may be a secret.
pub(crate) fn address(url: &str) -> Result<String, Problem> {
    let odd = |detail: String| {
        unfit("url", detail).remedy("give an address such as https://example.org/hooks/orders")
    };
    let uri: Uri = url.parse().map_err(|error| odd(format!("this is no address: {error}")))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(odd("the address has to be whole: scheme, host and path".into()));
    };
    if authority.host().is_empty() || authority.as_str().contains('@') {
        return Err(odd("the address needs a host, and no user or password".into()));
    }
    Ok(format!("{scheme}://{authority}{}", uri.path()))
}

/// A secret has to make a key.
pub(in crate::api) fn check_secret(secret: &str) -> Result<(), Problem> {
    signing_key(secret).map(drop).map_err(|error| {
        unfit("secret", error.to_string()).remedy("leave it out, and one is made and shown once")
    })
}

/// The secret with which a group is signed already.
async fn known_secret(app: &App, group: &GroupKey) -> Result<Option<String>, Problem> {
    let pushes = app.store.pushes().await?;
    Ok(pushes.into_iter().find(|(key, _)| key == group).map(|(_, push)| push.secret))
}

/// 256 random bits.
pub(in crate::api) fn new_secret() -> String {
    secret_of(std::array::from_fn(|_| random()))
}

//! Webhook of a group.

use axum::Json;
use axum::extract::State;
use http::{StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{GroupKey, Permission, WebhookSettings};
use tenure::runtime::random;
use tenure_core::rules::event::{secret_of, signing_key, validate_webhook};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{find, group_problem as refused, key, record};
use crate::App;
use crate::api::audit_writer::AuditActor;
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::api::sessions::{NamespaceQuery, invalid_value};
use crate::api::validate::event_request_problem;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};
use crate::webhooks::host_is_private;

/// Default timeout of a webhook request.
const TIMEOUT_MS: u64 = 10_000;

pub(super) fn routes() -> Routes {
    let admin = RequiredPermission::In(Permission::Admin);
    Routes::new().api(admin, routes!(put_webhook)).api(admin, routes!(delete_webhook))
}

/// Webhook settings.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://example.org/hooks/orders", "timeout_ms": 10000}))]
pub(crate) struct PutWebhookRequest {
    /// `http://` or `https://` URL; the servers send one POST per event.
    #[schema(max_length = 2048)]
    pub(crate) url: String,
    /// Signing secret: `whsec_` and base64, or at least 16 bytes of text. If omitted, the current secret
    /// stays; if there is none, the server creates one and returns it in this response only.
    pub(crate) secret: Option<String>,
    /// Create a new secret and return it in this response only. The previous secret becomes invalid.
    #[serde(default)]
    #[schema(default = false)]
    pub(crate) rotate_secret: bool,
    /// Timeout of a webhook request.
    #[schema(minimum = 1, maximum = 300000, default = 10000)]
    pub(crate) timeout_ms: Option<u64>,
}

/// Webhook after the change.
#[derive(Serialize, ToSchema)]
pub(super) struct PutWebhookResponse {
    /// URL.
    url: String,
    /// Timeout of a webhook request.
    timeout_ms: u64,
    /// New secret. It is never shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// Create or update the webhook of a group
///
/// The servers consume the group as its members and send each event by `POST` to the URL: the event as in
/// this API, with its namespace, topic and group, and with the headers `webhook-id` (use it to detect
/// duplicates), `webhook-timestamp` and `webhook-signature` of Standard Webhooks. Any `2xx` means processed;
/// any other response means failed, and the event is retried by the group's settings. Redirects are not
/// followed.
#[utoipa::path(put, path = "/v1/topics/{topic}/groups/{group}/webhook", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = PutWebhookRequest,
    responses((status = 200, body = PutWebhookResponse), (status = 404, body = Problem, description = "The group does not exist.")))]
pub(super) async fn put_webhook(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(body): JsonBody<PutWebhookRequest>,
) -> Result<Json<PutWebhookResponse>, Problem> {
    let group = key(within, topic, group);
    let (settings, secret) = set_webhook(&app, &by, &group, body).await?;
    Ok(Json(PutWebhookResponse { url: settings.url, timeout_ms: settings.timeout_ms, secret }))
}

/// Set the webhook of a group, for the API and the pages. Returns the webhook and the new secret, if one was
/// created.
pub(crate) async fn set_webhook(
    app: &App,
    by: &AuditActor,
    group: &GroupKey,
    body: PutWebhookRequest,
) -> Result<(WebhookSettings, Option<String>), Problem> {
    let timeout_ms = body.timeout_ms.unwrap_or(TIMEOUT_MS);
    if body.rotate_secret && body.secret.is_some() {
        return Err(invalid_value("rotate_secret", "`secret` and `rotate_secret` exclude each other")
            .remedy("omit one of them"));
    }
    let kept = match body.secret.is_some() || body.rotate_secret {
        true => None,
        false => known_secret(app, group).await?,
    };
    let secret = body.secret.or(kept);
    let created = secret.is_none().then(new_secret);
    let secret = secret.or_else(|| created.clone()).unwrap_or_default();
    let settings = WebhookSettings { url: body.url, secret, timeout_ms };
    validate_secret(&settings.secret)?;
    validate_webhook(&settings).map_err(|error| event_request_problem(&error, "url"))?;
    let shown = display_url(&settings.url)?;
    if !app.allow_private_webhooks && host_is_private(&settings.url) {
        return Err(invalid_value("url", "the URL has a private or local address")
            .remedy("use a public address, or start the servers with --allow-private-webhooks"));
    }
    find(app, group).await?;
    if let Err(error) = app.store.set_webhook(group, Some(&settings)).await {
        return Err(refused(app, group, error).await);
    }
    record(app, by, "webhook.set", group, shown).await;
    Ok((settings, created))
}

/// Delete the webhook of a group
///
/// The servers leave the group. The group keeps its offsets.
#[utoipa::path(delete, path = "/v1/topics/{topic}/groups/{group}/webhook", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery),
    responses((status = 204), (status = 404, body = Problem, description = "The group does not exist.")))]
pub(super) async fn delete_webhook(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<StatusCode, Problem> {
    let group = key(within, topic, group);
    let known = find(&app, &group).await?;
    if let Err(error) = app.store.set_webhook(&group, None).await {
        return Err(refused(&app, &group, error).await);
    }
    if let Some(settings) = known.webhook {
        record(&app, &by, "webhook.delete", &group, display_url(&settings.url).unwrap_or_default()).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Validate a webhook URL and return it without its query, which may contain a secret.
pub(crate) fn display_url(url: &str) -> Result<String, Problem> {
    let odd = |detail: String| {
        invalid_value("url", detail).remedy("use a URL such as https://example.org/hooks/orders")
    };
    let uri: Uri = url.parse().map_err(|error| odd(format!("the URL is invalid: {error}")))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(odd("the URL needs a scheme, a host and a path".into()));
    };
    if authority.host().is_empty() || authority.as_str().contains('@') {
        return Err(odd("the URL needs a host and must not contain a user or password".into()));
    }
    Ok(format!("{scheme}://{authority}{}", uri.path()))
}

/// Validate that a secret yields a key.
pub(in crate::api) fn validate_secret(secret: &str) -> Result<(), Problem> {
    signing_key(secret).map(drop).map_err(|error| {
        invalid_value("secret", error.to_string()).remedy("omit it, and the server creates one")
    })
}

/// Current secret of a group's webhook.
async fn known_secret(app: &App, group: &GroupKey) -> Result<Option<String>, Problem> {
    let webhooks = app.store.webhooks().await?;
    Ok(webhooks.into_iter().find(|(key, _)| key == group).map(|(_, settings)| settings.secret))
}

/// Create a secret of 256 random bits.
pub(in crate::api) fn new_secret() -> String {
    secret_of(std::array::from_fn(|_| random()))
}

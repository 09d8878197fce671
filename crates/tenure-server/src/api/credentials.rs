//! Credentials: list without secrets, create, rotate and revoke.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{Credential, CredentialVerifier, Grant, Permission};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::extract::{JsonBody, OptionalJsonBody, PathParams};
use crate::access::access_token::{self, AccessToken};
use crate::access::{Principal, is_dashboard_session, principal_name};
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};
use crate::{App, RequestId};

/// Maximum length of a certificate subject.
const TEXT_MAX: usize = 256;
/// Maximum number of grants of a credential.
const GRANTS_MAX: usize = 100;
/// Default lifetime of a credential: 90 days.
const LIFETIME_MS: u64 = 90 * 24 * 3_600_000;
/// Maximum lifetime: one hundred years.
const LIFETIME_MAX_MS: u64 = 100 * 365 * 24 * 3_600_000;
/// Remedy for invalid grants.
const GRANTS_LIKE: &str = r#"send for example [{"namespace": "prod", "permissions": ["read", "lead"]}]"#;
/// Default grace period of a rotated access token.
const GRACE_PERIOD_MS: u64 = 3_600_000;

pub(crate) fn routes() -> Routes {
    let need = RequiredPermission::InAll(Permission::Admin);
    Routes::new()
        .api(need, routes!(list_credentials))
        .api(need, routes!(create_credential))
        .api(need, routes!(revoke_credential))
        .api(need, routes!(rotate_credential))
}

/// Credential without its verifier.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CredentialView {
    /// Credential id, the first part of an access token.
    id: String,
    /// Name of the principal.
    name: String,
    /// Certificate subject, if it is not an access token.
    certificate_subject: Option<String>,
    /// Grants.
    grants: Vec<Grant>,
    /// Time of creation.
    created_at_ms: i64,
    /// Principal that created it.
    created_by: String,
    /// Time of expiry; `null` if it does not expire.
    expires_at_ms: Option<i64>,
    /// Time of revocation, if it was revoked.
    revoked_at_ms: Option<i64>,
    /// Whether it is valid now.
    valid: bool,
}

impl CredentialView {
    fn of(credential: Credential, wall_ms: i64) -> CredentialView {
        CredentialView {
            valid: credential.is_valid(wall_ms),
            certificate_subject: match credential.verifier {
                CredentialVerifier::Certificate { certificate_subject: subject } => Some(subject),
                CredentialVerifier::AccessToken { .. } => None,
            },
            id: credential.id,
            name: credential.name,
            grants: credential.grants,
            created_at_ms: credential.created_at_ms,
            created_by: credential.created_by,
            expires_at_ms: credential.expires_at_ms,
            revoked_at_ms: credential.revoked_at_ms,
        }
    }
}

/// Stored credentials.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CredentialList {
    /// Newest first.
    credentials: Vec<CredentialView>,
}

/// Created credential. The access token is shown once.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedCredential {
    /// Access token; `null` for a certificate.
    access_token: Option<String>,
    #[serde(flatten)]
    credential: CredentialView,
}

/// Credential to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateCredentialRequest {
    /// Name of the principal.
    #[schema(example = "worker-1")]
    name: Name,
    /// Grants.
    grants: Vec<Grant>,
    /// Lifetime; 90 days if omitted.
    #[schema(minimum = 1, maximum = 3_153_600_000_u64)]
    expires_in_ms: Option<u64>,
    /// Whether the credential never expires.
    #[serde(default)]
    no_expiry: bool,
    /// Certificate subject (RFC 4514), instead of an access token.
    #[schema(example = "CN=worker-1,O=acme")]
    certificate_subject: Option<String>,
}

/// Rotation of an access token.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateCredentialRequest {
    /// How long the old access token stays valid; one hour if omitted.
    #[schema(minimum = 0, maximum = 3_153_600_000_u64)]
    grace_period_ms: Option<u64>,
}

/// List credentials without their secrets.
#[utoipa::path(get, path = "/v1/credentials", tag = "credentials", responses((status = 200, body = CredentialList), (status = 403, body = Problem)))]
async fn list_credentials(State(app): State<App>) -> Result<Json<CredentialList>, Problem> {
    let wall = app.runtime.wall_ms();
    let all = app.store.credentials().await?;
    let all = all.into_iter().filter(|credential| !is_dashboard_session(credential));
    Ok(Json(CredentialList {
        credentials: all.map(|credential| CredentialView::of(credential, wall)).collect(),
    }))
}

/// Create a credential. The access token is in this response only.
#[utoipa::path(post, path = "/v1/credentials", tag = "credentials", request_body = CreateCredentialRequest,
    responses((status = 201, body = CreatedCredential), (status = 403, body = Problem), (status = 422, body = Problem)))]
async fn create_credential(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    JsonBody(new): JsonBody<CreateCredentialRequest>,
) -> Result<(StatusCode, Json<CreatedCredential>), Problem> {
    check(&new)?;
    let wall = app.runtime.wall_ms();
    let token = AccessToken::generate(|| app.runtime.random());
    let (verifier, text) = match new.certificate_subject {
        Some(certificate_subject) => (CredentialVerifier::Certificate { certificate_subject }, None),
        None => (CredentialVerifier::AccessToken { digest: token.digest }, Some(token.text)),
    };
    let lifetime = (!new.no_expiry).then_some(new.expires_in_ms.unwrap_or(LIFETIME_MS));
    let credential = Credential {
        id: token.id,
        name: new.name.to_string(),
        verifier,
        grants: new.grants,
        created_at_ms: wall,
        created_by: principal.name.to_string(),
        expires_at_ms: lifetime.map(|ms| after(wall, ms)),
        revoked_at_ms: None,
    };
    put(&app, &credential).await?;
    app.audit(&principal, "credential.create", None, &credential.id, describe(&credential), &request).await;
    Ok((
        StatusCode::CREATED,
        Json(CreatedCredential { access_token: text, credential: CredentialView::of(credential, wall) }),
    ))
}

/// Revoke a credential; effective on every replica within seconds.
#[utoipa::path(delete, path = "/v1/credentials/{credential}", tag = "credentials",
    params(("credential" = String, Path, description = "Credential id, or the access token itself")),
    responses((status = 200, body = CredentialView), (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn revoke_credential(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    PathParams(id): PathParams<String>,
) -> Result<Json<CredentialView>, Problem> {
    let mut credential = find(&app, &id).await?;
    let wall = app.runtime.wall_ms();
    if credential.revoked_at_ms.is_none() {
        credential.revoked_at_ms = Some(wall);
        put(&app, &credential).await?;
        app.audit(&principal, "credential.revoke", None, &credential.id, describe(&credential), &request)
            .await;
    }
    Ok(Json(CredentialView::of(credential, wall)))
}

/// Create an access token with the name and grants of another one, which expires after the grace period.
#[utoipa::path(post, path = "/v1/credentials/{credential}/rotate", tag = "credentials",
    params(("credential" = String, Path, description = "Id of the old credential, or its access token")), request_body = Option<RotateCredentialRequest>,
    responses((status = 201, body = CreatedCredential), (status = 403, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "The credential is no longer valid."), (status = 422, body = Problem)))]
async fn rotate_credential(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    PathParams(id): PathParams<String>,
    OptionalJsonBody(rotation): OptionalJsonBody<RotateCredentialRequest>,
) -> Result<(StatusCode, Json<CreatedCredential>), Problem> {
    let old = find(&app, &id).await?;
    let wall = app.runtime.wall_ms();
    if !old.is_valid(wall) || matches!(old.verifier, CredentialVerifier::Certificate { .. }) {
        let detail = format!("credential {} is not a valid access token", old.id);
        return Err(
            Problem::new(StatusCode::CONFLICT, "credential-not-rotatable", detail).remedy("create a new one")
        );
    }
    let grace_period_ms = rotation.grace_period_ms.unwrap_or(GRACE_PERIOD_MS);
    lifetime("grace_period_ms", grace_period_ms, 0)?;
    let token = AccessToken::generate(|| app.runtime.random());
    let fresh = Credential {
        id: token.id,
        verifier: CredentialVerifier::AccessToken { digest: token.digest },
        created_at_ms: wall,
        created_by: principal.name.to_string(),
        expires_at_ms: old.expires_at_ms.map(|at| wall.saturating_add(at - old.created_at_ms)),
        ..old.clone()
    };
    // Store the new credential first: a failure in between leaves two valid ones, not none.
    put(&app, &fresh).await?;
    let until = after(wall, grace_period_ms);
    let ending =
        Credential { expires_at_ms: Some(old.expires_at_ms.map_or(until, |at| at.min(until))), ..old };
    put(&app, &ending).await?;
    app.audit(&principal, "credential.rotate", None, &ending.id, describe(&fresh), &request).await;
    Ok((
        StatusCode::CREATED,
        Json(CreatedCredential {
            access_token: Some(token.text),
            credential: CredentialView::of(fresh, wall),
        }),
    ))
}

async fn find(app: &App, id_or_token: &str) -> Result<Credential, Problem> {
    // Accept the access token itself instead of the id.
    let id = access_token::parse(id_or_token).map_or(id_or_token, |(id, _)| id);
    let all = app.store.credentials().await?;
    let mut all = all.into_iter().filter(|credential| !is_dashboard_session(credential));
    all.find(|credential| credential.id == id).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-credential", "the credential does not exist")
            .field("credential")
            .remedy("send the part of the access token between the first and the second underscore; GET /v1/credentials lists the ids")
    })
}

async fn put(app: &App, credential: &Credential) -> Result<(), Problem> {
    app.store.put_credential(credential).await?;
    app.access.refresh().await;
    Ok(())
}

fn check(new: &CreateCredentialRequest) -> Result<(), Problem> {
    principal_name(new.name.as_str())
        .map_err(|error| invalid_value("name", error.to_string(), "send a name such as worker-1"))?;
    let plain =
        |text: &str| !text.trim().is_empty() && text.len() <= TEXT_MAX && !text.contains(char::is_control);
    if new.certificate_subject.as_deref().is_some_and(|subject| !plain(subject)) {
        return Err(invalid_value(
            "certificate_subject",
            format!("a subject has 1 to {TEXT_MAX} bytes and no control characters"),
            "write it as RFC 4514 does, such as CN=worker-1,O=acme",
        ));
    }
    if new.grants.len() > GRANTS_MAX || new.grants.iter().any(|grant| grant.permissions.is_empty()) {
        return Err(invalid_value(
            "grants",
            format!("a credential has at most {GRANTS_MAX} grants, each with permissions"),
            GRANTS_LIKE,
        ));
    }
    if new.grants.is_empty() {
        return Err(invalid_value("grants", "a credential needs at least one grant", GRANTS_LIKE));
    }
    match new.expires_in_ms {
        Some(_) if new.no_expiry => Err(invalid_value(
            "no_expiry",
            "`expires_in_ms` and `no_expiry` exclude each other",
            "omit one of them",
        )),
        Some(ms) => lifetime("expires_in_ms", ms, 1),
        None => Ok(()),
    }
}

fn lifetime(field: &str, ms: u64, min: u64) -> Result<(), Problem> {
    if (min..=LIFETIME_MAX_MS).contains(&ms) {
        return Ok(());
    }
    let detail = format!("{ms} ms is not between {min} and {LIFETIME_MAX_MS} ms");
    Err(invalid_value(field, detail, "choose a value in this range; 3600000 is one hour"))
}

fn after(wall_ms: i64, ms: u64) -> i64 {
    wall_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))
}

/// Describe a credential for the audit log.
fn describe(credential: &Credential) -> String {
    let grants: Vec<_> = credential.grants.iter().map(Grant::to_string).collect();
    format!("{} {}", credential.name, grants.join(" "))
}

fn invalid_value(field: &str, detail: impl Into<String>, remedy: impl Into<Box<str>>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", detail).field(field).remedy(remedy)
}

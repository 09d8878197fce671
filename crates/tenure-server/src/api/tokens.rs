//! Credentials: listed without their secrets, made, rotated, revoked.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{Credential, Grant, Proof, Verb};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::given::{At, Given, MaybeGiven};
use crate::access::token::{self, Token};
use crate::access::{Principal, is_dashboard_session, principal_name};
use crate::problem::Problem;
use crate::route::{Need, Routes};
use crate::{App, RequestId};

/// The longest subject of a certificate.
const TEXT_MAX: usize = 256;
/// The most grants of one credential.
const GRANTS_MAX: usize = 100;
/// How long a credential is worth something unless asked otherwise: 90 days.
const LIFETIME_S: u64 = 90 * 24 * 3600;
/// The longest that can be asked for: a hundred years.
const LIFETIME_MAX_S: u64 = 100 * 365 * 24 * 3600;
/// What grants look like.
const GRANTS_LIKE: &str = r#"give for example [{"namespace": "prod", "verbs": ["read", "lead"]}]"#;
/// How long the old token goes on being worth something after it was rotated.
const OVERLAP_S: u64 = 3600;

pub(crate) fn routes() -> Routes {
    let need = Need::Over(Verb::Admin);
    Routes::new()
        .api(need, routes!(list))
        .api(need, routes!(create))
        .api(need, routes!(revoke))
        .api(need, routes!(rotate))
}

/// A credential, as it is shown: without what proves it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Shown {
    /// Which: the first part of a token.
    id: String,
    /// What people call the principal.
    name: String,
    /// The subject of its certificate, if it is no token.
    subject: Option<String>,
    /// What it may do.
    grants: Vec<Grant>,
    /// When it was made.
    created_at_ms: i64,
    /// Who made it.
    created_by: String,
    /// From when it is worth nothing; never, if there is none.
    expires_at_ms: Option<i64>,
    /// When it was revoked, if it was.
    revoked_at_ms: Option<i64>,
    /// Whether it is worth anything now.
    valid: bool,
}

impl Shown {
    fn of(credential: Credential, wall_ms: i64) -> Shown {
        Shown {
            valid: credential.is_valid(wall_ms),
            subject: match credential.proof {
                Proof::Certificate { subject } => Some(subject),
                Proof::Token { .. } => None,
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

/// All credentials that are not forgotten yet.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    /// The newest first.
    tokens: Vec<Shown>,
}

/// What was made. The token is shown this once.
#[derive(Serialize, ToSchema)]
pub(crate) struct Made {
    /// What its owner keeps. Nothing, for a certificate.
    token: Option<String>,
    #[serde(flatten)]
    credential: Shown,
}

/// A credential to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct New {
    /// What people will call the principal.
    #[schema(example = "worker-1")]
    name: Name,
    /// What it may do.
    grants: Vec<Grant>,
    /// For how many seconds it is worth something; 90 days unless said.
    #[schema(minimum = 1, maximum = 3_153_600_000_u64)]
    expires_in_s: Option<u64>,
    /// Whether it never expires.
    #[serde(default)]
    forever: bool,
    /// The subject of a certificate, as RFC 4514 writes it, instead of a token.
    #[schema(example = "CN=worker-1,O=acme")]
    subject: Option<String>,
}

/// How a token is rotated.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rotation {
    /// For how many seconds the old one goes on being worth something; an hour unless said.
    #[schema(minimum = 0, maximum = 3_153_600_000_u64)]
    overlap_s: Option<u64>,
}

/// All credentials, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", tag = "access", responses((status = 200, body = Tokens), (status = 403, body = Problem)))]
async fn list(State(app): State<App>) -> Result<Json<Tokens>, Problem> {
    let wall = app.runtime.wall_ms();
    let all = app.store.credentials().await?;
    let all = all.into_iter().filter(|credential| !is_dashboard_session(credential));
    Ok(Json(Tokens { tokens: all.map(|credential| Shown::of(credential, wall)).collect() }))
}

/// Makes a credential. A token's text is in the answer, and never shown again.
#[utoipa::path(post, path = "/v1/tokens", tag = "access", request_body = New,
    responses((status = 201, body = Made), (status = 403, body = Problem), (status = 422, body = Problem)))]
async fn create(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    Given(new): Given<New>,
) -> Result<(StatusCode, Json<Made>), Problem> {
    check(&new)?;
    let wall = app.runtime.wall_ms();
    let token = Token::generate(|| app.runtime.random());
    let (proof, text) = match new.subject {
        Some(subject) => (Proof::Certificate { subject }, None),
        None => (Proof::Token { digest: token.digest }, Some(token.text)),
    };
    let lifetime = (!new.forever).then_some(new.expires_in_s.unwrap_or(LIFETIME_S));
    let credential = Credential {
        id: token.id,
        name: new.name.to_string(),
        proof,
        grants: new.grants,
        created_at_ms: wall,
        created_by: principal.name.to_string(),
        expires_at_ms: lifetime.map(|seconds| after(wall, seconds)),
        revoked_at_ms: None,
    };
    put(&app, &credential).await?;
    app.audit(&principal, "token.create", None, &credential.id, told(&credential), &request).await;
    Ok((StatusCode::CREATED, Json(Made { token: text, credential: Shown::of(credential, wall) })))
}

/// Revokes a credential, on every replica within seconds.
#[utoipa::path(delete, path = "/v1/tokens/{token}", tag = "access",
    params(("token" = String, Path, description = "its id, or the whole token")),
    responses((status = 200, body = Shown), (status = 403, body = Problem), (status = 404, body = Problem)))]
async fn revoke(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    At(id): At<String>,
) -> Result<Json<Shown>, Problem> {
    let mut credential = find(&app, &id).await?;
    let wall = app.runtime.wall_ms();
    if credential.revoked_at_ms.is_none() {
        credential.revoked_at_ms = Some(wall);
        put(&app, &credential).await?;
        app.audit(&principal, "token.revoke", None, &credential.id, told(&credential), &request).await;
    }
    Ok(Json(Shown::of(credential, wall)))
}

/// Makes a token with the name and the grants of another one, which expires soon.
#[utoipa::path(post, path = "/v1/tokens/{token}/rotate", tag = "access",
    params(("token" = String, Path, description = "the id of the old one, or the whole of it")), request_body = Option<Rotation>,
    responses((status = 201, body = Made), (status = 403, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem, description = "it is worth nothing any more"), (status = 422, body = Problem)))]
async fn rotate(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    At(id): At<String>,
    MaybeGiven(rotation): MaybeGiven<Rotation>,
) -> Result<(StatusCode, Json<Made>), Problem> {
    let old = find(&app, &id).await?;
    let wall = app.runtime.wall_ms();
    if !old.is_valid(wall) || matches!(old.proof, Proof::Certificate { .. }) {
        let detail = format!("credential {} is no token that is worth anything", old.id);
        return Err(Problem::new(StatusCode::CONFLICT, "not-rotatable", detail).remedy("make a new one"));
    }
    let overlap = rotation.overlap_s.unwrap_or(OVERLAP_S);
    lifetime("overlap_s", overlap, 0)?;
    let token = Token::generate(|| app.runtime.random());
    let fresh = Credential {
        id: token.id,
        proof: Proof::Token { digest: token.digest },
        created_at_ms: wall,
        created_by: principal.name.to_string(),
        expires_at_ms: old.expires_at_ms.map(|at| wall.saturating_add(at - old.created_at_ms)),
        ..old.clone()
    };
    // The new one first: a failure in between leaves two, not none.
    put(&app, &fresh).await?;
    let until = after(wall, overlap);
    let ending =
        Credential { expires_at_ms: Some(old.expires_at_ms.map_or(until, |at| at.min(until))), ..old };
    put(&app, &ending).await?;
    app.audit(&principal, "token.rotate", None, &ending.id, told(&fresh), &request).await;
    Ok((StatusCode::CREATED, Json(Made { token: Some(token.text), credential: Shown::of(fresh, wall) })))
}

async fn find(app: &App, which: &str) -> Result<Credential, Problem> {
    // Who has nothing but the token itself may mean it all the same.
    let id = token::parse(which).map_or(which, |(id, _)| id);
    let all = app.store.credentials().await?;
    let mut all = all.into_iter().filter(|credential| !is_dashboard_session(credential));
    all.find(|credential| credential.id == id).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-token", "there is no credential with this id")
            .field("token")
            .remedy("give the part of the token between the first and the second underscore; GET /v1/tokens lists them")
    })
}

async fn put(app: &App, credential: &Credential) -> Result<(), Problem> {
    app.store.put_credential(credential).await?;
    app.access.refresh().await;
    Ok(())
}

fn check(new: &New) -> Result<(), Problem> {
    principal_name(new.name.as_str())
        .map_err(|error| unfit("name", error.to_string(), "give a name such as worker-1"))?;
    let plain =
        |text: &str| !text.trim().is_empty() && text.len() <= TEXT_MAX && !text.contains(char::is_control);
    if new.subject.as_deref().is_some_and(|subject| !plain(subject)) {
        return Err(unfit(
            "subject",
            format!("a subject has 1 to {TEXT_MAX} bytes and no control characters"),
            "write it as RFC 4514 does, such as CN=worker-1,O=acme",
        ));
    }
    if new.grants.len() > GRANTS_MAX || new.grants.iter().any(|grant| grant.verbs.is_empty()) {
        return Err(unfit(
            "grants",
            format!("there are at most {GRANTS_MAX} grants, each with its verbs"),
            GRANTS_LIKE,
        ));
    }
    if new.grants.is_empty() {
        return Err(unfit("grants", "a credential without grants is worth nothing", GRANTS_LIKE));
    }
    match new.expires_in_s {
        Some(_) if new.forever => {
            Err(unfit("forever", "it either expires or does not", "leave out expires_in_s or forever"))
        }
        Some(seconds) => lifetime("expires_in_s", seconds, 1),
        None => Ok(()),
    }
}

fn lifetime(field: &str, seconds: u64, least: u64) -> Result<(), Problem> {
    if (least..=LIFETIME_MAX_S).contains(&seconds) {
        return Ok(());
    }
    let detail = format!("{seconds} is not between {least} and {LIFETIME_MAX_S} seconds");
    Err(unfit(field, detail, "choose a number in between; 3600 is an hour"))
}

fn after(wall_ms: i64, seconds: u64) -> i64 {
    wall_ms.saturating_add(i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX))
}

/// What the audit says of a credential.
fn told(credential: &Credential) -> String {
    let grants: Vec<_> = credential.grants.iter().map(Grant::to_string).collect();
    format!("{} {}", credential.name, grants.join(" "))
}

fn unfit(field: &str, detail: impl Into<String>, remedy: impl Into<Box<str>>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", detail).field(field).remedy(remedy)
}

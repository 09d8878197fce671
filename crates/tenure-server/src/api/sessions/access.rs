//! Credentials in the form of the port, for clients that create the secret themselves and send only its
//! digest.

use axum::extract::State;
use http::StatusCode;
use tenure::port::{Credential, CredentialVerifier};

use super::{display_actor, invalid_value, validate_count, validate_text};
use crate::access::{Principal, principal_name};
use crate::api::extract::{JsonBody, PathParams};
use crate::problem::Problem;
use crate::{App, RequestId};

/// Store a credential
///
/// Creates a credential, or changes the dates of an existing one: its name, verifier and grants stay, and its
/// validity is never extended. Used by `tenure credentials`; `POST /v1/credentials` creates an access token
/// on the server.
#[utoipa::path(put, path = "/internal/v1/credentials/{credential}", tag = "internal",
    params(("credential" = String, Path, description = "Credential id, the first part of an access token")), request_body = Credential,
    responses((status = 204),
        (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 422, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_credential(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    PathParams(id): PathParams<String>,
    JsonBody(mut credential): JsonBody<Credential>,
) -> Result<StatusCode, Problem> {
    if credential.id != id {
        return Err(invalid_value("id", "path and body name different credentials"));
    }
    let known = app.store.credentials().await?.into_iter().find(|known| known.id == id);
    let action = match known {
        Some(known) => {
            let revokes = credential.revoked_at_ms.is_some() && known.revoked_at_ms.is_none();
            // Of an existing credential only the dates can change; the client never saw its digest.
            let (expires_at_ms, revoked_at_ms) = (credential.expires_at_ms, credential.revoked_at_ms);
            credential = Credential { expires_at_ms, revoked_at_ms, ..known };
            if revokes { "credential.revoke" } else { "credential.expire" }
        }
        None => {
            check(&credential)?;
            credential.created_by = display_actor(&principal, &credential.created_by);
            "credential.create"
        }
    };
    app.store.put_credential(&credential).await?;
    app.access.refresh().await;
    let grants: Vec<_> = credential.grants.iter().map(ToString::to_string).collect();
    let detail = format!("{} {}", credential.name, grants.join(" "));
    app.audit(&principal, action, None, &id, detail, &request).await;
    Ok(StatusCode::NO_CONTENT)
}

fn check(credential: &Credential) -> Result<(), Problem> {
    let hex = |text: &str, digits| {
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !hex(&credential.id, 16) {
        return Err(invalid_value("id", "a credential id has 16 lower-case hexadecimal digits"));
    }
    // The name appears in logs and is the owner of sessions.
    principal_name(&credential.name).map_err(|error| invalid_value("name", error.to_string()))?;
    match &credential.verifier {
        CredentialVerifier::AccessToken { digest } if !hex(digest, 64) => {
            return Err(invalid_value(
                "verifier.digest",
                "the digest is SHA-256 of the secret, as 64 hexadecimal digits",
            ));
        }
        CredentialVerifier::AccessToken { .. } => {}
        CredentialVerifier::Certificate { certificate_subject: subject } => {
            validate_text("verifier.certificate_subject", subject)?
        }
    }
    validate_count("grants", credential.grants.len())?;
    if credential.grants.is_empty() || credential.grants.iter().any(|grant| grant.permissions.is_empty()) {
        return Err(invalid_value("grants", "a credential needs at least one grant"));
    }
    Ok(())
}

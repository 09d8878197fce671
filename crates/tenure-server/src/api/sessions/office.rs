//! Credentials, in the form of the port: for programs that make the secret themselves, and send its digest only.

use axum::extract::State;
use http::StatusCode;
use tenure::port::{Credential, Proof};

use super::{few, fits, signed, unfit};
use crate::access::{Principal, principal_name};
use crate::api::given::{At, Given};
use crate::problem::Problem;
use crate::{App, RequestId};

/// Keep a credential
///
/// A new one, or a known one with other dates: its name, proof and grants stay what they were, and it is never worth more
/// than it was. `tenure token` uses it; `POST /v1/tokens` makes a token for those who want it made for them.
#[utoipa::path(put, path = "/v1/tokens/{token}", tag = "access",
    params(("token" = String, Path, description = "its id: the first part of a token")), request_body = Credential,
    responses((status = 204),
        (status = 403, body = Problem, content_type = "application/problem+json"),
        (status = 422, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_credential(
    State(app): State<App>,
    principal: Principal,
    request: RequestId,
    At(id): At<String>,
    Given(mut credential): Given<Credential>,
) -> Result<StatusCode, Problem> {
    if credential.id != id {
        return Err(unfit("id", "the address and the body name different credentials"));
    }
    let known = app.store.credentials().await?.into_iter().find(|known| known.id == id);
    let action = match known {
        Some(known) => {
            let revokes = credential.revoked_at_ms.is_some() && known.revoked_at_ms.is_none();
            // Of a known one, the dates are all that can change, and whoever sends it back never saw its digest.
            let (expires_at_ms, revoked_at_ms) = (credential.expires_at_ms, credential.revoked_at_ms);
            credential = Credential { expires_at_ms, revoked_at_ms, ..known };
            if revokes { "token.revoke" } else { "token.expire" }
        }
        None => {
            check(&credential)?;
            credential.created_by = signed(&principal, &credential.created_by);
            "token.create"
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
        return Err(unfit("id", "the id of a credential is 16 lower-case hexadecimal digits"));
    }
    // It stands in logs, and is the owner of sessions.
    principal_name(&credential.name).map_err(|error| unfit("name", error.to_string()))?;
    match &credential.proof {
        Proof::Token { digest } if !hex(digest, 64) => {
            return Err(unfit(
                "proof.digest",
                "the digest is SHA-256 of the secret, as 64 hexadecimal digits",
            ));
        }
        Proof::Token { .. } => {}
        Proof::Certificate { subject } => fits("proof.subject", subject)?,
    }
    few("grants", credential.grants.len())?;
    if credential.grants.is_empty() || credential.grants.iter().any(|grant| grant.verbs.is_empty()) {
        return Err(unfit("grants", "a credential without grants is worth nothing"));
    }
    Ok(())
}

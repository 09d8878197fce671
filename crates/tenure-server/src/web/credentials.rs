//! Credentials: the list, a new access token, and revocation.

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{Credential, CredentialVerifier, Grant, GrantScope, Permission};

use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, go, page, problem_page};
use super::{components, format};
use crate::App;
use crate::access::access_token::{self, AccessToken};
use crate::access::{is_dashboard_session, principal_name};
use crate::problem::Problem;

/// The expiry choices of the form: value, label and days.
const EXPIRIES: [(&str, &str, Option<i64>); 5] = [
    ("1d", "1 day", Some(1)),
    ("30d", "30 days", Some(30)),
    ("90d", "90 days", Some(90)),
    ("365d", "1 year", Some(365)),
    ("never", "No expiry", None),
];
const DAY_MS: i64 = 86_400_000;

pub(super) async fn show(State(app): State<App>, ctx: PageContext) -> Response {
    let mut credentials = match with_timeout(app.store.credentials()).await {
        Ok(credentials) => credentials,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    credentials.retain(|credential| !is_dashboard_session(credential));
    let wall = app.runtime.wall_ms();
    let content = html! {
        div.head { div {
            h1 { "Credentials" }
            p { "Access tokens, client certificates and their permissions. A secret is shown once, when it is created; the store keeps only its digest." }
        } }
        @if !ctx.guarded {
            (components::notice("warn", html! { p {
                span.strong { "This server requires no credentials" } ": every local client has full access. "
                "Credentials created here apply to servers that require them."
            } }))
        }
        @if let Some(text) = ctx.secret() { (secret(&credentials, text)) }
        section.card aria-labelledby="credentials" {
            header { h2 #credentials { (format::count(credentials.len(), "credential")) } }
            @if credentials.is_empty() { p.empty { "No credentials yet. Create one below." } }
            @else { (table(&credentials, wall)) }
        }
        section.card aria-labelledby="create" {
            header { h2 #create { "Create an access token" } }
            div.body { (form()) }
        }
    };
    page(&ctx, "Credentials", "Credentials", content)
}

fn secret(credentials: &[Credential], text: &str) -> Markup {
    let id = access_token::parse(text).map(|(id, _)| id);
    let made = credentials.iter().find(|credential| Some(credential.id.as_str()) == id);
    let whose =
        made.map_or_else(|| "Access token.".into(), |made| format!("Access token for {}.", made.name));
    components::secret(&whose, text)
}

fn table(credentials: &[Credential], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Name" } th scope="col" { "Type" } th scope="col" { "Permissions" } th scope="col" { "State" }
                th scope="col" { "Created" } th scope="col" { span.hidden { "Action" } }
            } }
            tbody {
                @for credential in credentials {
                    @let valid = credential.is_valid(wall);
                    tr .inactive[!valid] {
                        th scope="row" { (credential.name) }
                        td.wide data-label="Type" {
                            @match &credential.verifier {
                                CredentialVerifier::AccessToken { .. } => span { "access token " code { (credential.id) } },
                                CredentialVerifier::Certificate { certificate_subject } => span { "certificate " code { (certificate_subject) } },
                            }
                        }
                        td data-label="Permissions" { div.chips { @for grant in &credential.grants { span.chip { (grant) } } } }
                        td data-label="State" { (status(credential, wall)) }
                        td.wide data-label="Created" { span { (format::ago(credential.created_at_ms, wall)) span.soft { " by " (credential.created_by) } } }
                        td.num.whole {
                            @if valid {
                                a.button.slim data-confirm href={ "/credentials/" (components::escape(&credential.id)) "/revoke" } {
                                    "Revoke…" span.hidden { " " (credential.name) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn status(credential: &Credential, wall: i64) -> Markup {
    match (credential.revoked_at_ms, credential.expires_at_ms) {
        (Some(at), _) => html! { (components::state("idle", html! { "Revoked " (format::ago(at, wall)) })) },
        (None, Some(at)) if at <= wall => {
            html! { (components::state("idle", html! { "Expired " (format::ago(at, wall)) })) }
        }
        (None, Some(at)) => components::state("good", format!("Valid until {}", &format::utc(at)[..10])),
        (None, None) => components::state("good", "Valid, no expiry"),
    }
}

fn form() -> Markup {
    html! {
        form.form method="post" action="/credentials" {
            div.across {
                div.field {
                    label for="name" { "Principal name" }
                    input #name name="name" required pattern=r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}" autocomplete="off" placeholder="worker-1";
                    small { "Shown in the audit log." }
                }
                div.field {
                    label for="namespace" { "Namespace" }
                    input #namespace name="namespace" required autocomplete="off" value="default" pattern=r"\*|[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}";
                    small { code { "*" } " for all namespaces." }
                }
                div.field {
                    label for="expiry" { "Expiry" }
                    select #expiry name="expiry" {
                        @for (value, text, _) in EXPIRIES { option value=(value) selected[value == "90d"] { (text) } }
                    }
                }
            }
            fieldset.field {
                legend { "Permissions" }
                div.checkboxes {
                    @for permission in Permission::ALL {
                        label { input type="checkbox" name=(permission) value="on" checked[permission == Permission::Read]; (permission) }
                    }
                }
            }
            div.buttons { button.button.main { "Create access token" } }
        }
    }
}

/// The form of a new access token.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewCredentialForm {
    name: String,
    namespace: String,
    expiry: String,
    read: Option<String>,
    lead: Option<String>,
    publish: Option<String>,
    claim: Option<String>,
    admin: Option<String>,
}

impl NewCredentialForm {
    fn credential(&self, token: &AccessToken, by: &str, wall: i64) -> Result<Credential, Problem> {
        let invalid = |field: &str, detail: String| {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-credential", detail).field(field)
        };
        let name = principal_name(self.name.trim()).map_err(|error| invalid("name", error.to_string()))?;
        let scope = GrantScope::try_from(self.namespace.trim().to_owned())
            .map_err(|error| invalid("namespace", error.to_string()))?;
        let chosen = [&self.read, &self.lead, &self.publish, &self.claim, &self.admin];
        let permissions: Vec<_> = Permission::ALL
            .into_iter()
            .zip(chosen)
            .filter_map(|(permission, on)| on.as_ref().map(|_| permission))
            .collect();
        if permissions.is_empty() {
            return Err(invalid("permissions", "Choose at least one permission.".into()));
        }
        let known = EXPIRIES.into_iter().find(|(value, _, _)| *value == self.expiry);
        let (_, _, days) =
            known.ok_or_else(|| invalid("expiry", format!("Invalid expiry: {:?}", self.expiry)))?;
        Ok(Credential {
            id: token.id.clone(),
            name: name.to_string(),
            verifier: CredentialVerifier::AccessToken { digest: token.digest.clone() },
            grants: vec![Grant { scope, permissions }],
            created_at_ms: wall,
            created_by: by.into(),
            expires_at_ms: days.map(|days| wall + days * DAY_MS),
            revoked_at_ms: None,
        })
    }
}

pub(super) async fn create(
    State(app): State<App>,
    ctx: PageContext,
    FormBody(new): FormBody<NewCredentialForm>,
) -> Response {
    let made = async {
        let token = AccessToken::generate(|| app.runtime.random());
        let credential = new.credential(&token, ctx.name(), app.runtime.wall_ms())?;
        with_timeout(app.store.put_credential(&credential)).await?;
        app.access.refresh().await;
        let grants: Vec<_> = credential.grants.iter().map(ToString::to_string).collect();
        let detail = format!("for {}: {}", credential.name, grants.join(" "));
        ctx.record(&app, "credential.create", None, &credential.id, detail).await;
        Ok(ctx.redirect_with_secret("/credentials", "new", &token.text))
    };
    made.await.unwrap_or_else(|problem: Problem| problem_page(&ctx, &problem))
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(id)): PageParams<Path<String>>,
) -> Response {
    match find(&app, &id).await {
        Err(problem) => problem_page(&ctx, &problem),
        Ok(credential) => {
            let content = html! { section.card.narrow { div.body {
                form #confirm .confirm method="post" action={ "/credentials/" (components::escape(&credential.id)) "/revoke" } {
                    h1 #confirm-title { "Revoke the credential of " (credential.name) "?" }
                    p { code { (credential.id) } " stops working on every server within seconds. This cannot be undone." }
                    div.buttons {
                        button.button.danger { "Revoke" }
                        a.button data-cancel href="/credentials" { "Cancel" }
                    }
                }
            } } };
            page(&ctx, "Revoke", "Credentials", content)
        }
    }
}

pub(super) async fn revoke(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(id)): PageParams<Path<String>>,
) -> Response {
    let revoked = async {
        let mut credential = find(&app, &id).await?;
        if credential.revoked_at_ms.is_none() {
            credential.revoked_at_ms = Some(app.runtime.wall_ms());
            with_timeout(app.store.put_credential(&credential)).await?;
            app.access.refresh().await;
            ctx.record(&app, "credential.revoke", None, &credential.id, format!("of {}", credential.name))
                .await;
        }
        Ok(go("/credentials"))
    };
    revoked.await.unwrap_or_else(|problem: Problem| problem_page(&ctx, &problem))
}

async fn find(app: &App, id_or_token: &str) -> Result<Credential, Problem> {
    let id = access_token::parse(id_or_token).map_or(id_or_token, |(id, _)| id);
    let all = with_timeout(app.store.credentials()).await?;
    all.into_iter().find(|credential| credential.id == id).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-credential", format!("no such credential: {id:?}"))
            .remedy("See Credentials for the list.")
    })
}

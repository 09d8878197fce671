//! Who may do what: credentials, and tokens made and revoked.

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{Credential, Grant, Proof, Realm, Verb};

use super::election::within;
use super::frame::{Visit, go, page, trouble};
use super::given::{Got, Posted};
use super::{parts, words};
use crate::App;
use crate::access::token::{self, Token};
use crate::access::{is_dashboard_session, principal_name};
use crate::problem::Problem;

/// How long a token may be worth something, as the form offers it.
const LIFETIMES: [(&str, &str, Option<i64>); 5] = [
    ("1d", "a day", Some(1)),
    ("30d", "30 days", Some(30)),
    ("90d", "90 days", Some(90)),
    ("365d", "a year", Some(365)),
    ("never", "for ever", None),
];
const DAY_MS: i64 = 86_400_000;

pub(super) async fn show(State(app): State<App>, visit: Visit) -> Response {
    let mut credentials = match within(app.store.credentials()).await {
        Ok(credentials) => credentials,
        Err(error) => return trouble(&visit, &error.into()),
    };
    credentials.retain(|credential| !is_dashboard_session(credential));
    let wall = app.runtime.wall_ms();
    let content = html! {
        div.head { div {
            h1 { "Access" }
            p { "Who may do what. Secrets are shown once, when they are made; the store has only their digests." }
        } }
        @if !visit.guarded {
            (parts::notice("warn", html! { p {
                span.strong { "This server asks nobody for credentials" } ": whoever reaches it on this machine may do everything. "
                "What you make here counts on servers that do ask."
            } }))
        }
        @if let Some(text) = visit.secret() { (secret(&credentials, text)) }
        section.card aria-labelledby="credentials" {
            header { h2 #credentials { (words::count(credentials.len(), "credential")) } }
            @if credentials.is_empty() { p.empty { "There are none yet. Make one below." } }
            @else { (table(&credentials, wall)) }
        }
        section.card aria-labelledby="make" {
            header { h2 #make { "Make a token" } }
            div.body { (form()) }
        }
    };
    page(&visit, "Access", "Access", content)
}

fn secret(credentials: &[Credential], text: &str) -> Markup {
    let id = token::parse(text).map(|(id, _)| id);
    let made = credentials.iter().find(|credential| Some(credential.id.as_str()) == id);
    let whose =
        made.map_or_else(|| "Access token.".into(), |made| format!("Access token for {}.", made.name));
    parts::secret(&whose, text)
}

fn table(credentials: &[Credential], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Name" } th scope="col" { "Proof" } th scope="col" { "May" } th scope="col" { "State" }
                th scope="col" { "Made" } th scope="col" { span.hidden { "Action" } }
            } }
            tbody {
                @for credential in credentials {
                    @let valid = credential.is_valid(wall);
                    tr .gone[!valid] {
                        th scope="row" { (credential.name) }
                        td.wide data-label="Proof" {
                            @match &credential.proof {
                                Proof::Token { .. } => span { "token " code { (credential.id) } },
                                Proof::Certificate { subject } => span { "certificate " code { (subject) } },
                            }
                        }
                        td data-label="May" { div.chips { @for grant in &credential.grants { span.chip { (grant) } } } }
                        td data-label="State" { (standing(credential, wall)) }
                        td.wide data-label="Made" { span { (words::ago(credential.created_at_ms, wall)) span.soft { " by " (credential.created_by) } } }
                        td.num.whole {
                            @if valid {
                                a.button.slim data-confirm href={ "/access/" (parts::escape(&credential.id)) "/revoke" } {
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

fn standing(credential: &Credential, wall: i64) -> Markup {
    match (credential.revoked_at_ms, credential.expires_at_ms) {
        (Some(at), _) => html! { (parts::state("idle", html! { "revoked " (words::ago(at, wall)) })) },
        (None, Some(at)) if at <= wall => {
            html! { (parts::state("idle", html! { "expired " (words::ago(at, wall)) })) }
        }
        (None, Some(at)) => parts::state("good", format!("until {}", &words::utc(at)[..10])),
        (None, None) => parts::state("good", "for ever"),
    }
}

fn form() -> Markup {
    html! {
        form.form method="post" action="/access" {
            div.across {
                div.field {
                    label for="name" { "For whom" }
                    input #name name="name" required pattern=r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}" autocomplete="off" placeholder="worker-1";
                    small { "What the audit will call it." }
                }
                div.field {
                    label for="namespace" { "In which namespace" }
                    input #namespace name="namespace" required autocomplete="off" value="default" pattern=r"\*|[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}";
                    small { "Or " code { "*" } " for all." }
                }
                div.field {
                    label for="lifetime" { "For how long" }
                    select #lifetime name="lifetime" {
                        @for (value, text, _) in LIFETIMES { option value=(value) selected[value == "90d"] { (text) } }
                    }
                }
            }
            fieldset.field {
                legend { "It may" }
                div.verbs {
                    @for verb in Verb::ALL {
                        label { input type="checkbox" name=(verb) value="on" checked[verb == Verb::Read]; (verb) }
                    }
                }
            }
            div.buttons { button.button.main { "Make the token" } }
        }
    }
}

/// The form of a new token.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    name: String,
    namespace: String,
    lifetime: String,
    read: Option<String>,
    lead: Option<String>,
    publish: Option<String>,
    claim: Option<String>,
    admin: Option<String>,
}

impl Wanted {
    fn credential(&self, token: &Token, by: &str, wall: i64) -> Result<Credential, Problem> {
        let wrong = |field: &str, detail: String| {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-credential", detail).field(field)
        };
        let name = principal_name(self.name.trim()).map_err(|error| wrong("name", error.to_string()))?;
        let realm = Realm::try_from(self.namespace.trim().to_owned())
            .map_err(|error| wrong("namespace", error.to_string()))?;
        let chosen = [&self.read, &self.lead, &self.publish, &self.claim, &self.admin];
        let verbs: Vec<_> =
            Verb::ALL.into_iter().zip(chosen).filter_map(|(verb, on)| on.as_ref().map(|_| verb)).collect();
        if verbs.is_empty() {
            return Err(wrong(
                "verbs",
                "a token that may do nothing is of no use; choose what it may do".into(),
            ));
        }
        let known = LIFETIMES.into_iter().find(|(value, _, _)| *value == self.lifetime);
        let (_, _, days) = known
            .ok_or_else(|| wrong("lifetime", format!("{:?} is none of the lifetimes", self.lifetime)))?;
        Ok(Credential {
            id: token.id.clone(),
            name: name.to_string(),
            proof: Proof::Token { digest: token.digest.clone() },
            grants: vec![Grant { realm, verbs }],
            created_at_ms: wall,
            created_by: by.into(),
            expires_at_ms: days.map(|days| wall + days * DAY_MS),
            revoked_at_ms: None,
        })
    }
}

pub(super) async fn create(State(app): State<App>, visit: Visit, Posted(wanted): Posted<Wanted>) -> Response {
    let made = async {
        let token = Token::generate(|| app.runtime.random());
        let credential = wanted.credential(&token, visit.name(), app.runtime.wall_ms())?;
        within(app.store.put_credential(&credential)).await?;
        app.access.refresh().await;
        let grants: Vec<_> = credential.grants.iter().map(ToString::to_string).collect();
        let detail = format!("for {}: {}", credential.name, grants.join(" "));
        visit.record(&app, "token.create", None, &credential.id, detail).await;
        Ok(visit.tell_secret("/access", "new", &token.text))
    };
    made.await.unwrap_or_else(|problem: Problem| trouble(&visit, &problem))
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path(id)): Got<Path<String>>,
) -> Response {
    match find(&app, &id).await {
        Err(problem) => trouble(&visit, &problem),
        Ok(credential) => {
            let content = html! { section.card.narrow { div.body {
                form #confirm .confirm method="post" action={ "/access/" (parts::escape(&credential.id)) "/revoke" } {
                    h1 #confirm-title { "Revoke the credential of " (credential.name) "?" }
                    p { code { (credential.id) } " will be worth nothing from now on, on every replica within seconds. This can not be undone." }
                    div.buttons {
                        button.button.danger { "Revoke" }
                        a.button data-cancel href="/access" { "Cancel" }
                    }
                }
            } } };
            page(&visit, "Revoke", "Access", content)
        }
    }
}

pub(super) async fn revoke(
    State(app): State<App>,
    visit: Visit,
    Got(Path(id)): Got<Path<String>>,
) -> Response {
    let revoked = async {
        let mut credential = find(&app, &id).await?;
        if credential.revoked_at_ms.is_none() {
            credential.revoked_at_ms = Some(app.runtime.wall_ms());
            within(app.store.put_credential(&credential)).await?;
            app.access.refresh().await;
            visit.record(&app, "token.revoke", None, &credential.id, format!("of {}", credential.name)).await;
        }
        Ok(go("/access"))
    };
    revoked.await.unwrap_or_else(|problem: Problem| trouble(&visit, &problem))
}

async fn find(app: &App, which: &str) -> Result<Credential, Problem> {
    let id = token::parse(which).map_or(which, |(id, _)| id);
    let all = within(app.store.credentials()).await?;
    all.into_iter().find(|credential| credential.id == id).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-credential", format!("there is no credential {id:?}"))
            .remedy("look at the list of those that there are")
    })
}

//! Actions on an election, with confirmation: transfer, resign, pause, resume.
//!
//! The confirmation is a page; the script shows it in a dialog. Its form posts to the same URL and carries
//! the token that the operator saw, so the action never applies to a later leader.

use std::str::FromStr;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::election::operator::{self, OperatorError};
use tenure::port::{CandidateView, ElectionView, Pause};
use tenure::rules::election::{by_rank, is_eligible};
use tenure::{ElectionKey, Name, Token};

use super::components;
use super::election::{ElectionPageQuery, unknown, with_timeout};
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, page, problem_page};
use crate::App;
use crate::problem::Problem;

/// Maximum length of a reason, in characters.
const REASON_MAX: usize = 500;

/// An action on an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Transfer,
    Resign,
    Pause,
    Resume,
}

impl Action {
    pub(super) fn word(self) -> &'static str {
        match self {
            Action::Transfer => "transfer",
            Action::Resign => "resign",
            Action::Pause => "pause",
            Action::Resume => "resume",
        }
    }
}

impl FromStr for Action {
    type Err = Problem;
    fn from_str(word: &str) -> Result<Action, Problem> {
        let all = [Action::Transfer, Action::Resign, Action::Pause, Action::Resume];
        all.into_iter().find(|action| action.word() == word).ok_or_else(|| {
            let detail = format!("unknown election action: {word:?}");
            Problem::new(StatusCode::NOT_FOUND, "no-such-action", detail)
                .remedy("Use transfer, resign, pause or resume.")
        })
    }
}

/// The query of a confirmation page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ElectionActionQuery {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    /// The preselected candidate.
    #[serde(default)]
    to: String,
}

/// The form of an action.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ElectionActionForm {
    /// The newest token that the operator saw.
    expected_token: u64,
    /// The session of the new leader.
    #[serde(default)]
    to: String,
    /// The reason of a pause.
    #[serde(default)]
    reason: String,
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((election, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(about)): PageParams<Query<ElectionActionQuery>>,
) -> Response {
    let key = ElectionKey::new(about.namespace, election);
    let found = async {
        let action: Action = action.parse()?;
        let snapshot = app.elections.ready().await?;
        let view = snapshot.elections.get(&key).ok_or_else(|| unknown(&key))?.clone();
        Ok::<_, Problem>((action, view))
    };
    match found.await {
        Err(problem) => problem_page(&ctx, &problem),
        Ok((action, view)) => {
            let content = html! { section.card.narrow { div.body { (dialog(action, &view, &about.to)) } } };
            page(&ctx, &format!("{} {}", action.word(), key.name), "Elections", content)
        }
    }
}

fn dialog(action: Action, view: &ElectionView, to: &str) -> Markup {
    let key = &view.key;
    let leaders = leaders(view).join(", ");
    let (title, button, class) = match action {
        Action::Transfer => ("Transfer", "Transfer", "button main"),
        Action::Resign => ("Resign", "Resign", "button danger"),
        Action::Pause => ("Pause", "Pause", "button danger"),
        Action::Resume => ("Resume", "Resume", "button main"),
    };
    html! {
        form #confirm .confirm method="post" action=(components::href(key, action.word())) {
            h1 #confirm-title { (title) " " (key.name) "?" }
            input type="hidden" name="expected_token" value=(newest(view).as_u64());
            @match action {
                Action::Transfer => {
                    p { @if leaders.is_empty() { "The election has no leader." } @else { "Requests " span.strong { (leaders) } " to finish its work and transfer leadership." } }
                    (choices(view, to))
                },
                Action::Resign => p { "Requests " span.strong { (leaders) } " to finish its work and resign." },
                Action::Pause => {
                    p {
                        @if leaders.is_empty() { "The election has no leader and elects none until it is resumed." }
                        @else { "Requests " span.strong { (leaders) } " to finish its work and stop. The election has no leader until it is resumed." }
                    }
                    div.field {
                        label for="reason" { "Reason" }
                        input #reason name="reason" maxlength=(REASON_MAX) autocomplete="off" placeholder="For example: database upgrade until noon";
                        small { "Shown to other operators." }
                    }
                },
                Action::Resume => p {
                    @if let Some(pause) = &view.paused { "Paused by " span.strong { (pause.paused_by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } ". " }
                    "The candidates elect a leader at once."
                },
            }
            div.buttons {
                button class=(class) { (button) }
                a.button data-cancel href=(components::href(key, "")) { "Cancel" }
            }
        }
    }
}

fn choices(view: &ElectionView, to: &str) -> Markup {
    let mut able: Vec<_> = view.candidates.iter().filter(|candidate| eligible(view, candidate)).collect();
    able.sort_by(|a, b| by_rank(a, b));
    html! {
        @if able.is_empty() {
            (components::notice("warn", html! { p { "No other eligible candidate. Start one first." } }))
        } @else {
            fieldset.field {
                legend { "New leader" }
                div.choices.scroll {
                    @for (at, candidate) in able.iter().enumerate() {
                        @let chosen = if to.is_empty() { at == 0 } else { candidate.session.id.as_str() == to };
                        label {
                            input type="radio" name="to" required value=(candidate.session.id) checked[chosen];
                            span.strong { (candidate.name) }
                            span.meta { "priority " (candidate.priority) }
                        }
                    }
                }
            }
        }
    }
}

fn eligible(view: &ElectionView, candidate: &CandidateView) -> bool {
    candidate.session.live
        && is_eligible(candidate, &view.required_capabilities)
        && view.held_by(&candidate.session.id).next().is_none()
}

fn leaders(view: &ElectionView) -> Vec<&str> {
    view.holders().map(|(_, holder)| components::holder_name(view, holder)).collect()
}

/// The newest token of an election. It grows with every change of leader.
fn newest(view: &ElectionView) -> Token {
    view.leases.iter().map(|lease| lease.token).max().unwrap_or(Token::ZERO)
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((election, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(query)): PageParams<Query<ElectionPageQuery>>,
    FormBody(form): FormBody<ElectionActionForm>,
) -> Response {
    let key = ElectionKey::new(query.namespace, election);
    match perform(&app, &ctx, &key, &action, &form).await {
        Ok(message) => ctx.redirect_with_message(&components::href(&key, ""), message),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

async fn perform(
    app: &App,
    ctx: &PageContext,
    key: &ElectionKey,
    action: &str,
    form: &ElectionActionForm,
) -> Result<&'static str, Problem> {
    let action: Action = action.parse()?;
    let view = with_timeout(app.store.election(key)).await?.ok_or_else(|| unknown(key))?;
    let (store, by) = (app.store.as_ref(), ctx.name());
    let (applied, detail) = match action {
        Action::Transfer => {
            check_leader(&view, form)?;
            let to = operator::candidate(&view, &form.to).map_err(refused)?;
            let detail = format!("to {} ({})", to.name, to.session.id.short());
            match bounded(operator::transfer(store, &view, &form.to, by)).await {
                Err(OperatorError::AlreadyLeads { .. }) => (false, detail),
                other => (other.map(|_| true).map_err(refused)?, detail),
            }
        }
        Action::Resign => {
            check_leader(&view, form)?;
            bounded(operator::resign(store, &view, None, by)).await.map_err(refused)?;
            (true, format!("requested from {}", leaders(&view).join(", ")))
        }
        Action::Pause => {
            let reason = form.reason.trim().to_owned();
            crate::api::validate_display_text("reason", &reason)?;
            let pause =
                Pause { paused_by: by.into(), reason: reason.clone(), paused_at_ms: app.runtime.wall_ms() };
            (with_timeout(operator::pause(store, key, &pause)).await?.is_some(), reason)
        }
        Action::Resume => (with_timeout(operator::resume(store, key)).await?, String::new()),
    };
    if applied {
        ctx.record(
            app,
            &format!("election.{}", action.word()),
            Some(&key.namespace),
            key.name.as_str(),
            detail,
        )
        .await;
    }
    // Refresh the snapshot, so that the next page shows the change.
    let _ = with_timeout(app.elections.refresh(key)).await;
    Ok(if applied { action.word() } else { "already" })
}

/// Run an operator request with a timeout.
async fn bounded<T>(request: impl Future<Output = Result<T, OperatorError>>) -> Result<T, OperatorError> {
    with_timeout(async { Ok(request.await) }).await?
}

/// Reject a request if the leader has changed since the form was loaded.
fn check_leader(view: &ElectionView, form: &ElectionActionForm) -> Result<(), Problem> {
    if newest(view).as_u64() == form.expected_token {
        return Ok(());
    }
    let detail = format!("The leader of {} has changed; no request was sent.", view.key);
    Err(Problem::new(StatusCode::CONFLICT, "leader-changed", detail).remedy("Reload the page and try again."))
}

fn refused(refusal: OperatorError) -> Problem {
    match refusal {
        OperatorError::Store(error) => error.into(),
        other => Problem::new(StatusCode::CONFLICT, "rejected", other.to_string())
            .remedy("Reload the page and choose a current candidate."),
    }
}

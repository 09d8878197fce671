//! Transfer, resign, pause, resume: the question, then the deed.
//!
//! The question is a page of its own; the script shows the same page in a dialog. The deed is a form that posts to where
//! the question was. It carries the token that the operator saw, so that it never reaches a later leader.

use std::str::FromStr;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::election::{by_rank, may_lead};
use tenure::operator::{self, Refusal};
use tenure::port::{CandidateView, ElectionView, Pause};
use tenure::{ElectionKey, Name, Token};

use super::election::{Asked, unknown, within};
use super::frame::{Visit, page, trouble};
use super::given::{Got, Posted};
use super::parts;
use crate::App;
use crate::problem::Problem;

/// The longest reason that the form takes, in characters.
const REASON_MAX: usize = 500;

/// What an operator can do to an election.
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
            let detail = format!("{word:?} is nothing that can be done to an election");
            Problem::new(StatusCode::NOT_FOUND, "no-such-action", detail)
                .remedy("choose among transfer, resign, pause and resume")
        })
    }
}

/// What the address of a question says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct About {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    /// The candidate that is proposed.
    #[serde(default)]
    to: String,
}

/// The form of a deed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deed {
    /// The newest token that the operator saw.
    seen: u64,
    /// The session that shall lead.
    #[serde(default)]
    to: String,
    /// Why it is paused.
    #[serde(default)]
    reason: String,
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((election, action))): Got<Path<(Name, String)>>,
    Got(Query(about)): Got<Query<About>>,
) -> Response {
    let key = ElectionKey::new(about.namespace, election);
    let asked = async {
        let action: Action = action.parse()?;
        let seen = app.board.known().await?;
        let view = seen.elections.get(&key).ok_or_else(|| unknown(&key))?.clone();
        Ok::<_, Problem>((action, view))
    };
    match asked.await {
        Err(problem) => trouble(&visit, &problem),
        Ok((action, view)) => {
            let content = html! { section.card.narrow { div.body { (confirm(action, &view, &about.to)) } } };
            page(&visit, &format!("{} {}", action.word(), key.name), "Elections", content)
        }
    }
}

fn confirm(action: Action, view: &ElectionView, to: &str) -> Markup {
    let key = &view.key;
    let leaders = leaders(view).join(", ");
    let (title, button, class) = match action {
        Action::Transfer => ("Transfer", "Transfer", "button main"),
        Action::Resign => ("Resign", "Resign", "button danger"),
        Action::Pause => ("Pause", "Pause", "button danger"),
        Action::Resume => ("Resume", "Resume", "button main"),
    };
    html! {
        form #confirm .confirm method="post" action=(parts::href(key, action.word())) {
            h1 #confirm-title { (title) " " (key.name) "?" }
            input type="hidden" name="seen" value=(newest(view).as_u64());
            @match action {
                Action::Transfer => {
                    p { @if leaders.is_empty() { "Nobody leads now." } @else { span.strong { (leaders) } " will be asked to finish what it does and to hand over." } }
                    (choices(view, to))
                },
                Action::Resign => p { span.strong { (leaders) } " is asked to finish what it does and to let another candidate lead." },
                Action::Pause => {
                    p {
                        @if leaders.is_empty() { "Nobody leads now, and nobody will" } @else { span.strong { (leaders) } " is asked to finish and stop, and nobody leads" }
                        " until somebody resumes the election."
                    }
                    div.field {
                        label for="reason" { "Reason" }
                        input #reason name="reason" maxlength=(REASON_MAX) autocomplete="off" placeholder="Maintenance until noon";
                        small { "For the others, who will wonder." }
                    }
                },
                Action::Resume => p {
                    @if let Some(pause) = &view.paused { "Paused by " span.strong { (pause.by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } ". " }
                    "The candidates will elect a leader at once."
                },
            }
            div.buttons {
                button class=(class) { (button) }
                a.button data-cancel href=(parts::href(key, "")) { "Cancel" }
            }
        }
    }
}

fn choices(view: &ElectionView, to: &str) -> Markup {
    let mut able: Vec<_> = view.candidates.iter().filter(|candidate| eligible(view, candidate)).collect();
    able.sort_by(|a, b| by_rank(a, b));
    html! {
        @if able.is_empty() {
            (parts::notice("warn", html! { p { "No other candidate may lead. Start one first." } }))
        } @else {
            fieldset.field {
                legend { "Who shall lead?" }
                div.choices.scroll {
                    @for (at, candidate) in able.iter().enumerate() {
                        @let chosen = if to.is_empty() { at == 0 } else { candidate.session.id.as_str() == to };
                        label {
                            input type="radio" name="to" required value=(candidate.session.id) checked[chosen];
                            span.strong { (candidate.id) }
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
        && may_lead(candidate, &view.requires)
        && view.held_by(&candidate.session.id).next().is_none()
}

fn leaders(view: &ElectionView) -> Vec<&str> {
    view.holders().map(|(_, holder)| parts::holder_id(view, holder)).collect()
}

/// The newest token of an election: it grows with every change of a leader.
fn newest(view: &ElectionView) -> Token {
    view.leases.iter().map(|lease| lease.token).max().unwrap_or(Token::ZERO)
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((election, action))): Got<Path<(Name, String)>>,
    Got(Query(asked)): Got<Query<Asked>>,
    Posted(deed): Posted<Deed>,
) -> Response {
    let key = ElectionKey::new(asked.namespace, election);
    match done(&app, &visit, &key, &action, &deed).await {
        Ok(done) => visit.tell(&parts::href(&key, ""), done),
        Err(problem) => trouble(&visit, &problem),
    }
}

async fn done(
    app: &App,
    visit: &Visit,
    key: &ElectionKey,
    action: &str,
    deed: &Deed,
) -> Result<&'static str, Problem> {
    let action: Action = action.parse()?;
    let view = within(app.store.election(key)).await?.ok_or_else(|| unknown(key))?;
    let (store, by) = (app.store.as_ref(), visit.name());
    let (happened, detail) = match action {
        Action::Transfer => {
            still_so(&view, deed)?;
            let to = operator::candidate(&view, &deed.to).map_err(refused)?;
            let detail = format!("to {} ({})", to.id, to.session.id.short());
            match bounded(operator::transfer(store, &view, &deed.to, by)).await {
                Err(Refusal::LeadsAlready { .. }) => (false, detail),
                other => (other.map(|_| true).map_err(refused)?, detail),
            }
        }
        Action::Resign => {
            still_so(&view, deed)?;
            bounded(operator::resign(store, &view, None, by)).await.map_err(refused)?;
            (true, format!("{} asked", leaders(&view).join(", ")))
        }
        Action::Pause => {
            let reason = deed.reason.trim().to_owned();
            crate::api::short("reason", &reason)?;
            let pause = Pause { by: by.into(), reason: reason.clone(), at_ms: app.runtime.wall_ms() };
            (within(operator::pause(store, key, &pause)).await?.is_some(), reason)
        }
        Action::Resume => (within(operator::resume(store, key)).await?, String::new()),
    };
    if happened {
        visit.record(app, action.word(), Some(&key.namespace), key.name.as_str(), detail).await;
    }
    // So that the page that comes next shows it.
    let _ = within(app.board.look(key)).await;
    Ok(if happened { action.word() } else { "already" })
}

/// A wish, granted or refused within a bound.
async fn bounded<T>(wish: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    within(async { Ok(wish.await) }).await?
}

/// Refuses what was meant for somebody else.
fn still_so(view: &ElectionView, deed: &Deed) -> Result<(), Problem> {
    if newest(view).as_u64() == deed.seen {
        return Ok(());
    }
    let detail =
        format!("the leader of {} has changed since you looked; nothing was asked of anybody", view.key);
    Err(Problem::new(StatusCode::CONFLICT, "leader-changed", detail).remedy("look again, then decide"))
}

fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Store(error) => error.into(),
        other => Problem::new(StatusCode::CONFLICT, "refused", other.to_string())
            .remedy("look again, and choose among those who stand now"),
    }
}

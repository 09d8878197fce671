//! Transfer, resign, pause, resume: the question, then the deed.
//!
//! The question is a page of its own; the script shows the same page in a dialog. The deed is a form that posts to where
//! the question was. It carries the token that the operator saw, so that it never reaches a later leader.

use std::str::FromStr;

use axum::extract::{Form, Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::election::{by_rank, may_lead};
use tenure::port::{Ask, AskKind, Backend, CandidateView, ElectionView, Pause};
use tenure::{ElectionKey, Name, SessionId, Token};

use super::election::{Asked, unknown, within};
use super::frame::{Visit, go, page, trouble};
use super::parts;
use crate::App;
use crate::problem::Problem;

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
    seen: Token,
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
    Path((election, action)): Path<(Name, String)>,
    Query(about): Query<About>,
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
            let content = html! { section.card { div.body { (confirm(action, &view, &about.to)) } } };
            page(&visit, &format!("{} {}", action.word(), key.name), "Elections", content)
        }
    }
}

fn confirm(action: Action, view: &ElectionView, to: &str) -> Markup {
    let key = &view.key;
    let leaders: Vec<_> = view.holders().map(|(_, holder)| parts::holder_id(view, holder)).collect();
    let (leaders, plural) = (leaders.join(", "), leaders.len() > 1);
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
                    p { @if leaders.is_empty() { "Nobody leads now." } @else { span.strong { (leaders) } (if plural { " lead" } else { " leads" }) " now, and is asked to finish and hand over." } }
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
                        input #reason name="reason" maxlength="500" autocomplete="off" placeholder="Maintenance until noon";
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

/// The newest token of an election: it grows with every change of a leader.
fn newest(view: &ElectionView) -> Token {
    view.leases.iter().map(|lease| lease.token).max().unwrap_or(Token::ZERO)
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Path((election, action)): Path<(Name, String)>,
    Query(asked): Query<Asked>,
    Form(deed): Form<Deed>,
) -> Response {
    let key = ElectionKey::new(asked.namespace, election);
    match done(&app, &visit, &key, &action, &deed).await {
        Ok(done) => go(&format!("{}&done={done}", parts::href(&key, ""))),
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
    let store = app.store.as_ref();
    let (happened, detail) = match action {
        Action::Transfer => transfer(store, &view, deed, visit.name()).await?,
        Action::Resign => resign(store, &view, deed, visit.name()).await?,
        Action::Pause => {
            let reason = deed.reason.trim().to_owned();
            let pause =
                Pause { by: visit.name().into(), reason: reason.clone(), at_ms: app.runtime.wall_ms() };
            (within(store.set_paused(key, Some(&pause))).await?, reason)
        }
        Action::Resume => (within(store.set_paused(key, None)).await?, String::new()),
    };
    if happened {
        visit.record(app, action.word(), Some(&key.namespace), key.name.as_str(), detail).await;
    }
    // So that the page that comes next shows it.
    let _ = within(app.board.look(key)).await;
    Ok(if happened { action.word() } else { "already" })
}

async fn transfer(
    store: &dyn Backend,
    view: &ElectionView,
    deed: &Deed,
    by: &str,
) -> Result<(bool, String), Problem> {
    let to = SessionId::from_stored(&deed.to);
    let Some(candidate) = view.candidate(&to) else {
        let detail = format!("no candidate of {} has the session {:?}", view.key, deed.to);
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "no-such-candidate", detail)
            .field("to")
            .remedy("go back and choose one of those who stand now"));
    };
    let detail = format!("to {} ({})", candidate.id, candidate.session.id.short());
    if view.held_by(&to).next().is_some() {
        return Ok((false, detail));
    }
    if !eligible(view, candidate) {
        let said = format!("{} may not lead {}", candidate.id, view.key);
        return Err(Problem::new(StatusCode::CONFLICT, "may-not-lead", said).field("to"));
    }
    still_so(view, deed)?;
    // Of several holders, the least makes way.
    let rank = |session: &SessionId| view.candidate(session).map_or(i32::MIN, |candidate| candidate.priority);
    let least = view.holders().min_by_key(|(_, holder)| rank(&holder.id)).map(|(lease, _)| lease.slot);
    ask(store, view, least, AskKind::Transfer(to), by).await?;
    Ok((true, detail))
}

async fn resign(
    store: &dyn Backend,
    view: &ElectionView,
    deed: &Deed,
    by: &str,
) -> Result<(bool, String), Problem> {
    still_so(view, deed)?;
    let leaders: Vec<_> = view.holders().map(|(_, holder)| parts::holder_id(view, holder)).collect();
    ask(store, view, None, AskKind::Resign, by).await?;
    Ok((true, format!("{} was asked", leaders.join(", "))))
}

/// Refuses what was meant for somebody else.
fn still_so(view: &ElectionView, deed: &Deed) -> Result<(), Problem> {
    if newest(view) == deed.seen {
        return Ok(());
    }
    let detail =
        format!("the leader of {} has changed since you looked; nothing was asked of anybody", view.key);
    Err(Problem::new(StatusCode::CONFLICT, "leader-changed", detail).remedy("look again, then decide"))
}

/// Asks the holder of one slot, or of all.
async fn ask(
    store: &dyn Backend,
    view: &ElectionView,
    slot: Option<u32>,
    kind: AskKind,
    by: &str,
) -> Result<(), Problem> {
    let mut asked = 0;
    for (lease, _) in view.holders().filter(|(lease, _)| slot.is_none_or(|slot| slot == lease.slot)) {
        let ask = Ask {
            election: view.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: kind.clone(),
            by: by.to_owned(),
        };
        asked += u32::from(within(store.ask(&ask)).await?);
    }
    if asked == 0 {
        let detail = format!("nobody leads {}, so there is nobody to ask", view.key);
        return Err(Problem::new(StatusCode::CONFLICT, "nobody-leads", detail));
    }
    Ok(())
}

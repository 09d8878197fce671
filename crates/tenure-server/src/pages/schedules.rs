//! The schedules: what fires next, what has fired last, and what can not.

use std::collections::{BTreeSet, HashMap};

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    QueueKey, ScheduleKey, ScheduleStats, ScheduleView, StoreError, TopicKey, Verb, calls_queue,
    scheduler_election,
};
use tenure_core::schedule::{ON_TIME_MS, Target};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::queues::Filter;
use super::schedule_clock::Local;
use super::{first, parts, words};
use crate::App;
use crate::agenda::{PIECE, Run};
use crate::api::push_address;
use crate::board::Seen;

/// How many are on a page.
const SHOWN: usize = 100;
/// How many pieces are read for one page at most, in search of those that are looked for.
const PIECES: usize = 25;
/// One that has been due for longer than this is overdue: firing takes a moment.
const LATE_MS: i64 = 5_000;

/// What the address of the list may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    q: String,
    /// After this one, `namespace/name`, for the next page.
    #[serde(default)]
    after: String,
}

/// Some schedules, and where the others begin.
struct Found {
    views: Vec<ScheduleView>,
    /// After which one there may be more.
    rest: Option<ScheduleKey>,
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let filter = Filter { namespace: asked.namespace.clone(), q: asked.q.clone() };
    let stats = match app.agenda.stats().await {
        Ok(stats) => stats,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let stats: Vec<_> = stats.iter().filter(|one| visit.may(Verb::Read, Some(&one.namespace))).collect();
    let namespaces: BTreeSet<_> = stats.iter().map(|one| &one.namespace).collect();
    let found = match find(&app, &visit, &filter, &namespaces, &asked.after).await {
        Ok(found) => found,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let runs = app.agenda.runs(&found.views.iter().collect::<Vec<_>>()).await;
    let board = app.board.seen();
    let wall = app.runtime.wall_ms();
    let content = html! {
        div.head {
            div {
                h1 { "Schedules" }
                p { "What happens when: each tick once, whoever leads by then." }
                div #leader data-live { (leader(&board, &visit)) }
            }
            (actions(&visit, &filter, &namespaces))
        }
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #nobody data-live { (nobody(&board, &stats)) }
        div #standing .tiles data-live { @if !stats.is_empty() { (standing(&stats, wall)) } }
        div #schedules data-live {
            @if stats.is_empty() { (first::schedules(&visit)) }
            @else { (table(&found, &runs, &filter, &asked, &namespaces, &visit, wall)) }
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Schedules", "Schedules", content)
}

/// What came of a deed. Only what is written here is ever shown.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "delete" => "Deleted, with its history. What it has published or submitted stays.",
        _ => return None,
    })
}

/// Those that are looked for, piece by piece: at most so many are read for a page, and the rest for the next. Whoever may not look
/// everywhere is shown what there is in the namespaces where they may, and nothing else is read.
async fn find(
    app: &App,
    visit: &Visit,
    filter: &Filter,
    namespaces: &BTreeSet<&Name>,
    after: &str,
) -> Result<Found, StoreError> {
    let mut after = after
        .split_once('/')
        .and_then(|(namespace, name)| Some(ScheduleKey::new(namespace.parse().ok()?, name.parse().ok()?)));
    let places: Vec<Option<&Name>> = match filter.namespace.is_empty() && visit.may(Verb::Read, None) {
        true => vec![None],
        false => namespaces.iter().copied().filter(|name| here(filter, name)).map(Some).collect(),
    };
    let (mut views, mut pieces) = (Vec::new(), 0);
    for place in places {
        let passed = |after: &ScheduleKey| place.is_some_and(|name| *name < after.namespace);
        if after.as_ref().is_some_and(passed) {
            continue;
        }
        loop {
            if pieces == PIECES {
                return Ok(Found { views, rest: after });
            }
            pieces += 1;
            let piece = app.agenda.piece(place, after.as_ref()).await?;
            for view in piece.iter() {
                let (key, words) = (view.key(), words_of(view));
                let fits = filter.lets_through(&key.namespace, words.iter().map(String::as_str));
                if fits && views.len() == SHOWN {
                    return Ok(Found { views, rest: after });
                }
                after = Some(key);
                if fits {
                    views.push(view.clone());
                }
            }
            if piece.len() < PIECE as usize {
                break;
            }
        }
    }
    Ok(Found { views, rest: None })
}

/// Whether a namespace is looked at.
fn here(filter: &Filter, namespace: &Name) -> bool {
    filter.namespace.is_empty() || filter.namespace == namespace.as_str()
}

/// The words that a schedule goes by.
fn words_of(view: &ScheduleView) -> Vec<String> {
    let target = match &view.definition.target {
        Target::Event { topic, .. } => topic.to_string(),
        Target::Task { queue, .. } => queue.to_string(),
        Target::Call { url } => push_address(url).unwrap_or_default(),
        _ => String::new(),
    };
    vec![view.definition.name.to_string(), target, view.definition.zone.to_string()]
}

/// Who fires, for those who may see it.
fn leader(seen: &Seen, visit: &Visit) -> Markup {
    let key = scheduler_election();
    let view = seen.elections.get(&key).filter(|_| visit.may(Verb::Read, Some(&key.namespace)));
    let held = view.and_then(|view| view.holders().next().map(|held| (view, held)));
    html! {
        @if let Some((view, (lease, holder))) = held {
            p { "Fired by " a href=(parts::href(&key, "")) { (parts::holder_id(view, holder)) } ", under token " (parts::token(lease)) "." }
        }
    }
}

/// That nobody fires what is due.
fn nobody(seen: &Seen, stats: &[&ScheduleStats]) -> Markup {
    let led = seen.elections.get(&scheduler_election()).is_some_and(|view| view.holders().next().is_some());
    let overdue: u64 = stats.iter().map(|one| one.overdue).sum();
    html! {
        @if !led && overdue > 0 && seen.trouble.is_none() {
            (parts::notice("bad", html! {
                p { span.strong { "Nobody fires what is due." } " No server runs a scheduler, and no program does. What is missed meanwhile follows each schedule's policy." }
                p.soft { "Start one: " code { "tenure schedule run" } ", or a server without " code { "--no-scheduler" } "." }
            }))
        }
    }
}

fn actions(visit: &Visit, filter: &Filter, namespaces: &BTreeSet<&Name>) -> Markup {
    let meant = namespaces.iter().find(|name| name.as_str() == filter.namespace).copied();
    let only = namespaces.first().filter(|_| namespaces.len() == 1).copied();
    let here = meant.or(only).cloned().unwrap_or_else(Name::default_namespace);
    html! {
        @if visit.may(Verb::Admin, Some(&here)) {
            div.buttons role="group" aria-label="What can be done" {
                a.button data-key="new" href={ "/schedules/new?namespace=" (parts::escape(here.as_str())) } { "Make a schedule" }
            }
        }
    }
}

/// Whether something of a namespace should have fired by now.
pub(super) fn is_late(stats: &ScheduleStats) -> bool {
    stats.overdue > 0 && stats.overdue_ms > LATE_MS as u64
}

/// How it stands with all of them.
fn standing(stats: &[&ScheduleStats], wall: i64) -> Markup {
    let sum = |count: fn(&ScheduleStats) -> u64| stats.iter().map(|one| count(one)).sum::<u64>();
    let (all, paused, troubled) = (sum(|one| one.schedules), sum(|one| one.paused), sum(|one| one.troubled));
    let overdue: u64 = stats.iter().filter(|one| is_late(one)).map(|one| one.overdue).sum();
    let longest = stats.iter().map(|one| one.overdue_ms).max().unwrap_or(0);
    let last = stats.iter().filter_map(|one| one.last_fired_ms).max();
    html! {
        dl.card.tile { dt { "Schedules" } dd.big { (words::number(all)) } dd.note { @if paused == 0 { "none paused" } @else { (words::number(paused)) " paused" } } }
        dl.card.tile {
            dt { "In trouble" }
            dd.big { @if troubled == 0 { "none" } @else { (parts::state("bad", words::number(troubled))) } }
            dd.note { @if troubled == 0 { "all could fire when they last had to" } @else { "could not fire, and are tried again" } }
        }
        dl.card.tile {
            dt { "Overdue" }
            dd.big { @if overdue == 0 { "none" } @else { (parts::state("late", words::number(overdue))) } }
            dd.note { @if overdue == 0 { "nothing is due that has not fired" } @else { "the longest for " (words::span(longest)) } }
        }
        dl.card.tile { dt { "Last fired" } dd.big { @match last { Some(at) => (words::ago(at, wall)), None => "never" } } dd.note { @match last { Some(at) => (words::utc(at)), None => "nothing has fired yet" } } }
    }
}

fn table(
    found: &Found,
    runs: &HashMap<ScheduleKey, Run>,
    filter: &Filter,
    asked: &Asked,
    namespaces: &BTreeSet<&Name>,
    visit: &Visit,
    wall: i64,
) -> Markup {
    let several = namespaces.len() > 1;
    let here = |after: &str| {
        let (namespace, q) = (parts::escape(&filter.namespace), parts::escape(&filter.q));
        format!("/schedules?namespace={namespace}&q={q}&after={}", parts::escape(after))
    };
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "All schedules" } @else { "Schedules that match" } }
                (filter.form("/schedules", "Schedule, target or zone", namespaces))
            }
            @if found.views.is_empty() {
                p.empty {
                    @if found.rest.is_some() { "None of those that were read so far matches." } @else { "No schedule matches. " a href="/schedules" { "Show all" } }
                }
            } @else {
                table.stack.agenda {
                    thead { tr {
                        th scope="col" { "Schedule" } th scope="col" { "State" } th scope="col" { "When" } th scope="col" { "Next" }
                        th scope="col" { "Last fired" } th scope="col" { "Does" } th scope="col" { span.hidden { "Actions" } }
                    } }
                    tbody { @for view in &found.views { (row(view, runs.get(&view.key()), several, visit, wall)) } }
                }
            }
            @if found.rest.is_some() || !asked.after.is_empty() {
                nav.pager aria-label="Pages of schedules" {
                    @if !asked.after.is_empty() { a.button.slim href=(here("")) { "From the first" } }
                    @if let Some(rest) = &found.rest { a.button.slim data-key="more" href=(here(&format!("{}/{}", rest.namespace, rest.name))) { "More" } }
                }
            }
        }
    }
}

fn row(view: &ScheduleView, run: Option<&Run>, several: bool, visit: &Visit, wall: i64) -> Markup {
    let key = view.key();
    let to = |action: &str| parts::schedule_href(&key, action);
    html! {
        tr data-key=(format!("schedule-{}/{}", key.namespace, key.name)) data-says=(says(view, run, wall)) {
            th scope="row" {
                span {
                    a href=(to("")) { (key.name) }
                    @if several { " " span.chip { (key.namespace) } }
                }
            }
            td data-label="State" { (state(view, run, wall)) }
            td.wide data-label="When" { span { code { (view.definition.when) } " " span.soft.small.nowrap { (view.definition.zone) } } }
            td data-label="Next" { (next(view, wall)) }
            td.nowrap.none[view.last_fired_ms.is_none()] data-label="Last fired" {
                @match view.last_fired_ms { Some(at) => (words::ago(at, wall)), None => span.soft { "–" } }
            }
            td.wide data-label="Does" { span { (does(view, visit)) } }
            td.whole {
                @if visit.may(Verb::Admin, Some(&key.namespace)) {
                    div.buttons {
                        a.button.slim data-key={ "trigger-" (key.name) } data-confirm href=(to("trigger")) { "Trigger…" }
                        @if view.paused.is_some() { a.button.slim data-key={ "resume-" (key.name) } data-confirm href=(to("resume")) { "Resume…" } }
                        @else { a.button.slim data-key={ "pause-" (key.name) } data-confirm href=(to("pause")) { "Pause…" } }
                    }
                }
            }
        }
    }
}

/// When it fires next.
pub(super) fn next(view: &ScheduleView, wall: i64) -> Markup {
    let next = view.progress.map(|progress| progress.next_at_ms);
    html! {
        @match next {
            None => span.soft { "never again" },
            Some(_) if view.paused.is_some() => span.soft { "not while paused" },
            Some(at) => {
                @let shown = Local::of(&view.definition.zone, at);
                span { span.nowrap { (words::until(at, wall)) } " " span.soft.small.nowrap { (shown.weekday()) " " (shown.day) " " (shown.month()) ", " (shown.time()) } }
            },
        }
    }
}

/// What a tick does, with the way there.
pub(super) fn does(view: &ScheduleView, visit: &Visit) -> Markup {
    let namespace = || view.namespace.clone();
    let seen = visit.may(Verb::Read, Some(&calls_queue().namespace));
    html! {
        @match &view.definition.target {
            Target::Event { topic, .. } => { "event in " a href=(parts::topic_href(&TopicKey::new(namespace(), topic.clone()), "")) { (topic) } },
            Target::Task { queue, task } => {
                "task " @if !task.kind.is_empty() { span.strong { (parts::breakable(&task.kind)) } " " } "in "
                a href=(parts::queue_href(&QueueKey::new(namespace(), queue.clone()), "")) { (queue) }
            },
            Target::Call { url } => {
                @if seen { a href=(parts::queue_href(&calls_queue(), "")) { "call" } } @else { "call" }
                // What follows the path may be a secret.
                " of " span { (parts::breakable(&push_address(url).unwrap_or_default())) @if url.contains('?') { "?…" } }
            },
            _ => span.soft { "something that this server does not know" },
        }
    }
}

/// Whether it should have fired by now.
fn is_overdue(view: &ScheduleView, wall: i64) -> bool {
    view.due_ms.is_some_and(|due| wall.saturating_sub(due) > LATE_MS)
}

/// How a schedule is, in a word.
pub(super) fn state(view: &ScheduleView, run: Option<&Run>, wall: i64) -> Markup {
    match () {
        () if view.progress.is_none() => parts::state("off", "over"),
        () if view.paused.is_some() => parts::state("warn", "paused"),
        () if view.trouble.is_some() => parts::state("bad", "can not fire"),
        () if is_overdue(view, wall) => parts::state("late", "overdue"),
        () if fails(run) => parts::state("bad", failing(view)),
        () => parts::state("good", "on time"),
    }
}

/// Whether what it does goes wrong: it fires on time, and the newest run that came to anything has failed.
pub(super) fn fails(run: Option<&Run>) -> bool {
    run.is_some_and(|run| run.error.is_some())
}

/// What goes wrong, in a word or two.
fn failing(view: &ScheduleView) -> &'static str {
    match view.definition.target {
        Target::Call { .. } => "calls fail",
        _ => "tasks fail",
    }
}

/// What those are told who listen: only what they must know at once.
pub(super) fn says(view: &ScheduleView, run: Option<&Run>, wall: i64) -> String {
    let key = view.key();
    match (&view.paused, &view.trouble) {
        _ if view.progress.is_none() => format!("{key} is over"),
        (Some(pause), _) => format!("{key} is paused by {}", pause.by),
        (None, Some(_)) => format!("{key} can not fire"),
        // Long enough for another leader to take over: until then it is nobody's news.
        (None, None) if view.due_ms.is_some_and(|due| wall.saturating_sub(due) > ON_TIME_MS as i64) => {
            format!("{key} is overdue")
        }
        (None, None) if fails(run) => format!("{key}: {}", failing(view)),
        (None, None) => format!("{key} is on time"),
    }
}

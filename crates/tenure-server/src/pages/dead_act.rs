//! Dead events, replayed or dropped: one, or all that were dead when it was asked. The question, then the deed.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{AsideFilter, AsideView, DeadOrder, EventId, GroupKey, StoreError, TopicKey, Trouble};

use super::dead::{find, not_aside};
use super::election::within;
use super::frame::{Visit, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Question};
use super::queues::{Where, no_such_action};
use super::words;
use crate::App;
use crate::api::{By, order_dead};
use crate::problem::Problem;

/// How many are read at once, and how many times: so many are meant by "all", and the rest by asking again.
const BATCH: (u32, usize) = (100, 20);

const ACTIONS: &str = "replay and drop";

fn order_of(action: &str) -> Result<DeadOrder, Problem> {
    match action {
        "replay" => Ok(DeadOrder::Replay),
        "drop" => Ok(DeadOrder::Drop),
        other => Err(no_such_action(other, "a dead event", ACTIONS)),
    }
}

/// What comes of it, for those who are asked.
fn means(order: DeadOrder, behind: u64) -> Markup {
    html! {
        @match order {
            DeadOrder::Replay => "tried again at once, as often as at first",
            DeadOrder::Drop => "forgotten by this group, as if it had been handled",
        }
        @if behind > 0 { "; the " (words::count(behind as usize, "event")) " that " @if behind == 1 { "waits" } @else { "wait" } " behind follow in order" }
        "."
    }
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group, event, action))): Got<Path<(Name, Name, u64, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let id = EventId(event.min(i64::MAX as u64));
    let asked = async {
        let order = order_of(&action)?;
        let set = find(&app, &key, id).await?;
        if !set.aside.dead {
            return Err(not_dead(&key, id));
        }
        let (title, button, danger) = match order {
            DeadOrder::Replay => (format!("Replay event {id}?"), "Replay", false),
            DeadOrder::Drop => (format!("Drop event {id}?"), "Drop", true),
        };
        let body = html! {
            p {
                "It " @if !set.aside.event.kind.is_empty() { "(" span.strong { (set.aside.event.kind) } ") " } "failed "
                (words::count(set.aside.attempts as usize, "time")) ". It is " (means(order, set.aside.behind))
            }
            pre.said { (set.aside.error) }
        };
        let (to, back) = (parts::aside_href(&key, id, &action), parts::group_href(&key, ""));
        Ok(Question { title, to, back, button, danger, body })
    };
    match asked.await {
        Ok(question) => question.page(&visit, "Events"),
        Err(problem) => trouble(&visit, &problem),
    }
}

fn not_dead(key: &GroupKey, id: EventId) -> Problem {
    let detail = format!("event {id} is aside in {key}, but not dead: it is tried again by itself");
    Problem::new(http::StatusCode::CONFLICT, "not-so", detail)
        .remedy("wait for it; or pause the group, and look")
}

/// A deed that needs no more than to be wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    by: By,
    Got(Path((topic, group, event, action))): Got<Path<(Name, Name, u64, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(Nothing {}): Posted<Nothing>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let id = EventId(event.min(i64::MAX as u64));
    let done = async {
        let order = order_of(&action)?;
        let happened = !order_dead(&app, &by, &key, vec![id], order).await?.is_empty();
        if !happened && within(app.store.group(&key)).await?.is_none() {
            return Err(not_aside(&key, id));
        }
        changed(&app).await;
        Ok(if happened { action.as_str() } else { "nothing" })
    };
    match done.await {
        Ok(done) => visit.tell(&format!("{}#aside", parts::group_href(&key, "")), done),
        Err(problem) => trouble(&visit, &problem),
    }
}

/// So that the page that comes next shows it.
async fn changed(app: &App) {
    app.gauge.changed().await;
    app.floor.changed().await;
}

/// Which of those that are dead.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    #[serde(default)]
    key: String,
}

/// All that were meant when it was asked: those that had failed by then, up to a number.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Meant {
    key: String,
    /// None that failed later, by the store's clock: nobody has seen it.
    until: i64,
    /// None with a greater number: there were too many to look at.
    last: u64,
}

fn filter(group: &GroupKey, key: &str) -> AsideFilter {
    let key = Some(key.to_owned()).filter(|key| !key.is_empty());
    AsideFilter { group: group.clone(), dead: true, slot: None, key, after: None, limit: BATCH.0 }
}

/// What is dead, a batch at a time; whether that is all of it.
async fn dead(app: &App, mut filter: AsideFilter, mut each: impl FnMut(&AsideView)) -> Result<bool, Problem> {
    for _ in 0..BATCH.1 {
        let batch = within(app.store.aside(&filter)).await?;
        batch.iter().for_each(&mut each);
        // A batch may be shorter than it was asked for, if they are large.
        let Some(last) = batch.iter().map(|aside| aside.event.id).max() else { return Ok(true) };
        filter.after = Some(last);
    }
    Ok(false)
}

pub(super) async fn all_question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group, action))): Got<Path<(Name, Name, String)>>,
    Got(Query(which)): Got<Query<Which>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(which.namespace, topic), group);
    let asked = async {
        let order = order_of(&action)?;
        super::group_act::find(&app, &key).await?;
        let (mut count, mut behind, mut meant) = (0, 0, Meant { key: which.key.clone(), ..Meant::default() });
        let whole = dead(&app, filter(&key, &which.key), |aside| {
            count += 1;
            behind += aside.behind;
            meant.until = meant.until.max(aside.failed_at_ms);
            meant.last = meant.last.max(aside.event.id.0);
        })
        .await?;
        let events = words::count(count, "dead event");
        let (title, button, danger) = match order {
            DeadOrder::Replay => (format!("Replay {events}?"), "Replay", false),
            DeadOrder::Drop => (format!("Drop {events}?"), "Drop", true),
        };
        let body = html! {
            p { @if count == 1 { "It is " } @else { "Each is " } (means(order, behind)) @if !which.key.is_empty() { " Only those of the key " code { (which.key) } " are meant." } }
            p.soft { @if !whole { "There are more; ask again for those. " } "What dies from now on is not meant." }
            input type="hidden" name="key" value=(meant.key);
            input type="hidden" name="until" value=(meant.until);
            input type="hidden" name="last" value=(meant.last);
        };
        let (to, back) = (parts::group_href(&key, &format!("dead/{action}")), parts::group_href(&key, ""));
        Ok(Question { title, to, back, button, danger, body })
    };
    match asked.await {
        Ok(question) => question.page(&visit, "Events"),
        Err(problem) => trouble(&visit, &problem),
    }
}

pub(super) async fn all(
    State(app): State<App>,
    visit: Visit,
    by: By,
    Got(Path((topic, group, action))): Got<Path<(Name, Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(meant): Posted<Meant>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let back = parts::group_href(&key, "");
    let ordering = async {
        let order = order_of(&action)?;
        super::group_act::find(&app, &key).await?;
        // To its end also if the browser does not wait for it.
        let app = app.clone();
        let ordering = tokio::spawn(async move {
            let done = orders(&app, &by, &key, &meant, order).await;
            changed(&app).await;
            done
        });
        ordering.await.unwrap_or_else(|_| {
            Err(StoreError::new(Trouble::Other, "an order to dead events broke off").into())
        })
    };
    match ordering.await {
        Ok(0) => visit.tell(&format!("{back}#aside"), "nothing"),
        Ok(_) => visit.tell(&format!("{back}#aside"), &action),
        Err(problem) => trouble(&visit, &problem),
    }
}

async fn orders(
    app: &App,
    by: &By,
    key: &GroupKey,
    meant: &Meant,
    order: DeadOrder,
) -> Result<usize, Problem> {
    let mut ids = Vec::new();
    dead(app, filter(key, &meant.key), |aside| {
        if aside.failed_at_ms <= meant.until && aside.event.id.0 <= meant.last {
            ids.push(aside.event.id);
        }
    })
    .await?;
    let mut count = 0;
    for some in ids.chunks(BATCH.0 as usize) {
        count += order_dead(app, by, key, some.to_vec(), order).await?.len();
    }
    Ok(count)
}

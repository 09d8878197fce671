//! `tenure events dead`: events that failed for good, and what is to become of them.

use std::collections::HashSet;

use serde_json::json;
use tenure::port::{AsideFilter, AsideView, Backend, DeadOrder, EventId, GroupKey};
use tenure::runtime::wall_ms;

use super::{group, tail};
use crate::args::events::{DeadCommand, DeadOrderArgs};
use crate::args::values::stamp;
use crate::args::{Format, Global};
use crate::commands::screen;
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago, clipped, counted, paint, plain, span};
use crate::store;

/// How many are asked for in one call, and ordered about in one.
const BATCH: u32 = 1_000;

/// How much of a payload is shown to people.
const SHOWN: usize = 2_000;

pub(super) async fn run(global: &Global, command: DeadCommand) -> Result<u8, Failure> {
    match command {
        DeadCommand::List { which, key, waiting, after, limit, watch } => {
            let group = which.key(global)?;
            let after = after.map(EventId);
            let filter = AsideFilter { group, dead: !waiting, slot: None, key, after, limit };
            list(global, &filter, watch).await
        }
        DeadCommand::Show { which, id } => show(global, &which.key(global)?, EventId(id)).await,
        DeadCommand::Replay(args) => order(global, args, DeadOrder::Replay).await,
        DeadCommand::Drop(args) => order(global, args, DeadOrder::Drop).await,
    }
}

async fn list(global: &Global, filter: &AsideFilter, watch: bool) -> Result<u8, Failure> {
    let store = store::read(global).await?;
    group(store.as_ref(), &filter.group).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let views = store.aside(filter).await?;
        Ok(match global.output {
            Format::Json => screen::json(&views),
            Format::Table => table(&views, filter, wall_ms()),
        })
    })
    .await
}

fn table(views: &[AsideView], filter: &AsideFilter, now_ms: i64) -> String {
    if views.is_empty() {
        let what = if filter.dead { "dead" } else { "aside" };
        return format!("nothing of {} is {what}\n", filter.group);
    }
    let mut header = vec!["event", "slot", "key", "type", "tried", "failed", "behind", "error"];
    if !filter.dead {
        header.insert(1, "state");
    }
    let mut table = Table::new(&header).right(&["event", "slot", "tried", "failed", "behind"]);
    for view in views {
        let event = &view.event;
        let mut row = vec![
            (event.id.to_string(), Ink::Bold),
            (event.slot.to_string(), Ink::Dim),
            (event.key.clone().unwrap_or_else(|| "–".to_owned()), Ink::Plain),
            (event.kind.clone(), Ink::Plain),
            (view.attempts.to_string(), Ink::Plain),
            (format!("{} ago", ago(view.failed_at_ms, now_ms)), Ink::Dim),
            (view.behind.to_string(), if view.behind == 0 { Ink::Dim } else { Ink::Yellow }),
            (view.error.clone(), Ink::Dim),
        ];
        if !filter.dead {
            row.insert(1, state(view));
        }
        table.row(row);
    }
    let more = match views.last() {
        Some(last) if views.len() >= filter.limit as usize => {
            paint(&format!("… more: --after {}", last.event.id), Ink::Dim) + "\n"
        }
        _ => String::new(),
    };
    table.render() + &more
}

fn state(view: &AsideView) -> (String, Ink) {
    match (view.dead, view.due_in_ms) {
        (true, _) => ("dead".to_owned(), Ink::Red),
        (false, Some(0..1000)) => ("due".to_owned(), Ink::Yellow),
        (false, Some(ms)) => (format!("again in {}", span(ms / 1000 * 1000)), Ink::Yellow),
        (false, None) => ("waits behind".to_owned(), Ink::Dim),
    }
}

async fn show(global: &Global, key: &GroupKey, id: EventId) -> Result<u8, Failure> {
    let store = store::read(global).await?;
    group(store.as_ref(), key).await?;
    let found =
        store.aside(&AsideFilter::from(key.clone(), id)).await?.into_iter().find(|view| view.event.id == id);
    let view = found.ok_or_else(|| not_aside(key, id))?;
    match global.output {
        Format::Json => output::print_json(&view),
        Format::Table => output::print_text(&story(key, &view, wall_ms())),
    }
    Ok(0)
}

fn not_aside(key: &GroupKey, id: EventId) -> Failure {
    Failure::usage(format!(
        "event {id} is not aside in {key}; `tenure events dead list {} {} --waiting` shows what is",
        key.topic.name, key.name
    ))
}

fn story(key: &GroupKey, view: &AsideView, now_ms: i64) -> String {
    let event = &view.event;
    let (word, ink) = state(view);
    let tried = match view.attempts {
        0 => String::new(),
        attempts => format!(", tried {}", counted(attempts as usize, "time")),
    };
    let mut text = format!(
        "{} {}  {}\n\n",
        paint(&format!("{key}/{}", event.id), Ink::Bold),
        plain(&event.kind),
        paint(&format!("{word}{tried}"), ink)
    );
    let headers: Vec<_> = event.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let failed = format!("{}, {} ago", stamp(view.failed_at_ms), ago(view.failed_at_ms, now_ms));
    let parked = match (&event.key, view.behind) {
        (_, 0) => String::new(),
        (_, behind) => {
            format!("{} of its key", counted(usize::try_from(behind).unwrap_or(usize::MAX), "event"))
        }
    };
    let facts = [
        ("error", view.error.clone()),
        ("failed", if view.attempts == 0 { String::new() } else { failed }),
        ("waiting behind it", parked),
        ("key", event.key.clone().unwrap_or_default()),
        ("slot", event.slot.to_string()),
        ("position", event.position.to_string()),
        ("published", stamp(event.at_ms)),
        ("leader's token", event.leader_token.map(|token| token.to_string()).unwrap_or_default()),
        ("headers", headers.join(" ")),
        ("payload", clipped(&tail::content(&event.payload), SHOWN)),
    ];
    let facts: Vec<_> = facts.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        text.push_str(&format!("{}  {}\n", paint(&format!("{name:width$}"), Ink::Dim), plain(&value)));
    }
    if view.dead {
        let (topic, group, id) = (&key.topic.name, &key.name, event.id);
        let remedy = format!("to try again: tenure events dead replay {topic} {group} {id}");
        text.push_str(&format!("\n{}\n", paint(&remedy, Ink::Dim)));
    }
    text
}

async fn order(global: &Global, args: DeadOrderArgs, order: DeadOrder) -> Result<u8, Failure> {
    let key = args.which.key(global)?;
    let store = store::open(global).await?;
    let view = group(store.as_ref(), &key).await?;
    let named: Vec<EventId> = args.events.ids.iter().copied().map(EventId).collect();
    let mut done = Vec::new();
    if named.is_empty() {
        done = order_all(store.as_ref(), &key, args.events.key.as_deref(), order).await?;
    }
    for some in named.chunks(BATCH as usize) {
        done.extend(store.order_dead(&key, some, order).await?);
    }
    if global.output == Format::Json {
        output::print_json(&json!({"events": done}));
    }
    let missed: Vec<_> = named.iter().filter(|id| !done.contains(id)).map(ToString::to_string).collect();
    let (word, after) = match order {
        DeadOrder::Replay if view.members.is_empty() => {
            ("replayed", "; nobody reads the group at the moment")
        }
        DeadOrder::Replay => ("replayed", ""),
        DeadOrder::Drop => ("dropped", ""),
    };
    if !done.is_empty() || missed.is_empty() {
        let ink = if done.is_empty() { Ink::Yellow } else { Ink::Green };
        output::note(global, ink, &format!("{word} {} of {key}{after}", counted(done.len(), "event")));
    }
    if missed.is_empty() {
        return Ok(0);
    }
    let (them, are) = if missed.len() == 1 { ("event", "is") } else { ("events", "are") };
    Err(Failure::usage(format!(
        "{them} {} {are} not dead in {key}; `tenure events dead list {} {}` shows those that are",
        missed.join(", "),
        key.topic.name,
        key.name
    )))
}

/// Orders about all that are dead, a list at a time, each once: what is replayed may die again meanwhile. A list may be shorter than it was
/// asked for, if they are large.
async fn order_all(
    store: &dyn Backend,
    group: &GroupKey,
    key: Option<&str>,
    order: DeadOrder,
) -> Result<Vec<EventId>, Failure> {
    let (group, key) = (group.clone(), key.map(str::to_owned));
    let mut filter = AsideFilter { group, dead: true, slot: None, key, after: None, limit: BATCH };
    let (mut all, mut named) = (Vec::new(), HashSet::new());
    loop {
        let mut ids: Vec<EventId> = store.aside(&filter).await?.iter().map(|view| view.event.id).collect();
        ids.retain(|id| named.insert(*id));
        let Some(last) = ids.iter().max().copied() else { return Ok(all) };
        // Those of one key come in the order of their positions, and not of their numbers: what is dead no more is not listed again.
        filter.after = filter.key.is_none().then_some(last);
        all.extend(store.order_dead(&filter.group, &ids, order).await?);
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::{
        Aside, Begin, Bureau, Event, Events, Join, NewEvent, Payload, ReadAsk, SetAside, ShareCommit,
        TakeShares, TopicSettings,
    };

    use super::*;

    fn sample() -> AsideView {
        let text = r#"{
            "id": 42, "slot": 3, "position": 40, "key": "order-7", "type": "order.paid", "payload": {"cents": 4200},
            "headers": {"trace": "ab"}, "at_ms": 1000, "dead": true, "attempts": 10, "error": "no route\u001b",
            "failed_at_ms": 61000, "due_in_ms": null, "behind": 2}"#;
        serde_json::from_str(text).expect("an event")
    }

    fn key() -> GroupKey {
        serde_json::from_str(r#"{"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"}"#)
            .expect("a group")
    }

    /// A list of what is aside ends where it grows too long: that is not the end of what is.
    #[tokio::test]
    async fn however_large_they_are_all_that_are_dead_are_ordered_about() {
        const DEAD: usize = 20;
        let (store, key) = (tenure::backend::memory::Memory::new(), key());
        let settings = TopicSettings { slots: 1, ..TopicSettings::default() };
        store.set_topic(&key.topic, &settings).await.expect("a topic");
        let payload = Payload::Bytes(vec![0; 1 << 20]);
        let event = NewEvent { payload, ..NewEvent::new("large") };
        for few in vec![event; DEAD].chunks(10) {
            store.publish(&key.topic, few).await.expect("events");
        }
        let tenure = tenure::Tenure::builder().store(store.clone()).open().await.expect("a session");
        let session = tenure.session().expect("it lives");
        let (group, member, from) = (key.clone(), "m".to_owned(), Begin::Earliest);
        let join = Join { group: group.clone(), session: session.clone(), member, from };
        let token = store.join_group(&join).await.expect("a member").shares[0].token;
        let take = TakeShares { group: group.clone(), session, slots: vec![(0, token)] };
        let token = store.take_shares(&take).await.expect("a slot")[0].token;
        let mut position = 0;
        loop {
            let read = ReadAsk { topic: key.topic.clone(), after: vec![(0, position)], limit: 1_000 };
            let events = store.read_events(&read).await.expect("events");
            let Some(last) = events.last() else { break };
            position = last.position;
            let how = Aside::Dead { attempts: 1, error: "no".into() };
            let aside =
                |event: &Event| SetAside { event: event.id, position: event.position, how: how.clone() };
            let set_aside = events.iter().map(aside).collect();
            let (done, settled) = Default::default();
            let group = group.clone();
            let commit =
                ShareCommit { group, slot: 0, token, position: Some(position), done, set_aside, settled };
            store.commit_shares(&[commit]).await.expect("they are aside");
        }
        assert_eq!(order_all(&store, &key, None, DeadOrder::Drop).await.expect("an order").len(), DEAD);
        tenure.close().await.expect("an end");
    }

    #[test]
    fn the_dead_are_listed_with_what_went_wrong() {
        let filter =
            |dead, limit| AsideFilter { group: key(), dead, slot: None, key: None, after: None, limit };
        let told = table(&[sample()], &filter(true, 1), 121_000);
        let wanted = "\
EVENT  SLOT  KEY      TYPE        TRIED     FAILED  BEHIND  ERROR
   42     3  order-7  order.paid     10  1m00s ago       2  no route\\u{1b}
… more: --after 42
";
        assert_eq!(told, wanted);
        let waiting = AsideView { dead: false, due_in_ms: Some(5_400), ..sample() };
        let behind = AsideView { dead: false, ..sample() };
        let told = table(&[waiting, behind], &filter(false, 50), 121_000);
        assert!(told.contains("again in 5s") && told.contains("waits behind"), "{told}");
        assert_eq!(table(&[], &filter(true, 1), 0), "nothing of orders/mailer is dead\n");
    }

    #[test]
    fn a_dead_event_is_told_with_its_remedy() {
        let wanted = "\
orders/mailer/42 order.paid  dead, tried 10 times

error              no route\\u{1b}
failed             1970-01-01 00:01:01Z, 1m00s ago
waiting behind it  2 events of its key
key                order-7
slot               3
position           40
published          1970-01-01 00:00:01Z
headers            trace=ab
payload            {\"cents\": 4200}

to try again: tenure events dead replay orders mailer 42
";
        assert_eq!(story(&key(), &sample(), 121_000), wanted);
    }
}

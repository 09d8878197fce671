//! `tenure events dead-letters`: inspect, replay and drop dead letters.

use std::collections::HashSet;

use serde_json::json;
use tenure::port::{DeadLetterAction, EventId, GroupKey, ParkedEvent, ParkedEventFilter, Store};
use tenure::runtime::wall_ms;

use super::{group, tail};
use crate::args::events::{DeadLetterActionArgs, DeadLettersCommand};
use crate::args::parsers::format_instant;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::watch_screen;
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago, clipped, counted, paint, plain, span};
use crate::store;

/// Number of dead letters read, replayed or dropped in one call.
const BATCH: u32 = 1_000;

/// Maximum printed length of a payload.
const SHOWN: usize = 2_000;

pub(super) async fn run(global: &GlobalArgs, command: DeadLettersCommand) -> Result<u8, CliError> {
    match command {
        DeadLettersCommand::List { which, key, all, cursor, limit, watch } => {
            let group = which.key(global)?;
            let after = cursor.map(EventId);
            let filter = ParkedEventFilter { group, dead: !all, partition: None, key, after, limit };
            list(global, &filter, watch).await
        }
        DeadLettersCommand::Show { which, event_id } => {
            show(global, &which.key(global)?, EventId(event_id)).await
        }
        DeadLettersCommand::Replay(args) => order(global, args, DeadLetterAction::Replay).await,
        DeadLettersCommand::Drop(args) => order(global, args, DeadLetterAction::Drop).await,
    }
}

async fn list(global: &GlobalArgs, filter: &ParkedEventFilter, watch: bool) -> Result<u8, CliError> {
    let store = store::read(global).await?;
    group(store.as_ref(), &filter.group).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let views = store.parked_events(filter).await?;
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&views),
            OutputFormat::Table => table(&views, filter, wall_ms()),
        })
    })
    .await
}

fn table(views: &[ParkedEvent], filter: &ParkedEventFilter, now_ms: i64) -> String {
    if views.is_empty() {
        let what = if filter.dead { "dead letters" } else { "parked events" };
        return format!("{} has no {what}\n", filter.group);
    }
    let mut header =
        vec!["event", "partition", "key", "type", "attempts", "failed", "waiting behind", "error"];
    if !filter.dead {
        header.insert(1, "state");
    }
    let mut table =
        Table::new(&header).right(&["event", "partition", "attempts", "failed", "waiting behind"]);
    for view in views {
        let event = &view.event;
        let mut row = vec![
            (event.id.to_string(), TextStyle::Bold),
            (event.partition.to_string(), TextStyle::Dim),
            (event.key.clone().unwrap_or_else(|| "–".to_owned()), TextStyle::Plain),
            (event.event_type.clone(), TextStyle::Plain),
            (view.attempts.to_string(), TextStyle::Plain),
            (format!("{} ago", ago(view.last_failed_at_ms, now_ms)), TextStyle::Dim),
            (
                view.waiting_behind_count.to_string(),
                if view.waiting_behind_count == 0 { TextStyle::Dim } else { TextStyle::Yellow },
            ),
            (view.last_error.clone(), TextStyle::Dim),
        ];
        if !filter.dead {
            row.insert(1, state(view));
        }
        table.row(row);
    }
    let more = match views.last() {
        Some(last) if views.len() >= filter.limit as usize => {
            paint(&format!("… more: --cursor {}", last.event.id), TextStyle::Dim) + "\n"
        }
        _ => String::new(),
    };
    table.render() + &more
}

fn state(view: &ParkedEvent) -> (String, TextStyle) {
    match (view.dead, view.retry_in_ms) {
        (true, _) => ("dead".to_owned(), TextStyle::Red),
        (false, Some(0..1000)) => ("due".to_owned(), TextStyle::Yellow),
        (false, Some(ms)) => (format!("retry in {}", span(ms / 1000 * 1000)), TextStyle::Yellow),
        (false, None) => ("waiting".to_owned(), TextStyle::Dim),
    }
}

async fn show(global: &GlobalArgs, key: &GroupKey, id: EventId) -> Result<u8, CliError> {
    let store = store::read(global).await?;
    group(store.as_ref(), key).await?;
    let found = store
        .parked_events(&ParkedEventFilter::from(key.clone(), id))
        .await?
        .into_iter()
        .find(|view| view.event.id == id);
    let view = found.ok_or_else(|| not_parked(key, id))?;
    match global.output {
        OutputFormat::Json => output::print_json(&view),
        OutputFormat::Table => output::print_text(&render_event(key, &view, wall_ms())),
    }
    Ok(0)
}

fn not_parked(key: &GroupKey, id: EventId) -> CliError {
    CliError::usage(format!(
        "event {id} is not parked in {key}; list the parked events with `tenure events dead-letters list {} {} --all`",
        key.topic.name, key.name
    ))
}

fn render_event(key: &GroupKey, view: &ParkedEvent, now_ms: i64) -> String {
    let event = &view.event;
    let (word, style) = state(view);
    let tried = match view.attempts {
        0 => String::new(),
        attempts => format!(", {}", counted(attempts as usize, "attempt")),
    };
    let mut text = format!(
        "{} {}  {}\n\n",
        paint(&format!("{key}/{}", event.id), TextStyle::Bold),
        plain(&event.event_type),
        paint(&format!("{word}{tried}"), style)
    );
    let headers: Vec<_> = event.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let failed =
        format!("{}, {} ago", format_instant(view.last_failed_at_ms), ago(view.last_failed_at_ms, now_ms));
    let parked = match (&event.key, view.waiting_behind_count) {
        (_, 0) => String::new(),
        (_, behind) => {
            format!("{} of its key", counted(usize::try_from(behind).unwrap_or(usize::MAX), "event"))
        }
    };
    let facts = [
        ("last error", view.last_error.clone()),
        ("last failed", if view.attempts == 0 { String::new() } else { failed }),
        ("waiting behind it", parked),
        ("key", event.key.clone().unwrap_or_default()),
        ("partition", event.partition.to_string()),
        ("offset", event.offset.to_string()),
        ("published", format_instant(event.published_at_ms)),
        ("leader token", event.leader_token.map(|token| token.to_string()).unwrap_or_default()),
        ("headers", headers.join(" ")),
        ("payload", clipped(&tail::format_payload(&event.payload), SHOWN)),
    ];
    let facts: Vec<_> = facts.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        text.push_str(&format!("{}  {}\n", paint(&format!("{name:width$}"), TextStyle::Dim), plain(&value)));
    }
    if view.dead {
        let (topic, group, id) = (&key.topic.name, &key.name, event.id);
        let remedy = format!("to replay: tenure events dead-letters replay {topic} {group} {id}");
        text.push_str(&format!("\n{}\n", paint(&remedy, TextStyle::Dim)));
    }
    text
}

async fn order(
    global: &GlobalArgs,
    args: DeadLetterActionArgs,
    order: DeadLetterAction,
) -> Result<u8, CliError> {
    let key = args.which.key(global)?;
    let store = store::open(global).await?;
    let view = group(store.as_ref(), &key).await?;
    let named: Vec<EventId> = args.events.event_ids.iter().copied().map(EventId).collect();
    let mut done = Vec::new();
    if named.is_empty() {
        done = act_on_all(store.as_ref(), &key, args.events.key.as_deref(), order).await?;
    }
    for some in named.chunks(BATCH as usize) {
        done.extend(store.apply_dead_letter_action(&key, some, order).await?);
    }
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"event_ids": done}));
    }
    let missed: Vec<_> = named.iter().filter(|id| !done.contains(id)).map(ToString::to_string).collect();
    let (word, after) = match order {
        DeadLetterAction::Replay if view.members.is_empty() => ("replayed", "; the group has no members now"),
        DeadLetterAction::Replay => ("replayed", ""),
        DeadLetterAction::Drop => ("dropped", ""),
    };
    if !done.is_empty() || missed.is_empty() {
        let style = if done.is_empty() { TextStyle::Yellow } else { TextStyle::Green };
        output::note(
            global,
            style,
            &format!("{word} {} of {key}{after}", counted(done.len(), "dead letter")),
        );
    }
    if missed.is_empty() {
        return Ok(0);
    }
    let (them, are) = if missed.len() == 1 { ("event", "is") } else { ("events", "are") };
    Err(CliError::usage(format!(
        "{them} {} {are} not dead in {key}; list the dead letters with `tenure events dead-letters list {} {}`",
        missed.join(", "),
        key.topic.name,
        key.name
    )))
}

/// Replays or drops all dead letters page by page. Handles each event once, because a replayed event may become a dead
/// letter again meanwhile. A page of large events may be shorter than requested, so only a page without new events ends
/// the loop.
async fn act_on_all(
    store: &dyn Store,
    group: &GroupKey,
    key: Option<&str>,
    order: DeadLetterAction,
) -> Result<Vec<EventId>, CliError> {
    let (group, key) = (group.clone(), key.map(str::to_owned));
    let mut filter = ParkedEventFilter { group, dead: true, partition: None, key, after: None, limit: BATCH };
    let (mut all, mut named) = (Vec::new(), HashSet::new());
    loop {
        let mut ids: Vec<EventId> =
            store.parked_events(&filter).await?.iter().map(|view| view.event.id).collect();
        ids.retain(|id| named.insert(*id));
        let Some(last) = ids.iter().max().copied() else { return Ok(all) };
        // Dead letters of one key are listed by offset, not by id, so no cursor is possible. Those already handled are
        // not listed again.
        filter.after = filter.key.is_none().then_some(last);
        all.extend(store.apply_dead_letter_action(&filter.group, &ids, order).await?);
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::{
        Event, EventAdmin, EventStore, JoinGroupRequest, NewEvent, ParkEventRequest, ParkedEventState,
        PartitionCommit, Payload, ReadEventsRequest, StartOffset, TakePartitionsRequest, TopicSettings,
    };

    use super::*;

    fn sample() -> ParkedEvent {
        let text = r#"{
            "id": 42, "partition": 3, "offset": 40, "key": "order-7", "type": "order.paid", "payload": {"cents": 4200},
            "headers": {"trace": "ab"}, "published_at_ms": 1000, "dead": true, "attempts": 10,
            "last_error": "no route\u001b", "last_failed_at_ms": 61000, "retry_in_ms": null, "waiting_behind_count": 2}"#;
        serde_json::from_str(text).expect("an event")
    }

    fn key() -> GroupKey {
        serde_json::from_str(r#"{"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"}"#)
            .expect("a group")
    }

    /// A page of parked events ends early if it grows too large. That is not the end of the list.
    #[tokio::test]
    async fn all_dead_letters_are_dropped_even_if_they_are_large() {
        const DEAD: usize = 20;
        let (store, key) = (tenure::store::memory::MemoryStore::new(), key());
        let settings = TopicSettings { partitions: 1, ..TopicSettings::default() };
        store.set_topic(&key.topic, &settings).await.expect("a topic");
        let payload = Payload::Bytes(vec![0; 1 << 20]);
        let event = NewEvent { payload, ..NewEvent::new("large") };
        for few in vec![event; DEAD].chunks(10) {
            store.publish(&key.topic, few).await.expect("events");
        }
        let tenure = tenure::Tenure::builder().store(store.clone()).open().await.expect("a session");
        let session = tenure.session().expect("it lives");
        let (group, member, from) = (key.clone(), "m".to_owned(), StartOffset::Earliest);
        let join = JoinGroupRequest { group: group.clone(), session: session.clone(), member, from };
        let token = store.join_group(&join).await.expect("a member").partition_leases[0].token;
        let take = TakePartitionsRequest { group: group.clone(), session, partitions: vec![(0, token)] };
        let token = store.take_partitions(&take).await.expect("a partition")[0].token;
        let mut offset = 0;
        loop {
            let read = ReadEventsRequest { topic: key.topic.clone(), after: vec![(0, offset)], limit: 1_000 };
            let events = store.read_events(&read).await.expect("events");
            let Some(last) = events.last() else { break };
            offset = last.offset;
            let how = ParkedEventState::Dead { attempts: 1, error: "no".into() };
            let park = |event: &Event| ParkEventRequest {
                event_id: event.id,
                offset: event.offset,
                state: how.clone(),
            };
            let parked = events.iter().map(park).collect();
            let (processed, parked_results) = Default::default();
            let group = group.clone();
            let commit = PartitionCommit {
                group,
                partition: 0,
                token,
                offset: Some(offset),
                processed,
                parked,
                parked_results,
            };
            store.commit_partitions(&[commit]).await.expect("parked events");
        }
        assert_eq!(
            act_on_all(&store, &key, None, DeadLetterAction::Drop).await.expect("an order").len(),
            DEAD
        );
        tenure.close().await.expect("an end");
    }

    #[test]
    fn dead_letters_are_listed_with_their_error() {
        let filter = |dead, limit| ParkedEventFilter {
            group: key(),
            dead,
            partition: None,
            key: None,
            after: None,
            limit,
        };
        let text = table(&[sample()], &filter(true, 1), 121_000);
        let wanted = "\
EVENT  PARTITION  KEY      TYPE        ATTEMPTS     FAILED  WAITING BEHIND  ERROR
   42          3  order-7  order.paid        10  1m00s ago               2  no route\\u{1b}
… more: --cursor 42
";
        assert_eq!(text, wanted);
        let waiting = ParkedEvent { dead: false, retry_in_ms: Some(5_400), ..sample() };
        let behind = ParkedEvent { dead: false, ..sample() };
        let text = table(&[waiting, behind], &filter(false, 50), 121_000);
        assert!(text.contains("retry in 5s") && text.contains("waiting"), "{text}");
        assert_eq!(table(&[], &filter(true, 1), 0), "orders/mailer has no dead letters\n");
    }

    #[test]
    fn a_dead_letter_is_shown_with_advice() {
        let wanted = "\
orders/mailer/42 order.paid  dead, 10 attempts

last error         no route\\u{1b}
last failed        1970-01-01 00:01:01Z, 1m00s ago
waiting behind it  2 events of its key
key                order-7
partition          3
offset             40
published          1970-01-01 00:00:01Z
headers            trace=ab
payload            {\"cents\": 4200}

to replay: tenure events dead-letters replay orders mailer 42
";
        assert_eq!(render_event(&key(), &sample(), 121_000), wanted);
    }
}

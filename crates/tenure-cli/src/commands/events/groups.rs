//! `tenure events groups`: consumer groups with their partitions, offsets and lag.

use tenure::Name;
use tenure::port::{Backoff, GroupSettings, GroupView, PartitionView, Pause, StartOffset};
use tenure::rules::event::lag;
use tenure::runtime::wall_ms;

use super::group;
use crate::args::events::{GroupSelector, GroupsCommand};
use crate::args::parsers::millis;
use crate::args::queues_and_pools::ListArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::elections::whoami;
use crate::commands::watch_screen;
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago, counted, paint, plain, span};
use crate::store;

pub(super) async fn run(
    global: &GlobalArgs,
    command: Option<GroupsCommand>,
    listing: ListArgs,
) -> Result<u8, CliError> {
    match command.unwrap_or(GroupsCommand::List { listing }) {
        GroupsCommand::List { listing } => list(global, listing).await,
        GroupsCommand::Show { which, lagging, watch } => show(global, &which, lagging, watch).await,
        GroupsCommand::Set { which, max_attempts, initial_backoff, max_backoff, from } => {
            let change = |settings: &mut GroupSettings| {
                let Backoff { initial_ms, max_ms } = settings.backoff;
                let initial_ms = initial_backoff.map_or(initial_ms, millis);
                // A longer initial backoff raises the maximum backoff if necessary.
                let max_ms = max_backoff.map_or_else(|| max_ms.max(initial_ms), millis);
                settings.max_attempts = max_attempts.unwrap_or(settings.max_attempts);
                settings.backoff = Backoff { initial_ms, max_ms };
            };
            set(global, &which, from, change).await
        }
        GroupsCommand::Pause { which, reason } => pause(global, &which, Some(reason)).await,
        GroupsCommand::Resume { which } => pause(global, &which, None).await,
        GroupsCommand::Reset(args) => super::reset::run(global, args).await,
        GroupsCommand::Delete { which, force } => delete(global, &which, force).await,
    }
}

async fn list(global: &GlobalArgs, listing: ListArgs) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.groups((!listing.all_namespaces).then_some(&namespace)).await?;
        let views: Vec<GroupView> = views.into_iter().map(GroupView::redacted).collect();
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&views),
            OutputFormat::Table => table(&views, listing.all_namespaces),
        })
    })
    .await
}

fn table(views: &[GroupView], namespaces: bool) -> String {
    if views.is_empty() {
        return "there are no groups; try: tenure events consume orders --group mailer -- cat\n".to_owned();
    }
    let mut header = vec!["topic", "group", "members", "lag", "lag age", "parked", "dead letters", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["members", "lag", "lag age", "parked", "dead letters"]);
    for view in views {
        let lag = lag(&view.partitions);
        let number = |count: u64, style: TextStyle| {
            (count.to_string(), if count == 0 { TextStyle::Dim } else { style })
        };
        let mut row = vec![
            (view.key.topic.name.to_string(), TextStyle::Plain),
            (view.key.name.to_string(), TextStyle::Bold),
            number(view.members.len() as u64, TextStyle::Green),
            (
                at_least(lag.events, lag.exact),
                if lag.events == 0 { TextStyle::Dim } else { TextStyle::Plain },
            ),
            (lag_age(lag.events, lag.ms), TextStyle::Dim),
            number(view.parked_event_count, TextStyle::Yellow),
            number(view.dead_letter_count, TextStyle::Red),
            state(view),
        ];
        if namespaces {
            row.insert(0, (view.key.topic.namespace.to_string(), TextStyle::Dim));
        }
        table.row(row);
    }
    table.render()
}

fn state(view: &GroupView) -> (String, TextStyle) {
    match (&view.paused, &view.webhook, view.members.is_empty()) {
        (Some(_), ..) => ("paused".to_owned(), TextStyle::Yellow),
        (None, _, true) => ("no members".to_owned(), TextStyle::Red),
        (None, ..) if view.dead_letter_count > 0 => ("dead letters".to_owned(), TextStyle::Red),
        (None, ..) if view.parked_event_count > 0 => ("retrying".to_owned(), TextStyle::Yellow),
        (None, Some(_), false) => ("webhook".to_owned(), TextStyle::Green),
        (None, None, false) => ("active".to_owned(), TextStyle::Green),
    }
}

/// Formats a count; `+` marks a lower bound.
fn at_least(count: u64, exact: bool) -> String {
    if exact { count.to_string() } else { format!("{count}+") }
}

fn lag_age(lag: u64, ms: u64) -> String {
    if lag == 0 { "–".to_owned() } else { span(ms / 1000 * 1000) }
}

async fn show(
    global: &GlobalArgs,
    which: &GroupSelector,
    lagging: bool,
    watch: bool,
) -> Result<u8, CliError> {
    let key = which.key(global)?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let mut view = group(store.as_ref(), &key).await?.redacted();
        if lagging {
            view.partitions.retain(|partition| partition.lag_events > 0);
        }
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&view),
            OutputFormat::Table => render_group(&view, wall_ms()),
        })
    })
    .await
}

fn render_group(view: &GroupView, now_ms: i64) -> String {
    let lag = lag(&view.partitions);
    let (word, style) = state(view);
    let word = match &view.paused {
        Some(pause) => {
            let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            plain(&format!("paused by {} {} ago{reason}", pause.paused_by, ago(pause.paused_at_ms, now_ms)))
        }
        None => word,
    };
    let mut facts = vec![counted(view.members.len(), "member")];
    facts.push(match lag.events {
        // Parked events are read but not processed.
        0 if view.parked_event_count + view.dead_letter_count > 0 => "no lag".to_owned(),
        0 => "no lag, no parked events".to_owned(),
        _ => format!("lag {}, oldest {}", at_least(lag.events, lag.exact), lag_age(1, lag.ms)),
    });
    if view.parked_event_count > 0 {
        facts.push(format!(
            "{} parked (waiting for a retry, or behind a dead letter of their key)",
            view.parked_event_count
        ));
    }
    if view.dead_letter_count > 0 {
        facts.push(counted(usize::try_from(view.dead_letter_count).unwrap_or(usize::MAX), "dead letter"));
    }
    let settings = &view.settings;
    let retries = format!(
        "at most {} per event, backoff {} to {}",
        counted(settings.max_attempts as usize, "attempt"),
        span(settings.backoff.initial_ms),
        span(settings.backoff.max_ms)
    );
    let mut text = format!(
        "{}  {}  {}\n{}\n",
        paint(&view.key.to_string(), TextStyle::Bold),
        paint(&word, style),
        facts.join(", "),
        paint(&retries, TextStyle::Dim)
    );
    if let Some(webhook) = &view.webhook {
        let line = format!("webhook {}, timeout {}", webhook.url, span(webhook.timeout_ms));
        text.push_str(&format!("{}\n", plain(&line)));
    }
    if view.dead_letter_count > 0 {
        let remedy = format!("tenure events dead-letters list {} {}", view.key.topic.name, view.key.name);
        text.push_str(&format!("{}\n", paint(&remedy, TextStyle::Dim)));
    }
    format!("{text}\n{}", render_partitions(view))
}

/// Table of partitions, in the layout of kafka-consumer-groups.
fn render_partitions(view: &GroupView) -> String {
    if view.partitions.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["partition", "offset", "end", "lag", "lag age", "token", "member"])
        .right(&["partition", "offset", "end", "lag", "lag age", "token"]);
    for partition in &view.partitions {
        let PartitionView { partition_lease: lease, end_offset, lag_events, lag_exact, lag_ms } = partition;
        let lagging = if *lag_events == 0 { TextStyle::Dim } else { TextStyle::Yellow };
        let holder = lease.holder.as_ref();
        let member = holder.and_then(|holder| view.members.iter().find(|member| member.session == *holder));
        let member = match (holder, member) {
            (None, _) => ("–".to_owned(), TextStyle::Dim),
            (Some(_), Some(member)) => (member.name.clone(), TextStyle::Green),
            (Some(session), None) => (session.short().to_owned(), TextStyle::Green),
        };
        table.row(vec![
            (lease.partition.to_string(), TextStyle::Bold),
            (lease.committed_offset.to_string(), TextStyle::Plain),
            (end_offset.to_string(), TextStyle::Plain),
            (at_least(*lag_events, *lag_exact), lagging),
            (lag_age(*lag_events, *lag_ms), TextStyle::Dim),
            (lease.token.to_string(), TextStyle::Dim),
            member,
        ]);
    }
    table.render()
}

async fn set(
    global: &GlobalArgs,
    which: &GroupSelector,
    from: StartOffset,
    change: impl FnOnce(&mut GroupSettings),
) -> Result<u8, CliError> {
    let key = which.key(global)?;
    let store = store::open(global).await?;
    let before = store.group(&key).await?.map(|view| view.settings);
    let mut settings = before.unwrap_or_default();
    change(&mut settings);
    tenure::rules::event::validate_group(&settings).map_err(|error| CliError::usage(error.to_string()))?;
    store.set_group(&key, &settings, from).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&group(store.as_ref(), &key).await?);
    } else {
        let (style, done) = match before {
            Some(before) if before == settings => (TextStyle::Yellow, "is unchanged"),
            Some(_) => (TextStyle::Green, "is updated"),
            None => (TextStyle::Green, "is created"),
        };
        let times = counted(settings.max_attempts as usize, "attempt");
        output::note(global, style, &format!("group {key} {done}: {times}"));
    }
    Ok(0)
}

/// Pauses with a reason, or resumes without one.
async fn pause(global: &GlobalArgs, which: &GroupSelector, reason: Option<String>) -> Result<u8, CliError> {
    let key = which.key(global)?;
    let store = store::open(global).await?;
    group(store.as_ref(), &key).await?;
    let pause = reason.map(|reason| Pause { paused_by: whoami(), reason, paused_at_ms: wall_ms() });
    let changed = store.set_group_paused(&key, pause.as_ref()).await?;
    let (style, text) = match (pause.is_some(), changed) {
        (true, true) => (TextStyle::Green, "is paused; events in progress are finished"),
        (true, false) => (TextStyle::Yellow, "was already paused"),
        (false, true) => (TextStyle::Green, "is resumed"),
        (false, false) => (TextStyle::Yellow, "was not paused"),
    };
    if global.output == OutputFormat::Json {
        output::print_json(&serde_json::json!({"paused": pause.is_some(), "changed": changed}));
    }
    output::note(global, style, &format!("group {key} {text}"));
    Ok(0)
}

async fn delete(global: &GlobalArgs, which: &GroupSelector, force: bool) -> Result<u8, CliError> {
    let key = which.key(global)?;
    let store = store::open(global).await?;
    let view = group(store.as_ref(), &key).await?;
    if !force && view.parked_event_count + view.dead_letter_count > 0 {
        let events = counted(
            usize::try_from(view.parked_event_count + view.dead_letter_count).unwrap_or(usize::MAX),
            "event",
        );
        return Err(CliError::usage(format!(
            "group {key} has {events} parked or dead, which would be deleted with it; use --force to delete it anyway"
        )));
    }
    let deleted = store.delete_group(&key).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&serde_json::json!({"deleted": deleted}));
    }
    output::note(global, TextStyle::Green, &format!("deleted group {key}"));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GroupView {
        let text = r#"{
            "topic": {"namespace": "default", "name": "orders"}, "name": "mailer",
            "settings": {"max_attempts": 10, "backoff": {"initial_ms": 500, "max_ms": 60000}}, "paused": null,
            "members": [{"session": "00112233445566778899aabbccddeeff", "name": "web-1"}],
            "partitions": [
                {"partition": 0, "token": 7, "holder": "00112233445566778899aabbccddeeff", "last_member": "web-1",
                 "committed_offset": 40, "end_offset": 42, "lag_events": 2, "lag_exact": true, "lag_ms": 3250},
                {"partition": 1, "token": 0, "holder": null, "last_member": "", "committed_offset": 0, "end_offset": 0,
                 "lag_events": 0, "lag_exact": true, "lag_ms": 0}],
            "parked_event_count": 1, "dead_letter_count": 2, "rebalanced_partition_count": 3,
            "webhook": {"url": "https://example.com/\u001b", "timeout_ms": 10000}}"#;
        serde_json::from_str(text).expect("a group")
    }

    #[test]
    fn a_group_is_shown_by_partition() {
        let wanted = "\
orders/mailer  dead letters  1 member, lag 2, oldest 3s, 1 parked (waiting for a retry, or behind a dead letter of their key), 2 dead letters
at most 10 attempts per event, backoff 500ms to 1m
webhook https://example.com/\\u{1b}, timeout 10s
tenure events dead-letters list orders mailer

PARTITION  OFFSET  END  LAG  LAG AGE  TOKEN  MEMBER
        0      40   42    2       3s      7  web-1
        1       0    0    0        –      0  –
";
        assert_eq!(render_group(&sample(), 0), wanted);
    }

    #[test]
    fn a_list_shows_lag_and_members() {
        let without_members = GroupView { members: Vec::new(), webhook: None, ..sample() };
        let text = table(&[sample(), without_members], false);
        assert_eq!(
            text.lines().next(),
            Some("TOPIC   GROUP   MEMBERS  LAG  LAG AGE  PARKED  DEAD LETTERS  STATE"),
            "{text}"
        );
        assert!(text.contains("mailer        1    2       3s       1             2  dead letters"), "{text}");
        assert!(text.contains("no members"), "{text}");
        let mut far = sample();
        far.partitions[0].lag_exact = false;
        assert!(table(&[far], true).contains("2+"));
        assert!(table(&[], false).contains("tenure events consume"));
    }

    /// Regression: a group that had read all events but parked some was shown as finished.
    #[test]
    fn parked_events_are_not_processed() {
        let waits = GroupView { partitions: Vec::new(), dead_letter_count: 0, webhook: None, ..sample() };
        let text = render_group(&waits, 0);
        assert!(text.contains("retrying") && text.contains("no lag, 1 parked"), "{text}");
        let done = GroupView { parked_event_count: 0, ..waits };
        assert!(render_group(&done, 0).contains("no lag, no parked events"));
    }

    #[test]
    fn a_pause_is_shown_with_its_reason() {
        let pause = Pause { paused_by: "ada".into(), reason: "on fire".into(), paused_at_ms: 0 };
        let text = render_group(&GroupView { paused: Some(pause), ..sample() }, 10_000);
        assert!(text.contains("paused by ada 10s ago: on fire"), "{text}");
    }
}

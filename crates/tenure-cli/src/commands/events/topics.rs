//! `tenure events topics`: inspect, create and configure topics.

use tenure::Name;
use tenure::port::{Store, TopicKey, TopicLockHolder, TopicSettings, TopicView};
use tenure::runtime::wall_ms;

use crate::args::events::{TopicSetArgs, TopicsCommand};
use crate::args::parsers::millis;
use crate::args::queues_and_pools::ListArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::watch_screen;
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago, counted, paint, plain, span};
use crate::store;

pub(super) async fn run(
    global: &GlobalArgs,
    command: Option<TopicsCommand>,
    listing: ListArgs,
) -> Result<u8, CliError> {
    match command.unwrap_or(TopicsCommand::List { listing }) {
        TopicsCommand::List { listing } => list(global, listing).await,
        TopicsCommand::Show { topic, watch } => show(global, &topic, watch).await,
        TopicsCommand::Create { topic, partitions, set } => create(global, &topic, partitions, &set).await,
        TopicsCommand::Set { topic, set } => change(global, &topic, &set).await,
        TopicsCommand::Delete { topic, force } => delete(global, &topic, force).await,
    }
}

pub(super) fn no_such(key: &TopicKey) -> CliError {
    tenure::rules::event::no_such_topic(key).into()
}

impl TopicSetArgs {
    /// Applies the given options; all other settings keep their values.
    fn apply(&self, settings: TopicSettings) -> TopicSettings {
        TopicSettings {
            partitions: settings.partitions,
            retention_ms: self.retention.map_or(settings.retention_ms, millis),
            unread_retention_ms: self
                .unread_retention
                .map_or(settings.unread_retention_ms, |limit| limit.0.map(millis)),
            max_payload_bytes: self.max_payload_bytes.unwrap_or(settings.max_payload_bytes),
        }
    }
}

async fn list(global: &GlobalArgs, listing: ListArgs) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.topics((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(watch_screen::render(global, &views, |views| table(views, listing.all_namespaces, wall_ms())))
    })
    .await
}

fn table(views: &[TopicView], namespaces: bool, now_ms: i64) -> String {
    if views.is_empty() {
        return "there are no topics; try: tenure events topics create orders\n".to_owned();
    }
    let mut header = vec!["topic", "partitions", "events", "oldest", "newest", "retention", "groups", ""];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["partitions", "events", "oldest", "newest", "retention"]);
    for view in views {
        let at = |at: Option<i64>| at.map_or_else(|| "–".to_owned(), |at| ago(at, now_ms));
        let groups: Vec<_> = view.groups.iter().map(ToString::to_string).collect();
        let render_lock_holders = match view.lock_holders.len() {
            0 => (String::new(), TextStyle::Plain),
            locked => (format!("{} locked", counted(locked, "partition")), TextStyle::Red),
        };
        let mut row = vec![
            (view.key.name.to_string(), TextStyle::Bold),
            (view.settings.partitions.to_string(), TextStyle::Dim),
            (
                view.event_count.to_string(),
                if view.event_count == 0 { TextStyle::Dim } else { TextStyle::Plain },
            ),
            (at(view.oldest_published_at_ms), TextStyle::Plain),
            (at(view.newest_published_at_ms), TextStyle::Plain),
            (span(view.settings.retention_ms), TextStyle::Dim),
            (if groups.is_empty() { "–".to_owned() } else { groups.join(" ") }, TextStyle::Plain),
            render_lock_holders,
        ];
        if namespaces {
            row.insert(0, (view.key.namespace.to_string(), TextStyle::Dim));
        }
        table.row(row);
    }
    table.render()
}

async fn show(global: &GlobalArgs, topic: &str, watch: bool) -> Result<u8, CliError> {
    let key = store::topic(global, topic)?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        Ok(watch_screen::render(global, &view, |view| render_topic(view, wall_ms())))
    })
    .await
}

fn render_topic(view: &TopicView, now_ms: i64) -> String {
    let settings = &view.settings;
    let age_of = |at: Option<i64>, what: &str| at.map(|at| format!(", {what} {} ago", ago(at, now_ms)));
    let events = usize::try_from(view.event_count).unwrap_or(usize::MAX);
    let headline = format!(
        "{}{}{}",
        counted(events, "event"),
        age_of(view.oldest_published_at_ms, "oldest").unwrap_or_default(),
        age_of(view.newest_published_at_ms, "newest").unwrap_or_default()
    );
    let unread = match settings.unread_retention_ms {
        None => "and until every group has read them".to_owned(),
        Some(ms) => format!("unread events at most {}", span(ms)),
    };
    let groups: Vec<_> = view.groups.iter().map(ToString::to_string).collect();
    let mut set = Table::new(&["setting", ""]);
    for (name, value) in [
        ("partitions", format!("{}, fixed", settings.partitions)),
        ("retention", format!("at least {}, {unread}", span(settings.retention_ms))),
        ("max payload", format!("{} bytes", settings.max_payload_bytes)),
        ("groups", if groups.is_empty() { "none".to_owned() } else { groups.join(" ") }),
    ] {
        set.row(vec![(name.to_owned(), TextStyle::Plain), (value, TextStyle::Plain)]);
    }
    let name = paint(&view.key.to_string(), TextStyle::Bold);
    format!("{name}  {}\n\n{}{}", plain(&headline), set.render(), render_lock_holders(&view.lock_holders))
}

/// Table of transactions that hold a partition lock.
fn render_lock_holders(blockers: &[TopicLockHolder]) -> String {
    if blockers.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["partition", "pid", "client", "open", "waiting", "activity"]).right(&[
        "partition",
        "pid",
        "open",
        "waiting",
    ]);
    for blocker in blockers {
        table.row(vec![
            (blocker.partition.to_string(), TextStyle::Bold),
            (blocker.pid.to_string(), TextStyle::Red),
            (blocker.client.clone(), TextStyle::Plain),
            (span(blocker.open_ms), TextStyle::Plain),
            (
                blocker.waiting_transactions.to_string(),
                if blocker.waiting_transactions == 0 { TextStyle::Dim } else { TextStyle::Red },
            ),
            (blocker.activity.clone(), TextStyle::Dim),
        ]);
    }
    let remedy = "a transaction that holds a partition lock blocks commits of others; end it with: SELECT pg_terminate_backend(PID)";
    format!("\n{}{}\n", table.render(), paint(remedy, TextStyle::Dim))
}

async fn create(
    global: &GlobalArgs,
    topic: &str,
    partitions: u32,
    set: &TopicSetArgs,
) -> Result<u8, CliError> {
    let key = store::topic(global, topic)?;
    let settings = set.apply(TopicSettings { partitions, ..TopicSettings::default() });
    checked(&settings)?;
    let store = store::open(global).await?;
    match store.topic(&key).await?.map(|view| view.settings) {
        None => {
            store.set_topic(&key, &settings).await?;
            print_topic(global, store.as_ref(), &key, TextStyle::Green, "is created").await
        }
        Some(before) if before == settings => {
            print_topic(global, store.as_ref(), &key, TextStyle::Yellow, "already exists").await
        }
        Some(before) if before.partitions != partitions => {
            Err(tenure::rules::event::partitions_are_fixed(&key, before.partitions, partitions).into())
        }
        Some(_) => Err(CliError::usage(format!(
            "topic {key} already exists with other settings; change them with: tenure events topics set {topic} …"
        ))),
    }
}

async fn change(global: &GlobalArgs, topic: &str, set: &TopicSetArgs) -> Result<u8, CliError> {
    let key = store::topic(global, topic)?;
    let store = store::open(global).await?;
    let settings = set.apply(existing(store.as_ref(), &key).await?.settings);
    checked(&settings)?;
    store.set_topic(&key, &settings).await?;
    print_topic(global, store.as_ref(), &key, TextStyle::Green, "is updated").await
}

fn checked(settings: &TopicSettings) -> Result<(), CliError> {
    tenure::rules::event::validate_topic(settings).map_err(|error| CliError::usage(error.to_string()))
}

async fn print_topic(
    global: &GlobalArgs,
    store: &dyn Store,
    key: &TopicKey,
    style: TextStyle,
    done: &str,
) -> Result<u8, CliError> {
    let view = existing(store, key).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&view);
    }
    let kept = span(view.settings.retention_ms);
    let text = format!(
        "topic {key} {done}: {}, retention {kept}",
        counted(view.settings.partitions as usize, "partition")
    );
    output::note(global, style, &text);
    Ok(0)
}

async fn delete(global: &GlobalArgs, topic: &str, force: bool) -> Result<u8, CliError> {
    let key = store::topic(global, topic)?;
    let store = store::open(global).await?;
    let view = existing(store.as_ref(), &key).await?;
    if !force && (view.event_count > 0 || !view.groups.is_empty()) {
        let events = counted(usize::try_from(view.event_count).unwrap_or(usize::MAX), "event");
        let groups = counted(view.groups.len(), "group");
        return Err(CliError::usage(format!(
            "topic {key} has {events} and {groups}, which would be deleted with it; use --force to delete it anyway"
        )));
    }
    let deleted = store.delete_topic(&key).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&serde_json::json!({"deleted": deleted}));
    }
    output::note(global, TextStyle::Green, &format!("deleted topic {key}"));
    Ok(0)
}

async fn existing(store: &dyn Store, key: &TopicKey) -> Result<TopicView, CliError> {
    store.topic(key).await?.ok_or_else(|| no_such(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_partition_is_shown_with_the_lock_holder() {
        let view = TopicView {
            key: TopicKey::new("default".parse().unwrap(), "orders".parse().unwrap()),
            settings: TopicSettings { unread_retention_ms: Some(2_592_000_000), ..TopicSettings::default() },
            event_count: 7,
            oldest_published_at_ms: Some(0),
            newest_published_at_ms: Some(60_000),
            groups: vec!["mailer".parse().unwrap()],
            lock_holders: vec![TopicLockHolder {
                partition: 3,
                pid: 4711,
                client: "billing (app)\u{1b}".into(),
                activity: "idle in transaction".into(),
                open_ms: 90_000,
                waiting_transactions: 2,
            }],
        };
        let text = render_topic(&view, 61_000);
        for words in [
            "orders  7 events, oldest 1m01s ago, newest 1s ago",
            "64, fixed",
            "at least 7d, unread events at most 30d",
            "4711  billing (app)\\u{1b}  1m30s        2  idle in transaction",
            "pg_terminate_backend",
        ] {
            assert!(text.contains(words), "{words:?} in\n{text}");
        }
        assert!(table(&[view], false, 61_000).contains("1 partition locked"));
        assert!(table(&[], false, 0).contains("topics create"));
    }
}

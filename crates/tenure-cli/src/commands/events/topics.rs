//! `tenure events topics`: see, make and set topics.

use tenure::Name;
use tenure::port::{Backend, Blocker, TopicKey, TopicSettings, TopicView};
use tenure::runtime::wall_ms;

use crate::args::claims::Listing;
use crate::args::events::{TopicSet, TopicsCommand};
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::commands::screen;
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago, counted, paint, plain, span};
use crate::store;

pub(super) async fn run(
    global: &Global,
    command: Option<TopicsCommand>,
    listing: Listing,
) -> Result<u8, Failure> {
    match command.unwrap_or(TopicsCommand::List { listing }) {
        TopicsCommand::List { listing } => list(global, listing).await,
        TopicsCommand::Show { topic, watch } => show(global, &topic, watch).await,
        TopicsCommand::Create { topic, slots, set } => create(global, &topic, slots, &set).await,
        TopicsCommand::Set { topic, set } => change(global, &topic, &set).await,
        TopicsCommand::Delete { topic, force } => delete(global, &topic, force).await,
    }
}

pub(super) fn no_such(key: &TopicKey) -> Failure {
    tenure::event::no_such_topic(key).into()
}

impl TopicSet {
    /// What is not named stays as it is.
    fn apply(&self, settings: TopicSettings) -> TopicSettings {
        TopicSettings {
            slots: settings.slots,
            keep_ms: self.keep.map_or(settings.keep_ms, millis),
            keep_unread_ms: self.keep_unread.map_or(settings.keep_unread_ms, |limit| limit.0.map(millis)),
            max_bytes: self.max_bytes.unwrap_or(settings.max_bytes),
        }
    }
}

async fn list(global: &Global, listing: Listing) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.topics((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(screen::drawn(global, &views, |views| table(views, listing.all_namespaces, wall_ms())))
    })
    .await
}

fn table(views: &[TopicView], namespaces: bool, now_ms: i64) -> String {
    if views.is_empty() {
        return "there are no topics yet; try: tenure events topics create orders\n".to_owned();
    }
    let mut header = vec!["topic", "slots", "events", "oldest", "newest", "kept", "groups", ""];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["slots", "events", "oldest", "newest", "kept"]);
    for view in views {
        let at = |at: Option<i64>| at.map_or_else(|| "–".to_owned(), |at| ago(at, now_ms));
        let groups: Vec<_> = view.groups.iter().map(ToString::to_string).collect();
        let blocked = match view.blockers.len() {
            0 => (String::new(), Ink::Plain),
            slots => (format!("{} blocked", counted(slots, "slot")), Ink::Red),
        };
        let mut row = vec![
            (view.key.name.to_string(), Ink::Bold),
            (view.settings.slots.to_string(), Ink::Dim),
            (view.events.to_string(), if view.events == 0 { Ink::Dim } else { Ink::Plain }),
            (at(view.oldest_at_ms), Ink::Plain),
            (at(view.newest_at_ms), Ink::Plain),
            (span(view.settings.keep_ms), Ink::Dim),
            (if groups.is_empty() { "–".to_owned() } else { groups.join(" ") }, Ink::Plain),
            blocked,
        ];
        if namespaces {
            row.insert(0, (view.key.namespace.to_string(), Ink::Dim));
        }
        table.row(row);
    }
    table.render()
}

async fn show(global: &Global, topic: &str, watch: bool) -> Result<u8, Failure> {
    let key = store::topic(global, topic)?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        Ok(screen::drawn(global, &view, |view| picture(view, wall_ms())))
    })
    .await
}

fn picture(view: &TopicView, now_ms: i64) -> String {
    let settings = &view.settings;
    let about = |at: Option<i64>, what: &str| at.map(|at| format!(", the {what} {} ago", ago(at, now_ms)));
    let events = usize::try_from(view.events).unwrap_or(usize::MAX);
    let headline = format!(
        "{}{}{}",
        counted(events, "event"),
        about(view.oldest_at_ms, "oldest").unwrap_or_default(),
        about(view.newest_at_ms, "newest").unwrap_or_default()
    );
    let unread = match settings.keep_unread_ms {
        None => "until every group has read them".to_owned(),
        Some(ms) => format!("for {}, though a group has not read them", span(ms)),
    };
    let groups: Vec<_> = view.groups.iter().map(ToString::to_string).collect();
    let mut set = Table::new(&["setting", ""]);
    for (name, value) in [
        ("slots", format!("{}, for ever", settings.slots)),
        ("kept", format!("for {} at least, and {unread}", span(settings.keep_ms))),
        ("longest payload", format!("{} bytes", settings.max_bytes)),
        ("groups", if groups.is_empty() { "none".to_owned() } else { groups.join(" ") }),
    ] {
        set.row(vec![(name.to_owned(), Ink::Plain), (value, Ink::Plain)]);
    }
    let name = paint(&view.key.to_string(), Ink::Bold);
    format!("{name}  {}\n\n{}{}", plain(&headline), set.render(), blocked(&view.blockers))
}

/// Who keeps others from committing.
fn blocked(blockers: &[Blocker]) -> String {
    if blockers.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["blocked slot", "by pid", "who", "for", "waiting", "what it does"])
        .right(&["blocked slot", "by pid", "for", "waiting"]);
    for blocker in blockers {
        table.row(vec![
            (blocker.slot.to_string(), Ink::Bold),
            (blocker.pid.to_string(), Ink::Red),
            (blocker.who.clone(), Ink::Plain),
            (span(blocker.since_ms), Ink::Plain),
            (blocker.waiting.to_string(), if blocker.waiting == 0 { Ink::Dim } else { Ink::Red }),
            (blocker.doing.clone(), Ink::Dim),
        ]);
    }
    let remedy = "a transaction that holds a slot keeps others from committing to it; end it: SELECT pg_terminate_backend(PID)";
    format!("\n{}{}\n", table.render(), paint(remedy, Ink::Dim))
}

async fn create(global: &Global, topic: &str, slots: u32, set: &TopicSet) -> Result<u8, Failure> {
    let key = store::topic(global, topic)?;
    let settings = set.apply(TopicSettings { slots, ..TopicSettings::default() });
    checked(&settings)?;
    let store = store::open(global).await?;
    match store.topic(&key).await?.map(|view| view.settings) {
        None => {
            store.set_topic(&key, &settings).await?;
            tell(global, store.as_ref(), &key, Ink::Green, "is made").await
        }
        Some(before) if before == settings => {
            tell(global, store.as_ref(), &key, Ink::Yellow, "was there already").await
        }
        Some(before) if before.slots != slots => {
            Err(tenure::event::slots_are_fixed(&key, before.slots, slots).into())
        }
        Some(_) => Err(Failure::usage(format!(
            "the topic {key} is there already, and set otherwise; to set it anew: tenure events topics set {topic} …"
        ))),
    }
}

async fn change(global: &Global, topic: &str, set: &TopicSet) -> Result<u8, Failure> {
    let key = store::topic(global, topic)?;
    let store = store::open(global).await?;
    let settings = set.apply(existing(store.as_ref(), &key).await?.settings);
    checked(&settings)?;
    store.set_topic(&key, &settings).await?;
    tell(global, store.as_ref(), &key, Ink::Green, "is set").await
}

fn checked(settings: &TopicSettings) -> Result<(), Failure> {
    tenure::event::check_topic(settings).map_err(|error| Failure::usage(error.to_string()))
}

async fn tell(
    global: &Global,
    store: &dyn Backend,
    key: &TopicKey,
    ink: Ink,
    done: &str,
) -> Result<u8, Failure> {
    let view = existing(store, key).await?;
    if global.output == Format::Json {
        output::print_json(&view);
    }
    let kept = span(view.settings.keep_ms);
    let text =
        format!("the topic {key} {done}: {}, kept for {kept}", counted(view.settings.slots as usize, "slot"));
    output::note(global, ink, &text);
    Ok(0)
}

async fn delete(global: &Global, topic: &str, force: bool) -> Result<u8, Failure> {
    let key = store::topic(global, topic)?;
    let store = store::open(global).await?;
    let view = existing(store.as_ref(), &key).await?;
    if !force && (view.events > 0 || !view.groups.is_empty()) {
        let events = counted(usize::try_from(view.events).unwrap_or(usize::MAX), "event");
        let groups = counted(view.groups.len(), "group");
        return Err(Failure::usage(format!(
            "the topic {key} has {events} and {groups}, which would go with it; if that is meant: --force"
        )));
    }
    let deleted = store.delete_topic(&key).await?;
    if global.output == Format::Json {
        output::print_json(&serde_json::json!({"deleted": deleted}));
    }
    output::note(global, Ink::Green, &format!("the topic {key} is deleted"));
    Ok(0)
}

async fn existing(store: &dyn Backend, key: &TopicKey) -> Result<TopicView, Failure> {
    store.topic(key).await?.ok_or_else(|| no_such(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_slot_is_told_with_who_blocks_it() {
        let view = TopicView {
            key: TopicKey::new("default".parse().unwrap(), "orders".parse().unwrap()),
            settings: TopicSettings { keep_unread_ms: Some(2_592_000_000), ..TopicSettings::default() },
            events: 7,
            oldest_at_ms: Some(0),
            newest_at_ms: Some(60_000),
            groups: vec!["mailer".parse().unwrap()],
            blockers: vec![Blocker {
                slot: 3,
                pid: 4711,
                who: "billing (app)\u{1b}".into(),
                doing: "idle in transaction".into(),
                since_ms: 90_000,
                waiting: 2,
            }],
        };
        let told = picture(&view, 61_000);
        for words in [
            "orders  7 events, the oldest 1m01s ago, the newest 1s ago",
            "64, for ever",
            "for 7d at least, and for 30d, though",
            "4711  billing (app)\\u{1b}  1m30s        2  idle in transaction",
            "pg_terminate_backend",
        ] {
            assert!(told.contains(words), "{words:?} in\n{told}");
        }
        assert!(table(&[view], false, 61_000).contains("1 slot blocked"));
        assert!(table(&[], false, 0).contains("topics create"));
    }
}

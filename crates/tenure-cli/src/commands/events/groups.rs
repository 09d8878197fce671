//! `tenure events groups`: who reads which slot of a topic, and how far.

use tenure::Name;
use tenure::event::lag;
use tenure::port::{Backoff, Begin, GroupSettings, GroupView, Pause, SlotView};
use tenure::runtime::wall_ms;

use super::group;
use crate::args::claims::Listing;
use crate::args::events::{GroupsCommand, WhichGroup};
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::commands::leader::whoami;
use crate::commands::screen;
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago, counted, paint, plain, span};
use crate::store;

pub(super) async fn run(
    global: &Global,
    command: Option<GroupsCommand>,
    listing: Listing,
) -> Result<u8, Failure> {
    match command.unwrap_or(GroupsCommand::List { listing }) {
        GroupsCommand::List { listing } => list(global, listing).await,
        GroupsCommand::Show { which, lagging, watch } => show(global, &which, lagging, watch).await,
        GroupsCommand::Set { which, max_attempts, backoff, max_backoff, from } => {
            let change = |settings: &mut GroupSettings| {
                let Backoff { first_ms, most_ms } = settings.backoff;
                let first_ms = backoff.map_or(first_ms, millis);
                // Who asks for a longer first wait need not say that the longest is as long.
                let most_ms = max_backoff.map_or_else(|| most_ms.max(first_ms), millis);
                settings.max_attempts = max_attempts.unwrap_or(settings.max_attempts);
                settings.backoff = Backoff { first_ms, most_ms };
            };
            set(global, &which, from, change).await
        }
        GroupsCommand::Pause { which, reason } => pause(global, &which, Some(reason)).await,
        GroupsCommand::Resume { which } => pause(global, &which, None).await,
        GroupsCommand::Delete { which, force } => delete(global, &which, force).await,
    }
}

async fn list(global: &Global, listing: Listing) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.groups((!listing.all_namespaces).then_some(&namespace)).await?;
        let views: Vec<GroupView> = views.into_iter().map(GroupView::shown).collect();
        Ok(match global.output {
            Format::Json => screen::json(&views),
            Format::Table => table(&views, listing.all_namespaces),
        })
    })
    .await
}

fn table(views: &[GroupView], namespaces: bool) -> String {
    if views.is_empty() {
        return "there are no groups yet; try: tenure events consume orders --group mailer -- cat\n"
            .to_owned();
    }
    let mut header = vec!["topic", "group", "members", "lag", "behind", "aside", "dead", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["members", "lag", "behind", "aside", "dead"]);
    for view in views {
        let lag = lag(&view.slots);
        let number = |count: u64, ink: Ink| (count.to_string(), if count == 0 { Ink::Dim } else { ink });
        let mut row = vec![
            (view.key.topic.name.to_string(), Ink::Plain),
            (view.key.name.to_string(), Ink::Bold),
            number(view.members.len() as u64, Ink::Green),
            (at_least(lag.events, lag.exact), if lag.events == 0 { Ink::Dim } else { Ink::Plain }),
            (behind(lag.events, lag.ms), Ink::Dim),
            number(view.aside, Ink::Yellow),
            number(view.dead, Ink::Red),
            state(view),
        ];
        if namespaces {
            row.insert(0, (view.key.topic.namespace.to_string(), Ink::Dim));
        }
        table.row(row);
    }
    table.render()
}

fn state(view: &GroupView) -> (String, Ink) {
    match (&view.paused, &view.push, view.members.is_empty()) {
        (Some(_), ..) => ("paused".to_owned(), Ink::Yellow),
        (None, _, true) => ("nobody reads".to_owned(), Ink::Red),
        (None, ..) if view.dead > 0 => ("has dead events".to_owned(), Ink::Red),
        (None, ..) if view.aside > 0 => ("retries".to_owned(), Ink::Yellow),
        (None, Some(_), false) => ("pushed".to_owned(), Ink::Green),
        (None, None, false) => ("reads".to_owned(), Ink::Green),
    }
}

/// A count that may have been given up.
fn at_least(count: u64, exact: bool) -> String {
    if exact { count.to_string() } else { format!("{count}+") }
}

fn behind(lag: u64, ms: u64) -> String {
    if lag == 0 { "–".to_owned() } else { span(ms / 1000 * 1000) }
}

async fn show(global: &Global, which: &WhichGroup, lagging: bool, watch: bool) -> Result<u8, Failure> {
    let key = which.key(global)?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let mut view = group(store.as_ref(), &key).await?.shown();
        if lagging {
            view.slots.retain(|slot| slot.lag > 0);
        }
        Ok(match global.output {
            Format::Json => screen::json(&view),
            Format::Table => picture(&view, wall_ms()),
        })
    })
    .await
}

fn picture(view: &GroupView, now_ms: i64) -> String {
    let lag = lag(&view.slots);
    let (word, ink) = state(view);
    let word = match &view.paused {
        Some(pause) => {
            let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            plain(&format!("paused by {} {} ago{reason}", pause.by, ago(pause.at_ms, now_ms)))
        }
        None => word,
    };
    let mut facts = vec![counted(view.members.len(), "member")];
    facts.push(match lag.events {
        // What waits for a retry is neither unread nor done.
        0 if view.aside + view.dead > 0 => "nothing new".to_owned(),
        0 => "nothing unread".to_owned(),
        _ => format!("{} unread, the oldest for {}", at_least(lag.events, lag.exact), behind(1, lag.ms)),
    });
    if view.aside > 0 {
        facts.push(format!(
            "{} set aside (to be tried again, or behind a dead event of their key)",
            view.aside
        ));
    }
    if view.dead > 0 {
        facts.push(format!("{} dead", view.dead));
    }
    let settings = &view.settings;
    let tried = format!(
        "an event is tried {}, again after {} to {}",
        counted(settings.max_attempts as usize, "time"),
        span(settings.backoff.first_ms),
        span(settings.backoff.most_ms)
    );
    let mut text = format!(
        "{}  {}  {}\n{}\n",
        paint(&view.key.to_string(), Ink::Bold),
        paint(&word, ink),
        facts.join(", "),
        paint(&tried, Ink::Dim)
    );
    if let Some(push) = &view.push {
        let pushed = format!("pushed to {}, which has {} to answer", push.url, span(push.timeout_ms));
        text.push_str(&format!("{}\n", plain(&pushed)));
    }
    if view.dead > 0 {
        let remedy = format!("tenure events dead list {} {}", view.key.topic.name, view.key.name);
        text.push_str(&format!("{}\n", paint(&remedy, Ink::Dim)));
    }
    format!("{text}\n{}", slots(view))
}

/// In the shape of kafka-consumer-groups.
fn slots(view: &GroupView) -> String {
    if view.slots.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["slot", "offset", "end", "lag", "behind", "token", "member"])
        .right(&["slot", "offset", "end", "lag", "behind", "token"]);
    for slot in &view.slots {
        let SlotView { share, end, lag, lag_exact, lag_ms } = slot;
        let lagging = if *lag == 0 { Ink::Dim } else { Ink::Yellow };
        let holder = share.holder.as_ref();
        let member = holder.and_then(|holder| view.members.iter().find(|member| member.session == *holder));
        let member = match (holder, member) {
            (None, _) => ("–".to_owned(), Ink::Dim),
            (Some(_), Some(member)) => (member.name.clone(), Ink::Green),
            (Some(session), None) => (session.short().to_owned(), Ink::Green),
        };
        table.row(vec![
            (share.slot.to_string(), Ink::Bold),
            (share.position.to_string(), Ink::Plain),
            (end.to_string(), Ink::Plain),
            (at_least(*lag, *lag_exact), lagging),
            (behind(*lag, *lag_ms), Ink::Dim),
            (share.token.to_string(), Ink::Dim),
            member,
        ]);
    }
    table.render()
}

async fn set(
    global: &Global,
    which: &WhichGroup,
    from: Begin,
    change: impl FnOnce(&mut GroupSettings),
) -> Result<u8, Failure> {
    let key = which.key(global)?;
    let store = store::open(global).await?;
    let before = store.group(&key).await?.map(|view| view.settings);
    let mut settings = before.unwrap_or_default();
    change(&mut settings);
    tenure::event::check_group(&settings).map_err(|error| Failure::usage(error.to_string()))?;
    store.set_group(&key, &settings, from).await?;
    if global.output == Format::Json {
        output::print_json(&group(store.as_ref(), &key).await?);
    } else {
        let (ink, done) = match before {
            Some(before) if before == settings => (Ink::Yellow, "was set so already"),
            Some(_) => (Ink::Green, "is set"),
            None => (Ink::Green, "is made and set"),
        };
        let times = counted(settings.max_attempts as usize, "attempt");
        output::note(global, ink, &format!("the group {key} {done}: {times}"));
    }
    Ok(0)
}

/// Pauses for this reason, or resumes.
async fn pause(global: &Global, which: &WhichGroup, reason: Option<String>) -> Result<u8, Failure> {
    let key = which.key(global)?;
    let store = store::open(global).await?;
    group(store.as_ref(), &key).await?;
    let pause = reason.map(|reason| Pause { by: whoami(), reason, at_ms: wall_ms() });
    let changed = store.set_group_paused(&key, pause.as_ref()).await?;
    let (ink, text) = match (pause.is_some(), changed) {
        (true, true) => (Ink::Green, "is paused; what is begun is finished"),
        (true, false) => (Ink::Yellow, "was paused already"),
        (false, true) => (Ink::Green, "goes on"),
        (false, false) => (Ink::Yellow, "was not paused"),
    };
    if global.output == Format::Json {
        output::print_json(&serde_json::json!({"paused": pause.is_some(), "changed": changed}));
    }
    output::note(global, ink, &format!("the group {key} {text}"));
    Ok(0)
}

async fn delete(global: &Global, which: &WhichGroup, force: bool) -> Result<u8, Failure> {
    let key = which.key(global)?;
    let store = store::open(global).await?;
    let view = group(store.as_ref(), &key).await?;
    if !force && view.aside + view.dead > 0 {
        let events = counted(usize::try_from(view.aside + view.dead).unwrap_or(usize::MAX), "event");
        return Err(Failure::usage(format!(
            "the group {key} has set {events} aside, which nobody has handled and which would go with it; if that is meant: --force"
        )));
    }
    let deleted = store.delete_group(&key).await?;
    if global.output == Format::Json {
        output::print_json(&serde_json::json!({"deleted": deleted}));
    }
    output::note(global, Ink::Green, &format!("the group {key} is deleted"));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GroupView {
        let text = r#"{
            "topic": {"namespace": "default", "name": "orders"}, "name": "mailer",
            "settings": {"max_attempts": 10, "backoff": {"first_ms": 500, "most_ms": 60000}}, "paused": null,
            "members": [{"session": "00112233445566778899aabbccddeeff", "name": "web-1"}],
            "slots": [
                {"slot": 0, "token": 7, "holder": "00112233445566778899aabbccddeeff", "last": "web-1", "position": 40,
                 "end": 42, "lag": 2, "lag_exact": true, "lag_ms": 3250},
                {"slot": 1, "token": 0, "holder": null, "last": "", "position": 0, "end": 0, "lag": 0, "lag_exact": true,
                 "lag_ms": 0}],
            "aside": 1, "dead": 2, "moves": 3, "push": {"url": "https://example.com/\u001b", "timeout_ms": 10000}}"#;
        serde_json::from_str(text).expect("a group")
    }

    #[test]
    fn a_group_is_shown_slot_by_slot() {
        let wanted = "\
orders/mailer  has dead events  1 member, 2 unread, the oldest for 3s, 1 set aside (to be tried again, or behind a dead event of their key), 2 dead
an event is tried 10 times, again after 500ms to 1m
pushed to https://example.com/\\u{1b}, which has 10s to answer
tenure events dead list orders mailer

SLOT  OFFSET  END  LAG  BEHIND  TOKEN  MEMBER
   0      40   42    2      3s      7  web-1
   1       0    0    0       –      0  –
";
        assert_eq!(picture(&sample(), 0), wanted);
    }

    #[test]
    fn a_list_says_who_is_behind_and_who_reads() {
        let nobody = GroupView { members: Vec::new(), push: None, ..sample() };
        let told = table(&[sample(), nobody], false);
        assert_eq!(
            told.lines().next(),
            Some("TOPIC   GROUP   MEMBERS  LAG  BEHIND  ASIDE  DEAD  STATE"),
            "{told}"
        );
        assert!(told.contains("mailer        1    2      3s      1     2  has dead events"), "{told}");
        assert!(told.contains("nobody reads"), "{told}");
        let mut far = sample();
        far.slots[0].lag_exact = false;
        assert!(table(&[far], true).contains("2+"));
        assert!(table(&[], false).contains("tenure events consume"));
    }

    /// A group that had read everything, and done some of it only, was once shown as one that had done everything.
    #[test]
    fn what_waits_for_a_retry_is_not_done() {
        let waits = GroupView { slots: Vec::new(), dead: 0, push: None, ..sample() };
        let told = picture(&waits, 0);
        assert!(told.contains("retries") && told.contains("nothing new, 1 set aside"), "{told}");
        let done = GroupView { aside: 0, ..waits };
        assert!(picture(&done, 0).contains("nothing unread"));
    }

    #[test]
    fn a_pause_is_told_with_its_reason() {
        let pause = Pause { by: "ada".into(), reason: "on fire".into(), at_ms: 0 };
        let told = picture(&GroupView { paused: Some(pause), ..sample() }, 10_000);
        assert!(told.contains("paused by ada 10s ago: on fire"), "{told}");
    }
}

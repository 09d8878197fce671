//! `tenure schedule list`.

use tenure::Name;
use tenure::port::{ScheduleFilter, ScheduleKey, ScheduleView};
use tenure::runtime::wall_ms;

use super::words;
use crate::args::claims::Listing;
use crate::args::{Format, Global};
use crate::commands::screen;
use crate::exit::Failure;
use crate::output::{Ink, Table, ago, paint};
use crate::store;

pub(super) async fn run(
    global: &Global,
    listing: Listing,
    source: Option<String>,
    after: Option<&str>,
    limit: u32,
) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let after = after.map(str::parse).transpose()?.map(|name| ScheduleKey::new(namespace.clone(), name));
    let namespace = (!listing.all_namespaces).then_some(namespace);
    let filter = ScheduleFilter { namespace, source, after, limit };
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.schedules(&filter).await?;
        Ok(match global.output {
            Format::Json => screen::json(&views),
            Format::Table => table(&views, &filter, wall_ms()),
        })
    })
    .await
}

fn table(views: &[ScheduleView], filter: &ScheduleFilter, now_ms: i64) -> String {
    if views.is_empty() {
        return match (&filter.source, &filter.after) {
            (None, None) => {
                "there are no schedules yet; try: tenure schedule create nightly '30 2 * * *' --task reports\n".to_owned()
            }
            _ => "there are no such schedules\n".to_owned(),
        };
    }
    let namespaces = filter.namespace.is_none();
    let mut header =
        vec!["schedule", "when", "does", "next", "last", "fired", "skipped", "overlapped", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["next", "last", "fired", "skipped", "overlapped"]);
    for view in views {
        let number = |count: u64, ink: Ink| (words::number(count), if count == 0 { Ink::Dim } else { ink });
        let mut row = vec![
            (view.definition.name.to_string(), Ink::Bold),
            (words::times(&view.definition), Ink::Plain),
            (words::target(&view.definition.target), Ink::Plain),
            next(view, now_ms),
            (
                view.last_fired_ms.map_or_else(|| "–".to_owned(), |at| format!("{} ago", ago(at, now_ms))),
                Ink::Dim,
            ),
            number(view.fired, Ink::Plain),
            number(view.skipped, Ink::Yellow),
            number(view.overlapped, Ink::Yellow),
            words::state(view, now_ms),
        ];
        if namespaces {
            row.insert(0, (view.namespace.to_string(), Ink::Dim));
        }
        table.row(row);
    }
    table.render() + &more(views, filter)
}

fn next(view: &ScheduleView, now_ms: i64) -> (String, Ink) {
    match view.due_ms {
        None => ("–".to_owned(), Ink::Dim),
        Some(due) if due <= now_ms => ("now".to_owned(), Ink::Green),
        Some(due) => (format!("in {}", ago(now_ms, due)), Ink::Plain),
    }
}

/// How the next page is asked for, if there may be one.
fn more(views: &[ScheduleView], filter: &ScheduleFilter) -> String {
    match views.last() {
        Some(last)
            if filter.limit > 0 && views.len() >= filter.limit as usize && filter.namespace.is_some() =>
        {
            paint(&format!("… more: --after {}", last.definition.name), Ink::Dim) + "\n"
        }
        Some(_) if filter.limit > 0 && views.len() >= filter.limit as usize => {
            paint("… more: -n", Ink::Dim) + "\n"
        }
        _ => String::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tenure::port::Pause;

    /// A schedule of a test.
    pub(in super::super) fn sample() -> ScheduleView {
        let text = r#"{
            "namespace": "default", "version": 3,
            "definition": {"name": "nightly", "when": "30 2 * * *", "zone": "Europe/Berlin", "overlap": "skip",
                "target": {"task": {"queue": "reports", "task": {"kind": "nightly", "max_run_ms": 3600000}}},
                "payload": {"full": true}},
            "progress": {"next_at_ms": 1774747800000, "last_at_ms": 1774661400000}, "due_ms": 1774747800000,
            "paused": null, "trouble": null, "fired": 1234, "skipped": 2, "overlapped": 0, "last_fired_ms": 1774661400012,
            "source": "billing", "signed": false, "created_ms": 1774000000000, "updated_ms": 1774000000000,
            "updated_by": "ada@box"}"#;
        serde_json::from_str(text).expect("a schedule")
    }

    #[test]
    fn a_list_says_when_and_how_it_stands() {
        let now = 1_774_747_800_000 - 3_600_000;
        let mut paused = sample();
        paused.paused = Some(Pause { by: "ada".into(), reason: String::new(), at_ms: 0 });
        paused.due_ms = None;
        let mut stuck = sample();
        stuck.due_ms = Some(now - 61_000);
        let filter =
            ScheduleFilter { namespace: Some(Name::default_namespace()), limit: 3, ..Default::default() };
        let told = table(&[sample(), paused, stuck], &filter, now);
        let wanted = "\
SCHEDULE  WHEN                         DOES                 NEXT        LAST  FIRED  SKIPPED  OVERLAPPED  STATE
nightly   30 2 * * * in Europe/Berlin  task in reports  in 1h00m  22h59m ago  1,234        2           0  on
nightly   30 2 * * * in Europe/Berlin  task in reports         –  22h59m ago  1,234        2           0  paused
nightly   30 2 * * * in Europe/Berlin  task in reports       now  22h59m ago  1,234        2           0  overdue for 1m01s
… more: --after nightly
";
        assert_eq!(told, wanted);
        assert!(table(&[], &filter, 0).contains("tenure schedule create"));
    }
}

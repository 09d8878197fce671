//! `tenure schedules list`.

use tenure::Name;
use tenure::port::{ScheduleFilter, ScheduleKey, ScheduleView};
use tenure::runtime::wall_ms;

use super::describe;
use crate::args::queues_and_pools::ListArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::watch_screen;
use crate::error::CliError;
use crate::output::{Table, TextStyle, ago, paint};
use crate::store;

pub(super) async fn run(
    global: &GlobalArgs,
    listing: ListArgs,
    source: Option<String>,
    after: Option<&str>,
    limit: u32,
) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let after = after.map(str::parse).transpose()?.map(|name| ScheduleKey::new(namespace.clone(), name));
    let namespace = (!listing.all_namespaces).then_some(namespace);
    let filter = ScheduleFilter { namespace, source, after, limit };
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.schedules(&filter).await?;
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&views),
            OutputFormat::Table => table(&views, &filter, wall_ms()),
        })
    })
    .await
}

fn table(views: &[ScheduleView], filter: &ScheduleFilter, now_ms: i64) -> String {
    if views.is_empty() {
        return match (&filter.source, &filter.after) {
            (None, None) => {
                "there are no schedules; try: tenure schedules create nightly '30 2 * * *' --task reports\n"
                    .to_owned()
            }
            _ => "no matching schedules\n".to_owned(),
        };
    }
    let namespaces = filter.namespace.is_none();
    let mut header =
        vec!["schedule", "expression", "target", "next", "last", "fired", "skipped", "overlapped", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["next", "last", "fired", "skipped", "overlapped"]);
    for view in views {
        let number = |count: u64, style: TextStyle| {
            (describe::number(count), if count == 0 { TextStyle::Dim } else { style })
        };
        let mut row = vec![
            (view.definition.name.to_string(), TextStyle::Bold),
            (describe::expression(&view.definition), TextStyle::Plain),
            (describe::target(&view.definition.target), TextStyle::Plain),
            next(view, now_ms),
            (
                view.last_fired_at_ms.map_or_else(|| "–".to_owned(), |at| format!("{} ago", ago(at, now_ms))),
                TextStyle::Dim,
            ),
            number(view.fired_count, TextStyle::Plain),
            number(view.skipped_count, TextStyle::Yellow),
            number(view.overlapped_count, TextStyle::Yellow),
            describe::state(view, now_ms),
        ];
        if namespaces {
            row.insert(0, (view.namespace.to_string(), TextStyle::Dim));
        }
        table.row(row);
    }
    table.render() + &more(views, filter)
}

fn next(view: &ScheduleView, now_ms: i64) -> (String, TextStyle) {
    match view.due_at_ms {
        None => ("–".to_owned(), TextStyle::Dim),
        Some(due) if due <= now_ms => ("now".to_owned(), TextStyle::Green),
        Some(due) => (format!("in {}", ago(now_ms, due)), TextStyle::Plain),
    }
}

/// Hint for the next page, if there may be one.
fn more(views: &[ScheduleView], filter: &ScheduleFilter) -> String {
    match views.last() {
        Some(last)
            if filter.limit > 0 && views.len() >= filter.limit as usize && filter.namespace.is_some() =>
        {
            paint(&format!("… more: --cursor {}", last.definition.name), TextStyle::Dim) + "\n"
        }
        Some(_) if filter.limit > 0 && views.len() >= filter.limit as usize => {
            paint("… more: -n", TextStyle::Dim) + "\n"
        }
        _ => String::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tenure::port::Pause;

    /// A schedule for tests.
    pub(in super::super) fn sample() -> ScheduleView {
        let text = r#"{
            "namespace": "default", "version": 3,
            "definition": {"name": "nightly", "expression": "30 2 * * *", "time_zone": "Europe/Berlin", "overlap_policy": "skip",
                "target": {"task": {"queue": "reports", "task": {"kind": "nightly", "max_run_ms": 3600000}}},
                "payload": {"full": true}},
            "tick_state": {"next_tick_at_ms": 1774747800000, "last_tick_at_ms": 1774661400000}, "due_at_ms": 1774747800000,
            "paused": null, "last_error": null, "fired_count": 1234, "skipped_count": 2, "overlapped_count": 0,
            "last_fired_at_ms": 1774661400012, "source": "billing", "webhook_signed": false,
            "created_at_ms": 1774000000000, "updated_at_ms": 1774000000000,
            "updated_by": "ada@box"}"#;
        serde_json::from_str(text).expect("a schedule")
    }

    #[test]
    fn a_list_shows_next_ticks_and_state() {
        let now = 1_774_747_800_000 - 3_600_000;
        let mut paused = sample();
        paused.paused = Some(Pause { paused_by: "ada".into(), reason: String::new(), paused_at_ms: 0 });
        paused.due_at_ms = None;
        let mut overdue = sample();
        overdue.due_at_ms = Some(now - 61_000);
        let filter =
            ScheduleFilter { namespace: Some(Name::default_namespace()), limit: 3, ..Default::default() };
        let text = table(&[sample(), paused, overdue], &filter, now);
        let wanted = "\
SCHEDULE  EXPRESSION                   TARGET               NEXT        LAST  FIRED  SKIPPED  OVERLAPPED  STATE
nightly   30 2 * * * in Europe/Berlin  task in reports  in 1h00m  22h59m ago  1,234        2           0  active
nightly   30 2 * * * in Europe/Berlin  task in reports         –  22h59m ago  1,234        2           0  paused
nightly   30 2 * * * in Europe/Berlin  task in reports       now  22h59m ago  1,234        2           0  overdue for 1m01s
… more: --cursor nightly
";
        assert_eq!(text, wanted);
        assert!(table(&[], &filter, 0).contains("tenure schedules create"));
    }
}

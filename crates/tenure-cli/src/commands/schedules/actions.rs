//! `tenure schedules pause`, `resume`, `trigger` and `delete`.

use serde_json::json;
use tenure::port::{ManualFire, ManualFireOutcome, Pause, ScheduleView};
use tenure::runtime::wall_ms;

use super::{conflict, describe, existing, no_such};
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::elections::whoami;
use crate::commands::input;
use crate::error::CliError;
use crate::output::{self, TextStyle, ago};
use crate::store;

/// Pauses with a reason, or resumes without one.
pub(super) async fn pause(global: &GlobalArgs, name: &str, reason: Option<String>) -> Result<u8, CliError> {
    let key = store::schedule(global, name)?;
    let store = store::open(global).await?;
    let pause = reason.map(|reason| Pause { paused_by: whoami(), reason, paused_at_ms: wall_ms() });
    let changed = store.set_schedule_paused(&key, pause.as_ref()).await?.ok_or_else(|| no_such(&key))?;
    let view = existing(store.as_ref(), &key).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"paused": pause.is_some(), "changed": changed}));
    }
    let (style, text) = match (pause.is_some(), changed) {
        (true, true) => (TextStyle::Green, "is paused".to_owned()),
        (true, false) => (TextStyle::Yellow, "was already paused".to_owned()),
        (false, true) => (TextStyle::Green, format!("is resumed{}", next(&view))),
        (false, false) => (TextStyle::Yellow, "was not paused".to_owned()),
    };
    output::note(global, style, &format!("schedule {key} {text}"));
    Ok(0)
}

fn next(view: &ScheduleView) -> String {
    let now_ms = wall_ms();
    match view.due_at_ms {
        None => ": it has no more ticks".to_owned(),
        Some(due) if due <= now_ms => {
            let timetable = view.definition.timetable(&view.namespace);
            let from = view.tick_state.map_or(now_ms, |progress| progress.next_tick_at_ms);
            let missed = timetable.count(from, now_ms);
            format!(
                ": {} missed, misfire policy {}",
                describe::numbered(missed, "tick"),
                view.definition.misfire_policy
            )
        }
        Some(due) => format!(": next in {}", ago(now_ms, due)),
    }
}

pub(super) async fn trigger(global: &GlobalArgs, name: &str, payload: Option<&str>) -> Result<u8, CliError> {
    let key = store::schedule(global, name)?;
    let payload = payload.map(|payload| input::json("--payload", payload)).transpose()?;
    let store = store::open(global).await?;
    let fire = ManualFire { key: key.clone(), ticks: None, payload, requested_by: whoami(), dry_run: false };
    let fired = store.fire_manually(&fire).await?.ok_or_else(|| no_such(&key))?;
    for tick in &fired {
        if global.output == OutputFormat::Json {
            output::print_json(tick);
            continue;
        }
        let result = match tick.outcome {
            ManualFireOutcome::Fired { event_id: Some(event), .. } => format!("event {event} is published"),
            ManualFireOutcome::Fired { task_id: Some(task), .. } => format!("task {task} is submitted"),
            _ => "it fired".to_owned(),
        };
        output::note(global, TextStyle::Green, &format!("triggered schedule {key}: {result}"));
    }
    Ok(0)
}

pub(super) async fn delete(global: &GlobalArgs, name: &str, version: Option<u64>) -> Result<u8, CliError> {
    let key = store::schedule(global, name)?;
    let store = store::open(global).await?;
    match store.delete_schedule(&key, version).await? {
        None => return Err(no_such(&key)),
        Some(false) => {
            let found = store.schedule(&key).await?.map(|view| view.version);
            return Err(conflict(&key, found));
        }
        Some(true) => {}
    }
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"deleted": true}));
    }
    output::note(global, TextStyle::Green, &format!("deleted schedule {key}"));
    Ok(0)
}

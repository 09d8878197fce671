//! `tenure schedule pause`, `resume`, `trigger` and `delete`.

use serde_json::json;
use tenure::port::{Hand, HandOutcome, Pause, ScheduleView};
use tenure::runtime::wall_ms;

use super::{conflict, existing, no_such, words};
use crate::args::{Format, Global};
use crate::commands::input;
use crate::commands::leader::whoami;
use crate::exit::Failure;
use crate::output::{self, Ink, ago};
use crate::store;

/// Pauses for this reason, or resumes.
pub(super) async fn pause(global: &Global, name: &str, reason: Option<String>) -> Result<u8, Failure> {
    let key = store::schedule(global, name)?;
    let store = store::open(global).await?;
    let pause = reason.map(|reason| Pause { by: whoami(), reason, at_ms: wall_ms() });
    let changed = store.set_schedule_paused(&key, pause.as_ref()).await?.ok_or_else(|| no_such(&key))?;
    let view = existing(store.as_ref(), &key).await?;
    if global.output == Format::Json {
        output::print_json(&json!({"paused": pause.is_some(), "changed": changed}));
    }
    let (ink, text) = match (pause.is_some(), changed) {
        (true, true) => (Ink::Green, "is paused".to_owned()),
        (true, false) => (Ink::Yellow, "was paused already".to_owned()),
        (false, true) => (Ink::Green, format!("goes on{}", next(&view))),
        (false, false) => (Ink::Yellow, "was not paused".to_owned()),
    };
    output::note(global, ink, &format!("the schedule {key} {text}"));
    Ok(0)
}

fn next(view: &ScheduleView) -> String {
    let now_ms = wall_ms();
    match view.due_ms {
        None => ": no tick is left".to_owned(),
        Some(due) if due <= now_ms => {
            let timetable = view.definition.timetable(&view.namespace);
            let from = view.progress.map_or(now_ms, |progress| progress.next_at_ms);
            let missed = timetable.count(from, now_ms);
            format!(
                ": {} missed, of which {} decides",
                words::numbered(missed, "tick"),
                view.definition.misfire
            )
        }
        Some(due) => format!(": next in {}", ago(now_ms, due)),
    }
}

pub(super) async fn trigger(global: &Global, name: &str, payload: Option<&str>) -> Result<u8, Failure> {
    let key = store::schedule(global, name)?;
    let payload = payload.map(|payload| input::json("--payload", payload)).transpose()?;
    let store = store::open(global).await?;
    let hand = Hand { key: key.clone(), ticks: None, payload, by: whoami(), dry_run: false };
    let fired = store.fire_by_hand(&hand).await?.ok_or_else(|| no_such(&key))?;
    for tick in &fired {
        if global.output == Format::Json {
            output::print_json(tick);
            continue;
        }
        let made = match tick.outcome {
            HandOutcome::Fired { event: Some(event), .. } => format!("event {event} is published"),
            HandOutcome::Fired { task: Some(task), .. } => format!("task {task} is submitted"),
            _ => "it has fired".to_owned(),
        };
        output::note(global, Ink::Green, &format!("the schedule {key} was triggered: {made}"));
    }
    Ok(0)
}

pub(super) async fn delete(global: &Global, name: &str, version: Option<u64>) -> Result<u8, Failure> {
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
    if global.output == Format::Json {
        output::print_json(&json!({"deleted": true}));
    }
    output::note(global, Ink::Green, &format!("the schedule {key} is deleted"));
    Ok(0)
}

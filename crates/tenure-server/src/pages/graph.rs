//! A task among its relatives, drawn: those it needs to the left, those that need it to the right.
//!
//! Each stands in the column of its longest way to the task in the middle. The same is in the page as links with words.

use std::collections::BTreeMap;

use maud::{Markup, html};
use tenure::port::{TaskId, TaskState, TaskView};

use super::parts;
use crate::floor::Life;

const BOX: (i64, i64) = (150, 46);
const GAP: (i64, i64) = (60, 14);

/// The picture; nothing for a task without relatives.
pub(super) fn picture(life: &Life) -> Markup {
    if life.relatives.is_empty() {
        return html! {};
    }
    let columns = columns(life);
    let left = columns.values().copied().min().unwrap_or(0);
    let mut rows: BTreeMap<i64, Vec<TaskId>> = BTreeMap::new();
    for (id, column) in &columns {
        rows.entry(column - left).or_default().push(*id);
    }
    let tallest = rows.values().map(Vec::len).max().unwrap_or(1) as i64;
    let (width, height) =
        (rows.len() as i64 * (BOX.0 + GAP.0) - GAP.0 + 4, tallest * (BOX.1 + GAP.1) - GAP.1 + 4);
    let mut places = BTreeMap::new();
    for (column, ids) in &rows {
        let own = ids.len() as i64 * (BOX.1 + GAP.1) - GAP.1;
        for (n, id) in ids.iter().enumerate() {
            let y = (height - own) / 2 + n as i64 * (BOX.1 + GAP.1);
            places.insert(*id, (2 + column * (BOX.0 + GAP.0), y));
        }
    }
    let tasks = std::iter::once(&life.task).chain(life.relatives.values());
    html! {
        div.graph tabindex="0" role="group" aria-label="The task among its relatives" {
            svg width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } aria-hidden="true" {
                @for task in tasks.clone() {
                    @for parent in &task.parents {
                        @if let (Some(from), Some(to)) = (places.get(parent), places.get(&task.id)) {
                            path.edge d=(edge(*from, *to)) {}
                        }
                    }
                }
                @for task in tasks {
                    @if let Some(place) = places.get(&task.id) { (node(task, *place, task.id == life.task.id)) }
                }
            }
        }
    }
}

/// From the right side of one to the left side of the other.
fn edge(from: (i64, i64), to: (i64, i64)) -> String {
    let (x1, y1, x2, y2) = (from.0 + BOX.0, from.1 + BOX.1 / 2, to.0, to.1 + BOX.1 / 2);
    let middle = (x1 + x2) / 2;
    format!("M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}")
}

fn node(task: &TaskView, (x, y): (i64, i64), here: bool) -> Markup {
    // What fits into the box.
    let room = 17usize.saturating_sub(task.id.to_string().len());
    let long = task.kind.chars().count() > room;
    let kind: String = task.kind.chars().take(if long { room.saturating_sub(1) } else { room }).collect();
    let cut = if long { "…" } else { "" };
    html! {
        a.node.here[here] href=(parts::task_href(&task.namespace, task.id, "")) tabindex="-1" {
            title { "task " (task.id) ", " (task.kind) ": " (task.state.as_str()) }
            rect x=(x) y=(y) width=(BOX.0) height=(BOX.1) rx="8" {}
            rect class={ "s-" (task.state.as_str()) } x=(x + 8) y=(y + 9) width="5" height=(BOX.1 - 18) rx="2.5" {}
            text.who x=(x + 22) y=(y + 20) { (task.id) " " (kind) (cut) }
            text x=(x + 22) y=(y + 36) { (task.state.as_str()) }
        }
    }
}

/// In which column each stands: 0 is the task itself.
fn columns(life: &Life) -> BTreeMap<TaskId, i64> {
    let mut columns = BTreeMap::from([(life.task.id, 0)]);
    for up in [true, false] {
        let mut next = vec![(life.task.id, 0i64)];
        // Tasks make no cycles; if a store had one, this would still end.
        let mut steps = life.relatives.len() * life.relatives.len() + 1;
        while let Some((id, column)) = next.pop() {
            let task = if id == life.task.id { Some(&life.task) } else { life.relatives.get(&id) };
            let further = task.map_or(&[][..], |task| if up { &task.parents } else { &task.children });
            for relative in further.iter().filter(|one| life.relatives.contains_key(one)) {
                let at = if up { column - 1 } else { column + 1 };
                let known = columns.get(relative).copied();
                if known.is_none_or(|known| if up { at < known } else { at > known }) && steps > 0 {
                    steps -= 1;
                    columns.insert(*relative, at);
                    next.push((*relative, at));
                }
            }
        }
    }
    columns
}

/// The relatives of one sort as links, each with its state.
pub(super) fn listed(life: &Life, ids: &[TaskId]) -> Markup {
    const SHOWN: usize = 20;
    html! {
        ul.relatives {
            @for id in ids.iter().take(SHOWN) {
                li {
                    a href=(parts::task_href(&life.task.namespace, *id, "")) { (id) }
                    @match life.relatives.get(id) {
                        Some(task) => { " " (task.kind) " " (parts::task_state(task.state)) },
                        None => span.soft { " not looked at" },
                    }
                }
            }
            @if ids.len() > SHOWN { li.soft { (ids.len() - SHOWN) " more" } }
        }
    }
}

/// How many of the parents are done.
pub(super) fn done(life: &Life) -> usize {
    let parents = life.task.parents.iter().filter_map(|id| life.relatives.get(id));
    parents.filter(|task| task.state == TaskState::Completed).count()
}

//! The dependency graph of a task: parents on the left, children on the right.
//!
//! The column of a task is its longest path to the task in the middle. The page has the same data as a list of links.

use std::collections::BTreeMap;

use maud::{Markup, html};
use tenure::port::{TaskId, TaskState, TaskView};

use super::components;
use crate::snapshot::queues::TaskDetail;

const BOX: (i64, i64) = (150, 46);
const GAP: (i64, i64) = (60, 14);

/// Render the graph; nothing for a task without dependencies.
pub(super) fn graph(detail: &TaskDetail) -> Markup {
    if detail.related.is_empty() {
        return html! {};
    }
    let columns = columns(detail);
    let left = columns.values().copied().min().unwrap_or(0);
    let mut rows: BTreeMap<i64, Vec<TaskId>> = BTreeMap::new();
    for (id, column) in &columns {
        rows.entry(column - left).or_default().push(*id);
    }
    let tallest = rows.values().map(Vec::len).max().unwrap_or(1) as i64;
    let (width, height) =
        (rows.len() as i64 * (BOX.0 + GAP.0) - GAP.0 + 4, tallest * (BOX.1 + GAP.1) - GAP.1 + 4);
    let mut positions = BTreeMap::new();
    for (column, ids) in &rows {
        let own = ids.len() as i64 * (BOX.1 + GAP.1) - GAP.1;
        for (n, id) in ids.iter().enumerate() {
            let y = (height - own) / 2 + n as i64 * (BOX.1 + GAP.1);
            positions.insert(*id, (2 + column * (BOX.0 + GAP.0), y));
        }
    }
    let tasks = std::iter::once(&detail.task).chain(detail.related.values());
    html! {
        div.graph tabindex="0" role="group" aria-label="Dependency graph of the task" {
            svg width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } aria-hidden="true" {
                @for task in tasks.clone() {
                    @for parent in &task.parents {
                        @if let (Some(from), Some(to)) = (positions.get(parent), positions.get(&task.id)) {
                            path.edge d=(edge(*from, *to)) {}
                        }
                    }
                }
                @for task in tasks {
                    @if let Some(position) = positions.get(&task.id) { (node(task, *position, task.id == detail.task.id)) }
                }
            }
        }
    }
}

/// A path from the right side of one box to the left side of another.
fn edge(from: (i64, i64), to: (i64, i64)) -> String {
    let (x1, y1, x2, y2) = (from.0 + BOX.0, from.1 + BOX.1 / 2, to.0, to.1 + BOX.1 / 2);
    let middle = (x1 + x2) / 2;
    format!("M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}")
}

fn node(task: &TaskView, (x, y): (i64, i64), current: bool) -> Markup {
    // Truncate the kind to the width of the box.
    let room = 17usize.saturating_sub(task.id.to_string().len());
    let long = task.kind.chars().count() > room;
    let kind: String = task.kind.chars().take(if long { room.saturating_sub(1) } else { room }).collect();
    let cut = if long { "…" } else { "" };
    html! {
        a.node.current[current] href=(components::task_href(&task.namespace, task.id, "")) tabindex="-1" {
            title { "task " (task.id) ", " (task.kind) ": " (task.state.as_str()) }
            rect x=(x) y=(y) width=(BOX.0) height=(BOX.1) rx="8" {}
            rect class={ "s-" (task.state.as_str()) } x=(x + 8) y=(y + 9) width="5" height=(BOX.1 - 18) rx="2.5" {}
            text.name x=(x + 22) y=(y + 20) { (task.id) " " (kind) (cut) }
            text x=(x + 22) y=(y + 36) { (task.state.as_str()) }
        }
    }
}

/// The column of each task; 0 is the task itself.
fn columns(detail: &TaskDetail) -> BTreeMap<TaskId, i64> {
    let mut columns = BTreeMap::from([(detail.task.id, 0)]);
    for up in [true, false] {
        let mut next = vec![(detail.task.id, 0i64)];
        // Tasks form no cycles. The step limit guarantees termination even if the store has one.
        let mut steps = detail.related.len() * detail.related.len() + 1;
        while let Some((id, column)) = next.pop() {
            let task = if id == detail.task.id { Some(&detail.task) } else { detail.related.get(&id) };
            let further = task.map_or(&[][..], |task| if up { &task.parents } else { &task.children });
            for relative in further.iter().filter(|one| detail.related.contains_key(one)) {
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

/// Parents or children as links with their states.
pub(super) fn listed(detail: &TaskDetail, ids: &[TaskId]) -> Markup {
    const SHOWN: usize = 20;
    html! {
        ul.dependencies {
            @for id in ids.iter().take(SHOWN) {
                li {
                    a href=(components::task_href(&detail.task.namespace, *id, "")) { (id) }
                    @match detail.related.get(id) {
                        Some(task) => { " " (task.kind) " " (components::task_state(task.state)) },
                        None => span.soft { " not loaded" },
                    }
                }
            }
            @if ids.len() > SHOWN { li.soft { (ids.len() - SHOWN) " more" } }
        }
    }
}

/// Number of completed parents.
pub(super) fn completed_parents(detail: &TaskDetail) -> usize {
    let parents = detail.task.parents.iter().filter_map(|id| detail.related.get(id));
    parents.filter(|task| task.state == TaskState::Completed).count()
}

//! A task with all that is to be shown of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tenure::Name;
use tenure::port::{Backend, StoreError, TaskId, TaskView, Why};

use crate::pages::Laid;

/// The most relatives of a task that are read, and the most of whose outputs are kept.
const RELATIVES: (usize, usize) = (24, 8);

/// A task, its relatives, and what keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The task, without what it carries.
    pub(crate) task: TaskView,
    pub(crate) why: Vec<Why>,
    /// Those it waits for, those that wait for it, and theirs, without what they carry.
    pub(crate) relatives: BTreeMap<TaskId, TaskView>,
    pub(crate) payload: Laid,
    /// What its parents have given it.
    pub(crate) inputs: Vec<(TaskId, Laid)>,
    pub(crate) output: Option<Laid>,
}

/// A task without what it carries: lists do not show that, and it may be large.
pub(super) fn light(mut task: TaskView) -> TaskView {
    task.payload = Default::default();
    task.output = None;
    task
}

/// Looks at a task and those around it; `None` if there is no such task.
pub(super) async fn life(
    store: &dyn Backend,
    namespace: &Name,
    id: TaskId,
) -> Result<Option<Arc<Life>>, StoreError> {
    let Some(task) = store.task(namespace, id).await? else { return Ok(None) };
    let why =
        if task.state.is_final() { Vec::new() } else { store.why(namespace, id).await?.unwrap_or_default() };
    let (mut relatives, mut inputs) = (BTreeMap::new(), Vec::new());
    // The nearest first: parents, then children, then theirs, each in its own direction.
    let mut next: VecDeque<(TaskId, bool)> = task.parents.iter().map(|parent| (*parent, true)).collect();
    next.extend(task.children.iter().map(|child| (*child, false)));
    while let Some((relative, up)) = next.pop_front() {
        if relatives.len() >= RELATIVES.0 {
            break;
        }
        if relative == id || relatives.contains_key(&relative) {
            continue;
        }
        let Some(view) = store.task(namespace, relative).await? else { continue };
        let further = if up { &view.parents } else { &view.children };
        next.extend(further.iter().map(|one| (*one, up)));
        let output = view.output.as_ref().filter(|_| task.parents.contains(&relative));
        if let Some(output) = output.filter(|_| inputs.len() < RELATIVES.1) {
            inputs.push((relative, Laid::of(output)));
        }
        relatives.insert(relative, light(view));
    }
    let (payload, output) = (Laid::of(&task.payload), task.output.as_ref().map(Laid::of));
    Ok(Some(Arc::new(Life { task: light(task), why, relatives, payload, inputs, output })))
}

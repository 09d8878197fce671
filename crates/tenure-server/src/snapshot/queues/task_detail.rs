//! A task with its dependencies.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tenure::Name;
use tenure::port::{Store, StoreError, TaskId, TaskView, WaitReason};

use crate::web::FormattedPayload;

/// Maximum number of related tasks that are read, and of results that are kept.
const RELATED: (usize, usize) = (24, 8);

/// Task with its dependencies and wait reasons.
#[derive(Clone, Debug)]
pub(crate) struct TaskDetail {
    /// Task without payload.
    pub(crate) task: TaskView,
    pub(crate) why: Vec<WaitReason>,
    /// Ancestors and descendants, without payloads.
    pub(crate) related: BTreeMap<TaskId, TaskView>,
    pub(crate) payload: FormattedPayload,
    /// Results of the parents.
    pub(crate) parent_results: Vec<(TaskId, FormattedPayload)>,
    pub(crate) output: Option<FormattedPayload>,
}

/// Remove the payload, which lists do not show and which may be large.
pub(super) fn without_payload(mut task: TaskView) -> TaskView {
    task.payload = Default::default();
    task.result = None;
    task
}

/// Read a task and its dependencies; `None` if it does not exist.
pub(super) async fn read_task_detail(
    store: &dyn Store,
    namespace: &Name,
    id: TaskId,
) -> Result<Option<Arc<TaskDetail>>, StoreError> {
    let Some(task) = store.task(namespace, id).await? else { return Ok(None) };
    let why = if task.state.is_final() {
        Vec::new()
    } else {
        store.wait_reasons(namespace, id).await?.unwrap_or_default()
    };
    let (mut relatives, mut inputs) = (BTreeMap::new(), Vec::new());
    // Search breadth first: follow parents to their parents, and children to their children.
    let mut next: VecDeque<(TaskId, bool)> = task.parents.iter().map(|parent| (*parent, true)).collect();
    next.extend(task.children.iter().map(|child| (*child, false)));
    while let Some((relative, up)) = next.pop_front() {
        if relatives.len() >= RELATED.0 {
            break;
        }
        if relative == id || relatives.contains_key(&relative) {
            continue;
        }
        let Some(view) = store.task(namespace, relative).await? else { continue };
        let further = if up { &view.parents } else { &view.children };
        next.extend(further.iter().map(|one| (*one, up)));
        let output = view.result.as_ref().filter(|_| task.parents.contains(&relative));
        if let Some(output) = output.filter(|_| inputs.len() < RELATED.1) {
            inputs.push((relative, FormattedPayload::of(output)));
        }
        relatives.insert(relative, without_payload(view));
    }
    let (payload, output) =
        (FormattedPayload::of(&task.payload), task.result.as_ref().map(FormattedPayload::of));
    Ok(Some(Arc::new(TaskDetail {
        task: without_payload(task),
        why,
        related: relatives,
        payload,
        parent_results: inputs,
        output,
    })))
}

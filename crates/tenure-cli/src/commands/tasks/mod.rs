//! `tenure tasks`: submit, claim, complete and inspect tasks.

mod claim;
mod submit;
mod view;
mod why;

use std::sync::Arc;

use serde_json::json;
use tenure::port::{Store, TaskAction, TaskFilter, TaskId, TaskView};
use tenure::runtime::wall_ms;
use tenure::{Name, port};

use super::watch_screen;
use crate::args::tasks::{TaskActionArgs, TaskListArgs, TasksArgs, TasksCommand};
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, TextStyle, counted};
use crate::store;

/// Number of tasks cancelled or retried in one call.
const BATCH: u32 = 1000;

pub(crate) async fn run(global: &GlobalArgs, args: TasksArgs) -> Result<u8, CliError> {
    match args.command {
        TasksCommand::Submit(args) => submit::run(global, *args).await,
        TasksCommand::Claim(args) => claim::run(global, args).await,
        TasksCommand::Complete { claim, result } => claim::complete(global, &claim, result.as_deref()).await,
        TasksCommand::Fail { claim, error, no_retry, retry_in } => {
            claim::fail(global, &claim, error, !no_retry, retry_in).await
        }
        TasksCommand::Release { claim } => claim::release(global, &claim).await,
        TasksCommand::Heartbeat { claim, claim_timeout, progress } => {
            claim::heartbeat(global, &claim, claim_timeout, progress).await
        }
        TasksCommand::List(args) => list(global, args).await,
        TasksCommand::Show { task_id } => show(global, TaskId(task_id)).await,
        TasksCommand::Cancel(args) => order(global, args, TaskAction::Cancel).await,
        TasksCommand::Retry(args) => order(global, args, TaskAction::Retry).await,
        TasksCommand::Why { task_id } => why(global, TaskId(task_id)).await,
        TasksCommand::Stats { queue, limit, watch } => stats(global, &queue, limit, watch).await,
    }
}

async fn list(global: &GlobalArgs, args: TaskListArgs) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let filter = TaskFilter {
        namespace: (!args.listing.all_namespaces).then_some(namespace),
        queue: args.queue.as_deref().map(str::parse).transpose()?,
        states: args.states,
        kind: args.kind,
        worker: args.worker,
        before: args.cursor.map(TaskId),
        limit: args.limit,
    };
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), args.listing.watch, async || {
        let tasks = store.tasks(&filter).await?;
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&tasks),
            OutputFormat::Table => view::list(&tasks, &filter, wall_ms()),
        })
    })
    .await
}

async fn show(global: &GlobalArgs, id: TaskId) -> Result<u8, CliError> {
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    let task = existing(store.as_ref(), &namespace, id).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&task);
    } else {
        output::print_text(&view::show(&task, wall_ms()));
    }
    Ok(0)
}

async fn why(global: &GlobalArgs, id: TaskId) -> Result<u8, CliError> {
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    let reasons = store.wait_reasons(&namespace, id).await?.ok_or_else(|| no_such(&namespace, id))?;
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"task_id": id, "reasons": reasons}));
        return Ok(0);
    }
    let task = existing(store.as_ref(), &namespace, id).await?;
    output::print_text(&why::explain(&task, &reasons, wall_ms()));
    Ok(0)
}

async fn stats(global: &GlobalArgs, queue: &str, limit: u32, watch: bool) -> Result<u8, CliError> {
    let key = store::queue(global, queue)?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let finished = store.finished_tasks(&key, limit).await?;
        if finished.is_empty() && store.queue(&key).await?.is_none() {
            return Err(super::queues::no_such(&key));
        }
        let stats = stats_of(&finished);
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&stats),
            OutputFormat::Table => view::stats(&key, &stats),
        })
    })
    .await
}

async fn order(global: &GlobalArgs, args: TaskActionArgs, order: TaskAction) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let queue = args.queue.as_deref().map(str::parse::<Name>).transpose()?;
    let store = store::open(global).await?;
    let changed = match queue {
        None => {
            let ids: Vec<_> = args.task_ids.into_iter().map(TaskId).collect();
            let changed = store.apply_task_action(&namespace, &ids, order).await?;
            for id in ids.iter().filter(|id| !changed.contains(id)) {
                let task = existing(store.as_ref(), &namespace, *id).await?;
                output::note(global, TextStyle::Yellow, &unchanged_message(&task, order));
            }
            changed
        }
        Some(queue) => {
            let filter = TaskFilter {
                namespace: Some(namespace.clone()),
                queue: Some(queue),
                states: args.states,
                limit: BATCH,
                ..TaskFilter::default()
            };
            act_on_all(&store, &namespace, filter, order).await?
        }
    };
    let done = match order {
        TaskAction::Cancel => "cancelled",
        TaskAction::Retry => "retried",
    };
    if global.output == OutputFormat::Json {
        output::print_json(&json!({ "task_ids": changed }));
    } else {
        let style = if changed.is_empty() { TextStyle::Yellow } else { TextStyle::Green };
        output::note(global, style, &format!("{} {done}", counted(changed.len(), "task")));
    }
    Ok(0)
}

/// Cancels or retries all matching tasks page by page, newest first. Tasks submitted meanwhile are not included.
async fn act_on_all(
    store: &Arc<dyn Store>,
    namespace: &Name,
    mut filter: TaskFilter,
    order: TaskAction,
) -> Result<Vec<TaskId>, CliError> {
    let mut changed = Vec::new();
    loop {
        let page: Vec<_> = store.tasks(&filter).await?.iter().map(|task| task.id).collect();
        let Some(last) = page.last().copied() else { return Ok(changed) };
        changed.extend(store.apply_task_action(namespace, &page, order).await?);
        filter.before = Some(last);
    }
}

fn unchanged_message(task: &TaskView, order: TaskAction) -> String {
    let state = task.state.as_str();
    match order {
        TaskAction::Cancel => format!("task {} is already {state}; nothing was changed", task.id),
        TaskAction::Retry => format!("task {} is {state}; nothing was changed", task.id),
    }
}

async fn existing(store: &dyn Store, namespace: &Name, id: TaskId) -> Result<TaskView, CliError> {
    store.task(namespace, id).await?.ok_or_else(|| no_such(namespace, id))
}

fn no_such(namespace: &Name, id: TaskId) -> CliError {
    CliError::usage(format!(
        "task {id} does not exist in namespace {namespace}, or was pruned; list the tasks with `tenure tasks list`"
    ))
}

fn stats_of(finished: &[port::FinishedTask]) -> Vec<port::KindStats> {
    tenure::rules::work::stats(finished)
}

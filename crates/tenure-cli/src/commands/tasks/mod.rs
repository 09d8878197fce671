//! `tenure tasks`: put work into queues, take it out, see and move it.

mod claim;
mod submit;
mod view;
mod why;

use std::sync::Arc;

use serde_json::json;
use tenure::port::{Backend, Order, TaskFilter, TaskId, TaskView};
use tenure::runtime::wall_ms;
use tenure::{Name, port};

use super::screen;
use crate::args::tasks::{ListArgs, OrderArgs, TasksArgs, TasksCommand};
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, counted};
use crate::store;

/// How many tasks are ordered about in one call.
const BATCH: u32 = 1000;

pub(crate) async fn run(global: &Global, args: TasksArgs) -> Result<u8, Failure> {
    match args.command {
        TasksCommand::Submit(args) => submit::run(global, *args).await,
        TasksCommand::Claim(args) => claim::run(global, args).await,
        TasksCommand::Complete { claim, result } => claim::complete(global, &claim, result.as_deref()).await,
        TasksCommand::Fail { claim, error, no_retry, after } => {
            claim::fail(global, &claim, error, !no_retry, after).await
        }
        TasksCommand::Release { claim } => claim::release(global, &claim).await,
        TasksCommand::Extend { claim, hold, note } => claim::extend(global, &claim, hold, note).await,
        TasksCommand::List(args) => list(global, args).await,
        TasksCommand::Show { id } => show(global, TaskId(id)).await,
        TasksCommand::Cancel(args) => order(global, args, Order::Cancel).await,
        TasksCommand::Retry(args) => order(global, args, Order::Retry).await,
        TasksCommand::Why { id } => why(global, TaskId(id)).await,
        TasksCommand::Stats { queue, last, watch } => stats(global, &queue, last, watch).await,
    }
}

async fn list(global: &Global, args: ListArgs) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let filter = TaskFilter {
        namespace: (!args.listing.all_namespaces).then_some(namespace),
        queue: args.queue.as_deref().map(str::parse).transpose()?,
        states: args.states,
        kind: args.kind,
        worker: args.worker,
        before: args.before.map(TaskId),
        limit: args.limit,
    };
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), args.listing.watch, async || {
        let tasks = store.tasks(&filter).await?;
        Ok(match global.output {
            Format::Json => screen::json(&tasks),
            Format::Table => view::list(&tasks, &filter, wall_ms()),
        })
    })
    .await
}

async fn show(global: &Global, id: TaskId) -> Result<u8, Failure> {
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    let task = existing(store.as_ref(), &namespace, id).await?;
    if global.output == Format::Json {
        output::print_json(&task);
    } else {
        output::print_text(&view::show(&task, wall_ms()));
    }
    Ok(0)
}

async fn why(global: &Global, id: TaskId) -> Result<u8, Failure> {
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    let reasons = store.why(&namespace, id).await?.ok_or_else(|| no_such(&namespace, id))?;
    if global.output == Format::Json {
        output::print_json(&json!({"task": id, "why": reasons}));
        return Ok(0);
    }
    let task = existing(store.as_ref(), &namespace, id).await?;
    output::print_text(&why::tell(&task, &reasons, wall_ms()));
    Ok(0)
}

async fn stats(global: &Global, queue: &str, last: u32, watch: bool) -> Result<u8, Failure> {
    let key = store::queue(global, queue)?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let finished = store.finished(&key, last).await?;
        if finished.is_empty() && store.queue(&key).await?.is_none() {
            return Err(super::queue::no_such(&key));
        }
        let stats = port_stats(&finished);
        Ok(match global.output {
            Format::Json => screen::json(&stats),
            Format::Table => view::stats(&key, &stats),
        })
    })
    .await
}

async fn order(global: &Global, args: OrderArgs, order: Order) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let queue = args.queue.as_deref().map(str::parse::<Name>).transpose()?;
    let store = store::open(global).await?;
    let ordered = match queue {
        None => {
            let ids: Vec<_> = args.ids.into_iter().map(TaskId).collect();
            let ordered = store.order(&namespace, &ids, order).await?;
            for id in ids.iter().filter(|id| !ordered.contains(id)) {
                let task = existing(store.as_ref(), &namespace, *id).await?;
                output::note(global, Ink::Yellow, &unmoved(&task, order));
            }
            ordered
        }
        Some(queue) => {
            let filter = TaskFilter {
                namespace: Some(namespace.clone()),
                queue: Some(queue),
                states: args.states,
                limit: BATCH,
                ..TaskFilter::default()
            };
            order_all(&store, &namespace, filter, order).await?
        }
    };
    let done = match order {
        Order::Cancel => "cancelled",
        Order::Retry => "given another attempt",
    };
    if global.output == Format::Json {
        output::print_json(&json!({ "tasks": ordered }));
    } else {
        let ink = if ordered.is_empty() { Ink::Yellow } else { Ink::Green };
        output::note(global, ink, &format!("{} {done}", counted(ordered.len(), "task")));
    }
    Ok(0)
}

/// Page by page, the newest first. What comes while we are at it is left alone.
async fn order_all(
    store: &Arc<dyn Backend>,
    namespace: &Name,
    mut filter: TaskFilter,
    order: Order,
) -> Result<Vec<TaskId>, Failure> {
    let mut ordered = Vec::new();
    loop {
        let page: Vec<_> = store.tasks(&filter).await?.iter().map(|task| task.id).collect();
        let Some(last) = page.last().copied() else { return Ok(ordered) };
        ordered.extend(store.order(namespace, &page, order).await?);
        filter.before = Some(last);
    }
}

fn unmoved(task: &TaskView, order: Order) -> String {
    let state = task.state.as_str();
    match order {
        Order::Cancel => format!("task {} is {state} already; nothing was changed", task.id),
        Order::Retry => format!("task {} is {state}; nothing was changed", task.id),
    }
}

async fn existing(store: &dyn Backend, namespace: &Name, id: TaskId) -> Result<TaskView, Failure> {
    store.task(namespace, id).await?.ok_or_else(|| no_such(namespace, id))
}

fn no_such(namespace: &Name, id: TaskId) -> Failure {
    Failure::usage(format!(
        "there is no task {id} in namespace {namespace}, or it is no longer remembered; `tenure tasks list` shows those that \
         there are"
    ))
}

fn port_stats(finished: &[port::Finished]) -> Vec<port::KindStats> {
    tenure::claim::stats(finished)
}

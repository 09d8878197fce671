//! `tenure tasks submit`: submits one task from options, or the tasks of an NDJSON file.

use std::path::Path;

use serde_json::value::{RawValue, to_raw_value};
use tenure::port::{
    Backoff, NewTask, ParentRef, QueueKey, RawJson, SUBMIT_MAX, Store, Submission, SubmitReceipt, TaskId,
};
use tenure::runtime::wall_ms;

use crate::args::parsers::millis;
use crate::args::tasks::SubmitArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::input;
use crate::commands::json_lines::{DefaultFields, InputBatch, JsonLinesKind, JsonLinesReader, JsonObject};
use crate::error::CliError;
use crate::output::{self, TextStyle, counted};
use crate::store;

const LINES: JsonLinesKind =
    JsonLinesKind { one: "a task", command: "tenure tasks submit", most: SUBMIT_MAX };

pub(super) async fn run(global: &GlobalArgs, args: SubmitArgs) -> Result<u8, CliError> {
    let queue = store::queue(global, &args.queue)?;
    let fields = fields(&args)?;
    match &args.file {
        Some(path) => many(global, &queue, path, fields).await,
        None => one(global, &queue, task(fields)?).await,
    }
}

async fn one(global: &GlobalArgs, queue: &QueueKey, task: NewTask) -> Result<u8, CliError> {
    let submission = checked(Submission { queue: queue.clone(), tasks: vec![task] })?;
    let store = store::open(global).await?;
    for submitted in store.submit(&submission).await? {
        if global.output == OutputFormat::Json {
            output::print_json(&submitted);
            continue;
        }
        output::print_line(&submitted.id.to_string());
        match submitted.created {
            true => {
                output::note(global, TextStyle::Green, &format!("submitted task {} to {queue}", submitted.id))
            }
            false => output::note(
                global,
                TextStyle::Yellow,
                &format!(
                    "task {} with this idempotency key already exists; nothing was changed",
                    submitted.id
                ),
            ),
        }
    }
    Ok(0)
}

/// Submits a file batch by batch. Stops at the first rejected batch; earlier batches stay submitted.
async fn many(
    global: &GlobalArgs,
    queue: &QueueKey,
    path: &Path,
    fields: DefaultFields,
) -> Result<u8, CliError> {
    let mut lines = JsonLinesReader::open(path, LINES, fields)?;
    // Read the first batch before opening the store, so that a file error is reported first.
    let mut batch = lines.batch()?;
    let store = store::open(global).await?;
    let mut session = SubmitSession { global, store: store.as_ref(), queue, ids: Vec::new(), new: 0 };
    while !batch.lines.is_empty() {
        session.submit(batch, &lines.name).await?;
        batch = lines.batch().map_err(|failure| session.with_progress(failure))?;
    }
    output::clear_progress(global);
    let known = session.ids.len() - session.new;
    let before = if known > 0 { format!(", {known} already existed") } else { String::new() };
    output::note(
        global,
        TextStyle::Green,
        &format!("submitted {} to {queue}{before}", counted(session.new, "task")),
    );
    Ok(0)
}

struct SubmitSession<'a> {
    global: &'a GlobalArgs,
    store: &'a dyn Store,
    queue: &'a QueueKey,
    /// Task id of each object so far.
    ids: Vec<TaskId>,
    new: usize,
}

impl SubmitSession<'_> {
    async fn submit(&mut self, batch: InputBatch<NewTask>, file: &str) -> Result<(), CliError> {
        let tasks = self.resolve_parents(batch, file)?;
        let submission = Submission { queue: self.queue.clone(), tasks };
        let submission = checked(submission).map_err(|failure| self.with_progress(failure))?;
        let done = self.store.submit(&submission).await.map_err(|error| self.with_progress(error.into()))?;
        for submitted in done {
            self.record(submitted);
        }
        output::progress(self.global, &format!("{} submitted", self.ids.len()));
        Ok(())
    }

    fn record(&mut self, submitted: SubmitReceipt) {
        if self.global.output == OutputFormat::Json {
            output::print_json(&submitted);
        }
        self.new += usize::from(submitted.created);
        self.ids.push(submitted.id);
    }

    /// Resolves parent indexes. Parents of an earlier batch have ids already.
    fn resolve_parents(&self, batch: InputBatch<NewTask>, file: &str) -> Result<Vec<NewTask>, CliError> {
        let (first, end) = (self.ids.len(), self.ids.len() + batch.lines.len());
        let place = |line: &JsonObject<NewTask>, parent: ParentRef| {
            match parent {
            ParentRef::Index(index) if (index as usize) < first => Ok(ParentRef::Task(self.ids[index as usize])),
            ParentRef::Index(index) if (index as usize) < end => Ok(ParentRef::Index(index - first as u32)),
            ParentRef::Index(index) => Err(self.with_progress(CliError::usage(format!(
                "line {} of {file}: the parent {{\"index\":{index}}} {}",
                line.number,
                if batch.last {
                    format!("does not exist: the file has {end} tasks, counted from 0")
                } else {
                    format!("comes too late: a parent must precede its children, or be in the same batch of {SUBMIT_MAX} objects and 8 MiB")
                }
            )))),
            parent => Ok(parent),
        }
        };
        let mut tasks = Vec::with_capacity(batch.lines.len());
        for mut line in batch.lines {
            let parents = std::mem::take(&mut line.value.parents);
            let parents = parents.into_iter().map(|parent| place(&line, parent)).collect::<Result<_, _>>()?;
            tasks.push(NewTask { parents, ..line.value });
        }
        Ok(tasks)
    }

    /// Adds to an error how many tasks are already submitted.
    fn with_progress(&self, failure: CliError) -> CliError {
        output::clear_progress(self.global);
        match self.ids.len() {
            0 => failure,
            done => CliError::new(
                failure.code,
                format!(
                    "{}; the {done} tasks before are submitted: continue after them, or give each an idempotency_key and submit all \
                     again",
                    failure.message()
                ),
            ),
        }
    }
}

fn task(fields: DefaultFields) -> Result<NewTask, CliError> {
    let text = serde_json::to_string(&fields).map_err(internal_error)?;
    serde_json::from_str(&text).map_err(internal_error)
}

fn internal_error(error: serde_json::Error) -> CliError {
    CliError::new(crate::error::INTERNAL_ERROR, error.to_string())
}

fn checked(submission: Submission) -> Result<Submission, CliError> {
    tenure::rules::work::validate_submission(&submission)
        .map_err(|error| CliError::usage(error.to_string()))?;
    Ok(submission)
}

/// Fields that the options set.
fn fields(args: &SubmitArgs) -> Result<DefaultFields, CliError> {
    let mut fields = DefaultFields::new();
    let mut put = |name: &str, value: Result<Box<RawValue>, serde_json::Error>| {
        value.map(|value| fields.insert(name.to_owned(), value)).map(drop).map_err(internal_error)
    };
    if let Some(kind) = &args.kind {
        put("kind", to_raw_value(kind))?;
    }
    if let Some(payload) = &args.payload {
        let payload: RawJson = input::json("--payload", payload)?;
        put("payload", to_raw_value(&payload))?;
    }
    if let Some(priority) = args.priority {
        put("priority", to_raw_value(&priority))?;
    }
    for (name, list) in [
        ("required_tags", &args.required_tags),
        ("preferred_tags", &args.preferred_tags),
        ("allowed_workers", &args.allowed_workers),
    ] {
        if !list.is_empty() {
            put(name, to_raw_value(list))?;
        }
    }
    let delayed = args.delay.map(|delay| wall_ms().saturating_add_unsigned(millis(delay)));
    if let Some(run_at_ms) = args.run_at.or(delayed) {
        put("run_at_ms", to_raw_value(&run_at_ms))?;
    }
    for (name, time) in [("max_wait_ms", args.max_wait), ("max_run_ms", args.max_run)] {
        if let Some(time) = time {
            put(name, to_raw_value(&millis(time)))?;
        }
    }
    if let Some(attempts) = args.max_attempts {
        put("max_attempts", to_raw_value(&attempts))?;
    }
    if let Some(initial) = args.initial_backoff {
        let initial_ms = millis(initial);
        let backoff = Backoff { initial_ms, max_ms: Backoff::default().max_ms.max(initial_ms) };
        put("backoff", to_raw_value(&backoff))?;
    }
    if !args.parents.is_empty() {
        let parents: Vec<_> = args.parents.iter().map(|id| ParentRef::Task(TaskId(*id))).collect();
        put("parents", to_raw_value(&parents))?;
    }
    if let Some(key) = &args.idempotency_key {
        put("idempotency_key", to_raw_value(key))?;
    }
    if let Some(concurrency) = &args.concurrency_key {
        put("concurrency_key", to_raw_value(&concurrency.key))?;
        put("concurrency_limit", to_raw_value(&concurrency.limit))?;
    }
    Ok(fields)
}

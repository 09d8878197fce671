//! `tenure tasks submit`: one task as the options say it, or one per line of a file.

use std::path::Path;

use serde_json::value::{RawValue, to_raw_value};
use tenure::port::{
    Backend, Backoff, Json, NewTask, Parent, QueueKey, SUBMIT_MAX, Submission, Submitted, TaskId,
};
use tenure::runtime::wall_ms;

use crate::args::tasks::SubmitArgs;
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::commands::input;
use crate::commands::lines::{Fields, Kind, Line, Lines, Portion};
use crate::exit::Failure;
use crate::output::{self, Ink, counted};
use crate::store;

const LINES: Kind = Kind { one: "a task", command: "tenure tasks submit", most: SUBMIT_MAX };

pub(super) async fn run(global: &Global, args: SubmitArgs) -> Result<u8, Failure> {
    let queue = store::queue(global, &args.queue)?;
    let fields = fields(&args)?;
    match &args.file {
        Some(path) => many(global, &queue, path, fields).await,
        None => one(global, &queue, task(fields)?).await,
    }
}

async fn one(global: &Global, queue: &QueueKey, task: NewTask) -> Result<u8, Failure> {
    let submission = checked(Submission { queue: queue.clone(), tasks: vec![task] })?;
    let store = store::open(global).await?;
    for submitted in store.submit(&submission).await? {
        if global.output == Format::Json {
            output::print_json(&submitted);
            continue;
        }
        output::print_line(&submitted.id.to_string());
        match submitted.new {
            true => output::note(global, Ink::Green, &format!("submitted task {} to {queue}", submitted.id)),
            false => output::note(
                global,
                Ink::Yellow,
                &format!("task {} was submitted under this key before; nothing was changed", submitted.id),
            ),
        }
    }
    Ok(0)
}

/// Portion by portion. The first one that is refused ends it; those before it are in.
async fn many(global: &Global, queue: &QueueKey, path: &Path, fields: Fields) -> Result<u8, Failure> {
    let mut lines = Lines::open(path, LINES, fields)?;
    // All of the first portion is read before anything is opened: what is wrong is said at once.
    let mut portion = lines.portion()?;
    let store = store::open(global).await?;
    let mut desk = Desk { global, store: store.as_ref(), queue, ids: Vec::new(), new: 0 };
    while !portion.lines.is_empty() {
        desk.submit(portion, &lines.name).await?;
        portion = lines.portion().map_err(|failure| desk.so_far(failure))?;
    }
    output::progress_ends(global);
    let known = desk.ids.len() - desk.new;
    let before = if known > 0 { format!(", {known} were there before") } else { String::new() };
    output::note(global, Ink::Green, &format!("submitted {} to {queue}{before}", counted(desk.new, "task")));
    Ok(0)
}

struct Desk<'a> {
    global: &'a Global,
    store: &'a dyn Backend,
    queue: &'a QueueKey,
    /// What each line has become.
    ids: Vec<TaskId>,
    new: usize,
}

impl Desk<'_> {
    async fn submit(&mut self, portion: Portion<NewTask>, file: &str) -> Result<(), Failure> {
        let tasks = self.placed(portion, file)?;
        let submission = Submission { queue: self.queue.clone(), tasks };
        let submission = checked(submission).map_err(|failure| self.so_far(failure))?;
        let done = self.store.submit(&submission).await.map_err(|error| self.so_far(error.into()))?;
        for submitted in done {
            self.took(submitted);
        }
        output::progress(self.global, &format!("{} submitted", self.ids.len()));
        Ok(())
    }

    fn took(&mut self, submitted: Submitted) {
        if self.global.output == Format::Json {
            output::print_json(&submitted);
        }
        self.new += usize::from(submitted.new);
        self.ids.push(submitted.id);
    }

    /// Parents that were submitted with an earlier portion have numbers by now.
    fn placed(&self, portion: Portion<NewTask>, file: &str) -> Result<Vec<NewTask>, Failure> {
        let (first, end) = (self.ids.len(), self.ids.len() + portion.lines.len());
        let place = |line: &Line<NewTask>, parent: Parent| {
            match parent {
            Parent::Index(index) if (index as usize) < first => Ok(Parent::Task(self.ids[index as usize])),
            Parent::Index(index) if (index as usize) < end => Ok(Parent::Index(index - first as u32)),
            Parent::Index(index) => Err(self.so_far(Failure::usage(format!(
                "line {} of {file} names the parent {{\"index\":{index}}}, which {}",
                line.number,
                if portion.last {
                    format!("is not there: there are {end} tasks, counted from 0")
                } else {
                    format!("comes too late: parents stand before their children, or among the same {SUBMIT_MAX} lines and 8 MiB")
                }
            )))),
            parent => Ok(parent),
        }
        };
        let mut tasks = Vec::with_capacity(portion.lines.len());
        for mut line in portion.lines {
            let parents = std::mem::take(&mut line.value.parents);
            let parents = parents.into_iter().map(|parent| place(&line, parent)).collect::<Result<_, _>>()?;
            tasks.push(NewTask { parents, ..line.value });
        }
        Ok(tasks)
    }

    /// A failure, and what is in already.
    fn so_far(&self, failure: Failure) -> Failure {
        output::progress_ends(self.global);
        match self.ids.len() {
            0 => failure,
            done => Failure::new(
                failure.code,
                format!(
                    "{}. The {done} tasks before that are submitted; go on with those after them, or give each a key \
                     and submit all again",
                    failure.message()
                ),
            ),
        }
    }
}

fn task(fields: Fields) -> Result<NewTask, Failure> {
    let text = serde_json::to_string(&fields).map_err(own)?;
    serde_json::from_str(&text).map_err(own)
}

fn own(error: serde_json::Error) -> Failure {
    Failure::new(crate::exit::OWN_FAILURE, error.to_string())
}

fn checked(submission: Submission) -> Result<Submission, Failure> {
    tenure::claim::check(&submission).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(submission)
}

/// What the options say, and nothing else.
fn fields(args: &SubmitArgs) -> Result<Fields, Failure> {
    let mut fields = Fields::new();
    let mut put = |name: &str, value: Result<Box<RawValue>, serde_json::Error>| {
        value.map(|value| fields.insert(name.to_owned(), value)).map(drop).map_err(own)
    };
    if let Some(kind) = &args.kind {
        put("kind", to_raw_value(kind))?;
    }
    if let Some(payload) = &args.payload {
        let payload: Json = input::json("--payload", payload)?;
        put("payload", to_raw_value(&payload))?;
    }
    if let Some(priority) = args.priority {
        put("priority", to_raw_value(&priority))?;
    }
    for (name, list) in [("requires", &args.requires), ("prefers", &args.prefers), ("workers", &args.workers)]
    {
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
    if let Some(attempts) = args.attempts {
        put("max_attempts", to_raw_value(&attempts))?;
    }
    if let Some(first) = args.backoff {
        let first_ms = millis(first);
        let backoff = Backoff { first_ms, most_ms: Backoff::default().most_ms.max(first_ms) };
        put("backoff", to_raw_value(&backoff))?;
    }
    if !args.parents.is_empty() {
        let parents: Vec<_> = args.parents.iter().map(|id| Parent::Task(TaskId(*id))).collect();
        put("parents", to_raw_value(&parents))?;
    }
    if let Some(key) = &args.key {
        put("key", to_raw_value(key))?;
    }
    if let Some(concurrency) = &args.concurrency {
        put("concurrency_key", to_raw_value(&concurrency.key))?;
        put("concurrency_limit", to_raw_value(&concurrency.limit))?;
    }
    Ok(fields)
}

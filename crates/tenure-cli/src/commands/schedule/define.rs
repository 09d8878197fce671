//! `tenure schedule create` and `set`: what a schedule is.

use serde_json::json;
use tenure::port::{
    Backend, Backoff, Expect, NewTask, Push, ScheduleKey, ScheduleSet, ScheduleView, SetSchedule,
};
use tenure::runtime::wall_ms;
use tenure::schedule::{Definition, Target};

use super::{conflict, existing, words};
use crate::args::claims::Limit;
use crate::args::point::Point;
use crate::args::schedules::{CreateArgs, FieldArgs, SetArgs, TargetArgs, TaskOptions};
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::commands::leader::whoami;
use crate::commands::{input, secret};
use crate::exit::Failure;
use crate::output::{self, Ink, ago};
use crate::store;

/// A secret that calls are signed with.
pub(super) struct Secret {
    pub(super) text: String,
    /// Made here, and shown this once.
    made: bool,
}

pub(super) async fn create(global: &Global, args: CreateArgs) -> Result<u8, Failure> {
    let key = store::schedule(global, &args.name)?;
    // Without one it does not come to this.
    let target = args.target.target()?.unwrap_or(Target::Call { url: String::new() });
    let mut definition = Definition::new(key.name.clone(), args.when, target);
    args.task.apply(&mut definition.target)?;
    args.fields.apply(&mut definition)?;
    checked(&definition)?;
    let secret = args.task.secret(&definition.target, true)?;
    let store = store::open(global).await?;
    let set = wish(&key, definition, secret.as_ref(), Expect::New);
    match store.set_schedule(&set).await? {
        ScheduleSet::Conflict(_) => there_already(global, store.as_ref(), &key, &set.definition).await,
        done => tell(global, store.as_ref(), &key, done, secret.as_ref()).await,
    }
}

/// Who asks twice for the same need not be told that it went wrong.
async fn there_already(
    global: &Global,
    store: &dyn Backend,
    key: &ScheduleKey,
    wanted: &Definition,
) -> Result<u8, Failure> {
    let view = existing(store, key).await?;
    if super::diff::is_same(&view.definition, wanted) {
        return tell(global, store, key, ScheduleSet::Same(view.version), None).await;
    }
    Err(Failure::usage(format!(
        "the schedule {key} is there already, and is another; to change it: tenure schedule set {} …",
        key.name
    )))
}

pub(super) async fn set(global: &Global, args: SetArgs) -> Result<u8, Failure> {
    let key = store::schedule(global, &args.name)?;
    // What can be seen without the store is said before it is opened.
    let target = args.target.target()?;
    let store = store::open(global).await?;
    let view = existing(store.as_ref(), &key).await?;
    let mut definition = view.definition.clone();
    let is_other_call = matches!(&target, Some(Target::Call { .. })) && !view.signed;
    definition.target = target.map_or(definition.target.clone(), |target| keeping(target, definition.target));
    if let Some(when) = args.when {
        definition.when = when;
    }
    args.task.apply(&mut definition.target)?;
    args.fields.apply(&mut definition)?;
    let secret = args.task.secret(&definition.target, is_other_call)?;
    let expect = Expect::Version(args.if_version.unwrap_or(view.version));
    let set = SetSchedule { source: view.source.clone(), ..wish(&key, definition, secret.as_ref(), expect) };
    match store.set_schedule(&set).await? {
        ScheduleSet::Conflict(found) => Err(conflict(&key, found)),
        done => tell(global, store.as_ref(), &key, done, secret.as_ref()).await,
    }
}

/// The same sort of target keeps what the options do not name.
fn keeping(new: Target, old: Target) -> Target {
    match (new, old) {
        (Target::Event { topic, .. }, Target::Event { key, .. }) => Target::Event { topic, key },
        (Target::Task { queue, .. }, Target::Task { task, .. }) => Target::Task { queue, task },
        (new, _) => new,
    }
}

fn wish(key: &ScheduleKey, definition: Definition, secret: Option<&Secret>, expect: Expect) -> SetSchedule {
    SetSchedule {
        namespace: key.namespace.clone(),
        definition,
        secret: secret.map(|secret| secret.text.clone()),
        expect,
        source: None,
        by: whoami(),
    }
}

/// Refuses what makes no sense before a store is asked. A start that is counted from is the store's to give.
fn checked(definition: &Definition) -> Result<(), Failure> {
    definition.clone().started(wall_ms()).check().map_err(|error| Failure::usage(error.to_string()))
}

async fn tell(
    global: &Global,
    store: &dyn Backend,
    key: &ScheduleKey,
    done: ScheduleSet,
    secret: Option<&Secret>,
) -> Result<u8, Failure> {
    let view = existing(store, key).await?;
    let shown = secret.filter(|secret| secret.made).map(|secret| secret.text.as_str());
    if global.output == Format::Json {
        let mut value = serde_json::to_value(&view).unwrap_or_default();
        if let Some(secret) = shown {
            value["secret"] = json!(secret);
        }
        output::print_json(&value);
    } else if let Some(secret) = shown {
        output::print_line(secret);
    }
    let (ink, word) = match done {
        ScheduleSet::Created(_) => (Ink::Green, "is made"),
        ScheduleSet::Changed(_) => (Ink::Green, "is changed"),
        ScheduleSet::Same(_) | ScheduleSet::Conflict(_) => (Ink::Yellow, "was so already"),
    };
    output::note(global, ink, &format!("the schedule {key} {word}: {}", coming(&view, wall_ms())));
    if shown.is_some() {
        output::note(global, Ink::Yellow, "this is the secret of its signatures; it is not shown again");
    }
    Ok(0)
}

/// What comes next, in words.
fn coming(view: &ScheduleView, now_ms: i64) -> String {
    let definition = &view.definition;
    let does = words::target(&definition.target);
    match (&view.paused, view.upcoming(1).first()) {
        (Some(_), _) => format!("{does}, when it is resumed"),
        (None, None) => "no tick is left".to_owned(),
        (None, Some(&at)) => {
            format!("{does}, next at {}, in {}", words::on_clock(&definition.zone, at), ago(now_ms, at))
        }
    }
}

impl TargetArgs {
    fn target(&self) -> Result<Option<Target>, Failure> {
        Ok(match (&self.event, &self.task, &self.call) {
            (Some(topic), ..) => Some(Target::Event { topic: topic.parse()?, key: None }),
            (_, Some(queue), _) => Some(Target::Task { queue: queue.parse()?, task: Box::default() }),
            (.., url) => url.clone().map(|url| Target::Call { url }),
        })
    }
}

impl TaskOptions {
    /// Adds what the options say; what belongs to another sort of target is refused.
    fn apply(&self, target: &mut Target) -> Result<(), Failure> {
        let foreign = |option: &str, of: &str, does: &str| {
            Err(Failure::usage(format!(
                "{option} belongs to {of}, and a tick of this schedule makes {does}; leave it out"
            )))
        };
        let does = match target {
            Target::Event { .. } => "an event",
            Target::Task { .. } => "a task",
            _ => "a call",
        };
        match target {
            Target::Event { key, .. } => *key = self.key.clone().or_else(|| key.take()),
            _ if self.key.is_some() => return foreign("--key", "an event", does),
            _ => {}
        }
        if self.secret_file.is_some() && !matches!(target, Target::Call { .. }) {
            return foreign("--secret-file", "a call", does);
        }
        match (target, self.first_of_task()) {
            (Target::Task { task, .. }, _) => self.apply_to_task(task),
            (_, Some(option)) => return foreign(option, "a task", does),
            _ => {}
        }
        Ok(())
    }

    /// An option that makes sense for a task only.
    fn first_of_task(&self) -> Option<&'static str> {
        let given = [
            ("--kind", self.kind.is_some()),
            ("--priority", self.priority.is_some()),
            ("--require", !self.requires.is_empty()),
            ("--prefer", !self.prefers.is_empty()),
            ("--worker", !self.workers.is_empty()),
            ("--max-wait", self.max_wait.is_some()),
            ("--max-run", self.max_run.is_some()),
            ("--attempts", self.attempts.is_some()),
            ("--backoff", self.backoff.is_some()),
            ("--concurrency", self.concurrency.is_some()),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }

    fn apply_to_task(&self, task: &mut NewTask) {
        task.kind = self.kind.clone().unwrap_or_else(|| std::mem::take(&mut task.kind));
        task.priority = self.priority.unwrap_or(task.priority);
        for (given, list) in [
            (&self.requires, &mut task.requires),
            (&self.prefers, &mut task.prefers),
            (&self.workers, &mut task.workers),
        ] {
            if !given.is_empty() {
                list.clone_from(given);
            }
        }
        task.max_wait_ms = self.max_wait.map(millis).or(task.max_wait_ms);
        task.max_run_ms = self.max_run.map(millis).or(task.max_run_ms);
        task.max_attempts = self.attempts.unwrap_or(task.max_attempts);
        if let Some(first) = self.backoff {
            let first_ms = millis(first);
            task.backoff = Backoff { first_ms, most_ms: task.backoff.most_ms.max(first_ms) };
        }
        if let Some(concurrency) = &self.concurrency {
            task.concurrency_key = Some(concurrency.key.clone());
            task.concurrency_limit = concurrency.limit;
        }
    }

    /// What calls are signed with: from the file, or, if one is needed, a new one.
    fn secret(&self, target: &Target, needed: bool) -> Result<Option<Secret>, Failure> {
        let Target::Call { url } = target else { return Ok(None) };
        let secret = match &self.secret_file {
            Some(path) => Secret { text: secret::read(path)?, made: false },
            None if needed => Secret { text: secret::generated(), made: true },
            None => return Ok(None),
        };
        checked_secret(url, &secret.text)?;
        Ok(Some(secret))
    }
}

/// Refuses a secret that makes no sense.
pub(super) fn checked_secret(url: &str, secret: &str) -> Result<(), Failure> {
    let push =
        Push { url: url.to_owned(), secret: secret.to_owned(), timeout_ms: tenure::port::CALL_TIMEOUT_MS };
    tenure::event::check_push(&push).map_err(|error| Failure::usage(error.to_string()))
}

impl FieldArgs {
    /// What is not named stays as it is.
    fn apply(&self, definition: &mut Definition) -> Result<(), Failure> {
        if let Some(zone) = &self.zone {
            definition.zone = zone.clone();
        }
        if let Some(payload) = &self.payload {
            definition.payload = input::json("--payload", payload)?;
        }
        definition.misfire = self.misfire.unwrap_or(definition.misfire);
        definition.overlap = self.overlap.unwrap_or(definition.overlap);
        definition.jitter_ms = self.jitter.map_or(definition.jitter_ms, millis);
        let (zone, now_ms) = (definition.zone.clone(), wall_ms());
        let at = |limit: Limit<Point>| limit.0.map(|point| point.in_zone(&zone, now_ms));
        definition.start_ms = self.start.map_or(definition.start_ms, at);
        definition.end_ms = self.end.map_or(definition.end_ms, at);
        definition.dst.gap = self.dst_gap.or(definition.dst.gap);
        definition.dst.overlap = self.dst_overlap.or(definition.dst.overlap);
        Ok(())
    }
}

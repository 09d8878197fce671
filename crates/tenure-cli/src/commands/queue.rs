//! `tenure queue`: see and set queues.

use tenure::Name;
use tenure::port::{Backend, Fallback, Mode, Pause, QueueKey, QueueSettings, QueueView, TaskState};
use tenure::runtime::wall_ms;

use super::leader::whoami;
use super::screen;
use crate::args::claims::{Listing, QueueArgs, QueueCommand, QueueSet, WhichQueue};
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago, paint, plain, span};
use crate::store;

pub(crate) async fn run(global: &Global, args: QueueArgs) -> Result<u8, Failure> {
    match args.command {
        QueueCommand::List { listing } => list(global, listing).await,
        QueueCommand::Show { queue, watch } => show(global, &queue, watch).await,
        QueueCommand::Set(args) => set(global, &args.queue.clone(), |settings| args.apply(settings)).await,
        QueueCommand::Mode { queue, mode, fallback } => {
            set(global, &queue, |settings| {
                settings.mode = mode;
                settings.fallback = fallback.unwrap_or(settings.fallback);
            })
            .await
        }
        QueueCommand::Pause { which, reason } => pause(global, &which, Some(reason)).await,
        QueueCommand::Resume { which } => pause(global, &which, None).await,
    }
}

impl QueueSet {
    /// What is not named stays as it is.
    fn apply(&self, settings: &mut QueueSettings) {
        settings.mode = self.mode.unwrap_or(settings.mode);
        settings.fallback = self.fallback.unwrap_or(settings.fallback);
        settings.approval = self.approval.unwrap_or(settings.approval);
        settings.rate = self.rate.map_or(settings.rate, |limit| limit.0);
        settings.max_claimed = self.max_claimed.map_or(settings.max_claimed, |limit| limit.0);
        settings.prefer_ms = self.prefer.map_or(settings.prefer_ms, millis);
        settings.keep_ms = self.keep.map_or(settings.keep_ms, millis);
        settings.keep_dead_ms = self.keep_dead.map_or(settings.keep_dead_ms, millis);
    }
}

async fn list(global: &Global, listing: Listing) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.queues((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(screen::drawn(global, &views, |views| table(views, listing.all_namespaces)))
    })
    .await
}

fn table(views: &[QueueView], namespaces: bool) -> String {
    if views.is_empty() {
        return "there are no queues yet; try: tenure tasks submit mail --payload '{\"to\":\"ada\"}'\n"
            .to_owned();
    }
    let mut header = vec!["queue", "mode", "ready", "oldest", "claimed", "later", "done", "dead", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["ready", "oldest", "claimed", "later", "done", "dead"]);
    for view in views {
        let count = |states: &[TaskState]| states.iter().map(|state| view.count(*state)).sum::<u64>();
        let number = |count: u64, ink: Ink| (count.to_string(), if count == 0 { Ink::Dim } else { ink });
        let mut row = vec![
            (view.key.name.to_string(), Ink::Bold),
            mode(&view.settings),
            number(count(&[TaskState::Ready]), Ink::Plain),
            (view.oldest_ready_ms.map_or_else(|| "–".to_owned(), age), Ink::Dim),
            number(count(&[TaskState::Claimed]), Ink::Green),
            number(count(&[TaskState::Waiting, TaskState::Scheduled, TaskState::Held]), Ink::Yellow),
            number(count(&[TaskState::Completed]), Ink::Plain),
            number(count(&[TaskState::Dead]), Ink::Red),
            match &view.paused {
                Some(_) => ("paused".to_owned(), Ink::Yellow),
                None => ("open".to_owned(), Ink::Green),
            },
        ];
        if namespaces {
            row.insert(0, (view.key.namespace.to_string(), Ink::Dim));
        }
        table.row(row);
    }
    table.render()
}

fn age(ms: u64) -> String {
    ago(0, i64::try_from(ms).unwrap_or(i64::MAX))
}

fn mode(settings: &QueueSettings) -> (String, Ink) {
    match (settings.mode, settings.fallback) {
        (Mode::Exclusive, Fallback::Distributed) => ("exclusive*".to_owned(), Ink::Plain),
        (mode, _) => (mode.as_str().to_owned(), Ink::Plain),
    }
}

async fn show(global: &Global, queue: &str, watch: bool) -> Result<u8, Failure> {
    let key = store::queue(global, queue)?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        Ok(screen::drawn(global, &view, |view| picture(view, wall_ms())))
    })
    .await
}

fn picture(view: &QueueView, now_ms: i64) -> String {
    let settings = &view.settings;
    let headline = match &view.paused {
        Some(pause) => {
            let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            let paused = format!("paused by {} {} ago{reason}", pause.by, ago(pause.at_ms, now_ms));
            paint(&plain(&paused), Ink::Yellow)
        }
        None => paint("open", Ink::Green),
    };
    let mut counts = Table::new(&["state", "tasks", ""]).right(&["tasks"]);
    for state in TaskState::ALL {
        let count = view.count(state);
        let oldest = view.oldest_ready_ms.filter(|_| state == TaskState::Ready);
        counts.row(vec![
            (state.as_str().to_owned(), Ink::Plain),
            (count.to_string(), if count == 0 { Ink::Dim } else { Ink::Bold }),
            (oldest.map(|ms| format!("the oldest for {}", age(ms))).unwrap_or_default(), Ink::Dim),
        ]);
    }
    let order = match (settings.mode, settings.fallback) {
        (Mode::Distributed, _) => "distributed: anybody hands out, in approximate order",
        (Mode::Exclusive, Fallback::None) => "exclusive: the leader hands out, in strict order",
        (Mode::Exclusive, Fallback::Distributed) => {
            "exclusive: the leader hands out, in strict order; without it, anybody"
        }
    };
    let rate = settings.rate.map(|rate| format!("{} in {}", rate.count, span(rate.per_ms)));
    let claimed = settings.max_claimed.map(|count| format!("at most {count} at once"));
    let approval = if settings.approval { "workers must be approved" } else { "every worker" };
    let mut set = Table::new(&["setting", ""]);
    for (name, value) in [
        ("mode", order.to_owned()),
        ("rate", rate.unwrap_or_else(|| "no limit".to_owned())),
        ("claimed", claimed.unwrap_or_else(|| "no limit".to_owned())),
        ("approval", approval.to_owned()),
        ("preferred workers", format!("alone for {}", span(settings.prefer_ms))),
        (
            "remembered",
            format!("for {}, dead ones for {}", span(settings.keep_ms), span(settings.keep_dead_ms)),
        ),
    ] {
        set.row(vec![(name.to_owned(), Ink::Plain), (value, Ink::Plain)]);
    }
    let name = paint(&view.key.to_string(), Ink::Bold);
    format!("{name}  {headline}\n\n{}\n{}", counts.render(), set.render())
}

async fn set(global: &Global, queue: &str, change: impl FnOnce(&mut QueueSettings)) -> Result<u8, Failure> {
    let key = store::queue(global, queue)?;
    let store = store::open(global).await?;
    let before = store.queue(&key).await?.map(|view| view.settings);
    let mut settings = before.unwrap_or_default();
    change(&mut settings);
    tenure::claim::check_queue(&settings).map_err(|error| Failure::usage(error.to_string()))?;
    store.set_queue(&key, &settings).await?;
    if global.output == Format::Json {
        output::print_json(&existing(store.as_ref(), &key).await?);
    } else {
        let (ink, done) = match before {
            Some(before) if before == settings => (Ink::Yellow, "was set so already"),
            Some(_) => (Ink::Green, "is set"),
            None => (Ink::Green, "is made and set"),
        };
        output::note(global, ink, &format!("{key} {done}: {}", settings.mode.as_str()));
    }
    Ok(0)
}

/// Pauses for this reason, or resumes.
async fn pause(global: &Global, which: &WhichQueue, reason: Option<String>) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let queue = which.queue.as_deref().map(str::parse::<Name>).transpose()?;
    let store = store::open(global).await?;
    let pause = reason.map(|reason| Pause { by: whoami(), reason, at_ms: wall_ms() });
    let changed = store.set_queue_paused(&namespace, queue.as_ref(), pause.as_ref()).await?;
    let what = queue.map_or_else(|| format!("everything in {namespace}"), |queue| queue.to_string());
    let (ink, text) = match (pause.is_some(), changed) {
        (true, true) => (Ink::Green, "is paused; what is claimed goes on"),
        (true, false) => (Ink::Yellow, "was paused already"),
        (false, true) => (Ink::Green, "goes on"),
        (false, false) => (Ink::Yellow, "was not paused"),
    };
    if global.output == Format::Json {
        output::print_json(&serde_json::json!({"paused": pause.is_some(), "changed": changed}));
    }
    output::note(global, ink, &format!("{what} {text}"));
    Ok(0)
}

async fn existing(store: &dyn Backend, key: &QueueKey) -> Result<QueueView, Failure> {
    store.queue(key).await?.ok_or_else(|| no_such(key))
}

pub(super) fn no_such(key: &QueueKey) -> Failure {
    Failure::usage(format!("there is no queue {key}; `tenure queue list` shows those that there are"))
}

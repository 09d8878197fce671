//! `tenure queues`: inspect and configure queues.

use tenure::Name;
use tenure::port::{
    AssignmentMode, BrokerFallback, Pause, QueueKey, QueueSettings, QueueView, Store, TaskState,
};
use tenure::runtime::wall_ms;

use super::elections::whoami;
use super::watch_screen;
use crate::args::parsers::millis;
use crate::args::queues_and_pools::{ListArgs, QueueSelector, QueueSetArgs, QueuesArgs, QueuesCommand};
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago, paint, plain, span};
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: QueuesArgs) -> Result<u8, CliError> {
    match args.command {
        QueuesCommand::List { listing } => list(global, listing).await,
        QueuesCommand::Show { queue, watch } => show(global, &queue, watch).await,
        QueuesCommand::Set(args) => set(global, &args.queue.clone(), |settings| args.apply(settings)).await,
        QueuesCommand::Mode { queue, mode, fallback } => {
            set(global, &queue, |settings| {
                settings.mode = mode;
                settings.fallback = fallback.unwrap_or(settings.fallback);
            })
            .await
        }
        QueuesCommand::Pause { which, reason } => pause(global, &which, Some(reason)).await,
        QueuesCommand::Resume { which } => pause(global, &which, None).await,
    }
}

impl QueueSetArgs {
    /// Applies the given options; all other settings keep their values.
    fn apply(&self, settings: &mut QueueSettings) {
        settings.mode = self.mode.unwrap_or(settings.mode);
        settings.fallback = self.fallback.unwrap_or(settings.fallback);
        settings.require_approval = self.require_approval.unwrap_or(settings.require_approval);
        settings.rate = self.rate.map_or(settings.rate, |limit| limit.0);
        settings.max_claimed = self.max_claimed.map_or(settings.max_claimed, |limit| limit.0);
        settings.preference_window_ms = self.preference_window.map_or(settings.preference_window_ms, millis);
        settings.retention_ms = self.retention.map_or(settings.retention_ms, millis);
        settings.dead_retention_ms = self.dead_retention.map_or(settings.dead_retention_ms, millis);
    }
}

async fn list(global: &GlobalArgs, listing: ListArgs) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.queues((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(watch_screen::render(global, &views, |views| table(views, listing.all_namespaces)))
    })
    .await
}

fn table(views: &[QueueView], namespaces: bool) -> String {
    if views.is_empty() {
        return "there are no queues; try: tenure tasks submit mail --payload '{\"to\":\"ada\"}'\n"
            .to_owned();
    }
    let mut header =
        vec!["queue", "mode", "ready", "oldest", "claimed", "pending", "completed", "dead", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table =
        Table::new(&header).right(&["ready", "oldest", "claimed", "pending", "completed", "dead"]);
    for view in views {
        let count = |states: &[TaskState]| states.iter().map(|state| view.count(*state)).sum::<u64>();
        let number = |count: u64, style: TextStyle| {
            (count.to_string(), if count == 0 { TextStyle::Dim } else { style })
        };
        let mut row = vec![
            (view.key.name.to_string(), TextStyle::Bold),
            mode(&view.settings),
            number(count(&[TaskState::Ready]), TextStyle::Plain),
            (view.oldest_ready_age_ms.map_or_else(|| "–".to_owned(), age), TextStyle::Dim),
            number(count(&[TaskState::Claimed]), TextStyle::Green),
            number(count(&[TaskState::Waiting, TaskState::Scheduled, TaskState::Blocked]), TextStyle::Yellow),
            number(count(&[TaskState::Completed]), TextStyle::Plain),
            number(count(&[TaskState::Dead]), TextStyle::Red),
            match &view.paused {
                Some(_) => ("paused".to_owned(), TextStyle::Yellow),
                None => ("open".to_owned(), TextStyle::Green),
            },
        ];
        if namespaces {
            row.insert(0, (view.key.namespace.to_string(), TextStyle::Dim));
        }
        table.row(row);
    }
    table.render()
}

fn age(ms: u64) -> String {
    ago(0, i64::try_from(ms).unwrap_or(i64::MAX))
}

fn mode(settings: &QueueSettings) -> (String, TextStyle) {
    match (settings.mode, settings.fallback) {
        (AssignmentMode::Exclusive, BrokerFallback::Distributed) => {
            ("exclusive*".to_owned(), TextStyle::Plain)
        }
        (mode, _) => (mode.as_str().to_owned(), TextStyle::Plain),
    }
}

async fn show(global: &GlobalArgs, queue: &str, watch: bool) -> Result<u8, CliError> {
    let key = store::queue(global, queue)?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        Ok(watch_screen::render(global, &view, |view| render_queue(view, wall_ms())))
    })
    .await
}

fn render_queue(view: &QueueView, now_ms: i64) -> String {
    let settings = &view.settings;
    let headline = match &view.paused {
        Some(pause) => {
            let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            let paused =
                format!("paused by {} {} ago{reason}", pause.paused_by, ago(pause.paused_at_ms, now_ms));
            paint(&plain(&paused), TextStyle::Yellow)
        }
        None => paint("open", TextStyle::Green),
    };
    let mut counts = Table::new(&["state", "tasks", ""]).right(&["tasks"]);
    for state in TaskState::ALL {
        let count = view.count(state);
        let oldest = view.oldest_ready_age_ms.filter(|_| state == TaskState::Ready);
        counts.row(vec![
            (state.as_str().to_owned(), TextStyle::Plain),
            (count.to_string(), if count == 0 { TextStyle::Dim } else { TextStyle::Bold }),
            (oldest.map(|ms| format!("oldest {}", age(ms))).unwrap_or_default(), TextStyle::Dim),
        ]);
    }
    let order = match (settings.mode, settings.fallback) {
        (AssignmentMode::Distributed, _) => "distributed: any process assigns tasks, in nearly exact order",
        (AssignmentMode::Exclusive, BrokerFallback::None) => {
            "exclusive: the broker assigns tasks, in strict order"
        }
        (AssignmentMode::Exclusive, BrokerFallback::Distributed) => {
            "exclusive: the broker assigns tasks, in strict order; without a broker, any process"
        }
    };
    let rate = settings.rate.map(|rate| format!("{} per {}", rate.count, span(rate.per_ms)));
    let claimed = settings.max_claimed.map(|count| format!("at most {count}"));
    let approval = if settings.require_approval { "required" } else { "not required" };
    let mut set = Table::new(&["setting", ""]);
    for (name, value) in [
        ("mode", order.to_owned()),
        ("rate limit", rate.unwrap_or_else(|| "no limit".to_owned())),
        ("max claimed", claimed.unwrap_or_else(|| "no limit".to_owned())),
        ("approval", approval.to_owned()),
        ("preference window", span(settings.preference_window_ms)),
        (
            "retention",
            format!("{}, dead tasks {}", span(settings.retention_ms), span(settings.dead_retention_ms)),
        ),
    ] {
        set.row(vec![(name.to_owned(), TextStyle::Plain), (value, TextStyle::Plain)]);
    }
    let name = paint(&view.key.to_string(), TextStyle::Bold);
    format!("{name}  {headline}\n\n{}\n{}", counts.render(), set.render())
}

async fn set(
    global: &GlobalArgs,
    queue: &str,
    change: impl FnOnce(&mut QueueSettings),
) -> Result<u8, CliError> {
    let key = store::queue(global, queue)?;
    let store = store::open(global).await?;
    let before = store.queue(&key).await?.map(|view| view.settings);
    let mut settings = before.unwrap_or_default();
    change(&mut settings);
    tenure::rules::work::validate_queue(&settings).map_err(|error| CliError::usage(error.to_string()))?;
    store.set_queue(&key, &settings).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&existing(store.as_ref(), &key).await?);
    } else {
        let (style, done) = match before {
            Some(before) if before == settings => (TextStyle::Yellow, "is unchanged"),
            Some(_) => (TextStyle::Green, "is updated"),
            None => (TextStyle::Green, "is created"),
        };
        output::note(global, style, &format!("queue {key} {done}: {}", settings.mode.as_str()));
    }
    Ok(0)
}

/// Pauses with a reason, or resumes without one.
async fn pause(global: &GlobalArgs, which: &QueueSelector, reason: Option<String>) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let queue = which.queue.as_deref().map(str::parse::<Name>).transpose()?;
    let store = store::open(global).await?;
    let pause = reason.map(|reason| Pause { paused_by: whoami(), reason, paused_at_ms: wall_ms() });
    let changed = store.set_queue_paused(&namespace, queue.as_ref(), pause.as_ref()).await?;
    let what = queue.map_or_else(|| format!("namespace {namespace}"), |queue| format!("queue {queue}"));
    let (style, text) = match (pause.is_some(), changed) {
        (true, true) => (TextStyle::Green, "is paused; claimed tasks continue"),
        (true, false) => (TextStyle::Yellow, "was already paused"),
        (false, true) => (TextStyle::Green, "is resumed"),
        (false, false) => (TextStyle::Yellow, "was not paused"),
    };
    if global.output == OutputFormat::Json {
        output::print_json(&serde_json::json!({"paused": pause.is_some(), "changed": changed}));
    }
    output::note(global, style, &format!("{what} {text}"));
    Ok(0)
}

async fn existing(store: &dyn Store, key: &QueueKey) -> Result<QueueView, CliError> {
    store.queue(key).await?.ok_or_else(|| no_such(key))
}

pub(super) fn no_such(key: &QueueKey) -> CliError {
    CliError::usage(format!("queue {key} does not exist; list the queues with `tenure queues list`"))
}

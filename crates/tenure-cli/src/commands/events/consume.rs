//! `tenure events consume`: joins a group and runs a command for each event.
//!
//! The consumer of the library passes events to a handler that runs the command under the watchdog of [`crate::child`].
//! The supervisor sends the watchdog the deadline of its session, and thereby of its partitions, and the watchdog stops
//! the whole process group before that deadline. An event is committed after its command exited with 0, so it is
//! processed at least once. If the library passes an event again because another event of its batch failed, a command
//! that succeeded does not run again.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tenure::port::{Event, EventId, GroupKey, Pause, Payload, Store};
use tenure::runtime::wall_ms;
use tenure::{Consumer, EventBatch, HandlerError, Tenure, Token};
use tokio::sync::watch;

use crate::args::events::ConsumeArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::child::{ChildExit, SpawnError};
use crate::commands::environment;
use crate::commands::handler_command::{CommandInput, CommandSpec, OutputMode, RunningCounter, VARIABLE_MAX};
use crate::commands::signals::Signals;
use crate::error::CliError;
use crate::output::{self, TextStyle, counted, plain, span};
use crate::store;

/// Poll interval of `--exit-when-idle`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Limit of a command without timeout, and of a drain: practically unlimited. A second signal ends the wait.
const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Number of events read ahead per concurrent command, so that a slow command does not leave the others without events.
const READ_AHEAD: usize = 4;
/// Maximum number of remembered successes; more events cannot be in flight.
const REMEMBERED: usize = 20_000;

/// State that all commands share.
struct ConsumeContext {
    program: CommandSpec,
    tenure: Tenure,
    member: String,
    timeout: Option<Duration>,
    json: bool,
    /// Set to stop the running commands.
    stop: watch::Sender<bool>,
    /// Set if the command cannot be executed, which is fatal for every event.
    exec_failure: watch::Sender<Option<(u8, String)>>,
    succeeded: Mutex<SucceededEvents>,
    running: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
}

/// Events whose command succeeded and which may not be committed yet, by the token under which they were read. A reset
/// changes the token, so that they run again.
#[derive(Default)]
struct SucceededEvents {
    known: HashSet<(Token, EventId)>,
    order: VecDeque<(Token, EventId)>,
}

impl SucceededEvents {
    fn insert(&mut self, event: (Token, EventId)) {
        if self.known.insert(event) {
            self.order.push_back(event);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// Result of a command.
enum CommandResult {
    Done,
    Failed(String),
    /// The command was stopped: the lease ran out, or a signal arrived.
    Ended,
}

pub(super) async fn run(global: &GlobalArgs, args: ConsumeArgs) -> Result<u8, CliError> {
    let group = store::group(global, &args.topic, &args.group)?;
    tenure::rules::event::validate_start_offset(&args.from)
        .map_err(|error| CliError::usage(error.to_string()))?;
    let mut signals = Signals::ending()?;
    let tenure = session(global, &args).await?;
    let json = global.output == OutputFormat::Json;
    let context = Arc::new(ConsumeContext {
        program: CommandSpec {
            argv: args.command.clone(),
            kill_after: args.kill_after,
            tick: tenure.timing().heartbeat_interval() / 4,
            output: if json { OutputMode::Errors } else { OutputMode::Passed },
            withheld: environment::withheld(&args.pass_env),
        },
        tenure: tenure.clone(),
        member: tenure.name().to_owned(),
        timeout: args.timeout,
        json,
        stop: watch::Sender::new(false),
        exec_failure: watch::Sender::new(None),
        succeeded: Mutex::default(),
        running: AtomicU64::new(0),
        done: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let consumer = consumer(&tenure, &args, &group, &context).await?;
    output::note(global, TextStyle::Green, &format!("{} consumes {group}", plain(tenure.name())));
    let ended = wait_for_stop(global, &context, &group, args.exit_when_idle, &mut signals).await;
    let drained = drain(global, consumer, &context, &mut signals).await;
    tokio::select! {
        closed = tenure.close() => closed?,
        // A second signal: exit at once without releasing the lease.
        _ = signals.next() => {}
    }
    let (done, failed) = (context.done.load(Ordering::Relaxed), context.failed.load(Ordering::Relaxed));
    let events = counted(usize::try_from(done).unwrap_or(usize::MAX), "event");
    output::note(global, TextStyle::Dim, &format!("{events} processed, {failed} failed"));
    ended?;
    drained.map(|()| 0)
}

async fn session(global: &GlobalArgs, args: &ConsumeArgs) -> Result<Tenure, CliError> {
    tenure::Timing::new(args.lease, None).map_err(tenure::Error::from)?;
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    Ok(builder.open().await?)
}

async fn consumer(
    tenure: &Tenure,
    args: &ConsumeArgs,
    group: &GroupKey,
    context: &Arc<ConsumeContext>,
) -> Result<Consumer, CliError> {
    let context = context.clone();
    let concurrency = args.concurrency as usize;
    let handler = move |batch: EventBatch| {
        let context = context.clone();
        async move { context.handle(batch).await }
    };
    let builder = tenure
        .consumer(group.topic.name.as_str(), group.name.as_str())
        .namespace(group.topic.namespace.as_str())
        .from(args.from)
        .concurrency(concurrency)
        // With one command at a time, commit each event before the next one starts.
        .batch(if concurrency == 1 { 1 } else { concurrency * READ_AHEAD })
        // The handler stops the command itself and waits until no process is left.
        .timeout(UNLIMITED)
        .grace(UNLIMITED)
        .handler(handler);
    Ok(builder.start().await?)
}

/// Waits for a signal, for the end of the topic, or for a command that cannot be executed.
async fn wait_for_stop(
    global: &GlobalArgs,
    context: &ConsumeContext,
    group: &GroupKey,
    exit_when_idle: bool,
    signals: &mut Signals,
) -> Result<(), CliError> {
    let mut exec_failure = context.exec_failure.subscribe();
    let idle = async {
        match exit_when_idle {
            true => wait_until_idle(global, context.tenure.store().as_ref(), group).await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signals.next() => Ok(()),
        () = idle => Ok(()),
        found = exec_failure.wait_for(Option::is_some) => match found.ok().and_then(|found| found.clone()) {
            Some((code, message)) => Err(CliError::new(code, message)),
            None => Ok(()),
        },
    }
}

/// Completes when all events are processed and no retry is pending.
async fn wait_until_idle(global: &GlobalArgs, store: &dyn Store, group: &GroupKey) {
    let mut reported = None;
    loop {
        match group_progress(store, group).await {
            Ok(GroupProgress::Here) => return,
            Ok(GroupProgress::Ahead) => reported = None,
            // A pause may last indefinitely: report it once.
            Ok(GroupProgress::Paused(pause)) => {
                if reported.as_ref() != Some(&pause) {
                    let Pause { paused_by, reason, .. } = &pause;
                    let why = if reason.is_empty() { String::new() } else { format!(": {}", plain(reason)) };
                    let text = format!(
                        "{group} is paused by {}{why}; waiting until it is resumed",
                        plain(paused_by)
                    );
                    output::note(global, TextStyle::Yellow, &text);
                    reported = Some(pause);
                }
            }
            Err(error) => tracing::warn!("cannot read the state of {group}: {error}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Progress of a group.
enum GroupProgress {
    /// All events are processed and no retry is pending.
    Here,
    /// Events or retries are left.
    Ahead,
    /// Events or retries are left, and the group is paused.
    Paused(Pause),
}

async fn group_progress(
    store: &dyn Store,
    group: &GroupKey,
) -> Result<GroupProgress, tenure::port::StoreError> {
    let Some(look) = store.group_assignment(group).await? else { return Ok(GroupProgress::Here) };
    let ends = store.partition_offsets(&group.topic).await?.unwrap_or_default();
    let end_offset = |partition: u32| {
        ends.iter().find(|ends| ends.partition == partition).map_or(0, |ends| ends.end_offset)
    };
    let unread =
        look.partition_leases.iter().any(|lease| lease.committed_offset < end_offset(lease.partition));
    let partitions: Vec<u32> = look.partition_leases.iter().map(|lease| lease.partition).collect();
    // Count only parked keys with a pending retry: dead letters, and events behind them, wait for an operator.
    let is_left = unread
        || store
            .parked_keys_in(group, &partitions)
            .await?
            .values()
            .flatten()
            .any(|key| key.retry_in_ms.is_some());
    Ok(match (is_left, look.paused) {
        (false, _) => GroupProgress::Here,
        (true, None) => GroupProgress::Ahead,
        (true, Some(pause)) => GroupProgress::Paused(pause),
    })
}

/// Waits for running commands; a second signal stops them.
async fn drain(
    global: &GlobalArgs,
    consumer: Consumer,
    context: &ConsumeContext,
    signals: &mut Signals,
) -> Result<(), CliError> {
    if context.running.load(Ordering::Relaxed) > 0 {
        output::note(
            global,
            TextStyle::Dim,
            "waiting for running commands; send the signal again to stop them and release their events",
        );
    }
    let drained = consumer.drain();
    tokio::pin!(drained);
    let drained = tokio::select! {
        drained = &mut drained => drained,
        _ = signals.next() => {
            output::note(global, TextStyle::Yellow, "stopping running commands");
            context.stop.send_replace(true);
            drained.await
        }
    };
    drained?;
    Ok(())
}

impl ConsumeContext {
    /// Runs the command for each event of a batch. The first failure fails the batch; the library then finds the failed
    /// event.
    async fn handle(&self, batch: EventBatch) -> Result<(), HandlerError> {
        for event in &batch {
            let known = (batch.token(event.partition).unwrap_or(Token::ZERO), event.id);
            if self.succeeded().known.contains(&known) {
                continue;
            }
            let result = match self.attempt(event, &batch).await {
                Ok(result) => result,
                Err(error @ SpawnError::Exec { .. }) => {
                    // Not a failure of the event: it stays unread.
                    self.exec_failure.send_replace(Some((error.exit_code() as u8, error.to_string())));
                    return Err(HandlerError::transient(error));
                }
                Err(error) => CommandResult::Failed(error.to_string()),
            };
            self.print_result(event, batch.attempt(), &result);
            match result {
                CommandResult::Done => self.succeeded().insert(known),
                CommandResult::Failed(why) => return Err(HandlerError::fail(why)),
                CommandResult::Ended => return Err(HandlerError::transient("the command was stopped")),
            }
        }
        Ok(())
    }

    fn succeeded(&self) -> std::sync::MutexGuard<'_, SucceededEvents> {
        self.succeeded.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs the command for an event. Stops it before another member can take the partition, and at its timeout.
    async fn attempt(&self, event: &Event, batch: &EventBatch) -> Result<CommandResult, SpawnError> {
        let _running = RunningCounter::start(&self.running);
        let mut stop = self.stop.subscribe();
        let late = AtomicBool::new(false);
        let over = async {
            tokio::select! {
                // The sender lives as long as `self`.
                _ = stop.wait_for(|stop| *stop) => {}
                () = tokio::time::sleep(self.timeout.unwrap_or(UNLIMITED)) => late.store(true, Ordering::Relaxed),
            }
        };
        let session = self.tenure.session();
        let with = CommandInput {
            variables: self.environment(event, batch),
            input: match &event.payload {
                Payload::Json(json) => json.as_str().as_bytes(),
                Payload::Bytes(bytes) => bytes,
            },
            keep: session.and_then(|session| self.tenure.store().kernel_lock(&session)),
        };
        let deadline = || self.tenure.trusted_until().as_nanos();
        let run = match self.program.run(with, &deadline, over).await {
            Err(SpawnError::TrustEnded) => return Ok(CommandResult::Ended),
            run => run?,
        };
        Ok(match run.ending {
            _ if run.stopped && late.load(Ordering::Relaxed) => {
                let longest = span(crate::args::parsers::millis(self.timeout.unwrap_or(UNLIMITED)));
                CommandResult::Failed(format!("stopped: it ran longer than {longest}"))
            }
            _ if run.stopped => CommandResult::Ended,
            ChildExit::Exited(0) => CommandResult::Done,
            ChildExit::EndedForTrust => CommandResult::Ended,
            _ => CommandResult::Failed(run.error_text()),
        })
    }

    fn environment(&self, event: &Event, batch: &EventBatch) -> Vec<(&'static str, String)> {
        let group = batch.group();
        let token = batch.token(event.partition).unwrap_or(Token::ZERO);
        let headers = serde_json::to_string(&event.headers).unwrap_or_default();
        let mut variables = vec![
            ("TENURE_EVENT_ID", event.id.to_string()),
            ("TENURE_EVENT_TYPE", event.event_type.clone()),
            ("TENURE_EVENT_TOPIC", group.topic.name.to_string()),
            ("TENURE_EVENT_GROUP", group.name.to_string()),
            ("TENURE_EVENT_PARTITION", event.partition.to_string()),
            ("TENURE_EVENT_OFFSET", event.offset.to_string()),
            ("TENURE_EVENT_ATTEMPT", batch.attempt().to_string()),
            ("TENURE_EVENT_PUBLISHED_AT_MS", event.published_at_ms.to_string()),
            ("TENURE_TOKEN", token.as_u64().to_string()),
            ("TENURE_NAMESPACE", group.topic.namespace.to_string()),
            ("TENURE_NAME", self.member.clone()),
        ];
        if let Some(key) = &event.key {
            variables.push(("TENURE_EVENT_KEY", key.clone()));
        }
        if headers.len() <= VARIABLE_MAX {
            variables.push(("TENURE_EVENT_HEADERS", headers));
        }
        variables
    }

    fn print_result(&self, event: &Event, attempt: u32, result: &CommandResult) {
        let (word, style, why) = match result {
            CommandResult::Done => ("processed", TextStyle::Green, ""),
            CommandResult::Failed(why) => ("failed", TextStyle::Red, why.as_str()),
            CommandResult::Ended => {
                ("stopped", TextStyle::Yellow, "the next member of the partition processes it")
            }
        };
        match result {
            CommandResult::Done => drop(self.done.fetch_add(1, Ordering::Relaxed)),
            CommandResult::Failed(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
            CommandResult::Ended => {}
        }
        if self.json {
            output::print_json(&json!({
                "event_id": event.id, "partition": event.partition, "key": event.key, "type": event.event_type, "attempt": attempt,
                "outcome": word, "error": why, "finished_at_ms": wall_ms(),
            }));
            return;
        }
        let key = event.key.as_deref().map(|key| format!(" key {}", plain(key))).unwrap_or_default();
        let why = if why.is_empty() { String::new() } else { format!(": {}", plain(why)) };
        let kind = plain(&event.event_type);
        crate::output::err_line(format_args!(
            "{} event {} ({kind}{key}) {word}, attempt {attempt}{why}",
            output::paint_err("●", style),
            event.id
        ));
    }
}

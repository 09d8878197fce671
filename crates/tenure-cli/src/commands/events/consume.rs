//! `tenure events consume`: a member of a group that runs a command for each event.
//!
//! The library's consumer reads, and gives events to a handler that runs the command under the watchdog of [`crate::child`]. The
//! watchdog is told until when our session is trusted, and so the slots are ours, and ends the whole process group before that. What
//! a command has done is said to the store when it has ended with code 0; until then it is not done, so it is done at least once.
//! Where the library gives an event again because another one failed with which it was read, what succeeded is not run again.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tenure::port::{Backend, Event, EventId, GroupKey, Pause, Payload};
use tenure::runtime::wall_ms;
use tenure::{Batch, Consumer, HandlerError, Tenure, Token};
use tokio::sync::watch;

use crate::args::events::ConsumeArgs;
use crate::args::{Format, Global};
use crate::child::{Ending, SpawnError};
use crate::commands::environment;
use crate::commands::program::{Circumstances, Output, Program, Running, VARIABLE_MAX};
use crate::commands::signals::Signals;
use crate::exit::Failure;
use crate::output::{self, Ink, counted, plain, span};
use crate::store;

/// How often a group that comes to its end is looked at.
const GLANCE: Duration = Duration::from_millis(250);
/// How long a command may take whose time is not limited, and a drain: who does not want to wait says it twice.
const PATIENCE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How many events are read for each command that may run at once: with a few more, slow ones keep the others busy.
const AHEAD: usize = 4;
/// How many successes are remembered: more than are ever in hand.
const REMEMBERED: usize = 20_000;

/// What all commands share.
struct Shop {
    program: Program,
    tenure: Tenure,
    member: String,
    timeout: Option<Duration>,
    json: bool,
    /// No more waiting: commands are ended.
    stop: watch::Sender<bool>,
    /// The command cannot be executed, which no other event will change.
    unfit: watch::Sender<Option<(u8, String)>>,
    succeeded: Mutex<Succeeded>,
    running: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
}

/// Events whose command succeeded, and of which the store may not have heard, by the token under which they were read: after a reset
/// that is another one, and they are to be run again.
#[derive(Default)]
struct Succeeded {
    known: HashSet<(Token, EventId)>,
    order: VecDeque<(Token, EventId)>,
}

impl Succeeded {
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

/// What came of a command.
enum Verdict {
    Done,
    Failed(String),
    /// It was ended: trust ran out, or we were told to stop.
    Ended,
}

pub(super) async fn run(global: &Global, args: ConsumeArgs) -> Result<u8, Failure> {
    let group = store::group(global, &args.topic, &args.group)?;
    tenure::event::check_begin(&args.from).map_err(|error| Failure::usage(error.to_string()))?;
    let mut signals = Signals::ending()?;
    let tenure = session(global, &args).await?;
    let json = global.output == Format::Json;
    let shop = Arc::new(Shop {
        program: Program {
            argv: args.command.clone(),
            kill_after: args.kill_after,
            tick: tenure.timing().beat() / 4,
            output: if json { Output::Errors } else { Output::Passed },
            withheld: environment::withheld(&args.pass_env),
        },
        tenure: tenure.clone(),
        member: tenure.name().to_owned(),
        timeout: args.timeout,
        json,
        stop: watch::Sender::new(false),
        unfit: watch::Sender::new(None),
        succeeded: Mutex::default(),
        running: AtomicU64::new(0),
        done: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let consumer = consumer(&tenure, &args, &group, &shop).await?;
    output::note(global, Ink::Green, &format!("{} reads {group}", plain(tenure.name())));
    let ended = until_told(global, &shop, &group, args.until_end, &mut signals).await;
    let drained = drain(global, consumer, &shop, &mut signals).await;
    tokio::select! {
        closed = tenure.close() => closed?,
        // Told to end once more: the store gets no farewell, and waits for the lease.
        _ = signals.next() => {}
    }
    let (done, failed) = (shop.done.load(Ordering::Relaxed), shop.failed.load(Ordering::Relaxed));
    let events = counted(usize::try_from(done).unwrap_or(usize::MAX), "event");
    output::note(global, Ink::Dim, &format!("{events} done, {failed} failed"));
    ended?;
    drained.map(|()| 0)
}

async fn session(global: &Global, args: &ConsumeArgs) -> Result<Tenure, Failure> {
    tenure::Timing::new(args.lease, None).map_err(tenure::Error::from)?;
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(name) = &args.member {
        builder = builder.name(name);
    }
    Ok(builder.open().await?)
}

async fn consumer(
    tenure: &Tenure,
    args: &ConsumeArgs,
    group: &GroupKey,
    shop: &Arc<Shop>,
) -> Result<Consumer, Failure> {
    let shop = shop.clone();
    let concurrency = args.concurrency as usize;
    let handler = move |batch: Batch| {
        let shop = shop.clone();
        async move { shop.handle(batch).await }
    };
    let builder = tenure
        .consumer(group.topic.name.as_str(), group.name.as_str())
        .namespace(group.topic.namespace.as_str())
        .from(args.from)
        .concurrency(concurrency)
        // One at a time: the store hears of each before the next begins.
        .batch(if concurrency == 1 { 1 } else { concurrency * AHEAD })
        // We end a command ourselves, and wait until nothing of it is left.
        .timeout(PATIENCE)
        .grace(PATIENCE)
        .handler(handler);
    Ok(builder.start().await?)
}

/// Until we are told to end, everything is read, or the command turns out to be none.
async fn until_told(
    global: &Global,
    shop: &Shop,
    group: &GroupKey,
    until_end: bool,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let mut unfit = shop.unfit.subscribe();
    let end = async {
        match until_end {
            true => at_end(global, shop.tenure.store().as_ref(), group).await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signals.next() => Ok(()),
        () = end => Ok(()),
        found = unfit.wait_for(Option::is_some) => match found.ok().and_then(|found| found.clone()) {
            Some((code, message)) => Err(Failure::new(code, message)),
            None => Ok(()),
        },
    }
}

/// Completes when nothing of the topic is unread, and nothing is to be tried again.
async fn at_end(global: &Global, store: &dyn Backend, group: &GroupKey) {
    let mut said = None;
    loop {
        match end(store, group).await {
            Ok(End::Here) => return,
            Ok(End::Ahead) => said = None,
            // It may take as long as somebody likes: say so, once.
            Ok(End::Paused(pause)) => {
                if said.as_ref() != Some(&pause) {
                    let Pause { by, reason, .. } = &pause;
                    let why = if reason.is_empty() { String::new() } else { format!(": {}", plain(reason)) };
                    let text = format!("{} has paused {group}{why}; waiting until it is resumed", plain(by));
                    output::note(global, Ink::Yellow, &text);
                    said = Some(pause);
                }
            }
            Err(error) => tracing::warn!("cannot see whether {group} is at its end: {error}"),
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// How far a group has come.
enum End {
    /// Nothing is left.
    Here,
    /// Something is.
    Ahead,
    /// Something is, and nobody may read it.
    Paused(Pause),
}

async fn end(store: &dyn Backend, group: &GroupKey) -> Result<End, tenure::port::StoreError> {
    let Some(look) = store.look_group(group).await? else { return Ok(End::Here) };
    let ends = store.slot_ends(&group.topic).await?.unwrap_or_default();
    let end = |slot: u32| ends.iter().find(|ends| ends.slot == slot).map_or(0, |ends| ends.latest);
    let unread = look.shares.iter().any(|share| share.position < end(share.slot));
    let slots: Vec<u32> = look.shares.iter().map(|share| share.slot).collect();
    // What is dead, and what waits behind it, waits for people.
    let is_left = unread
        || store.aside_keys_in(group, &slots).await?.values().flatten().any(|key| key.due_in_ms.is_some());
    Ok(match (is_left, look.paused) {
        (false, _) => End::Here,
        (true, None) => End::Ahead,
        (true, Some(pause)) => End::Paused(pause),
    })
}

/// Finishes what runs; told again, ends it.
async fn drain(
    global: &Global,
    consumer: Consumer,
    shop: &Shop,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if shop.running.load(Ordering::Relaxed) > 0 {
        output::note(global, Ink::Dim, "finishing what runs; told again, it is ended, and given to another");
    }
    let drained = consumer.drain();
    tokio::pin!(drained);
    let drained = tokio::select! {
        drained = &mut drained => drained,
        _ = signals.next() => {
            output::note(global, Ink::Yellow, "told again: ending what runs");
            shop.stop.send_replace(true);
            drained.await
        }
    };
    drained?;
    Ok(())
}

impl Shop {
    /// One after the other; the first that fails is the failure of them all, and the library finds out which it was.
    async fn handle(&self, batch: Batch) -> Result<(), HandlerError> {
        for event in &batch {
            let known = (batch.token(event.slot).unwrap_or(Token::ZERO), event.id);
            if self.succeeded().known.contains(&known) {
                continue;
            }
            let verdict = match self.attempt(event, &batch).await {
                Ok(verdict) => verdict,
                Err(error @ SpawnError::Exec { .. }) => {
                    // Not this event's fault: it stays unread.
                    self.unfit.send_replace(Some((error.exit_code() as u8, error.to_string())));
                    return Err(HandlerError::passing(error));
                }
                Err(error) => Verdict::Failed(error.to_string()),
            };
            self.tell(event, batch.attempt(), &verdict);
            match verdict {
                Verdict::Done => self.succeeded().insert(known),
                Verdict::Failed(why) => return Err(HandlerError::fail(why)),
                Verdict::Ended => return Err(HandlerError::passing("the command was ended")),
            }
        }
        Ok(())
    }

    fn succeeded(&self) -> std::sync::MutexGuard<'_, Succeeded> {
        self.succeeded.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs the command for an event. It is ended before the slot can be another's, and when its time is over.
    async fn attempt(&self, event: &Event, batch: &Batch) -> Result<Verdict, SpawnError> {
        let _running = Running::begin(&self.running);
        let mut stop = self.stop.subscribe();
        let late = AtomicBool::new(false);
        let over = async {
            tokio::select! {
                // The sender lives as long as we do.
                _ = stop.wait_for(|stop| *stop) => {}
                () = tokio::time::sleep(self.timeout.unwrap_or(PATIENCE)) => late.store(true, Ordering::Relaxed),
            }
        };
        let session = self.tenure.session();
        let with = Circumstances {
            variables: self.environment(event, batch),
            input: match &event.payload {
                Payload::Json(json) => json.as_str().as_bytes(),
                Payload::Bytes(bytes) => bytes,
            },
            keep: session.and_then(|session| self.tenure.store().kernel_lock(&session)),
        };
        let deadline = || self.tenure.trusted_until().as_nanos();
        let run = match self.program.run(with, &deadline, over).await {
            Err(SpawnError::TrustEnded) => return Ok(Verdict::Ended),
            run => run?,
        };
        Ok(match run.ending {
            _ if run.stopped && late.load(Ordering::Relaxed) => {
                let longest = span(crate::args::values::millis(self.timeout.unwrap_or(PATIENCE)));
                Verdict::Failed(format!("it was ended: it took longer than {longest}"))
            }
            _ if run.stopped => Verdict::Ended,
            Ending::Exited(0) => Verdict::Done,
            Ending::EndedForTrust => Verdict::Ended,
            _ => Verdict::Failed(run.words()),
        })
    }

    fn environment(&self, event: &Event, batch: &Batch) -> Vec<(&'static str, String)> {
        let group = batch.group();
        let token = batch.token(event.slot).unwrap_or(Token::ZERO);
        let headers = serde_json::to_string(&event.headers).unwrap_or_default();
        let mut variables = vec![
            ("TENURE_EVENT_ID", event.id.to_string()),
            ("TENURE_EVENT_TYPE", event.kind.clone()),
            ("TENURE_EVENT_TOPIC", group.topic.name.to_string()),
            ("TENURE_EVENT_GROUP", group.name.to_string()),
            ("TENURE_EVENT_SLOT", event.slot.to_string()),
            ("TENURE_EVENT_POSITION", event.position.to_string()),
            ("TENURE_EVENT_ATTEMPT", batch.attempt().to_string()),
            ("TENURE_EVENT_AT_MS", event.at_ms.to_string()),
            ("TENURE_TOKEN", token.as_u64().to_string()),
            ("TENURE_NAMESPACE", group.topic.namespace.to_string()),
            ("TENURE_ID", self.member.clone()),
        ];
        if let Some(key) = &event.key {
            variables.push(("TENURE_EVENT_KEY", key.clone()));
        }
        if headers.len() <= VARIABLE_MAX {
            variables.push(("TENURE_EVENT_HEADERS", headers));
        }
        variables
    }

    fn tell(&self, event: &Event, attempt: u32, verdict: &Verdict) {
        let (word, ink, why) = match verdict {
            Verdict::Done => ("done", Ink::Green, ""),
            Verdict::Failed(why) => ("failed", Ink::Red, why.as_str()),
            Verdict::Ended => ("ended", Ink::Yellow, "it is given to whoever has the slot next"),
        };
        match verdict {
            Verdict::Done => drop(self.done.fetch_add(1, Ordering::Relaxed)),
            Verdict::Failed(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
            Verdict::Ended => {}
        }
        if self.json {
            output::print_json(&json!({
                "event": event.id, "slot": event.slot, "key": event.key, "type": event.kind, "attempt": attempt,
                "outcome": word, "why": why, "at_ms": wall_ms(),
            }));
            return;
        }
        let key = event.key.as_deref().map(|key| format!(" of {}", plain(key))).unwrap_or_default();
        let why = if why.is_empty() { String::new() } else { format!(": {}", plain(why)) };
        let kind = plain(&event.kind);
        crate::output::err_line(format_args!(
            "{} event {} ({kind}{key}) {word}, attempt {attempt}{why}",
            output::paint_err("●", ink),
            event.id
        ));
    }
}

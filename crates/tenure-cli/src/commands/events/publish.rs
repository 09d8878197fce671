//! `tenure events publish`: one event as the options say it, or one per line of a file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::value::to_raw_value;
use tenure::port::{
    Backend, EVENT_BYTES_MAX, NewEvent, PUBLISH_MAX, Payload, Published, StoreError, TopicKey,
};

use crate::args::events::PublishArgs;
use crate::args::{Format, Global};
use crate::commands::input;
use crate::commands::lines::{Fields, Kind, Lines, Portion};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, counted};
use crate::store;

const LINES: Kind = Kind { one: "an event", command: "tenure events publish", most: PUBLISH_MAX };

pub(super) async fn run(global: &Global, args: PublishArgs) -> Result<u8, Failure> {
    let topic = store::topic(global, &args.topic)?;
    match &args.file {
        Some(path) => many(global, &topic, path, fields(&args)?).await,
        None => one(global, &topic, event(args)?).await,
    }
}

fn event(args: PublishArgs) -> Result<NewEvent, Failure> {
    let payload = match (&args.payload, &args.bytes) {
        (Some(text), _) => Payload::Json(input::json("--payload", text)?),
        (None, Some(path)) => Payload::Bytes(input::bytes("--bytes", path)?),
        (None, None) => Payload::default(),
    };
    Ok(NewEvent {
        key: args.key,
        kind: args.kind.unwrap_or_default(),
        payload,
        headers: args.headers.into_iter().collect(),
        idempotency_key: args.idempotency_key,
        leader_token: args.leader_token,
    })
}

/// What the options say of every line, and nothing else.
fn fields(args: &PublishArgs) -> Result<Fields, Failure> {
    let mut fields = Fields::new();
    let mut put = |name: &str, value: serde_json::Result<_>| {
        let own = |error: serde_json::Error| Failure::new(exit::OWN_FAILURE, error.to_string());
        value.map(|value| fields.insert(name.to_owned(), value)).map(drop).map_err(own)
    };
    if let Some(kind) = &args.kind {
        put("type", to_raw_value(kind))?;
    }
    if let Some(key) = &args.key {
        put("key", to_raw_value(key))?;
    }
    if !args.headers.is_empty() {
        put("headers", to_raw_value(&args.headers.iter().cloned().collect::<BTreeMap<_, _>>()))?;
    }
    Ok(fields)
}

async fn one(global: &Global, topic: &TopicKey, event: NewEvent) -> Result<u8, Failure> {
    let event = [event];
    checked(&event)?;
    let store = store::open(global).await?;
    for published in store.publish(topic, &event).await.map_err(alone)? {
        if global.output == Format::Json {
            output::print_json(&published);
            continue;
        }
        let Published { id, slot, new } = published;
        output::print_line(&id.to_string());
        let (ink, text) = match new {
            true => (Ink::Green, format!("published event {id} to {topic}, in slot {slot}")),
            false => (
                Ink::Yellow,
                format!("event {id} was published under this idempotency key before; nothing was changed"),
            ),
        };
        output::note(global, ink, &text);
    }
    Ok(0)
}

/// Portion by portion. The first one that is refused ends it; those before it are in.
async fn many(global: &Global, topic: &TopicKey, path: &Path, fields: Fields) -> Result<u8, Failure> {
    let mut lines = Lines::open(path, LINES, fields)?;
    // All of the first portion is read before anything is opened: what is wrong is said at once.
    let mut portion = lines.portion()?;
    let store = store::open(global).await?;
    let mut press = Press { global, store: store.as_ref(), topic, published: 0, new: 0 };
    while !portion.lines.is_empty() {
        press.publish(portion, &lines.name).await?;
        portion = lines.portion().map_err(|failure| press.so_far(failure))?;
    }
    output::progress_ends(global);
    let known = press.published - press.new;
    let before = if known > 0 { format!(", {known} were there before") } else { String::new() };
    output::note(
        global,
        Ink::Green,
        &format!("published {} to {topic}{before}", counted(press.new, "event")),
    );
    Ok(0)
}

struct Press<'a> {
    global: &'a Global,
    store: &'a dyn Backend,
    topic: &'a TopicKey,
    published: usize,
    new: usize,
}

impl Press<'_> {
    async fn publish(&mut self, portion: Portion<NewEvent>, file: &str) -> Result<(), Failure> {
        let numbers: Vec<usize> = portion.lines.iter().map(|line| line.number).collect();
        let events: Vec<NewEvent> = portion.lines.into_iter().map(|line| line.value).collect();
        // Alone, so that it is its line that is named.
        for (number, event) in numbers.iter().zip(&events) {
            if let Err(failure) = checked(std::slice::from_ref(event)) {
                let text = format!("line {number} of {file}: {}", failure.message());
                return Err(self.so_far(Failure::new(failure.code, text)));
            }
        }
        checked(&events).map_err(|failure| self.so_far(failure))?;
        let published = self.store.publish(self.topic, &events).await;
        for published in published.map_err(|error| self.so_far(error.into()))? {
            if self.global.output == Format::Json {
                output::print_json(&published);
            }
            self.published += 1;
            self.new += usize::from(published.new);
        }
        output::progress(self.global, &format!("{} published", self.published));
        Ok(())
    }

    /// A failure, and what is in already.
    fn so_far(&self, failure: Failure) -> Failure {
        output::progress_ends(self.global);
        match self.published {
            0 => failure,
            done => Failure::new(
                failure.code,
                format!(
                    "{}. The {done} events before that are published; go on with those after them, or give each an \
                     idempotency_key and publish all again",
                    failure.message()
                ),
            ),
        }
    }
}

/// What makes no sense in any topic; how large a payload may be in this one, the store says.
fn checked(events: &[NewEvent]) -> Result<(), Failure> {
    tenure::event::check_events(events, EVENT_BYTES_MAX as u64).map_err(|error| match events {
        [_] => alone(error.into()),
        _ => StoreError::from(error).into(),
    })
}

/// What is wrong with the only event: which one need not be said.
fn alone(error: StoreError) -> Failure {
    let message = error.message.strip_prefix("event 0: ").unwrap_or(&error.message).to_owned();
    StoreError::new(error.kind, message).into()
}

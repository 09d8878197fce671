//! `tenure events publish`: publishes one event from options, or the events of an NDJSON file.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::value::to_raw_value;
use tenure::port::{
    EVENT_BYTES_MAX, NewEvent, PUBLISH_MAX, Payload, PublishReceipt, Store, StoreError, TopicKey,
};

use crate::args::events::PublishArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::input;
use crate::commands::json_lines::{DefaultFields, InputBatch, JsonLinesKind, JsonLinesReader};
use crate::error::{self, CliError};
use crate::output::{self, TextStyle, counted};
use crate::store;

const LINES: JsonLinesKind =
    JsonLinesKind { one: "an event", command: "tenure events publish", most: PUBLISH_MAX };

pub(super) async fn run(global: &GlobalArgs, args: PublishArgs) -> Result<u8, CliError> {
    let topic = store::topic(global, &args.topic)?;
    match &args.file {
        Some(path) => many(global, &topic, path, fields(&args)?).await,
        None => one(global, &topic, event(args)?).await,
    }
}

fn event(args: PublishArgs) -> Result<NewEvent, CliError> {
    let payload = match (&args.payload, &args.payload_file) {
        (Some(text), _) => Payload::Json(input::json("--payload", text)?),
        (None, Some(path)) => Payload::Bytes(input::bytes("--payload-file", path)?),
        (None, None) => Payload::default(),
    };
    Ok(NewEvent {
        key: args.key,
        event_type: args.kind.unwrap_or_default(),
        payload,
        headers: args.headers.into_iter().collect(),
        idempotency_key: args.idempotency_key,
        leader_token: args.leader_token,
    })
}

/// Default fields from the options.
fn fields(args: &PublishArgs) -> Result<DefaultFields, CliError> {
    let mut fields = DefaultFields::new();
    let mut put = |name: &str, value: serde_json::Result<_>| {
        let own = |error: serde_json::Error| CliError::new(error::INTERNAL_ERROR, error.to_string());
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

async fn one(global: &GlobalArgs, topic: &TopicKey, event: NewEvent) -> Result<u8, CliError> {
    let event = [event];
    checked(&event)?;
    let store = store::open(global).await?;
    for published in store.publish(topic, &event).await.map_err(single_event_error)? {
        if global.output == OutputFormat::Json {
            output::print_json(&published);
            continue;
        }
        let PublishReceipt { id, partition, created } = published;
        output::print_line(&id.to_string());
        let (style, text) = match created {
            true => (TextStyle::Green, format!("published event {id} to {topic}, partition {partition}")),
            false => (
                TextStyle::Yellow,
                format!("event {id} with this idempotency key already exists; nothing was changed"),
            ),
        };
        output::note(global, style, &text);
    }
    Ok(0)
}

/// Publishes a file batch by batch. Stops at the first rejected batch; earlier batches stay published.
async fn many(
    global: &GlobalArgs,
    topic: &TopicKey,
    path: &Path,
    fields: DefaultFields,
) -> Result<u8, CliError> {
    let mut lines = JsonLinesReader::open(path, LINES, fields)?;
    // Read the first batch before opening the store, so that a file error is reported first.
    let mut batch = lines.batch()?;
    let store = store::open(global).await?;
    let mut session = PublishSession { global, store: store.as_ref(), topic, published: 0, new: 0 };
    while !batch.lines.is_empty() {
        session.publish(batch, &lines.name).await?;
        batch = lines.batch().map_err(|failure| session.with_progress(failure))?;
    }
    output::clear_progress(global);
    let known = session.published - session.new;
    let before = if known > 0 { format!(", {known} already existed") } else { String::new() };
    output::note(
        global,
        TextStyle::Green,
        &format!("published {} to {topic}{before}", counted(session.new, "event")),
    );
    Ok(0)
}

struct PublishSession<'a> {
    global: &'a GlobalArgs,
    store: &'a dyn Store,
    topic: &'a TopicKey,
    published: usize,
    new: usize,
}

impl PublishSession<'_> {
    async fn publish(&mut self, batch: InputBatch<NewEvent>, file: &str) -> Result<(), CliError> {
        let numbers: Vec<usize> = batch.lines.iter().map(|line| line.number).collect();
        let events: Vec<NewEvent> = batch.lines.into_iter().map(|line| line.value).collect();
        // Check each event on its own, so that the error names its line.
        for (number, event) in numbers.iter().zip(&events) {
            if let Err(failure) = checked(std::slice::from_ref(event)) {
                let text = format!("line {number} of {file}: {}", failure.message());
                return Err(self.with_progress(CliError::new(failure.code, text)));
            }
        }
        checked(&events).map_err(|failure| self.with_progress(failure))?;
        let published = self.store.publish(self.topic, &events).await;
        for published in published.map_err(|error| self.with_progress(error.into()))? {
            if self.global.output == OutputFormat::Json {
                output::print_json(&published);
            }
            self.published += 1;
            self.new += usize::from(published.created);
        }
        output::progress(self.global, &format!("{} published", self.published));
        Ok(())
    }

    /// Adds to an error how many events are already published.
    fn with_progress(&self, failure: CliError) -> CliError {
        output::clear_progress(self.global);
        match self.published {
            0 => failure,
            done => CliError::new(
                failure.code,
                format!(
                    "{}; the {done} events before are published: continue after them, or give each an idempotency_key and publish all \
                     again",
                    failure.message()
                ),
            ),
        }
    }
}

/// Checks events against the limits of all topics. The store checks the payload limit of the topic.
fn checked(events: &[NewEvent]) -> Result<(), CliError> {
    tenure::rules::event::validate_events(events, EVENT_BYTES_MAX as u64).map_err(|error| match events {
        [_] => single_event_error(error.into()),
        _ => StoreError::from(error).into(),
    })
}

/// Removes the index from the error of a single event.
fn single_event_error(error: StoreError) -> CliError {
    let message = error.message.strip_prefix("event 0: ").unwrap_or(&error.message).to_owned();
    StoreError::new(error.kind, message).into()
}

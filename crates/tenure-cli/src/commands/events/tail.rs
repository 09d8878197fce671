//! `tenure events tail`: prints events as they are published.
//!
//! It has no session, so it works with read permission only. For the same reason it polls: only a session can register
//! as waiter.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::port::{
    Event, Offset, PartitionOffsets, Payload, ReadEventsRequest, StartOffset, Store, TopicKey,
};
use tenure::rules::event::{TopicCursor, commit_batches, partition_for_key};

use super::topics;
use crate::args::events::TailArgs;
use crate::args::parsers::format_instant;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::signals::Signals;
use crate::error::CliError;
use crate::output::{self, TextStyle, paint, plain};
use crate::store;

/// Number of events per read.
const READ: u32 = 1_000;

/// Poll interval after an empty read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Tolerance for clock differences in a search by time.
const SLACK_MS: i64 = 60_000;

pub(super) async fn run(global: &GlobalArgs, args: TailArgs) -> Result<u8, CliError> {
    let topic = store::topic(global, &args.topic)?;
    let mut signals = Signals::ending()?;
    let store = store::read(global).await?;
    tokio::select! {
        done = tail(global, store.as_ref(), topic, &args) => done.map(|()| 0),
        _ = signals.next() => Ok(0),
    }
}

async fn tail(
    global: &GlobalArgs,
    store: &dyn Store,
    topic: TopicKey,
    args: &TailArgs,
) -> Result<(), CliError> {
    let mut reader = TopicReader::open(store, topic, args).await?;
    let (mut printed, most) = (0, args.limit.unwrap_or(u64::MAX));
    let mut print = |event: &Event| {
        match global.output {
            OutputFormat::Json => output::print_json(event),
            OutputFormat::Table => output::print_line(&format_event(event)),
        }
        printed += 1;
        printed < most && output::stdout_open()
    };
    for event in reader.begin(args).await? {
        if !print(&event) {
            return Ok(());
        }
    }
    loop {
        match reader.next().await {
            Ok(events) if events.is_empty() && args.no_follow => return Ok(()),
            Ok(events) if events.is_empty() => tokio::time::sleep(POLL_INTERVAL).await,
            Ok(events) => {
                for event in events.iter().filter(|event| reader.matches(event)) {
                    if !print(event) {
                        return Ok(());
                    }
                }
            }
            Err(failure) if args.no_follow => return Err(failure),
            // The store may become available again: report the error and continue. A deleted topic does not come back.
            Err(failure) if failure.code == crate::error::USAGE => return Err(failure),
            Err(failure) => {
                failure.report();
                tokio::time::sleep(POLL_INTERVAL * 5).await;
            }
        }
        if !output::stdout_open() {
            return Ok(());
        }
    }
}

/// Reads the relevant partitions from a cursor on.
struct TopicReader<'a> {
    store: &'a dyn Store,
    topic: TopicKey,
    ends: Vec<PartitionOffsets>,
    cursor: TopicCursor,
    key: Option<&'a str>,
    kinds: &'a [String],
    /// Earliest publication instant.
    since_ms: i64,
}

impl<'a> TopicReader<'a> {
    async fn open(
        store: &'a dyn Store,
        topic: TopicKey,
        args: &'a TailArgs,
    ) -> Result<TopicReader<'a>, CliError> {
        let mut ends = store.partition_offsets(&topic).await?.ok_or_else(|| topics::no_such(&topic))?;
        if let Some(key) = &args.key {
            let partition = partition_for_key(key, u32::try_from(ends.len()).unwrap_or(u32::MAX));
            ends.retain(|ends| ends.partition == partition);
        }
        let (key, kinds) = (args.key.as_deref(), args.kinds.as_slice());
        Ok(TopicReader { store, topic, ends, cursor: TopicCursor::default(), key, kinds, since_ms: i64::MIN })
    }

    /// Moves the cursor to the start. Returns the events to print first.
    async fn begin(&mut self, args: &TailArgs) -> Result<Vec<Event>, CliError> {
        match args.from {
            None if args.last == 0 => self.seek(|ends| ends.end_offset),
            None => return self.last(args.last as usize).await,
            Some(StartOffset::Earliest) => self.seek(|ends| ends.start_offset),
            Some(StartOffset::Latest) => self.seek(|ends| ends.end_offset),
            Some(StartOffset::Offset(offset)) => {
                self.seek(|ends| offset.clamp(ends.start_offset, ends.end_offset))
            }
            Some(StartOffset::PublishedAtMs(at_ms)) => {
                let place = self.before(at_ms.saturating_sub(SLACK_MS)).await?;
                self.seek(|ends| place.clamp(ends.start_offset, ends.end_offset));
                self.since_ms = at_ms;
            }
        }
        Ok(Vec::new())
    }

    fn seek(&mut self, place: impl Fn(&PartitionOffsets) -> Offset) {
        self.cursor = TopicCursor::new(self.ends.iter().map(|ends| (ends.partition, place(ends))));
    }

    fn matches(&self, event: &Event) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.contains(&event.event_type);
        kind && event.published_at_ms >= self.since_ms
            && self.key.is_none_or(|key| event.key.as_deref() == Some(key))
    }

    /// Reads the next events in nearly commit order and advances the cursor.
    async fn next(&mut self) -> Result<Vec<Event>, CliError> {
        let mut events = self.read(self.cursor.after(), READ).await?;
        for batch in commit_batches(&events) {
            if let Some(last) = batch.last() {
                self.cursor.pass(last, true);
            }
        }
        events.sort_by_key(|event| (event.offset, event.id));
        Ok(events)
    }

    async fn read(&self, after: Vec<(u32, Offset)>, limit: u32) -> Result<Vec<Event>, CliError> {
        let ask = ReadEventsRequest { topic: self.topic.clone(), after, limit };
        Ok(self.store.read_events(&ask).await?)
    }

    /// Returns the last `count` matching events. Offsets of all partitions come from one sequence, so it starts shortly
    /// before the end and doubles the distance until there are enough.
    async fn last(&mut self, count: usize) -> Result<Vec<Event>, CliError> {
        let latest = self.ends.iter().map(|ends| ends.end_offset).max().unwrap_or(0);
        let earliest = self.ends.iter().map(|ends| ends.start_offset).min().unwrap_or(0);
        let mut back = (count as u64).saturating_mul(2);
        loop {
            let place = latest.saturating_sub(back).max(earliest);
            self.seek(|ends| place.clamp(ends.start_offset, ends.end_offset));
            // Ordered by offset: a later read may return earlier events of another partition.
            let mut last = BTreeMap::new();
            loop {
                let events = self.next().await?;
                if events.is_empty() {
                    break;
                }
                for event in events.into_iter().filter(|event| self.matches(event)) {
                    last.insert((event.offset, event.id), event);
                    if last.len() > count {
                        last.pop_first();
                    }
                }
            }
            if last.len() >= count || place == earliest {
                return Ok(last.into_values().collect());
            }
            back = back.saturating_mul(2);
        }
    }

    /// An offset before which all events are older than `at_ms`, by binary search.
    async fn before(&self, at_ms: i64) -> Result<Offset, CliError> {
        let mut low = self.ends.iter().map(|ends| ends.start_offset).min().unwrap_or(0);
        let mut high = self.ends.iter().map(|ends| ends.end_offset).max().unwrap_or(0);
        while low < high {
            let middle = low + (high - low) / 2;
            let after = self
                .ends
                .iter()
                .map(|ends| (ends.partition, middle.clamp(ends.start_offset, ends.end_offset)));
            match self.read(after.collect(), 1).await?.first() {
                // All events up to it are older.
                Some(event) if event.published_at_ms < at_ms && event.offset > middle => {
                    low = event.offset.min(high)
                }
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// Formats an event as a line.
fn format_event(event: &Event) -> String {
    let key = event.key.as_deref().map_or_else(|| "–".to_owned(), plain);
    format!(
        "{}  {}  {}  {}  {}",
        paint(&format_instant(event.published_at_ms), TextStyle::Dim),
        paint(&event.id.to_string(), TextStyle::Dim),
        paint(&key, TextStyle::Bold),
        paint(&plain(&event.event_type), TextStyle::Green),
        format_payload(&event.payload)
    )
}

/// Formats a payload.
pub(super) fn format_payload(payload: &Payload) -> String {
    match payload {
        Payload::Json(json) => plain(json.as_str()),
        Payload::Bytes(bytes) => format!("{} bytes", bytes.len()),
    }
}

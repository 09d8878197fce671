//! `tenure events tail`: events as they come, line by line.
//!
//! It needs no session and leaves no trace, so whoever may only read may tail. That is why it asks again and again instead of
//! sleeping until it is woken: only a session can say that it sleeps.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::event::{Cursor, slot_of, units};
use tenure::port::{Backend, Begin, Event, Payload, Position, ReadAsk, SlotEnds, TopicKey};

use super::topics;
use crate::args::events::TailArgs;
use crate::args::values::stamp;
use crate::args::{Format, Global};
use crate::commands::signals::Signals;
use crate::exit::Failure;
use crate::output::{self, Ink, paint, plain};
use crate::store;

/// How many events are read at once.
const READ: u32 = 1_000;

/// How soon it is asked again when there was nothing.
const GLANCE: Duration = Duration::from_millis(200);

/// Clocks of a store's servers may differ by as much, when events are looked for by time.
const SLACK_MS: i64 = 60_000;

pub(super) async fn run(global: &Global, args: TailArgs) -> Result<u8, Failure> {
    let topic = store::topic(global, &args.topic)?;
    let mut signals = Signals::ending()?;
    let store = store::read(global).await?;
    tokio::select! {
        done = tail(global, store.as_ref(), topic, &args) => done.map(|()| 0),
        _ = signals.next() => Ok(0),
    }
}

async fn tail(global: &Global, store: &dyn Backend, topic: TopicKey, args: &TailArgs) -> Result<(), Failure> {
    let mut reader = Reader::open(store, topic, args).await?;
    let (mut printed, most) = (0, args.count.unwrap_or(u64::MAX));
    let mut print = |event: &Event| {
        match global.output {
            Format::Json => output::print_json(event),
            Format::Table => output::print_line(&line(event)),
        }
        printed += 1;
        printed < most && output::is_read()
    };
    for event in reader.begin(args).await? {
        if !print(&event) {
            return Ok(());
        }
    }
    loop {
        match reader.next().await {
            Ok(events) if events.is_empty() && args.no_follow => return Ok(()),
            Ok(events) if events.is_empty() => tokio::time::sleep(GLANCE).await,
            Ok(events) => {
                for event in events.iter().filter(|event| reader.wants(event)) {
                    if !print(event) {
                        return Ok(());
                    }
                }
            }
            Err(failure) if args.no_follow => return Err(failure),
            // The store may come back; say so and go on. A topic that is gone does not.
            Err(failure) if failure.code == crate::exit::USAGE => return Err(failure),
            Err(failure) => {
                failure.report();
                tokio::time::sleep(GLANCE * 5).await;
            }
        }
        if !output::is_read() {
            return Ok(());
        }
    }
}

/// Reads the slots that matter, from a place on.
struct Reader<'a> {
    store: &'a dyn Backend,
    topic: TopicKey,
    ends: Vec<SlotEnds>,
    cursor: Cursor,
    key: Option<&'a str>,
    kinds: &'a [String],
    /// Not before this moment.
    since_ms: i64,
}

impl<'a> Reader<'a> {
    async fn open(
        store: &'a dyn Backend,
        topic: TopicKey,
        args: &'a TailArgs,
    ) -> Result<Reader<'a>, Failure> {
        let mut ends = store.slot_ends(&topic).await?.ok_or_else(|| topics::no_such(&topic))?;
        if let Some(key) = &args.key {
            let slot = slot_of(key, u32::try_from(ends.len()).unwrap_or(u32::MAX));
            ends.retain(|ends| ends.slot == slot);
        }
        let (key, kinds) = (args.key.as_deref(), args.kinds.as_slice());
        Ok(Reader { store, topic, ends, cursor: Cursor::default(), key, kinds, since_ms: i64::MIN })
    }

    /// Goes to where it begins; what is to be printed before the rest.
    async fn begin(&mut self, args: &TailArgs) -> Result<Vec<Event>, Failure> {
        match args.from {
            None if args.last == 0 => self.go(|ends| ends.latest),
            None => return self.last(args.last as usize).await,
            Some(Begin::Earliest) => self.go(|ends| ends.earliest),
            Some(Begin::Latest) => self.go(|ends| ends.latest),
            Some(Begin::Position(position)) => self.go(|ends| position.clamp(ends.earliest, ends.latest)),
            Some(Begin::Time(at_ms)) => {
                let place = self.before(at_ms.saturating_sub(SLACK_MS)).await?;
                self.go(|ends| place.clamp(ends.earliest, ends.latest));
                self.since_ms = at_ms;
            }
        }
        Ok(Vec::new())
    }

    fn go(&mut self, place: impl Fn(&SlotEnds) -> Position) {
        self.cursor = Cursor::new(self.ends.iter().map(|ends| (ends.slot, place(ends))));
    }

    fn wants(&self, event: &Event) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.contains(&event.kind);
        kind && event.at_ms >= self.since_ms && self.key.is_none_or(|key| event.key.as_deref() == Some(key))
    }

    /// What comes next, in the order of commits as far as it is known; the cursor has passed it.
    async fn next(&mut self) -> Result<Vec<Event>, Failure> {
        let mut events = self.read(self.cursor.after(), READ).await?;
        for unit in units(&events) {
            if let Some(last) = unit.last() {
                self.cursor.pass(last, true);
            }
        }
        events.sort_by_key(|event| (event.position, event.id));
        Ok(events)
    }

    async fn read(&self, after: Vec<(u32, Position)>, limit: u32) -> Result<Vec<Event>, Failure> {
        let ask = ReadAsk { topic: self.topic.clone(), after, limit };
        Ok(self.store.read_events(&ask).await?)
    }

    /// The last so many that are wanted. Positions of all slots are of one sequence, so a place shortly before its end is tried, and
    /// then one twice as far from it, until there are enough.
    async fn last(&mut self, count: usize) -> Result<Vec<Event>, Failure> {
        let latest = self.ends.iter().map(|ends| ends.latest).max().unwrap_or(0);
        let earliest = self.ends.iter().map(|ends| ends.earliest).min().unwrap_or(0);
        let mut back = (count as u64).saturating_mul(2);
        loop {
            let place = latest.saturating_sub(back).max(earliest);
            self.go(|ends| place.clamp(ends.earliest, ends.latest));
            // By position: a later read may bring what belongs before.
            let mut last = BTreeMap::new();
            loop {
                let events = self.next().await?;
                if events.is_empty() {
                    break;
                }
                for event in events.into_iter().filter(|event| self.wants(event)) {
                    last.insert((event.position, event.id), event);
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

    /// A place with nothing but older events before it, by halving.
    async fn before(&self, at_ms: i64) -> Result<Position, Failure> {
        let mut low = self.ends.iter().map(|ends| ends.earliest).min().unwrap_or(0);
        let mut high = self.ends.iter().map(|ends| ends.latest).max().unwrap_or(0);
        while low < high {
            let middle = low + (high - low) / 2;
            let after = self.ends.iter().map(|ends| (ends.slot, middle.clamp(ends.earliest, ends.latest)));
            match self.read(after.collect(), 1).await?.first() {
                // Everything up to it is older still.
                Some(event) if event.at_ms < at_ms && event.position > middle => {
                    low = event.position.min(high)
                }
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// An event, for people.
fn line(event: &Event) -> String {
    let key = event.key.as_deref().map_or_else(|| "–".to_owned(), plain);
    format!(
        "{}  {}  {}  {}  {}",
        paint(&stamp(event.at_ms), Ink::Dim),
        paint(&event.id.to_string(), Ink::Dim),
        paint(&key, Ink::Bold),
        paint(&plain(&event.kind), Ink::Green),
        content(&event.payload)
    )
}

/// A payload, for people.
pub(super) fn content(payload: &Payload) -> String {
    match payload {
        Payload::Json(json) => plain(json.as_str()),
        Payload::Bytes(bytes) => format!("{} bytes", bytes.len()),
    }
}

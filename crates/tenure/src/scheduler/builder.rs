//! A schedule, described step by step.

use std::time::Duration;

use serde::Serialize;
use tenure_core::Name;
use tenure_core::port::{Json, NewTask};
use tenure_core::schedule::{Definition, Dst, Misfire, Overlap, Target, When, Zone};

use crate::Error;

/// What a schedule is to be: when, and what then. What is wrong with it is told when it is set, or [built](Self::build).
///
/// ```
/// use serde::Serialize;
/// use tenure::ScheduleBuilder;
/// use tenure::schedule::{Misfire, Overlap};
///
/// #[derive(Serialize)]
/// struct Report {
///     of: &'static str,
/// }
///
/// # fn main() -> Result<(), tenure::Error> {
/// let nightly = ScheduleBuilder::new("nightly", "30 2 * * MON-FRI")
///     .zone("Europe/Berlin")
///     .misfire(Misfire::Within { grace_ms: 2 * 3_600_000 })
///     .overlap(Overlap::Skip)
///     .payload(&Report { of: "yesterday" })
///     .task("reports", "report")
///     .build()?;
/// assert_eq!(nightly.payload.as_str(), r#"{"of":"yesterday"}"#);
///
/// let wrong = ScheduleBuilder::new("nightly", "30 2 31 FEB *").task("reports", "report").build();
/// assert!(wrong.is_err()); // it would never fire
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens before it is set"]
pub struct ScheduleBuilder {
    pub(super) name: String,
    when: String,
    zone: Option<String>,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
    jitter: Duration,
    dst: Dst,
    misfire: Misfire,
    overlap: Overlap,
    payload: Result<Json, String>,
    aim: Option<Aim>,
}

/// What it does, as it was given.
#[derive(Clone, Debug)]
enum Aim {
    Event { topic: String, key: Option<String> },
    Task { queue: String, task: Box<NewTask> },
    Call { url: String },
}

impl ScheduleBuilder {
    /// The schedule `name`: at the times of a cron expression, or `every 90s`.
    pub fn new(name: impl Into<String>, when: impl Into<String>) -> Self {
        ScheduleBuilder {
            name: name.into(),
            when: when.into(),
            zone: None,
            start_ms: None,
            end_ms: None,
            jitter: Duration::ZERO,
            dst: Dst::default(),
            misfire: Misfire::default(),
            overlap: Overlap::default(),
            payload: Ok(Json::default()),
            aim: None,
        }
    }

    /// On which wall clock, by its name in the IANA database; UTC unless set.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// No tick before this, in milliseconds since 1970.
    pub fn start_ms(mut self, start_ms: i64) -> Self {
        self.start_ms = Some(start_ms);
        self
    }

    /// No tick from this on, in milliseconds since 1970.
    pub fn end_ms(mut self, end_ms: i64) -> Self {
        self.end_ms = Some(end_ms);
        self
    }

    /// Each tick is due later by up to this, always the same for the same tick: so that not all comes at once.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// What a jump of the wall clock means.
    pub fn dst(mut self, dst: Dst) -> Self {
        self.dst = dst;
        self
    }

    /// What becomes of ticks that were missed; one fires for all unless set.
    pub fn misfire(mut self, misfire: Misfire) -> Self {
        self.misfire = misfire;
        self
    }

    /// What becomes of a tick while an earlier one's task is not finished; it runs as well unless set.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// What its events, tasks and calls carry.
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        self.payload = Json::of(payload).map_err(|error| error.to_string());
        self
    }

    /// Each tick publishes an event to this topic of its namespace, under the schedule's name as the key.
    pub fn event(mut self, topic: impl Into<String>) -> Self {
        self.aim = Some(Aim::Event { topic: topic.into(), key: None });
        self
    }

    /// Each tick publishes an event to this topic, under this key.
    pub fn event_with_key(mut self, topic: impl Into<String>, key: impl Into<String>) -> Self {
        self.aim = Some(Aim::Event { topic: topic.into(), key: Some(key.into()) });
        self
    }

    /// Each tick submits a task of this kind to a queue of its namespace.
    pub fn task(self, queue: impl Into<String>, kind: impl Into<String>) -> Self {
        self.task_like(queue, NewTask::new(kind))
    }

    /// Each tick submits a task like this one: its payload is the schedule's, and its key is the tick.
    pub fn task_like(mut self, queue: impl Into<String>, task: NewTask) -> Self {
        self.aim = Some(Aim::Task { queue: queue.into(), task: Box::new(task) });
        self
    }

    /// Each tick calls this address with POST: a Tenure server does, see `tenure serve`.
    pub fn call(mut self, url: impl Into<String>) -> Self {
        self.aim = Some(Aim::Call { url: url.into() });
        self
    }

    /// The definition, checked.
    pub fn build(self) -> Result<Definition, Error> {
        let name = self.name.clone();
        self.checked().map_err(|problem| Error::Schedule { name, problem })
    }

    fn checked(self) -> Result<Definition, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let named = |what: &str, name: String| {
            name.parse::<Name>().map_err(|error| format!("{what} {name:?}: {error}"))
        };
        let when: When = self.when.parse().map_err(|error| text(&error))?;
        let target = match self.aim {
            Some(Aim::Event { topic, key }) => Target::Event { topic: named("topic", topic)?, key },
            Some(Aim::Task { queue, task }) => Target::Task { queue: named("queue", queue)?, task },
            Some(Aim::Call { url }) => Target::Call { url },
            None => {
                return Err("it does nothing; say `.event(…)`, `.task(…)` or `.call(…)`".into());
            }
        };
        let mut definition = Definition::new(self.name.parse().map_err(|error| text(&error))?, when, target);
        if let Some(zone) = self.zone {
            definition.zone = zone.parse::<Zone>().map_err(|error| text(&error))?;
        }
        definition.start_ms = self.start_ms;
        definition.end_ms = self.end_ms;
        definition.jitter_ms = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        definition.dst = self.dst;
        definition.misfire = self.misfire;
        definition.overlap = self.overlap;
        definition.payload = self.payload.map_err(|error| format!("its payload is no JSON: {error}"))?;
        // What counts from its creation begins when the store says so.
        definition.clone().started(0).check().map_err(|error| text(&error))?;
        Ok(definition)
    }
}

impl TryFrom<ScheduleBuilder> for Definition {
    type Error = Error;

    fn try_from(builder: ScheduleBuilder) -> Result<Definition, Error> {
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: ScheduleBuilder) -> String {
        builder.build().unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_told_with_the_schedules_name_and_a_remedy() {
        let fine = ScheduleBuilder::new("nightly", "0 2 * * *").event("reports");
        assert!(fine.clone().build().is_ok());
        assert!(fine.clone().overlap(Overlap::Skip).build().is_err());
        let wrong = refused(ScheduleBuilder::new("nightly", "0 2 * * *"));
        assert!(wrong.contains("nightly") && wrong.contains(".event("), "{wrong}");
        let wrong = refused(ScheduleBuilder::new("nightly", "0 25 * * *").event("reports"));
        assert!(wrong.contains("25"), "{wrong}");
        let wrong = refused(fine.clone().zone("Europe/Belrin"));
        assert!(wrong.contains("did you mean Europe/Berlin"), "{wrong}");
        let wrong = refused(fine.event("no such topic!"));
        assert!(wrong.contains("topic"), "{wrong}");
        assert!(refused(ScheduleBuilder::new("a b", "every 1m").call("https://x.example/")).contains("a b"));
    }

    #[test]
    fn an_interval_from_its_start_needs_none_yet() {
        let every = ScheduleBuilder::new("often", "every 90s from start").task("q", "k").build().unwrap();
        assert_eq!(every.start_ms, None);
    }

    #[test]
    fn a_payload_that_is_no_json_is_refused() {
        let wrong = std::collections::BTreeMap::from([((1, 2), 3)]);
        let wrong = refused(ScheduleBuilder::new("x", "every 1m").task("q", "k").payload(&wrong));
        assert!(wrong.contains("payload"), "{wrong}");
    }
}

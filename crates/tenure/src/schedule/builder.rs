//! Builder of schedule definitions.

use std::time::Duration;

use serde::Serialize;
use tenure_core::Name;
use tenure_core::port::{NewTask, RawJson};
use tenure_core::rules::schedule::{
    DstPolicy, MisfirePolicy, OverlapPolicy, ScheduleDefinition, ScheduleExpression, ScheduleTarget, Zone,
};

use crate::Error;

/// Definition of a schedule: a recurrence rule and a target. Errors are reported when it is set or
/// [built](Self::build).
///
/// ```
/// use serde::Serialize;
/// use tenure::ScheduleBuilder;
/// use tenure::rules::schedule::{MisfirePolicy, OverlapPolicy};
///
/// #[derive(Serialize)]
/// struct Report {
///     of: &'static str,
/// }
///
/// # fn main() -> Result<(), tenure::Error> {
/// let nightly = ScheduleBuilder::new("nightly", "30 2 * * MON-FRI")
///     .time_zone("Europe/Berlin")
///     .misfire_policy(MisfirePolicy::Within { grace_ms: 2 * 3_600_000 })
///     .overlap_policy(OverlapPolicy::Skip)
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
#[must_use = "the schedule takes effect when it is set"]
pub struct ScheduleBuilder {
    pub(super) name: String,
    expression: String,
    time_zone: Option<String>,
    start_at_ms: Option<i64>,
    end_at_ms: Option<i64>,
    jitter: Duration,
    dst: DstPolicy,
    misfire_policy: MisfirePolicy,
    overlap_policy: OverlapPolicy,
    payload: Result<RawJson, String>,
    target: Option<TargetBuilder>,
}

/// The target of a schedule as given.
#[derive(Clone, Debug)]
enum TargetBuilder {
    Event { topic: String, key: Option<String> },
    Task { queue: String, task: Box<NewTask> },
    Webhook { url: String },
}

impl ScheduleBuilder {
    /// Starts a definition. `expression` is a cron expression or an interval such as `every 90s`.
    pub fn new(name: impl Into<String>, expression: impl Into<String>) -> Self {
        ScheduleBuilder {
            name: name.into(),
            expression: expression.into(),
            time_zone: None,
            start_at_ms: None,
            end_at_ms: None,
            jitter: Duration::ZERO,
            dst: DstPolicy::default(),
            misfire_policy: MisfirePolicy::default(),
            overlap_policy: OverlapPolicy::default(),
            payload: Ok(RawJson::default()),
            target: None,
        }
    }

    /// Time zone by IANA name; UTC unless set.
    pub fn time_zone(mut self, time_zone: impl Into<String>) -> Self {
        self.time_zone = Some(time_zone.into());
        self
    }

    /// Start: no tick before this instant, in milliseconds since 1970.
    pub fn start_at_ms(mut self, start_at_ms: i64) -> Self {
        self.start_at_ms = Some(start_at_ms);
        self
    }

    /// End: no tick at or after this instant, in milliseconds since 1970.
    pub fn end_at_ms(mut self, end_at_ms: i64) -> Self {
        self.end_at_ms = Some(end_at_ms);
        self
    }

    /// Delays each tick by up to this duration to spread load. The delay of a tick is deterministic.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the policies for daylight saving time changes.
    pub fn dst(mut self, dst: DstPolicy) -> Self {
        self.dst = dst;
        self
    }

    /// Sets the misfire policy; one tick fires for all missed ones unless set.
    pub fn misfire_policy(mut self, misfire_policy: MisfirePolicy) -> Self {
        self.misfire_policy = misfire_policy;
        self
    }

    /// Sets the overlap policy; a tick runs beside unfinished ones unless set.
    pub fn overlap_policy(mut self, overlap_policy: OverlapPolicy) -> Self {
        self.overlap_policy = overlap_policy;
        self
    }

    /// Sets the payload of the events, tasks and webhooks.
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        self.payload = RawJson::of(payload).map_err(|error| error.to_string());
        self
    }

    /// Target: publish an event to this topic of the namespace, with the name of the schedule as key.
    pub fn event(mut self, topic: impl Into<String>) -> Self {
        self.target = Some(TargetBuilder::Event { topic: topic.into(), key: None });
        self
    }

    /// Target: publish an event to this topic, with this key.
    pub fn event_with_key(mut self, topic: impl Into<String>, key: impl Into<String>) -> Self {
        self.target = Some(TargetBuilder::Event { topic: topic.into(), key: Some(key.into()) });
        self
    }

    /// Target: submit a task of this kind to a queue of the namespace.
    pub fn task(self, queue: impl Into<String>, kind: impl Into<String>) -> Self {
        self.task_template(queue, NewTask::new(kind))
    }

    /// Target: submit a task like this one. The schedule sets its payload and idempotency key.
    pub fn task_template(mut self, queue: impl Into<String>, task: NewTask) -> Self {
        self.target = Some(TargetBuilder::Task { queue: queue.into(), task: Box::new(task) });
        self
    }

    /// Target: call this URL with POST. A Tenure server sends the request; see `tenure serve`.
    pub fn webhook(mut self, url: impl Into<String>) -> Self {
        self.target = Some(TargetBuilder::Webhook { url: url.into() });
        self
    }

    /// Validates the definition and returns it.
    pub fn build(self) -> Result<ScheduleDefinition, Error> {
        let name = self.name.clone();
        self.checked().map_err(|problem| Error::Schedule { name, problem })
    }

    fn checked(self) -> Result<ScheduleDefinition, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let named = |what: &str, name: String| {
            name.parse::<Name>().map_err(|error| format!("{what} {name:?}: {error}"))
        };
        let expression: ScheduleExpression = self.expression.parse().map_err(|error| text(&error))?;
        let target = match self.target {
            Some(TargetBuilder::Event { topic, key }) => {
                ScheduleTarget::Event { topic: named("topic", topic)?, key }
            }
            Some(TargetBuilder::Task { queue, task }) => {
                ScheduleTarget::Task { queue: named("queue", queue)?, task }
            }
            Some(TargetBuilder::Webhook { url }) => ScheduleTarget::Webhook { url },
            None => {
                return Err("no target; set one with `.event(…)`, `.task(…)` or `.webhook(…)`".into());
            }
        };
        let mut definition =
            ScheduleDefinition::new(self.name.parse().map_err(|error| text(&error))?, expression, target);
        if let Some(time_zone) = self.time_zone {
            definition.time_zone = time_zone.parse::<Zone>().map_err(|error| text(&error))?;
        }
        definition.start_at_ms = self.start_at_ms;
        definition.end_at_ms = self.end_at_ms;
        definition.jitter_ms = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        definition.dst = self.dst;
        definition.misfire_policy = self.misfire_policy;
        definition.overlap_policy = self.overlap_policy;
        definition.payload =
            self.payload.map_err(|error| format!("the payload cannot be serialized as JSON: {error}"))?;
        // An interval that counts from the start of the schedule gets its start from the store.
        definition.clone().started(0).check().map_err(|error| text(&error))?;
        Ok(definition)
    }
}

impl TryFrom<ScheduleBuilder> for ScheduleDefinition {
    type Error = Error;

    fn try_from(builder: ScheduleBuilder) -> Result<ScheduleDefinition, Error> {
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
    fn errors_name_the_schedule_and_a_remedy() {
        let fine = ScheduleBuilder::new("nightly", "0 2 * * *").event("reports");
        assert!(fine.clone().build().is_ok());
        assert!(fine.clone().overlap_policy(OverlapPolicy::Skip).build().is_err());
        let wrong = refused(ScheduleBuilder::new("nightly", "0 2 * * *"));
        assert!(wrong.contains("nightly") && wrong.contains(".event("), "{wrong}");
        let wrong = refused(ScheduleBuilder::new("nightly", "0 25 * * *").event("reports"));
        assert!(wrong.contains("25"), "{wrong}");
        let wrong = refused(fine.clone().time_zone("Europe/Belrin"));
        assert!(wrong.contains("did you mean Europe/Berlin"), "{wrong}");
        let wrong = refused(fine.event("no such topic!"));
        assert!(wrong.contains("topic"), "{wrong}");
        assert!(
            refused(ScheduleBuilder::new("a b", "every 1m").webhook("https://x.example/")).contains("a b")
        );
    }

    #[test]
    fn an_interval_from_start_needs_no_start_instant() {
        let every = ScheduleBuilder::new("often", "every 90s from start").task("q", "k").build().unwrap();
        assert_eq!(every.start_at_ms, None);
    }

    #[test]
    fn a_payload_that_cannot_be_serialized_is_rejected() {
        let wrong = std::collections::BTreeMap::from([((1, 2), 3)]);
        let wrong = refused(ScheduleBuilder::new("x", "every 1m").task("q", "k").payload(&wrong));
        assert!(wrong.contains("payload"), "{wrong}");
    }
}

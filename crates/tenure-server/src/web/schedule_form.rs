//! The fields of the schedule form, and their validation. Validation returns all errors at once.

use serde::Deserialize;
use tenure::Name;
use tenure::port::{NewTask, RawJson, ScheduleView};
use tenure_core::rules::schedule::{
    DstGapPolicy, DstOverlapPolicy, DstPolicy, JITTER_MAX_MS, MisfirePolicy, MisfirePolicyError,
    OverlapPolicy, ScheduleDefinition, ScheduleExpression, ScheduleExpressionError, ScheduleTarget, Zone,
};

use super::format;
use super::local_time::{LocalTime, parse};
use crate::api::PutScheduleRequest;
use crate::problem::Problem;

/// The schedule form.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ScheduleForm {
    /// `preview` renders the preview and saves nothing.
    pub(super) step: String,
    /// The version of the schedule that the form showed.
    pub(super) version: u64,
    pub(super) name: String,
    pub(super) expression: String,
    pub(super) time_zone: String,
    pub(super) start_at: String,
    pub(super) end_at: String,
    pub(super) jitter: String,
    pub(super) misfire_policy: String,
    pub(super) cap: String,
    pub(super) grace: String,
    pub(super) dst_gap: String,
    pub(super) dst_overlap: String,
    pub(super) overlap_policy: String,
    pub(super) target: String,
    pub(super) topic: String,
    pub(super) key: String,
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) priority: String,
    pub(super) max_attempts: String,
    pub(super) url: String,
    pub(super) secret: String,
    pub(super) rotate_secret: Option<String>,
    pub(super) payload: String,
}

impl Default for ScheduleForm {
    /// An empty form with default values.
    fn default() -> ScheduleForm {
        let (empty, usual) = (String::new, NewTask::default());
        ScheduleForm {
            step: empty(),
            version: 0,
            name: empty(),
            expression: empty(),
            time_zone: "UTC".into(),
            start_at: empty(),
            end_at: empty(),
            jitter: "0s".into(),
            misfire_policy: "fire_once".into(),
            cap: "100".into(),
            grace: "15m".into(),
            dst_gap: empty(),
            dst_overlap: empty(),
            overlap_policy: "allow".into(),
            target: "task".into(),
            topic: empty(),
            key: empty(),
            queue: empty(),
            kind: empty(),
            priority: usual.priority.to_string(),
            max_attempts: usual.max_attempts.to_string(),
            url: empty(),
            secret: empty(),
            rotate_secret: None,
            payload: empty(),
        }
    }
}

/// An error of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldError {
    pub(super) field: &'static str,
    pub(super) message: String,
    /// The entered text with a marker below the error.
    pub(super) mark: Option<String>,
}

impl FieldError {
    pub(super) fn new(field: &'static str, message: impl Into<String>) -> FieldError {
        FieldError { field, message: message.into(), mark: None }
    }
}

/// Map a field of the API to a field of the form.
fn field_of(field: &str) -> &'static str {
    match field {
        "expression" => "expression",
        "time_zone" => "time_zone",
        "name" | "schedule" | "if_version" => "name",
        "start_at_ms" => "start_at",
        "end_at_ms" => "end_at",
        "jitter_ms" => "jitter",
        "misfire_policy" => "misfire_policy",
        "overlap_policy" => "overlap_policy",
        "payload" => "payload",
        "secret" | "rotate_secret" => "secret",
        "target.event.topic" => "topic",
        "target.event.key" => "key",
        "target.webhook.url" | "url" => "url",
        field if field.starts_with("target.task") => "queue",
        _ => "expression",
    }
}

/// A problem of the API as an error of a field.
pub(super) fn field_error(problem: &Problem) -> FieldError {
    let field = problem.field.as_deref().map_or("expression", field_of);
    let remedy = problem.remedy.as_deref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
    FieldError::new(field, format!("{}{remedy}", problem.detail))
}

fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// Normalize the CRLF line ends of a text area.
fn plain(text: &str) -> String {
    text.replace("\r\n", "\n").trim().to_owned()
}

impl ScheduleForm {
    /// The form of a stored schedule.
    pub(super) fn of(view: &ScheduleView) -> ScheduleForm {
        let definition = &view.definition;
        let instant = |at: Option<i64>| {
            at.map(|at| LocalTime::of(&definition.time_zone, at).field()).unwrap_or_default()
        };
        let (misfire_policy, argument) = misfire_parts(definition.misfire_policy);
        let mut form = ScheduleForm {
            version: view.version,
            name: definition.name.to_string(),
            expression: definition.expression.to_string(),
            time_zone: definition.time_zone.to_string(),
            start_at: instant(definition.start_at_ms),
            end_at: instant(definition.end_at_ms),
            jitter: format::duration(definition.jitter_ms),
            misfire_policy: misfire_policy.into(),
            dst_gap: definition.dst.gap.map(dst_gap_word).unwrap_or_default().into(),
            dst_overlap: definition.dst.overlap.map(dst_overlap_word).unwrap_or_default().into(),
            overlap_policy: overlap_policy_word(definition.overlap_policy).into(),
            payload: definition.payload.as_str().into(),
            ..ScheduleForm::default()
        };
        match argument {
            Some(cap) if misfire_policy == "fire_all" => form.cap = cap,
            Some(grace) => form.grace = grace,
            None => {}
        }
        match &definition.target {
            ScheduleTarget::Event { topic, key } => {
                form.target = "event".into();
                form.topic = topic.to_string();
                form.key = key.clone().unwrap_or_default();
            }
            ScheduleTarget::Task { queue, task } => {
                form.target = "task".into();
                form.queue = queue.to_string();
                form.kind = task.kind.clone();
                form.priority = task.priority.to_string();
                form.max_attempts = task.max_attempts.to_string();
            }
            ScheduleTarget::Webhook { url } => {
                form.target = "webhook".into();
                form.url = url.clone();
            }
            _ => {}
        }
        form
    }

    /// The form with placeholders in empty required fields, for the preview of an unfinished form.
    pub(super) fn filled_in(&self) -> ScheduleForm {
        let mut filled = self.clone();
        if filled.name.trim().is_empty() {
            filled.name = "preview".into();
        }
        let missing = match filled.target.as_str() {
            "task" => filled.queue.trim().is_empty(),
            "event" => filled.topic.trim().is_empty(),
            "webhook" => filled.url.trim().is_empty(),
            _ => false,
        };
        if missing {
            filled.target = "task".into();
            filled.queue = "preview".into();
        }
        filled
    }

    /// The form with only the fields that determine the ticks; the others have default values.
    pub(super) fn only_times(&self) -> ScheduleForm {
        ScheduleForm {
            version: self.version,
            name: "preview".into(),
            expression: self.expression.clone(),
            time_zone: self.time_zone.clone(),
            start_at: self.start_at.clone(),
            end_at: self.end_at.clone(),
            jitter: self.jitter.clone(),
            dst_gap: self.dst_gap.clone(),
            dst_overlap: self.dst_overlap.clone(),
            queue: "preview".into(),
            ..ScheduleForm::default()
        }
    }

    /// Whether the expression is empty.
    pub(super) fn is_blank(&self) -> bool {
        self.expression.trim().is_empty()
    }

    /// Validate the form. Returns all errors at once.
    pub(super) fn request(
        &self,
        stored: Option<&ScheduleView>,
    ) -> Result<PutScheduleRequest, Vec<FieldError>> {
        let mut errors = Vec::new();
        let expression = collect(&mut errors, self.expression());
        let time_zone = collect(
            &mut errors,
            self.time_zone
                .trim()
                .parse::<Zone>()
                .map_err(|error| FieldError::new("time_zone", error.to_string())),
        );
        let times = time_zone.as_ref().map(|time_zone| {
            let known = stored.map(|view| &view.definition);
            let start_at = collect(
                &mut errors,
                instant("start_at", &self.start_at, time_zone, known, |it| it.start_at_ms),
            );
            let end_at =
                collect(&mut errors, instant("end_at", &self.end_at, time_zone, known, |it| it.end_at_ms));
            (start_at.flatten(), end_at.flatten())
        });
        let jitter = collect(&mut errors, self.jitter());
        let dst = collect(&mut errors, self.dst());
        let misfire_policy = collect(&mut errors, self.misfire_policy());
        let overlap_policy = collect(&mut errors, self.overlap_policy());
        let target = collect(&mut errors, self.target(stored.map(|view| &view.definition.target)));
        let payload = collect(&mut errors, self.payload(stored.map(|view| &view.definition.payload)));
        let all =
            (expression, time_zone, times, jitter, dst, misfire_policy, overlap_policy, target, payload);
        let (
            Some(expression),
            Some(time_zone),
            Some((start_at_ms, end_at_ms)),
            Some(jitter_ms),
            Some(dst),
            Some(misfire_policy),
            Some(overlap_policy),
            Some(target),
            Some(payload),
        ) = all
        else {
            return Err(errors);
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        let is_webhook = matches!(target, ScheduleTarget::Webhook { .. });
        let rotate_secret = is_webhook && self.rotate_secret.is_some();
        let unsigned = stored.is_some_and(|view| {
            matches!(view.definition.target, ScheduleTarget::Webhook { .. }) && !view.webhook_signed
        });
        Ok(PutScheduleRequest {
            name: None,
            expression,
            time_zone,
            start_at_ms,
            end_at_ms,
            jitter_ms,
            dst,
            misfire_policy,
            overlap_policy,
            target,
            payload,
            // An empty field keeps the current secret.
            secret: some(&self.secret).filter(|_| is_webhook).map(Into::into),
            rotate_secret,
            // An unsigned webhook remains unsigned unless the secret is rotated.
            webhook_unsigned: unsigned && !rotate_secret,
            source: stored.and_then(|view| view.source.clone()),
            on_behalf_of: None,
        })
    }

    fn expression(&self) -> Result<ScheduleExpression, FieldError> {
        self.expression.trim().parse().map_err(|error: ScheduleExpressionError| {
            let message = match &error {
                ScheduleExpressionError::Cron(error) => error.problem.clone(),
                ScheduleExpressionError::Interval(error) => error.problem.clone(),
                other => other.to_string(),
            };
            let position = error.position().saturating_sub(1);
            let line: String = self.expression.trim().chars().take(100).collect();
            let mark = (position <= 100).then(|| format!("{line}\n{}^", " ".repeat(position)));
            FieldError { field: "expression", message, mark }
        })
    }

    fn jitter(&self) -> Result<u64, FieldError> {
        let ms = some(&self.jitter).map_or(Some(0), format::milliseconds);
        ms.filter(|ms| *ms <= JITTER_MAX_MS).ok_or_else(|| {
            FieldError::new(
                "jitter",
                format!("Invalid jitter {:?}; use up to one day, such as 30s or 5m", self.jitter),
            )
        })
    }

    fn dst(&self) -> Result<DstPolicy, FieldError> {
        let gap = match self.dst_gap.as_str() {
            "" => None,
            "shift" => Some(DstGapPolicy::Shift),
            "skip" => Some(DstGapPolicy::Skip),
            other => return Err(FieldError::new("dst_gap", format!("Invalid DST gap policy: {other:?}"))),
        };
        let overlap = match self.dst_overlap.as_str() {
            "" => None,
            "first" => Some(DstOverlapPolicy::First),
            "both" => Some(DstOverlapPolicy::Both),
            other => {
                return Err(FieldError::new("dst_overlap", format!("Invalid DST overlap policy: {other:?}")));
            }
        };
        Ok(DstPolicy { gap, overlap })
    }

    fn misfire_policy(&self) -> Result<MisfirePolicy, FieldError> {
        let (field, written) = match self.misfire_policy.as_str() {
            "fire_all" => ("cap", format!("fire_all({})", self.cap.trim())),
            "within" => ("grace", format!("within({})", self.grace.trim())),
            other => ("misfire_policy", other.to_owned()),
        };
        written.parse().map_err(|error: MisfirePolicyError| FieldError::new(field, error.to_string()))
    }

    fn overlap_policy(&self) -> Result<OverlapPolicy, FieldError> {
        // Events have no duration, so they cannot overlap.
        if self.target == "event" {
            return Ok(OverlapPolicy::Allow);
        }
        match self.overlap_policy.as_str() {
            "allow" => Ok(OverlapPolicy::Allow),
            "skip" => Ok(OverlapPolicy::Skip),
            "queue" => Ok(OverlapPolicy::Queue),
            other => Err(FieldError::new("overlap_policy", format!("Invalid overlap policy: {other:?}"))),
        }
    }

    fn target(&self, stored: Option<&ScheduleTarget>) -> Result<ScheduleTarget, FieldError> {
        let name = |field: &'static str, text: &str| {
            text.trim().parse::<Name>().map_err(|error| FieldError::new(field, error.to_string()))
        };
        match self.target.as_str() {
            "event" => Ok(ScheduleTarget::Event {
                topic: name("topic", &self.topic)?,
                key: some(&self.key).map(Into::into),
            }),
            "task" => {
                let queue = name("queue", &self.queue)?;
                // Fields that the form lacks keep their stored values.
                let kept = match stored {
                    Some(ScheduleTarget::Task { task, .. }) => task.as_ref().clone(),
                    _ => NewTask::default(),
                };
                let task = NewTask {
                    kind: self.kind.trim().into(),
                    priority: number("priority", &self.priority)?,
                    max_attempts: number("max_attempts", &self.max_attempts)?,
                    ..kept
                };
                Ok(ScheduleTarget::Task { queue, task: Box::new(task) })
            }
            "webhook" => Ok(ScheduleTarget::Webhook { url: self.url.trim().into() }),
            other => Err(FieldError::new("queue", format!("Invalid target: {other:?}"))),
        }
    }

    fn payload(&self, stored: Option<&RawJson>) -> Result<RawJson, FieldError> {
        let text = plain(&self.payload);
        match stored {
            Some(stored) if plain(stored.as_str()) == text => Ok(stored.clone()),
            _ if text.is_empty() => Ok(RawJson::default()),
            _ => text.parse().map_err(|error| FieldError::new("payload", format!("Invalid JSON: {error}"))),
        }
    }
}

/// Collect an error and continue.
fn collect<T>(errors: &mut Vec<FieldError>, read: Result<T, FieldError>) -> Option<T> {
    read.map_err(|one| errors.push(one)).ok()
}

fn number<T: std::str::FromStr>(field: &'static str, text: &str) -> Result<T, FieldError> {
    text.trim().parse().map_err(|_| FieldError::new(field, format!("Invalid number: {text:?}")))
}

/// Parse a date and time. An unchanged value keeps its stored instant, even in a DST overlap.
fn instant(
    field: &'static str,
    text: &str,
    time_zone: &Zone,
    stored: Option<&ScheduleDefinition>,
    stored_value: fn(&ScheduleDefinition) -> Option<i64>,
) -> Result<Option<i64>, FieldError> {
    let Some(text) = some(text) else { return Ok(None) };
    let known = stored.filter(|stored| stored.time_zone == *time_zone).and_then(stored_value);
    if let Some(at) = known.filter(|at| LocalTime::of(time_zone, *at).field() == text) {
        return Ok(Some(at));
    }
    let invalid = || FieldError::new(field, format!("Invalid date and time {text:?}; use 2026-11-15T02:00"));
    parse(time_zone, text).map(Some).ok_or_else(invalid)
}

fn misfire_parts(policy: MisfirePolicy) -> (&'static str, Option<String>) {
    let written = policy.to_string();
    let argument = written.split_once('(').map(|(_, rest)| rest.trim_end_matches(')').to_owned());
    match policy {
        MisfirePolicy::Skip => ("skip", None),
        MisfirePolicy::FireOnce => ("fire_once", None),
        MisfirePolicy::FireAll { .. } => ("fire_all", argument),
        MisfirePolicy::Within { .. } => ("within", argument),
    }
}

fn dst_gap_word(gap: DstGapPolicy) -> &'static str {
    match gap {
        DstGapPolicy::Shift => "shift",
        DstGapPolicy::Skip => "skip",
    }
}

fn dst_overlap_word(overlap: DstOverlapPolicy) -> &'static str {
    match overlap {
        DstOverlapPolicy::First => "first",
        DstOverlapPolicy::Both => "both",
    }
}

fn overlap_policy_word(policy: OverlapPolicy) -> &'static str {
    match policy {
        OverlapPolicy::Allow => "allow",
        OverlapPolicy::Skip => "skip",
        OverlapPolicy::Queue => "queue",
    }
}

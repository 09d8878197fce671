//! What somebody has written into the form of a schedule, and what they wish for by it: all that is wrong with it at once.

use serde::Deserialize;
use tenure::Name;
use tenure::port::{Json, NewTask, ScheduleView};
use tenure_core::schedule::{
    Definition, Dst, Fold, Gap, JITTER_MAX_MS, Misfire, MisfireError, Overlap, Target, When, WhenError, Zone,
};

use super::schedule_clock::{Local, parse};
use super::words;
use crate::api::ScheduleWish;
use crate::problem::Problem;

/// The form.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wanted {
    /// `check`: only say what it would mean.
    pub(super) step: String,
    /// The version that whoever edits it saw.
    pub(super) version: u64,
    pub(super) name: String,
    pub(super) when: String,
    pub(super) zone: String,
    pub(super) start: String,
    pub(super) end: String,
    pub(super) jitter: String,
    pub(super) misfire: String,
    pub(super) cap: String,
    pub(super) grace: String,
    pub(super) gap: String,
    pub(super) fold: String,
    pub(super) overlap: String,
    pub(super) target: String,
    pub(super) topic: String,
    pub(super) key: String,
    pub(super) queue: String,
    pub(super) kind: String,
    pub(super) priority: String,
    pub(super) attempts: String,
    pub(super) url: String,
    pub(super) secret: String,
    pub(super) rotate: Option<String>,
    pub(super) payload: String,
}

impl Default for Wanted {
    /// A form that nobody has written in.
    fn default() -> Wanted {
        let (empty, usual) = (String::new, NewTask::default());
        Wanted {
            step: empty(),
            version: 0,
            name: empty(),
            when: empty(),
            zone: "UTC".into(),
            start: empty(),
            end: empty(),
            jitter: "0s".into(),
            misfire: "fire_once".into(),
            cap: "100".into(),
            grace: "15m".into(),
            gap: empty(),
            fold: empty(),
            overlap: "allow".into(),
            target: "task".into(),
            topic: empty(),
            key: empty(),
            queue: empty(),
            kind: empty(),
            priority: usual.priority.to_string(),
            attempts: usual.max_attempts.to_string(),
            url: empty(),
            secret: empty(),
            rotate: None,
            payload: empty(),
        }
    }
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) field: &'static str,
    pub(super) says: String,
    /// Where, drawn below what was written.
    pub(super) mark: Option<String>,
}

impl Wrong {
    pub(super) fn new(field: &'static str, says: impl Into<String>) -> Wrong {
        Wrong { field, says: says.into(), mark: None }
    }
}

/// What a field of the API is called in the form.
fn field_of(field: &str) -> &'static str {
    match field {
        "when" => "when",
        "name" | "schedule" | "expect" => "name",
        "start_ms" => "start",
        "end_ms" => "end",
        "jitter_ms" => "jitter",
        "misfire" => "misfire",
        "overlap" => "overlap",
        "payload" => "payload",
        "secret" | "rotate" => "secret",
        "target.event.topic" => "topic",
        "target.event.key" => "key",
        "target.call.url" | "url" => "url",
        field if field.starts_with("target.task") => "queue",
        _ => "when",
    }
}

/// What the API has against it.
pub(super) fn told(problem: &Problem) -> Wrong {
    let field = problem.field.as_deref().map_or("when", field_of);
    let remedy = problem.remedy.as_deref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
    Wrong::new(field, format!("{}{remedy}", problem.detail))
}

fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

/// What a text area gives has the line ends of another century.
fn plain(text: &str) -> String {
    text.replace("\r\n", "\n").trim().to_owned()
}

impl Wanted {
    /// The form of a schedule as it is.
    pub(super) fn of(view: &ScheduleView) -> Wanted {
        let definition = &view.definition;
        let instant =
            |at: Option<i64>| at.map(|at| Local::of(&definition.zone, at).field()).unwrap_or_default();
        let (misfire, argument) = misfire_of(definition.misfire);
        let mut wanted = Wanted {
            version: view.version,
            name: definition.name.to_string(),
            when: definition.when.to_string(),
            zone: definition.zone.to_string(),
            start: instant(definition.start_ms),
            end: instant(definition.end_ms),
            jitter: words::duration(definition.jitter_ms),
            misfire: misfire.into(),
            gap: definition.dst.gap.map(gap_word).unwrap_or_default().into(),
            fold: definition.dst.overlap.map(fold_word).unwrap_or_default().into(),
            overlap: overlap_word(definition.overlap).into(),
            payload: definition.payload.as_str().into(),
            ..Wanted::default()
        };
        match argument {
            Some(cap) if misfire == "fire_all" => wanted.cap = cap,
            Some(grace) => wanted.grace = grace,
            None => {}
        }
        match &definition.target {
            Target::Event { topic, key } => {
                wanted.target = "event".into();
                wanted.topic = topic.to_string();
                wanted.key = key.clone().unwrap_or_default();
            }
            Target::Task { queue, task } => {
                wanted.target = "task".into();
                wanted.queue = queue.to_string();
                wanted.kind = task.kind.clone();
                wanted.priority = task.priority.to_string();
                wanted.attempts = task.max_attempts.to_string();
            }
            Target::Call { url } => {
                wanted.target = "call".into();
                wanted.url = url.clone();
            }
            _ => {}
        }
        wanted
    }

    /// The form with something in the fields that must not be empty, as far as they are: for a preview of what is written so far.
    pub(super) fn filled_in(&self) -> Wanted {
        let mut filled = self.clone();
        if filled.name.trim().is_empty() {
            filled.name = "preview".into();
        }
        let missing = match filled.target.as_str() {
            "task" => filled.queue.trim().is_empty(),
            "event" => filled.topic.trim().is_empty(),
            "call" => filled.url.trim().is_empty(),
            _ => false,
        };
        if missing {
            filled.target = "task".into();
            filled.queue = "preview".into();
        }
        filled
    }

    /// Only when it fires: all else as it is usually.
    pub(super) fn only_times(&self) -> Wanted {
        Wanted {
            version: self.version,
            name: "preview".into(),
            when: self.when.clone(),
            zone: self.zone.clone(),
            start: self.start.clone(),
            end: self.end.clone(),
            jitter: self.jitter.clone(),
            gap: self.gap.clone(),
            fold: self.fold.clone(),
            queue: "preview".into(),
            ..Wanted::default()
        }
    }

    /// Whether nobody has written when.
    pub(super) fn is_blank(&self) -> bool {
        self.when.trim().is_empty()
    }

    /// What is wished for; all that is wrong with it at once.
    pub(super) fn wish(&self, stored: Option<&ScheduleView>) -> Result<ScheduleWish, Vec<Wrong>> {
        let mut wrong = Vec::new();
        let when = note(&mut wrong, self.when());
        let zone = note(
            &mut wrong,
            self.zone.trim().parse::<Zone>().map_err(|error| Wrong::new("zone", error.to_string())),
        );
        let times = zone.as_ref().map(|zone| {
            let known = stored.map(|view| &view.definition);
            let start = note(&mut wrong, instant("start", &self.start, zone, known, |it| it.start_ms));
            let end = note(&mut wrong, instant("end", &self.end, zone, known, |it| it.end_ms));
            (start.flatten(), end.flatten())
        });
        let jitter = note(&mut wrong, self.jitter());
        let dst = note(&mut wrong, self.dst());
        let misfire = note(&mut wrong, self.misfire());
        let overlap = note(&mut wrong, self.overlap());
        let target = note(&mut wrong, self.target(stored.map(|view| &view.definition.target)));
        let payload = note(&mut wrong, self.payload(stored.map(|view| &view.definition.payload)));
        let all = (when, zone, times, jitter, dst, misfire, overlap, target, payload);
        let (
            Some(when),
            Some(zone),
            Some((start_ms, end_ms)),
            Some(jitter_ms),
            Some(dst),
            Some(misfire),
            Some(overlap),
            Some(target),
            Some(payload),
        ) = all
        else {
            return Err(wrong);
        };
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let is_call = matches!(target, Target::Call { .. });
        let rotate = is_call && self.rotate.is_some();
        let unsigned =
            stored.is_some_and(|view| matches!(view.definition.target, Target::Call { .. }) && !view.signed);
        Ok(ScheduleWish {
            name: None,
            when,
            zone,
            start_ms,
            end_ms,
            jitter_ms,
            dst,
            misfire,
            overlap,
            target,
            payload,
            // Left empty, it stays as it is.
            secret: some(&self.secret).filter(|_| is_call).map(Into::into),
            rotate,
            // One that is not signed stays so, unless somebody wants it otherwise.
            unsigned: unsigned && !rotate,
            source: stored.and_then(|view| view.source.clone()),
            by: None,
        })
    }

    fn when(&self) -> Result<When, Wrong> {
        self.when.trim().parse().map_err(|error: WhenError| {
            let says = match &error {
                WhenError::Cron(error) => error.problem.clone(),
                WhenError::Every(error) => error.problem.clone(),
                other => other.to_string(),
            };
            let place = error.position().saturating_sub(1);
            let line: String = self.when.trim().chars().take(100).collect();
            let mark = (place <= 100).then(|| format!("{line}\n{}^", " ".repeat(place)));
            Wrong { field: "when", says, mark }
        })
    }

    fn jitter(&self) -> Result<u64, Wrong> {
        let ms = some(&self.jitter).map_or(Some(0), words::milliseconds);
        ms.filter(|ms| *ms <= JITTER_MAX_MS).ok_or_else(|| {
            Wrong::new(
                "jitter",
                format!("{:?} is no span of time up to a day; write 30s or 5min", self.jitter),
            )
        })
    }

    fn dst(&self) -> Result<Dst, Wrong> {
        let gap = match self.gap.as_str() {
            "" => None,
            "shift" => Some(Gap::Shift),
            "skip" => Some(Gap::Skip),
            other => return Err(Wrong::new("gap", format!("{other:?} is nothing that a gap can mean"))),
        };
        let overlap = match self.fold.as_str() {
            "" => None,
            "first" => Some(Fold::First),
            "both" => Some(Fold::Both),
            other => {
                return Err(Wrong::new("fold", format!("{other:?} is nothing that an overlap can mean")));
            }
        };
        Ok(Dst { gap, overlap })
    }

    fn misfire(&self) -> Result<Misfire, Wrong> {
        let (field, written) = match self.misfire.as_str() {
            "fire_all" => ("cap", format!("fire_all({})", self.cap.trim())),
            "within" => ("grace", format!("within({})", self.grace.trim())),
            other => ("misfire", other.to_owned()),
        };
        written.parse().map_err(|error: MisfireError| Wrong::new(field, error.to_string()))
    }

    fn overlap(&self) -> Result<Overlap, Wrong> {
        // An event has no end that anybody could wait for.
        if self.target == "event" {
            return Ok(Overlap::Allow);
        }
        match self.overlap.as_str() {
            "allow" => Ok(Overlap::Allow),
            "skip" => Ok(Overlap::Skip),
            "queue" => Ok(Overlap::Queue),
            other => Err(Wrong::new("overlap", format!("{other:?} is nothing that can become of a tick"))),
        }
    }

    fn target(&self, stored: Option<&Target>) -> Result<Target, Wrong> {
        let name = |field: &'static str, text: &str| {
            text.trim().parse::<Name>().map_err(|error| Wrong::new(field, error.to_string()))
        };
        match self.target.as_str() {
            "event" => {
                Ok(Target::Event { topic: name("topic", &self.topic)?, key: some(&self.key).map(Into::into) })
            }
            "task" => {
                let queue = name("queue", &self.queue)?;
                // What the form does not ask for stays as it is.
                let kept = match stored {
                    Some(Target::Task { task, .. }) => task.as_ref().clone(),
                    _ => NewTask::default(),
                };
                let task = NewTask {
                    kind: self.kind.trim().into(),
                    priority: number("priority", &self.priority)?,
                    max_attempts: number("attempts", &self.attempts)?,
                    ..kept
                };
                Ok(Target::Task { queue, task: Box::new(task) })
            }
            "call" => Ok(Target::Call { url: self.url.trim().into() }),
            other => Err(Wrong::new("queue", format!("{other:?} is nothing that a tick can do"))),
        }
    }

    fn payload(&self, stored: Option<&Json>) -> Result<Json, Wrong> {
        let text = plain(&self.payload);
        match stored {
            Some(stored) if plain(stored.as_str()) == text => Ok(stored.clone()),
            _ if text.is_empty() => Ok(Json::default()),
            _ => text.parse().map_err(|error| Wrong::new("payload", format!("this is no JSON: {error}"))),
        }
    }
}

/// Keeps what is wrong, and goes on.
fn note<T>(wrong: &mut Vec<Wrong>, read: Result<T, Wrong>) -> Option<T> {
    read.map_err(|one| wrong.push(one)).ok()
}

fn number<T: std::str::FromStr>(field: &'static str, text: &str) -> Result<T, Wrong> {
    text.trim().parse().map_err(|_| Wrong::new(field, format!("{text:?} is no number that fits")))
}

/// A date with a time. One that nobody has touched stays what it is to the millisecond, also where a clock shows it twice.
fn instant(
    field: &'static str,
    text: &str,
    zone: &Zone,
    stored: Option<&Definition>,
    which: fn(&Definition) -> Option<i64>,
) -> Result<Option<i64>, Wrong> {
    let Some(text) = some(text) else { return Ok(None) };
    let known = stored.filter(|stored| stored.zone == *zone).and_then(which);
    if let Some(at) = known.filter(|at| Local::of(zone, *at).field() == text) {
        return Ok(Some(at));
    }
    let wrong = || Wrong::new(field, format!("{text:?} is no date with a time; write 2026-11-15T02:00"));
    parse(zone, text).map(Some).ok_or_else(wrong)
}

fn misfire_of(misfire: Misfire) -> (&'static str, Option<String>) {
    let written = misfire.to_string();
    let argument = written.split_once('(').map(|(_, rest)| rest.trim_end_matches(')').to_owned());
    match misfire {
        Misfire::Skip => ("skip", None),
        Misfire::FireOnce => ("fire_once", None),
        Misfire::FireAll { .. } => ("fire_all", argument),
        Misfire::Within { .. } => ("within", argument),
    }
}

fn gap_word(gap: Gap) -> &'static str {
    match gap {
        Gap::Shift => "shift",
        Gap::Skip => "skip",
    }
}

fn fold_word(fold: Fold) -> &'static str {
    match fold {
        Fold::First => "first",
        Fold::Both => "both",
    }
}

fn overlap_word(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Allow => "allow",
        Overlap::Skip => "skip",
        Overlap::Queue => "queue",
    }
}

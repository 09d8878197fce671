//! Schedule files (`schedules.toml`). Errors name the line, the schedule and the field.

mod parse;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use tenure::port::{Backoff, NewTask};
use tenure::rules::schedule::{
    DstPolicy, MisfirePolicy, OverlapPolicy, ScheduleDefinition, ScheduleDefinitionError, ScheduleExpression,
    ScheduleTarget, Zone,
};
use tenure::runtime::wall_ms;
use tenure::{Name, rules::schedule};
use toml::de::{DeTable, DeValue};

use self::parse::{FilePosition, FileReader, TableReader, file_position};
use super::define::checked_secret;
use crate::args::duration;
use crate::args::parsers::{concurrency, millis};
use crate::args::schedules::{dst_gap_policy, dst_overlap_policy, overlap_policy};
use crate::commands::signing_secret;
use crate::error::CliError;

/// Maximum size of a file.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum number of reported errors.
const MAX_ERRORS: usize = 20;

const TOP: [&str; 3] = ["source", "defaults", "schedule"];
const DEFAULTS: [&str; 5] = ["time_zone", "misfire_policy", "overlap_policy", "jitter", "dst"];
const SCHEDULE: [&str; 13] = [
    "name",
    "expression",
    "time_zone",
    "start_at",
    "end_at",
    "jitter",
    "dst",
    "misfire_policy",
    "overlap_policy",
    "payload",
    "event",
    "task",
    "webhook",
];
const TASK: [&str; 11] = [
    "queue",
    "kind",
    "priority",
    "required_tags",
    "preferred_tags",
    "allowed_workers",
    "max_wait",
    "max_run",
    "max_attempts",
    "initial_backoff",
    "concurrency_key",
];

/// A parsed schedule file.
#[derive(Debug)]
pub(super) struct ScheduleFile {
    /// File name for messages.
    pub(super) name: String,
    /// Source, if the file sets one.
    pub(super) source: Option<String>,
    pub(super) entries: Vec<ScheduleEntry>,
}

/// One schedule of a file.
#[derive(Debug)]
pub(super) struct ScheduleEntry {
    pub(super) definition: ScheduleDefinition,
    /// Signing secret of a webhook target, if the file names a secret file.
    pub(super) secret: Option<String>,
    /// Position in the file, for errors of the store.
    pub(super) place: FilePosition,
    /// Position of the target.
    pub(super) target: FilePosition,
}

/// An error in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileError {
    pub(super) place: FilePosition,
    /// Schedule name; empty outside of a schedule.
    pub(super) schedule: String,
    /// Field name; empty if the error concerns no field.
    pub(super) field: String,
    pub(super) problem: String,
}

/// Formats errors for editors: `schedules.toml:4:8: nightly: expression: …`.
pub(super) fn file_errors(file: &str, mut errors: Vec<FileError>) -> CliError {
    errors.sort_by_key(|error| error.place);
    let lines = errors.iter().take(MAX_ERRORS).map(|error| {
        let parts = [&error.schedule, &error.field, &error.problem];
        let parts: Vec<&str> =
            parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        format!("{file}:{}: {}", error.place, parts.join(": "))
    });
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if errors.len() > MAX_ERRORS {
        text += &format!("\n… and {} more", errors.len() - MAX_ERRORS);
    }
    CliError::usage(format!("{text}\nnothing was changed"))
}

/// Reads a file, or standard input (`-`).
pub(super) fn read(path: &Path) -> Result<ScheduleFile, CliError> {
    let shown = path.display().to_string();
    let failed =
        |error: std::io::Error| CliError::usage(format!("-f {shown}: cannot read the file: {error}"));
    let (name, source): (String, Box<dyn Read>) = match shown.as_str() {
        "-" => ("standard input".to_owned(), Box::new(std::io::stdin())),
        _ => (shown.clone(), Box::new(std::fs::File::open(path).map_err(failed)?)),
    };
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(CliError::usage(format!("-f {shown}: the file has more than 64 MiB; split it")));
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| CliError::usage(format!("-f {shown}: the file is not UTF-8 text: {error}")))?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    parse(&name, &text, folder).map_err(|errors| file_errors(&name, errors))
}

fn parse(name: &str, text: &str, folder: PathBuf) -> Result<ScheduleFile, Vec<FileError>> {
    let table = DeTable::parse(text).map_err(|error| {
        let place = file_position(text, error.span().map_or(0, |span| span.start));
        let problem = error.message().trim().replace('\n', ", ");
        vec![FileError { place, schedule: String::new(), field: String::new(), problem }]
    })?;
    let mut reading = FileReader { text, folder, schedule: String::new(), errors: Vec::new() };
    let table = table.into_inner();
    let top = TableReader { table: &table, under: "", at: 0, defaults: None };
    reading.unknown(&top, &TOP);
    let source = reading.text(&top, "source");
    let defaults = reading.table(&top, "defaults");
    if let Some(defaults) = &defaults {
        reading.unknown(defaults, &DEFAULTS);
    }
    let entries = reading.schedules(&top, defaults.as_ref().map(|defaults| defaults.table));
    match reading.errors.is_empty() {
        true => Ok(ScheduleFile { name: name.to_owned(), source, entries }),
        false => Err(reading.errors),
    }
}

impl FileReader<'_> {
    fn schedules(&mut self, top: &TableReader<'_>, defaults: Option<&DeTable<'_>>) -> Vec<ScheduleEntry> {
        let Some(value) = top.get("schedule") else { return Vec::new() };
        let DeValue::Array(tables) = value.get_ref() else {
            self.error(
                value.span().start,
                "schedule".to_owned(),
                "write each schedule as [[schedule]] with a name",
            );
            return Vec::new();
        };
        let (mut entries, mut seen) = (Vec::new(), BTreeMap::<Name, FilePosition>::new());
        for value in tables.iter() {
            let at = value.span().start;
            let DeValue::Table(table) = value.get_ref() else {
                self.error(at, "schedule".to_owned(), "a schedule must be a table; write it as [[schedule]]");
                continue;
            };
            let fields = TableReader { table, under: "", at, defaults };
            let named = table.get("name").and_then(|name| name.get_ref().as_str().map(str::to_owned));
            self.schedule = named.unwrap_or_else(|| "unnamed schedule".to_owned());
            let entry = self.schedule(&fields);
            if let Some(entry) = entry {
                match seen.get(&entry.definition.name) {
                    Some(first) => {
                        let problem =
                            format!("duplicate name: line {} has a schedule with this name", first.line);
                        self.error(at, "name".to_owned(), problem);
                    }
                    None => drop(seen.insert(entry.definition.name.clone(), entry.place)),
                }
                entries.push(entry);
            }
            self.schedule.clear();
        }
        entries
    }

    /// Parses a schedule. Returns `None` after an error, which is recorded.
    fn schedule(&mut self, fields: &TableReader<'_>) -> Option<ScheduleEntry> {
        self.unknown(fields, &SCHEDULE);
        let time_zone = self.parsed::<Zone>(fields, "time_zone").unwrap_or_default();
        let name = self.required::<Name>(fields, "name");
        let when = self.required::<ScheduleExpression>(fields, "expression");
        let target = self.target(fields);
        let [start_at_ms, end_at_ms] =
            ["start_at", "end_at"].map(|field| self.instant(fields, field, &time_zone));
        let jitter_ms = self.read(fields, "jitter", duration).map(millis);
        let dst = self.table(fields, "dst").map(|dst| self.dst(&TableReader { under: "dst.", ..dst }));
        let misfire = self.parsed::<MisfirePolicy>(fields, "misfire_policy");
        let overlap = self.overlap(fields, target.as_ref().map(|(target, _)| target));
        let payload = self.payload(fields);
        let ((target, secret), when, name) = (target?, when?, name?);
        let definition = ScheduleDefinition {
            time_zone,
            start_at_ms,
            end_at_ms,
            jitter_ms: jitter_ms.unwrap_or_default(),
            dst: dst.unwrap_or_default(),
            misfire_policy: misfire.unwrap_or_default(),
            overlap_policy: overlap.unwrap_or_default(),
            payload: payload.unwrap_or_default(),
            ..ScheduleDefinition::new(name, when, target)
        };
        // The store sets the start of an interval that counts from its start.
        if let Err(error) = definition.clone().started(wall_ms()).check() {
            self.definition_error(fields, &error);
        }
        let place = file_position(self.text, fields.at);
        let target = ["event", "task", "webhook"].iter().find_map(|field| fields.table.get(*field));
        let target = target.map_or(place, |target| file_position(self.text, target.span().start));
        Some(ScheduleEntry { definition, secret, place, target })
    }

    /// Records an error that concerns several fields.
    fn definition_error(&mut self, fields: &TableReader<'_>, error: &ScheduleDefinitionError) {
        let (field, problem) = match error {
            ScheduleDefinitionError::Ends { .. } => {
                ("end_at".to_owned(), "it must be after `start_at`".to_owned())
            }
            error => {
                let field = error.field().trim_start_matches("target.").replace("task.task", "task");
                let text = error.to_string().replace("`target.", "`").replace("task.task", "task");
                (field.replace("_ms", ""), text.replace("_ms`", "`"))
            }
        };
        let first = field.split('.').next().unwrap_or_default();
        let at = fields.get(first).map_or(fields.at, |value| value.span().start);
        self.error(at, field, problem);
    }

    /// Parses the target and its signing secret.
    fn target(&mut self, fields: &TableReader<'_>) -> Option<(ScheduleTarget, Option<String>)> {
        let given: Vec<_> =
            ["event", "task", "webhook"].into_iter().filter(|it| fields.table.contains_key(*it)).collect();
        match given.as_slice() {
            ["event"] => {
                self.table(fields, "event").and_then(|fields| self.event(&fields)).map(|it| (it, None))
            }
            ["task"] => self.table(fields, "task").and_then(|fields| self.task(&fields)).map(|it| (it, None)),
            ["webhook"] => self.table(fields, "webhook").and_then(|fields| self.webhook(&fields)),
            [] => {
                let problem =
                    "no target; add event = { topic = … }, task = { queue = … } or webhook = { url = … }";
                self.error(fields.at, String::new(), problem);
                None
            }
            [.., last] => {
                let at = fields.get(last).map_or(fields.at, |value| value.span().start);
                self.error(
                    at,
                    (*last).to_owned(),
                    format!("a schedule has one target; remove this one or {}", given[0]),
                );
                None
            }
        }
    }

    fn event(&mut self, fields: &TableReader<'_>) -> Option<ScheduleTarget> {
        let fields = &TableReader { under: "event.", ..*fields };
        self.unknown(fields, &["topic", "key"]);
        let (topic, key) = (self.required(fields, "topic"), self.text(fields, "key"));
        Some(ScheduleTarget::Event { topic: topic?, key })
    }

    fn task(&mut self, fields: &TableReader<'_>) -> Option<ScheduleTarget> {
        let fields = &TableReader { under: "task.", ..*fields };
        self.unknown(fields, &TASK);
        let queue = self.required(fields, "queue");
        let default = NewTask::default();
        let backoff = self.read(fields, "initial_backoff", duration).map(millis);
        let max_ms = default.backoff.max_ms;
        let concurrency = self.read(fields, "concurrency_key", concurrency);
        let [required_tags, preferred_tags, allowed_workers] =
            ["required_tags", "preferred_tags", "allowed_workers"].map(|field| self.list(fields, field));
        let task = NewTask {
            kind: self.text(fields, "kind").unwrap_or_default(),
            priority: self.number(fields, "priority").unwrap_or(default.priority),
            required_tags,
            preferred_tags,
            allowed_workers,
            max_wait_ms: self.read(fields, "max_wait", duration).map(millis),
            max_run_ms: self.read(fields, "max_run", duration).map(millis),
            max_attempts: self.number(fields, "max_attempts").unwrap_or(default.max_attempts),
            backoff: backoff
                .map_or(default.backoff, |initial_ms| Backoff { initial_ms, max_ms: max_ms.max(initial_ms) }),
            concurrency_limit: concurrency.as_ref().map_or(default.concurrency_limit, |it| it.limit),
            concurrency_key: concurrency.map(|it| it.key),
            ..default
        };
        Some(ScheduleTarget::Task { queue: queue?, task: Box::new(task) })
    }

    fn webhook(&mut self, fields: &TableReader<'_>) -> Option<(ScheduleTarget, Option<String>)> {
        let fields = &TableReader { under: "webhook.", ..*fields };
        self.unknown(fields, &["url", "secret_file"]);
        let url = self.required::<String>(fields, "url");
        let folder = self.folder.clone();
        let path = self.text(fields, "secret_file").map(|path| folder.join(path));
        let url = url?;
        let secret = match path.map(|path| signing_secret::read(&path)) {
            None => None,
            Some(read) => match read.and_then(|secret| checked_secret(&url, &secret).map(|()| secret)) {
                Ok(secret) => Some(secret),
                Err(failure) => {
                    let at = fields.get("secret_file").map_or(fields.at, |value| value.span().start);
                    self.error(at, "webhook.secret_file".to_owned(), failure.message());
                    return None;
                }
            },
        };
        Some((ScheduleTarget::Webhook { url }, secret))
    }

    /// Parses the overlap policy. An event has no end, so the default of the file does not apply to it.
    fn overlap(
        &mut self,
        fields: &TableReader<'_>,
        target: Option<&ScheduleTarget>,
    ) -> Option<OverlapPolicy> {
        let defaults = fields.defaults.filter(|_| !matches!(target, Some(ScheduleTarget::Event { .. })));
        self.read(&TableReader { defaults, ..*fields }, "overlap_policy", overlap_policy)
    }

    fn dst(&mut self, fields: &TableReader<'_>) -> DstPolicy {
        self.unknown(fields, &["gap", "overlap"]);
        DstPolicy {
            gap: self.read(fields, "gap", dst_gap_policy),
            overlap: self.read(fields, "overlap", dst_overlap_policy),
        }
    }
}

/// Version of the time zone database.
pub(super) fn tzdb_version() -> &'static str {
    schedule::tzdb_version()
}

/// Parses a valid file.
#[cfg(test)]
pub(super) fn parsed(name: &str, text: &str) -> ScheduleFile {
    parse(name, text, PathBuf::new()).unwrap_or_else(|errors| panic!("{errors:?}"))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;

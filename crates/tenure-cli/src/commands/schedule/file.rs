//! `schedules.toml`: read, checked, and every mistake in it named with its line, its schedule and its field.

mod reading;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use tenure::port::{Backoff, NewTask};
use tenure::runtime::wall_ms;
use tenure::schedule::{Definition, DefinitionError, Dst, Misfire, Overlap, Target, When, Zone};
use tenure::{Name, schedule};
use toml::de::{DeTable, DeValue};

use self::reading::{Fields, Place, Reading, place};
use super::define::checked_secret;
use crate::args::duration;
use crate::args::schedules::{fold, gap, overlap};
use crate::args::values::{concurrency, millis};
use crate::commands::secret;
use crate::exit::Failure;

/// The most that is read.
const MOST_BYTES: u64 = 64 << 20;

/// How many mistakes are told at once.
const TOLD: usize = 20;

const TOP: [&str; 3] = ["source", "defaults", "schedule"];
const DEFAULTS: [&str; 5] = ["zone", "misfire", "overlap", "jitter", "dst"];
const SCHEDULE: [&str; 13] = [
    "name", "when", "zone", "start", "end", "jitter", "dst", "misfire", "overlap", "payload", "event",
    "task", "call",
];
const TASK: [&str; 11] = [
    "queue",
    "kind",
    "priority",
    "requires",
    "prefers",
    "workers",
    "max_wait",
    "max_run",
    "max_attempts",
    "backoff",
    "concurrency",
];

/// What a file says is to be.
#[derive(Debug)]
pub(super) struct File {
    /// What people call it.
    pub(super) name: String,
    /// Where its schedules come from, if it says so.
    pub(super) source: Option<String>,
    pub(super) drafts: Vec<Draft>,
}

/// A schedule of a file.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) definition: Definition,
    /// What its calls are signed with, if the file names a file that says so.
    pub(super) secret: Option<String>,
    /// Where it stands, for what only the store can tell.
    pub(super) place: Place,
    /// Where its target stands.
    pub(super) target: Place,
}

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) place: Place,
    /// In which schedule; empty if in none.
    pub(super) schedule: String,
    /// In which field; empty if in none.
    pub(super) field: String,
    pub(super) problem: String,
}

/// All mistakes, as editors and people read them: `schedules.toml:4:8: nightly: when: …`.
pub(super) fn refused(file: &str, mut wrongs: Vec<Wrong>) -> Failure {
    wrongs.sort_by_key(|wrong| wrong.place);
    let lines = wrongs.iter().take(TOLD).map(|wrong| {
        let parts = [&wrong.schedule, &wrong.field, &wrong.problem];
        let parts: Vec<&str> =
            parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        format!("{file}:{}: {}", wrong.place, parts.join(": "))
    });
    let mut text = lines.collect::<Vec<_>>().join("\n");
    if wrongs.len() > TOLD {
        text += &format!("\n… and {} more", wrongs.len() - TOLD);
    }
    Failure::usage(format!("{text}\nNothing was changed"))
}

/// Reads a file, or the standard input (`-`).
pub(super) fn read(path: &Path) -> Result<File, Failure> {
    let shown = path.display().to_string();
    let failed =
        |error: std::io::Error| Failure::usage(format!("-f {shown}: the file cannot be read: {error}"));
    let (name, source): (String, Box<dyn Read>) = match shown.as_str() {
        "-" => ("the standard input".to_owned(), Box::new(std::io::stdin())),
        _ => (shown.clone(), Box::new(std::fs::File::open(path).map_err(failed)?)),
    };
    let mut bytes = Vec::new();
    source.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Failure::usage(format!("-f {shown}: it has more than 64 MiB; make several of it")));
    }
    let text = String::from_utf8(bytes)
        .map_err(|error| Failure::usage(format!("-f {shown}: it cannot be read as text: {error}")))?;
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    parse(&name, &text, folder).map_err(|wrongs| refused(&name, wrongs))
}

fn parse(name: &str, text: &str, folder: PathBuf) -> Result<File, Vec<Wrong>> {
    let table = DeTable::parse(text).map_err(|error| {
        let place = place(text, error.span().map_or(0, |span| span.start));
        let problem = error.message().trim().replace('\n', ", ");
        vec![Wrong { place, schedule: String::new(), field: String::new(), problem }]
    })?;
    let mut reading = Reading { text, folder, schedule: String::new(), wrongs: Vec::new() };
    let table = table.into_inner();
    let top = Fields { table: &table, under: "", at: 0, others: None };
    reading.unknown(&top, &TOP);
    let source = reading.text(&top, "source");
    let defaults = reading.table(&top, "defaults");
    if let Some(defaults) = &defaults {
        reading.unknown(defaults, &DEFAULTS);
    }
    let drafts = reading.schedules(&top, defaults.as_ref().map(|defaults| defaults.table));
    match reading.wrongs.is_empty() {
        true => Ok(File { name: name.to_owned(), source, drafts }),
        false => Err(reading.wrongs),
    }
}

impl Reading<'_> {
    fn schedules(&mut self, top: &Fields<'_>, defaults: Option<&DeTable<'_>>) -> Vec<Draft> {
        let Some(value) = top.get("schedule") else { return Vec::new() };
        let DeValue::Array(tables) = value.get_ref() else {
            self.wrong(
                value.span().start,
                "schedule".to_owned(),
                "write each as [[schedule]], with its name in it",
            );
            return Vec::new();
        };
        let (mut drafts, mut seen) = (Vec::new(), BTreeMap::<Name, Place>::new());
        for value in tables.iter() {
            let at = value.span().start;
            let DeValue::Table(table) = value.get_ref() else {
                self.wrong(at, "schedule".to_owned(), "a schedule is a table; write it as [[schedule]]");
                continue;
            };
            let fields = Fields { table, under: "", at, others: defaults };
            let named = table.get("name").and_then(|name| name.get_ref().as_str().map(str::to_owned));
            self.schedule = named.unwrap_or_else(|| "a schedule without a name".to_owned());
            let draft = self.schedule(&fields);
            if let Some(draft) = draft {
                match seen.get(&draft.definition.name) {
                    Some(first) => {
                        let problem =
                            format!("a schedule of this name stands in line {} already", first.line);
                        self.wrong(at, "name".to_owned(), problem);
                    }
                    None => drop(seen.insert(draft.definition.name.clone(), draft.place)),
                }
                drafts.push(draft);
            }
            self.schedule.clear();
        }
        drafts
    }

    /// `None` if something is wrong with it, which is said.
    fn schedule(&mut self, fields: &Fields<'_>) -> Option<Draft> {
        self.unknown(fields, &SCHEDULE);
        let zone = self.parsed::<Zone>(fields, "zone").unwrap_or_default();
        let name = self.needed::<Name>(fields, "name");
        let when = self.needed::<When>(fields, "when");
        let target = self.target(fields);
        let [start_ms, end_ms] = ["start", "end"].map(|field| self.moment(fields, field, &zone));
        let jitter_ms = self.read(fields, "jitter", duration).map(millis);
        let dst = self.table(fields, "dst").map(|dst| self.dst(&Fields { under: "dst.", ..dst }));
        let misfire = self.parsed::<Misfire>(fields, "misfire");
        let overlap = self.overlap(fields, target.as_ref().map(|(target, _)| target));
        let payload = self.payload(fields);
        let ((target, secret), when, name) = (target?, when?, name?);
        let definition = Definition {
            zone,
            start_ms,
            end_ms,
            jitter_ms: jitter_ms.unwrap_or_default(),
            dst: dst.unwrap_or_default(),
            misfire: misfire.unwrap_or_default(),
            overlap: overlap.unwrap_or_default(),
            payload: payload.unwrap_or_default(),
            ..Definition::new(name, when, target)
        };
        // A start that is counted from is the store's to give.
        if let Err(error) = definition.clone().started(wall_ms()).check() {
            self.senseless(fields, &error);
        }
        let place = place(self.text, fields.at);
        let target = ["event", "task", "call"].iter().find_map(|field| fields.table.get(*field));
        let target = target.map_or(place, |target| self::place(self.text, target.span().start));
        Some(Draft { definition, secret, place, target })
    }

    /// What can only be seen from several fields.
    fn senseless(&mut self, fields: &Fields<'_>, error: &DefinitionError) {
        let (field, problem) = match error {
            DefinitionError::Ends { .. } => {
                ("end".to_owned(), "it is not after `start`; exchange them, or leave one out".to_owned())
            }
            error => {
                let field = error.field().trim_start_matches("target.").replace("task.task", "task");
                let text = error.to_string().replace("`target.", "`").replace("task.task", "task");
                (field.replace("_ms", ""), text.replace("_ms`", "`"))
            }
        };
        let first = field.split('.').next().unwrap_or_default();
        let at = fields.get(first).map_or(fields.at, |value| value.span().start);
        self.wrong(at, field, problem);
    }

    /// What a tick does, and what it is signed with.
    fn target(&mut self, fields: &Fields<'_>) -> Option<(Target, Option<String>)> {
        let given: Vec<_> =
            ["event", "task", "call"].into_iter().filter(|it| fields.table.contains_key(*it)).collect();
        match given.as_slice() {
            ["event"] => {
                self.table(fields, "event").and_then(|fields| self.event(&fields)).map(|it| (it, None))
            }
            ["task"] => self.table(fields, "task").and_then(|fields| self.task(&fields)).map(|it| (it, None)),
            ["call"] => self.table(fields, "call").and_then(|fields| self.call(&fields)),
            [] => {
                let problem = "what does a tick do? Give event = { topic = … }, task = { queue = … } or call = { url = … }";
                self.wrong(fields.at, String::new(), problem);
                None
            }
            [.., last] => {
                let at = fields.get(last).map_or(fields.at, |value| value.span().start);
                self.wrong(
                    at,
                    (*last).to_owned(),
                    format!("a tick does one thing; there is {} as well", given[0]),
                );
                None
            }
        }
    }

    fn event(&mut self, fields: &Fields<'_>) -> Option<Target> {
        let fields = &Fields { under: "event.", ..*fields };
        self.unknown(fields, &["topic", "key"]);
        let (topic, key) = (self.needed(fields, "topic"), self.text(fields, "key"));
        Some(Target::Event { topic: topic?, key })
    }

    fn task(&mut self, fields: &Fields<'_>) -> Option<Target> {
        let fields = &Fields { under: "task.", ..*fields };
        self.unknown(fields, &TASK);
        let queue = self.needed(fields, "queue");
        let usual = NewTask::default();
        let backoff = self.read(fields, "backoff", duration).map(millis);
        let most_ms = usual.backoff.most_ms;
        let concurrency = self.read(fields, "concurrency", concurrency);
        let [requires, prefers, workers] =
            ["requires", "prefers", "workers"].map(|field| self.list(fields, field));
        let task = NewTask {
            kind: self.text(fields, "kind").unwrap_or_default(),
            priority: self.number(fields, "priority").unwrap_or(usual.priority),
            requires,
            prefers,
            workers,
            max_wait_ms: self.read(fields, "max_wait", duration).map(millis),
            max_run_ms: self.read(fields, "max_run", duration).map(millis),
            max_attempts: self.number(fields, "max_attempts").unwrap_or(usual.max_attempts),
            backoff: backoff
                .map_or(usual.backoff, |first_ms| Backoff { first_ms, most_ms: most_ms.max(first_ms) }),
            concurrency_limit: concurrency.as_ref().map_or(usual.concurrency_limit, |it| it.limit),
            concurrency_key: concurrency.map(|it| it.key),
            ..usual
        };
        Some(Target::Task { queue: queue?, task: Box::new(task) })
    }

    fn call(&mut self, fields: &Fields<'_>) -> Option<(Target, Option<String>)> {
        let fields = &Fields { under: "call.", ..*fields };
        self.unknown(fields, &["url", "secret_file"]);
        let url = self.needed::<String>(fields, "url");
        let folder = self.folder.clone();
        let path = self.text(fields, "secret_file").map(|path| folder.join(path));
        let url = url?;
        let secret = match path.map(|path| secret::read(&path)) {
            None => None,
            Some(read) => match read.and_then(|secret| checked_secret(&url, &secret).map(|()| secret)) {
                Ok(secret) => Some(secret),
                Err(failure) => {
                    let at = fields.get("secret_file").map_or(fields.at, |value| value.span().start);
                    self.wrong(at, "call.secret_file".to_owned(), failure.message());
                    return None;
                }
            },
        };
        Some((Target::Call { url }, secret))
    }

    /// An event has no end to wait for: what is usual elsewhere is not said of it.
    fn overlap(&mut self, fields: &Fields<'_>, target: Option<&Target>) -> Option<Overlap> {
        let others = fields.others.filter(|_| !matches!(target, Some(Target::Event { .. })));
        self.read(&Fields { others, ..*fields }, "overlap", overlap)
    }

    fn dst(&mut self, fields: &Fields<'_>) -> Dst {
        self.unknown(fields, &["gap", "overlap"]);
        Dst { gap: self.read(fields, "gap", gap), overlap: self.read(fields, "overlap", fold) }
    }
}

/// Which release of the zones' rules read the file: for who wonders about a time.
pub(super) fn rules() -> &'static str {
    schedule::tzdb_version()
}

/// What a text says that is known to be good.
#[cfg(test)]
pub(super) fn parsed(name: &str, text: &str) -> File {
    parse(name, text, PathBuf::new()).unwrap_or_else(|wrongs| panic!("{wrongs:?}"))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;

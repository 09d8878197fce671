//! `tenure schedules apply`: applies the schedules in a file to the store.
//!
//! The whole file is validated and compared with the store first. Then each schedule is updated on its own, only if it
//! still has the compared version. So concurrent applications of the same file find nothing to change, concurrent
//! changes are not overwritten, and a repeated application continues after an interruption.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::json;
use tenure::Name;
use tenure::port::{
    Precondition, ScheduleFilter, ScheduleKey, ScheduleView, SetScheduleOutcome, SetScheduleRequest, Store,
    TopicKey,
};
use tenure::rules::schedule::ScheduleTarget;

use super::diff::{self, FieldChange};
use super::file::{self, FileError, ScheduleEntry, ScheduleFile};
use super::{conflict, describe};
use crate::args::schedules::ApplyArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::elections::whoami;
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, plain};
use crate::store;

/// Number of schedules per page.
const PAGE: u32 = 1_000;

/// Maximum width of a value in the diff.
const WIDE: usize = 60;

/// Action for a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ApplyAction {
    Create,
    Update,
    Unchanged,
    Delete,
}

/// A schedule and its action.
#[derive(Debug, Serialize)]
struct ApplyStep<'a> {
    name: Name,
    action: ApplyAction,
    /// The compared version; after the update, the new version.
    version: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<FieldChange>,
    #[serde(skip)]
    entry: Option<&'a ScheduleEntry>,
    /// Description of a new or deleted schedule.
    #[serde(skip)]
    about: String,
}

pub(super) async fn run(global: &GlobalArgs, args: ApplyArgs) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let file = file::read(&args.file)?;
    let source = source(&args, &file)?;
    if args.prune && file.entries.is_empty() {
        // The program that wrote the file may have failed.
        return Err(CliError::usage(format!(
            "{} has no schedules, and --prune would delete all schedules of the source {source}; delete them by name if that is intended",
            file.name
        )));
    }
    tracing::debug!("read {} with tzdb {}", file.name, file::tzdb_version());
    let store = store::open(global).await?;
    check_topics(store.as_ref(), &namespace, &file).await?;
    let mut steps = compared(store.as_ref(), &namespace, &file, &source).await?;
    if args.prune {
        steps.extend(missing_from_file(store.as_ref(), &namespace, &file, &source).await?);
    }
    if global.output == OutputFormat::Table {
        output::print_text(&render_diff(&steps));
    }
    if !args.dry_run {
        let by = whoami();
        let mut done = 0;
        for step in &mut steps {
            let outcome = perform(store.as_ref(), &namespace, step, &source, &by).await;
            outcome.map_err(|failure| with_progress(failure, &file, step, done))?;
            done += usize::from(step.action != ApplyAction::Unchanged);
        }
    }
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"dry_run": args.dry_run, "source": source, "schedules": steps}));
    }
    output::note(global, TextStyle::Green, &summary(&steps, args.dry_run));
    Ok(0)
}

/// Source of the schedules. `--prune` requires an explicit source, because files of different projects may have the
/// same name.
fn source(args: &ApplyArgs, file: &ScheduleFile) -> Result<String, CliError> {
    let named = args.source.clone().or_else(|| file.source.clone());
    if let Some(source) = named {
        return match source.trim().is_empty() || source.chars().any(char::is_control) || source.len() > 200 {
            true => Err(CliError::usage(format!(
                "invalid source {source:?}: use 1 to 200 bytes without control characters"
            ))),
            false => Ok(source),
        };
    }
    if args.prune {
        return Err(CliError::usage(format!(
            "--prune deletes schedules of the same source, and {} sets none; add for example source = \"billing\" at its top, or \
             use --source billing",
            file.name
        )));
    }
    let name = args.file.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(name.filter(|name| name != "-").unwrap_or_else(|| "stdin".to_owned()))
}

/// Checks that the topics exist. Reports missing ones as errors in the file.
async fn check_topics(store: &dyn Store, namespace: &Name, file: &ScheduleFile) -> Result<(), CliError> {
    let mut known = BTreeMap::new();
    let mut errors = Vec::new();
    for entry in &file.entries {
        let ScheduleTarget::Event { topic, .. } = &entry.definition.target else { continue };
        let exists = match known.get(topic) {
            Some(&exists) => exists,
            None => {
                let exists = store.topic(&TopicKey::new(namespace.clone(), topic.clone())).await?.is_some();
                known.insert(topic.clone(), exists);
                exists
            }
        };
        if !exists {
            errors.push(FileError {
                place: entry.target,
                schedule: entry.definition.name.to_string(),
                field: "event.topic".to_owned(),
                problem: format!(
                    "topic {topic} does not exist; create it with `tenure events topics create {topic}`"
                ),
            });
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(file::file_errors(&file.name, errors)) }
}

async fn compared<'a>(
    store: &dyn Store,
    namespace: &Name,
    file: &'a ScheduleFile,
    source: &str,
) -> Result<Vec<ApplyStep<'a>>, CliError> {
    let mut steps = Vec::with_capacity(file.entries.len());
    for entry in &file.entries {
        let key = ScheduleKey::new(namespace.clone(), entry.definition.name.clone());
        steps.push(step(entry, store.schedule(&key).await?.as_ref(), source));
    }
    Ok(steps)
}

fn step<'a>(entry: &'a ScheduleEntry, stored: Option<&ScheduleView>, source: &str) -> ApplyStep<'a> {
    let wanted = &entry.definition;
    let name = wanted.name.clone();
    let Some(view) = stored else {
        let about = format!("{}, {}", describe::expression(wanted), describe::target(&wanted.target));
        return ApplyStep {
            name,
            action: ApplyAction::Create,
            version: None,
            fields: Vec::new(),
            entry: Some(entry),
            about,
        };
    };
    let mut fields = Vec::new();
    if !diff::is_same(&view.definition, wanted) {
        fields = diff::fields(&view.definition, wanted);
    }
    if view.source.as_deref() != Some(source) {
        fields.push(FieldChange {
            field: "source",
            before: view.source.clone(),
            after: Some(source.to_owned()),
        });
    }
    if entry.secret.is_some() && !view.webhook_signed {
        fields.push(FieldChange {
            field: "webhook signed",
            before: Some("no".into()),
            after: Some("yes".into()),
        });
    }
    let action = if fields.is_empty() { ApplyAction::Unchanged } else { ApplyAction::Update };
    ApplyStep { name, action, version: Some(view.version), fields, entry: Some(entry), about: String::new() }
}

/// Schedules of the same source that are not in the file.
async fn missing_from_file(
    store: &dyn Store,
    namespace: &Name,
    file: &ScheduleFile,
    source: &str,
) -> Result<Vec<ApplyStep<'static>>, CliError> {
    let names: BTreeSet<&Name> = file.entries.iter().map(|entry| &entry.definition.name).collect();
    let mut filter = ScheduleFilter {
        namespace: Some(namespace.clone()),
        source: Some(source.to_owned()),
        after: None,
        limit: PAGE,
    };
    let mut steps = Vec::new();
    loop {
        let page = store.schedules(&filter).await?;
        filter.after = page.last().map(ScheduleView::key);
        let is_last = page.len() < PAGE as usize;
        let gone = page.into_iter().filter(|view| !names.contains(&view.definition.name));
        steps.extend(gone.map(|view| ApplyStep {
            action: ApplyAction::Delete,
            version: Some(view.version),
            fields: Vec::new(),
            entry: None,
            about: format!(
                "{}, {}",
                describe::expression(&view.definition),
                describe::target(&view.definition.target)
            ),
            name: view.definition.name,
        }));
        if is_last {
            return Ok(steps);
        }
    }
}

async fn perform(
    store: &dyn Store,
    namespace: &Name,
    step: &mut ApplyStep<'_>,
    source: &str,
    by: &str,
) -> Result<(), CliError> {
    let key = ScheduleKey::new(namespace.clone(), step.name.clone());
    let Some(entry) = step.entry else {
        return match store.delete_schedule(&key, step.version).await? {
            Some(false) => Err(conflict(&key, store.schedule(&key).await?.map(|view| view.version))),
            // `None`: already deleted.
            Some(true) | None => Ok(()),
        };
    };
    // Only the store can tell whether a secret changed.
    if step.action == ApplyAction::Unchanged && entry.secret.is_none() {
        return Ok(());
    }
    let set = SetScheduleRequest {
        namespace: namespace.clone(),
        definition: entry.definition.clone(),
        secret: entry.secret.clone(),
        precondition: step.version.map_or(Precondition::New, Precondition::Version),
        source: Some(source.to_owned()),
        updated_by: by.to_owned(),
    };
    match store.set_schedule(&set).await? {
        SetScheduleOutcome::Conflict(found) => return Err(conflict(&key, found)),
        SetScheduleOutcome::Created(version) => step.version = Some(version),
        SetScheduleOutcome::Updated(version) => {
            if step.action == ApplyAction::Unchanged {
                step.action = ApplyAction::Update;
                step.fields.push(FieldChange { field: "secret", before: None, after: None });
            }
            step.version = Some(version);
        }
        SetScheduleOutcome::Unchanged(version) => step.version = Some(version),
    }
    Ok(())
}

/// Adds the position in the file and the number of completed changes to an error.
fn with_progress(failure: CliError, file: &ScheduleFile, step: &ApplyStep<'_>, done: usize) -> CliError {
    let place = step.entry.map(|entry| format!(":{}", entry.place)).unwrap_or_default();
    let before = match done {
        0 => String::new(),
        done => {
            format!(
                "; before that, {} applied; apply the file again to continue",
                describe::numbered(done as u64, "change")
            )
        }
    };
    let message = format!("{}{place}: {}: {}{before}", file.name, step.name, failure.message());
    CliError::new(failure.code, message)
}

/// The changes as a diff.
fn render_diff(steps: &[ApplyStep<'_>]) -> String {
    let mut table = Table::plain();
    let empty = || (String::new(), TextStyle::Plain);
    for step in steps {
        let name = (step.name.to_string(), TextStyle::Bold);
        match step.action {
            ApplyAction::Unchanged => {}
            ApplyAction::Create => table.row(vec![
                ("+".into(), TextStyle::Green),
                name,
                ("new".into(), TextStyle::Green),
                (step.about.clone(), TextStyle::Plain),
            ]),
            ApplyAction::Delete => table.row(vec![
                ("-".into(), TextStyle::Red),
                name,
                ("deleted".into(), TextStyle::Red),
                (step.about.clone(), TextStyle::Dim),
            ]),
            ApplyAction::Update => {
                for (place, field) in step.fields.iter().enumerate() {
                    let (mark, name) = match place {
                        0 => (("~".to_owned(), TextStyle::Yellow), name.clone()),
                        _ => (empty(), empty()),
                    };
                    table.row(vec![
                        mark,
                        name,
                        (field.field.to_owned(), TextStyle::Yellow),
                        (arrow(field), TextStyle::Plain),
                    ]);
                }
            }
        }
    }
    table.render()
}

fn arrow(field: &FieldChange) -> String {
    let side = |value: &Option<String>| {
        value.as_deref().map_or_else(|| "–".to_owned(), |value| output::clipped(&plain(value), WIDE))
    };
    format!("{} → {}", side(&field.before), side(&field.after))
}

fn summary(steps: &[ApplyStep<'_>], dry_run: bool) -> String {
    let count = |action: ApplyAction| steps.iter().filter(|step| step.action == action).count() as u64;
    let would = if dry_run { "to be " } else { "" };
    let mut text = String::new();
    for (action, word) in
        [(ApplyAction::Create, "created"), (ApplyAction::Update, "updated"), (ApplyAction::Delete, "deleted")]
    {
        if count(action) > 0 {
            text += &format!("{} {would}{word}, ", describe::number(count(action)));
        }
    }
    let same = format!("{} unchanged", describe::number(count(ApplyAction::Unchanged)));
    format!("{}{text}{same}", if dry_run { "dry run: " } else { "" })
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    fn sample_file() -> ScheduleFile {
        let text = "\
[[schedule]]\nname = \"nightly\"\nexpression = \"0 3 * * *\"\ntime_zone = \"Europe/Berlin\"\noverlap_policy = \"skip\"\npayload = { full = true }\n\
task = { queue = \"reports\", kind = \"nightly\", max_run = \"1h\" }\n\
[[schedule]]\nname = \"beat\"\nexpression = \"every 30s\"\nevent = { topic = \"beats\" }\n";
        file::parsed("schedules.toml", text)
    }

    #[test]
    fn a_diff_shows_new_changed_and_deleted_schedules() {
        let file = sample_file();
        let gone = ApplyStep {
            name: "old".parse().unwrap(),
            action: ApplyAction::Delete,
            version: Some(1),
            fields: Vec::new(),
            entry: None,
            about: "every 1m, task in q".into(),
        };
        let steps = [
            step(&file.entries[0], Some(&sample()), "billing"),
            step(&file.entries[1], None, "billing"),
            gone,
        ];
        let wanted = "\
~  nightly  expression  30 2 * * * → 0 3 * * *
+  beat     new         every 30s, event to beats
-  old      deleted     every 1m, task in q
";
        assert_eq!(render_diff(&steps), wanted);
        assert_eq!(summary(&steps, false), "1 created, 1 updated, 1 deleted, 0 unchanged");
        assert_eq!(summary(&steps[1..2], true), "dry run: 1 to be created, 0 unchanged");
    }

    #[test]
    fn another_source_is_a_change() {
        let mut file = sample_file();
        file.entries[0].definition = sample().definition;
        assert_eq!(step(&file.entries[0], Some(&sample()), "billing").action, ApplyAction::Unchanged);
        let other = step(&file.entries[0], Some(&sample()), "shop");
        assert_eq!(render_diff(&[other]), "~  nightly  source  billing → shop\n");
    }
}

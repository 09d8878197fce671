//! `tenure schedule apply`: make the store's schedules what a file says.
//!
//! All of the file is checked first, and compared with what is stored; then each schedule is set by itself, only if it is still of the
//! version that was compared. So whoever applies the same file at the same time finds nothing to do, whoever changes a schedule
//! meanwhile is not overwritten, and applying again goes on where it was interrupted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::json;
use tenure::Name;
use tenure::port::{
    Backend, Expect, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleView, SetSchedule, TopicKey,
};
use tenure::schedule::Target;

use super::diff::{self, Field};
use super::file::{self, Draft, File, Wrong};
use super::{conflict, words};
use crate::args::schedules::ApplyArgs;
use crate::args::{Format, Global};
use crate::commands::leader::whoami;
use crate::exit::Failure;
use crate::output::{self, Ink, Table, plain};
use crate::store;

/// How many schedules are listed at once.
const PAGE: u32 = 1_000;

/// How wide a value may be in what is shown to people.
const WIDE: usize = 60;

/// What is to become of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Act {
    Create,
    Change,
    Same,
    Delete,
}

/// A schedule, and what is to become of it.
#[derive(Debug, Serialize)]
struct Step<'a> {
    name: Name,
    act: Act,
    /// The version that was compared; after it was done, that which it has.
    version: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<Field>,
    #[serde(skip)]
    draft: Option<&'a Draft>,
    /// In words, of what is new or goes.
    #[serde(skip)]
    about: String,
}

pub(super) async fn run(global: &Global, args: ApplyArgs) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let file = file::read(&args.file)?;
    let source = source(&args, &file)?;
    if args.prune && file.drafts.is_empty() {
        // Whatever wrote it may have failed.
        return Err(Failure::usage(format!(
            "{} has no schedules, and --prune would delete all that came from {source}; if that is meant, delete them by name",
            file.name
        )));
    }
    tracing::debug!("read {} by the time zones of {}", file.name, file::rules());
    let store = store::open(global).await?;
    topics_are_there(store.as_ref(), &namespace, &file).await?;
    let mut steps = compared(store.as_ref(), &namespace, &file, &source).await?;
    if args.prune {
        steps.extend(left_over(store.as_ref(), &namespace, &file, &source).await?);
    }
    if global.output == Format::Table {
        output::print_text(&shown(&steps));
    }
    if !args.dry_run {
        let by = whoami();
        let mut done = 0;
        for step in &mut steps {
            let outcome = carry_out(store.as_ref(), &namespace, step, &source, &by).await;
            outcome.map_err(|failure| so_far(failure, &file, step, done))?;
            done += usize::from(step.act != Act::Same);
        }
    }
    if global.output == Format::Json {
        output::print_json(&json!({"dry_run": args.dry_run, "source": source, "schedules": steps}));
    }
    output::note(global, Ink::Green, &summary(&steps, args.dry_run));
    Ok(0)
}

/// Where the schedules come from. What deletes must know it for certain: two projects may well call their files the same.
fn source(args: &ApplyArgs, file: &File) -> Result<String, Failure> {
    let named = args.source.clone().or_else(|| file.source.clone());
    if let Some(source) = named {
        return match source.trim().is_empty() || source.chars().any(char::is_control) || source.len() > 200 {
            true => Err(Failure::usage(format!(
                "{source:?} can not be a source; give a name of 1 to 200 bytes, without control characters"
            ))),
            false => Ok(source),
        };
    }
    if args.prune {
        return Err(Failure::usage(format!(
            "--prune deletes what came from the same source, and {} names none; write for example source = \"billing\" at its \
             top, or give --source billing",
            file.name
        )));
    }
    let name = args.file.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(name.filter(|name| name != "-").unwrap_or_else(|| "stdin".to_owned()))
}

/// What only the store can tell, told as what is wrong in the file.
async fn topics_are_there(store: &dyn Backend, namespace: &Name, file: &File) -> Result<(), Failure> {
    let mut known = BTreeMap::new();
    let mut wrongs = Vec::new();
    for draft in &file.drafts {
        let Target::Event { topic, .. } = &draft.definition.target else { continue };
        let is_there = match known.get(topic) {
            Some(&is_there) => is_there,
            None => {
                let is_there = store.topic(&TopicKey::new(namespace.clone(), topic.clone())).await?.is_some();
                known.insert(topic.clone(), is_there);
                is_there
            }
        };
        if !is_there {
            wrongs.push(Wrong {
                place: draft.target,
                schedule: draft.definition.name.to_string(),
                field: "event.topic".to_owned(),
                problem: format!("there is no topic {topic}; make it: tenure events topics create {topic}"),
            });
        }
    }
    if wrongs.is_empty() { Ok(()) } else { Err(file::refused(&file.name, wrongs)) }
}

async fn compared<'a>(
    store: &dyn Backend,
    namespace: &Name,
    file: &'a File,
    source: &str,
) -> Result<Vec<Step<'a>>, Failure> {
    let mut steps = Vec::with_capacity(file.drafts.len());
    for draft in &file.drafts {
        let key = ScheduleKey::new(namespace.clone(), draft.definition.name.clone());
        steps.push(step(draft, store.schedule(&key).await?.as_ref(), source));
    }
    Ok(steps)
}

fn step<'a>(draft: &'a Draft, stored: Option<&ScheduleView>, source: &str) -> Step<'a> {
    let wanted = &draft.definition;
    let name = wanted.name.clone();
    let Some(view) = stored else {
        let about = format!("{}, {}", words::times(wanted), words::target(&wanted.target));
        return Step { name, act: Act::Create, version: None, fields: Vec::new(), draft: Some(draft), about };
    };
    let mut fields = Vec::new();
    if !diff::is_same(&view.definition, wanted) {
        fields = diff::fields(&view.definition, wanted);
    }
    if view.source.as_deref() != Some(source) {
        fields.push(Field { field: "source", before: view.source.clone(), after: Some(source.to_owned()) });
    }
    if draft.secret.is_some() && !view.signed {
        fields.push(Field { field: "signed", before: Some("no".into()), after: Some("yes".into()) });
    }
    let act = if fields.is_empty() { Act::Same } else { Act::Change };
    Step { name, act, version: Some(view.version), fields, draft: Some(draft), about: String::new() }
}

/// What came from the same source, and is not in the file any more.
async fn left_over(
    store: &dyn Backend,
    namespace: &Name,
    file: &File,
    source: &str,
) -> Result<Vec<Step<'static>>, Failure> {
    let names: BTreeSet<&Name> = file.drafts.iter().map(|draft| &draft.definition.name).collect();
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
        steps.extend(gone.map(|view| Step {
            act: Act::Delete,
            version: Some(view.version),
            fields: Vec::new(),
            draft: None,
            about: format!("{}, {}", words::times(&view.definition), words::target(&view.definition.target)),
            name: view.definition.name,
        }));
        if is_last {
            return Ok(steps);
        }
    }
}

async fn carry_out(
    store: &dyn Backend,
    namespace: &Name,
    step: &mut Step<'_>,
    source: &str,
    by: &str,
) -> Result<(), Failure> {
    let key = ScheduleKey::new(namespace.clone(), step.name.clone());
    let Some(draft) = step.draft else {
        return match store.delete_schedule(&key, step.version).await? {
            Some(false) => Err(conflict(&key, store.schedule(&key).await?.map(|view| view.version))),
            // Somebody else did it.
            Some(true) | None => Ok(()),
        };
    };
    // Only the store knows whether a secret is another.
    if step.act == Act::Same && draft.secret.is_none() {
        return Ok(());
    }
    let set = SetSchedule {
        namespace: namespace.clone(),
        definition: draft.definition.clone(),
        secret: draft.secret.clone(),
        expect: step.version.map_or(Expect::New, Expect::Version),
        source: Some(source.to_owned()),
        by: by.to_owned(),
    };
    match store.set_schedule(&set).await? {
        ScheduleSet::Conflict(found) => return Err(conflict(&key, found)),
        ScheduleSet::Created(version) => step.version = Some(version),
        ScheduleSet::Changed(version) => {
            if step.act == Act::Same {
                step.act = Act::Change;
                step.fields.push(Field { field: "secret", before: None, after: None });
            }
            step.version = Some(version);
        }
        ScheduleSet::Same(version) => step.version = Some(version),
    }
    Ok(())
}

/// A failure, where it was, and what is done already.
fn so_far(failure: Failure, file: &File, step: &Step<'_>, done: usize) -> Failure {
    let place = step.draft.map(|draft| format!(":{}", draft.place)).unwrap_or_default();
    let before = match done {
        0 => String::new(),
        done => {
            format!(". Before that, {} done; apply it again to go on", words::numbered(done as u64, "change"))
        }
    };
    let message = format!("{}{place}: {}: {}{before}", file.name, step.name, failure.message());
    Failure::new(failure.code, message)
}

/// What changes, as a person reads a diff.
fn shown(steps: &[Step<'_>]) -> String {
    let mut table = Table::plain();
    let empty = || (String::new(), Ink::Plain);
    for step in steps {
        let name = (step.name.to_string(), Ink::Bold);
        match step.act {
            Act::Same => {}
            Act::Create => table.row(vec![
                ("+".into(), Ink::Green),
                name,
                ("new".into(), Ink::Green),
                (step.about.clone(), Ink::Plain),
            ]),
            Act::Delete => table.row(vec![
                ("-".into(), Ink::Red),
                name,
                ("goes".into(), Ink::Red),
                (step.about.clone(), Ink::Dim),
            ]),
            Act::Change => {
                for (place, field) in step.fields.iter().enumerate() {
                    let (mark, name) = match place {
                        0 => (("~".to_owned(), Ink::Yellow), name.clone()),
                        _ => (empty(), empty()),
                    };
                    table.row(vec![
                        mark,
                        name,
                        (field.field.to_owned(), Ink::Yellow),
                        (arrow(field), Ink::Plain),
                    ]);
                }
            }
        }
    }
    table.render()
}

fn arrow(field: &Field) -> String {
    let side = |value: &Option<String>| {
        value.as_deref().map_or_else(|| "–".to_owned(), |value| output::clipped(&plain(value), WIDE))
    };
    format!("{} → {}", side(&field.before), side(&field.after))
}

fn summary(steps: &[Step<'_>], dry_run: bool) -> String {
    let count = |act: Act| steps.iter().filter(|step| step.act == act).count() as u64;
    let would = if dry_run { "to be " } else { "" };
    let mut text = String::new();
    for (act, word) in [(Act::Create, "made"), (Act::Change, "changed"), (Act::Delete, "deleted")] {
        if count(act) > 0 {
            text += &format!("{} {would}{word}, ", words::number(count(act)));
        }
    }
    let same = format!("{} as the file says", words::number(count(Act::Same)));
    format!("{}{text}{same}", if dry_run { "nothing was changed: " } else { "" })
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    fn drafts() -> File {
        let text = "\
[[schedule]]\nname = \"nightly\"\nwhen = \"0 3 * * *\"\nzone = \"Europe/Berlin\"\noverlap = \"skip\"\npayload = { full = true }\n\
task = { queue = \"reports\", kind = \"nightly\", max_run = \"1h\" }\n\
[[schedule]]\nname = \"beat\"\nwhen = \"every 30s\"\nevent = { topic = \"beats\" }\n";
        file::parsed("schedules.toml", text)
    }

    #[test]
    fn a_diff_shows_what_is_new_what_changes_and_what_goes() {
        let file = drafts();
        let gone = Step {
            name: "old".parse().unwrap(),
            act: Act::Delete,
            version: Some(1),
            fields: Vec::new(),
            draft: None,
            about: "every 1m, task in q".into(),
        };
        let steps =
            [step(&file.drafts[0], Some(&sample()), "billing"), step(&file.drafts[1], None, "billing"), gone];
        let wanted = "\
~  nightly  when  30 2 * * * → 0 3 * * *
+  beat     new   every 30s, event to beats
-  old      goes  every 1m, task in q
";
        assert_eq!(shown(&steps), wanted);
        assert_eq!(summary(&steps, false), "1 made, 1 changed, 1 deleted, 0 as the file says");
        assert_eq!(summary(&steps[1..2], true), "nothing was changed: 1 to be made, 0 as the file says");
    }

    #[test]
    fn another_source_is_a_change_and_the_same_is_none() {
        let mut file = drafts();
        file.drafts[0].definition = sample().definition;
        assert_eq!(step(&file.drafts[0], Some(&sample()), "billing").act, Act::Same);
        let other = step(&file.drafts[0], Some(&sample()), "shop");
        assert_eq!(shown(&[other]), "~  nightly  source  billing → shop\n");
    }
}

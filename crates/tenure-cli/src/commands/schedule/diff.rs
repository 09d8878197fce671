//! How two definitions differ, field by field.

use serde::Serialize;
use serde_json::Value;
use tenure::schedule::{Definition, When};

use super::words;
use crate::output::span;

/// A field that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Field {
    pub(super) field: &'static str,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

/// Whether what is stored is what is wanted: the payload by its meaning, and a start that the store gave by itself left out.
pub(super) fn is_same(stored: &Definition, wanted: &Definition) -> bool {
    let payload = |definition: &Definition| definition.payload.parse::<Value>().ok();
    let with = |definition: &Definition| Definition { payload: wanted.payload.clone(), ..definition.clone() };
    payload(stored) == payload(wanted) && with(stored) == with(&settled(stored, wanted))
}

/// An interval that is counted from its creation goes on counting from there.
fn settled(stored: &Definition, wanted: &Definition) -> Definition {
    let counts = matches!(wanted.when, When::Every(every) if every.is_from_start());
    let given = stored.start_ms.filter(|_| counts && stored.when == wanted.when);
    Definition { start_ms: wanted.start_ms.or(given), ..wanted.clone() }
}

/// What changes. Without a definition that is stored: nothing is told.
pub(super) fn fields(stored: &Definition, wanted: &Definition) -> Vec<Field> {
    let (before, after) = (told(stored), told(&settled(stored, wanted)));
    let mut names: Vec<&'static str> = after.iter().map(|(name, _)| *name).collect();
    let gone = before.iter().map(|(name, _)| *name).filter(|name| !names.contains(name)).collect::<Vec<_>>();
    names.extend(gone);
    let value = |list: &[(&'static str, String)], name: &str| {
        list.iter().find(|(it, _)| *it == name).map(|(_, value)| value.clone())
    };
    let fields = names.into_iter().map(|field| Field {
        field,
        before: value(&before, field),
        after: value(&after, field),
    });
    fields.filter(|field| field.before != field.after).collect()
}

/// All of a definition that is not as usual.
fn told(definition: &Definition) -> Vec<(&'static str, String)> {
    let word = |value: Result<Value, serde_json::Error>| {
        value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let clock = |at: i64| definition.zone.shown(at);
    let mut told = vec![("when", definition.when.to_string()), ("zone", definition.zone.to_string())];
    told.extend(definition.start_ms.map(|at| ("start", clock(at))));
    told.extend(definition.end_ms.map(|at| ("end", clock(at))));
    if definition.jitter_ms > 0 {
        told.push(("jitter", span(definition.jitter_ms)));
    }
    told.extend(definition.dst.gap.map(|gap| ("dst gap", word(serde_json::to_value(gap)))));
    told.extend(definition.dst.overlap.map(|fold| ("dst overlap", word(serde_json::to_value(fold)))));
    told.push(("misfire", definition.misfire.to_string()));
    told.push(("overlap", word(serde_json::to_value(definition.overlap))));
    told.push(("does", words::target(&definition.target)));
    told.extend(words::details(&definition.target));
    // By its meaning: one who writes it otherwise changes nothing.
    let payload = definition.payload.parse::<Value>().map(|value| value.to_string());
    told.push(("payload", payload.unwrap_or_else(|_| definition.payload.to_string())));
    told
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    #[test]
    fn what_changes_is_told_and_nothing_else() {
        let stored = sample().definition;
        assert!(is_same(&stored, &stored) && fields(&stored, &stored).is_empty());
        let mut spaced = stored.clone();
        spaced.payload = r#"{ "full" : true }"#.parse().unwrap();
        assert!(is_same(&stored, &spaced) && fields(&stored, &spaced).is_empty());
        let mut other = stored.clone();
        other.when = "0 3 * * *".parse().unwrap();
        other.end_ms = Some(1_900_000_000_000);
        other.payload = "{}".parse().unwrap();
        assert!(!is_same(&stored, &other));
        let field = |field, before: &str, after: &str| Field {
            field,
            before: (!before.is_empty()).then(|| before.to_owned()),
            after: Some(after.to_owned()),
        };
        let wanted = [
            field("when", "30 2 * * *", "0 3 * * *"),
            field("end", "", "2030-03-17T18:46:40+01:00"),
            field("payload", "{\"full\":true}", "{}"),
        ];
        assert_eq!(fields(&stored, &other), wanted);
        let gone = fields(&other, &stored);
        assert!(gone.iter().any(|field| field.field == "end" && field.after.is_none()), "{gone:?}");
    }

    #[test]
    fn a_start_that_the_store_gave_is_no_difference() {
        let mut wanted = sample().definition;
        wanted.when = "every 90s from start".parse().unwrap();
        let stored = wanted.clone().started(1_000);
        assert!(is_same(&stored, &wanted) && fields(&stored, &wanted).is_empty());
        wanted.start_ms = Some(2_000);
        assert!(!is_same(&stored, &wanted));
        assert_eq!(fields(&stored, &wanted).len(), 1);
    }
}

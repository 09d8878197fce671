//! Differences between two definitions, by field.

use serde::Serialize;
use serde_json::Value;
use tenure::rules::schedule::{ScheduleDefinition, ScheduleExpression};

use super::describe;
use crate::output::span;

/// A changed field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FieldChange {
    pub(super) field: &'static str,
    pub(super) before: Option<String>,
    pub(super) after: Option<String>,
}

/// Whether two definitions are equal. Compares payloads as JSON values, and ignores a start that the store set.
pub(super) fn is_same(stored: &ScheduleDefinition, wanted: &ScheduleDefinition) -> bool {
    let payload = |definition: &ScheduleDefinition| definition.payload.parse::<Value>().ok();
    let with = |definition: &ScheduleDefinition| ScheduleDefinition {
        payload: wanted.payload.clone(),
        ..definition.clone()
    };
    payload(stored) == payload(wanted) && with(stored) == with(&with_stored_start(stored, wanted))
}

/// Takes over the stored start of an interval that counts from its creation.
fn with_stored_start(stored: &ScheduleDefinition, wanted: &ScheduleDefinition) -> ScheduleDefinition {
    let counts = matches!(wanted.expression, ScheduleExpression::Interval(every) if every.is_from_start());
    let given = stored.start_at_ms.filter(|_| counts && stored.expression == wanted.expression);
    ScheduleDefinition { start_at_ms: wanted.start_at_ms.or(given), ..wanted.clone() }
}

/// The changed fields.
pub(super) fn fields(stored: &ScheduleDefinition, wanted: &ScheduleDefinition) -> Vec<FieldChange> {
    let (before, after) = (values(stored), values(&with_stored_start(stored, wanted)));
    let mut names: Vec<&'static str> = after.iter().map(|(name, _)| *name).collect();
    let gone = before.iter().map(|(name, _)| *name).filter(|name| !names.contains(name)).collect::<Vec<_>>();
    names.extend(gone);
    let value = |list: &[(&'static str, String)], name: &str| {
        list.iter().find(|(it, _)| *it == name).map(|(_, value)| value.clone())
    };
    let fields = names.into_iter().map(|field| FieldChange {
        field,
        before: value(&before, field),
        after: value(&after, field),
    });
    fields.filter(|field| field.before != field.after).collect()
}

/// Fields of a definition with their values; optional fields only if set.
fn values(definition: &ScheduleDefinition) -> Vec<(&'static str, String)> {
    let word = |value: Result<Value, serde_json::Error>| {
        value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let clock = |at: i64| definition.time_zone.format_local(at);
    let mut values = vec![
        ("expression", definition.expression.to_string()),
        ("time zone", definition.time_zone.to_string()),
    ];
    values.extend(definition.start_at_ms.map(|at| ("start at", clock(at))));
    values.extend(definition.end_at_ms.map(|at| ("end at", clock(at))));
    if definition.jitter_ms > 0 {
        values.push(("jitter", span(definition.jitter_ms)));
    }
    values.extend(definition.dst.gap.map(|gap| ("dst gap", word(serde_json::to_value(gap)))));
    values.extend(definition.dst.overlap.map(|fold| ("dst overlap", word(serde_json::to_value(fold)))));
    values.push(("misfire policy", definition.misfire_policy.to_string()));
    values.push(("overlap policy", word(serde_json::to_value(definition.overlap_policy))));
    values.push(("target", describe::target(&definition.target)));
    values.extend(describe::details(&definition.target));
    // As a JSON value, so that formatting makes no difference.
    let payload = definition.payload.parse::<Value>().map(|value| value.to_string());
    values.push(("payload", payload.unwrap_or_else(|_| definition.payload.to_string())));
    values
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    #[test]
    fn only_changed_fields_are_listed() {
        let stored = sample().definition;
        assert!(is_same(&stored, &stored) && fields(&stored, &stored).is_empty());
        let mut spaced = stored.clone();
        spaced.payload = r#"{ "full" : true }"#.parse().unwrap();
        assert!(is_same(&stored, &spaced) && fields(&stored, &spaced).is_empty());
        let mut other = stored.clone();
        other.expression = "0 3 * * *".parse().unwrap();
        other.end_at_ms = Some(1_900_000_000_000);
        other.payload = "{}".parse().unwrap();
        assert!(!is_same(&stored, &other));
        let field = |field, before: &str, after: &str| FieldChange {
            field,
            before: (!before.is_empty()).then(|| before.to_owned()),
            after: Some(after.to_owned()),
        };
        let wanted = [
            field("expression", "30 2 * * *", "0 3 * * *"),
            field("end at", "", "2030-03-17T18:46:40+01:00"),
            field("payload", "{\"full\":true}", "{}"),
        ];
        assert_eq!(fields(&stored, &other), wanted);
        let gone = fields(&other, &stored);
        assert!(gone.iter().any(|field| field.field == "end at" && field.after.is_none()), "{gone:?}");
    }

    #[test]
    fn a_start_set_by_the_store_is_no_change() {
        let mut wanted = sample().definition;
        wanted.expression = "every 90s from start".parse().unwrap();
        let stored = wanted.clone().started(1_000);
        assert!(is_same(&stored, &wanted) && fields(&stored, &wanted).is_empty());
        wanted.start_at_ms = Some(2_000);
        assert!(!is_same(&stored, &wanted));
        assert_eq!(fields(&stored, &wanted).len(), 1);
    }
}

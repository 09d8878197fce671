//! Label selectors of the API server.

use serde_json::{Value, json};

use super::state::WatchEvent;
use super::validate::{is_label_value, is_qualified};

/// A label selector.
pub(super) struct Selector(Vec<SelectorTerm>);

enum SelectorTerm {
    Has(String),
    Lacks(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Selector {
    /// Parses a selector. `None` if it is invalid.
    pub(super) fn read(text: &str) -> Option<Selector> {
        let mut demands = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            // A comma inside parentheses belongs to the list.
            let open = rest.find('(').filter(|open| rest.find(',').is_none_or(|comma| open < &comma));
            let end = match open {
                Some(open) => rest[open..].find(')').map_or(rest.len(), |close| open + close + 1),
                None => rest.find(',').unwrap_or(rest.len()),
            };
            demands.push(SelectorTerm::read(rest[..end].trim())?);
            rest = rest[end..].trim_start_matches(',').trim();
        }
        Some(Selector(demands))
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|demand| match demand {
            SelectorTerm::Has(key) => labels[key].is_string(),
            SelectorTerm::Lacks(key) => !labels[key].is_string(),
            SelectorTerm::In(key, values) => {
                labels[key].as_str().is_some_and(|is| values.iter().any(|value| value == is))
            }
            SelectorTerm::NotIn(key, values) => {
                labels[key].as_str().is_none_or(|is| values.iter().all(|value| value != is))
            }
        })
    }

    /// The watch event for a client with this selector. An object that no longer matches is reported as deleted.
    pub(super) fn tells(&self, happened: &WatchEvent) -> Option<Value> {
        let was = happened.before.as_ref().filter(|object| self.selects(object));
        let is = happened.after.as_ref().filter(|object| self.selects(object));
        let (kind, mut object) = match (was, is) {
            (None, Some(is)) => ("ADDED", is.clone()),
            (Some(_), Some(is)) => ("MODIFIED", is.clone()),
            (Some(was), None) => ("DELETED", was.clone()),
            (None, None) => return None,
        };
        object["metadata"]["resourceVersion"] = happened.version.to_string().into();
        Some(json!({ "type": kind, "object": object }))
    }
}

impl SelectorTerm {
    fn read(text: &str) -> Option<SelectorTerm> {
        let list = |values: &str| {
            let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
            let values = values.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>();
            values.iter().all(|value| is_label_value(value)).then_some(values)
        };
        let one = |value: &str| Some(vec![value.trim().to_owned()]).filter(|all| is_label_value(&all[0]));
        let key = |key: &str| Some(key.trim().to_owned()).filter(|key| is_qualified(key));
        if let Some((of, values)) = text.split_once(" notin ") {
            return Some(SelectorTerm::NotIn(key(of)?, list(values)?));
        }
        if let Some((of, values)) = text.split_once(" in ") {
            return Some(SelectorTerm::In(key(of)?, list(values)?));
        }
        if let Some((of, value)) = text.split_once("!=") {
            return Some(SelectorTerm::NotIn(key(of)?, one(value)?));
        }
        if let Some((of, value)) = text.split_once('=') {
            return Some(SelectorTerm::In(key(of)?, one(value.trim_start_matches('='))?));
        }
        match text.strip_prefix('!') {
            Some(of) => Some(SelectorTerm::Lacks(key(of)?)),
            None => Some(SelectorTerm::Has(key(text)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_matches_like_the_real_server() {
        let object = json!({ "metadata": { "labels": { "a": "1", "acme.io/b": "" } } });
        for text in [
            "",
            "a",
            "a=1",
            "a==1",
            "a in (0,1)",
            "a,acme.io/b",
            "!c",
            "c!=1",
            "c notin (1), a in (1)",
            "acme.io/b=",
        ] {
            assert!(Selector::read(text).unwrap().selects(&object), "{text}");
        }
        for text in ["c", "!a", "a=2", "a in (2,3)", "a notin (1)", "a!=1"] {
            assert!(!Selector::read(text).unwrap().selects(&object), "{text}");
        }
        for text in ["a in 1", "a in (1", "a=x y", "-a", "a b"] {
            assert!(Selector::read(text).is_none(), "{text}");
        }
    }
}

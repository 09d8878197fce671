//! Validation of the API server, and the fields it keeps.

use serde_json::{Map, Value, json};

use super::state::{ApiReply, invalid, status};

/// Kept fields of the metadata.
const METADATA: [&str; 13] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// Fields of a Lease.
const SPEC: [&str; 7] = [
    "holderIdentity",
    "leaseDurationSeconds",
    "acquireTime",
    "renewTime",
    "leaseTransitions",
    "strategy",
    "preferredHolder",
];

/// Rejects objects that are not Leases of this namespace.
pub(super) fn foreign(object: &Value, namespace: &str) -> Option<ApiReply> {
    // The real server fills missing fields from the URL; other servers reject such objects.
    let version = object["apiVersion"].as_str().unwrap_or_default();
    if version != "coordination.k8s.io/v1" || object["kind"].as_str() != Some("Lease") {
        return Some(status(
            400,
            "BadRequest",
            "the object provided is unrecognized: no Lease of coordination.k8s.io/v1",
        ));
    }
    let of = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    (of != namespace).then(|| {
        status(400, "BadRequest", "the namespace of the object does not match the namespace on the request")
    })
}

/// Rejects what the API server rejects in a Lease.
pub(super) fn refuse(name: &str, object: &Value) -> Option<ApiReply> {
    if !is_subdomain(name) {
        return Some(invalid(
            name,
            "metadata.name: Invalid value: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'",
        ));
    }
    let spec = &object["spec"];
    let texts = ["holderIdentity", "strategy", "preferredHolder"];
    let numbers = ["leaseDurationSeconds", "leaseTransitions"];
    let times = ["acquireTime", "renewTime"];
    for field in texts {
        if !spec[field].is_null() && !spec[field].is_string() {
            return Some(status(
                400,
                "BadRequest",
                format!("cannot unmarshal into Go struct field LeaseSpec.spec.{field} of type string"),
            ));
        }
    }
    for field in numbers {
        let is_int32 = spec[field].as_i64().is_some_and(|number| i32::try_from(number).is_ok());
        if !spec[field].is_null() && !is_int32 {
            return Some(status(
                400,
                "BadRequest",
                format!("cannot unmarshal into Go struct field LeaseSpec.spec.{field} of type int32"),
            ));
        }
    }
    for field in times {
        if !spec[field].is_null() && !spec[field].as_str().is_some_and(is_micro_time) {
            return Some(status(
                400,
                "BadRequest",
                format!("parsing time {} as \"2006-01-02T15:04:05.000000Z07:00\"", spec[field]),
            ));
        }
    }
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        return Some(invalid(name, "spec.leaseDurationSeconds: Invalid value: must be greater than 0"));
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|count| count < 0) {
        return Some(invalid(
            name,
            "spec.leaseTransitions: Invalid value: must be greater than or equal to 0",
        ));
    }
    if let Some(strategy) = spec["strategy"].as_str()
        && strategy != "OldestEmulationVersion"
        && !(strategy.contains('/') && is_qualified(strategy))
    {
        return Some(invalid(name, &format!("spec.strategy: Unsupported value: {strategy:?}")));
    }
    let has = |field: &str| spec[field].as_str().is_some_and(|text| !text.is_empty());
    if has("preferredHolder") && !has("strategy") {
        return Some(invalid(
            name,
            "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
        ));
    }
    let (labels, notes) = (&object["metadata"]["labels"], &object["metadata"]["annotations"]);
    for (key, value) in [labels, notes].into_iter().filter_map(Value::as_object).flatten() {
        if !is_qualified(key) || !value.is_string() {
            return Some(invalid(
                name,
                &format!(
                    "metadata: Invalid value: {key:?}: name part must consist of alphanumeric characters"
                ),
            ));
        }
    }
    if labels.as_object().into_iter().flatten().any(|(_, value)| !value.as_str().is_some_and(is_label_value))
    {
        return Some(invalid(
            name,
            "metadata.labels: Invalid value: a valid label must be an empty string or consist of alphanumeric characters",
        ));
    }
    let size = notes
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| k.len() + v.as_str().map_or(0, str::len))
        .sum::<usize>();
    (size > 256 << 10)
        .then(|| invalid(name, "metadata.annotations: Too long: may not be more than 262144 bytes"))
}

/// The part of an object that the API server keeps: known fields that are not empty.
pub(super) fn kept(mut object: Value) -> Value {
    prune(&mut object, &["apiVersion", "kind", "metadata", "spec"]);
    prune(&mut object["metadata"], &METADATA);
    prune(&mut object["spec"], &SPEC);
    if object["spec"].is_null() {
        object["spec"] = json!({});
    }
    for field in ["labels", "annotations"] {
        if object["metadata"][field].as_object().is_some_and(Map::is_empty) {
            prune(&mut object["metadata"], &METADATA.map(|known| if known == field { "" } else { known }));
        }
    }
    object
}

fn prune(part: &mut Value, known: &[&str]) {
    if let Value::Object(fields) = part {
        fields.retain(|field, value| known.contains(&field.as_str()) && !value.is_null());
    }
}

fn is_subdomain(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part = |part: &str| {
        part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

pub(super) fn is_label_value(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    text.is_empty()
        || text.len() <= 63 && text.chars().all(inner) && text.starts_with(edge) && text.ends_with(edge)
}

pub(super) fn is_qualified(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Whether the text has the form `2006-01-02T15:04:05.000000Z`, with exactly six digits.
fn is_micro_time(text: &str) -> bool {
    let fraction =
        text.split_once('.').map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).count());
    fraction == Some(6) && text.parse::<jiff::Timestamp>().is_ok()
}

//! What the API server keeps, and how it changes: versions, conflicts, validation, selection, and what is told to who watches.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

/// What is answered.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// A `Status`, as the API server writes one.
pub(super) fn status(code: u16, reason: &str, message: impl Into<String>) -> Reply {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message.into(), "reason": reason, "code": code,
    });
    Reply { status: code, body }
}

fn ok(status: u16, body: Value) -> Reply {
    Reply { status, body }
}

/// Something that happened to an object.
#[derive(Clone)]
pub(super) struct Happened {
    pub(super) version: u64,
    pub(super) namespace: String,
    /// What it was before; nothing if it was not there.
    pub(super) before: Option<Value>,
    /// What it is now; nothing if it was deleted.
    pub(super) after: Option<Value>,
}

/// All Leases and pods, and the log of what happened to the Leases.
#[derive(Default)]
pub(super) struct World {
    pub(super) leases: BTreeMap<(String, String), Value>,
    pub(super) pods: BTreeMap<(String, String), Value>,
    /// Namespaces that are there; none named: all.
    pub(super) namespaces: Vec<String>,
    pub(super) version: u64,
    /// Up to which version the log is forgotten.
    pub(super) compacted: u64,
    pub(super) log: VecDeque<Happened>,
    /// Lists that are read in parts.
    parts: BTreeMap<String, (u64, Vec<Value>)>,
    drawn: u64,
}

impl World {
    fn next_version(&mut self) -> u64 {
        self.version = self.version.max(1) + 1;
        self.version
    }

    /// Forgets what happened until now.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.log.clear();
        self.parts.clear();
    }

    fn set(&mut self, at: (String, String), mut object: Option<Value>) -> Option<Value> {
        let version = self.next_version();
        if let Some(object) = &mut object {
            object["metadata"]["resourceVersion"] = version.to_string().into();
        }
        let before = match object.clone() {
            Some(object) => self.leases.insert(at.clone(), object),
            None => self.leases.remove(&at),
        };
        self.log.push_back(Happened { version, namespace: at.0, before, after: object.clone() });
        object
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Reply {
        match self.leases.get(&(namespace.into(), name.into())) {
            Some(object) => ok(200, object.clone()),
            None => not_found(name),
        }
    }

    pub(super) fn create(&mut self, namespace: &str, mut object: Value) -> Reply {
        if !self.namespaces.is_empty() && !self.namespaces.iter().any(|known| known == namespace) {
            return status(404, "NotFound", format!("namespaces {namespace:?} not found"));
        }
        if let Some(refused) = foreign(&object, namespace) {
            return refused;
        }
        if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            return status(400, "BadRequest", "resourceVersion should not be set on objects to be created");
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let name = match (name.is_empty(), object["metadata"]["generateName"].as_str()) {
            (true, Some(prefix)) => {
                self.drawn += 1;
                format!("{prefix}{:05x}", self.drawn.wrapping_mul(0x9e37_79b9) & 0xf_ffff)
            }
            (true, None) => {
                return invalid("", "metadata.name: Required value: name or generateName is required");
            }
            (false, _) => name,
        };
        object["metadata"]["name"] = name.clone().into();
        if let Some(refused) = refuse(&name, &object) {
            return refused;
        }
        let at = (namespace.to_owned(), name.clone());
        if self.leases.contains_key(&at) {
            return status(
                409,
                "AlreadyExists",
                format!("leases.coordination.k8s.io {name:?} already exists"),
            );
        }
        let now = jiff::Timestamp::from_second(tenure::runtime::wall_ms() / 1000).unwrap_or_default();
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["uid"] =
            format!("{:08x}-0000-4000-8000-{:012x}", self.version, tenure::runtime::random() >> 16).into();
        object["metadata"]["creationTimestamp"] = now.to_string().into();
        match self.set(at, Some(object)) {
            Some(object) => ok(201, object),
            None => status(500, "InternalError", "it was not kept"),
        }
    }

    pub(super) fn update(&mut self, namespace: &str, name: &str, mut object: Value) -> Reply {
        if let Some(refused) = foreign(&object, namespace) {
            return refused;
        }
        if object["metadata"]["name"].as_str() != Some(name) {
            return status(400, "BadRequest", "the name of the object does not match the name on the URL");
        }
        let at = (namespace.to_owned(), name.to_owned());
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let Some(found) = self.leases.get(&at).cloned() else {
            // An update may create a Lease, unless it is of one that was there before: that has another uid.
            if uid.is_empty() {
                object["metadata"]["resourceVersion"] = Value::Null;
                return self.create(namespace, object);
            }
            return conflict(
                name,
                format!("Precondition failed: UID in precondition: {uid}, UID in object meta: "),
            );
        };
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if version.is_empty() {
            return invalid(
                name,
                "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update",
            );
        }
        if !uid.is_empty() && Some(uid.as_str()) != found["metadata"]["uid"].as_str() {
            return conflict(name, format!("Precondition failed: UID in precondition: {uid}"));
        }
        if Some(version) != found["metadata"]["resourceVersion"].as_str() {
            return conflict(
                name,
                "the object has been modified; please apply your changes to the latest version and try again",
            );
        }
        if let Some(refused) = refuse(name, &object) {
            return refused;
        }
        for field in ["uid", "creationTimestamp", "namespace"] {
            object["metadata"][field] = found["metadata"][field].clone();
        }
        if object == found {
            // Nothing was changed: nothing happens.
            return ok(200, found);
        }
        self.set(at, Some(object)).map_or_else(|| not_found(name), |object| ok(200, object))
    }

    /// A merge patch without a version: the last word, as `kubectl patch` says it.
    pub(super) fn patch(&mut self, namespace: &str, name: &str, patch: &Value) -> Reply {
        let at = (namespace.to_owned(), name.to_owned());
        let Some(mut object) = self.leases.get(&at).cloned() else { return not_found(name) };
        merge(&mut object, patch);
        self.update(namespace, name, object)
    }

    pub(super) fn patch_pod(&mut self, namespace: &str, name: &str, patch: &Value) -> Reply {
        let Some(pod) = self.pods.get_mut(&(namespace.into(), name.into())) else {
            return status(404, "NotFound", format!("pods {name:?} not found"));
        };
        merge(pod, patch);
        ok(200, pod.clone())
    }

    pub(super) fn delete(&mut self, namespace: &str, name: &str) -> Reply {
        let at = (namespace.to_owned(), name.to_owned());
        if !self.leases.contains_key(&at) {
            return not_found(name);
        }
        self.set(at, None);
        ok(200, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
    }

    pub(super) fn list(&mut self, namespace: &str, query: &BTreeMap<String, String>) -> Reply {
        let limit = query.get("limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0);
        let (version, mut items) = match query.get("continue") {
            Some(token) => match self.parts.remove(token) {
                Some(rest) => rest,
                None => {
                    return expired(
                        "The provided continue parameter is too old to display a consistent list result.",
                    );
                }
            },
            None => {
                let selector = Selector::read(query.get("labelSelector").map_or("", String::as_str));
                let of = |((of, _), object): (&(String, String), &Value)| {
                    (of == namespace && selector.selects(object)).then(|| object.clone())
                };
                (self.version.max(1), self.leases.iter().filter_map(of).collect::<Vec<_>>())
            }
        };
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if let Some(limit) = limit.filter(|limit| *limit < items.len()) {
            let rest = items.split_off(limit);
            self.drawn += 1;
            let token = format!("v2+/{}==", self.drawn);
            metadata["continue"] = token.clone().into();
            metadata["remainingItemCount"] = rest.len().into();
            self.parts.insert(token, (version, rest));
        }
        ok(
            200,
            json!({ "kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "items": items }),
        )
    }

    /// What happened after a version to what is selected; `Err` if that is forgotten.
    pub(super) fn since(
        &self,
        version: u64,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<Value>, Reply> {
        if version < self.compacted {
            return Err(expired(&format!("too old resource version: {version} ({})", self.compacted)));
        }
        let new =
            self.log.iter().filter(|happened| happened.version > version && happened.namespace == namespace);
        Ok(new.filter_map(|happened| selector.tells(happened)).collect())
    }
}

/// Which objects are meant.
pub(super) struct Selector(Vec<Demand>);

enum Demand {
    Has(String),
    Lacks(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
}

impl Selector {
    pub(super) fn read(text: &str) -> Selector {
        let mut demands = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            // A comma within parentheses belongs to the list in them.
            let open = rest.find('(').filter(|open| rest.find(',').is_none_or(|comma| open < &comma));
            let end = match open {
                Some(open) => rest[open..].find(')').map_or(rest.len(), |close| open + close + 1),
                None => rest.find(',').unwrap_or(rest.len()),
            };
            demands.push(Demand::read(rest[..end].trim()));
            rest = rest[end..].trim_start_matches(',').trim();
        }
        Selector(demands)
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|demand| match demand {
            Demand::Has(key) => labels[key].is_string(),
            Demand::Lacks(key) => !labels[key].is_string(),
            Demand::In(key, values) => {
                labels[key].as_str().is_some_and(|is| values.iter().any(|value| value == is))
            }
            Demand::NotIn(key, values) => {
                labels[key].as_str().is_none_or(|is| values.iter().all(|value| value != is))
            }
        })
    }

    /// The event for who watches what is selected: what is selected no more is as good as deleted.
    fn tells(&self, happened: &Happened) -> Option<Value> {
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

impl Demand {
    fn read(text: &str) -> Demand {
        let list = |values: &str| {
            let values = values.trim().trim_start_matches('(').trim_end_matches(')');
            values.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>()
        };
        if let Some((key, values)) = text.split_once(" notin ") {
            return Demand::NotIn(key.trim().into(), list(values));
        }
        if let Some((key, values)) = text.split_once(" in ") {
            return Demand::In(key.trim().into(), list(values));
        }
        if let Some((key, value)) = text.split_once("!=") {
            return Demand::NotIn(key.trim().into(), vec![value.trim().into()]);
        }
        if let Some((key, value)) = text.split_once('=') {
            return Demand::In(key.trim().into(), vec![value.trim_start_matches('=').trim().into()]);
        }
        match text.strip_prefix('!') {
            Some(key) => Demand::Lacks(key.trim().into()),
            None => Demand::Has(text.into()),
        }
    }
}

/// As RFC 7386 has it.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in changes {
        match value {
            Value::Null => {
                if let Value::Object(fields) = object {
                    fields.remove(key);
                }
            }
            value => merge(&mut object[key], value),
        }
    }
}

fn not_found(name: &str) -> Reply {
    status(404, "NotFound", format!("leases.coordination.k8s.io {name:?} not found"))
}

fn conflict(name: &str, why: impl std::fmt::Display) -> Reply {
    let message = format!("Operation cannot be fulfilled on leases.coordination.k8s.io {name:?}: {why}");
    status(409, "Conflict", message)
}

fn expired(message: &str) -> Reply {
    status(410, "Expired", message)
}

fn invalid(name: &str, why: &str) -> Reply {
    status(422, "Invalid", format!("Lease.coordination.k8s.io {name:?} is invalid: {why}"))
}

/// Refuses what is no Lease of this namespace.
fn foreign(object: &Value, namespace: &str) -> Option<Reply> {
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

/// Refuses what the API server refuses of a Lease.
fn refuse(name: &str, object: &Value) -> Option<Reply> {
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
    let has = |field: &str| spec[field].as_str().is_some_and(|text| !text.is_empty());
    if has("preferredHolder") && !has("strategy") {
        return Some(invalid(
            name,
            "spec.preferredHolder: Forbidden: may only be specified when `strategy` is defined",
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

fn is_subdomain(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part = |part: &str| {
        part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

fn is_label_value(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    text.is_empty()
        || text.len() <= 63 && text.chars().all(inner) && text.starts_with(edge) && text.ends_with(edge)
}

fn is_qualified(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// `2006-01-02T15:04:05.000000Z`: with exactly six digits.
fn is_micro_time(text: &str) -> bool {
    let fraction =
        text.split_once('.').map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).count());
    fraction == Some(6) && text.parse::<jiff::Timestamp>().is_ok()
}

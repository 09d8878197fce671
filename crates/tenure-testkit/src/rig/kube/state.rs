//! Objects of the fake API server: versions, conflicts, paged lists and watch events.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::selector::Selector;
use super::validate::{foreign, kept, refuse};

/// Status and body of a response.
pub(super) struct ApiReply {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// A `Status` object, as the API server writes it.
pub(super) fn status(code: u16, reason: &str, message: impl Into<String>) -> ApiReply {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message.into(), "reason": reason, "code": code,
    });
    ApiReply { status: code, body }
}

fn ok(status: u16, body: Value) -> ApiReply {
    ApiReply { status, body }
}

/// A change of an object.
#[derive(Clone)]
pub(super) struct WatchEvent {
    pub(super) version: u64,
    pub(super) namespace: String,
    /// The object before the change; `None` if it was created.
    pub(super) before: Option<Value>,
    /// The object after the change; `None` if it was deleted.
    pub(super) after: Option<Value>,
}

/// All Leases and pods, and the change log of the Leases.
#[derive(Default)]
pub(super) struct ApiState {
    pub(super) leases: BTreeMap<(String, String), Value>,
    pub(super) pods: BTreeMap<(String, String), Value>,
    /// Existing namespaces; empty means all.
    pub(super) namespaces: Vec<String>,
    pub(super) version: u64,
    /// Version up to which the log is compacted.
    pub(super) compacted: u64,
    pub(super) log: VecDeque<WatchEvent>,
    /// Paged lists in progress.
    parts: BTreeMap<String, (u64, Vec<Value>)>,
    drawn: u64,
    /// Number of objects in list responses.
    pub(super) listed: u64,
}

impl ApiState {
    fn next_version(&mut self) -> u64 {
        self.version = self.version.max(1) + 1;
        self.version
    }

    /// Compacts the change log.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.log.clear();
        self.parts.clear();
    }

    fn set(&mut self, at: (String, String), mut object: Option<Value>, by: &str) -> Option<Value> {
        let version = self.next_version();
        if let Some(object) = &mut object {
            object["metadata"]["resourceVersion"] = version.to_string().into();
            object["metadata"]["managedFields"] = json!([{
                "manager": by, "operation": "Update", "apiVersion": "coordination.k8s.io/v1",
                "time": now().to_string(), "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": {} },
            }]);
        }
        let before = match object.clone() {
            Some(object) => self.leases.insert(at.clone(), object),
            None => self.leases.remove(&at),
        };
        self.log.push_back(WatchEvent { version, namespace: at.0, before, after: object.clone() });
        object
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> ApiReply {
        match self.leases.get(&(namespace.into(), name.into())) {
            Some(object) => ok(200, object.clone()),
            None => not_found(name),
        }
    }

    /// Creates an object and records its field manager.
    pub(super) fn create(&mut self, namespace: &str, mut object: Value, by: &str) -> ApiReply {
        if !self.namespaces.is_empty() && !self.namespaces.iter().any(|known| known == namespace) {
            let mut refused = status(404, "NotFound", format!("namespaces {namespace:?} not found"));
            refused.body["details"] = json!({ "name": namespace, "kind": "namespaces" });
            return refused;
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
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["uid"] =
            format!("{:08x}-0000-4000-8000-{:012x}", self.version, tenure::runtime::random() >> 16).into();
        object["metadata"]["creationTimestamp"] = now().to_string().into();
        match self.set(at, Some(kept(object)), by) {
            Some(object) => ok(201, object),
            None => status(500, "InternalError", "the object was stored"),
        }
    }

    pub(super) fn update(&mut self, namespace: &str, name: &str, mut object: Value, by: &str) -> ApiReply {
        if let Some(refused) = foreign(&object, namespace) {
            return refused;
        }
        if object["metadata"]["name"].as_str() != Some(name) {
            return status(400, "BadRequest", "the name of the object does not match the name on the URL");
        }
        let at = (namespace.to_owned(), name.to_owned());
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let Some(found) = self.leases.get(&at).cloned() else {
            // An update creates a missing Lease, unless it has the uid of a deleted one.
            if uid.is_empty() {
                object["metadata"]["resourceVersion"] = Value::Null;
                return self.create(namespace, object, by);
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
        for field in ["uid", "creationTimestamp", "namespace", "managedFields"] {
            object["metadata"][field] = found["metadata"][field].clone();
        }
        let object = kept(object);
        if object == found {
            // An update without changes has no effect.
            return ok(200, found);
        }
        self.set(at, Some(object), by).map_or_else(|| not_found(name), |object| ok(200, object))
    }

    /// A merge patch without a version, as `kubectl patch` sends it.
    pub(super) fn patch(&mut self, namespace: &str, name: &str, patch: &Value, by: &str) -> ApiReply {
        let at = (namespace.to_owned(), name.to_owned());
        let Some(mut object) = self.leases.get(&at).cloned() else { return not_found(name) };
        merge(&mut object, patch);
        self.update(namespace, name, object, by)
    }

    pub(super) fn patch_pod(&mut self, namespace: &str, name: &str, patch: &Value) -> ApiReply {
        let Some(pod) = self.pods.get_mut(&(namespace.into(), name.into())) else {
            return status(404, "NotFound", format!("pods {name:?} not found"));
        };
        merge(pod, patch);
        ok(200, pod.clone())
    }

    pub(super) fn delete(&mut self, namespace: &str, name: &str) -> ApiReply {
        let at = (namespace.to_owned(), name.to_owned());
        if !self.leases.contains_key(&at) {
            return not_found(name);
        }
        self.set(at, None, "");
        ok(200, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
    }

    pub(super) fn list(&mut self, namespace: &str, query: &BTreeMap<String, String>) -> ApiReply {
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
                let text = query.get("labelSelector").map_or("", String::as_str);
                let Some(selector) = Selector::read(text) else { return unreadable(text) };
                let of = |((of, _), object): (&(String, String), &Value)| {
                    (of == namespace && selector.selects(object)).then(|| listed(object))
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
            if !query.contains_key("labelSelector") {
                metadata["remainingItemCount"] = rest.len().into();
            }
            self.parts.insert(token, (version, rest));
        }
        self.listed += items.len() as u64;
        ok(
            200,
            json!({ "kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "items": items }),
        )
    }

    /// The changes of selected objects after a version; `Err` if that version is compacted.
    pub(super) fn since(
        &self,
        version: u64,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<Value>, ApiReply> {
        if version < self.compacted {
            return Err(expired(&format!("too old resource version: {version} ({})", self.compacted)));
        }
        let new =
            self.log.iter().filter(|happened| happened.version > version && happened.namespace == namespace);
        Ok(new.filter_map(|happened| selector.tells(happened)).collect())
    }
}

/// The time, in whole seconds.
fn now() -> jiff::Timestamp {
    jiff::Timestamp::from_second(tenure::runtime::wall_ms() / 1000).unwrap_or_default()
}

/// JSON merge patch (RFC 7386).
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

/// An object as a list item, without its type.
fn listed(object: &Value) -> Value {
    let mut object = object.clone();
    if let Value::Object(fields) = &mut object {
        fields.retain(|field, _| field != "kind" && field != "apiVersion");
    }
    object
}

pub(super) fn unreadable(selector: &str) -> ApiReply {
    status(400, "BadRequest", format!("unable to parse requirement: {selector}"))
}

fn not_found(name: &str) -> ApiReply {
    status(404, "NotFound", format!("leases.coordination.k8s.io {name:?} not found"))
}

fn conflict(name: &str, why: impl std::fmt::Display) -> ApiReply {
    let message = format!("Operation cannot be fulfilled on leases.coordination.k8s.io {name:?}: {why}");
    status(409, "Conflict", message)
}

fn expired(message: &str) -> ApiReply {
    status(410, "Expired", message)
}

pub(super) fn invalid(name: &str, why: &str) -> ApiReply {
    status(422, "Invalid", format!("Lease.coordination.k8s.io {name:?} is invalid: {why}"))
}
